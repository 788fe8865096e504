"""Triton kernels beyond their numbers: dropout bit for bit, blocks that are not read, samples, sums, exact GELU."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops_backends import GPU_MARK, HERE, KEYS, call_site_keys, close, exact, launch_attention, launch_linear_gelu
from scipy.stats import chisquare
from tiny import signed, unmix
from torch import Tensor

from electra.batches.sequences import Spans
from electra.ops import NEVER, VOCAB_BLOCK, GradNorm, ParameterGroup, Tables
from electra.ops.reference.dropout import keep_mask
from electra.ops.reference.linear_cross_entropy import sample
from electra.ops.triton import attention, attention_long, gelu_mlp
from electra.ops.triton.adamw import adamw
from electra.ops.triton.add_dropout_norm import add_dropout_norm_backward, add_dropout_norm_forward, norm_rows
from electra.ops.triton.embeddings import embeddings
from electra.ops.triton.grad_norm import grad_norm
from electra.ops.triton.hash import Dropout
from electra.ops.triton.linear_cross_entropy import linear_cross_entropy
from electra.ops.triton.partial_sums import sum_into, sum_rows

pytestmark = GPU_MARK
RATES = ((0.1, 0), (0.5, 5), (0.003, 70), (0.9, 1_000_003))
"""Dropout rates and call sites."""


def kept(keys_B: Tensor, call_site: int, rows: int, columns: int, rate: float) -> Tensor:
    """(B, rows, columns) which elements the reference keeps at a call site."""
    keys = call_site_keys(keys_B.cpu(), call_site)
    assert keys is not None
    return keep_mask(keys, rows, columns, rate)


# --- attention ---


@pytest.mark.parametrize("module", [attention, attention_long], ids=["short", "long"])
@pytest.mark.parametrize(("rate", "call_site"), RATES)
def test_attention_drops_what_the_reference_drops(rate: float, call_site: int, module: Any) -> None:
    """All weights are equal and each value has a column of its own: outputs and gradients show the mask."""
    sequences, length, heads, head = 2, 37, 2, 64
    keys = HERE.keys(sequences)
    dropout, masks = Dropout(keys, rate, call_site), (None, None)
    qkv = torch.zeros(sequences, length, 3, heads, head, dtype=HERE.dtype)
    qkv[:, :, 2] = torch.eye(length, head)[None, :, None, :]
    qkv = qkv.view(sequences * length, -1).to(HERE.device)
    want = kept(keys, call_site, heads * length, length, rate).view(sequences, heads, length, length)

    out = torch.empty(len(qkv), heads * head, dtype=HERE.dtype, device=HERE.device)
    lse = torch.empty(len(qkv) * heads, device=HERE.device)
    module.attention_forward(qkv, *masks, dropout, length=length, heads=heads, out=out, lse=lse)
    shown = out.view(sequences, length, heads, head)[..., :length].permute(0, 2, 1, 3)
    assert torch.equal((shown != 0).cpu(), want)

    columns = torch.eye(length, head).repeat(sequences, heads).to(HERE.dtype).to(HERE.device)
    sums = torch.empty(sequences, qkv.shape[1], device=HERE.device)
    module.attention_backward(qkv, columns, out, lse, *masks, dropout, length=length, heads=heads, sums=sums)
    values = qkv.view(sequences, length, 3, heads, head)[:, :, 2, :, :length].permute(0, 2, 3, 1)
    assert torch.equal((values != 0).cpu(), want)


def attend(x: Tensor, length: int, spans: Spans | None) -> tuple[Tensor, ...]:
    """Outputs and gradients of long attention whose queries, keys and values are parts of `x`."""
    width = x.shape[1] // 3
    out, lse = torch.empty_like(x[:, :width]), torch.empty(len(x), device=HERE.device)
    dropout, gradient = Dropout(HERE.keys(len(x) // length), 0.2, 3), HERE.numbers(len(x), width, seed=2)
    gradient[x[:, 0].isnan()] = torch.nan
    sums, qkv = torch.empty(len(x) // length, x.shape[1], device=HERE.device), x.clone()
    attention_long.attention_forward(qkv, None, spans, dropout, length=length, heads=1, out=out, lse=lse)
    arrays = (qkv, gradient, out, lse, None, spans)
    attention_long.attention_backward(*arrays, dropout, length=length, heads=1, sums=sums)
    return out, qkv, sums


def spans_of(*sizes: int, sequences: int = 1) -> Spans:
    """Documents of these sizes, end to end in each sequence."""
    size = torch.tensor(sizes)
    ends = size.cumsum(0)
    bounds = (bound.repeat_interleave(size).repeat(sequences, 1) for bound in (ends - size, ends))
    return Spans(*(bound.int().to(HERE.device) for bound in bounds))


def test_attention_over_one_document_is_attention() -> None:
    x = HERE.numbers(300, 96, seed=1)
    limit = 0.0 if HERE.device == "cpu" else 1e-2  # the compiler may contract products and sums differently
    found = zip(attend(x, 150, spans_of(150, sequences=2)), attend(x, 150, None), strict=True)
    for one, other in found:
        close(one, other, limit)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter, about NaN
def test_blocks_of_other_documents_are_not_read() -> None:
    """NaN would spread if they were, since 0 · NaN is NaN."""
    x = HERE.numbers(256, 48, seed=1)
    x[64:192] = torch.nan
    out, d_qkv, _ = attend(x, 256, spans_of(64, 128, 64))
    for found in (out, d_qkv):
        assert found[:64].isfinite().all() and found[192:].isfinite().all() and found[64:192].isnan().all()


def test_a_sequence_of_no_tokens_gives_numbers() -> None:
    draw, lengths = HERE, HERE.tensor([0, 5], torch.int32)
    weights = {"weight_3DD": draw.numbers(48, 16, seed=1), "bias_3D": draw.numbers(48, seed=2)}
    for module in (attention, attention_long):
        x = draw.numbers(2, 20, 16, seed=3).requires_grad_()
        others = {"heads": 1, "lengths_B": lengths, "spans": None, "rate": 0.1, "keys_B": draw.keys(2), "call_site": 0}
        out = launch_attention(module, x_BLD=x, **weights, **others)
        out.sum().backward()
        assert out.isfinite().all() and x.grad is not None and x.grad.isfinite().all()


# --- norm and GELU ---


@pytest.mark.parametrize("width", [48, 33])
@pytest.mark.parametrize(("rate", "call_site"), RATES)
def test_norm_drops_what_the_reference_drops(rate: float, call_site: int, width: int) -> None:
    sequences, length = len(KEYS), 17
    keys = HERE.keys(sequences)
    dropout, want = Dropout(keys, rate, call_site), kept(keys, call_site, length, width, rate).view(-1, width)
    branch = torch.ones(sequences * length, width, dtype=HERE.dtype, device=HERE.device)
    x, gamma = torch.zeros_like(branch), torch.ones(width, device=HERE.device)
    mean, rstd = torch.empty(2, len(branch), device=HERE.device).unbind()
    arrays = {"out": torch.empty_like(branch), "mean": mean, "rstd": rstd}
    add_dropout_norm_forward(branch, x, gamma, gamma, dropout, length=length, **arrays)
    assert torch.equal((branch != 0).cpu(), want)
    close(mean, exact(branch).mean(1), 5e-6 if HERE.dtype == torch.float32 else 2.0**-8)
    rstd.clamp_(max=100.0)  # a row of which everything is dropped has no spread
    gradient, d_branch = HERE.numbers(len(branch), width, seed=0), torch.empty_like(branch)
    sums = torch.empty(norm_rows(sequences, len(branch), width), 3 * width, device=HERE.device)
    add_dropout_norm_backward(gradient, branch, mean, rstd, gamma, dropout, length=length, d_branch=d_branch, sums=sums)
    assert not (d_branch != 0).cpu()[~want].any()
    assert int((d_branch != 0).sum()) > 0.9 * int(want.sum())


def gelu_and_derivative(x: Tensor) -> tuple[Tensor, Tensor]:
    """By the kernels: the product before them is with an identity, that behind them too."""
    weight = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    x = x.clone().requires_grad_()
    weights = {"weight_FD": weight, "bias_F": torch.zeros_like(weight[0]), "down_DF": weight}
    active = launch_linear_gelu(gelu_mlp, x=x, **weights)
    (derivative,) = torch.autograd.grad(active, x, torch.ones_like(active))
    return active.detach(), derivative


def test_the_gelu_is_that_with_the_error_function() -> None:
    """One with a tanh would be off by 5e-4."""
    x = torch.linspace(-40, 40, 6400, device=HERE.device).view(100, 64)
    source = exact(x).requires_grad_()
    F.gelu(source).sum().backward()
    assert source.grad is not None
    for got, want in zip(gelu_and_derivative(x), (F.gelu(source).detach(), source.grad), strict=True):
        assert float((exact(got) - want).abs().max()) < 1e-6


def test_the_gelu_of_16_bits_is_off_by_a_part_of_their_rounding() -> None:
    dtype = torch.bfloat16 if HERE.device == "cuda" else torch.float16
    x = torch.linspace(-12, 12, 6400, device=HERE.device).view(100, 64).to(dtype)
    source = exact(x).requires_grad_()
    F.gelu(source).sum().backward()
    assert source.grad is not None
    unit = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    for got, want in zip(gelu_and_derivative(x), (F.gelu(source).detach(), source.grad), strict=True):
        allowed = want.abs() * unit + 2.5e-4 + 2.5e-5 * exact(x).abs()  # the polynomials' part, of Φ and of Φ'
        assert bool(((exact(got) - want).abs() <= allowed).all())


# --- embeddings ---


def embedded(dtype: torch.dtype, rate: float, keys: Tensor | None) -> tuple[Tensor, Tables]:
    shapes = ((11, 16), (8, 16), (2, 16), (16,), (16,))
    tables = Tables(*(HERE.full(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)))
    ids, segments = HERE.integers(0, 11, 2, 8, seed=1), HERE.integers(0, 2, 2, 8, seed=2)
    return embeddings(ids, segments, keys, tables, rate=rate, dtype=dtype), tables


def test_embeddings_without_keys_drop_nothing() -> None:
    assert (embedded(torch.float32, 0.5, None)[0] != 0).all() and (
        embedded(torch.float32, 0.5, HERE.keys(2))[0] == 0
    ).any()


def test_embeddings_are_rounded_once() -> None:
    """As the encoder would round them, and the gradient is taken in that precision."""
    (whole, tables), (got, others) = (embedded(dtype, 0.0, None) for dtype in (torch.float32, torch.float16))
    assert torch.equal(got, whole.half())
    incoming = HERE.numbers(*got.shape, seed=0).half()
    whole.backward(incoming.float())
    got.backward(incoming)
    for one, other in zip(tables, others, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


# --- the distribution over the vocabulary ---


def predict(logits_MV: Tensor, keys_M: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """-log p of entries from the first to the last, and samples, of given logits: the table is an identity."""
    rows, size = logits_MV.shape
    table = torch.eye(size, dtype=logits_MV.dtype, device=logits_MV.device)
    gold = torch.linspace(0, size - 1, rows).round().long().to(logits_MV.device)
    prediction = linear_cross_entropy(logits_MV, table, torch.zeros_like(table[0]), gold, keys_M, logits=True)
    assert prediction.logits_MV is not None and torch.equal(prediction.logits_MV, logits_MV)
    return prediction.nll_M, prediction.sampled_M


def keys_of(count: int, *, seed: int = 0) -> Tensor:
    return HERE.integers(-(2**31), 2**31, count, seed=seed)


def reference_samples(logits_MV: Tensor, keys_M: Tensor) -> Tensor:
    return sample(logits_MV.float().log_softmax(1), keys_M)


@pytest.mark.parametrize(("blocks", "spread"), [(1, 1.0), (3, 0.0), (7, 4.0)])
def test_samples_are_those_of_the_reference(blocks: int, spread: float) -> None:
    """One in a million draws could fall between two roundings of the same border, none of these."""
    logits, keys = HERE.numbers(36, blocks * VOCAB_BLOCK, seed=blocks, scale=spread), keys_of(36, seed=blocks)
    nll, sampled = predict(logits, keys)
    assert sampled is not None and torch.equal(sampled, reference_samples(logits, keys))
    assert not sampled.requires_grad and nll.dtype == torch.float32


@pytest.mark.parametrize("bits", [0, 1, 2**32 - 1, 2**32 - 512])
def test_the_lowest_and_highest_draws_stay_inside(bits: int) -> None:
    """A key whose first draw is next to 0 or 1: the first or the last block, never one without weight."""
    key = torch.tensor([signed(unmix(bits))], dtype=torch.int32, device=HERE.device)
    vocab, size = 200, 3 * VOCAB_BLOCK  # the last block is empty
    for logits_V in (torch.zeros(vocab), torch.linspace(0, -80, vocab), torch.linspace(-80, 0, vocab)):
        logits = F.pad(logits_V, (0, size - vocab), value=NEVER)[None].to(HERE.dtype).to(HERE.device)
        sampled = predict(logits, key)[1]
        assert sampled is not None and 0 <= int(sampled) < vocab and logits_V.softmax(0)[int(sampled)] > 0
        assert torch.equal(sampled, reference_samples(logits, key))


def test_samples_follow_the_softmax() -> None:
    """Eight tokens over three blocks, and nothing else."""
    draws, size = 160, 3 * VOCAB_BLOCK
    tokens = torch.tensor([0, 1, 64, 127, 128, 200, 300, 383])
    logits_V = torch.full((size,), NEVER)
    logits_V[tokens] = torch.tensor([0.0, 0.7, -0.5, 0.2, 0.5, -0.3, 0.9, 0.1])
    logits_MV = logits_V.to(HERE.dtype).to(HERE.device).expand(draws, -1)
    sampled = predict(logits_MV, keys_of(draws, seed=5))[1]
    assert sampled is not None
    counts = torch.bincount(sampled.cpu(), minlength=size)[tokens]
    assert counts.sum() == draws
    expected = exact(logits_MV[0]).softmax(0)[tokens] * draws
    assert chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-3


@pytest.mark.parametrize(("by_nll", "by_logits"), [(0.0, 1.0), (1.0, 0.5), (1.0, 0.0)])
def test_gradients_come_through_the_loss_the_logits_or_both(by_nll: float, by_logits: float) -> None:
    rows, size, entries = 5, 24, 2 * VOCAB_BLOCK
    inputs = [HERE.numbers(rows, size, seed=1), HERE.numbers(entries, size, seed=2), HERE.numbers(entries, seed=3)]
    others, gold = HERE.numbers(rows, entries, seed=4), HERE.integers(0, entries, rows, seed=5, dtype=torch.long)
    x, table, bias = (exact(tensor).requires_grad_() for tensor in inputs)
    logits = x @ table.T + bias
    nll = F.cross_entropy(logits, gold.cpu(), reduction="none")
    want = torch.autograd.grad(by_nll * nll.sum() + by_logits * (logits * exact(others)).sum(), (x, table, bias))
    leaves = [tensor.requires_grad_() for tensor in inputs]
    prediction = linear_cross_entropy(*leaves, gold, None, logits=True)
    assert prediction.logits_MV is not None and prediction.sampled_M is None
    parts = [(by_nll, prediction.nll_M.sum()), (by_logits, (prediction.logits_MV.float() * others.float()).sum())]
    total = sum(weight * part for weight, part in parts if weight)  # a sum's gradient has a stride of zero
    limit = 5e-6 if HERE.dtype == torch.float32 else 4 * 2.0**-8
    for got, true in zip(torch.autograd.grad(total, leaves), want, strict=True):
        close(got, true, limit)


@pytest.mark.parametrize("entries", [1, 200, 256])
def test_the_last_block_is_padded_with_entries_that_are_never_drawn(entries: int) -> None:
    x, table, bias = HERE.numbers(9, 24, seed=1), HERE.full(entries, 24, seed=2), HERE.full(entries, seed=3)
    gold = torch.zeros(9, dtype=torch.long, device=HERE.device)
    prediction = linear_cross_entropy(x, table, bias, gold, keys_of(9), logits=True)
    assert prediction.logits_MV is not None and prediction.sampled_M is not None
    assert prediction.logits_MV.shape == (9, -(-entries // VOCAB_BLOCK) * VOCAB_BLOCK)
    assert (prediction.logits_MV[:, entries:].float() - NEVER).abs().lt(-NEVER / 100).all()
    assert prediction.sampled_M.lt(entries).all()


# --- sums, norm of the gradient, optimizer ---


@pytest.mark.parametrize(("groups", "count", "width"), [(1, 1, 1), (3, 5, 40), (2, 300, 33), (4, 129, 7)])
def test_sums_over_rows(groups: int, count: int, width: int) -> None:
    rows = HERE.full(groups, count, width, seed=1)
    close(sum_rows(rows), exact(rows).sum(1), 1e-5)
    short = sum_rows(rows.bfloat16(), torch.bfloat16)
    assert short.dtype == torch.bfloat16
    torch.testing.assert_close(exact(short), exact(rows.bfloat16()).sum(1), rtol=2**-7, atol=2e-2)


@pytest.mark.parametrize("count", [1, 2, 6])
def test_sums_of_several_arrays_at_once(count: int) -> None:
    """Of different sizes and dtypes, some of them a part of something wider; what one leaves no other touches."""
    sizes = [(2, 5, 64), (3, 700, 33), (1, 1, 1), (4, 16, 96), (1, 40, 200), (2, 33, 31)][:count]
    wide = [HERE.full(k, p, n + 7, seed=k) for k, p, n in sizes]
    rows = [array[..., 3:-4] if number % 2 else array[..., :-7] for number, array in enumerate(wide)]
    dtypes = [torch.float32 if number % 3 else torch.float16 for number in range(count)]
    outs = [
        torch.full((k, n), torch.nan, dtype=dtype, device=HERE.device)
        for (k, _, n), dtype in zip(sizes, dtypes, strict=True)
    ]
    sum_into(*zip(rows, outs, strict=True))
    for one, out in zip(rows, outs, strict=True):
        near = 2**-9 if out.dtype == torch.float16 else 1e-5
        torch.testing.assert_close(exact(out), exact(one).sum(1), rtol=near, atol=near)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_norm_that_is_not_finite_skips_the_step(bad: float) -> None:
    gradient = torch.ones(5000, device=HERE.device)
    gradient[4321] = bad
    found = grad_norm(gradient, clip=1.0)
    assert found.skipped.item() == 1 and not found.norm.isfinite() and found.divisor.shape == ()


def test_a_skipped_step_changes_nothing() -> None:
    buffers = [HERE.full(3000, seed=seed) for seed in range(4)]
    buffers[3].square_()
    copy = torch.full((500,), 7.0, device=HERE.device)
    before = [tensor.clone() for tensor in (*buffers, copy)]
    groups = [ParameterGroup(slice(0, 1000), 1.0, 0.01), ParameterGroup(slice(1000, 3000), 0.5, 0.0)]
    settings = {"lr": HERE.tensor(1e-2), "beta1": 0.9, "beta2": 0.999, "eps": 1e-6}
    make = partial(adamw, *buffers, groups, **settings, copy=copy, copied=slice(700, 1200))
    make()(GradNorm(*HERE.tensor([torch.inf, 1.0, torch.inf])))
    assert all(torch.equal(one, other) for one, other in zip((*buffers, copy), before, strict=True))
    make()(GradNorm(*HERE.tensor([1.0, 0.0, 1.0])))
    assert torch.equal(copy, buffers[0][700:1200]) and not torch.equal(buffers[0], before[0])
