"""Packed rows, taken apart on the device.

Shapes: B sequences, L length.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from electra.batches.loader import EXTRA_COLUMNS


class Sequences(NamedTuple):
    """A batch as the networks read it; `keys_B` addresses everything random about each sequence."""

    ids_BL: Tensor
    lengths_B: Tensor
    segments_BL: Tensor
    keys_B: Tensor


def unpack(rows: Tensor) -> Sequences:
    """The parts of packed rows (see `electra.batches.loader.pack`)."""
    length = rows.shape[1] - EXTRA_COLUMNS
    lengths_B, a_lengths_B, keys_B = rows[:, length], rows[:, length + 1], rows[:, length + 2]
    place_L = torch.arange(length, dtype=rows.dtype, device=rows.device)
    segments_BL = ((place_L >= a_lengths_B[:, None]) & (place_L < lengths_B[:, None])).to(rows.dtype)
    return Sequences(rows[:, :length], lengths_B, segments_BL, keys_B)
