"""Compile every kernel that a training step launches, for a kind of GPU, without one; a line each.

    python compile_kernels.py ARCHITECTURE PRESET KEY=VALUE...

The step runs on the CPU with launches recorded instead of done, so what it computes is noise. Run by
`test_kernels_compile` in a process of its own, since the test process interprets kernels.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

TARGET = GPUTarget("cuda", int(sys.argv[1]), 32)
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
seen: set[str] = set()


def kind_of(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(kind_of, value))
    if isinstance(value, Tensor):
        return TYPES[value.dtype]
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype][1:]}{value.block_shape}>"
    return "fp32" if isinstance(value, float) else "i32"


def leaves(path: tuple[int, ...], value: Any) -> list[tuple[tuple[int, ...], Any]]:
    """What stands in an argument, with its place in it."""
    if not isinstance(value, tuple):
        return [(path, value)]
    return [leaf for place, inner in enumerate(value) for leaf in leaves((*path, place), inner)]


def record(
    kernel: Any,
    *given: Any,
    grid: Any,
    warmup: bool,
    num_warps: int = 4,
    maxnreg: int | None = None,
    enable_fp_fusion: bool = True,
    **named: Any,
) -> None:
    """In place of a launch: compile what would have been launched, once."""
    values = dict(zip(kernel.arg_names, given, strict=False)) | {
        k: v for k, v in named.items() if k in kernel.arg_names
    }
    fixed = {p.name for p in kernel.params if p.is_constexpr}
    # A launch makes a constant of every 1.
    fixed |= {
        p.name for p in kernel.params if type(values[p.name]) is int and values[p.name] == 1 and not p.do_not_specialize
    }
    signature = {name: "constexpr" if name in fixed else kind_of(values[name]) for name in kernel.arg_names}
    constants = {(kernel.arg_names.index(name),): values[name] for name in fixed}
    address = f"{kernel.__name__} {sorted(signature.items())} {sorted(constants.items())} {num_warps}"
    if address in seen:
        return
    seen.add(address)
    aligned = {
        path: [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        for path, value in leaves((place,), values[name])
        if isinstance(value, Tensor) and value.data_ptr() % 16 == 0
    }
    options = {"num_warps": num_warps, "maxnreg": maxnreg, "enable_fp_fusion": enable_fp_fusion}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    made = triton.compile(source, target=TARGET, options=options)
    print(kernel.__name__, num_warps, made.metadata.shared, flush=True)


class NoProducts(TorchDispatchMode):
    """Leaves the library's matrix products out: in bf16 they are slow on many CPUs, and here they matter to nobody."""

    def __torch_dispatch__(self, operation: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        name = operation.overloadpacket.__name__
        if name not in ("mm", "addmm", "addmm_", "bmm"):
            return operation(*given, **(named or {}))
        if name == "addmm_" or (named and "out" in named):
            return given[0] if name == "addmm_" else named["out"]
        left, right = given[-2:]
        return left.new_zeros(*left.shape[:-1], right.shape[-1])


def main() -> None:
    from electra import rng
    from electra.batches.layout import separator_of
    from electra.batches.sequences import unpack
    from electra.bench.ours import SPECIALS, random_rows
    from electra.config.load import load
    from electra.kernels import judge as judging
    from electra.kernels import native
    from electra.kernels.adamw import Groups, adamw
    from electra.kernels.hashing import mix_words
    from electra.kernels.slots import lengths_and_segments
    from electra.kernels.verdict import judge, tally
    from electra.model import electra, encoder, heads, layers
    from electra.objective.table import build_objective
    from electra.train.state import Master

    JITFunction.run = record  # type: ignore[method-assign]
    torch.empty = torch.zeros  # type: ignore[assignment]  # what no kernel fills must still be positions and ids
    Tensor.is_cuda = property(lambda self: True)  # type: ignore[assignment,method-assign]
    for place in (encoder.Encoder, layers.Embeddings, heads.DetectionHead, heads.MaskedHead):
        place.fused = True
    native.can_run = lambda like, kernel: False  # those in CUDA: `test_kernels_native`
    judging.fits = lambda x: TARGET.arch == 90 and x.shape[1] == 128
    judging.block_totals = lambda x, table, bias: torch.zeros(len(x), len(table) // 128)
    judging.go_back = lambda x, table, *_: (x.new_zeros(len(x), len(table)), x, torch.zeros(2, len(table)))
    rng.mix_on_gpu = mix_words
    config = load(sys.argv[2], overrides=[*sys.argv[3:], "model.layers=1", "model.vocab_size=2048"])
    model = electra.build_model(config)
    master = Master(model, compute=torch.bfloat16, device=torch.device("cpu"))
    objective = build_objective(config, SPECIALS)
    batch = unpack(random_rows(config, 2), separator_of(config.data, SPECIALS), lengths_and_segments)
    slots = objective.plan(batch)
    with NoProducts():
        objective.loss(model, batch, slots, objective.counts(batch, slots)).loss.backward()
    one = torch.ones(())
    judge(master.gradient, clip=1.0)
    tally(torch.zeros(9, dtype=torch.float64), one, torch.zeros(7), norm=one, skipped=one)
    groups = Groups([(len(master.weights), 1.0, 0.01)], one.device)
    adamw(
        master.weights, master.gradient, master.average, master.square, groups, lr=one, divisor=one, skipped=one,
        beta1=0.9, beta2=0.999, eps=1e-6, copy=master.copy, copied=master.copied,
    )  # fmt: skip


main()
