"""What a layout is: which tokens of prepared data stand in which row, for one (seed, epoch).

A layout is computed from document and sentence lengths alone, every draw addressed by (seed, epoch, document, row), and
can then write any set of its sequences as rows of token ids. `electra.batches.epoch_plan` lists the layouts there are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from electra import rng
from electra.config.schema import DataConfig

if TYPE_CHECKING:
    from electra.tokenizer.codec import Tokenizer

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

SHORTEST = 5
"""The shortest length that a shortened sequence aims at."""


class Split(Protocol):
    """What a layout needs of prepared data (see `electra.shards.dataset`)."""

    @property
    def sentence_starts(self) -> Int64s: ...

    @property
    def document_starts(self) -> Int64s: ...

    @property
    def document_ids(self) -> NDArray[np.uint64]: ...

    def gather(self, positions: Int64s) -> Int32s: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Specials:
    """The ids that a layout writes around text."""

    pad: int
    cls: int
    sep: int
    mask: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Specials:
        """Those of a tokenizer's vocabulary."""
        return cls(pad=tokenizer.pad_id, cls=tokenizer.cls_id, sep=tokenizer.sep_id, mask=tokenizer.mask_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Sequences as token ids, how many are real, and how many of those belong to segment A."""

    ids: Int32s
    lengths: Int32s
    a_lengths: Int32s


class Layout(Protocol):
    """The sequences of one epoch."""

    count: int
    kept_share: float
    """Share of the split's tokens that stand in some row; [SEP] and the other special tokens do not count."""

    @property
    def lengths(self) -> Int64s:
        """Real tokens of each row, special tokens included."""

    @property
    def runs(self) -> Int64s:
        """(rows, 2): position of each row's first token in the split, and of the token after its last."""

    def rows(self, samples: Int64s) -> Rows:
        """Token ids of the given sequences of this epoch."""


def separator_of(data: DataConfig, specials: Specials) -> int | None:
    """The id that separates a row's documents, which do not attend to one another; None where a row is one sequence."""
    return specials.sep if data.layout == "packed" else None


def held_out_rows(data: DataConfig) -> DataConfig:
    """How held-out text is laid out: `sentences` with the paper's shares, so that all runs compare."""
    if data.layout != "sentences":
        return data
    return replace(data, single_segment=0.1, short=0.05, short_length=0)


def padding_share(layout: Layout, length: int) -> float:
    """Share of the positions of an epoch's rows that hold padding."""
    return 1 - float(layout.lengths.mean()) / length if layout.count else 0.0


def uniform(bits: Int32s) -> NDArray[np.float64]:
    """Numbers from 0 up to, not including, 1."""
    return bits.view(np.uint32).astype(np.float64) / 2.0**32


def document_keys(ids: NDArray[np.uint64], *address: int | str) -> Int32s:
    """A key for each document, from which all draws about it follow."""
    low = (ids & np.uint64(0xFFFFFFFF)).astype(np.uint32).view(np.int32)
    high = (ids >> np.uint64(32)).astype(np.uint32).view(np.int32)
    base = np.full(len(ids), rng.derive(*address), dtype=np.int32)
    keys: Int32s = rng.fold(rng.fold(base, low), high)
    return keys


def number_ranges(starts: Int64s, counts: Int64s) -> Int64s:
    """start, start+1, ... for each start, `count` numbers each, end to end."""
    return np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
