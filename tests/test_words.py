"""The field's words only: private ones stay out of names, prose and kernels. Ordinary English passes."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "electra"
KERNELS = (".cu", ".cuh", ".cpp", ".h")
NUMERIC = ("ops", "model", "objective", "train", "batches", "rng.py")
"""Where tensors are computed: some words that are plain English elsewhere are private names of tensors there."""


class Row(NamedTuple):
    banned: str
    """Names: words, as parts of an identifier or file name. Prose: a regular expression."""
    write: str
    rooms: tuple[str, ...] = ()
    """Parts of the package that the row is about; none means all of it, the docs and the tests' names."""


NAMES = (
    Row("slot slots", "masked positions, masked_BM; or pipeline stage, buffer"),
    Row("judge judges judged judging judgement", "metric, evaluation, cross-entropy"),
    Row("verdict verdicts", "score, metric, outcome"),
    Row("level levels", "metric, log-sum-exp (lse)"),
    Row("propose proposes proposed proposer proposers proposal proposals", "generator, sample"),
    Row("foretell foretells foretold", "MLM head, predict"),
    Row("told said", "arguments; predictions"),
    Row("spent", "time budget used, FLOPs, gradient buffers"),
    Row("diary diaries", "metrics writer, metrics.jsonl"),
    Row("pace paces", "time budget, schedule"),
    Row("price prices priced ledger ledgers bill bills", "FLOPs, cost"),
    Row("beside", "side stream"),
    Row("seat seats", "TMA tile, shared-memory buffer"),
    Row("bands gates rooms", "mbarrier, tile, buffer"),  # one `gate`, such as the copy gate, is the field's
    # Plain English elsewhere; among tensors these stood for something that has a name.
    Row("words", "random bits; tokens, vocabulary entries", NUMERIC),
    Row("texts", "sequences", NUMERIC),
    Row("shown seen", "masked_ids_BL, corrupted_ids_BL", NUMERIC),
    Row("given kept", "kernel arguments, saved activations", ("ops", "model", "objective", "train")),
    Row("narrow wide", "the width: encoder of width 64, of width 256", NUMERIC),
    Row("site sites", "call_site", NUMERIC),
    Row("chance chances", "keep probability", NUMERIC),
    Row("boxes ring", "TMA tile, pipeline stages", NUMERIC),
)
FILE_NAMES = (*NAMES, Row("feed down grow", "gelu_mlp, output projection", NUMERIC))

PROSE = (
    Row(r"\bways? (there|back)\b|\beach way\b", "forward, backward, in each direction"),
    Row(r"\bgo(es|ing)? backwards?\b|\bgo(es|ing)? back (through|over|along)\b", "backward pass"),
    Row(r"\bslots?\b", "masked positions; pipeline stage, buffer"),
    Row(r"\bjudg(e|es|ed|ing|ement|ment)s?\b", "evaluate, score, detect"),
    Row(r"\bproposers?\b|\bpropos(e|es|ed|ing) (replacements?|tokens?)\b", "generator, sample"),
    Row(r"\bforet(ell|ells|elling|old)\b", "predict"),
    Row(r"\bunless told otherwise\b|\b(is|are|was|were) told\b(?! apart)", "by default; is passed"),
    Row(r"\bin one launch\b", "fused"),
    Row(r"\bsteps? aside\b", "side stream"),
    Row(r"\bdiar(y|ies)\b", "metrics.jsonl, metrics writer"),
    Row(r"\bledgers?\b", "FLOPs, cost"),
    Row(r"\b(narrow|wide) (layers?|encoders?|stacks?|networks?|kernels?)\b", "encoder of width 64, of width 256"),
    Row(r"\b(random|hash(ed)?) words?\b|\bwords of (dropout|randomness)\b", "random bits"),
    Row(r"\bverdicts?\b", "score, metric, outcome"),
    Row(r"\b(gates|seats?|boxes|bands)\b", "mbarrier, TMA tile, buffer", ("ops",)),
    Row(r"\btexts\b", "sequences", NUMERIC),
)
KERNEL_NAMES = (
    Row(r"\w*slots?\w*", "stage, buffer; masked position"),
    Row(r"\w*(judge|verdict|propose|foretell|diary|ledger)\w*", "the field's word"),
    Row(r"(\w+_)?(seats?|gates|bands|boxes|rooms|told|spent)(_\w+)?", "TMA tile, mbarrier, buffer, arguments"),
)
ALONE = ("words", "table", "score", "run", "base", "network", "plan", "results")
"""Module names that stood for several modules: at most one each, apart from commands and backends of an op."""


@cache
def parts(name: str) -> frozenset[str]:
    """`masked_BM` and `MaskedHead` as lower-case words; a call site is one."""
    pieces = [piece.lower() for piece in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    return frozenset(re.sub(r"\bcall (site)", r"call\1", " ".join(pieces)).split())


def defined(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of everything that a module defines; names it only uses are somebody else's."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname


def python_prose(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of comments and docstrings, those under attributes too."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from enumerate(node.value.value.split("\n"), node.lineno)


def markdown_prose(source: str) -> Iterator[tuple[int, str]]:
    """Line and text outside fenced code."""
    fenced = False
    for number, line in enumerate(source.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def kernel_prose(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of the comments of a C++ or CUDA file."""
    for found in re.finditer(r"//[^\n]*|/\*.*?\*/", source, re.DOTALL):
        yield from enumerate(found[0].split("\n"), source.count("\n", 0, found.start()) + 1)


def kernel_code(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of a C++ or CUDA file without its comments."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", lambda found: re.sub(r"[^\n]", " ", found[0]), source, flags=re.DOTALL)
    return enumerate(code.split("\n"), 1)


@cache
def banned(row: Row) -> frozenset[str]:
    return frozenset(row.banned.split())


def in_names(name: str, room: str, rows: tuple[Row, ...] = NAMES) -> Iterator[tuple[str, str]]:
    """The banned words in a name, with what to write."""
    if name.startswith("__"):
        return
    for row in rows:
        if not row.rooms or room in row.rooms:
            for word in parts(name) & banned(row):
                yield f"{word} (in {name})" if word != name else word, row.write


def in_text(line: str, room: str, rows: tuple[Row, ...] = PROSE) -> Iterator[tuple[str, str]]:
    """The banned phrases in a line, with what to write; what stands in backticks is code."""
    prose = re.sub(r"``.*?``|`[^`]*`", "``", line)
    for row in rows:
        if not row.rooms or room in row.rooms:
            for found in re.finditer(row.banned, prose, re.IGNORECASE):
                yield found[0], row.write


def room_of(path: Path) -> str:
    """The folder or module of the package that a file belongs to; empty outside the package."""
    return path.relative_to(PACKAGE).parts[0] if path.is_relative_to(PACKAGE) else ""


def report(path: Path, lines: Iterator[tuple[int, str]], find: object) -> Iterator[str]:
    for number, line in lines:
        for word, write in find(line, room_of(path)):  # type: ignore[operator]
            yield f"{path.relative_to(ROOT)}:{number}: {word} -> {write}"


def files(*suffixes: str, below: tuple[Path, ...] = (PACKAGE,)) -> list[Path]:
    return sorted(path for folder in below for path in folder.rglob("*") if path.suffix in suffixes)


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *files(".md", below=(ROOT / "docs", PACKAGE))]


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_names_of_the_package() -> None:
    found = [line for path in files(".py") for line in report(path, defined(read(path)), in_names)]
    assert not found, "\n".join(found)


def test_names_of_files() -> None:
    below = (PACKAGE, ROOT / "tests")
    found = [
        f"{path.relative_to(ROOT)}: {word} -> {write}"
        for path in files(".py", ".html", ".css", *KERNELS, below=below)
        if path != Path(__file__)
        for word, write in in_names(path.stem, room_of(path), FILE_NAMES)
    ]
    assert not found, "\n".join(found)


def test_names_of_tests() -> None:
    found = [
        line
        for path in files(".py", below=(ROOT / "tests",))
        for line in report(path, (one for one in defined(read(path)) if one[1].startswith("test_")), in_names)
    ]
    assert not found, "\n".join(found)


def test_prose_of_the_package() -> None:
    found = [line for path in files(".py") for line in report(path, python_prose(read(path)), in_text)]
    found += [line for path in files(*KERNELS) for line in report(path, kernel_prose(read(path)), in_text)]
    assert not found, "\n".join(found)


def test_prose_of_the_docs() -> None:
    found = [line for path in pages() for line in report(path, markdown_prose(read(path)), in_text)]
    assert not found, "\n".join(found)


def test_names_of_kernels() -> None:
    def find(line: str, room: str) -> Iterator[tuple[str, str]]:
        for row in KERNEL_NAMES:
            for found in re.finditer(rf"\b{row.banned}\b", line):
                yield found[0], row.write

    found = [line for path in files(*KERNELS) for line in report(path, kernel_code(read(path)), find)]
    assert not found, "\n".join(found)


def test_modules_have_names_of_their_own() -> None:
    modules = [path for path in files(".py") if room_of(path) not in ("cli", "ops")]
    count = Counter(path.stem for path in modules)
    assert [str(path.relative_to(PACKAGE)) for path in modules if path.stem in ALONE and count[path.stem] > 1] == []


@pytest.mark.parametrize(
    "source",
    [
        "def judge(x): ...",
        "class Verdict: ...",
        "slots_BS = 1",
        "self.slot_count = 2",
        "def f(told): ...",
        "import x as prices",
        "for proposal in y: ...",
        "with a as diary: ...",
        "NarrowLayer = 1",
        "HEAD_SITE = 3",
    ],
)
def test_a_private_name_is_seen(source: str) -> None:
    assert [word for _, name in defined(source) for word in in_names(name, "model")]


@pytest.mark.parametrize(
    "source",
    [
        "@dataclass(slots=True)\nclass A: ...",
        "class A:\n    __slots__ = ()",
        "x = y.narrow(0, 1, 2)",
        "copy_gate = sigmoid(x)",
        "HEAD_CALL_SITE = call_site = 3",
        "navigates = stable = 1",
        "facts['ledger'] = cost",
    ],
)
def test_python_and_torch_may_name_theirs(source: str) -> None:
    assert not [word for _, name in defined(source) for word in in_names(name, "model")]


@pytest.mark.parametrize(
    "line",
    [
        "kept for the way back",
        "19 prediction slots a sequence",
        "what the proposer says",
        "Judged by AUC",
        "one a text in one launch",
        "lists every key unless told otherwise",
    ],
)
def test_a_private_phrase_is_seen(line: str) -> None:
    assert list(in_text(line, "ops"))


@pytest.mark.parametrize(
    "line",
    [
        "given that a checkpoint is kept, it is shown beside the other",
        "a long way; both ways; words of a text; told apart from real ones",
        "`dataclass(slots=True)` and the key `ledger` of run.json",
        "a wide range of prices, at this level, go back to the list",
    ],
)
def test_ordinary_english_passes(line: str) -> None:
    assert not list(in_text(line, "ops"))


def test_words_are_found_with_their_lines() -> None:
    source = '"""First.\n\nThe way back.\n"""\nx = 1  # a slot\n'
    lines = report(PACKAGE / "model" / "x.py", python_prose(source), in_text)
    assert sorted(line.split(" -> ")[0] for line in lines) == [
        "src/electra/model/x.py:3: way back",
        "src/electra/model/x.py:5: slot",
    ]
    kernel = "int a;  /* one\n slot */ int b;\n// a slot\nint slot_of;\n"
    assert [number for number, line in kernel_prose(kernel) if "slot" in line] == [2, 3]
    assert [number for number, line in kernel_code(kernel) if "slot" in line] == [4]
    assert [number for number, _ in markdown_prose("a\n```\nslot\n```\nb")] == [1, 5]
