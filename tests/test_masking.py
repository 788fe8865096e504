"""Which positions are masked and what is read there, by the official counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare
from tiny import CLS, MASK, SEP, UNK, VOCAB, lowbias32, plain_fold, ragged_rows
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from electra.batches.masking import CHOOSE, MaskedPositions, max_masked, write_at
from electra.batches.sequences import Sequences, unpack
from electra.config.schema import MaskingConfig
from electra.errors import ConfigError
from electra.ops.dispatch import _BY_SHAPE
from electra.ops.reference.apply_mask import apply_mask
from electra.ops.reference.choose_masked import choose_masked

SPECIAL = (CLS, SEP, MASK)
DEFAULT = MaskingConfig()
OFFICIAL = MaskingConfig(policy="official")


def masked_of(rows: Tensor | Sequences, masking: MaskingConfig = DEFAULT) -> MaskedPositions:
    batch = unpack(rows) if isinstance(rows, Tensor) else rows
    return choose_masked(*batch.addressed, masking=masking, special=SPECIAL)


def masked_ids_of(batch: Sequences, masked: MaskedPositions, *, share: float) -> Tensor:
    """What the generator reads."""
    shares = {"mask_share": share, "random_share": 0.0}
    return apply_mask(batch.ids_BL, batch.keys_B, masked, **shares, mask_id=MASK, vocab=1)


def rows_of(ids: list[int], *, length: int, count: int = 1) -> Tensor:
    """Rows of one sequence under different keys."""
    rows = torch.zeros(count, length + 3, dtype=torch.int32)
    rows[:, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
    rows[:, length] = rows[:, length + 1] = len(ids)
    rows[:, length + 2] = torch.arange(count, dtype=torch.int32) * 7919 - 12345
    return rows


@pytest.mark.parametrize(
    ("length", "rate", "most", "used"), [(128, 0.15, 19, 19), (512, 0.15, 79, 77), (512, 0.25, 130, 128)]
)
@pytest.mark.parametrize("policy", ["without_replacement", "official"])
def test_full_rows_have_the_official_counts(length: int, rate: float, most: int, used: int, policy: str) -> None:
    assert max_masked(length, rate) == most
    chosen = masked_of(ragged_rows(8, length=length, full=True), MaskingConfig(rate=rate, policy=policy))
    assert chosen.positions_BM.shape == (8, most)
    assert chosen.used_BM.sum(1).tolist() == [used] * 8


def test_a_policy_without_a_draw_is_refused_and_no_kernel_takes_it_for_another() -> None:
    """A name that only the schema knows must not train with the positions of `official`."""
    masking = MaskingConfig(policy="spans")  # type: ignore[arg-type]
    rows = unpack(ragged_rows(2)).addressed
    for draw in (choose_masked, _BY_SHAPE["choose_masked", "triton"]):
        with pytest.raises(ConfigError, match=r"^masking.policy: 'spans' has no draw of its own \(write it in"):
            draw(*rows, masking=masking, special=SPECIAL)


def test_defect_the_number_of_masks_is_constant() -> None:
    """Masking each token by a coin of its own gives rows of 10 to 30 masks."""
    assert set(masked_of(ragged_rows(300, length=128, full=True)).used_BM.sum(1).tolist()) == {19}


@pytest.mark.parametrize("rate", [0.15, 0.25])
def test_shorter_rows_round_half_to_even_and_have_one_mask_at_least(rate: float) -> None:
    length = 128
    sizes = range(3, length + 1)
    rows = torch.cat([rows_of([CLS, *[9] * (size - 2), SEP], length=length) for size in sizes])
    used = masked_of(rows, MaskingConfig(rate=rate)).used_BM.sum(1).tolist()
    most = int((rate + 0.005) * length)
    # Python, too, rounds half to even; the product is taken in single precision, as the official code does.
    expected = [max(1, min(most, round(float(np.float32(size) * np.float32(rate))))) for size in sizes]
    assert used == [min(want, size - 2) for want, size in zip(expected, sizes, strict=True)]
    if rate == 0.15:
        by_size = dict(zip(sizes, used, strict=True))
        assert [by_size[size] for size in (3, 10, 30, 50, 70, 90)] == [1, 2, 4, 8, 10, 14]


@given(seed=st.integers(0, 10_000), policy=st.sampled_from(["without_replacement", "official"]))
def test_no_special_token_and_no_padding_is_chosen(seed: int, policy: str) -> None:
    rows = ragged_rows(16, seed=seed)
    # Special tokens in the middle of the sequence, too.
    rows[::2, 2] = MASK
    rows[1::3, 3] = SEP
    masked = masked_of(rows, MaskingConfig(policy=policy, rate=0.5))
    for row, positions, used in zip(rows.tolist(), masked.positions_BM.tolist(), masked.used_BM.tolist(), strict=True):
        picked = [p for p, u in zip(positions, used, strict=True) if u]
        assert picked, "every row has something to predict"
        assert all(p < row[24] and row[p] not in SPECIAL for p in picked)
        assert used == sorted(used, reverse=True), "those in use come first"
        assert all(p == 0 for p, u in zip(positions, used, strict=True) if not u)
        if policy == "without_replacement":
            assert len(set(picked)) == len(picked)


def test_defect_unknown_tokens_are_predicted_too() -> None:
    rows = rows_of([CLS, UNK, UNK, UNK, SEP], length=16, count=40)
    masked = masked_of(rows)
    assert masked.used_BM.sum(1).tolist() == [1] * 40
    assert set(masked.positions_BM[masked.used_BM].tolist()) == {1, 2, 3}


@pytest.mark.parametrize("policy", ["without_replacement", "official"])
def test_every_position_is_equally_likely(policy: str) -> None:
    rows = rows_of([CLS, *range(10, 24), SEP, *range(30, 38), SEP], length=32, count=4000)
    masked = masked_of(rows, MaskingConfig(policy=policy))
    counts = torch.bincount(masked.positions_BM[masked.used_BM], minlength=32)
    candidates = [*range(1, 15), *range(16, 24)]
    assert counts.sum() == counts[candidates].sum() == 4000 * 4
    statistic = chisquare(counts[candidates].numpy()).statistic
    # Without replacement the counts vary a little less than independent ones.
    assert statistic < 46, "p = 0.001 at 21 degrees of freedom"
    # Also their order carries nothing: the first may be anywhere, and so may each of the others.
    for m in range(4):
        assert chisquare(torch.bincount(masked.positions_BM[:, m], minlength=32)[candidates].numpy()).pvalue > 1e-4


@pytest.mark.parametrize("masking", [DEFAULT, OFFICIAL], ids=lambda masking: masking.policy)
def test_the_choice_is_what_plain_sorting_says(masking: MaskingConfig) -> None:
    """Candidates in the order of their random bits; the first ones, or draws from them with replacement."""
    rows = ragged_rows(30, length=64)
    masked = masked_of(rows, masking)
    for row, positions, used in zip(rows.tolist(), masked.positions_BM.tolist(), masked.used_BM.tolist(), strict=True):
        size, key = row[64], plain_fold(row[66], CHOOSE)
        bits = {p: lowbias32(key % 2**32 ^ lowbias32(p)) for p in range(size) if row[p] not in SPECIAL}
        order = sorted(bits, key=lambda p: (bits[p], p))
        wanted = max(1, min(9, round(float(np.float32(size) * np.float32(0.15)))))
        if masking.policy == "official":
            again = plain_fold(key, 1) % 2**32
            order = [order[lowbias32(again ^ lowbias32(m)) * len(order) >> 32] for m in range(wanted)]
        assert [p for p, u in zip(positions, used, strict=True) if u] == order[:wanted]


def test_official_rows_repeat_positions_as_often_as_the_released_code() -> None:
    rows = ragged_rows(3000, length=128, full=True)
    rows[:, 64] = SEP
    rows[:, 65:127] = 9
    rows[:, 1:64] = 9
    masked = masked_of(rows, OFFICIAL)
    counts = torch.zeros(3000, 128).scatter_add(1, masked.positions_BM, masked.used_BM.float())
    distinct = (counts > 0).sum(1).float()
    # 125 candidates, 19 draws: 125 (1 - (124 / 125) ** 19) = 17.69, standard deviation about 1.06.
    assert abs(float(distinct.mean()) - 17.69) < 4 * 1.06 / 3000**0.5 + 0.005
    repeated = float((counts > 1).sum() / (counts > 0).sum())
    assert abs(repeated - 0.071) < 0.004
    assert masked_of(rows).used_BM.sum() == 3000 * 19, "the default policy never repeats"


def test_rows_with_fewer_candidates_than_wanted() -> None:
    ids = [CLS, *[SEP] * 118, 9, 9, 9, *[SEP] * 6]
    assert len(ids) == 128
    masked = masked_of(rows_of(ids, length=128, count=5))
    assert masked.used_BM.sum(1).tolist() == [3] * 5
    assert masked.positions_BM[:, :3].sort(1).values.tolist() == [[119, 120, 121]] * 5
    official = masked_of(rows_of(ids, length=128, count=5), OFFICIAL)
    assert official.used_BM.sum(1).tolist() == [19] * 5
    assert set(official.positions_BM.flatten().tolist()) <= {119, 120, 121}


@pytest.mark.parametrize("masking", [DEFAULT, OFFICIAL], ids=lambda masking: masking.policy)
def test_a_row_without_candidates_masks_nothing(masking: MaskingConfig) -> None:
    masked = masked_of(rows_of([CLS, MASK, SEP], length=16), masking)
    assert not masked.used_BM.any() and not masked.positions_BM.any()


@pytest.mark.parametrize("length", [16, 256, 512])
def test_everything_may_be_masked(length: int) -> None:
    rows = rows_of([CLS, *[9] * (length - 2), SEP], length=length)
    masked = masked_of(rows, MaskingConfig(rate=1.0))
    assert sorted(masked.positions_BM[masked.used_BM].tolist()) == list(range(1, length - 1))


def test_other_keys_choose_other_positions() -> None:
    """The key changes with the epoch, so a sequence is masked anew each time."""
    rows = ragged_rows(50, length=64, full=True)
    rekeyed = rows.clone()
    rekeyed[:, -1] += 1
    here, there = masked_of(rows).positions_BM.sort(1).values, masked_of(rekeyed).positions_BM.sort(1).values
    same = (here == there).all(1)
    assert not same.any()
    assert torch.equal(masked_of(rows).positions_BM, masked_of(rows.clone()).positions_BM)


def test_the_choice_does_not_depend_on_the_other_rows() -> None:
    rows = ragged_rows(12)
    whole = masked_of(rows)
    for start in range(12):
        alone = masked_of(rows[start : start + 1])
        assert torch.equal(alone.positions_BM, whole.positions_BM[start : start + 1])
        assert torch.equal(alone.used_BM, whole.used_BM[start : start + 1])


@pytest.mark.parametrize("share", [0.85, 0.0, 1.0])
def test_defect_a_share_of_the_masked_positions_keeps_the_original(share: float) -> None:
    """Others put [MASK] at every masked position; the released code leaves the original at 15 % of them."""
    rows = ragged_rows(600, length=128, full=True)
    batch = unpack(rows)
    masked = masked_of(rows)
    masked_ids = masked_ids_of(batch, masked, share=share)
    hidden = masked_ids != batch.ids_BL
    assert (masked_ids[hidden] == MASK).all(), "no random tokens here"
    assert not (hidden.sum(1) > 19).any()
    chosen = torch.zeros_like(hidden).scatter(1, masked.positions_BM, True)
    assert not (hidden & ~chosen).any()
    assert binomtest(int(hidden.sum()), 600 * 19, share).pvalue > 1e-3


def test_a_position_drawn_twice_is_masked_if_either_draw_says_so() -> None:
    rows = rows_of([CLS, *[9] * 30, SEP], length=32, count=800)
    batch, masked = unpack(rows), masked_of(rows, MaskingConfig(policy="official", rate=0.5))
    masked_ids = masked_ids_of(batch, masked, share=0.5)
    times = torch.zeros(800, 32, dtype=torch.long).scatter_add(1, masked.positions_BM, masked.used_BM.long())
    for drawn in (1, 2, 3):
        hidden = (masked_ids == MASK)[times == drawn]
        assert binomtest(int(hidden.sum()), len(hidden), 1 - 0.5**drawn).pvalue > 1e-3


class AnyOrder(TorchDispatchMode):
    """Scatters in a random order, as a GPU may."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation is torch.ops.aten.scatter.src:
            source, dim, index, values = args
            order = torch.randperm(index.shape[dim], generator=self.generator)
            args = (source, dim, index.index_select(dim, order), values.index_select(dim, order))
        return operation(*args, **(kwargs or {}))


@given(st.integers(0, 2**32 - 1))
def test_of_several_writes_to_one_position_the_last_counts(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ids, positions = torch.arange(8).repeat(3, 1), torch.randint(0, 8, (3, 12), generator=generator)
    values, where = torch.arange(100, 136).view(3, 12), torch.rand(3, 12, generator=generator) < 0.6
    want = ids.clone()
    for row in range(3):
        for m in range(12):
            if where[row, m]:
                want[row, positions[row, m]] = values[row, m]
    with AnyOrder(generator):
        assert torch.equal(write_at(ids, positions, values, where), want)


def test_only_the_positions_where_it_holds_are_written() -> None:
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]], dtype=torch.int32)
    before = ids.clone()
    positions = torch.tensor([[0, 2, 0], [3, 1, 0]])
    values = torch.tensor([[90, 91, 92], [93, 94, 95]])
    where = torch.tensor([[False, True, False], [True, True, False]])
    result = write_at(ids, positions, values, where)
    assert result.tolist() == [[1, 2, 91, 4], [5, 94, 7, 93]]
    assert result.dtype == ids.dtype and torch.equal(ids, before)
    # A write at 0 and unused positions, which are 0, do not disturb each other, in either order.
    both = torch.tensor([[0, 0, 0], [0, 0, 0]])
    first = torch.tensor([[True, False, False], [False, False, True]])
    assert write_at(ids, both, values, first).tolist() == [[90, 2, 3, 4], [95, 6, 7, 8]]
    assert write_at(ids, both, values, torch.zeros_like(first)).tolist() == before.tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("masking", [DEFAULT, OFFICIAL], ids=lambda masking: masking.policy)
def test_a_gpu_chooses_the_same_positions(masking: MaskingConfig) -> None:
    rows = ragged_rows(64, length=128, vocab=VOCAB)
    here, there = masked_of(rows, masking), masked_of(rows.cuda(), masking)
    assert torch.equal(here.positions_BM, there.positions_BM.cpu())
    assert torch.equal(here.used_BM, there.used_BM.cpu())
