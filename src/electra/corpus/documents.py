"""Blocks into cleaned documents, counting what is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from electra.corpus.blocks import Block, decode, missing_column
from electra.corpus.markup import html_paragraphs, markdown_paragraphs
from electra.corpus.text import clean
from electra.errors import DataError
from electra.jsontext import parse_row

MAX_DOCUMENT_CHARS = 1 << 20
"""A longer document continues as a new one, at a line end: a file without blank lines is not one document."""


@dataclass(slots=True)
class Tally:
    """What happened to the documents of a block."""

    read: int = 0
    short: int = 0
    """Left out: fewer characters than asked for, or no letter or digit."""
    cut: int = 0
    """Times a long document was continued as a new one."""


def documents(block: Block, *, text_column: str, tally: Tally) -> Iterator[list[str]]:
    """The cleaned, non-empty lines of each document, in order. Empty documents are skipped and counted as short."""
    for lines in _raw(block, text_column=text_column):
        tally.read += 1
        document: list[str] = []
        size = 0
        for line in lines:
            if size >= MAX_DOCUMENT_CHARS:
                yield document
                tally.cut += 1
                document, size = [], 0
            if cleaned := clean(line):
                document.append(cleaned)
                size += len(cleaned)
        if document:
            yield document
        else:
            tally.short += 1


def _raw(block: Block, *, text_column: str) -> Iterator[list[str]]:
    text = decode(block)
    if block.kind == "rows":
        for row in text.split("\0"):
            yield row.split("\n")
    elif block.kind == "html":
        yield html_paragraphs(text)
    elif block.kind == "markdown":
        yield markdown_paragraphs(text)
    elif block.kind == "json":
        for number, line in enumerate(text.split("\n"), block.line):
            if line and not line.isspace():
                yield _json_text(line, where=block.source, number=number, column=text_column).split("\n")
    else:
        yield from _paragraphs(text)


def _paragraphs(text: str) -> Iterator[list[str]]:
    held: list[str] = []
    for line in text.split("\n"):
        if line and not line.isspace():
            held.append(line)
        elif held:
            yield held
            held = []
    if held:
        yield held


def _json_text(line: str, *, where: str, number: int, column: str) -> str:
    row = parse_row(line, where=where, number=number)
    if column not in row:
        raise missing_column(f"{where}: line {number}", column, row)
    text = row[column]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise DataError(where, f"line {number}: '{column}' is not a text", fix="--text-column NAME")
    return text
