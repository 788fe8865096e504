"""mix(keys ^ mix(call_site · golden)) + golden in one kernel: bit for bit `rng.fold`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra import rng
from electra.ops.triton.hash import fold, unsigned

_BLOCK = 1024


@triton.jit(do_not_specialize=["address"])
def _fold_kernel(  # type: ignore[no-untyped-def]
    keys,  # (count,) int32, `stride` apart
    out,  # (count,) int32
    count, stride, address, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    folded = fold(unsigned(tl.load(keys + index * stride, index < count, 0)), address)
    tl.store(out + index, folded.to(tl.int32, bitcast=True), index < count)


def fold_keys(keys: Tensor, call_site: int) -> Tensor:
    keys = keys if keys.dim() == 1 else keys.contiguous()
    stride = keys.stride(0) if keys.dim() == 1 else 1
    out = torch.empty_like(keys, memory_format=torch.contiguous_format)
    with torch.cuda.device_of(keys):
        _fold_kernel[(triton.cdiv(keys.numel(), _BLOCK),)](
            keys, out, keys.numel(), stride, rng.address(call_site), BLOCK=_BLOCK, num_warps=4
        )
    return out
