"""dropout(norm(token[ids] + position + segment)), in fp32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.ops import Tables
from electra.ops.reference.add_dropout_norm import norm
from electra.ops.reference.dropout import dropout


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
    """fp32 whatever `dtype`: the encoder rounds."""
    del dtype
    table_2E = tables.segment_2E
    segment_BLE = torch.lerp(table_2E[0], table_2E[1], segments_BL[..., None].to(table_2E.dtype))
    summed_BLE = F.embedding(ids_BL, tables.token_VE) + tables.position_PE[: ids_BL.shape[1]] + segment_BLE
    if base_VE is not None:
        summed_BLE = summed_BLE + F.embedding(ids_BL, base_VE)
    return dropout(norm(summed_BLE, tables.gamma_E, tables.beta_E), rate, keys_B)
