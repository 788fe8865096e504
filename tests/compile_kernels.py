"""Compile every Triton kernel that a training step launches, for a kind of GPU, without one; a line each.

    python compile_kernels.py 'ARCHITECTURE PRESET KEY=VALUE...' ...

Each argument is a case, compiled in a fork of this process; its lines begin with its number. The step runs on the CPU
with launches recorded instead of done, so what it computes is noise. Run by `test_ops_compile` in a process of its
own, since the test process interprets kernels.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import torch
import triton
from ops_backends import triton_ops
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from electra.batches.layout import separator_of
from electra.bench.ours import SPECIALS, random_rows
from electra.config.load import load
from electra.model.electra import build_model
from electra.objective.registry import Resources, build_objective
from electra.ops import Chosen, Ops
from electra.ops.cuda import driver
from electra.ops.cuda.linear_cross_entropy import linear_cross_entropy as cuda_linear_cross_entropy
from electra.train.optim import Update
from electra.train.parallel import World
from electra.train.state import Master
from electra.train.step import Stepper

CASE = 0
TARGET = GPUTarget("cuda", 80, 32)
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
compiled: set[str] = set()


def type_of(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(type_of, value))
    if isinstance(value, Tensor):
        return TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def leaves(path: tuple[int, ...], value: Any) -> list[tuple[tuple[int, ...], Any]]:
    """The values in an argument, with their indices in it."""
    if not isinstance(value, tuple):
        return [(path, value)]
    return [leaf for index, inner in enumerate(value) for leaf in leaves((*path, index), inner)]


def record(
    kernel: Any,
    *arguments: Any,
    grid: Any,
    warmup: bool,
    num_warps: int = 4,
    enable_fp_fusion: bool = True,
    **named: Any,
) -> None:
    """In place of a launch: compile what would have been launched, once."""
    values = dict(zip(kernel.arg_names, arguments, strict=False)) | {
        k: v for k, v in named.items() if k in kernel.arg_names
    }
    fixed = {p.name for p in kernel.params if p.is_constexpr}
    # A launch makes a constant of every 1.
    fixed |= {
        p.name for p in kernel.params if type(values[p.name]) is int and values[p.name] == 1 and not p.do_not_specialize
    }
    signature = {name: "constexpr" if name in fixed else type_of(values[name]) for name in kernel.arg_names}
    constants = {(kernel.arg_names.index(name),): values[name] for name in fixed}
    made_from = (
        f"{kernel.__module__} {kernel.__name__} {sorted(signature.items())} {sorted(constants.items())} {num_warps}"
    )
    if made_from in compiled:
        return
    compiled.add(made_from)
    aligned = {
        path: [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        for path, value in leaves((index,), values[name])
        if isinstance(value, Tensor) and value.data_ptr() % 16 == 0
    }
    options = {"num_warps": num_warps, "enable_fp_fusion": enable_fp_fusion}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    made = triton.compile(source, target=TARGET, options=options)
    print(f"{CASE} {kernel.__module__.rpartition('.')[2]}.{kernel.__name__}", made.metadata.shared, flush=True)


class NoProducts(TorchDispatchMode):
    """Leaves the library's matrix products out: in bf16 they are slow on many CPUs, and here they matter to nobody."""

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        name = operation.overloadpacket.__name__
        if name not in ("mm", "addmm", "addmm_", "bmm"):
            return operation(*arguments, **(named or {}))
        if name == "addmm_" or (named and "out" in named):
            return arguments[0] if name == "addmm_" else named["out"]
        left, right = arguments[-2:]
        return left.new_zeros(*left.shape[:-1], right.shape[-1])


def ops_for(architecture: int) -> Ops:
    """All that Triton has; for Hopper the vocabulary without logits too, whose CUDA kernels stay out."""
    chosen = dict(triton_ops())
    fused, through_logits = cuda_linear_cross_entropy, chosen["linear_cross_entropy"].run

    def linear_cross_entropy(x_ME: Tensor, *arguments: Any, logits: bool) -> Any:
        known = architecture == 90 and x_ME.shape[1] == 128 and not logits
        return (fused if known else through_logits)(x_ME, *arguments, logits=logits)

    return Ops({**chosen, "linear_cross_entropy": Chosen(linear_cross_entropy, "triton", "compiled")})


def compile_case(architecture: str, preset: str, *overrides: str) -> None:
    global TARGET
    TARGET = GPUTarget("cuda", int(architecture), 32)
    JITFunction.run = record  # type: ignore[method-assign]
    driver.start = lambda kernel, blocks, pointers: None
    driver.tensor_map = lambda tiles: ctypes.create_string_buffer(128)
    torch.empty = torch.zeros  # type: ignore[assignment]  # what no kernel fills must still be positions and ids
    config = load(preset, overrides=[*overrides, "model.layers=1", "model.vocab_size=2048"])
    ops, device = ops_for(TARGET.arch), torch.device("cpu")
    model = build_model(config, ops=ops, dtype=torch.bfloat16)
    master = Master(model, compute=torch.bfloat16, device=device)
    step = Stepper(
        model,
        master,
        Update(master, config.optim, ops=ops),
        build_objective(config, Resources(SPECIALS, ops, None)),
        ops=ops,
        world=World(),
        micro_batch=2,
        compiled=False,
        captured=False,
        separator=separator_of(config.data, SPECIALS),
    )
    with NoProducts():
        step(random_rows(config, 2), 1e-4)


for number, text in enumerate(sys.argv[1:]):
    CASE, pid = number, os.fork()
    if not pid:
        compile_case(*text.split())
        sys.exit()
    if os.waitpid(pid, 0)[1]:
        sys.exit(f"{text}: failed")
