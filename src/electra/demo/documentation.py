"""The demo's corpus and task: the documentation that is already on the machine, read from source files."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import os
import re
import signal
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import active_children, get_context
from pathlib import Path

from electra import fsio
from electra.demo.docstrings import paragraphs, prose_of_file
from electra.errors import DataError
from electra.records import read_record

TOTAL_BYTES = 15_000_000
PACKAGE_BYTES = 2_000_000
DOCUMENT_CHARS = 20_000
HELD_OUT_PERCENT = 20
LABELS = 8
TRAIN_EACH, DEV_EACH = 100, 75
FEWEST_LABELS = 5  # below this, packages with half or a quarter of the passages are taken too
PASSAGE_CHARS = (60, 180)

# In order of how well people know them: the first with enough text become the task's labels. A fixed list, so that
# nothing private that happens to be installed is read.
_NAMES = """python torch numpy sympy networkx scipy sklearn pandas matplotlib transformers jinja2 click rich pygments
    setuptools fsspec huggingface_hub mpmath hypothesis pydantic pip datasets PIL fontTools narwhals attr"""
PACKAGES = tuple(_NAMES.split())
_HEAVY = ("transformers", "sympy", "torch", "scipy")  # read first, so that two processes end together
_ALIASES = """pytorch scikit np nx plt pyplot pd mpl jinja huggingface hugging pillow cpython attrs"""
_SKIPPED = """tests test testing _vendor vendor externals idlelib lib2to3 ensurepip site-packages dist-packages
    __pycache__ turtledemo pydoc_data third_party"""
_SKIPPED_FOLDERS = frozenset(_SKIPPED.split())
_NAMED = re.compile(rf"\b(?:{'|'.join(re.escape(name) for name in f'{_NAMES} {_ALIASES}'.lower().split())})\b")
_NOT_LETTERS = re.compile(r"[\W\d_]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleInfo:
    """What `write_sample` wrote."""

    corpus: str
    documents: int
    bytes: int
    packages: dict[str, int]
    """Characters of text that each package gave."""
    labels: list[str]
    """The task's classes: which of these packages does a passage describe?"""
    train: int
    dev: int


@dataclass(frozen=True, slots=True)
class _File:
    package: str
    path: str
    held_out: bool
    docs: list[list[str]]


def write_sample(
    folder: Path, *, packages: Sequence[str] = PACKAGES, on_progress: Callable[[int, int], None] | None = None
) -> SampleInfo:
    """Write `corpus.txt`, `task-train.jsonl`, `task-dev.jsonl` and `sample.json`; the same bytes on the same machine.

    Passages of the development set come from source files that neither the corpus nor the training set contains.
    """
    roots = [(name, root) for name in packages if (root := _root(name)) is not None]
    files: dict[str, list[_File]] = {}
    for done, (name, found) in enumerate(_read_all(roots), 1):
        files[name] = found
        if on_progress is not None:
            on_progress(done, len(roots))
    ordered = [file for name, _ in roots for file in files[name]]

    corpus_marks: set[bytes] = set()
    documents = _corpus([file for file in ordered if not file.held_out], corpus_marks)
    labels, train, dev = _task(ordered, corpus_marks, documents)
    if len(labels) < 2:
        where, fix = "the documentation on this machine", "torch, numpy, sympy and networkx should be installed"
        raise DataError(where, f"too little text in {', '.join(packages)}", fix=fix)
    whole = [document for one in documents.values() for document in one]
    text = ("\n\n".join(whole) + "\n").encode()
    info = SampleInfo(
        corpus="corpus.txt",
        documents=len(whole),
        bytes=len(text),
        packages={name: sum(len(document) + 2 for document in one) for name, one in documents.items()},
        labels=labels,
        train=len(train),
        dev=len(dev),
    )
    fsio.write_atomic(folder / info.corpus, text)
    fsio.write_atomic(folder / "task-train.jsonl", fsio.json_lines(train))
    fsio.write_atomic(folder / "task-dev.jsonl", fsio.json_lines(dev))
    fsio.write_json(folder / "sample.json", asdict(info))  # last: its presence says that the rest is whole
    return info


def read_sample(folder: Path) -> SampleInfo | None:
    """The description of a sample written earlier, or None where there is none."""
    path = folder / "sample.json"
    return read_record(SampleInfo, fsio.read_json(path), where=path, fix="remove it") if path.is_file() else None


def read_rows(path: Path) -> list[tuple[str, str]]:
    """(text, label) pairs of a task file."""
    return [(str(row.get("text")), str(row.get("label"))) for row in fsio.read_json_lines(path)]


def _root(name: str) -> Path | None:
    if name == "python":
        return Path(sysconfig.get_paths()["stdlib"])
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec and spec.origin and spec.submodule_search_locations else None


def _read_all(roots: list[tuple[str, Path]]) -> Iterator[tuple[str, list[_File]]]:
    roots = sorted(roots, key=lambda named: named[0] not in _HEAVY)
    processes = min(2, os.cpu_count() or 1)
    if processes == 1:
        yield from ((named[0], _read_package(named)) for named in roots)
        return
    others = set(active_children())
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_begin_worker) as pool:
        reading = {pool.submit(_read_package, named): named[0] for named in roots}
        try:
            for ended in as_completed(reading):
                yield reading[ended], ended.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(active_children()) - others:
                child.terminate()
            raise


def _begin_worker() -> None:
    gc.disable()  # costs a quarter of the time that syntax trees take, and there are no cycles to find
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle


def _read_package(named: tuple[str, Path]) -> list[_File]:
    """The package's files that have prose, sorted by path; a sample of them where there is more than enough."""
    name, root = named
    found = _topics() if name == "python" else []
    size = sum(_size(file) for file in found)
    for place in sorted(_sources(root), key=lambda place: _hash("read", place)):
        if size >= PACKAGE_BYTES:
            break
        if docs := prose_of_file(root / place):
            found.append(_File(name, place, _held_out(name, place), docs))
            size += _size(found[-1])
    return sorted(found, key=lambda file: file.path)


def _sources(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS]
        for name in names:
            if name.endswith(".py") and not name.startswith("test_"):
                yield (Path(folder) / name).relative_to(root).as_posix()


def _topics() -> list[_File]:
    from pydoc_data.topics import topics

    named = [(f"pydoc_data/{title}", paragraphs(text)) for title, text in sorted(topics.items())]
    return [_File("python", path, _held_out("python", path), [doc]) for path, doc in named if doc]


def _hash(*parts: str) -> int:
    return int.from_bytes(hashlib.blake2b("/".join(parts).encode(), digest_size=8).digest(), "little")


def _held_out(package: str, path: str) -> bool:
    return _hash("held-out", package, path) % 100 < HELD_OUT_PERCENT


def _size(file: _File) -> int:
    return sum(len(paragraph) for doc in file.docs for paragraph in doc)


def _mark(paragraph: str) -> bytes:
    """A digest that is equal for paragraphs that differ only in digits, signs and case."""
    letters = _NOT_LETTERS.sub("", paragraph.lower())
    return hashlib.blake2b(letters.encode(), digest_size=8).digest()


def _corpus(files: list[_File], marks: set[bytes]) -> dict[str, list[str]]:
    """Each package's documents, without repeated paragraphs; adds their marks to `marks`."""
    total = sum(_size(file) for file in files)
    by_package: dict[str, list[str]] = {}
    for file in files:
        if _hash("keep", file.package, file.path) % 10_000 >= TOTAL_BYTES / max(total, 1) * 10_000:
            continue
        documents = by_package.setdefault(file.package, [])
        lines: list[str] = []
        size = 0
        for paragraph in (paragraph for doc in file.docs for paragraph in doc):
            if (mark := _mark(paragraph)) in marks:
                continue
            marks.add(mark)
            lines.append(paragraph)
            size += len(paragraph) + 1
            if size > DOCUMENT_CHARS:  # a file of hundreds of docstrings becomes several documents
                documents.append("\n".join(lines))
                lines, size = [], 0
        if lines:
            documents.append("\n".join(lines))
    return by_package


def _task(
    files: list[_File], marks: set[bytes], documents: dict[str, list[str]]
) -> tuple[list[str], list[dict[str, str]], list[dict[str, str]]]:
    """Labels and balanced train and dev rows; no dev passage stands in its package's part of the corpus."""
    train: dict[str, list[str]] = {}
    dev: dict[str, list[str]] = {}
    openings: set[str] = set()
    for file in sorted(files, key=lambda file: _hash("task", file.package, file.path)):
        into = dev if file.held_out else train
        for doc in file.docs:
            passage = _passage([p for p in doc if _mark(p) not in marks] if file.held_out else doc)
            opening = _NOT_LETTERS.sub("", passage.lower())[:40]
            if passage and opening not in openings and not _NAMED.search(passage.lower()):
                openings.add(opening)
                into.setdefault(file.package, []).append(passage)
    for name, passages in dev.items():  # a "see also" quotes the first sentence of another docstring
        flat = " ".join(documents.get(name, ())).replace("\n", " ")
        dev[name] = [text for text in _shuffled(passages)[: 2 * DEV_EACH] if text not in flat]
    enough: list[str] = []
    for part in (1, 2, 4):
        sizes = ((name, len(train.get(name, ())), len(dev.get(name, ()))) for name in PACKAGES)
        enough = [name for name, some, others in sizes if some >= TRAIN_EACH // part and others >= DEV_EACH // part]
        if len(enough) >= FEWEST_LABELS:
            break
    labels = enough[:LABELS]
    return labels, _balanced(train, labels, TRAIN_EACH), _balanced(dev, labels, DEV_EACH)


def _shuffled(texts: list[str]) -> list[str]:
    return sorted(texts, key=lambda text: _hash("shuffle", text))


def _passage(doc: list[str]) -> str:
    """The beginning of a docstring, about the length of a sequence, or an empty string."""
    shortest, longest = PASSAGE_CHARS
    text = ""
    for paragraph in doc:
        if len(text) + len(paragraph) > longest:
            break
        text = f"{text} {paragraph}".strip()
    return text if len(text) >= shortest else ""


def _balanced(passages: dict[str, list[str]], labels: list[str], most: int) -> list[dict[str, str]]:
    each = min([most, *(len(passages[label]) for label in labels)])
    chosen = {text: label for label in labels for text in _shuffled(passages[label])[:each]}
    return [{"text": text, "label": chosen[text]} for text in _shuffled(list(chosen))]
