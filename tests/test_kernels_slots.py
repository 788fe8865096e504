"""Slots, masks and samples by kernels: the plain functions' own, bit for bit; the detection loss, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from kernel_truth import HERE, leaf, off
from torch import Tensor

from electra.batches.masking import Slots, choose, slot_count
from electra.batches.sequences import Sequences, lengths_and_segments
from electra.config.schema import MaskingConfig
from electra.kernels import slots as kernel
from electra.kernels.detect import detect, sum_used, weigh
from electra.objective.corrupt import gold_and_keys, mask, mask_bert, replace

SPECIAL, VOCAB, MASK = (0, 2, 3, 4), 50, 4
SHAPES = [(5, 16), (4, 33), (3, 128), (2, 200), (6, 21), (3, 9)]


def batch_of(texts: int, length: int, *, seed: int) -> Sequences:
    """Rows as they come from the loader: ids, lengths and keys side by side; one without a token to choose."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, VOCAB, (texts, length + 3), generator=generator).to(torch.int32)
    rows[:, length] = torch.randint(1, length + 1, (texts,), generator=generator)
    rows[0, length], rows[-1, :length] = length, SPECIAL[1]
    rows[:, length + 2] = torch.randint(-(2**31), 2**31, (texts,), generator=generator)
    return Sequences(rows[:, :length], rows[:, length], torch.zeros(texts, length), rows[:, length + 2])


def there(batch: Sequences) -> Sequences:
    return Sequences(*(part.to(HERE.device) for part in batch[:4]))


def chosen(batch: Sequences, rate: float, policy: str) -> Slots:
    count = max(1, slot_count(batch.ids_BL.shape[1], rate))
    given = there(batch)
    found = kernel.choose(
        given.ids_BL, given.lengths_B, given.keys_B,
        slots=count, rate=rate, again=policy == "official", special=SPECIAL,
    )  # fmt: skip
    return Slots(*(part.cpu() for part in found))


def expected(batch: Sequences, rate: float, policy: str) -> Slots:
    masking = MaskingConfig(rate=rate, policy=policy)  # type: ignore[arg-type]
    return choose(batch.ids_BL, batch.lengths_B, batch.keys_B, masking=masking, special=SPECIAL)


def same(got: Tensor, want: Tensor) -> bool:
    return got.dtype == want.dtype and torch.equal(got.cpu(), want)


@pytest.mark.parametrize("policy", ["official", "without_replacement"])
@pytest.mark.parametrize("rate", [0.15, 0.5, 1.0])
@pytest.mark.parametrize(("texts", "length"), SHAPES)
def test_positions(texts: int, length: int, rate: float, policy: str) -> None:
    batch = batch_of(texts, length, seed=length)
    got, want = chosen(batch, rate, policy), expected(batch, rate, policy)
    assert same(got.positions_BS, want.positions_BS) and same(got.used_BS, want.used_BS)
    assert want.used_BS.any() and not want.used_BS[-1].any()


@pytest.mark.parametrize(("texts", "length"), [*SHAPES, (300, 20), (1, 9)])
def test_how_many_slots_and_tokens_there_are(texts: int, length: int) -> None:
    batch = batch_of(texts, length, seed=length)
    used_BS = expected(batch, 0.15, "without_replacement").used_BS
    got = kernel.count(used_BS.to(HERE.device), there(batch).lengths_B)
    assert same(got, torch.stack((used_BS.sum(), batch.lengths_B.sum())).float())


@pytest.mark.parametrize(("texts", "length"), SHAPES)
def test_lengths_and_second_segments(texts: int, length: int) -> None:
    """Segments that begin anywhere up to the end of the row; rows that are a part of wider ones too."""
    draw = torch.Generator().manual_seed(length)
    wide = torch.randint(0, length + 1, (texts, length + 8), generator=draw, dtype=torch.int32).to(HERE.device)
    for rows in (wide[:, 2 : length + 5], wide[:, 2 : length + 5].contiguous()):
        for found, wanted in zip(kernel.lengths_and_segments(rows), lengths_and_segments(rows.cpu()), strict=True):
            assert same(found, wanted)


@pytest.mark.parametrize("count", [1, 40, 5000])
def test_the_losses_in_use_are_added_up(count: int) -> None:
    draw = torch.Generator().manual_seed(count)
    losses, used = torch.randn(count, generator=draw), torch.rand(count, generator=draw) < 0.8
    mine = losses.to(HERE.device, copy=True).requires_grad_()
    total = sum_used(mine, used.to(HERE.device))
    want = float((losses.double() * used).sum())
    assert total.shape == () and float(total.detach()) == pytest.approx(want, rel=1e-5, abs=1e-5)
    (3 * total).backward()
    assert mine.grad is not None and torch.equal(mine.grad.cpu(), 3 * used.float())


@pytest.mark.parametrize(("texts", "length"), SHAPES)
def test_what_is_shown_and_put_there(texts: int, length: int) -> None:
    batch = batch_of(texts, length, seed=length)
    slots = expected(batch, 0.5, "official")
    given, moved = there(batch), Slots(*(part.to(HERE.device) for part in slots))
    masked = kernel.show(given.ids_BL, given.keys_B, moved, hidden=0.85, written=0.85, mask_id=MASK, vocab=1)
    assert same(masked, mask(batch, slots, masked_share=0.85, mask_id=MASK))
    as_bert = kernel.show(given.ids_BL, given.keys_B, moved, hidden=0.8, written=0.9, mask_id=MASK, vocab=VOCAB)
    assert same(as_bert, mask_bert(batch, slots, mask_id=MASK, vocab=VOCAB))
    gold, keys = gold_and_keys(batch, slots)
    found = kernel.gold_and_keys(given.ids_BL, given.keys_B, moved.positions_BS)
    assert same(found[0], gold) and same(found[1], keys)
    sampled = (keys.long() % VOCAB).view(slots.positions_BS.shape)
    put = kernel.replace(given.ids_BL, moved, sampled.to(HERE.device))
    assert same(put, replace(batch, slots, sampled, official=True))
    distinct = expected(batch, 0.5, "without_replacement")
    moved = Slots(*(part.to(HERE.device) for part in distinct))
    put = kernel.replace(given.ids_BL, moved, sampled.to(HERE.device))
    assert same(put, replace(batch, distinct, sampled, official=False))


@pytest.mark.parametrize(("texts", "length"), SHAPES)
def test_the_detection_loss_and_its_figures(texts: int, length: int) -> None:
    batch = batch_of(texts, length, seed=length)
    used = expected(batch, 0.15, "official").used_BS
    generator = torch.Generator().manual_seed(length)
    scores = torch.randn(texts, length, generator=generator) * 5
    scores[0, :4] = torch.tensor([0.0, 100.0, -100.0, 20.0])
    changed = torch.rand(texts, length, generator=generator) < 0.3
    changed &= torch.arange(length) < batch.lengths_B[:, None]
    seen = torch.where(changed, batch.ids_BL + 1, batch.ids_BL)
    real = (torch.arange(length) < batch.lengths_B[:, None]).double()
    source = leaf(scores)
    losses = F.binary_cross_entropy_with_logits(source, changed.double(), reduction="none")
    (losses * real).sum().backward()
    assert source.grad is not None
    given, parts = there(batch), (part.to(HERE.device) for part in (seen, used))
    leaves = scores.to(HERE.device).requires_grad_()
    moved, moved_used = parts
    loss, figures, each = detect(leaves, moved, given.ids_BL, given.lengths_B, moved_used)
    right = (((scores > 0) == changed) * real).sum()
    tokens = batch.lengths_B.sum()
    want = torch.stack([used.sum(), (losses * real).sum(), tokens, changed.sum(), right, tokens]).double()
    assert off(figures, want) < 1e-6 and off(each, losses) < 1e-6 and off(loss, want[1]) < 1e-6
    assert torch.equal(figures.cpu()[[0, 2, 3, 4, 5]], want[[0, 2, 3, 4, 5]].float())
    (3 * loss).backward()
    assert leaves.grad is not None and off(leaves.grad, 3 * source.grad) < 1e-6


@pytest.mark.parametrize(("slots", "tokens"), [(19.0, 128.0), (0.0, 3.0), (0.0, 0.0)])
def test_the_loss_of_both_networks(slots: float, tokens: float) -> None:
    """Counts of nothing are taken for one, as in `ReplacedTokenDetection.weighed`."""
    rtd, mlm = (torch.tensor(value, device=HERE.device, requires_grad=True) for value in (70.5, 31.25))
    counts = torch.tensor([slots, tokens, 7.0], device=HERE.device)
    got = weigh(rtd, mlm, counts, rtd_weight=50, mlm_weight=0.5)
    shares = 50 / max(tokens, 1), 0.5 / max(slots, 1)
    assert got.shape == () and float(got.detach()) == pytest.approx(shares[0] * 70.5 + shares[1] * 31.25, rel=1e-6)
    (2 * got).backward()
    assert rtd.grad is not None and mlm.grad is not None
    assert (float(rtd.grad), float(mlm.grad)) == pytest.approx((2 * shares[0], 2 * shares[1]), rel=1e-6)
