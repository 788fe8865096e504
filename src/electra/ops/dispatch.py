"""Which implementation of each op runs: decided here and nowhere else, once, when a model is built.

`select` looks at the device, the compute precision and what the machine has, takes the first backend of each op that
fits, and gives an immutable `Ops` with the reason of each choice. Some kernels know only some shapes or arguments: for
these the choice holds a rule, also written here.

Shapes: B sequences, L length, D width, E embedding size, F inner width of an MLP, M masked positions.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from electra.ops import Chosen, Ops, Prediction

if TYPE_CHECKING:
    from electra.config.schema import MaskingConfig
    from electra.ops.triton.stack_buffers import StackKernels

Kernels = Literal["auto", "plain"]
OPS = tuple(name for name, value in vars(Ops).items() if callable(value) and not name.startswith("_"))
"""The names of all ops, in the order of `Ops`."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a choice is made for."""

    device: torch.device
    dtype: torch.dtype
    """Compute precision of the encoders."""
    deterministic: bool
    """Whether every sum must be taken in one order."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One folder of `ops/`: the ops that it has, and why it cannot run a target, or nothing where it can."""

    name: str
    ops: frozenset[str]
    refuses: Callable[[str, Target], str]


CPP_OPS = frozenset(
    "fold_keys dropout embeddings encoder_stack add_dropout_norm linear_gelu linear_gelu_norm rtd_logits"
    " linear_cross_entropy".split()
)
TRITON_OPS = frozenset(
    "fold_keys embeddings linear encoder_stack linear_gelu_norm rtd_logits linear_cross_entropy copy_cross_entropy"
    " rtd_loss masked_sum joint_loss split_rows choose_masked count_targets apply_mask masked_targets replace_tokens"
    " grad_norm adamw add_totals".split()
)
BF16_ONLY = frozenset("linear encoder_stack linear_gelu_norm rtd_logits generator_stream".split())
"""Written for bf16 activations with fp32 sums."""
STACK_PARTS = frozenset({"attention", "add_dropout_norm", "linear_gelu"})
"""Ops that a fused `encoder_stack` contains."""
ROTARY_OPS = ("attention", "encoder_stack")
"""Ops that turn queries and keys by their positions."""
COPY_LOGIT_BYTES = 2**31
"""Of logits that `copy_cross_entropy` may save for its backward pass: 35,000 tokens in bf16 over 30,522 entries."""


def select(
    kernels: Kernels = "auto",
    *,
    device: torch.device,
    dtype: torch.dtype,
    compiled: bool = False,
    deterministic: bool | None = None,
    reference: Collection[str] = (),
    rotary: bool = False,
) -> Ops:
    """The implementation of every op for a model on `device` that computes in `dtype`.

    `plain` takes the reference everywhere, and so does a step that is `compiled`: the compiler fuses it itself.
    `deterministic` None means as torch is set. `reference` names ops that take the reference in any case.
    `rotary` is for a model with rotary positions, which no kernel knows yet.
    """
    fixed = torch.are_deterministic_algorithms_enabled() if deterministic is None else deterministic
    target = Target(device, dtype, fixed)
    everywhere = "train.kernels=plain" if kernels == "plain" else "the step is compiled" if compiled else ""
    reasons = dict.fromkeys(reference, "asked for") | (dict.fromkeys(ROTARY_OPS, "model.rotary") if rotary else {})
    return Ops({name: _choose(name, target, everywhere or reasons.get(name, "")) for name in OPS})


@cache
def host_ops(kernels: Kernels = "auto") -> Ops:
    """The choice for a model on the CPU in fp32, as models are loaded."""
    return select(kernels, device=torch.device("cpu"), dtype=torch.float32, deterministic=False)


def _choose(name: str, target: Target, reference: str) -> Chosen:
    reasons = []
    # Backends that run whole layers without this part of theirs; where one runs, the part alone takes the reference.
    stacks = (backend for backend in BACKENDS if "encoder_stack" in backend.ops and name not in backend.ops)
    if not reference and name in STACK_PARTS and any(not one.refuses("encoder_stack", target) for one in stacks):
        reference = "only outside encoder_stack, which has its own"
    for backend in () if reference else BACKENDS:
        if name not in backend.ops:
            continue
        refused = backend.refuses(name, target)
        if not refused:
            run = _BY_SHAPE.get((name, backend.name)) or _load(backend.name, name)
            return Chosen(run, backend.name, _accepted(name, backend.name, target))
        reasons.append(f"{backend.name}: {refused}")
    return Chosen(_load("reference", name), "reference", reference or "; ".join(reasons) or "the only one")


@cache
def _load(backend: str, name: str) -> Callable[..., Any]:
    run: Callable[..., Any] = getattr(import_module(f"electra.ops.{backend}.{name}"), name)
    return run


# --- what a backend needs ---


def cpp_refuses(name: str, target: Target) -> str:
    """C++ ops: a CPU with a compiler, fp32 or bf16."""
    if target.device.type != "cpu":
        return "for CPUs"
    if target.dtype not in (torch.float32, torch.bfloat16):
        return f"no {target.dtype}"
    if not _installed("cpp"):
        return "left out of this installation"
    from electra.ops.cpp import library

    return library.missing()


def triton_refuses(name: str, target: Target) -> str:
    """Triton ops: a CUDA device, Triton, and a C compiler for its launchers."""
    if target.device.type != "cuda":
        return "no GPU"
    if name in BF16_ONLY and target.dtype != torch.bfloat16:
        return "bf16 only"
    if name == "embeddings" and target.deterministic:
        return "adds gradients in any order, and train.deterministic is on"
    return triton_missing()


def cuda_refuses(name: str, target: Target) -> str:
    """What needs CUDA but no kernel of ours: as Triton, where `ops/cuda` is there."""
    return triton_refuses(name, target) or ("" if _installed("cuda") else "left out of this installation")


@cache
def triton_missing() -> str:
    """What Triton lacks on this machine; empty where it runs."""
    if not torch.cuda.is_available():
        return "no GPU"
    if not _installed("triton"):
        return "left out of this installation"
    if find_spec("triton") is None:
        return "triton is not installed"
    if not any(name and shutil.which(name) for name in (os.environ.get("CC", ""), "gcc", "clang")):
        return "no C compiler (gcc or clang)"
    return ""


@cache
def cuda_missing(device: torch.device) -> str:
    """Why the CUDA kernels do not run on a device; empty where they do."""
    if device.type != "cuda":
        return "no GPU"
    if not _installed("cuda"):
        return "left out of this installation"
    from electra.ops.cuda import compiler

    major, minor = torch.cuda.get_device_capability(device)
    if major != 9:
        return f"written for Hopper (sm_90), this is sm_{major}{minor}"
    return compiler.missing(device)


def _installed(backend: str) -> bool:
    """Whether a folder of `ops/` is there: the reference alone is a whole installation."""
    return find_spec(f"electra.ops.{backend}") is not None


def _accepted(name: str, backend: str, target: Target) -> str:
    if backend == "cpp":
        amx = name == "encoder_stack" and target.dtype == torch.bfloat16 and _module("cpp", "", "library").has_amx()
        return "a CPU with a C++ compiler" + (" and AMX" if amx else "")
    if name in ("encoder_stack", "linear_cross_entropy"):
        lacks = cuda_missing(target.device)
        return "a GPU" + (f"; CUDA kernels: {lacks}" if lacks else ", with CUDA kernels where they know the shape")
    return "a GPU"


BACKENDS = (
    Backend("cuda", frozenset({"generator_stream"}), cuda_refuses),
    Backend("triton", TRITON_OPS, triton_refuses),
    Backend("cpp", CPP_OPS, cpp_refuses),
)
"""In order of preference."""


# --- rules by shape: some kernels know few shapes, and a call's shape may differ from the last one's ---

WIDTH64_MIN_SEQUENCES = 64
"""With fewer, most multiprocessors would idle."""
WIDTH256_MIN_TOKENS = 12_500
"""Tokens a wave (one sequence on every multiprocessor); with fewer, kernels by op are faster."""
CUDA_MAX_LENGTH = 128
CUDA_CROSS_ENTROPY_MIN_ROWS = 512
"""With fewer, the library's products waste less."""


@dataclass(frozen=True, slots=True)
class StackShape:
    """The sizes of one call of `encoder_stack`."""

    sequences: int
    length: int
    width: int
    heads: int
    ffn: int
    documents: bool
    """Whether tokens attend to spans."""


@dataclass(frozen=True, slots=True)
class EncoderSizes:
    """An encoder as far as dispatch is concerned."""

    layers: int
    width: int
    heads: int
    ffn: int
    length: int
    causal: bool = False
    rotary: bool = False


def is_fused(encoder: EncoderSizes, kernels: Kernels, *, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `encoder_stack` runs such an encoder fused, its backward written out."""
    refuses, known = cpp_refuses, not encoder.rotary
    if device.type != "cpu":
        refuses = triton_refuses
        known &= not encoder.causal and _known_heads(encoder.length, encoder.width // encoder.heads)
    return kernels == "auto" and known and not refuses("encoder_stack", Target(device, dtype, deterministic=False))


def saved_activations(encoder: EncoderSizes, kernels: Kernels, *, device: torch.device, dtype: torch.dtype) -> int:
    """About how many activations of a token an encoder saves for the backward pass."""
    # Input, queries, keys, values, their mixture, two sums and the norm between; before and after the GELU.
    numbers = 8 * encoder.width + 2 * encoder.ffn
    # The C++ saves probabilities of attention too, the reference also a mask and their product.
    fused = is_fused(encoder, kernels, device=device, dtype=dtype)
    scores = 3 if not fused else 1 if device.type == "cpu" else 0
    return encoder.layers * (numbers + scores * encoder.heads * encoder.length)


def gains_by_compiling(
    encoders: Collection[EncoderSizes], kernels: Kernels, *, device: torch.device, dtype: torch.dtype
) -> bool:
    """Whether compiling a step on a GPU gains anything; beside fused encoders it took 130 s and gained nothing."""
    fused = all(is_fused(encoder, kernels, device=device, dtype=dtype) for encoder in encoders)
    return device.type == "cuda" and not fused


def stack_plan(shape: StackShape, device: torch.device) -> dict[str, str]:
    """Which backend runs each part of a fused encoder stack of some shape: layers, attention and linear_gelu."""
    hopper, short = not cuda_missing(device), shape.length <= CUDA_MAX_LENGTH and not shape.documents
    head_size = shape.width // shape.heads
    attention = "triton" if short else "triton (long)"
    if hopper and short and head_size == 64:
        attention = "cuda"
    gelu = "cuda" if hopper and shape.width == 256 and shape.ffn % 128 == 0 else "triton"
    layers = "by op"
    if hopper and short and (shape.width, shape.heads, shape.ffn) == (64, 1, 256):
        layers = "cuda (width 64)" if shape.sequences >= WIDTH64_MIN_SEQUENCES else layers
    if hopper and short and (shape.width, shape.heads, shape.ffn) == (256, 4, 1024):
        waves = -(-shape.sequences // torch.cuda.get_device_properties(device).multi_processor_count)
        enough = shape.sequences * shape.length >= WIDTH256_MIN_TOKENS * waves
        layers = "cuda (width 256)" if enough else layers
    return {"layers": layers, "attention": attention, "linear_gelu": gelu}


@cache
def stack_kernels(shape: StackShape, device: torch.device) -> StackKernels:
    """The kernels of `stack_plan`."""
    return kernels_of(stack_plan(shape, device))


def kernels_of(plan: dict[str, str]) -> StackKernels:
    """The kernels that a plan names."""
    from electra.ops.triton import add_dropout_norm
    from electra.ops.triton.encoder_layer import LayerKernels
    from electra.ops.triton.stack_buffers import StackKernels

    attend: Any = _module(*plan["attention"].partition(" ")[::2], "attention")
    gelu: Any = _module(plan["linear_gelu"], "", "gelu_mlp")
    layer = LayerKernels(
        attention_forward=attend.attention_forward,
        attention_backward=attend.attention_backward,
        linear_gelu_forward=gelu.linear_gelu_forward,
        linear_gelu_backward=gelu.linear_gelu_backward,
    )
    if plan["layers"] == "cuda (width 64)":
        width64: Any = _module("cuda", "", "encoder_width64")
        rows = width64.partial_rows
        passes = {"forward": width64.forward, "backward": width64.backward}
        return StackKernels(**passes, norm_rows=rows, gelu_rows=rows, act_in_preact=True)
    if plan["layers"] == "cuda (width 256)":
        width256: Any = _module("cuda", "", "encoder_width256")
        return StackKernels(
            forward=width256.forward,
            backward=width256.backward,
            norm_rows=width256.norm_rows,
            gelu_rows=width256.gelu_rows,
        )
    rows, gelu_rows = add_dropout_norm.norm_rows, gelu.gelu_rows
    return StackKernels(forward=layer.forward, backward=layer.backward, norm_rows=rows, gelu_rows=gelu_rows)


def _module(backend: str, variant: str, name: str) -> Any:
    """A module of a backend; long sequences have one of their own."""
    return import_module(f"electra.ops.{backend}.{name}" + ("_long" if variant == "(long)" else ""))


def _encoder_stack(
    x_BLD: Tensor, layers: Any, *, spans: Any, hidden_LL: Tensor | None, rotation_2LH: Tensor | None, **others: Any
) -> Tensor:
    (sequences, length, width), first = x_BLD.shape, layers[0]
    masks = {"spans": spans, "hidden_LL": hidden_LL}
    if hidden_LL is not None or rotation_2LH is not None or not _known_heads(length, width // first.heads):
        reference = _load("reference", "encoder_stack")
        plain: Tensor = reference(x_BLD, layers, **masks, rotation_2LH=rotation_2LH, **others)
        return plain
    shape = StackShape(sequences, length, width, first.heads, len(first.up.weight), spans is not None)
    kernels = stack_kernels(shape, x_BLD.device)
    fused: Tensor = _load("triton", "encoder_stack")(x_BLD, layers, **masks, **others, kernels=kernels)
    return fused


def _known_heads(length: int, head_size: int) -> bool:
    return length >= 16 and head_size in (16, 32, 64)


def _embeddings(*arguments: Any, base_VE: Tensor | None, **others: Any) -> Tensor:
    backend = "triton" if base_VE is None else "reference"
    embedded_BLE: Tensor = _load(backend, "embeddings")(*arguments, base_VE=base_VE, **others)
    return embedded_BLE


def _linear_cross_entropy(x_ME: Tensor, *arguments: Any, logits: bool) -> Prediction:
    rows, size = x_ME.shape
    known = not logits and size == 128 and rows >= CUDA_CROSS_ENTROPY_MIN_ROWS and x_ME.dtype == torch.bfloat16
    backend = "cuda" if known and not cuda_missing(x_ME.device) else "triton"
    prediction: Prediction = _load(backend, "linear_cross_entropy")(x_ME, *arguments, logits=logits)
    return prediction


def _copy_cross_entropy(x_ME: Tensor, table_VE: Tensor, *arguments: Any) -> Tensor:
    fits = len(x_ME) * len(table_VE) * x_ME.element_size() <= COPY_LOGIT_BYTES
    loss: Tensor = _load("triton" if fits else "reference", "copy_cross_entropy")(x_ME, table_VE, *arguments)
    return loss


def _rtd_loss(*arguments: Any) -> Any:
    *_, scored_BL = arguments
    if scored_BL is not None:
        return _load("reference", "rtd_loss")(*arguments)
    return _load("triton", "rtd_loss")(*arguments[:-1])


def _choose_masked(*arguments: Any, masking: MaskingConfig, **others: Any) -> Any:
    backend = "triton" if masking.policy in ("without_replacement", "official") else "reference"
    return _load(backend, "choose_masked")(*arguments, masking=masking, **others)


_BY_SHAPE: dict[tuple[str, str], Callable[..., Any]] = {
    ("encoder_stack", "triton"): _encoder_stack,
    ("embeddings", "triton"): _embeddings,
    ("linear_cross_entropy", "triton"): _linear_cross_entropy,
    ("copy_cross_entropy", "triton"): _copy_cross_entropy,
    ("rtd_loss", "triton"): _rtd_loss,
    ("choose_masked", "triton"): _choose_masked,
}
"""Ops whose Triton backend shares its calls with others, by shape or arguments."""
