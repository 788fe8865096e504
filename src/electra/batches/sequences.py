"""Rows as the loader makes them, split into their parts on the device.

Shapes: B sequences, L length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.batches.loader import EXTRA_COLUMNS


class Spans(NamedTuple):
    """Which tokens of its row each token attends to: its document, from `first` up to but without `end`."""

    first_BL: Tensor
    end_BL: Tensor


class Sequences(NamedTuple):
    """A batch as the networks read it; `keys_B` addresses everything random about each sequence."""

    ids_BL: Tensor
    lengths_B: Tensor
    segments_BL: Tensor
    keys_B: Tensor
    spans: Spans | None = None
    """Where documents stand end to end; None where all real tokens of a row attend to one another."""

    @property
    def addressed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, lengths and keys: what decides which positions are masked."""
        return self.ids_BL, self.lengths_B, self.keys_B

    def part(self, rows: slice | Tensor) -> Sequences:
        """Some of the sequences."""
        spans = None if self.spans is None else Spans(self.spans.first_BL[rows], self.spans.end_BL[rows])
        return Sequences(self.ids_BL[rows], self.lengths_B[rows], self.segments_BL[rows], self.keys_B[rows], spans)


def split_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) lengths, and (B, L) segment ids: 1 for the tokens of the second segment."""
    length = rows.shape[1] - EXTRA_COLUMNS
    lengths_B, a_lengths_B = rows[:, length], rows[:, length + 1]
    place_L = torch.arange(length, dtype=rows.dtype, device=rows.device)
    return lengths_B, ((place_L >= a_lengths_B[:, None]) & (place_L < lengths_B[:, None])).to(rows.dtype)


def unpack(
    rows: Tensor,
    separator: int | None = None,
    split: Callable[[Tensor], tuple[Tensor, Tensor]] = split_rows,
) -> Sequences:
    """The parts of rows as `electra.batches.loader.pack` makes them.

    `separator` is the id that closes a document, for rows whose documents do not attend to one another
    (see `electra.batches.layout.separator_of`). `split` is an implementation of `split_rows`.
    """
    length = rows.shape[1] - EXTRA_COLUMNS
    lengths_B, segments_BL = split(rows)
    ids_BL, keys_B = rows[:, :length], rows[:, length + 2]
    spans = None if separator is None else document_spans(ids_BL, separator)
    return Sequences(ids_BL, lengths_B, segments_BL, keys_B, spans)


def document_spans(ids_BL: Tensor, separator: int) -> Spans:
    """Documents from just after a separator to the next one; the row's last token belongs to the last document."""
    length = ids_BL.shape[1]
    place_L = torch.arange(length, dtype=torch.int32, device=ids_BL.device)
    closes = ids_BL[:, :-2] == separator
    opening_BL = torch.where(F.pad(closes, (1, 1)), place_L, 0)
    closing_BL = torch.where(F.pad(closes, (0, 2)), place_L + 1, length)
    return Spans(opening_BL.cummax(1).values, closing_BL.flip(1).cummin(1).values.flip(1))
