"""The fused encoder stack beyond its numbers: what it reads, keeps and leaves alone."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from ops_backends import GPU, GPU_MARK, HERE, STACKS, close, exact, reference_ops
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from electra.batches.sequences import document_spans
from electra.bench import stack_check
from electra.model.layers import Layer
from electra.ops.cpp import library
from electra.ops.cpp.encoder_stack import Saved
from electra.ops.cpp.encoder_stack import encoder_stack as cpp_encoder_stack
from electra.ops.dispatch import StackShape, cuda_missing, stack_plan
from electra.ops.reference.encoder_stack import encoder_stack as reference_encoder_stack
from electra.ops.triton.encoder_stack import encoder_stack
from electra.ops.triton.stack_buffers import Activations
from electra.train.state import Master

pytestmark = GPU_MARK
CPP_LACKS = "for CPUs" if GPU else library.missing()
both = pytest.mark.parametrize(
    "backend", ["triton", pytest.param("cpp", marks=pytest.mark.skipif(bool(CPP_LACKS), reason=CPP_LACKS))]
)
KEYS, LENGTHS = HERE.keys(2), HERE.tensor([20, 7], torch.int32)


def network(*, width: int = 32, heads: int = 2, ffn: int = 80) -> nn.ModuleList:
    """Two layers with every weight random, norms in fp32 as in training."""
    rates = {"dropout": 0.1, "attention_dropout": 0.3}
    made = nn.ModuleList(Layer(width, heads, ffn, **rates, ops=reference_ops(HERE.device)) for _ in range(2))
    for seed, (name, weight) in enumerate(made.named_parameters()):
        weight.data = HERE.numbers(*weight.shape, seed=seed, scale=0.2)
        if "norm" in name:
            weight.data = weight.data.float() + ("weight" in name)
    return made.to(HERE.device)


def run(layers: Any, x: Tensor, *, backend: str = "triton", **others: Any) -> Tensor:
    arguments = {"lengths_B": None, "spans": None, "keys_B": None, "recompute": False, **others}
    if backend == "cpp":
        return cpp_encoder_stack(x, layers, hidden_LL=None, **arguments)
    return encoder_stack(x, layers, hidden_LL=None, **{"kernels": STACKS["short"], **arguments})


def column(values: Tensor) -> Tensor:
    """The same numbers between others, as in the rows of a batch."""
    return torch.stack((values, values + 1), 1)[:, 0]


@both
@pytest.mark.parametrize("name", ["lengths_B", "keys_B"])
def test_a_column_is_read_like_a_copy_of_it(name: str, backend: str) -> None:
    layers, x = network(), HERE.numbers(2, 20, 32, seed=1)
    inputs = {"lengths_B": LENGTHS, "keys_B": KEYS}
    assert not column(inputs[name]).is_contiguous()
    assert torch.equal(
        run(layers, x, **{**inputs, name: column(inputs[name])}, backend=backend),
        run(layers, x, **inputs, backend=backend),
    )


@both
def test_a_part_of_a_larger_tensor_is_read_like_a_copy_of_it(backend: str) -> None:
    layers, wide = network(), HERE.numbers(2, 20, 50, seed=1)
    assert torch.equal(
        run(layers, wide[..., 9:41], backend=backend), run(layers, wide[..., 9:41].contiguous(), backend=backend)
    )
    crossed = HERE.numbers(20, 2, 32, seed=2).transpose(0, 1)
    assert torch.equal(run(layers, crossed, backend=backend), run(layers, crossed.contiguous(), backend=backend))


def test_one_document_a_row_is_no_documents() -> None:
    layers, x = network(), HERE.numbers(2, 20, 32, seed=1)
    spans = document_spans(torch.full((2, 20), 9, device=HERE.device), 3)
    got, want = run(layers, x, spans=spans, kernels=STACKS["long"]), run(layers, x, kernels=STACKS["long"])
    close(got, want, 0.0 if HERE.device == "cpu" else 1e-2)  # a GPU's compiler may contract products and sums
    cut = torch.full((2, 20), 9, device=HERE.device)
    cut[:, 7] = 3
    assert not torch.equal(run(layers, x, spans=document_spans(cut, 3), kernels=STACKS["long"]), want)


@both
def test_the_backward_changes_nothing_of_others(backend: str) -> None:
    layers, x, incoming = network(), HERE.numbers(2, 20, 32, seed=1).requires_grad_(), HERE.numbers(2, 20, 32, seed=2)
    out = run(layers, x, lengths_B=LENGTHS, keys_B=KEYS, backend=backend)
    held = [out, x, incoming, KEYS, *layers.parameters()]
    before = [tensor.detach().clone() for tensor in held]
    out.backward(incoming, retain_graph=True)
    assert all(torch.equal(one, other) for one, other in zip(held, before, strict=True))
    if backend == "cpp":
        return
    with pytest.raises(RuntimeError, match="backward once"):
        out.backward(incoming)


@both
def test_gradients_of_a_stack_move_as_three(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices, biases and norms each lie in memory as they do where they are trained."""
    layers = network()
    master = Master(layers, compute=HERE.dtype, device=torch.device(HERE.device))
    run(layers, HERE.numbers(2, 20, 32, seed=1), lengths_B=LENGTHS, keys_B=KEYS, backend=backend).sum().backward()
    each = {name: exact(weight.grad) for name, weight in layers.named_parameters() if weight.grad is not None}
    pieces: list[int] = []
    copy = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda into, given: (pieces.append(len(given)), copy(into, given)))
    master.collect(first=True)
    assert sum(pieces) == 3
    for name, gradient in master._named(master.gradient).items():
        assert torch.equal(exact(gradient), each[name]), name


@both
def test_frozen_layers_get_no_gradient(backend: str) -> None:
    layers, x, incoming = network(), HERE.numbers(2, 20, 32, seed=1), HERE.numbers(2, 20, 32, seed=2)
    run(layers, x, keys_B=KEYS, backend=backend).backward(incoming)
    want = {name: weight.grad for name, weight in layers.named_parameters()}
    layers.zero_grad(set_to_none=True)
    layers[0].requires_grad_(False)
    run(layers, x, keys_B=KEYS, backend=backend).backward(incoming)
    for name, weight in layers.named_parameters():
        if name.startswith("0."):
            assert weight.grad is None
        else:
            assert weight.grad is not None and torch.equal(weight.grad, want[name])


@pytest.mark.parametrize("learning", [True, False])
def test_without_gradients_nothing_is_saved(learning: bool) -> None:
    """The second layer overwrites the first one's activations, unless the backward needs them."""
    layers, x = network(), HERE.numbers(2, 20, 32, seed=1)
    numbers: list[int] = []
    made: list[weakref.ref[Tensor]] = []

    def watched(x_TD: Tensor, some: Any, first: int, inputs: Any, saved: Activations, out_KTD: Tensor) -> None:
        numbers.append(len(saved.preact_KTF))
        made.append(weakref.ref(saved.preact_KTF))
        STACKS["short"].forward(x_TD, some, first, inputs, saved, out_KTD)

    with torch.set_grad_enabled(learning):
        out = run(layers, x, kernels=replace(STACKS["short"], forward=watched))
    assert numbers == ([2] if learning else [1, 1]) and out.requires_grad == learning
    del out
    assert not any(one() is not None for one in made)


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_which_kernels_run_a_stack_on_hopper() -> None:
    device = torch.device("cuda", 0)
    if lacks := cuda_missing(device):
        pytest.skip(lacks)
    small, tiny = StackShape(128, 128, 256, 4, 1024, False), StackShape(64, 128, 64, 1, 256, False)
    parts = {"attention": "cuda", "linear_gelu": "cuda"}
    assert stack_plan(small, device) == {"layers": "cuda (width 256)", **parts}
    assert stack_plan(tiny, device)["layers"] == "cuda (width 64)"
    for shape in (
        replace(small, sequences=90),
        replace(small, length=90),
        replace(small, sequences=160),  # most multiprocessors would take a second sequence for nothing
        replace(small, length=129),
        replace(small, documents=True),
        replace(tiny, sequences=63),
        replace(tiny, ffn=192),
    ):
        assert stack_plan(shape, device)["layers"] == "by op", shape
    assert stack_plan(replace(small, sequences=512), device)["layers"] == "cuda (width 256)"
    assert stack_plan(replace(small, documents=True), device)["attention"] == "triton (long)"


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a CUDA device")
def test_all_sequences_and_layers_of_width_256_have_the_same_bits_each_time() -> None:
    """What is read too early once in thousands of passes is not seen in two sequences."""
    device = torch.device("cuda", 0)
    if lacks := cuda_missing(device):
        pytest.skip(lacks)
    stack = stack_check.make_stack(128, 128, 12, device=device, dtype=torch.bfloat16)
    fused, by_op = STACKS["width 256, backward"], STACKS["width 256"]
    checks = stack_check.compare(stack, fused, by_op) + stack_check.repeat(stack, fused, 100)
    assert all(check.passed for check in checks), checks


@pytest.mark.skipif(bool(CPP_LACKS), reason=CPP_LACKS)
@pytest.mark.parametrize("keys", [KEYS, None], ids=["dropout", "no dropout"])
def test_a_recomputed_stack_in_cpp_has_the_same_bits(keys: Tensor | None) -> None:
    layers, x, incoming = network(), HERE.numbers(2, 20, 32, seed=1), HERE.numbers(2, 20, 32, seed=2)
    found = []
    for recompute in (False, True):
        y = run(layers, x, lengths_B=LENGTHS, keys_B=keys, recompute=recompute, backend="cpp")
        found.append([y, *torch.autograd.grad(y, list(layers.parameters()), incoming)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.skipif(bool(CPP_LACKS), reason=CPP_LACKS)
def test_a_stack_in_cpp_runs_backward_again() -> None:
    """Nothing that it gave away is overwritten."""
    layers, x, incoming = network(), HERE.numbers(2, 20, 32, seed=1).requires_grad_(), HERE.numbers(2, 20, 32, seed=2)
    y, leaves = run(layers, x, lengths_B=LENGTHS, keys_B=KEYS, backend="cpp"), [x, *layers.parameters()]
    first = torch.autograd.grad(y, leaves, incoming, retain_graph=True)
    before = [gradient.clone() for gradient in first]
    again = torch.autograd.grad(y, leaves, incoming)
    for one, copied, other in zip(first, before, again, strict=True):
        assert torch.equal(one, copied) and torch.equal(one, other)


@pytest.mark.skipif(bool(CPP_LACKS), reason=CPP_LACKS)
@pytest.mark.parametrize(
    ("x_trained", "trained", "kept"), [(False, (0, 1), 2), (False, (1,), 1), (True, (1,), 2), (True, (), 2)]
)
def test_a_stack_in_cpp_saves_what_its_backward_reads(x_trained: bool, trained: tuple[int, ...], kept: int) -> None:
    layers, x, incoming = network(), HERE.numbers(2, 20, 32, seed=1), HERE.numbers(2, 20, 32, seed=2)
    everything = [x.requires_grad_(), *layers.parameters()]
    want = torch.autograd.grad(run(layers, x, keys_B=KEYS, backend="cpp"), everything, incoming)
    x.requires_grad_(x_trained)
    for number, layer in enumerate(layers):
        layer.requires_grad_(number in trained)
    y = run(layers, x, keys_B=KEYS, backend="cpp")
    activations = len(y.grad_fn.saved_tensors) - len(list(layers.parameters()))  # type: ignore[union-attr]
    assert activations == kept * (1 + len(Saved._fields))
    leaves = [leaf for leaf in everything if leaf.requires_grad]
    expected = [gradient for leaf, gradient in zip(everything, want, strict=True) if leaf.requires_grad]
    for one, other in zip(torch.autograd.grad(y, leaves, incoming), expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.skipif(bool(CPP_LACKS), reason=CPP_LACKS)
def test_a_stack_in_cpp_that_learns_nothing_gives_the_same() -> None:
    layers, x = network(), HERE.numbers(2, 20, 32, seed=1)
    want = run(layers, x, keys_B=KEYS, backend="cpp")
    layers.requires_grad_(False)
    got = run(layers, x, keys_B=KEYS, backend="cpp")
    assert torch.equal(got, want) and want.requires_grad and not got.requires_grad


@pytest.mark.skipif(bool(CPP_LACKS), reason=CPP_LACKS)
@pytest.mark.parametrize("hidden", ["later tokens", "some tokens of each sequence"])
@pytest.mark.parametrize("lengths", [LENGTHS, None])
def test_hidden_tokens_in_cpp_are_those_of_the_reference(hidden: str, lengths: Tensor | None) -> None:
    place, layers = torch.arange(20), network()
    hidden_LL = (
        place > place[:, None] if hidden == "later tokens" else (place % 3 == torch.tensor([[1], [2]]))[:, None, None]
    )
    found = []
    for stack in (cpp_encoder_stack, reference_encoder_stack):
        x = HERE.numbers(2, 20, 32, seed=1).requires_grad_()
        y = stack(x, layers, lengths_B=lengths, spans=None, hidden_LL=hidden_LL, keys_B=KEYS, recompute=False)
        leaves = [x, *layers.parameters()]
        found.append([y, *torch.autograd.grad(y, leaves, HERE.numbers(2, 20, 32, seed=2))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.detach().abs().max()))


@pytest.mark.skipif(bool(CPP_LACKS), reason=CPP_LACKS)
def test_a_stack_in_cpp_computes_in_its_own_type_under_autocast() -> None:
    layers, x, incoming = network().float(), HERE.numbers(2, 20, 32, seed=1).float(), HERE.numbers(2, 20, 32, seed=2)
    leaves, found = list(layers.parameters()), []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y = run(layers, x.bfloat16() if enabled else x.bfloat16().float(), keys_B=KEYS, backend="cpp")
            found.append([y, *torch.autograd.grad(y, leaves, incoming.float())])
            with torch.no_grad():
                found[-1].append(run(layers, x, backend="cpp"))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert found[0][0].dtype == torch.float32


@pytest.mark.skipif(bool(CPP_LACKS), reason=CPP_LACKS)
def test_weights_between_others_are_read_like_copies_of_them() -> None:
    layers, x, incoming = network(), HERE.numbers(2, 20, 32, seed=1), HERE.numbers(2, 20, 32, seed=2)
    found = []
    for apart in (False, True):
        for weight in layers.parameters():
            weight.data = torch.stack((weight.data, weight.data + 1), -1)[..., 0] if apart else weight.data
        y = run(layers, x, keys_B=KEYS, backend="cpp")
        found.append([y, *torch.autograd.grad(y, list(layers.parameters()), incoming)])
    assert not layers[0].up.bias.is_contiguous()
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.skipif(bool(CPP_LACKS), reason=CPP_LACKS)
def test_a_stack_in_cpp_runs_inside_a_checkpoint() -> None:
    """Whose hooks give each saved tensor once."""
    layers, x, incoming = network(), HERE.numbers(2, 20, 32, seed=1), HERE.numbers(2, 20, 32, seed=2)
    leaves = list(layers.parameters())
    want = torch.autograd.grad(run(layers, x, keys_B=KEYS, backend="cpp"), leaves, incoming)

    def again(x: Tensor) -> Tensor:
        return run(layers, x, keys_B=KEYS, backend="cpp")

    got = torch.autograd.grad(checkpoint(again, x, use_reentrant=False), leaves, incoming)
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
