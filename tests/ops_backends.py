"""Every implementation of every op under one signature, and inputs for them: what the tests of `ops/` share.

Without a GPU, Triton kernels run in Triton's interpreter (see `conftest`) and CUDA kernels in `emulated`. The
interpreter's product of two bf16 blocks multiplies their bits, so Triton is checked there in fp16 instead.

Signatures are those of `ops.Ops`, except where a kernel needs more than the op says: `attention` and `add_dropout_norm`
take the number of their dropout call site, `attention` lengths and spans in the place of a mask, `linear_gelu` the
weight of the product behind it, `encoder_stack` the weights of its layers, and ops that write in place return what they
wrote.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="kernels are written in Triton")

from emulated import compiler, emulate
from triton.language.core import is_builtin
from triton.runtime import interpreter

from electra.batches.sequences import Spans
from electra.model.layers import Layer
from electra.ops import Chosen, GradNorm, Ops, dispatch
from electra.ops.cuda import attention as cuda_attention
from electra.ops.cuda import encoder_width64, encoder_width256
from electra.ops.cuda import gelu_mlp as cuda_gelu_mlp
from electra.ops.dispatch import CPP_OPS, TRITON_OPS, cuda_missing
from electra.ops.layer_weights import LayerWeights
from electra.ops.reference.encoder_stack import attention_mask
from electra.ops.triton import add_dropout_norm, attention, attention_long, encoder_stack, gelu_mlp
from electra.ops.triton.encoder_layer import LayerKernels
from electra.ops.triton.hash import dropout_at
from electra.ops.triton.stack_buffers import StackKernels

GPU = torch.cuda.is_available()
GPU_MARK = [pytest.mark.gpu] if GPU else []
"""Of tests that run kernels on a GPU where there is one, and emulate them elsewhere."""
KEYS = (-(2**31), 2**31 - 1, 0, -1, 123456789)
"""Of sequences: the ends of the range and some between."""
ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def remember_builtins() -> None:
    """Triton's interpreter looks through its whole language at each call of a function: 40 % of these tests' time.

    Which names of it are builtins does not change, so each part is looked through once.
    """
    names: dict[Any, list[str]] = {}

    def patch_builtin(part: Any, *how: Any) -> None:
        if part not in names:
            names[part] = [name for name, member in inspect.getmembers(part) if is_builtin(member)]
        for name in names[part]:
            if is_builtin(member := getattr(part, name)):  # not where it is patched already
                interpreter._patch_attr(part, name, member, *how)

    assert callable(interpreter._patch_builtin) and callable(interpreter._patch_attr)
    interpreter._patch_builtin = patch_builtin


if not GPU:
    remember_builtins()


@dataclass(frozen=True)
class Draw:
    """Makes random inputs: numbers in a dtype, on a device."""

    dtype: torch.dtype
    device: str

    def numbers(self, *shape: int, seed: int, scale: float = 1.0) -> Tensor:
        """Normal numbers, already rounded: the truth starts from the same ones."""
        numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
        return numbers.to(self.dtype).to(self.device)

    def full(self, *shape: int, seed: int, scale: float = 1.0) -> Tensor:
        """The same in fp32."""
        return self.numbers(*shape, seed=seed, scale=scale).float()

    def integers(self, low: int, high: int, *shape: int, seed: int, dtype: torch.dtype = torch.int32) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(low, high, shape, generator=generator).to(dtype).to(self.device)

    def tensor(self, values: Any, dtype: torch.dtype | None = None) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)

    def keys(self, count: int) -> Tensor:
        return self.tensor(KEYS[:count], torch.int32)


HERE = Draw(torch.bfloat16, "cuda") if GPU else Draw(torch.float32, "cpu")
"""For properties that hold in any dtype."""


def exact(x: Tensor) -> Tensor:
    """The same numbers in float64 on the CPU."""
    return x.detach().double().cpu()


def close(got: Tensor, want: Tensor, limit: float) -> None:
    """Off by at most this share of the largest element, and on the whole; integers are equal."""
    assert got.shape == want.shape
    if not want.dtype.is_floating_point:
        assert torch.equal(got.cpu(), want.cpu())
        return
    error, size = exact(got) - exact(want), exact(want)
    assert error.isfinite().all()
    largest = float(size.abs().max()) if size.numel() else 0.0
    worst = float(error.abs().max()) if size.numel() else 0.0
    assert worst <= limit * largest, f"off by {worst:.2g} of {largest:.2g}, allowed are {limit * largest:.2g}"
    assert float(error.norm()) <= limit * float(size.norm()), "the error on the whole"


@cache
def reference_ops(device: str = "cpu") -> Ops:
    return dispatch.select("plain", device=torch.device(device), dtype=torch.float32)


def triton_ops() -> Ops:
    """All that Triton has, whatever the device: on a CPU for its interpreter, in fp32."""
    loaded = {name: dispatch._BY_SHAPE.get((name, "triton")) or dispatch._load("triton", name) for name in TRITON_OPS}
    return Ops({**dict(reference_ops()), **{name: Chosen(run, "triton", "a test") for name, run in loaded.items()}})


def prepare(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip where a backend runs neither here nor in its emulation, with the reason that dispatch gives."""
    if backend == "cpp":
        from electra.ops.cpp import library

        if library.missing():
            pytest.skip(library.missing())
    elif backend == "cuda" and GPU:
        if lacks := cuda_missing(torch.device("cuda", torch.cuda.current_device())):
            pytest.skip(lacks)
    elif backend == "cuda":
        if not compiler():
            pytest.skip("needs g++ with C++20")
        emulate(monkeypatch)


# --- implementations under the test's signatures ---


@cache
def implementation(op: str, backend: str) -> Callable[..., Any]:
    """An op of a backend; what `ops/` has as launchers only becomes differentiable here."""
    launchers: dict[tuple[str, str], Callable[..., Any]] = {
        ("attention", "triton"): partial(launch_attention, attention),
        ("attention", "triton-long"): partial(launch_attention, attention_long),
        ("attention", "cuda"): partial(launch_attention, cuda_attention),
        ("add_dropout_norm", "triton"): launch_add_dropout_norm,
        ("linear_gelu", "triton"): partial(launch_linear_gelu, gelu_mlp),
        ("linear_gelu", "cuda"): partial(launch_linear_gelu, cuda_gelu_mlp),
        ("encoder_stack", "triton"): fused_stack,
        ("encoder_stack", "cuda"): fused_stack,
    }
    if (op, backend) in launchers:
        return launchers[op, backend]
    run = getattr(import_module(f"electra.ops.{backend}.{op}"), op)
    adapted = ADAPTERS.get(op)
    return run if adapted is None else partial(adapted, run)


def attention_by_mask(
    run: Callable[..., Tensor], *, x_BLD: Tensor, lengths_B: Tensor | None, spans: Spans | None, keys_B: Tensor | None,
    call_site: int, **others: Any,
) -> Tensor:  # fmt: skip
    mask = attention_mask(x_BLD, lengths_B, spans, None)
    return run(x_BLD=x_BLD, mask_B1LL=mask, keys_B=call_site_keys(keys_B, call_site), **others)


def norm_at_site(run: Callable[..., Tensor], *, keys_B: Tensor | None, call_site: int, **others: Any) -> Tensor:
    return run(keys_B=call_site_keys(keys_B, call_site), **others)


def gelu_then_product(run: Callable[..., Tensor], *, down_DF: Tensor, **others: Any) -> Tensor:
    return F.linear(run(**others), down_DF)


def own_entries(run: Callable[..., Any], *, table_VE: Tensor, **others: Any) -> tuple[Any, ...]:
    """Without the logits that pad the last block: a large number would hide errors of the others."""
    prediction = run(table_VE=table_VE, **others)
    logits = prediction.logits_MV
    return None if logits is None else logits[:, : len(table_VE)], *prediction[1:]


def one_update(
    run: Callable[..., Any], *, weights_N: Tensor, average_N: Tensor, square_N: Tensor, copy: Tensor, lr: Tensor,
    divisor: Tensor, skipped: Tensor, **others: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    buffers = [buffer.clone() for buffer in (weights_N, average_N, square_N, copy)]
    names = dict(zip(("weights_N", "average_N", "square_N", "copy"), buffers, strict=True))
    run(**names, lr=lr.float(), **others)(GradNorm(divisor.float(), skipped.float(), divisor.float()))
    return tuple(buffers)


def added_totals(run: Callable[..., Any], *, totals: Tensor, last_norm: Tensor, **others: Any) -> tuple[Tensor, Tensor]:
    totals, last_norm = totals.clone(), last_norm.clone()
    run(totals=totals, last_norm=last_norm, **others)
    return totals, last_norm


class StackLayer:
    """A `model.layers.Layer` with weights of one's own; called, it runs over the reference ops."""

    def __init__(self, weights: Sequence[Tensor], heads: int, rate: float, attention_rate: float) -> None:
        self.given, self.heads, self.rate, self.attention_rate = LayerWeights(*weights), heads, rate, attention_rate

    def weights(self) -> tuple[Tensor, ...]:
        return self.given

    def __call__(self, *arguments: Any) -> Tensor:
        (ffn, width), ops = self.given.up_FD.shape, reference_ops(str(self.given.up_FD.device))
        layer = Layer(width, self.heads, ffn, dropout=self.rate, attention_dropout=self.attention_rate, ops=ops)
        names = {id(weight): name for name, weight in layer.named_parameters()}
        weights = {names[id(own)]: given for own, given in zip(layer.weights(), self.given, strict=True)}
        y: Tensor = torch.func.functional_call(layer, weights, arguments)
        return y


def stack_of_weights(
    run: Callable[..., Tensor], *, layers: Sequence[Sequence[Tensor]], heads: int, rate: float, attention_rate: float,
    **others: Any,
) -> Tensor:  # fmt: skip
    modules = [StackLayer(weights, heads, rate, attention_rate) for weights in layers]
    return run(layers=modules, hidden_LL=None, **others)


def fused_stack(*, kernels: str = "short", **others: Any) -> Tensor:
    return stack_of_weights(partial(encoder_stack.encoder_stack, kernels=STACKS[kernels]), **others)


ADAPTERS: dict[str, Callable[..., Any]] = {
    "attention": attention_by_mask,
    "add_dropout_norm": norm_at_site,
    "linear_gelu": gelu_then_product,
    "linear_cross_entropy": own_entries,
    "encoder_stack": stack_of_weights,
    "adamw": one_update,
    "add_totals": added_totals,
}


def call_site_keys(keys_B: Tensor | None, call_site: int) -> Tensor | None:
    return None if keys_B is None else reference_ops().fold_keys(keys_B, call_site)


# --- kernels of an encoder stack ---


def pieces(attend: Any, gelu: Any) -> StackKernels:
    layer = LayerKernels(
        attention_forward=attend.attention_forward,
        attention_backward=attend.attention_backward,
        linear_gelu_forward=gelu.linear_gelu_forward,
        linear_gelu_backward=gelu.linear_gelu_backward,
    )
    return StackKernels(
        forward=layer.forward,
        backward=layer.backward,
        norm_rows=add_dropout_norm.norm_rows,
        gelu_rows=gelu.gelu_rows,
    )


def width64(layers_per_launch: int = encoder_width64.MAX_LAYERS) -> StackKernels:
    return StackKernels(
        forward=partial(encoder_width64.forward, layers_per_launch=layers_per_launch),
        backward=partial(encoder_width64.backward, layers_per_launch=layers_per_launch),
        norm_rows=encoder_width64.partial_rows,
        gelu_rows=encoder_width64.partial_rows,
        act_in_preact=True,
    )


def width256(layers_per_launch: int = encoder_width256.MAX_LAYERS) -> StackKernels:
    forward = partial(encoder_width256.forward, layers_per_launch=layers_per_launch)
    return replace(pieces(cuda_attention, cuda_gelu_mlp), forward=forward)


STACKS = {
    "short": pieces(attention, gelu_mlp),
    "long": pieces(attention_long, gelu_mlp),
    "few rows": replace(
        pieces(attention, gelu_mlp),
        norm_rows=partial(add_dropout_norm.norm_rows, max_programs=2),
        gelu_rows=partial(gelu_mlp.gelu_rows, max_rows=2),
    ),
    "cuda": pieces(cuda_attention, cuda_gelu_mlp),
    "cuda attention": pieces(cuda_attention, gelu_mlp),
    "width 64": width64(),
    "width 64, one a launch": width64(1),
    "width 256": width256(),
    "width 256, one a launch": width256(1),
    "width 256, backward": dispatch.kernels_of(
        {"layers": "cuda (width 256)", "attention": "cuda", "linear_gelu": "cuda"}
    ),
}


# --- launchers as differentiable ops; what a kernel should fill starts as NaN ---


def unfilled(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.full(shape, torch.nan, dtype=dtype or like.dtype, device=like.device)


def launch_attention(
    module: Any, *, x_BLD: Tensor, weight_3DD: Tensor, bias_3D: Tensor, heads: int, lengths_B: Tensor | None,
    spans: Spans | None, rate: float, keys_B: Tensor | None, call_site: int, **sizes: int,
) -> Tensor:  # fmt: skip
    masks = (lengths_B, spans, dropout_at(keys_B, rate, call_site))
    out: Tensor = _Attention.apply(module, x_BLD, weight_3DD, bias_3D, heads, masks, sizes)
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, module: Any, x: Tensor, weight: Tensor, bias: Tensor, heads: int, masks: Any, sizes: Any
    ) -> Tensor:
        sequences, length, width = x.shape
        qkv = torch.addmm(bias, x.view(-1, width), weight.t())
        out, lse = unfilled(x, len(qkv), width), unfilled(x, len(qkv) * heads, dtype=torch.float32)
        module.attention_forward(qkv, *masks, length=length, heads=heads, out=out, lse=lse, **sizes)
        ctx.module, ctx.heads, ctx.masks, ctx.sizes = module, heads, masks, sizes
        ctx.save_for_backward(x, weight, qkv, out, lse)
        return out.view(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, qkv, out, lse = ctx.saved_tensors
        sums = unfilled(qkv, len(x), qkv.shape[1], dtype=torch.float32)
        gradient = gradient.contiguous().view(out.shape)
        ctx.module.attention_backward(
            qkv, gradient, out, lse, *ctx.masks, length=x.shape[1], heads=ctx.heads, sums=sums, **ctx.sizes
        )
        d_weight = qkv.t() @ x.view(len(qkv), -1)
        return None, (qkv @ weight).view(x.shape), d_weight, sums.sum(0).to(qkv.dtype), None, None, None


def launch_add_dropout_norm(
    *, x_BLD: Tensor, branch_BLF: Tensor, weight_DF: Tensor, bias_D: Tensor, gamma_D: Tensor, beta_D: Tensor,
    rate: float, keys_B: Tensor | None, call_site: int, max_programs: int = add_dropout_norm.MAX_PROGRAMS,
) -> Tensor:  # fmt: skip
    weights, dropout = (weight_DF, bias_D, gamma_D, beta_D), dropout_at(keys_B, rate, call_site)
    out: Tensor = _AddDropoutNorm.apply(x_BLD, branch_BLF, *weights, dropout, max_programs)
    return out


class _AddDropoutNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor, gamma: Tensor, beta: Tensor, dropout: Any,
        max_programs: int,
    ) -> Tensor:  # fmt: skip
        flat, length = x.view(-1, x.shape[2]), x.shape[1]
        summed = torch.addmm(bias, branch.view(len(flat), -1), weight.t())
        out, mean, rstd = unfilled(x, *flat.shape), *(unfilled(gamma, len(flat)) for _ in range(2))
        add_dropout_norm.add_dropout_norm_forward(
            summed, flat, gamma, beta, dropout, length=length, out=out, mean=mean, rstd=rstd
        )
        ctx.save_for_backward(branch, weight, gamma, summed, mean, rstd)
        ctx.dropout, ctx.length, ctx.max_programs = dropout, length, max_programs
        return out.view(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        branch, weight, gamma, summed, mean, rstd = ctx.saved_tensors
        tokens, width = summed.shape
        rows = add_dropout_norm.norm_rows(len(branch), tokens, width, max_programs=ctx.max_programs)
        assert rows <= ctx.max_programs
        sums, d_branch = unfilled(gamma, rows, 3 * width), unfilled(summed, tokens, width)
        add_dropout_norm.add_dropout_norm_backward(
            gradient.contiguous().view(tokens, width), summed, mean, rstd, gamma, ctx.dropout,
            length=ctx.length, d_branch=d_branch, sums=sums,
        )  # fmt: skip
        d_gamma, d_beta, d_bias = sums.sum(0).split(width)
        d_weight = d_branch.t() @ branch.view(tokens, -1)
        d_x, d_product = summed.view(gradient.shape), (d_branch @ weight).view(branch.shape)
        return d_x, d_product, d_weight, d_bias.to(weight.dtype), d_gamma, d_beta, None, None


def launch_linear_gelu(
    module: Any, *, x: Tensor, weight_FD: Tensor, bias_F: Tensor, down_DF: Tensor, rows: dict[str, int] | None = None,
    blocks: dict[str, int] | None = None,
) -> Tensor:  # fmt: skip
    out: Tensor = _LinearGelu.apply(module, x, weight_FD, bias_F, down_DF, rows or {}, blocks or {})
    return out


class _LinearGelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, module: Any, x: Tensor, weight: Tensor, bias: Tensor, down: Tensor, rows: Any, blocks: Any
    ) -> Tensor:
        flat = x.view(-1, x.shape[-1])
        preact, act = (unfilled(x, len(flat), len(weight)) for _ in range(2))
        module.linear_gelu_forward(flat, weight, bias, preact=preact, act=act, **blocks)
        ctx.save_for_backward(x, weight, down, preact, act)
        ctx.module, ctx.rows, ctx.blocks = module, rows, blocks
        return (act @ down.t()).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, down, preact, act = ctx.saved_tensors
        flat, before = x.view(-1, x.shape[-1]), preact.clone()
        gradient = gradient.contiguous().view(len(flat), -1)
        rows = ctx.module.gelu_rows(1, len(flat), len(weight), **ctx.rows, **ctx.blocks)
        d_preact = unfilled(x, *preact.shape)
        sums = unfilled(x, rows, len(weight), dtype=torch.float32)
        ctx.module.linear_gelu_backward(gradient, down, preact, d_preact=d_preact, sums=sums, **ctx.blocks)
        assert torch.equal(preact, before)
        d_bias, d_x = sums.sum(0).to(x.dtype), (d_preact @ weight).view(x.shape)
        return None, d_x, d_preact.t() @ flat, d_bias, gradient.t() @ act, None, None


OPS = {"cpp": CPP_OPS, "triton": TRITON_OPS}
BACKENDS = {**OPS, "triton": TRITON_OPS | {"attention", "add_dropout_norm", "linear_gelu"}}
"""With what is an op of its own in tests only."""
