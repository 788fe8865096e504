"""Sampling replacements: the softmax's distribution, never an entry that only pads a block."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare
from tiny import OPS, ragged_rows, unmix
from torch import Tensor

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import unpack
from electra.ops import VOCAB_BLOCK
from electra.ops.reference.linear_cross_entropy import pad_vocabulary, sample

DRAWS = 20_000
KEYS = torch.arange(DRAWS, dtype=torch.int32) * 48271 - 99


def log_probabilities(logits_V: Tensor) -> Tensor:
    """One distribution, padded to whole blocks as the MLM head pads it."""
    _, padded = pad_vocabulary(torch.zeros(len(logits_V), 1), logits_V)
    return padded.log_softmax(0)[None, :]


def test_whole_blocks_are_not_copied() -> None:
    table, bias = torch.zeros(2 * VOCAB_BLOCK, 3), torch.zeros(2 * VOCAB_BLOCK)
    assert all(one is other for one, other in zip(pad_vocabulary(table, bias), (table, bias), strict=True))


@pytest.mark.parametrize("vocab", [7, 128, 300])
@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
def test_samples_follow_the_softmax(vocab: int, spread: float) -> None:
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(vocab)) * spread
    drawn = sample(log_probabilities(logits).expand(DRAWS, -1), KEYS)
    counts = torch.bincount(drawn, minlength=vocab).double()
    assert len(counts) == vocab, "no id outside the vocabulary"
    expected = logits.double().softmax(0) * DRAWS
    common = expected >= 5
    observed = torch.cat((counts[common], counts[~common].sum()[None]))
    wanted = torch.cat((expected[common], expected[~common].sum()[None]))
    keep = wanted > 0
    assert chisquare(observed[keep].numpy(), wanted[keep].numpy()).pvalue > 1e-3


def test_neighbouring_masked_positions_draw_independently() -> None:
    batch = unpack(ragged_rows(2000, full=True))
    masked = MaskedPositions(torch.zeros(2000, 4, dtype=torch.long), torch.ones(2000, 4, dtype=torch.bool))
    _, keys = OPS.masked_targets(batch.ids_BL, batch.keys_B, masked)
    assert len(set(keys.tolist())) > 7990
    drawn = sample(log_probabilities(torch.zeros(4)).expand(8000, -1), keys).view(2000, 4)
    for left, right in ((0, 1), (1, 2), (2, 3), (0, 3)):
        table = torch.bincount(drawn[:, left] * 4 + drawn[:, right], minlength=16)
        assert chisquare(table.numpy()).pvalue > 1e-3


def test_a_replacement_depends_on_its_own_key_only() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0))
    rows = log_probabilities(logits).expand(100, -1)
    whole = sample(rows, KEYS[:100])
    assert [int(sample(rows[:1], KEYS[i : i + 1])) for i in range(100)] == whole.tolist()


def test_extreme_logits() -> None:
    for vocab in (3, 128, 129, 300):
        for winner in (0, vocab // 2, vocab - 1):
            logits = torch.full((vocab,), -500.0)
            logits[winner] = 500.0
            assert set(sample(log_probabilities(logits).expand(500, -1), KEYS[:500]).tolist()) == {winner}
        flat = torch.full((vocab,), -3000.0)
        assert int(sample(log_probabilities(flat).expand(5000, -1), KEYS[:5000]).max()) < vocab


@pytest.mark.parametrize("bits", [0, 1, 2**32 - 1, 2**32 - 512])
@pytest.mark.parametrize("vocab", [3, 129, 200])
def test_the_lowest_and_highest_draws_stay_inside(bits: int, vocab: int) -> None:
    """A draw next to 1 is where rounding could step past the last entry that has any weight."""
    block_draw = unmix(bits)
    key = torch.tensor([block_draw], dtype=torch.int64).to(torch.int32)
    for logits in (torch.zeros(vocab), torch.linspace(0, -80, vocab), torch.linspace(-80, 0, vocab)):
        drawn = int(sample(log_probabilities(logits), key))
        assert 0 <= drawn < vocab
        assert logits.softmax(0)[drawn] > 0
    first = int(sample(log_probabilities(torch.zeros(vocab)), key)) // VOCAB_BLOCK
    assert first == (0 if bits < 2**31 else (vocab - 1) // VOCAB_BLOCK)


def test_padding_fills_whole_blocks_and_passes_gradients_to_real_entries() -> None:
    for vocab in (1, 127, 128, 129, 30522):
        table, bias = pad_vocabulary(torch.ones(vocab, 2), torch.zeros(vocab))
        assert table.shape[0] == bias.shape[0] == -(-vocab // VOCAB_BLOCK) * VOCAB_BLOCK
        assert not table[vocab:].any() and (bias[vocab:] == -1e4).all()
    weight = torch.randn(5, 3, requires_grad=True)
    pad_vocabulary(weight, torch.zeros(5))[0].sum().backward()
    assert weight.grad is not None and (weight.grad == 1).all()


def test_sampling_carries_no_gradient() -> None:
    logits = torch.zeros(2, VOCAB_BLOCK, requires_grad=True)
    assert not sample(logits.log_softmax(1), KEYS[:2]).requires_grad
