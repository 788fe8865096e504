"""A layer's loops in C++: the plain formula in double precision, on any number of threads, and done without."""

from __future__ import annotations

import copy
import functools
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from electra.kernels.host import library
from electra.kernels.host.attention import attend
from electra.kernels.host.gelu import biased_gelu
from electra.kernels.host.norm import add_and_norm
from electra.kernels.host.product import multiply
from electra.model.dropout import chance, keep_mask
from electra.model.encoder import padding_bias
from electra.model.heads import DetectionHead, MaskedHead
from electra.model.layers import NORM_EPS, Layer

pytestmark = [
    pytest.mark.skipif(not library.usable(torch.empty(1)), reason="needs g++ on Linux"),
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed"),  # where the processor has no bf16
]
KINDS = (torch.float32, torch.bfloat16)
RATE = 0.3
KEYS = torch.tensor([5, -(2**31), 77], dtype=torch.int32)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


def leaf(*shape: int, kind: torch.dtype, seed: int) -> Tensor:
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(kind).requires_grad_()


def there_and_back(run: Callable[..., Tensor], given: list[Tensor], incoming: Tensor) -> list[Tensor]:
    y = run(*given)
    return [y.detach(), *torch.autograd.grad(y, given, incoming.to(y.dtype))]


def unit(kind: torch.dtype) -> float:
    """About a rounding."""
    return 2**-22 if kind == torch.float32 else 2**-8


def far(one: Tensor, other: Tensor) -> float:
    """The largest error as a share of the largest number, since sums lose what cancels."""
    assert one.shape == other.shape
    return float((one.double() - other).abs().max() / other.abs().max().clamp(min=1e-3))


def assert_close(got: list[Tensor], want: list[Tensor], kind: torch.dtype) -> None:
    for one, other in zip(got, want, strict=True):
        assert far(one, other) < 4 * unit(kind)


def scaled_mask(keys_B: Tensor | None, shape: tuple[int, ...]) -> Tensor | float:
    if keys_B is None:
        return 1.0
    return keep_mask(keys_B, math.prod(shape[1:-1]), shape[-1], RATE).view(shape).double() / (1 - RATE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keys_B", [KEYS, None], ids=["dropped", "whole"])
@pytest.mark.parametrize(("length", "width"), [(5, 33), (1, 7), (3, 31), (2, 65), (33, 256), (70, 300), (64, 128)])
def test_norm_of_a_dropped_sum(kind: torch.dtype, keys_B: Tensor | None, length: int, width: int) -> None:
    shape = (3, length, width)
    given = [leaf(*shape, kind=kind, seed=1), leaf(*shape, kind=kind, seed=2), leaf(width, kind=kind, seed=3)]
    given += [leaf(width, kind=torch.float32, seed=seed) for seed in (4, 5)]
    incoming = leaf(*shape, kind=kind, seed=6).detach()

    def plain(x: Tensor, product: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        summed = x + (product + bias) * scaled_mask(keys_B, shape)
        if kind == torch.bfloat16:  # what the loop keeps
            summed = summed + (summed.to(kind).double() - summed).detach()
        return F.layer_norm(summed, (width,), scale, shift, NORM_EPS)

    run = functools.partial(add_and_norm, eps=NORM_EPS, chance=chance(keys_B, RATE, width))
    got = there_and_back(run, given, incoming)
    want = there_and_back(plain, [one.detach().double().requires_grad_() for one in given], incoming)
    assert_close(got, want, kind)
    with torch.inference_mode():
        assert torch.equal(run(*given), got[0])
    with threads(2):
        for one, other in zip(there_and_back(run, given, incoming), got, strict=True):
            assert torch.equal(one, other)
    scattered = [one.detach().movedim(0, -1).contiguous().movedim(-1, 0).requires_grad_() for one in given[:2]]
    assert not any(one.is_contiguous() for one in scattered if length > 1)
    spread = incoming.movedim(1, 2).contiguous().movedim(2, 1)
    for one, other in zip(there_and_back(run, [*scattered, *given[2:]], spread), got, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(5, 33), (1, 1), (70, 300)])
def test_gelu_of_a_biased_product(kind: torch.dtype, rows: int, width: int) -> None:
    given = [leaf(3, rows, width, kind=kind, seed=1), leaf(width, kind=kind, seed=2)]
    given[0].data.mul_(4)
    incoming = leaf(3, rows, width, kind=kind, seed=3).detach()
    got = there_and_back(biased_gelu, given, incoming)
    wide = [one.detach().double().requires_grad_() for one in given]
    assert_close(got, there_and_back(lambda x, bias: F.gelu(x + bias), wide, incoming), kind)
    with threads(2):
        for one, other in zip(there_and_back(biased_gelu, given, incoming), got, strict=True):
            assert torch.equal(one, other)
    flipped = given[0].detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    assert torch.equal(biased_gelu(flipped, given[1]), got[0])


@pytest.mark.parametrize(("kind", "exact"), [(torch.float32, 3e-7), (torch.bfloat16, 2e-4)])
def test_gelu_and_its_slope_are_exact_to_what_is_promised(kind: torch.dtype, exact: float) -> None:
    x = torch.linspace(-20, 20, 100_001).to(kind)[:, None].requires_grad_()
    got = there_and_back(biased_gelu, [x, torch.zeros(1, dtype=kind, requires_grad=True)], torch.ones_like(x))
    wide = x.detach().double().requires_grad_()
    want = there_and_back(F.gelu, [wide], torch.ones_like(wide))
    rounding = 2.0**-8 if kind == torch.bfloat16 else 2.0**-24
    for one, other in zip(got[:2], want, strict=True):
        allowed = exact * other.abs().clamp(min=1) + rounding * other.abs()
        # Far below zero the polynomial's last bit is multiplied by what went in.
        assert ((one.double() - other).abs() <= allowed + 2e-5 * (kind == torch.bfloat16) * wide.abs()).all()


def hidden_of(name: str, length: int, kind: torch.dtype) -> Tensor | None:
    later_LL = torch.ones(length, length, dtype=torch.bool).triu(1)
    lowest = torch.finfo(kind).min
    if name == "none":
        return None
    if name == "later":
        return torch.zeros(1, 1, 1, 1, dtype=kind).masked_fill(later_LL, lowest)
    padding = padding_bias(torch.tensor([length, 1, max(1, length // 2)]), length, kind)
    return padding if name == "padding" else padding.masked_fill(later_LL, -torch.inf)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hiding", ["none", "padding", "later", "both"])
@pytest.mark.parametrize(
    ("length", "heads", "size"), [(5, 3, 7), (1, 1, 4), (31, 1, 8), (33, 2, 16), (47, 1, 4), (130, 1, 8), (64, 2, 64)]
)
def test_attention_with_dropout(kind: torch.dtype, hiding: str, length: int, heads: int, size: int) -> None:
    width, texts = heads * size, len(KEYS)
    hidden = hidden_of(hiding, length, kind)
    given = [leaf(texts, length, 3 * width, kind=kind, seed=1), leaf(3 * width, kind=kind, seed=2)]
    incoming = leaf(texts, length, width, kind=kind, seed=3).detach()

    def plain(product: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (product + bias).unflatten(-1, (3, heads, size)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * size**-0.5
        shares = (scores if hidden is None else scores + hidden.double()).softmax(-1)
        return (shares * scaled_mask(KEYS, shares.shape) @ v).transpose(1, 2).flatten(2)

    how = chance(KEYS, RATE, length)
    assert how is not None
    run = functools.partial(attend, hidden_B1LL=hidden, chance=how, heads=heads)
    got = there_and_back(run, given, incoming)
    want = there_and_back(plain, [one.detach().double().requires_grad_() for one in given], incoming)
    # Queries, keys, values, scores, shares: each is rounded to 16 bits where a product reads it.
    assert_close(got, want, kind)
    with threads(2):
        for one, other in zip(there_and_back(run, given, incoming), got, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(("rows", "inner", "width"), [(1, 1, 1), (7, 5, 17), (12, 64, 16), (33, 3, 40)])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_small_products(
    rows: int, inner: int, width: int, turned: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    a, b = (
        leaf(5, *sizes[::-1], kind=torch.float32, seed=1).detach().transpose(1, 2)
        if over
        else leaf(5, *sizes, kind=torch.float32, seed=1).detach()
        for sizes, over in zip(((rows, inner), (inner, width)), turned, strict=True)
    )
    want, out = a.double() @ b.double(), torch.empty(5, rows, width)
    assert multiply(a, b, out=out) is out
    for count in (1, 2):
        with threads(count):
            torch.testing.assert_close(multiply(a, b).double(), want, rtol=1e-5, atol=1e-5)
            assert torch.equal(multiply(a, b), out)


def shares_of(scores: Tensor) -> Tensor:
    """The softmax of rows, by the loop."""
    shares, kept = scores[None, None].clone(), torch.empty_like(scores)[None, None]
    rows, width = scores.shape
    assert rows == width
    library.call("share", scores.dtype, shares, kept, None, 0, 0, None, None, 0, 1.0, 1.0, 1, 1, width)
    return shares[0, 0]


def test_shares_are_as_exact_as_single_precision_allows() -> None:
    scores = torch.linspace(-100, 0, 500**2).view(500, 500).T.contiguous()
    scores[:, 0] = 0.0  # so that nothing is lost on the way to the exponential
    want = scores.double().softmax(-1)
    error = ((shares_of(scores).double() - want) / want)[want > 1e-37]
    assert error.abs().max() < 5e-7


@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_odd_scores_are_the_plain_ones(kind: torch.dtype) -> None:
    lowest, infinite, none = torch.finfo(kind).min, torch.inf, torch.nan
    rows = [
        [0.0, -infinite, 1.0, -infinite, 2.0, 0.5],
        [-infinite] * 6,
        [lowest] * 6,
        [1.0, none, 2.0, 3.0, 0.0, 0.0],
        [infinite, 0.0, 1.0, 2.0, 3.0, 4.0],
        [lowest, 5.0, lowest, 5.0, lowest, -200.0],
    ]
    scores = torch.tensor(rows, dtype=kind)
    got = shares_of(scores)
    torch.testing.assert_close(
        got, scores.softmax(-1), equal_nan=True, rtol=1e-6 if kind == torch.float32 else 1e-2, atol=0
    )
    assert got[0, 1] == got[0, 3] == 0 and got[5, 0] == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rates", [(0.1, 0.1), (0.0, 0.2), (0.2, 0.0)])
@pytest.mark.parametrize("keys_B", [KEYS, None], ids=["dropped", "whole"])
def test_a_layer_with_and_without_loops(
    kind: torch.dtype, rates: tuple[float, float], keys_B: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = Layer(24, 2, 96, *rates)
    for name, parameter in layer.named_parameters():
        torch.nn.init.normal_(parameter, std=0.2)
        parameter.data = parameter.data.to(torch.float32 if "norm" in name else kind)
    x = leaf(3, 11, 24, kind=kind, seed=1)
    bias = padding_bias(torch.tensor([11, 4, 1]), 11, kind)
    back = leaf(3, 11, 24, kind=kind, seed=2).detach()

    def run(layer: Layer) -> list[Tensor]:
        like = layer.up.weight.dtype
        source, incoming = x.detach().to(like).requires_grad_(), back.to(like)
        y = layer(source, bias.to(like), keys_B, 4)
        return [y.detach(), *torch.autograd.grad(y, [source, *layer.parameters()], incoming)]

    exact, looped = run(copy.deepcopy(layer).double()), run(layer)
    monkeypatch.setattr(library, "_wanted", False)
    plain = run(layer)
    assert not all(torch.equal(one, other) for one, other in zip(looped, plain, strict=True)), "no loop was used"
    for mine, other, want in zip(looped, plain, exact, strict=True):
        assert far(mine, want) < 2 * far(other, want) + unit(kind)


def test_under_autocast_nothing_is_a_loop() -> None:
    """There a product is of another type than its bias."""
    torch.manual_seed(0)
    layer, head = Layer(24, 2, 96, 0.1, 0.1), DetectionHead(24)
    x = leaf(3, 11, 24, kind=torch.float32, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        y, scores = layer(x, None, KEYS, 4), head(x)
    made = functions_of(y) | functions_of(scores)
    assert not any(name.startswith(("_Attend", "_BiasedGelu", "_AddAndNorm")) for name in made), made
    assert far(scores.detach(), head(x).detach().double()) < 0.05


def functions_of(y: Tensor) -> set[str]:
    """The names of everything that made a tensor."""
    names, left = set(), [y.grad_fn]
    while left:
        if (step := left.pop()) is not None:
            names.add(type(step).__name__)
            left += [before for before, _ in step.next_functions]
    return names


@pytest.mark.parametrize("kind", KINDS)
def test_the_heads_with_and_without_loops(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    detection, masked = DetectionHead(24).to(kind), MaskedHead(24, 16, 8)
    masked.dense.to(kind)
    x, table = leaf(3, 11, 24, kind=kind, seed=1), leaf(8, 16, kind=kind, seed=2)

    def run(detection: DetectionHead, masked: MaskedHead) -> list[Tensor]:
        like = detection.dense.weight.dtype
        source, words = x.detach().to(like).requires_grad_(), table.detach().to(like)
        y = torch.cat((detection(source).flatten(), masked(source, words, masked.bias).flatten().float()))
        assert ("_BiasedGeluBackward" in functions_of(y)) == library.usable(source)
        given = [source, *detection.parameters(), *masked.parameters()]
        return [y.detach(), *torch.autograd.grad(y, given, torch.linspace(-1, 1, len(y)))]

    exact, looped = run(copy.deepcopy(detection).double(), copy.deepcopy(masked).double()), run(detection, masked)
    monkeypatch.setattr(library, "_wanted", False)
    for mine, other, want in zip(looped, run(detection, masked), exact, strict=True):
        assert far(mine, want) < 2 * far(other, want) + unit(kind)


def test_a_layer_is_plain_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = Layer(8, 2, 16, 0.1, 0.1), torch.randn(3, 5, 8)
    loops = {"_AddAndNormBackward", "_AttendBackward", "_BiasedGeluBackward"}
    assert loops <= functions_of(layer(x, None, KEYS, 0))
    library._library.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda name: None)
        found = functions_of(layer(x, None, KEYS, 0))
    library._library.cache_clear()
    assert not loops & found and "NativeLayerNormBackward0" in found


def test_double_precision_is_plain() -> None:
    layer, x = Layer(8, 2, 16, 0.1, 0.1).double(), torch.randn(3, 5, 8, dtype=torch.float64)
    assert "NativeLayerNormBackward0" in functions_of(layer(x, None, KEYS, 0))
