"""Tagging data in CoNLL columns, one word a line, and conversions between IOB1, IOB2, BIOES and BILOU tags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from electra.errors import DataError
from electra.metrics.tagging import chunks
from electra.tasks.files import read_lines
from electra.tasks.rows import Sentence

Scheme = Literal["iob1", "iob2", "bioes", "bilou"]
OUTSIDE = "O"
DOCUMENT_START = "-DOCSTART-"

_PREFIXES: dict[Scheme, str] = {"iob1": "IB", "iob2": "BI", "bioes": "BIES", "bilou": "BILU"}
_CHUNK_TAG = re.compile(r"[BIESLU]-.+", re.DOTALL)
_BLANKS = re.compile(r"[ \t]+")


def read_conll(path: Path, *, word: int = 0, tag: int | None = -1) -> list[Sentence]:
    """The sentences of a file with columns between tabs or spaces and a blank line after each sentence.

    Columns count from 0, or from the end as -1, -2. Without a tag column (`None`) the tags are unknown.
    """
    sentences: list[Sentence] = []
    words: list[str] = []
    tags: list[str] = []
    width = 0

    def close() -> None:
        if words:
            known = None if tag is None else tuple(tags)
            sentences.append(Sentence(id=str(len(sentences)), words=tuple(words), tags=known))
        words.clear()
        tags.clear()

    for line, content in enumerate(read_lines(path), 1):
        if not content.strip() or content.startswith(DOCUMENT_START):
            close()
            continue
        fields = content.split("\t") if "\t" in content else _BLANKS.split(content.strip(" "))
        if not width:
            width = len(fields)
            _check_columns(path, width, line=line, word=word, tag=tag)
        if len(fields) != width:
            fix = "every word's line needs the same columns, sentences end with a blank line"
            raise DataError(path, f"line {line} has {len(fields)} columns, the lines before have {width}", fix=fix)
        words.append(fields[word])
        if tag is not None:
            if not fields[tag]:
                raise DataError(path, f"line {line}: the tag is empty", fix=f"'{OUTSIDE}' is the tag of other words")
            tags.append(fields[tag])
    close()
    if not sentences:
        raise DataError(path, "holds no sentences", fix="one word a line, a blank line after each sentence")
    return sentences


def is_chunked(tags: Iterable[str]) -> bool:
    """Whether these tags mark chunks (B-, I-, E-, S- and O), rather than one class a word as parts of speech do."""
    found = set(tags)
    return bool(found) and all(tag == OUTSIDE or _CHUNK_TAG.fullmatch(tag) for tag in found) and found != {OUTSIDE}


def scheme_of(sentences: Iterable[Sentence]) -> Scheme:
    """The scheme of chunk tags: E or S are BIOES's, L or U BILOU's; most chunks of IOB2 begin with B, of IOB1 not."""
    tagged = [sentence.tags or () for sentence in sentences]
    prefixes = {tag[0] for tags in tagged for tag in tags}
    if prefixes & {"L", "U"}:
        return "bilou"
    if prefixes & {"E", "S"}:
        return "bioes"
    begins = [tags[start][0] for tags in tagged for _, start, _ in chunks(tags)]
    return "iob2" if begins.count("B") >= begins.count("I") else "iob1"


def scheme_of_labels(labels: Sequence[str]) -> Scheme | None:
    """The scheme whose tags `chunk_tags` gave; None for tags that mark no chunks."""
    order = "".join(dict.fromkeys(label[0] for label in labels if label != OUTSIDE and "-" in label))
    return next((scheme for scheme, prefixes in _PREFIXES.items() if prefixes == order), None)


def to_scheme(tags: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """The same chunks in another scheme."""
    match scheme:
        case "iob1":
            return to_iob1(tags)
        case "iob2":
            return to_iob2(tags)
    return _with_ends(tags, end="E" if scheme == "bioes" else "L", single="S" if scheme == "bioes" else "U")


def _with_ends(tags: Sequence[str], *, end: str, single: str) -> tuple[str, ...]:
    """The same chunks with their last words marked."""
    made = [OUTSIDE] * len(tags)
    for kind, start, stop in chunks(tags):
        made[start:stop] = [f"I-{kind}"] * (stop - start)
        made[start], made[stop - 1] = f"B-{kind}", f"{end}-{kind}"
        if stop - start == 1:
            made[start] = f"{single}-{kind}"
    return tuple(made)


def to_iob2(tags: Sequence[str]) -> tuple[str, ...]:
    """The same chunks as IOB2: each begins with B-."""
    made = [OUTSIDE] * len(tags)
    for kind, start, end in chunks(tags):
        made[start:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - start - 1)]
    return tuple(made)


def to_iob1(tags: Sequence[str]) -> tuple[str, ...]:
    """The same chunks as IOB1: I- throughout, except for B- where one directly follows another of its type."""
    made = [OUTSIDE] * len(tags)
    last, last_kind = -1, ""
    for kind, start, end in sorted(chunks(tags), key=lambda chunk: chunk[1]):
        first = "B" if start == last and kind == last_kind else "I"
        made[start:end] = [f"{first}-{kind}", *[f"I-{kind}"] * (end - start - 1)]
        last, last_kind = end, kind
    return tuple(made)


def tags_of(sentences: Iterable[Sentence]) -> tuple[str, ...]:
    """Every tag that occurs, O first, the others sorted."""
    found = {tag for sentence in sentences for tag in sentence.tags or ()}
    return tuple(sorted(found, key=lambda tag: (tag != OUTSIDE, tag)))


def chunk_tags(sentences: Iterable[Sentence], scheme: Scheme) -> tuple[str, ...]:
    """O and the tags that a scheme has for every type that occurs, also those that occur nowhere."""
    kinds = sorted({tag.partition("-")[2] for tag in tags_of(sentences) if tag != OUTSIDE})
    return (OUTSIDE, *(f"{prefix}-{kind}" for kind in kinds for prefix in _PREFIXES[scheme]))


def _check_columns(path: Path, width: int, *, line: int, word: int, tag: int | None) -> None:
    for role, column in (("word", word), ("tag", tag)):
        if column is not None and not -width <= column < width:
            raise DataError(path, f"the {role} column is {column}, but the lines have {width} columns, from 0")
    if tag is not None and width == 1:
        raise DataError(path, f"line {line} has one column", fix="a word, then a tab or a space, then its tag")
    if tag is not None and word % width == tag % width:
        raise DataError(path, f"words and tags would come from the same column {word % width}", fix="name another")
