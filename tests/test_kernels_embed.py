"""Embeddings in one pass: the plain ones' outputs and gradients, in float64."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from kernel_truth import HERE, Place, everywhere, exact
from torch import Tensor

from electra.kernels import embed as embeds
from electra.model.layers import Embeddings


def batch_of(place: Place, texts: int, length: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids with many repeats, second segments of all lengths, and keys; ids and keys are parts of wider rows."""
    draw = torch.Generator().manual_seed(length)
    rows = torch.randint(0, vocabulary, (texts, length + 3), generator=draw, dtype=torch.int32)
    rows[:, : length // 3] = 3
    starts = torch.linspace(0, length, texts)[:, None]
    kinds = (torch.arange(length) >= starts).int()
    rows[:, -1] = torch.randint(-(2**31), 2**31, (texts,), generator=draw).int()
    rows = rows.to(place.device)
    return rows[:, :length], kinds.to(place.device), rows[:, -1]


@pytest.mark.parametrize(
    ("place", "texts", "length", "width", "vocabulary", "rate", "most"),
    everywhere(
        (3, 20, 48, 50, 0.1, 1024),
        (2, 33, 33, 300, 0.3, 2),  # an odd width; two programs, the last rows past the end
        (1, 17, 128, 7, 0.0, 1024),
        (4, 9, 600, 40, 0.1, 3),
        half=torch.float32,
    ),
)
def test_embeddings(
    place: Place,
    texts: int,
    length: int,
    width: int,
    vocabulary: int,
    rate: float,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embeds, "MOST_PROGRAMS", most)
    place = Place(place.device, torch.float32)  # whatever the layers compute in
    made = Embeddings(vocabulary, length + 5, width, rate)
    for seed, weight in enumerate(made.parameters()):
        weight.data = place.numbers(*weight.shape, seed=seed, scale=0.5).cpu()
    made.to(place.device)
    ids, kinds, keys = batch_of(place, texts, length, vocabulary)
    incoming = place.numbers(texts, length, width, seed=9)

    plain = deepcopy(made).cpu().double()
    want = plain(ids.cpu(), kinds.cpu(), keys.cpu())
    want.backward(exact(incoming))
    got = made._run_fused(ids, kinds, keys)
    place.check(got, want, roundings=0)
    got.backward(incoming)
    for (name, weight), true in zip(made.named_parameters(), plain.parameters(), strict=True):
        assert weight.grad is not None and true.grad is not None, name
        place.check(weight.grad, true.grad, roundings=0, single=2e-5)


def test_without_keys_nothing_is_dropped() -> None:
    made = Embeddings(11, 8, 16, 0.5).to(HERE.device)
    ids, kinds, _ = batch_of(HERE, 2, 8, 11)
    with torch.no_grad():
        got = made._run_fused(ids, kinds, None)
    assert torch.equal(got != 0, torch.ones_like(got, dtype=torch.bool))
    made.fused = False
    torch.testing.assert_close(got, made(ids, kinds, None))


def test_what_is_given_is_rounded_once() -> None:
    """As the encoder would round it, and its gradient taken in that precision."""
    made = Embeddings(11, 8, 16, 0.0).to(HERE.device)
    ids, kinds, _ = batch_of(HERE, 2, 8, 11)
    whole = made._run_fused(ids, kinds, None)
    incoming = torch.randn(whole.shape, generator=torch.Generator().manual_seed(0)).to(HERE.device).half()
    whole.backward(incoming.float())
    wanted = {name: weight.grad for name, weight in made.named_parameters()}
    made.zero_grad()
    made.given = torch.float16
    got = made._run_fused(ids, kinds, None)
    assert torch.equal(got, whole.half())  # the interpreter cuts bf16 off
    got.backward(incoming)
    for name, weight in made.named_parameters():
        torch.testing.assert_close(weight.grad, wanted[name])
