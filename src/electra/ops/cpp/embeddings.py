"""The reference embeddings with the C++ dropout."""

from __future__ import annotations

import torch
from torch import Tensor

from electra.ops import Tables
from electra.ops.cpp.dropout import dropout
from electra.ops.reference.embeddings import embeddings as reference_embeddings


def embeddings(
    ids_BL: Tensor,
    segments_BL: Tensor,
    keys_B: Tensor | None,
    tables: Tables,
    *,
    rate: float,
    dtype: torch.dtype,
    base_VE: Tensor | None = None,
) -> Tensor:
    embedded_BLE = reference_embeddings(ids_BL, segments_BL, None, tables, rate=0.0, dtype=dtype, base_VE=base_VE)
    return dropout(embedded_BLE, rate, keys_B)
