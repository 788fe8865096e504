"""Where fused kernels run in tests, how far off they may be, and random inputs for them.

Without a GPU they run in Triton's interpreter (see `conftest`). Its product of two bf16 blocks multiplies their bits,
so kernels with products are checked there in fp16 instead; on a GPU all are checked in bf16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from electra.model.dropout import keep_mask, site_keys

pytest.importorskip("triton", reason="fused kernels need triton")

from electra.kernels import judge

KEYS = (-(2**31), 2**31 - 1, 0, -1, 123456789)
"""Keys of texts: the ends of the range and what lies between."""


@dataclass(frozen=True)
class Place:
    """A device and the type of the numbers there."""

    device: str
    dtype: torch.dtype

    def numbers(self, *shape: int, seed: int, scale: float = 1.0) -> Tensor:
        """Normal numbers, already rounded to the type: the truth starts from the same ones."""
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(*shape, generator=generator) * scale).to(self.dtype).to(self.device)

    def keys(self, count: int) -> Tensor:
        return torch.tensor(KEYS[:count], dtype=torch.int32, device=self.device)

    def check(self, got: Tensor, want: Tensor, *, roundings: float, single: float = 5e-6) -> None:
        """Equal but for `roundings` to the type in a row, by the largest element; in fp32 to `single`.

        Rounding to the nearest, as GPUs do, is off by 2^-11 of a number in fp16 and 2^-8 in bf16; the interpreter cuts
        bf16 off, which is twice that.
        """
        unit = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}.get(self.dtype, 0.0)
        if self.device == "cpu" and self.dtype == torch.bfloat16:
            unit *= 2
        assert got.shape == want.shape and want.dtype == torch.float64
        assert off(got, want) <= max(single, roundings * unit)


HERE = Place("cuda", torch.bfloat16) if torch.cuda.is_available() else Place("cpu", torch.float32)
"""For what is exact in any type."""


def off(got: Tensor, want: Tensor) -> float:
    """The largest difference, as a share of the largest element."""
    return float((exact(got) - want.detach()).abs().max() / want.detach().abs().max())


def exact(x: Tensor) -> Tensor:
    """The same numbers in float64 on the CPU."""
    return x.detach().double().cpu()


def leaf(x: Tensor) -> Tensor:
    """`exact`, to take a gradient of."""
    return exact(x).requires_grad_()


def mask_at(keys_B: Tensor, place: int, rows: int, width: int, rate: float) -> Tensor:
    """(B, rows, width) which elements the plain path keeps at a place in the network."""
    keys = site_keys(keys_B.cpu(), place)
    assert keys is not None
    return keep_mask(keys, rows, width, rate)


def judge_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have any rows judged without logits: on a GPU by its kernels, else by what they compute."""
    monkeypatch.setattr(judge, "FEWEST_ROWS", 1)
    if torch.cuda.is_available():
        return

    def logits(x: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        return x.float() @ table.float().T + bias.float()

    def block_totals(x: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        return logits(x, table, bias).unflatten(1, (-1, 128)).logsumexp(2)

    def go_back(
        x: Tensor, table: Tensor, bias: Tensor, gold: Tensor, level: Tensor, d_loss: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        lines = (logits(x, table, bias) - level[:, None]).exp()
        lines[torch.arange(len(x)), gold] -= 1
        lines *= d_loss[:, None]
        d_logits = lines.to(x.dtype)
        return d_logits, (d_logits.float() @ table.float()).to(x.dtype), lines

    monkeypatch.setattr(judge, "fits", lambda x: True)
    monkeypatch.setattr(judge, "block_totals", block_totals)
    monkeypatch.setattr(judge, "go_back", go_back)


_NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled for the GPU here")


def everywhere(*cases: tuple[Any, ...], half: torch.dtype) -> list[Any]:
    """Parameters (place, *case): all cases in fp32 on the CPU, the first in `half` too, and all on a GPU in bf16."""
    single, short, gpu = Place("cpu", torch.float32), Place("cpu", half), Place("cuda", torch.bfloat16)
    name = str(half).removeprefix("torch.")
    return [
        *(pytest.param(single, *case, marks=_GPU, id=f"float32-{number}") for number, case in enumerate(cases)),
        pytest.param(short, *cases[0], marks=_GPU, id=f"{name}-0"),
        *(
            pytest.param(gpu, *case, marks=[pytest.mark.gpu, _NO_GPU], id=f"gpu-{number}")
            for number, case in enumerate(cases)
        ),
    ]
