"""Nothing grows huge: modules, Python functions and CUDA or C++ functions have a largest size."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE_LINES, TEST_LINES = 400, 500
PYTHON_FUNCTION_LINES, KERNEL_FUNCTION_LINES = 60, 120
KERNELS = (".cu", ".cuh", ".cpp", ".h")
_SILENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
_NOT_A_FUNCTION = re.compile(r"\b(namespace|struct|class|union|enum|extern)\b[^()]*$")


def python_functions(source: str) -> Iterator[tuple[str, int, int]]:
    """Name, first line and number of lines of each function, nested ones too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def kernel_functions(source: str) -> Iterator[tuple[str, int, int]]:
    """Name, first line and number of lines of each function of a C++ or CUDA file, from signature to last brace."""
    code = _SILENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda found: re.sub(r"[^\n]", " ", found[0]), code, flags=re.M)
    depth, signature, opened, name = 0, 0, 0, ""
    for at, letter in enumerate(code):
        if depth == 0 and letter in ";}":
            signature = at + 1
        elif depth == 0 and letter == "{":
            before = code[signature:at]
            name = _called(before)
            if _NOT_A_FUNCTION.search(before) or not name:
                signature = at + 1  # what it encloses counts as if it stood outside
                continue
            depth = 1
            opened = signature + len(before) - len(before.lstrip())
        elif letter in "{}" and depth:
            depth += 1 if letter == "{" else -1
            if depth == 0:
                yield name, code.count("\n", 0, opened) + 1, code.count("\n", opened, at) + 1
                signature = at + 1


def _called(signature: str) -> str:
    """The name before the last parentheses of a signature; empty where there are none."""
    end = signature.rfind(")")
    open_ = 0
    for at in range(end, -1, -1):
        open_ += (signature[at] == ")") - (signature[at] == "(")
        if open_ == 0:
            found = re.search(r"(\w+)\s*$", signature[:at])
            return found[1] if found else ""
    return ""


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_modules_are_small() -> None:
    sources = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", *KERNELS)]
    tests = [path for path in (ROOT / "tests").rglob("*") if path.suffix in (".py", *KERNELS)]
    large = {_named(path): _lines(path) for path in sources if _lines(path) > SOURCE_LINES}
    assert large | {_named(path): _lines(path) for path in tests if _lines(path) > TEST_LINES} == {}


def test_python_functions_are_small() -> None:
    large = [
        f"{_named(path)}:{line}: {name} has {lines} lines"
        for folder in ("src", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, line, lines in python_functions(path.read_text(encoding="utf-8"))
        if lines > PYTHON_FUNCTION_LINES
    ]
    assert not large, "\n".join(large)


def test_kernel_functions_are_small() -> None:
    large = [
        f"{_named(path)}:{line}: {name} has {lines} lines"
        for path in sorted((ROOT / "src").rglob("*"))
        if path.suffix in KERNELS
        for name, line, lines in kernel_functions(path.read_text(encoding="utf-8"))
        if lines > KERNEL_FUNCTION_LINES
    ]
    assert not large, "\n".join(large)


KERNEL = """
#define TWICE(x) { \\
  x; x; }
namespace { // {
struct Tile { int rows; void clear() { rows = 0; } };
template <int N>
__global__ void __launch_bounds__(128)
add(const float* a,  // (N,) "{"
    float* out) {
  for (int i = 0; i < N; ++i) {
    auto f = [&](int j) { out[j] += a[j]; };
    f(i);
  }
}
}  // namespace
extern "C" void run(void* stream) {
  add<4><<<1, 128>>>(nullptr, nullptr);
}
"""


def test_functions_of_kernels_are_found() -> None:
    assert list(kernel_functions(KERNEL)) == [("clear", 5, 1), ("add", 6, 9), ("run", 16, 3)]


def test_functions_of_python_are_found() -> None:
    source = "class A:\n    @property\n    def one(self):\n        def two(): ...\n        return two\n"
    assert sorted(python_functions(source)) == [("one", 3, 3), ("two", 4, 1)]
