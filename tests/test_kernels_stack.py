"""Whole layers as one differentiable step: the plain layers' outputs and gradients, in float64."""

from __future__ import annotations

import weakref
from copy import deepcopy

import pytest
import torch
from emulated import emulate, needs_compiler
from kernel_truth import HERE, Place, everywhere, exact
from torch import Tensor

from electra.batches.sequences import Sequences, Spans, document_spans, unpack
from electra.kernels import attention, down, gelu, narrow, norm, stack, wide
from electra.model.encoder import Encoder, Shape
from electra.train.state import Master


def network(
    place: Place, *, width: int, heads: int, ffn: int = 80, rate: float = 0.1, attention: float = 0.3
) -> Encoder:
    """Two layers with every weight random, norms in fp32 as in training."""
    shape = Shape(layers=2, width=width, heads=heads, ffn=ffn, embedding=width)
    made = Encoder(shape, dropout=rate, attention_dropout=attention).to(place.dtype)
    for seed, (name, weight) in enumerate(made.named_parameters()):
        weight.data = place.numbers(*weight.shape, seed=seed, scale=0.2 if width <= 128 else 0.05).cpu()
        if "norm" in name:
            weight.data = weight.data.float() + ("weight" in name)
    return made.to(place.device)


def batch_of(place: Place, texts: int, length: int, *, seed: int = 0) -> Sequences:
    """Texts of all lengths as the loader packs them: lengths and keys are columns between other numbers."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, length, (texts, length + 3), generator=generator, dtype=torch.int32)
    rows[:, length] = torch.linspace(length, 1, texts).int()
    rows[:, length + 2] = torch.randint(-(2**31), 2**31, (texts,), generator=generator).int()
    batch = unpack(rows.to(place.device))
    assert texts == 1 or not (batch.lengths_B.is_contiguous() or batch.keys_B.is_contiguous())
    return batch


def gradients(of: Encoder, x: Tensor, out: Tensor, incoming: Tensor) -> dict[str, Tensor]:
    names = ["x", *(name for name, _ in of.named_parameters())]
    return dict(zip(names, torch.autograd.grad(out, [x, *of.parameters()], incoming), strict=True))


def to_cpu(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.cpu()


@pytest.mark.parametrize(
    ("place", "texts", "length", "width", "heads", "ffn", "rate", "attention", "ragged", "most", "together"),
    everywhere(
        (3, 33, 48, 3, 80, 0.1, 0.3, True, 2, 0),
        (2, 140, 48, 3, 80, 0.1, 0.2, True, 128, 0),  # longer than one program's scores
        (2, 24, 32, 2, 80, 0.0, 0.2, True, 128, 2**20),
        (1, 17, 48, 3, 80, 0.3, 0.0, False, 1, 2**20),
        (2, 41, 96, 3, 80, 0.0, 0.0, True, 1, 0),
        (2, 16, 64, 1, 80, 0.1, 0.1, False, 128, 2**20),
        (3, 33, 32, 2, 128, 0.1, 0.3, True, 2, 2**20),
        (1, 17, 128, 2, 192, 0.3, 0.0, False, 1, 2**20),
        (2, 20, 48, 3, 81, 0.1, 0.1, True, 128, 2**20),  # the GELU on the way back in a pass of its own
        # On a GPU in one kernel a layer there and one back.
        (3, 33, 64, 1, 256, 0.1, 0.3, True, 2, 2**20),
        (2, 24, 64, 1, 256, 0.0, 0.2, True, 128, 0),
        (1, 17, 64, 1, 256, 0.3, 0.0, False, 1, 2**20),
        (2, 128, 64, 1, 256, 0.1, 0.1, True, 128, 2**20),
        (2, 100, 128, 2, 192, 0.1, 0.1, True, 128, 2**20),  # heads of 64
        (3, 100, 256, 4, 1024, 0.1, 0.1, True, 128, 2**20),
        half=torch.float16,
    ),
)
def test_the_stack_is_the_plain_layers(
    place: Place,
    texts: int,
    length: int,
    width: int,
    heads: int,
    ffn: int,
    rate: float,
    attention: float,
    ragged: bool,
    most: int,
    together: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stack, "TOGETHER", together)
    monkeypatch.setattr(narrow, "FEWEST_TEXTS", 1)
    monkeypatch.setattr(wide, "FEWEST_TOKENS", 1)
    monkeypatch.setattr(down, "NARROWEST", 32)
    monkeypatch.setattr(norm, "MOST_PROGRAMS", most)
    monkeypatch.setattr(gelu, "MOST_ROWS", most)
    encoder = network(place, width=width, heads=heads, ffn=ffn, rate=rate, attention=attention)
    batch = batch_of(place, texts, length)
    lengths = batch.lengths_B if ragged else None
    keys = batch.keys_B if rate or attention else None
    x = place.numbers(texts, length, width, seed=1).requires_grad_()
    incoming = place.numbers(texts, length, width, seed=2)

    plain = deepcopy(encoder).cpu().double()
    source = exact(x).requires_grad_()
    want = plain(source, to_cpu(lengths), to_cpu(keys))
    wanted = gradients(plain, source, want, exact(incoming))

    got = encoder._run_fused(x, lengths, keys)
    assert got.dtype == place.dtype
    # Two layers round some 16 times in a row, and some 24 there and back; the plain ones in bf16 are off by 9 and 11
    # roundings, and by 1e-5 in fp32.
    place.check(got, want, roundings=16, single=2e-5)
    found = gradients(encoder, x, got, incoming)
    weights = {"x": x, **dict(encoder.named_parameters())}
    for name, gradient in found.items():
        assert gradient.dtype == weights[name].dtype, name
        place.check(gradient, wanted[name], roundings=24, single=2e-5)


@pytest.mark.parametrize(
    ("place", "length", "width", "heads", "ffn", "rate", "attention", "recompute"),
    everywhere(
        (33, 48, 3, 80, 0.1, 0.3, False),
        (140, 32, 2, 80, 0.1, 0.2, True),
        (40, 64, 1, 256, 0.0, 0.0, False),  # a layer that one kernel would take otherwise
        half=torch.float16,
    ),
)
def test_the_stack_keeps_documents_apart(
    place: Place,
    length: int,
    width: int,
    heads: int,
    ffn: int,
    rate: float,
    attention: float,
    recompute: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(narrow, "FEWEST_TEXTS", 1)
    encoder = network(place, width=width, heads=heads, ffn=ffn, rate=rate, attention=attention)
    encoder.recompute = recompute
    rows = batch_of(place, 3, length)
    ids = torch.full((3, length), 9, dtype=torch.int32, device=place.device)
    ids[0, 11] = ids[1, 5] = ids[1, 6] = ids[1, length // 2] = 3
    spans = document_spans(ids, 3)
    keys = rows.keys_B if rate or attention else None
    x = place.numbers(3, length, width, seed=1).requires_grad_()
    incoming = place.numbers(3, length, width, seed=2)

    plain = deepcopy(encoder).cpu().double()
    source = exact(x).requires_grad_()
    want = plain(source, None, to_cpu(keys), Spans(*(bound.cpu() for bound in spans)))
    wanted = gradients(plain, source, want, exact(incoming))
    got = encoder._run_fused(x, rows.lengths_B, keys, spans)
    place.check(got, want, roundings=16, single=2e-5)
    for name, gradient in gradients(encoder, x, got, incoming).items():
        place.check(gradient, wanted[name], roundings=24, single=2e-5)


@pytest.mark.parametrize(
    ("width", "heads", "fewest", "longest"), [(32, 1, 1, 128), (32, 2, 64, 128), (48, 3, 64, 128), (48, 3, 64, 16)]
)
def test_running_layers_twice_changes_nothing(
    width: int, heads: int, fewest: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narrow, "FEWEST_TEXTS", fewest)
    monkeypatch.setattr(attention, "LONGEST", longest)
    encoder, batch = network(HERE, width=width, heads=heads, ffn=64), batch_of(HERE, 3, 20)
    x, incoming = HERE.numbers(3, 20, width, seed=1).requires_grad_(), HERE.numbers(3, 20, width, seed=2)
    found = []
    for encoder.recompute in (False, True):
        out = encoder._run_fused(x, batch.lengths_B, batch.keys_B)
        found.append({"out": out.detach(), **gradients(encoder, x, out, incoming)})
    # Products of one layer's weights or of all layers' may round differently on a GPU.
    for name, one in found[0].items():
        torch.testing.assert_close(one, found[1][name], rtol=1e-2, atol=1e-2 * float(one.abs().max()), msg=name)


@pytest.mark.parametrize("column", ["lengths", "keys", "both"])
def test_a_column_is_read_like_a_copy_of_it(column: str) -> None:
    encoder, batch = network(HERE, width=32, heads=2), batch_of(HERE, 3, 20)
    x = HERE.numbers(3, 20, 32, seed=1)
    lengths, keys = batch.lengths_B.clone().contiguous(), batch.keys_B.clone().contiguous()
    want = encoder._run_fused(x, lengths, keys)
    got = encoder._run_fused(
        x, lengths if column == "keys" else batch.lengths_B, keys if column == "lengths" else batch.keys_B
    )
    assert torch.equal(got, want)


def test_inputs_that_are_a_part_of_something_wider() -> None:
    encoder = network(HERE, width=32, heads=2)
    wide = HERE.numbers(2, 20, 50, seed=1)
    assert torch.equal(
        encoder._run_fused(wide[..., 9:41], None, None), encoder._run_fused(wide[..., 9:41].contiguous(), None, None)
    )
    crossed = HERE.numbers(20, 2, 32, seed=2).transpose(0, 1)
    assert torch.equal(encoder._run_fused(crossed, None, None), encoder._run_fused(crossed.contiguous(), None, None))


def test_the_way_back_leaves_alone_what_others_hold_and_goes_once() -> None:
    encoder, batch = network(HERE, width=32, heads=2), batch_of(HERE, 2, 20)
    x = HERE.numbers(2, 20, 32, seed=1).requires_grad_()
    incoming = HERE.numbers(2, 20, 32, seed=2)
    out = encoder._run_fused(x, batch.lengths_B, batch.keys_B)
    held = [out, x, incoming, batch.keys_B, *encoder.parameters()]
    before = [tensor.detach().clone() for tensor in held]
    out.backward(incoming, retain_graph=True)
    assert all(torch.equal(one, other) for one, other in zip(held, before, strict=True))
    with pytest.raises(RuntimeError, match="backwards once"):
        out.backward(incoming)


def test_gradients_of_a_stack_move_as_three() -> None:
    """Matrices, biases and norms each lie in memory as they do where they are trained."""
    encoder, batch = network(HERE, width=32, heads=2), batch_of(HERE, 2, 16)
    x = HERE.numbers(2, 16, 32, seed=1)
    master = Master(encoder, compute=HERE.dtype, device=torch.device(HERE.device))
    encoder._run_fused(x, batch.lengths_B, batch.keys_B).sum().backward()
    each = {name: exact(weight.grad) for name, weight in encoder.named_parameters() if weight.grad is not None}
    pieces: list[int] = []
    copy = torch._foreach_copy_
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "_foreach_copy_", lambda into, given: (pieces.append(len(given)), copy(into, given)))
        master.collect(first=True)
    assert sum(pieces) == 3
    for name, gradient in master._named(master.gradient).items():
        assert torch.equal(exact(gradient), each[name]), name


def test_layers_that_stay_put_get_no_gradient() -> None:
    encoder, batch = network(HERE, width=32, heads=2), batch_of(HERE, 2, 20)
    x, incoming = HERE.numbers(2, 20, 32, seed=1), HERE.numbers(2, 20, 32, seed=2)
    encoder._run_fused(x, batch.lengths_B, batch.keys_B).backward(incoming)
    want = {name: weight.grad for name, weight in encoder.named_parameters()}
    encoder.zero_grad(set_to_none=True)
    encoder.layers[0].requires_grad_(False)
    encoder._run_fused(x, batch.lengths_B, batch.keys_B).backward(incoming)
    for name, weight in encoder.named_parameters():
        if name.startswith("layers.0."):
            assert weight.grad is None
        else:
            assert weight.grad is not None and torch.equal(weight.grad, want[name])


@pytest.mark.parametrize("learning", [True, False])
def test_without_gradients_nothing_is_kept(learning: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second layer's inner states overwrite the first one's, unless the way back needs them."""
    encoder, x = network(HERE, width=32, heads=2), HERE.numbers(2, 20, 32, seed=1)
    places: list[int] = []
    made: list[weakref.ref[Tensor]] = []
    plain = gelu.gelu

    def watched(inner: Tensor, *, out: Tensor) -> None:
        places.append(inner.data_ptr())
        made.append(weakref.ref(inner))
        plain(inner, out=out)

    monkeypatch.setattr(gelu, "gelu", watched)
    with torch.set_grad_enabled(learning):
        out = encoder._run_fused(x, None, None)
    assert len(set(places)) == (2 if learning else 1)
    assert out.requires_grad == learning
    HERE.check(out, exact(encoder.cpu().double()(exact(x), None, None)), roundings=16, single=2e-5)
    del out
    assert not any(one() is not None for one in made)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("length", "width", "fused"), [(15, 64, False), (16, 64, True), (128, 64, True), (129, 64, True), (20, 48, False)]
)
def test_an_encoder_takes_the_fused_way_where_it_fits(length: int, width: int, fused: bool) -> None:
    encoder, x = network(HERE, width=width, heads=1), HERE.numbers(2, length, width, seed=1)
    out = encoder(x, None, None)
    assert ("Stack" in type(out.grad_fn).__name__) == fused
    HERE.check(out, exact(encoder.cpu().double()(exact(x), None, None)), roundings=16)


def test_a_narrow_layer_needs_known_sizes_and_enough_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    x_BLD = torch.empty(64, 128, 64, dtype=torch.bfloat16)
    assert narrow.fits(x_BLD, heads=1, inner=256)
    assert not narrow.fits(x_BLD[1:], heads=1, inner=256) and not narrow.fits(x_BLD, heads=2, inner=256)
    assert not narrow.fits(x_BLD, heads=1, inner=192) and not narrow.fits(x_BLD.float(), heads=1, inner=256)
    assert not narrow.fits(x_BLD.new_empty(64, 129, 64), heads=1, inner=256)
    assert not narrow.fits(x_BLD.new_empty(64, 128, 256), heads=4, inner=1024)


def test_wide_layers_need_known_sizes_and_a_chip_full_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    x_BLD = torch.empty(128, 128, 256, dtype=torch.bfloat16)
    assert wide.fits(x_BLD, heads=4, inner=1024)
    assert not wide.fits(x_BLD[:90], heads=4, inner=1024) and not wide.fits(x_BLD[:, :90], heads=4, inner=1024)
    assert not wide.fits(x_BLD.new_empty(160, 128, 256), heads=4, inner=1024)  # most of them a second time for nothing
    assert wide.fits(x_BLD.new_empty(512, 128, 256), heads=4, inner=1024)
    assert not wide.fits(x_BLD, heads=8, inner=1024) and not wide.fits(x_BLD, heads=4, inner=2048)
    assert not wide.fits(x_BLD.float(), heads=4, inner=1024)
    assert not wide.fits(x_BLD.new_empty(128, 129, 256), heads=4, inner=1024)


def test_an_encoder_tells_its_kernels_of_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Encoder, "_fits", lambda self, x: True)
    encoder, x = network(HERE, width=32, heads=2), HERE.numbers(1, 20, 32, seed=1)
    ids = torch.full((1, 20), 9, device=HERE.device)
    ids[0, 7] = 3
    spans, lengths = document_spans(ids, 3), torch.tensor([20], device=HERE.device)
    got = encoder(x, lengths, None, spans)
    assert torch.equal(got, encoder._run_fused(x, None, None, spans))
    assert not torch.equal(got, encoder(x, lengths, None))


def test_kernels_in_cuda_are_left_aside_for_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """They know of none, however well the sizes suit them."""
    encoder, x = network(HERE, width=64, heads=1, ffn=256), HERE.numbers(2, 40, 64, seed=1).requires_grad_()
    spans = document_spans(torch.full((2, 40), 9, device=HERE.device), 3)
    want = encoder._run_fused(x, None, None, spans)
    monkeypatch.setattr(narrow, "fits", lambda *given, **named: True)
    monkeypatch.setattr(attention, "_native", lambda *given: True)
    for module in (narrow, wide, attention):
        monkeypatch.setattr(module, "launch", lambda kernel, *given: pytest.fail(kernel.name))
    got = encoder._run_fused(x, None, None, spans)
    got.sum().backward()
    assert torch.equal(got, want)


@needs_compiler
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the cases above take the kernels in CUDA")
def test_narrow_layers_in_cuda_kernels_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    place = Place("cpu", torch.bfloat16)
    test_the_stack_is_the_plain_layers(place, 2, 40, 64, 1, 256, 0.1, 0.2, True, 128, 2**20, monkeypatch)


@needs_compiler
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the cases above take the kernels in CUDA")
@pytest.mark.parametrize("recompute", [False, True])
def test_wide_layers_in_cuda_kernels_on_the_host(recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)
    place = Place("cpu", torch.bfloat16)
    monkeypatch.setattr(Encoder, "recompute", recompute, raising=False)
    test_the_stack_is_the_plain_layers(place, 1, 17, 256, 4, 1024, 0.1, 0.2, True, 128, 2**20, monkeypatch)
