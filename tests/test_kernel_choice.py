"""Which implementation runs is asked in `ops/dispatch.py` only: no other room tests devices or compilers for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("model", "objective", "train", "finetune", "inference", "tasks", "batches", "pretrain.py", "rng.py")
ATTRIBUTES = {"is_cuda", "is_compiling", "USABLE", "HAS_TRITON"}
CHOICE = {"fused", "ops", "choice", "backend"}
"""Names that hold what was chosen: nothing branches on them, not even on None."""


def predicates(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of everything in a module that asks which kernel runs."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Name) and node.id in ATTRIBUTES:
            yield node.lineno, node.id
        elif isinstance(node, ast.Call | ast.Import | ast.ImportFrom) and _asks_for_triton(node):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield from ((node.lineno, ast.unparse(part)) for part in _conditions(node.test) if _is_choice(part))


def _asks_for_triton(node: ast.Call | ast.Import | ast.ImportFrom) -> bool:
    if not isinstance(node, ast.Call):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        return any(name.partition(".")[0] == "triton" for name in names)
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return called == "find_spec" and "triton" in [getattr(argument, "value", None) for argument in node.args]


def _conditions(test: ast.expr) -> Iterator[ast.expr]:
    """What is tested for truth or compared, whatever joins it."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _conditions(value)
    elif isinstance(test, ast.UnaryOp):
        yield from _conditions(test.operand)
    elif isinstance(test, ast.Compare):
        yield from (test.left, *test.comparators)
    else:
        yield test


def _is_choice(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in CHOICE


def test_no_kernel_predicate_outside_dispatch() -> None:
    package = ROOT / "src" / "electra"
    modules = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] in ROOMS]
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted(modules)
        for line, text in predicates(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "if x_BLD.is_cuda: ...",
        "y = a if torch.compiler.is_compiling() else b",
        "from torch.compiler import is_compiling\nis_compiling()",
        "import triton",
        "ready = importlib.util.find_spec('triton') is not None",
        "if library.USABLE: ...",
        "if self.fused is None: ...",
        "if not self.ops or x: ...",
        "y = f(x) if choice.fused else g(x)",
    ],
)
def test_a_predicate_is_seen(source: str) -> None:
    assert list(predicates(source))


@pytest.mark.parametrize(
    "source",
    [
        "y = self.ops.attention(q, k, v)",
        "if self.ops.deterministic_steps > step: ...",
        "if config.choice_seeds: ...",
        "optimizer = AdamW(params, fused=True)",
        "if lengths_B is None: ...",
        "find_spec('matplotlib')",
    ],
)
def test_a_call_is_no_predicate(source: str) -> None:
    assert not list(predicates(source))
