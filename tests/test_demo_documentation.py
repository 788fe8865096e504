"""The embedded corpus and task: clean prose, no leaks between the splits, the same bytes every time."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path

import pytest

from electra.demo.docstrings import docstrings, is_prose, paragraphs, prose_of_file
from electra.demo.documentation import SampleInfo, read_sample, write_sample
from electra.errors import DataError

PACKAGES = ("numpy", "networkx")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SampleInfo]:
    folder = tmp_path_factory.mktemp("sample")
    return folder, write_sample(folder, packages=PACKAGES)


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_numpy_style_docstring_keeps_descriptions_and_drops_code() -> None:
    text = """
    Compute the mean of the values along an axis.

    The mean is the sum of the values divided by
    their number, as in :func:`numpy.mean`.

    Parameters
    ----------
    values : array_like
        The numbers whose mean is wanted, in any order.
    axis : int, optional
        Axis.

    Examples
    --------
    >>> mean([1, 2, 3])
    2.0

    A formula is shown in the block below::

        this is the code that is not wanted in the text of the corpus

    .. plot::

        this is the code that is not wanted in the text of the corpus
    """
    assert paragraphs(text) == [
        "Compute the mean of the values along an axis.",
        "The mean is the sum of the values divided by their number, as in mean.",
        "The numbers whose mean is wanted, in any order.",
        "A formula is shown in the block below:",
    ]


def test_google_style_and_markdown_docstring() -> None:
    text = """Loads the weights of a model from a folder on the disk.

    Args:
        path (`str`, *optional*): Where the files of the model are to be found.
        strict: **Whether** a weight that is missing in the file is an error.

    ```python
    model = load("the folder of the model that is on the disk")
    ```

    See the [guide](https://example.org/guide) for what to do in the case of an error.
    """
    assert paragraphs(text) == [
        "Loads the weights of a model from a folder on the disk.",
        "Where the files of the model are to be found.",
        "Whether a weight that is missing in the file is an error.",
        "See the guide for what to do in the case of an error.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        "the words of a text with a \0 in it",
        "the words of a text with a \ud800 in it",
        "x = y + z * 3 - w / 2 % 1",
        "self args kwargs foo_bar baz_qux one_two three_four " * 3,
    ],
)
def test_code_is_not_prose(text: str) -> None:
    assert not is_prose(text)


def test_docstrings_in_source_order_with_added_ones() -> None:
    source = 'class A:\n    "one"\n    def f(self):\n        "two"\nadd_newdoc("m", "f", """\nthree\n""")\nx = "no"\n'
    assert [text.strip() for text in docstrings(ast.parse(source))] == ["one", "two", "three"]


def test_files_that_do_not_parse_give_nothing(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_bytes(b'"""' + b"The words of a file that is not valid as a source. " * 20 + b'"""\ndef (:\n')
    assert prose_of_file(bad) == []
    bad.write_bytes(b"\x00\xff" * 1000)
    assert prose_of_file(bad) == []
    assert prose_of_file(tmp_path / "absent.py") == []


def test_corpus_is_paragraphs_and_documents(sample: tuple[Path, SampleInfo]) -> None:
    folder, info = sample
    text = (folder / "corpus.txt").read_text(encoding="utf-8")
    documents = text.rstrip("\n").split("\n\n")
    assert len(documents) == info.documents and len(text.encode()) == info.bytes > 500_000
    lines = [line for document in documents for line in document.split("\n")]
    assert all(is_prose(line) for line in lines)
    assert len(set(lines)) == len(lines)
    assert read_sample(folder) == info and read_sample(folder / "nowhere") is None


def test_task_is_balanced_and_nameless(sample: tuple[Path, SampleInfo]) -> None:
    folder, info = sample
    train, dev = rows(folder / "task-train.jsonl"), rows(folder / "task-dev.jsonl")
    assert (len(train), len(dev)) == (info.train, info.dev)
    for split in (train, dev):
        counts = Counter(row["label"] for row in split)
        assert sorted(counts) == sorted(info.labels) == sorted(PACKAGES)
        assert len(set(counts.values())) == 1
        for row in split:
            words = row["text"].lower().replace(".", " ").split()
            assert not {"numpy", "np", "networkx", "nx"} & set(words), row


def test_dev_passages_are_nowhere_else(sample: tuple[Path, SampleInfo]) -> None:
    folder, _ = sample
    corpus = (folder / "corpus.txt").read_text(encoding="utf-8")
    train = {row["text"] for row in rows(folder / "task-train.jsonl")}
    flat = corpus.replace("\n", " ")
    for row in rows(folder / "task-dev.jsonl"):
        assert row["text"] not in train
        assert row["text"] not in flat


def test_same_bytes_again(sample: tuple[Path, SampleInfo], tmp_path: Path) -> None:
    folder, info = sample
    assert write_sample(tmp_path, packages=PACKAGES) == info
    for name in ("corpus.txt", "task-train.jsonl", "task-dev.jsonl", "sample.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_too_few_packages_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="too little text in click, absent_package"):
        write_sample(tmp_path, packages=("click", "absent_package"))
    assert not (tmp_path / "corpus.txt").exists()
