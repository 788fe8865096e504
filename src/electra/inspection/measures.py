"""Measures of a trial preparation: lengths, rows, languages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from electra.batches.epoch_plan import plan_epoch
from electra.batches.kept import warnings
from electra.batches.layout import Specials, padding_share
from electra.config.schema import DataConfig
from electra.inspection.facts import EDGES, Lengths, RowsAt
from electra.inspection.languages import guess_language
from electra.shards.dataset import Split

GUESSED_CHARS = 4000
"""Characters of a document that its language is guessed from."""


def lengths(sizes: NDArray[np.int64]) -> Lengths:
    """Classes, median and maximum of the sizes."""
    classes = np.bincount(np.searchsorted(EDGES, sizes), minlength=len(EDGES) + 1)
    return Lengths(
        count=len(sizes),
        median=int(np.median(sizes)) if len(sizes) else 0,
        longest=int(sizes.max(initial=0)),
        shares=tuple((classes / max(1, len(sizes))).tolist()),
    )


def document_sizes(splits: Sequence[Split]) -> NDArray[np.int64]:
    """Tokens of each document."""
    return np.concatenate([np.diff(split.sentence_starts[split.document_starts]) for split in splits])


def sentence_sizes(splits: Sequence[Split]) -> NDArray[np.int64]:
    """Tokens of each sentence."""
    return np.concatenate([np.diff(split.sentence_starts) for split in splits])


def rows_at(split: Split, data: DataConfig) -> tuple[RowsAt, list[str]]:
    """The first epoch's rows at a sequence length, and what a person should know of them."""
    no_ids = Specials(pad=0, cls=0, sep=0, mask=0)  # rows are counted, not written
    epoch = plan_epoch(split, data, no_ids, seed=0, epoch=0)
    padding = padding_share(epoch, data.length)
    rows = RowsAt(length=data.length, rows=epoch.count, kept=epoch.kept_share, padding=padding)
    return rows, warnings(epoch, split, data)


def language_shares(documents: Sequence[Sequence[str]]) -> tuple[dict[str, float], float]:
    """Share of the characters by guessed language, the largest first, and the share that was not guessed."""
    chars: dict[str | None, int] = {}
    for lines in documents:
        language = guess_language("\n".join(lines)[:GUESSED_CHARS])
        chars[language] = chars.get(language, 0) + sum(map(len, lines))
    total = max(1, sum(chars.values()))
    known = {name: count / total for name, count in chars.items() if name is not None}
    return dict(sorted(known.items(), key=lambda item: -item[1])), chars.get(None, 0) / total
