"""Addressed randomness: one hash everywhere, pinned, uniform, and independent between neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from tiny import lowbias32, plain_fold, signed

from electra import rng
from electra.batches.order import permutation, sample_keys

WORD = st.integers(-(2**31), 2**31 - 1)
LEAST_P = 1e-4  # of a fixed, repeatable draw: not a chance of failing


def words(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, np.int32)


@given(st.lists(WORD, min_size=1, max_size=20))
def test_numpy_and_torch_mix_as_the_published_hash(numbers: list[int]) -> None:
    expected = [signed(lowbias32(n % 2**32)) for n in numbers]
    array, tensor = words(numbers), torch.tensor(numbers, dtype=torch.int32)
    assert rng.mix(array).tolist() == expected
    assert rng.mix(tensor).tolist() == expected
    assert array.tolist() == numbers and tensor.tolist() == numbers, "mix must leave its input alone"


@given(st.lists(WORD, min_size=1, max_size=8), WORD)
def test_fold_is_the_same_for_arrays_tensors_and_numbers(keys: list[int], data: int) -> None:
    expected = [plain_fold(key, data) for key in keys]
    array, tensor = words(keys), torch.tensor(keys, dtype=torch.int32)
    assert rng.fold(array, data).tolist() == expected
    assert rng.fold(array, words([data])).tolist() == expected
    assert rng.fold(tensor, data).tolist() == expected
    assert rng.fold(tensor, torch.tensor([data], dtype=torch.int32)).tolist() == expected
    assert rng.fold(keys[0], torch.tensor([data], dtype=torch.int32)).tolist() == expected[:1]
    assert rng.fold(keys[0], data) == expected[0], "two plain numbers are words too"


@given(WORD, st.integers(0, 2**20))
def test_bits_are_the_same_everywhere(key: int, index: int) -> None:
    expected = signed(lowbias32(key % 2**32 ^ lowbias32(index)))
    assert rng.bits(words([key]), rng.mix(words([index]))).tolist() == [expected]
    tensor = torch.tensor([key], dtype=torch.int32)
    assert rng.bits(tensor, rng.mix(torch.tensor([index], dtype=torch.int32))).tolist() == [expected]


def test_words_never_change() -> None:
    """Another hash would make every run that was started before it resume with other data."""
    assert rng.derive(0, "order", 0) == 1925920373
    assert rng.derive(7, "sample", 3) == 1954576001
    assert rng.mix(words([0, 1, 2, -1])).tolist() == [0, 1753845952, -787275391, 1734902346]
    assert rng.fold(words([123]), 5).tolist() == [-696865994]
    assert rng.bits(words([123]), rng.mix(np.arange(3, dtype=np.int32))).tolist() == [
        -957970056,
        1385847667,
        -1945509283,
    ]
    assert permutation(8, seed=0, epoch=0).tolist() == [2, 6, 4, 5, 7, 1, 3, 0]
    assert sample_keys(np.arange(3), seed=0, epoch=1).tolist() == [1866177199, 2048229445, 563764741]
    draws = rng.uniform(torch.tensor([0, 123456789, -987654321], dtype=torch.int32)).tolist()
    assert draws == [2**-24, (123456789 // 2**9 + 0.5) / 2**23, ((2**32 - 987654321) // 2**9 + 0.5) / 2**23]


def test_an_address_is_not_its_neighbours() -> None:
    addresses = [(0, "order", 0), (1, "order", 0), (0, "order", 1), (0, "layout", 0), ("0", "order", 0), (0, "order")]
    assert len({rng.derive(*address) for address in addresses}) == len(addresses)
    assert all(-(2**31) <= rng.derive(seed, "x") < 2**31 for seed in range(50))


def test_uniform_numbers_never_reach_0_or_1() -> None:
    edges = torch.tensor([0, 1, 255, 511, 512, -1, -256, -512, 2**31 - 1, -(2**31)], dtype=torch.int32)
    draws = rng.uniform(edges)
    assert draws.dtype == torch.float32
    assert float(draws.min()) > 0.0 and float(draws.max()) < 1.0
    assert draws[0] == draws.min() and draws[5] == draws.max(), "words count as unsigned"


def unit(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint32) / 2.0**32


def p_uniform(numbers: np.ndarray, bins: int = 256) -> float:
    return float(chisquare(np.histogram(numbers, bins=bins, range=(0, 1))[0]).pvalue)


def p_independent(a: np.ndarray, b: np.ndarray, bins: int = 16) -> float:
    return float(chisquare(np.histogram2d(a, b, bins=bins, range=((0, 1), (0, 1)))[0].ravel()).pvalue)


INDICES = rng.mix(np.arange(1 << 16, dtype=np.int32))


@pytest.mark.parametrize("key", [0, 1, -1, 12345, -(2**31)])
def test_bits_are_uniform_and_neighbouring_indices_independent(key: int) -> None:
    draws = unit(rng.bits(words([key]), INDICES))
    assert p_uniform(draws) > LEAST_P
    assert p_independent(draws[:-1], draws[1:]) > LEAST_P
    assert p_independent(draws[: 1 << 15], draws[1 << 15 :]) > LEAST_P
    low = (rng.bits(words([key]), INDICES) & 0xFFFF) / 2**16
    assert p_uniform(low) > LEAST_P and p_independent(low, draws) > LEAST_P, "dropout uses both halves of a word"


@pytest.mark.parametrize("other", [1, 2, 3, 256, 65536, -(2**31)])
def test_neighbouring_keys_are_independent(other: int) -> None:
    key = rng.derive(0, "sample", 0)
    here, there = (rng.bits(words([k]), INDICES) for k in (key, key ^ other))
    assert p_independent(unit(here), unit(there)) > LEAST_P
    differing = np.bitwise_count((here ^ there).view(np.uint32))
    assert 15.9 < differing.mean() < 16.1


def test_keys_of_neighbouring_samples_sites_and_epochs_are_independent() -> None:
    samples = np.arange(1 << 16)
    keys = sample_keys(samples, seed=0, epoch=0)
    assert len(np.unique(keys)) == len(keys), "two samples of an epoch never share a key"
    later = sample_keys(samples, seed=0, epoch=1)
    assert p_uniform(unit(keys)) > LEAST_P
    assert p_independent(unit(keys), unit(later)) > LEAST_P
    for near, far in ((101, 102), (102, 103), (0, 1), (1_000_001, 2_000_002)):
        assert p_independent(unit(rng.fold(keys, near)), unit(rng.fold(keys, far))) > LEAST_P
    first = unit(rng.bits(keys, 0))
    assert p_uniform(first) > LEAST_P and p_independent(first[:-1], first[1:]) > LEAST_P


@given(st.integers(0, 3000), st.integers(0, 2**63 - 1), st.integers(0, 100))
def test_a_permutation_holds_every_sample_once(count: int, seed: int, epoch: int) -> None:
    order = permutation(count, seed=seed, epoch=epoch)
    assert sorted(order.tolist()) == list(range(count))
    assert permutation(count, seed=seed, epoch=epoch).tolist() == order.tolist()


def test_permutations_are_shuffled_and_differ() -> None:
    count = 4096
    orders = [permutation(count, seed=seed, epoch=epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    places = np.arange(count) / count
    for order in orders:
        assert p_independent(places, order / count, bins=8) > LEAST_P
        # A random order leaves about one sample at its place.
        assert (order == np.arange(count)).sum() < 8
    assert p_independent(orders[0] / count, orders[1] / count, bins=8) > LEAST_P
    assert p_independent(orders[0] / count, orders[2] / count, bins=8) > LEAST_P


def test_every_place_is_equally_likely_over_epochs() -> None:
    table = np.zeros((6, 6))
    for epoch in range(1200):
        table[np.arange(6), permutation(6, seed=0, epoch=epoch)] += 1
    assert chisquare(table.ravel()).pvalue > LEAST_P


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_words() -> None:
    keys = torch.arange(-500, 500, dtype=torch.int32) * 4294967
    here = rng.bits(rng.fold(keys, 7)[:, None], rng.mix(torch.arange(512, dtype=torch.int32)))
    there = rng.bits(rng.fold(keys.cuda(), 7)[:, None], rng.mix(torch.arange(512, dtype=torch.int32, device="cuda")))
    assert torch.equal(here, there.cpu())
    assert torch.equal(rng.uniform(here), rng.uniform(there).cpu())
