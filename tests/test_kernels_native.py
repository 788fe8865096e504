"""Kernels in CUDA C++: their own source, run thread by thread on the host, against float64."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from emulated import compiler, emulate, needs_compiler
from kernel_truth import Place, exact, leaf, mask_at, off
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from electra.kernels import attention, feed, judge, narrow, native, wide
from electra.kernels import norm as norms
from electra.kernels.attention import attend, attend_backward
from electra.kernels.hashing import Drop, drop_at
from electra.kernels.layer import Block
from electra.kernels.native import Kernel

PLACE = Place("cuda", torch.bfloat16) if torch.cuda.is_available() else Place("cpu", torch.bfloat16)
KERNELS = (
    attention.FORWARD, attention.BACKWARD, narrow.FORWARD, narrow.BACKWARD, feed.UP, feed.DOWN, wide.FORWARD,
    norms.BACKWARD, judge.FORWARD, judge.BACKWARD,
)  # fmt: skip
ROUNDING = 2.0**-8


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU as in training, else on the host."""
    monkeypatch.setattr(narrow, "FEWEST_TEXTS", 1)
    monkeypatch.setattr(wide, "FEWEST_TOKENS", 1)
    if torch.cuda.is_available():
        if native.missing():
            pytest.skip(native.missing())
    elif not compiler():
        pytest.skip("needs g++ with C++20")
    else:
        emulate(monkeypatch)


def near(got: Tensor, want: Tensor, *, roundings: float) -> None:
    """Off by so many roundings at most by the largest element, and by a part of that on the whole."""
    wrong, size = exact(got) - want.detach(), want.detach()
    assert got.shape == want.shape and wrong.isfinite().all()
    assert float(wrong.abs().max() / size.abs().max()) <= roundings * ROUNDING
    assert float(wrong.norm() / size.norm()) <= roundings * ROUNDING / 2


CASES = [
    (128, 1, None, 0.1, 3),
    (100, 2, (100, 37), 0.1, 0),
    (33, 1, (1, 33, 20), 0.3, 70),
    (70, 2, (70, 1, 64, 7), 0.1, 5),
    (128, 1, (127,), 0.0, 0),
    (16, 2, (16, 1), 0.5, 1),
]


@pytest.mark.parametrize(("length", "heads", "lengths", "rate", "site"), CASES)
def test_attention(
    length: int,
    heads: int,
    lengths: tuple[int, ...] | None,
    rate: float,
    site: int,
    runs: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not native.can_run(PLACE.numbers(1, 64, seed=0), attention.FORWARD):
        pytest.skip("for Hopper GPUs")
    monkeypatch.setattr(attention, "PROCESSORS", 1)  # so that a block has several heads to go through
    texts, width = 1 if lengths is None else len(lengths), heads * 64
    qkv = PLACE.numbers(texts * length, 3 * width, seed=length, scale=1.5)
    gradient = PLACE.numbers(texts * length, width, seed=length + 1)
    real = None if lengths is None else torch.tensor(lengths, dtype=torch.int32)
    there = None if real is None else real.to(PLACE.device)
    drop = drop_at(PLACE.keys(texts), rate, site)
    source = leaf(qkv)
    q, k, v = source.view(texts, length, 3, heads, 64).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) / 8
    if real is not None:
        scores = scores.masked_fill(torch.arange(length) >= real[:, None, None, None], -torch.inf)
    shares = scores.softmax(-1)
    if drop.keys_B is not None:
        shares = shares * mask_at(drop.keys_B, site, heads * length, length, rate).view(shares.shape) / (1 - rate)
    want = (shares @ v).transpose(1, 2).reshape(texts * length, width)
    want.backward(exact(gradient))
    assert source.grad is not None

    got = torch.full_like(gradient, torch.nan)
    level = attend(qkv, there, drop, length=length, heads=heads, out=got)
    assert level is not None
    near(got, want, roundings=2)
    logs = torch.logsumexp(scores, -1).flatten() / torch.log(torch.tensor(2.0, dtype=torch.float64))
    assert float((exact(level) - logs.detach()).abs().max()) < 1e-3
    sums = torch.full((texts, 3 * width), torch.nan, device=PLACE.device)
    attend_backward(qkv, gradient, got, level, there, drop, sums, length=length, heads=heads)
    near(qkv, source.grad, roundings=3)
    near(sums, source.grad.view(texts, length, -1).sum(1), roundings=3)


def weights_of(place: Place, width: int, *, shift: int = 0) -> Block:
    """Random ones; biases and norms at any address that their type allows, as in one buffer with others."""

    def moved(x: Tensor) -> Tensor:
        room = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:]
        return room.copy_(x)

    made = {}
    for seed, (name, (shape, scale)) in enumerate(SHAPES.items()):
        sizes, shrink = (size * width for size in shape), (64 / width) ** 0.5 if len(shape) == 2 else 1.0
        x = place.numbers(*sizes, seed=seed + shift, scale=scale * shrink)
        x = x.float() + (1.0 if "gamma" in name else 0.0) if "gamma" in name or "beta" in name else x
        made[name] = moved(x) if x.dim() == 1 else x
    return Block(**made)


SHAPES = {
    "qkv": ((3, 1), 0.15), "qkv_bias": ((3,), 0.2), "out": ((1, 1), 0.15), "out_bias": ((1,), 0.2),
    "gamma1": ((1,), 0.2), "beta1": ((1,), 0.2), "up": ((4, 1), 0.2), "up_bias": ((4,), 0.2),
    "down": ((1, 4), 0.1), "down_bias": ((1,), 0.2), "gamma2": ((1,), 0.2), "beta2": ((1,), 0.2),
}  # fmt: skip
"""In widths, and how large."""


class Layers:
    """Random layers of heads of 64, and what they make of random texts, with what lies between the products."""

    eps = 1e-6

    def __init__(
        self, width: int, length: int, lengths: tuple[int, ...] | None, attention_rate: float, rate: float, count: int
    ) -> None:
        self.width, self.length, self.texts = width, length, 1 if lengths is None else len(lengths)
        self.tokens, self.count = self.texts * length, count
        self.blocks = [weights_of(PLACE, width, shift=20 * number) for number in range(count)]
        keys = PLACE.keys(self.texts)
        self.drops = [
            [drop_at(keys, attention_rate, 3 * n), drop_at(keys, rate, 3 * n + 1), drop_at(keys, rate, 3 * n + 2)]
            for n in range(count)
        ]
        self.real = None if lengths is None else torch.tensor(lengths, dtype=torch.int32)
        self.there = None if self.real is None else self.real.to(PLACE.device)
        self.x, self.incoming = (PLACE.numbers(self.tokens, width, seed=seed) for seed in (1, 2))
        self.seen: list[tuple[Tensor, ...]] = []
        """Of each layer: queries, keys and values; the mixture; the first norm; before the GELU; the output; sums."""
        self.source, self.own = leaf(self.x), [Block(*(leaf(weight) for weight in block)) for block in self.blocks]
        between = []
        x_BLD = self.source.view(self.texts, length, width)
        for own, three in zip(self.own, self.drops, strict=True):
            x_BLD, products = self._layer(x_BLD, own, three)
            between += products
        wanted = [self.source, *between, *(one for own in self.own for one in own)]
        found = list(torch.autograd.grad(x_BLD, wanted, exact(self.incoming).view(x_BLD.shape)))
        self.d_x = found.pop(0).reshape(self.tokens, width)
        self.d_between = [tuple(found.pop(0) for _ in range(4)) for _ in range(count)]
        """Of queries, keys and values; the second product's output; before the GELU; attention's output."""
        self.d_own = [Block(*(found.pop(0) for _ in range(12))) for _ in range(count)]

    def _layer(self, x_BLD: Tensor, own: Block, three: list[Drop]) -> tuple[Tensor, tuple[Tensor, ...]]:
        heads, shape = self.width // 64, (self.texts, self.length, self.width)
        qkv = x_BLD @ own.qkv.T + own.qkv_bias
        q, k, v = qkv.view(self.texts, self.length, 3, heads, 64).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / 8
        if self.real is not None:
            hidden = torch.arange(self.length) >= self.real[:, None, None, None]
            scores = scores.masked_fill(hidden, -torch.inf)
        mixed = (self._dropped(scores.softmax(-1), three[0]) @ v).transpose(1, 2).reshape(shape)
        out = mixed @ own.out.T + own.out_bias
        sum1 = self._dropped(out, three[1]) + x_BLD
        y = layer_norm(sum1, (self.width,), own.gamma1, own.beta1, self.eps)
        inner = y @ own.up.T + own.up_bias
        down = gelu(inner) @ own.down.T + own.down_bias
        sum2 = self._dropped(down, three[2]) + y
        z = layer_norm(sum2, (self.width,), own.gamma2, own.beta2, self.eps)
        self.seen.append((qkv, mixed, y, inner, z, sum1, sum2))
        return z, (qkv, down, inner, out)

    def _dropped(self, y: Tensor, drop: Drop) -> Tensor:
        if drop.keys_B is None:
            return y
        keep = mask_at(drop.keys_B, drop.place, y[0].numel() // y.shape[-1], y.shape[-1], drop.rate)
        return y * keep.view(y.shape) / (1 - drop.rate)

    def room(self, columns: int) -> Tensor:
        """An array over layers and tokens in which nothing was written yet."""
        shape = (self.count, self.tokens, columns)
        return torch.full(shape, torch.nan, dtype=torch.bfloat16, device=PLACE.device)


@pytest.mark.parametrize(
    ("length", "lengths", "attention_rate", "rate", "layers", "at_once"),
    [
        (128, None, 0.1, 0.1, 1, 24),
        (100, (100, 37), 0.2, 0.1, 2, 24),
        (33, (33, 1, 20), 0.0, 0.3, 3, 2),  # two a launch
        (17, None, 0.3, 0.0, 2, 1),
        (128, (90,), 0.0, 0.0, 1, 24),
    ],
)
def test_narrow_layers(
    length: int, lengths: tuple[int, ...] | None, attention_rate: float, rate: float, layers: int, at_once: int,
    runs: None, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(narrow, "AT_ONCE", at_once)
    true = Layers(64, length, lengths, attention_rate, rate, layers)
    tokens, texts = true.tokens, true.texts
    if not narrow.fits(true.x.view(texts, length, 64), heads=1, inner=256):
        pytest.skip("for Hopper GPUs")
    into = tuple(true.room(columns) for columns in (192, 64, 64, 256, 64))
    kept = narrow.run_layers(true.x, true.blocks, true.there, true.drops, length=length, eps=true.eps, into=into)
    for number, whole in enumerate(true.seen):
        for got, want in zip((*into, kept[1], kept[4]), whole, strict=True):
            near(got[number], want.reshape(tokens, -1), roundings=4 * (number + 1))

    spent = tuple(true.room(columns) for columns in (64, 256, 64))
    shapes = [(layers, texts, columns) for columns in (192, 192, 256, 192)]
    lines = tuple(torch.full(shape, torch.nan, device=PLACE.device) for shape in shapes)
    held = (into[0], into[1], kept[0], into[3], *kept[1:])
    got_x = narrow.run_backward(true.incoming, true.blocks, held, true.there, true.drops, spent, lines, length=length)
    off = 6 * layers
    near(got_x, true.d_x, roundings=off)
    for number in range(layers):
        for got, want in zip((into[0], *spent), true.d_between[number], strict=True):
            near(got[number], want.reshape(tokens, -1), roundings=off)
        near(into[3][number], gelu(true.seen[number][3]).reshape(tokens, -1), roundings=4 * layers)
        d_own = true.d_own[number]
        norm1, norm2, up, three_sums = (line[number].sum(0) for line in lines)
        names = (d_own.gamma1, d_own.beta1, d_own.out_bias, d_own.gamma2, d_own.beta2, d_own.down_bias)
        for got, want in zip((*norm1.split(64), *norm2.split(64)), names, strict=True):
            near(got, want, roundings=off)
        near(up, d_own.up_bias, roundings=off)
        near(three_sums[:64], d_own.qkv_bias[:64], roundings=off)
        near(three_sums[128:], d_own.qkv_bias[128:], roundings=off)
        assert not three_sums[64:128].any()  # what is added to all keys changes no softmax


@pytest.mark.parametrize(
    ("length", "lengths", "attention_rate", "rate", "layers", "at_once"),
    [
        (128, None, 0.1, 0.1, 2, 12),
        (70, (70, 37), 0.0, 0.3, 3, 2),  # two a launch
        (17, (9,), 0.3, 0.0, 1, 12),
    ],
)
def test_wide_layers(
    length: int, lengths: tuple[int, ...] | None, attention_rate: float, rate: float, layers: int, at_once: int,
    runs: None, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(wide, "AT_ONCE", at_once)
    true = Layers(256, length, lengths, attention_rate, rate, layers)
    if not wide.fits(true.x.view(true.texts, length, 256), heads=4, inner=1024):
        pytest.skip("for Hopper GPUs")
    into = tuple(true.room(columns) for columns in (768, 256, 256, 1024, 1024, 256))
    kept = wide.run_layers(true.x, true.blocks, true.there, true.drops, length=length, eps=true.eps, into=into)
    for number, (qkv, mixed, y, inner, z, sum1, sum2) in enumerate(true.seen):
        wanted = (qkv, mixed, y, inner, gelu(inner), z, sum1, sum2)
        for got, want in zip((*into, kept[1], kept[4]), wanted, strict=True):
            near(got[number], want.reshape(true.tokens, -1), roundings=4 * (number + 1))


@pytest.mark.parametrize(("tokens", "columns", "blocks"), [(64, 128, 264), (300, 256, 4), (7, 128, 1), (400, 128, 1)])
def test_products_with_the_gelu(
    tokens: int, columns: int, blocks: int, runs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native.can_run(PLACE.numbers(1, 256, seed=0), feed.UP):
        pytest.skip("for Hopper GPUs")
    monkeypatch.setattr(feed, "BLOCKS", blocks)
    y, up = PLACE.numbers(tokens, 256, seed=1), PLACE.numbers(columns, 256, seed=2, scale=0.1)
    bias = PLACE.numbers(columns + 1, seed=3)[1:]  # at any multiple of two bytes
    inner, active = (torch.full((tokens, columns), torch.nan, dtype=y.dtype, device=y.device) for _ in range(2))
    feed.up_gelu(y, up, bias, inner=inner, active=active)
    want = exact(y) @ exact(up).T + exact(bias)
    near(inner, want, roundings=1)
    near(active, gelu(want), roundings=2)

    gradient, down = PLACE.numbers(tokens, 256, seed=4), PLACE.numbers(256, columns, seed=5, scale=0.1)
    got = torch.full_like(inner, torch.nan)
    sums = torch.full((feed.lines_of(gradient, columns), columns), torch.nan, device=y.device)
    feed.down_backward(gradient, down, inner, got, sums)
    given = leaf(inner)
    gelu(given).backward(exact(gradient) @ exact(down))
    assert given.grad is not None
    near(got, given.grad, roundings=1)
    near(sums.sum(0), given.grad.sum(0), roundings=1)


@pytest.mark.parametrize(
    ("texts", "length", "rate", "blocks"),
    [
        (5, 107, 0.1, 1),  # more rows of a warp than it knows at once
        (3, 61, 0.3, 2),  # the last warps have one row, or none
        (2, 37, 0.0, 132),
        (1, 1, 0.5, 132),
    ],
)
def test_norm_on_its_way_back(
    texts: int, length: int, rate: float, blocks: int, runs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native.can_run(PLACE.numbers(1, 256, seed=0), norms.BACKWARD):
        pytest.skip("for Hopper GPUs")
    monkeypatch.setattr(native, "processors", lambda device: blocks)
    tokens, site, eps = texts * length, 7, 1e-6
    drop = drop_at(PLACE.keys(texts), rate, site)
    room = PLACE.numbers(tokens + 1, 256, seed=1, scale=1.5) + 2  # a row more, which is nobody's
    summed, after = room[:-1], room[-1].clone()
    gradient = PLACE.numbers(tokens * 256 + 1, seed=2)[1:].view(tokens, 256)  # neither where kernels can fetch it
    gamma = PLACE.numbers(257, seed=3, scale=0.3).float()[1:] + 1
    x, g, b = leaf(summed), leaf(gamma), leaf(torch.zeros(256))
    layer_norm(x, (256,), g, b, eps).backward(exact(gradient))
    assert x.grad is not None and g.grad is not None and b.grad is not None
    want = x.grad
    if drop.keys_B is not None:
        want = want * mask_at(drop.keys_B, site, length, 256, rate).view(tokens, 256) / (1 - rate)
    mean = exact(summed).mean(1).float().to(PLACE.device)
    rstd = (exact(summed).var(1, correction=0) + eps).rsqrt().float().to(PLACE.device)

    got = torch.full_like(room, torch.nan)
    sums = torch.full((norms.lines_of(summed), 3, 256), torch.nan, device=PLACE.device)
    assert len(sums) == min(blocks, -(-tokens // 32))
    norms.add_norm_backward(gradient, summed, mean, rstd, gamma, drop, got[:-1], sums, length=length)
    near(summed, x.grad, roundings=1)
    near(got[:-1], want, roundings=1)
    assert torch.equal(room[-1], after) and got[-1].isnan().all()
    assert torch.equal((got[:-1] == 0).cpu(), want == 0)
    for total, true in zip(sums.sum(0), (g.grad, b.grad, want.sum(0)), strict=True):
        assert off(total, true) < 1e-5


def test_only_what_the_kernels_know_takes_them() -> None:
    x = torch.empty(64, 128, 64, dtype=torch.bfloat16)
    assert not narrow.fits(x, heads=1, inner=256) and not native.can_run(x, narrow.FORWARD)  # no GPU's


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernels_wait_for_the_one_before(kernel: Kernel) -> None:
    """They are launched while it ends: one that does not wait would read what is not written yet."""
    assert "after_others();" in (native.HERE / f"{kernel.files[-1]}.cu").read_text(encoding="utf-8")


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
def test_kernels_compile_into_registers(kernel: Kernel, tmp_path: Path) -> None:
    """Blocks share a multiprocessor and its registers, and little does not fit into these."""
    source = tmp_path / "kernel.cu"
    source.write_text(kernel.source(), encoding="utf-8")
    target = "-gencode=arch=compute_90a,code=sm_90a"
    made = subprocess.run(
        ["nvcc", target, "-cubin", "-Xptxas", "-v", "-o", str(tmp_path / "kernel.cubin"), str(source)],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    said = made.stderr.partition(f"Compiling entry function '{kernel.name}'")[2]  # the source may hold several
    used = re.search(r"Used (\d+) registers", said)
    assert used is not None and kernel.together * kernel.threads * int(used[1]) <= 2**16
    assert kernel.together * (kernel.memory + 1024) <= 228 * 1024
    spilled = re.search(r"(\d+) bytes spill stores", said)
    stack = re.search(r"(\d+) bytes stack frame", said)
    assert spilled is not None and stack is not None and int(spilled[1]) <= 64
    assert int(stack[1]) <= 2 * int(spilled[1]) + 8  # no array lives there
    assert "serialized" not in made.stderr  # products that wait for one another


@needs_compiler
@pytest.mark.skipif(sys.platform != "linux" or torch.cuda.is_available(), reason="of the emulated kernels, on Linux")
@pytest.mark.parametrize("kernels", ["attention", "narrow", "feed", "wide", "norm", "judge"])
def test_no_thread_reads_what_another_writes_at_the_same_time(kernels: str) -> None:
    """Under the compiler's race detector, which must not load late and knows some thousand threads: in processes."""
    library = subprocess.run(
        [compiler(), "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(library).is_file():
        pytest.skip("needs libtsan")
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), *sys.path])
    done = subprocess.run(
        [sys.executable, str(here / "race_kernels.py"), kernels],
        env={**os.environ, "LD_PRELOAD": library, "PYTHONPATH": paths, "TSAN_OPTIONS": "exitcode=66"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "WARNING: ThreadSanitizer" not in done.stderr, done.stderr[:3000]
    assert done.returncode == 0 and done.stdout.strip() == "done", done.stderr[-2000:]
