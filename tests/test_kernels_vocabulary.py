"""Loss and sample over the vocabulary in one reading: float64's loss and gradient, the plain path's samples."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from kernel_truth import HERE, Place, everywhere, exact, judge_here, leaf, off
from scipy.stats import chisquare
from tiny import signed, unmix
from torch import Tensor

from electra import rng
from electra.kernels import judge, vocabulary
from electra.kernels.hashing import mix_words
from electra.kernels.vocabulary import BLOCK, predict
from electra.objective.corrupt import NEVER, sample


def keys_of(count: int, *, seed: int = 0) -> Tensor:
    words = torch.randint(-(2**31), 2**31, (count,), generator=torch.Generator().manual_seed(seed))
    return words.to(torch.int32).to(HERE.device)


def loss_and_sample(logits_MV: Tensor, gold_M: Tensor, keys_M: Tensor) -> tuple[Tensor, Tensor]:
    """Of logits that are given: the table's entries tell apart what they are compared with."""
    size = logits_MV.shape[1]
    table_VV = torch.eye(size, dtype=logits_MV.dtype, device=logits_MV.device)
    seen, loss_M, sampled_M = predict(logits_MV, table_VV, torch.zeros_like(table_VV[0]), gold_M, keys_M, never=NEVER)
    assert torch.equal(seen, logits_MV) and sampled_M is not None
    return loss_M, sampled_M


def gold_of(rows: int, size: int) -> Tensor:
    """Entries from the first to the last one."""
    return torch.linspace(0, size - 1, rows).round().long().to(HERE.device)


@pytest.mark.parametrize(
    ("place", "rows", "blocks", "step"),
    everywhere((5, 3, 2), (3, 1, 32), (4, 2, 32), (6, 5, 4), (3, 7, 2), (2, 33, 8), half=torch.bfloat16),
)
def test_losses_and_gradients(place: Place, rows: int, blocks: int, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """33 blocks are more than one program of the way back holds, and leave whole steps without entries."""
    monkeypatch.setattr(vocabulary, "STEP", step)
    size = blocks * BLOCK
    logits = place.numbers(rows, size, seed=blocks, scale=3.0)
    logits[:, -40:-1] = NEVER  # what fills up the last block
    logits[0] += 50
    gold, weights = gold_of(rows, size), torch.linspace(-1, 2, rows).to(place.device)
    source = leaf(logits)
    want = F.cross_entropy(source, gold.cpu(), reduction="none")
    want.backward(exact(weights))
    assert source.grad is not None
    logits.requires_grad_()
    loss, sampled = loss_and_sample(logits, gold, keys_of(rows))
    assert loss.dtype == torch.float32 and sampled.dtype == torch.long and not sampled.requires_grad
    place.check(loss, want.detach(), roundings=0)
    loss.backward(weights)
    assert logits.grad is not None and logits.grad.dtype == place.dtype
    place.check(logits.grad, source.grad, roundings=1)


def test_one_gradient_for_all_and_none_of_the_samples() -> None:
    """A sum's gradient has one number and a stride of zero."""
    logits = HERE.numbers(4, 2 * BLOCK, seed=1)
    gold = gold_of(4, 2 * BLOCK)
    source = leaf(logits)
    F.cross_entropy(source, gold.cpu(), reduction="sum").backward()
    logits.requires_grad_()
    loss_and_sample(logits, gold, keys_of(4))[0].sum().backward()
    assert logits.grad is not None and source.grad is not None
    HERE.check(logits.grad, source.grad, roundings=1)
    with torch.no_grad():
        loss, _ = loss_and_sample(logits, gold, keys_of(4))
    assert not loss.requires_grad


def test_columns_and_transposes_are_read_like_copies_of_them() -> None:
    rows, size = 5, 2 * BLOCK
    logits = HERE.numbers(size, rows, seed=1).t()
    table = torch.randint(0, size, (rows, 4), generator=torch.Generator().manual_seed(1)).to(HERE.device)
    gold = table[:, 1]
    keys = keys_of(rows * 3).view(rows, 3)[:, 1]
    assert not (logits.is_contiguous() or gold.is_contiguous() or keys.is_contiguous())
    loss, sampled = loss_and_sample(logits, gold, keys)
    same_loss, same = loss_and_sample(logits.contiguous(), gold.contiguous(), keys.contiguous())
    assert torch.equal(loss, same_loss) and torch.equal(sampled, same)
    assert off(loss, F.cross_entropy(exact(logits), gold.cpu(), reduction="none")) < 5e-6
    assert torch.equal(sampled, plain_samples(logits, keys))


@pytest.mark.parametrize(
    ("place", "rows", "most"), everywhere((37, 64), (5, 1), (130, 3), (128, 16), half=torch.float16)
)
def test_the_whole_head_and_its_way_back(place: Place, rows: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the loss, through the logits, and through both at once; without keys nothing is drawn."""
    monkeypatch.setattr(vocabulary, "MOST_LINES", most)
    size, inner = 9 * BLOCK, 24
    x, table = place.numbers(rows, inner, seed=1), place.numbers(size, inner, seed=2, scale=0.5)
    bias, gold = place.numbers(size, seed=3), gold_of(rows, size).to(place.device)
    weights, others = torch.linspace(-1, 2, rows), torch.randn(rows, size, generator=torch.Generator().manual_seed(4))
    for by_loss, by_logits in ((1.0, 0.0), (0.0, 1.0), (1.0, 0.5)):
        given = [leaf(tensor) for tensor in (x, table, bias)]
        logits = given[0] @ given[1].T + given[2]
        losses = F.cross_entropy(logits, gold.cpu(), reduction="none")
        (by_loss * (losses * weights).sum() + by_logits * (logits * others).sum()).backward()
        mine = [tensor.clone().requires_grad_() for tensor in (x, table, bias)]
        got, found, sampled = predict(*mine, gold, None, never=NEVER)
        assert sampled is None
        place.check(got, logits.detach(), roundings=1)
        place.check(found, losses.detach(), roundings=2)
        total = torch.zeros((), device=place.device)
        if by_loss:
            total = total + by_loss * (found * weights.to(place.device)).sum()
        if by_logits:
            total = total + by_logits * (got.float() * others.to(place.device)).sum()
        total.backward()
        for one, wanted in zip(mine, given, strict=True):
            assert one.grad is not None and wanted.grad is not None and one.grad.dtype == place.dtype
            place.check(one.grad, wanted.grad, roundings=4)


@pytest.mark.parametrize(("place", "entries"), everywhere((200,), (256,), (1,), (1100,), half=torch.float16))
def test_a_table_in_full_precision_of_any_size(place: Place, entries: int) -> None:
    """Rounded and filled up, with gradients for its own entries only, in its own precision."""
    rows, inner = 9, 24
    x, gold = place.numbers(rows, inner, seed=1), gold_of(rows, entries).to(place.device)
    table = place.numbers(entries, inner, seed=2, scale=0.5).float()
    bias = place.numbers(entries, seed=3).float()
    given = [leaf(tensor) for tensor in (x, table, bias)]
    logits = given[0] @ given[1].T + given[2]
    losses = F.cross_entropy(logits, gold.cpu(), reduction="none")
    losses.sum().backward()
    mine = [tensor.clone().requires_grad_() for tensor in (x, table, bias)]
    got, found, sampled = predict(*mine, gold, keys_of(rows).to(place.device), never=NEVER)
    assert got.shape == (rows, -(-entries // BLOCK) * BLOCK) and got.dtype == place.dtype
    place.check(got[:, :entries], logits.detach(), roundings=1)
    assert (got[:, entries:].float() - NEVER).abs().lt(-NEVER / 100).all()
    assert sampled is not None and sampled.lt(entries).all()
    if entries > 1:  # with one there is nothing to lose
        place.check(found, losses.detach(), roundings=2)
        found.sum().backward()
        for one, wanted in zip(mine, given, strict=True):
            assert one.grad is not None and wanted.grad is not None and one.grad.dtype == one.dtype
            place.check(one.grad, wanted.grad, roundings=4)


@pytest.mark.parametrize(
    ("place", "rows", "entries"), everywhere((37, 1100), (5, 128), (70, 200), (4, 33 * BLOCK), half=torch.bfloat16)
)
def test_without_logits(place: Place, rows: int, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same losses, samples and gradients; table and bias have a type of their own or not."""
    judge_here(monkeypatch)
    x, gold = place.numbers(rows, 128, seed=1), gold_of(rows, entries).to(place.device)
    table, bias = place.numbers(entries, 128, seed=2, scale=0.1), place.numbers(entries, seed=3)
    weights, keys = torch.linspace(-1, 2, rows), keys_of(rows).to(place.device)
    if not judge.fits(x):
        pytest.skip("for Hopper GPUs")
    given = [leaf(tensor) for tensor in (x, table, bias)]
    logits = given[0] @ given[1].T + given[2]
    losses = F.cross_entropy(logits, gold.cpu(), reduction="none")
    (losses * weights).sum().backward()
    draws = plain_samples(F.pad(logits.detach().float(), (0, -entries % BLOCK), value=NEVER), keys.cpu())
    for kind in (torch.float32, place.dtype):
        mine = [x.clone().requires_grad_(), *(one.to(kind, copy=True).requires_grad_() for one in (table, bias))]
        kept, found, sampled = predict(*mine, gold, keys, never=NEVER, logits=False)
        assert kept is None and sampled is not None and not sampled.requires_grad
        assert torch.equal(sampled.cpu(), draws)
        place.check(found, losses.detach(), roundings=0, single=2e-5)
        (found * weights.to(place.device)).sum().backward()
        for one, wanted in zip(mine, given, strict=True):
            assert one.grad is not None and wanted.grad is not None and one.grad.dtype == one.dtype
            place.check(one.grad, wanted.grad, roundings=2)
        with torch.no_grad():
            _, again, nothing = predict(*mine, gold, None, never=NEVER, logits=False)
        assert nothing is None and torch.equal(again, found)


def test_logits_are_left_out_only_where_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "fits", lambda x: False)
    given = (HERE.numbers(4, 24, seed=1), HERE.numbers(BLOCK, 24, seed=2), HERE.numbers(BLOCK, seed=3), gold_of(4, 128))
    _, loss, sampled = predict(*given, keys_of(4), never=NEVER)
    _, same_loss, same = predict(*given, keys_of(4), never=NEVER, logits=False)
    assert torch.equal(loss, same_loss) and sampled is not None and same is not None and torch.equal(sampled, same)


def plain_samples(logits_MV: Tensor, keys_M: Tensor) -> Tensor:
    return sample(logits_MV.float().log_softmax(1), keys_M)


@pytest.mark.parametrize(("blocks", "spread"), [(1, 1.0), (3, 0.0), (7, 4.0)])
def test_samples_are_the_plain_ones(blocks: int, spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in a million draws could fall between two roundings of the same border, none of these."""
    monkeypatch.setattr(vocabulary, "STEP", 2)
    logits, keys = HERE.numbers(36, blocks * BLOCK, seed=blocks, scale=spread), keys_of(36, seed=blocks)
    _, sampled = loss_and_sample(logits, gold_of(36, blocks * BLOCK), keys)
    assert torch.equal(sampled, plain_samples(logits, keys))


@pytest.mark.parametrize("word", [0, 1, 2**32 - 1, 2**32 - 512])
def test_the_lowest_and_highest_draws_stay_inside(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key whose first draw is next to 0 or 1: the first or the last block, never one without weight."""
    key = torch.tensor([signed(unmix(word))], dtype=torch.int32, device=HERE.device)
    vocab, size = 200, 3 * BLOCK  # the last block is empty
    judge_here(monkeypatch)
    for logits_V in (torch.zeros(vocab), torch.linspace(0, -80, vocab), torch.linspace(-80, 0, vocab)):
        logits = F.pad(logits_V, (0, size - vocab), value=NEVER)[None].to(HERE.dtype).to(HERE.device)
        drawn = int(loss_and_sample(logits, gold_of(1, size), key)[1])
        assert 0 <= drawn < vocab and logits_V.softmax(0)[drawn] > 0
        assert drawn == int(plain_samples(logits, key))
        nothing, table = torch.zeros_like(logits[:, :128]), logits.new_zeros(size, 128)
        if judge.fits(nothing):
            got, _, again = predict(nothing, table, logits[0], gold_of(1, size), key, never=NEVER, logits=False)
            assert got is None and again is not None and int(again) == drawn


def test_samples_follow_the_softmax() -> None:
    """Eight tokens over three blocks, and nothing else."""
    draws, size = 160, 3 * BLOCK
    tokens = torch.tensor([0, 1, 64, 127, 128, 200, 300, 383])
    logits_V = torch.full((size,), NEVER)
    logits_V[tokens] = torch.tensor([0.0, 0.7, -0.5, 0.2, 0.5, -0.3, 0.9, 0.1])
    logits_MV = logits_V.to(HERE.dtype).to(HERE.device).expand(draws, -1)
    _, sampled = loss_and_sample(logits_MV, gold_of(draws, size), keys_of(draws, seed=5))
    counts = torch.bincount(sampled.cpu(), minlength=size)[tokens]
    assert counts.sum() == draws
    expected = exact(logits_MV[0]).softmax(0)[tokens] * draws
    assert chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("shape", [(1,), (1024,), (3, 700), (5, 1, 2)])
def test_words_are_mixed_as_on_the_host(shape: tuple[int, ...]) -> None:
    words = torch.randint(-(2**31), 2**31, shape, generator=torch.Generator().manual_seed(1)).int()
    words.view(-1)[0] = -(2**31)
    given = words.to(HERE.device)
    assert torch.equal(mix_words(given).cpu(), rng.mix(words.clone()))
    assert torch.equal(given.cpu(), words)
    across = words.T.to(HERE.device) if words.dim() == 2 else given
    assert torch.equal(mix_words(across).cpu(), rng.mix(across.cpu().clone()))


@pytest.mark.parametrize(("before", "after"), [(0, 0), (-(2**31), 2**31 - 1), (123456789, -1640531527), (-1, 1)])
def test_words_are_mixed_between_two_numbers(before: int, after: int) -> None:
    """A column of rows too, as the keys of a batch are."""
    rows = torch.randint(-(2**31), 2**31, (300, 3), generator=torch.Generator().manual_seed(1)).int()
    want = rng.mix(rows[:, 1] ^ before) + after
    assert torch.equal(mix_words(rows.to(HERE.device)[:, 1], before, after).cpu(), want)


def test_folding_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = keys_of(200).view(100, 2)[:, 1]
    want = rng.fold(keys.cpu(), 7)
    calls = []

    def counted(words: Tensor, before: int, after: int) -> Tensor:
        calls.append(before)
        return mix_words(words, before, after)

    monkeypatch.setattr(rng, "mix_on_gpu", counted)
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda self: True))
    assert torch.equal(rng.fold(keys, 7).cpu(), want) and calls == [rng.address(7)]
