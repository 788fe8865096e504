"""A task made of the corpus itself, where no other is at hand: do two sentences follow each other?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from electra.errors import DataError
from electra.fsio import commit_dir, json_lines, write_atomic
from electra.shards.dataset import Prepared, Split
from electra.tokenizer.codec import Tokenizer

NAME, TITLE = "passages", "sentence pairs of the corpus"
FIRST, SECOND, LABEL = "first", "second", "label"
LABELS = ("apart", "together")
TOKENS = 30  # of a sentence, at most: a pair then fits into 64 with its special tokens
TRIES = 50  # draws a row, before the text is found too short


def write_task(folder: Path, prepared: Prepared, *, rows: int) -> Path:
    """`train.jsonl` and `dev.jsonl` in `folder`, the latter from held-out text; what is there already stays."""
    if folder.is_dir():
        return folder
    tokenizer = prepared.tokenizer()
    with commit_dir(folder) as aside:
        for number, (name, split, count) in enumerate(
            (("train", prepared.train, rows), ("dev", prepared.held_out, max(32, rows // 2)))
        ):
            pairs = _pairs(split, tokenizer, count=count, seed=number, where=prepared.folder)
            lines = json_lines({FIRST: a, SECOND: b, LABEL: label} for a, b, label in pairs)
            write_atomic(aside / f"{name}.jsonl", lines)
    return folder


def _pairs(split: Split, tokenizer: Tokenizer, *, count: int, seed: int, where: Path) -> list[tuple[str, str, str]]:
    """Pairs of sentences, every second one of neighbours in a document, the others from two documents.

    Where only one document has two sentences, the others are from two places of the whole split.
    """
    random = np.random.default_rng(seed)
    starts = split.document_starts
    long = np.flatnonzero(np.diff(starts) > 1)
    if not len(long) or split.n_sentences < 3:
        raise DataError(where, "no document of several sentences to make a task of", fix="give --glue")

    def text(sentence: int) -> str:
        begin, end = int(split.sentence_starts[sentence]), int(split.sentence_starts[sentence + 1])
        return tokenizer.decode(split.slice(begin, min(end, begin + TOKENS)).tolist())

    def apart(first: int, other: int) -> int:
        """A sentence that does not follow the first one: of the other document, where there is one."""
        if len(long) > 1:
            return int(random.integers(starts[other], starts[other + 1]))
        distance = int(random.integers(2, split.n_sentences))
        return int((first + distance) % split.n_sentences)

    found: list[tuple[str, str, str]] = []
    for _ in range(TRIES * count):
        if len(found) == count:
            break
        one, other = random.choice(long, 2, replace=len(long) < 2)
        first = int(random.integers(starts[one], starts[one + 1] - 1))
        together = len(found) % 2
        second = first + 1 if together else apart(first, other)
        pair = text(first), text(second)
        if all(pair):
            found.append((*pair, LABELS[together]))
    return found
