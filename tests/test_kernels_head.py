"""Linear layers with what stands around them in fused kernels against float64: both heads, the projection; sums."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from kernel_truth import HERE, Place, everywhere, exact

from electra.kernels import score as scores
from electra.kernels import states
from electra.kernels.project import project
from electra.kernels.sums import sum_into, sum_lines
from electra.model.heads import DetectionHead, MaskedHead


@pytest.mark.parametrize(
    ("place", "texts", "length", "width", "most"),
    everywhere((3, 33, 48, 2), (1, 1, 16, 512), (2, 128, 256, 3), (5, 20, 80, 512), half=torch.float16),
)
def test_the_head_is_the_plain_one(
    place: Place, texts: int, length: int, width: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "MOST_PROGRAMS", most)
    torch.manual_seed(0)
    head = DetectionHead(width)
    torch.nn.init.normal_(head.score.bias)
    head = head.to(place.device, place.dtype)
    x = place.numbers(texts, length, width, seed=1).requires_grad_()
    incoming = torch.randn(texts, length, generator=torch.Generator().manual_seed(2))
    plain, source = deepcopy(head).cpu().double(), exact(x).requires_grad_()
    want = plain.score(torch.nn.functional.gelu(plain.dense(source))).squeeze(-1)
    want.backward(incoming.double())
    got = head._run_fused(x)
    assert got.dtype == torch.float32
    place.check(got, want.detach(), roundings=2)
    got.backward(incoming.to(place.device))
    assert x.grad is not None and source.grad is not None and x.grad.dtype == place.dtype
    place.check(x.grad, source.grad, roundings=4)
    for (name, found), wanted in zip(head.named_parameters(), plain.parameters(), strict=True):
        assert found.grad is not None and wanted.grad is not None and found.grad.dtype == place.dtype, name
        place.check(found.grad, wanted.grad, roundings=4)


@pytest.mark.parametrize(
    ("place", "count", "width", "embedding", "most"),
    everywhere((37, 24, 48, 2), (1, 16, 128, 512), (130, 64, 33, 1), (5, 32, 600, 3), half=torch.float16),
)
def test_what_a_masked_head_compares_is_the_plain_one(
    place: Place, count: int, width: int, embedding: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "MOST_PROGRAMS", most)
    torch.manual_seed(0)
    head = MaskedHead(width, embedding, 7).to(place.device)
    head.dense.to(place.dtype)
    for vector in (head.dense.bias, head.norm.weight, head.norm.bias):
        torch.nn.init.normal_(vector)
    x = place.numbers(count, width, seed=1).requires_grad_()
    incoming = place.numbers(count, embedding, seed=2)
    plain, source = deepcopy(head).cpu().double(), exact(x).requires_grad_()
    want = plain.norm(torch.nn.functional.gelu(plain.dense(source)))
    want.backward(exact(incoming))
    got = head._run_fused(x)
    assert got.dtype == place.dtype
    place.check(got, want.detach(), roundings=2)
    got.backward(incoming)
    assert x.grad is not None and source.grad is not None and x.grad.dtype == place.dtype
    place.check(x.grad, source.grad, roundings=4)
    kept = [weight for name, weight in plain.named_parameters() if name != "bias"]
    found = [weight for name, weight in head.named_parameters() if name != "bias"]
    for one, wanted in zip(found, kept, strict=True):
        assert one.grad is not None and wanted.grad is not None and one.grad.dtype == one.dtype
        place.check(one.grad, wanted.grad, roundings=4)


@pytest.mark.parametrize(
    ("place", "texts", "length", "embedding", "width"),
    everywhere((3, 33, 24, 48), (1, 1, 16, 7), (40, 5, 8, 64), half=torch.float16),
)
def test_a_projection_is_the_plain_one(place: Place, texts: int, length: int, embedding: int, width: int) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(embedding, width).to(place.device, place.dtype)
    x = place.numbers(texts, length, embedding, seed=1)
    # A part of something wider, as a gradient may be.
    incoming = place.numbers(texts, length, width + 3, seed=2)[..., :width]
    plain, source = deepcopy(linear).cpu().double(), exact(x).requires_grad_()
    want = plain(source)
    want.backward(exact(incoming))
    x.requires_grad_()
    got = project(x, linear.weight, linear.bias)
    place.check(got, want.detach(), roundings=1)
    got.backward(incoming)
    for found, wanted in ((x, source), (linear.weight, plain.weight), (linear.bias, plain.bias)):
        assert found.grad is not None and wanted.grad is not None and found.grad.dtype == place.dtype
        place.check(found.grad, wanted.grad, roundings=2)


@pytest.mark.parametrize(("groups", "count", "width"), [(1, 1, 1), (3, 5, 40), (2, 300, 33), (1, 128, 96), (4, 129, 7)])
def test_sums_over_lines(groups: int, count: int, width: int) -> None:
    lines = torch.randn(groups, count, width, generator=torch.Generator().manual_seed(1)).to(HERE.device)
    got = sum_lines(lines)
    assert got.dtype == torch.float32
    torch.testing.assert_close(exact(got), exact(lines).sum(1), rtol=1e-5, atol=1e-5)
    short = sum_lines(lines.bfloat16(), torch.bfloat16)
    assert short.dtype == torch.bfloat16
    torch.testing.assert_close(exact(short), exact(lines.bfloat16()).sum(1), rtol=2**-7, atol=2e-2)


def test_lines_that_are_a_part_of_something_wider() -> None:
    wide = torch.randn(2, 9, 50, generator=torch.Generator().manual_seed(1)).to(HERE.device)
    assert torch.equal(sum_lines(wide[..., 3:40]), sum_lines(wide[..., 3:40].contiguous()))


@pytest.mark.parametrize("count", [1, 2, 6])
def test_sums_of_several_arrays_at_once(count: int) -> None:
    """Of different sizes and types, some of them a part of something wider; what one leaves no other touches."""
    draw = torch.Generator().manual_seed(1)
    sizes = [(2, 5, 64), (3, 700, 33), (1, 1, 1), (4, 16, 96), (1, 40, 200), (2, 33, 31)][:count]
    wide = [torch.randn(k, p, n + 7, generator=draw).to(HERE.device) for k, p, n in sizes]
    lines = [array[..., 3:-4] if number % 2 else array[..., :-7] for number, array in enumerate(wide)]
    types = [torch.float32 if number % 3 else torch.float16 for number in range(count)]
    outs = [
        torch.full((k, n), torch.nan, dtype=kind, device=HERE.device)
        for (k, _, n), kind in zip(sizes, types, strict=True)
    ]
    sum_into(*zip(lines, outs, strict=True))
    for line, out in zip(lines, outs, strict=True):
        near = 2**-9 if out.dtype == torch.float16 else 1e-5
        torch.testing.assert_close(exact(out), exact(line).sum(1), rtol=near, atol=near)
