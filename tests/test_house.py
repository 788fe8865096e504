"""Rules of the house that no linter knows: nothing unsafe, nothing vague."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from electra.cli import COMMANDS

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PYTHON = SOURCES + sorted((ROOT / "tests").rglob("*.py"))

UNSAFE_MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "jsonpickle"}
UNSAFE_BUILTINS = {"eval", "exec", "compile", "__import__"}
UNSAFE_CALLS = {"torch.save", "torch.load", "torch.hub.load", "torch.jit.load", "yaml.load", "yaml.unsafe_load"}
UNSAFE_CALLS |= {"os.system"}
UNSAFE_NAMES = {
    "FileSystemWriter",
    "FileSystemReader",
    "DefaultSavePlanner",
}  # torch's default checkpoint writer pickles
UNSAFE_KEYWORDS = {"trust_remote_code", "allow_pickle", "shell"}


def unsafe(source: str) -> Iterator[str]:
    """Everything in a module that could pickle, unpickle or run code from data."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in UNSAFE_MODULES)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").partition(".")[0] in UNSAFE_MODULES:
                yield str(node.module)
            yield from (alias.name for alias in node.names if alias.name in UNSAFE_NAMES)
            yield from (name for alias in node.names if (name := f"{node.module}.{alias.name}") in UNSAFE_CALLS)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in UNSAFE_BUILTINS or name in UNSAFE_CALLS or name.partition(".")[0] in UNSAFE_MODULES:
                yield name
            for keyword in node.keywords:
                off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg in UNSAFE_KEYWORDS and not off:
                    yield str(keyword.arg)
        elif isinstance(node, ast.Attribute) and node.attr in UNSAFE_NAMES:
            yield node.attr


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_promise_17_no_pickle_and_no_code_from_data(path: Path) -> None:
    assert list(unsafe(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "import pickle as p",
        "from pickle import loads",
        "import multiprocessing.x, dill",
        "torch.save(x, f)",
        "import torch\ntorch.load(f, weights_only=True)",
        "from torch import save",
        "eval('1')",
        "exec(code)",
        "__import__('os')",
        "AutoModel.from_pretrained(n, trust_remote_code=True)",
        "AutoModel.from_pretrained(n, trust_remote_code=flag)",
        "np.load(f, allow_pickle=True)",
        "yaml.load(f)",
        "subprocess.run(c, shell=True)",
        "from torch.distributed.checkpoint import FileSystemWriter",
        "dcp.FileSystemReader(p)",
        "os.system(c)",
    ],
)
def test_promise_17_the_check_sees(line: str) -> None:
    assert list(unsafe(line))


@pytest.mark.parametrize(
    "line", ["model.eval()", "re.compile('x')", "f(trust_remote_code=False)", "safetensors.torch.load_file(f)"]
)
def test_promise_17_the_check_is_not_blind_rage(line: str) -> None:
    assert not list(unsafe(line))


def test_modules_have_names_that_say_something() -> None:
    vague = {"utils", "util", "common", "helpers", "helper", "misc"}
    assert [path.name for path in PYTHON if path.stem in vague or vague & set(path.parent.parts)] == []


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if (source := path.read_text(encoding="utf-8")).strip() and not ast.get_docstring(ast.parse(source))
    ]
    assert silent == []


def test_no_machine_paths_in_the_package() -> None:
    pattern = re.compile(r"(^|[^A-Za-z0-9_./-])/(home|root|opt|mnt|tmp|work)/")
    assert [str(path) for path in SOURCES if pattern.search(path.read_text(encoding="utf-8"))] == []


def test_every_command_has_its_module() -> None:
    missing = [name for name, (module, _) in COMMANDS.items() if importlib.util.find_spec(module) is None]
    assert missing == []


def test_layers_name_every_part_of_the_package() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    named = {part.strip("() ") for layer in contract["layers"] for part in re.split(r"[|:]", layer)}
    package = ROOT / "src" / "electra"
    parts = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}
    assert parts - {"__init__"} <= named and contract["exhaustive"]


def test_constraints_fit_any_machine() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.]*", line) for line in lines)
    assert "torch==2.13.0" in lines and "transformers==5.17.0" in lines


def test_what_is_pinned_installs_on_the_oldest_python() -> None:
    """pymdown-extensions 13 asked for 3.11.5, so `make` failed with the 3.11.2 of Debian 12."""
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    names = pinned()
    wanted = {one.name: one.metadata["Requires-Python"] or "" for one in distributions() if one.name in names}
    refused = {name: python for name, python in wanted.items() if f"{oldest}.0" not in SpecifierSet(python)}
    assert len(wanted) > 40 and not refused


def pinned() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line.partition("==")[0] for line in lines if not line.startswith("#")]
