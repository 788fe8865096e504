"""Every op of every backend against its reference in float64: outputs and all gradients, written once.

A case is an op, a shape and a function that draws its inputs (`ops_cases`). Ops over integers are compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops_backends import BACKENDS, GPU, GPU_MARK, HERE, OPS, ROUNDING, Draw, close, exact, implementation, prepare
from ops_cases import CASES, Case, Inputs
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

IN_SOAK = (
    "100 tokens, width 256", "two launches, width 64, one a launch", "100 tokens, cuda attention",
    "two launches, width 256, one a launch",
    *(f"{case}, width 256, backward" for case in ("128 tokens", "two sequences", "three layers", "recomputed")),
)  # fmt: skip
"""Cases of emulated CUDA kernels that take seconds, beside others of the same kernels."""


def backends_of(case: Case) -> list[str]:
    if case.only:
        return list(case.only)
    found = [backend for backend, ops in BACKENDS.items() if case.op in ops]
    return [*found, "triton-long"] if case.op == "attention" else found


def parameters() -> list[Any]:
    """Each case on each backend: C++ in fp32 and bf16, Triton in fp32 and fp16 in its interpreter, all else in bf16."""
    single, gpu = [torch.float32], [torch.bfloat16]
    made = []
    for case in CASES:
        for backend in backends_of(case):
            dtypes = {"cpp": [*single, torch.bfloat16], "cuda": gpu}.get(
                backend, gpu if GPU else [*single, torch.float16]
            )
            marks = [] if backend == "cpp" else list(GPU_MARK)
            if case.name in IN_SOAK and backend == "cuda" and not GPU:
                marks.append(pytest.mark.soak)
            for dtype in dtypes if case.half else single:
                name = f"{case.op}-{backend}-{str(dtype).removeprefix('torch.')}-{case.name}"
                made.append(pytest.param(case, backend, dtype, marks=marks, id=name))
    return made


def leaves_of(case: Case, inputs: Inputs) -> list[Tensor]:
    """The inputs that gradients are taken of."""
    if not case.gradients:
        return []
    others = {name: value for name, value in inputs.items() if name not in case.fixed}
    return [leaf for leaf in tree_leaves(others) if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point]


def run(
    op: Callable[..., Any], inputs: Inputs, leaves: list[Tensor], differentiated: list[int] | None = None
) -> tuple[list[Tensor], list[Tensor | None], list[int]]:
    """Outputs, gradients of the leaves, and which outputs have one; `differentiated` takes it through these only."""
    for leaf in leaves:
        leaf.requires_grad_()
    outputs = [output for output in tree_leaves(op(**inputs)) if isinstance(output, Tensor)]
    if differentiated is None:
        differentiated = [number for number, output in enumerate(outputs) if output.requires_grad]
    if not leaves:
        return outputs, [], []
    chosen = [outputs[number] for number in differentiated]
    generator = torch.Generator().manual_seed(0)
    incoming = [torch.randn(output.shape, generator=generator).half() for output in chosen]
    incoming = [one.to(output.device, output.dtype) for one, output in zip(incoming, chosen, strict=True)]
    return outputs, list(torch.autograd.grad(chosen, leaves, incoming, allow_unused=True)), differentiated


def upcast(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return exact(value) if value.dtype.is_floating_point else value.detach().cpu()


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # where the processor has no bf16
@pytest.mark.parametrize(("case", "backend", "dtype"), parameters())
def test_an_op_is_its_reference_in_float64(
    case: Case, backend: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(backend, monkeypatch)
    draw = Draw(dtype, "cuda" if GPU and backend != "cpp" else "cpu")
    inputs = case.inputs(draw)
    truth = tree_map(upcast, inputs)
    leaves, options = leaves_of(case, inputs), case.options.get(backend, {})
    got, gradients, chosen = run(implementation(case.op, backend), {**inputs, **options}, leaves)
    want, true_gradients, _ = run(implementation(case.op, "reference"), truth, leaves_of(case, truth), chosen)
    rounding = ROUNDING.get(dtype, 0.0)
    limit, gradient_limit = (max(case.single, count * rounding) for count in case.roundings)
    for one, other in zip(got, want, strict=True):
        close(one, other, limit)
    for leaf, gradient, true in zip(leaves, gradients, true_gradients, strict=True):
        assert gradient is not None and true is not None and gradient.dtype == leaf.dtype
        close(gradient, true, gradient_limit)


VIEWS = frozenset(
    "x_BLE x_BLD x_MD x_ME ids_BL segments_BL lengths_B keys_B keys keys_M gold_M nll_M used_BM rows logits_BL"
    " corrupted_ids_BL sums_S x product".split()
)
"""Inputs that callers pass as columns or parts of larger tensors."""
FIRST = {(case.op, backend): case for case in reversed(CASES) for backend in backends_of(case)}


def spread(x: Tensor) -> Tensor:
    """The same numbers with others between them."""
    larger = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1] + 1)
    larger[..., 1::2] = x
    return larger[..., 1::2]


@pytest.mark.parametrize(("op", "backend"), [key for key in FIRST if key[0] in OPS.get(key[1], ())])
def test_views_are_read_like_copies_of_them(op: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(backend, monkeypatch)
    case, draw = FIRST[op, backend], Draw(torch.float32, "cpu") if backend == "cpp" else HERE
    inputs = case.inputs(draw)
    strided = {name: spread(value) if name in VIEWS and value is not None else value for name, value in inputs.items()}
    run_op, options = implementation(op, backend), case.options.get(backend, {})
    for one, other in zip(
        tree_leaves(run_op(**inputs, **options)), tree_leaves(run_op(**strided, **options)), strict=True
    ):
        assert one is other is None or torch.equal(one.nan_to_num(), other.nan_to_num())
