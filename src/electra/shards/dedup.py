"""Which documents stay: each text once, the first in source order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

BUCKET_DOCUMENTS = 2_000_000
"""Documents compared at a time; a larger corpus takes more passes over the keys, not more memory."""

Keys = Callable[[], Iterator[np.ndarray[Any, Any]]]


@dataclass(frozen=True, slots=True)
class Choice:
    """One entry a document, in source order."""

    keep: np.ndarray[Any, Any]
    duplicates: int
    also_held_out: int
    """Documents of the training sources left out because the given held-out files have them."""


def choose(keys: Keys, *, total: int, first_train: int = 0, bucket: int = BUCKET_DOCUMENTS) -> Choice:
    """Compare all keys, which `keys()` iterates over in source order; `first_train` documents are held-out files."""
    keep = np.zeros(total, np.bool_)
    passes = max(1, -(-total // bucket))
    duplicates = also_held_out = 0
    for number in range(passes):
        found, at = _bucket(keys(), passes=passes, number=number)
        if not len(found):
            continue
        order = np.lexsort((found["rest"], found["id"]))  # stable: equal keys stay in source order
        found, at = found[order], at[order]
        fresh = np.ones(len(found), np.bool_)
        fresh[1:] = found[1:] != found[:-1]
        keep[at[fresh]] = True
        duplicates += int(np.count_nonzero(~fresh))
        original = at[fresh][np.cumsum(fresh) - 1]
        also_held_out += int(np.count_nonzero(~fresh & (original < first_train) & (at >= first_train)))
    return Choice(keep, duplicates - also_held_out, also_held_out)


def _bucket(
    keys: Iterator[np.ndarray[Any, Any]], *, passes: int, number: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Keys of one bucket with their positions; equal keys always share a bucket."""
    parts, places, start = [], [], 0
    for batch in keys:
        mine = np.arange(len(batch)) if passes == 1 else np.flatnonzero(batch["rest"] % np.uint64(passes) == number)
        parts.append(batch[mine])
        places.append(mine + start)
        start += len(batch)
    if not parts:
        return np.empty(0, [("id", "<u8"), ("rest", "<u8")]), np.empty(0, np.int64)
    return np.concatenate(parts), np.concatenate(places)
