"""Fused attention, norm and GELU: there and back against float64, dropout bit for bit the plain one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from kernel_truth import HERE, KEYS, Place, everywhere, exact, leaf, mask_at, off
from torch import Tensor

from electra.batches.sequences import Spans
from electra.kernels import attention, down
from electra.kernels import gelu as gelus
from electra.kernels import norm as norms
from electra.kernels.attention import attend, attend_backward
from electra.kernels.hashing import Drop, drop_at

DROPS = ((0.1, 0), (0.5, 5), (0.003, 70), (0.9, 1_000_003))
"""Rates and places in the network."""


def true_attention(
    qkv_TW: Tensor,
    lengths_B: Tensor | None,
    drop: Drop,
    *,
    texts: int,
    length: int,
    heads: int,
    document_BL: Tensor | None = None,
) -> Tensor:
    """Softmax attention of every head, one operation after another."""
    q, k, v = qkv_TW.view(texts, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if lengths_B is not None:
        scores = scores.masked_fill(torch.arange(length) >= lengths_B[:, None, None, None], -torch.inf)
    if document_BL is not None:
        scores = scores.masked_fill((document_BL[:, :, None] != document_BL[:, None, :])[:, None], -torch.inf)
    shares = scores.softmax(-1)
    if drop.keys_B is not None:
        keep = mask_at(drop.keys_B, drop.place, heads * length, length, drop.rate).view(shares.shape)
        shares = shares * keep / (1 - drop.rate)
    return (shares @ v).transpose(1, 2).reshape(texts * length, -1)


@pytest.mark.parametrize(
    ("place", "length", "heads", "head", "lengths", "rate", "site"),
    everywhere(
        (37, 1, 32, (37, 5, 22), 0.1, 4),
        (17, 3, 16, None, 0.0, 0),
        (16, 2, 16, (16, 1), 0.5, 1),
        (50, 2, 64, (49,), 0.3, 7),
        (99, 3, 16, (64, 50), 0.0, 2),
        (127, 1, 32, (63, 127), 0.1, 9),
        (128, 1, 64, None, 0.1, 10),
        # More tokens than one program holds.
        (129, 1, 16, None, 0.1, 3),
        (200, 2, 32, (200, 1, 77, 129), 0.3, 5),
        (300, 1, 64, (290, 128), 0.1, 6),
        half=torch.float16,
    ),
)
def test_attention(
    place: Place, length: int, heads: int, head: int, lengths: tuple[int, ...] | None, rate: float, site: int
) -> None:
    texts = 2 if lengths is None else len(lengths)
    qkv = place.numbers(texts * length, 3 * heads * head, seed=length, scale=1.5)
    gradient = place.numbers(texts * length, heads * head, seed=length + 1)
    real = None if lengths is None else torch.tensor(lengths, dtype=torch.int32)
    on_device = None if real is None else real.to(place.device)
    drop = drop_at(place.keys(texts), rate, site)

    source = leaf(qkv)
    want = true_attention(source, real, drop, texts=texts, length=length, heads=heads)
    want.backward(exact(gradient))
    assert source.grad is not None

    got = torch.full_like(gradient, torch.nan)
    level = attend(qkv, on_device, drop, length=length, heads=heads, out=got)
    place.check(got, want, roundings=2)  # the shares, the output
    sums = torch.full((texts, qkv.shape[1]), torch.nan, device=place.device)
    attend_backward(qkv, gradient, got, level, on_device, drop, sums, length=length, heads=heads)
    # The shares or their gradients, the output; and one more, since an element's error is not bounded by its own size.
    place.check(qkv, source.grad, roundings=3)
    place.check(sums, source.grad.view(texts, length, -1).sum(1), roundings=3)


def spans_of(documents: tuple[tuple[int, ...], ...]) -> tuple[Spans, Tensor]:
    """What documents of these sizes, end to end, let each token see; and the number of each token's document."""
    rows = [torch.tensor(sizes) for sizes in documents]
    first = torch.stack([(sizes.cumsum(0) - sizes).repeat_interleave(sizes) for sizes in rows])
    end = torch.stack([sizes.cumsum(0).repeat_interleave(sizes) for sizes in rows])
    number = torch.stack([torch.arange(len(sizes)).repeat_interleave(sizes) for sizes in rows])
    return Spans(first.int().to(HERE.device), end.int().to(HERE.device)), number


@pytest.mark.parametrize(
    ("place", "heads", "head", "documents", "rate", "site"),
    everywhere(
        (2, 32, ((20, 17), (37,), (1, 2, 3, 31)), 0.1, 4),  # several in a block, and no more than one block
        (3, 16, ((5, 11), (1,) * 16), 0.0, 0),
        (1, 64, ((64, 64), (63, 65), (1, 126, 1)), 0.5, 10),
        (1, 16, ((129,), (64, 65), (33, 62, 1, 33)), 0.1, 3),
        (2, 32, ((3, 60, 70, 67), (131, 69), (199, 1)), 0.3, 5),  # across blocks, and from an odd place on
        (1, 64, ((7,) * 42 + (6,), (70, 220, 10)), 0.0, 6),
        half=torch.float16,
    ),
)
def test_attention_inside_documents(
    place: Place, heads: int, head: int, documents: tuple[tuple[int, ...], ...], rate: float, site: int
) -> None:
    texts, length = len(documents), sum(documents[0])
    qkv = place.numbers(texts * length, 3 * heads * head, seed=length, scale=1.5)
    gradient = place.numbers(texts * length, heads * head, seed=length + 1)
    drop = drop_at(place.keys(texts), rate, site)
    spans, document_BL = spans_of(documents)

    source = leaf(qkv)
    want = true_attention(source, None, drop, texts=texts, length=length, heads=heads, document_BL=document_BL)
    want.backward(exact(gradient))
    assert source.grad is not None

    lengths = torch.full((texts,), length, dtype=torch.int32, device=place.device)
    got = torch.full_like(gradient, torch.nan)
    level = attend(qkv, lengths, drop, length=length, heads=heads, out=got, spans=spans)
    place.check(got, want, roundings=2)
    sums = torch.full((texts, qkv.shape[1]), torch.nan, device=place.device)
    attend_backward(qkv, gradient, got, level, lengths, drop, sums, length=length, heads=heads, spans=spans)
    place.check(qkv, source.grad, roundings=3)
    place.check(sums, source.grad.view(texts, length, -1).sum(1), roundings=3)


def test_attention_over_one_document_is_attention() -> None:
    texts, length, heads, head = 2, 150, 2, 16
    drop = drop_at(HERE.keys(texts), 0.2, 3)
    spans, _ = spans_of(((length,),) * texts)
    gradient = HERE.numbers(texts * length, heads * head, seed=2)
    found = []
    for given in (None, spans):
        qkv = HERE.numbers(texts * length, 3 * heads * head, seed=1)
        mixed, sums = torch.empty_like(gradient), torch.empty(texts, qkv.shape[1], device=HERE.device)
        level = attend(qkv, None, drop, length=length, heads=heads, out=mixed, spans=given)
        attend_backward(qkv, gradient, mixed, level, None, drop, sums, length=length, heads=heads, spans=given)
        found.append((mixed, qkv, sums))
    allowed = 0.0 if HERE.device == "cpu" else 1e-2  # the compiler may put products and sums together differently
    assert all(off(one, exact(other)) <= allowed for one, other in zip(*found, strict=True))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter, about them
def test_blocks_of_other_documents_are_not_read() -> None:
    """Numbers that are none would spread if they were, since nothing times them is nothing."""
    length, heads, head = 256, 1, 16
    spans, _ = spans_of(((64, 128, 64),))
    drop = drop_at(HERE.keys(1), 0.1, 3)
    qkv, gradient = HERE.numbers(length, 3 * heads * head, seed=1), HERE.numbers(length, heads * head, seed=2)
    qkv[64:192], gradient[64:192] = torch.nan, torch.nan
    mixed, sums = torch.empty_like(gradient), torch.empty(1, qkv.shape[1], device=HERE.device)
    level = attend(qkv, None, drop, length=length, heads=heads, out=mixed, spans=spans)
    attend_backward(qkv, gradient, mixed, level, None, drop, sums, length=length, heads=heads, spans=spans)
    for found in (mixed, qkv):
        assert found[:64].isfinite().all() and found[192:].isfinite().all() and found[64:192].isnan().all()


@pytest.mark.parametrize("longest", [128, 16])
@pytest.mark.parametrize(("rate", "site"), DROPS)
def test_attention_drops_what_the_plain_path_drops(
    rate: float, site: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All shares equal and each value of its own column: outputs and gradients show the mask."""
    monkeypatch.setattr(attention, "LONGEST", longest)
    texts, length, heads, head = 2, 37, 2, 64
    drop = Drop(HERE.keys(texts), rate, site)
    qkv = torch.zeros(texts, length, 3, heads, head, dtype=HERE.dtype)
    qkv[:, :, 2] = torch.eye(length, head)[None, :, None, :]
    qkv = qkv.view(texts * length, -1).to(HERE.device)
    want = mask_at(drop.keys_B, site, heads * length, length, rate).view(texts, heads, length, length)

    mixed = torch.empty(texts * length, heads * head, dtype=HERE.dtype, device=HERE.device)
    level = attend(qkv, None, drop, length=length, heads=heads, out=mixed)
    seen = mixed.view(texts, length, heads, head)[..., :length].permute(0, 2, 1, 3)
    assert torch.equal((seen != 0).cpu(), want)

    columns = torch.eye(length, head).repeat(texts, heads).to(HERE.dtype).to(HERE.device)
    sums = torch.empty(texts, qkv.shape[1], device=HERE.device)
    attend_backward(qkv, columns, mixed, level, None, drop, sums, length=length, heads=heads)
    values = qkv.view(texts, length, 3, heads, head)[:, :, 2, :, :length].permute(0, 2, 3, 1)
    assert torch.equal((values != 0).cpu(), want)


@pytest.mark.parametrize(
    ("place", "texts", "length", "width", "rate", "site", "most", "tile"),
    everywhere(
        (3, 37, 48, 0.1, 1, 1, 2048),  # one program of two steps
        (2, 19, 96, 0.0, 2, 256, 2048),
        (2, 13, 48, 0.3, 5, 3, 64),  # three programs of five steps of two rows, the last ones past the end
        (1, 16, 33, 0.1, 8, 256, 64),  # an odd width, rows that fill the tile
        (2, 3, 5000, 0.1, 3, 4, 2048),  # a row larger than a tile
        (1, 1, 130, 0.5, 4, 256, 2048),
        half=torch.bfloat16,
    ),
)
def test_norm(
    place: Place,
    texts: int,
    length: int,
    width: int,
    rate: float,
    site: int,
    most: int,
    tile: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(norms, "MOST_PROGRAMS", most)
    monkeypatch.setattr(norms, "TILE", tile)
    monkeypatch.setattr(norms, "TILE_BACK", tile)
    tokens, eps = texts * length, 0.01
    branch, residual = place.numbers(tokens, width, seed=1), place.numbers(tokens, width, seed=2) + 0.5
    gradient = place.numbers(tokens, width, seed=3)
    gamma = place.numbers(width, seed=4, scale=0.3).float() + 1
    beta = place.numbers(width, seed=5).float()
    drop = drop_at(place.keys(texts), rate, site)

    b, r, g, a, bias = leaf(branch), leaf(residual), leaf(gamma), leaf(beta), leaf(torch.zeros(width))
    shown = b + bias
    if drop.keys_B is not None:
        shown = shown * mask_at(drop.keys_B, site, length, width, rate).view(tokens, width) / (1 - rate)
    summed = r + shown
    want = F.layer_norm(summed, (width,), g, a, eps)
    want.backward(exact(gradient))

    got = torch.full_like(branch, torch.nan)
    mean, rstd = norms.add_norm(branch, residual, gamma, beta, drop, length=length, eps=eps, out=got)
    place.check(got, want, roundings=1)
    place.check(branch, summed, roundings=1)
    place.check(mean, summed.mean(1), roundings=0)
    place.check(rstd, (summed.var(1, correction=0) + eps).rsqrt(), roundings=0)

    sums = torch.full((norms.lines_of(branch), 3, width), torch.nan, device=place.device)
    assert len(sums) <= most
    back = torch.full_like(branch, torch.nan)
    norms.add_norm_backward(gradient, branch, mean, rstd, gamma, drop, back, sums, length=length)
    # The kept sum, a few times its spread, and the output.
    place.check(branch, r.grad, roundings=3)
    place.check(back, b.grad, roundings=3)
    for part, parameter in zip(sums.sum(0), (g, a, bias), strict=True):
        place.check(part, parameter.grad, roundings=2)


@pytest.mark.parametrize("width", [48, 33])
@pytest.mark.parametrize(("rate", "site"), DROPS)
def test_norm_drops_what_the_plain_path_drops(rate: float, site: int, width: int) -> None:
    texts, length = len(KEYS), 17
    drop = Drop(HERE.keys(texts), rate, site)
    want = mask_at(drop.keys_B, site, length, width, rate).view(-1, width)
    branch = torch.ones(texts * length, width, dtype=HERE.dtype, device=HERE.device)
    residual, gamma = torch.zeros_like(branch), torch.ones(width, device=HERE.device)
    out = torch.empty_like(branch)
    mean, rstd = norms.add_norm(branch, residual, gamma, gamma, drop, length=length, eps=1e-3, out=out)
    assert torch.equal((branch != 0).cpu(), want)
    gradient = HERE.numbers(texts * length, width, seed=0)
    back = torch.empty_like(branch)
    sums = torch.empty(norms.lines_of(branch), 3, width, device=HERE.device)
    norms.add_norm_backward(gradient, branch, mean, rstd, gamma, drop, back, sums, length=length)
    assert torch.equal(((back != 0) | (branch == 0)).cpu(), want | (branch == 0).cpu())
    assert int((back != 0).sum()) > 0.9 * int(want.sum())


@pytest.mark.parametrize(
    ("place", "tokens", "width", "most"),
    everywhere((111, 80, 1), (37, 130, 128), (150, 48, 2), (1, 5, 128), half=torch.bfloat16),
)
def test_gelu(place: Place, tokens: int, width: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gelus, "MOST_ROWS", most)
    inner, gradient = place.numbers(tokens, width, seed=1, scale=2.0), place.numbers(tokens, width, seed=2)
    inner[0, :5] = torch.tensor([0.0, -9.0, 9.0, -5.0, 1e-3])
    source = leaf(inner)
    want = F.gelu(source)
    want.backward(exact(gradient))
    assert source.grad is not None
    active = torch.full_like(inner, torch.nan)
    gelus.gelu(inner, out=active)
    place.check(active, want, roundings=1)
    sums = torch.full((gelus.programs(tokens), width), torch.nan, device=place.device)
    assert len(sums) <= most
    before = inner.clone()
    gelus.gelu_backward(inner, gradient, sums)
    place.check(gradient, source.grad, roundings=1)
    place.check(sums.sum(0), source.grad.sum(0), roundings=0.1)  # all that the polynomials are off by
    assert torch.equal(inner, before)


@pytest.mark.parametrize(
    ("place", "tokens", "width", "inner"),
    everywhere(
        (200, 32, 80),
        (128, 48, 128),
        (130, 256, 200),
        (1, 16, 8),
        (70, 264, 80),  # wider than one kernel takes
        (70, 32, 81),  # rows that begin anywhere
        half=torch.float16,
    ),
)
def test_down_backward(place: Place, tokens: int, width: int, inner: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(down, "NARROWEST", 16)
    gradient, weight = place.numbers(tokens, width, seed=1), place.numbers(width, inner, seed=2, scale=width**-0.5)
    given = place.numbers(tokens, inner, seed=3, scale=2.0)
    source = leaf(given)
    active = F.gelu(source)
    active.backward(exact(gradient) @ exact(weight))
    assert source.grad is not None
    before, got = given.clone(), torch.full_like(given, torch.nan)
    sums = torch.full((down.programs(tokens, width, inner), inner), torch.nan, device=place.device)
    down.down_backward(gradient, weight, given, got, sums)
    place.check(got, source.grad, roundings=3)
    place.check(sums.sum(0), source.grad.sum(0), roundings=3)
    assert torch.equal(given, before)


def test_a_weight_may_lie_anywhere_in_its_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind weights of odd sizes, where the copy engine could not begin."""
    monkeypatch.setattr(down, "NARROWEST", 16)
    gradient, given = HERE.numbers(40, 16, seed=1), HERE.numbers(40, 24, seed=2)
    buffer = HERE.numbers(16 * 24 + 1, seed=3)
    found = []
    for weight in (buffer[1:].view(16, 24), buffer[1:].clone().view(16, 24)):
        got, sums = torch.empty_like(given), torch.empty(down.programs(40, 16, 24), 24, device=HERE.device)
        down.down_backward(gradient, weight, given.clone(), got, sums)
        found.append(got)
    assert torch.equal(*found)


def test_the_short_polynomials_are_the_gelu_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far out too, where they are held fast: within what rounding to 16 bits leaves."""
    monkeypatch.setattr(down, "NARROWEST", 16)
    x = torch.linspace(-12, 12, 2400, dtype=torch.float16, device=HERE.device).view(300, 8)
    if HERE.device == "cuda":
        x = x.bfloat16()
    source = leaf(x)
    want = F.gelu(source)
    want.sum().backward()
    assert source.grad is not None
    one = torch.zeros(300, 16, dtype=x.dtype, device=HERE.device)
    one[:, 0] = 1.0
    weight = torch.zeros(16, 8, dtype=x.dtype, device=HERE.device)
    weight[0] = 1.0
    slope, sums = torch.empty_like(x), torch.empty(down.programs(300, 16, 8), 8, device=HERE.device)
    active = torch.empty_like(x)
    gelus.gelu(x, out=active)
    down.down_backward(one, weight, x, slope, sums)
    unit = 2.0**-8 if HERE.device == "cuda" else 2.0**-11
    assert float((exact(slope) - source.grad).abs().max()) < 2e-4 + unit
    assert float(((exact(active) - want.detach()).abs() - source.detach().abs() * unit).max()) < 2.5e-4


def test_gelu_is_the_exact_one() -> None:
    """A tanh in its place would be off by 5e-4."""
    x = torch.linspace(-40, 40, 20_000, device=HERE.device).view(100, 200)
    source = leaf(x)
    want = F.gelu(source)
    want.sum().backward()
    assert source.grad is not None
    got = torch.empty_like(x)
    gelus.gelu(x, out=got)
    assert float((exact(got) - want.detach()).abs().max()) < 1e-6
    gradient = torch.ones_like(x)
    gelus.gelu_backward(x, gradient, torch.empty(gelus.programs(100), 200, device=HERE.device))
    assert float((exact(gradient) - source.grad).abs().max()) < 1e-6
