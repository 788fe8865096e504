"""How many masked positions are in use and how many tokens are real, by one program.

Reference: `reference/count_targets.py`.

Shapes: B sequences, M masked positions of a sequence.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


@triton.jit
def _count_kernel(  # type: ignore[no-untyped-def]
    used,  # (masked,) bool
    lengths,  # (sequences,), `stride` apart
    out,  # (2,) fp32
    masked, sequences, stride, BLOCK: tl.constexpr,
):  # fmt: skip
    used_N = tl.zeros([BLOCK], tl.int32)
    tokens_N = tl.zeros([BLOCK], tl.int32)
    for first in range(0, masked, BLOCK):
        index = first + tl.arange(0, BLOCK)
        used_N += tl.load(used + index, index < masked, 0).to(tl.int32)
        tokens_N += tl.load(lengths + index * stride, index < sequences, 0).to(tl.int32)
    tl.store(out, tl.sum(used_N, 0).to(tl.float32))
    tl.store(out + 1, tl.sum(tokens_N, 0).to(tl.float32))


def count_targets(used_BM: Tensor, lengths_B: Tensor) -> Tensor:
    out_2 = torch.empty(2, dtype=torch.float32, device=used_BM.device)
    with torch.cuda.device_of(used_BM):
        _count_kernel[(1,)](
            used_BM.contiguous(), lengths_B, out_2, used_BM.numel(), len(lengths_B), lengths_B.stride(0),
            BLOCK=_BLOCK, num_warps=8,
        )  # fmt: skip
    return out_2
