"""Loops in C++ for CPUs: the plain operations' numbers to the last bit, and done without where there is no compiler."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from electra import rng
from electra.kernels.host import library
from electra.kernels.host.words import fold_words
from electra.model.dropout import dropout

KEYS = (-(2**31), 2**31 - 1, 0, -1, 123456789)
needs_compiler = pytest.mark.skipif(not library.usable(torch.empty(1)), reason="needs g++ on Linux")


@pytest.fixture
def afresh() -> Iterator[None]:
    """What was found out about compilers is forgotten before and after."""
    library._library.cache_clear()
    yield
    library._library.cache_clear()


def there_and_back(x: Tensor, rate: float, keys_B: Tensor, incoming: Tensor) -> tuple[Tensor, Tensor]:
    source = x.detach().requires_grad_()
    y = dropout(source, rate, keys_B)
    assert ("OnePass" in type(y.grad_fn).__name__) == library.usable(x)
    return y.detach(), torch.autograd.grad(y, source, incoming)[0]


@needs_compiler
@given(numbers=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=40), place=st.integers(0, 5_000_000))
def test_words_mixed_in_one_pass_are_the_plain_ones(numbers: list[int], place: int) -> None:
    words = torch.tensor(numbers, dtype=torch.int32).repeat(2)[::2]  # not side by side
    plain = words.numpy().copy()
    assert rng.fold_on_cpu is fold_words and fold_words(words, 0, 0) is not None
    assert rng.mix(words).tolist() == rng.mix(plain).tolist()
    assert rng.fold(words, place).tolist() == rng.fold(plain, place).tolist()
    assert words.tolist() == plain.tolist() and fold_words(words.long(), 0, 0) is None


@needs_compiler
@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=0, max_size=2),
    width=st.sampled_from([1, 2, 3, 16, 33, 128, 255, 256, 257, 600]),
    texts=st.integers(1, 5),
    rate=st.sampled_from([0.1, 0.5, 0.003, 0.9, 0.999999]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_dropout_in_one_pass_is_the_plain_one(
    shape: list[int], width: int, texts: int, rate: float, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(width)
    x, incoming = (torch.randn(texts, *shape, width, generator=generator).to(dtype) for _ in range(2))
    keys = torch.tensor(KEYS[:texts], dtype=torch.int32)
    got = there_and_back(x, rate, keys, incoming)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "usable", lambda x: False)
        want = there_and_back(x, rate, keys, incoming)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one.view(bits), other.view(bits))


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_kept_of_odd_numbers(dtype: torch.dtype) -> None:
    """What is not finite comes out as from the plain product, and arrays may lie in memory as they like."""
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan, 3.0e38, 1e-40, -0.0], dtype=dtype).repeat(1, 64)
    key = torch.tensor([5], dtype=torch.int32)
    got = dropout(odd, 0.5, key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "usable", lambda x: False)
        torch.testing.assert_close(got, dropout(odd, 0.5, key), rtol=0, atol=0, equal_nan=True)
    x = torch.randn(6, 10, 4, dtype=torch.float32).to(dtype).transpose(0, 2)
    keys = torch.arange(8, dtype=torch.int32)[::2]
    assert torch.equal(dropout(x, 0.1, keys), dropout(x.contiguous(), 0.1, keys.contiguous()))


@pytest.mark.usefixtures("afresh")
def test_without_a_compiler_dropout_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    x = torch.ones(2, 8, requires_grad=True)
    assert not library.usable(x)
    assert "OnePass" not in type(dropout(x, 0.5, torch.arange(2, dtype=torch.int32)).grad_fn).__name__


@needs_compiler
@pytest.mark.usefixtures("afresh")
def test_what_was_compiled_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library.usable(torch.empty(1))
    (made,) = (tmp_path / "electra").iterdir()
    before = made.stat().st_mtime_ns
    library._library.cache_clear()
    assert library.usable(torch.empty(1)) and made.stat().st_mtime_ns == before
    monkeypatch.setattr(library, "_processor", lambda: "another")
    library._library.cache_clear()
    assert library.usable(torch.empty(1)) and len(list((tmp_path / "electra").iterdir())) == 2


@needs_compiler
@pytest.mark.usefixtures("afresh")
def test_a_folder_that_cannot_be_written_to_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "electra").write_text("a file", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not library.usable(torch.empty(1))
