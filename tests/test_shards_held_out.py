"""Held-out text by tokens: neither noise of small corpora nor a fifth of one without blank lines, and no leak."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import corpora
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.cli.prepare import summary
from electra.errors import DataError
from electra.progress import counted
from electra.shards.build import prepare
from electra.shards.dataset import open_data
from electra.shards.held_out import LEAST_TOKENS, PIECE_TOKENS, HeldOut, choose_held_out, divide
from electra.shards.units import KEY, Unit

SENTENCE = 20


def unit_of(documents: list[list[int]], first_token: int, ids: list[int]) -> Unit:
    """Documents as lists of sentence lengths; every token of all units is another number."""
    lengths = np.array([length for document in documents for length in document], np.uint32)
    keys = np.zeros(len(documents), KEY)
    keys["id"] = ids
    counts = np.array([len(document) for document in documents], np.uint32)
    return Unit(keys, counts, lengths, np.arange(first_token, first_token + lengths.sum(), dtype=np.uint32))


def units_of(corpus: list[list[list[int]]]) -> list[Unit]:
    units, at = [], 0
    for number, documents in enumerate(corpus):
        ids = [corpora.pick(number, place) for place in range(len(documents))]
        units.append(unit_of(documents, at, ids))
        at += sum(map(sum, documents))
    return units


def outlines(units: list[Unit]) -> Iterator[tuple[Unit, np.ndarray]]:
    for unit in units:
        yield (
            Unit(unit.keys, unit.document_sentences, unit.sentence_tokens, unit.tokens[:0]),
            np.ones(len(unit.keys), np.bool_),
        )


def documents_of(units: list[Unit], chosen: HeldOut) -> tuple[list[list[int]], list[list[int]]]:
    """Tokens of each training and of each held-out document."""
    sides: tuple[list[list[int]], list[list[int]]] = ([], [])
    for unit in units:
        divided, held, _ = divide(unit, chosen)
        if not len(unit.keys):
            assert not len(held)
            continue
        assert divided.sentence_tokens.sum() == len(unit.tokens) and divided.sentence_tokens.min() > 0
        assert divided.document_sentences.sum() == len(divided.sentence_tokens) and divided.document_sentences.min() > 0
        ends = np.cumsum(divided.sentence_tokens)[np.cumsum(divided.document_sentences) - 1]
        for side, tokens in zip(held, np.split(unit.tokens, ends[:-1]), strict=True):
            sides[bool(side)].append(tokens.tolist())
    return sides


def tokens_in(documents: list[list[int]]) -> int:
    return sum(map(len, documents))


def document(tokens: int) -> list[int]:
    return [SENTENCE] * (tokens // SENTENCE) if tokens > 0 else [-tokens]


@pytest.mark.parametrize(
    ("sizes", "least", "most"),
    [
        ([250_000] * 5, LEAST_TOKENS, LEAST_TOKENS + 2 * 1024),  # 5 MB without blank lines
        ([500] * 180, 9_000, 9_500),  # a small corpus: a tenth
        ([500] * 8_000, 10_000, 40_000),  # 0.5 %, within a factor of two
        ([100_000] * 40, 10_000, 40_000),
        ([90_000, *[100] * 100], 10_000, 11_250),
        ([5_000], 500, 1_100),
        ([60, 60], 60, 60),
        ([-250_000] * 5, LEAST_TOKENS, LEAST_TOKENS + 2 * 1024),  # one sentence each: no full stop at all
    ],
)
def test_a_share_of_the_tokens_with_a_floor_and_a_cap(sizes: list[int], least: int, most: int) -> None:
    units = units_of([[document(size) for size in sizes[at : at + 50]] for at in range(0, len(sizes), 50)])
    train, held = documents_of(units, choose_held_out(lambda: outlines(units), share=0.005))
    assert least <= tokens_in(held) <= most
    assert tokens_in(train) + tokens_in(held) == sum(map(abs, sizes))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.lists(st.integers(1, 900), min_size=1, max_size=40), min_size=0, max_size=6), min_size=1, max_size=5
    ),
    st.sampled_from([0.005, 0.1, 0.5]),
)
def test_every_token_is_on_one_side(corpus: list[list[list[int]]], share: float) -> None:
    units = units_of(corpus)
    total = sum(sum(map(sum, documents)) for documents in corpus)
    try:
        chosen = choose_held_out(lambda: outlines(units), share=share)
    except DataError as error:
        assert "cannot be split" in str(error)
        return
    train, held = documents_of(units, chosen)
    assert train and held
    assert sorted(itertools.chain(*train, *held)) == list(range(total))
    lengths = [length for some in corpus for one in some for length in one]
    edges = {0}
    for start, length in zip(itertools.accumulate(lengths, initial=0), lengths, strict=False):
        edges |= set(range(start, start + length)) if length > PIECE_TOKENS else {start}
    edges.add(total)
    for tokens in (*train, *held):
        assert tokens == list(range(tokens[0], tokens[0] + len(tokens))), "contiguous"
        assert tokens[0] in edges and tokens[-1] + 1 in edges, "only a sentence longer than a piece is cut"
    sizes = [sum(one) for some in corpus for one in some]
    found = {tokens[0]: len(tokens) for tokens in (*train, *held)}
    for start, size in zip(itertools.accumulate(sizes, initial=0), sizes, strict=False):
        if size < 2 * PIECE_TOKENS:
            assert found[start] == size, "a short document is not split"


def test_the_choice_depends_on_the_text_alone() -> None:
    units = units_of([[document(3_000), document(200)] for _ in range(80)])
    _, held = documents_of(units, choose_held_out(lambda: outlines(units), share=0.02))
    mixed = units[::-1]
    _, again = documents_of(mixed, choose_held_out(lambda: outlines(mixed), share=0.02))
    assert sorted(held) == sorted(again) and any(len(tokens) > 1_000 for tokens in held)


def test_dropped_documents_do_not_count() -> None:
    units = units_of([[document(1_000)] * 40 for _ in range(10)])
    keeps = [np.arange(40) % 10 == 0 for _ in units]
    chosen = choose_held_out(
        lambda: ((unit, keep) for (unit, _), keep in zip(outlines(units), keeps, strict=True)), share=0.005
    )
    held = 0
    for unit, keep in zip(units, keeps, strict=True):
        divided, side, before = divide(unit, chosen)
        sizes = np.add.reduceat(
            divided.sentence_tokens, np.cumsum(divided.document_sentences) - divided.document_sentences
        )
        held += int(sizes[side & keep[before]].sum())
    assert 4_000 <= held <= 5_000  # a tenth of the 40,000 tokens that stay


def test_names_of_split_documents_differ() -> None:
    (unit,) = units = units_of([[document(300_000)]])
    divided, held, before = divide(unit, choose_held_out(lambda: outlines(units), share=0.005))
    assert (
        len(held) > 10
        and set(before) == {0}
        and list(held) == [bool(at % 2) == bool(held[1]) for at in range(len(held))]
    )
    assert len(set(divided.keys["id"].tolist())) == len(held) and divided.keys["id"][0] == unit.keys["id"][0]


# --- for real


def test_defect_a_file_without_blank_lines_is_not_a_third_held_out(tmp_path: Path) -> None:
    lines = [line for number in range(5_000) for line in corpora.document("one", number)]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    vocab = corpora.write_vocab(tmp_path / "v.txt")
    results = [
        prepare([str(tmp_path / "a.txt")], out=tmp_path / name, vocab=vocab, workers=w)
        for name, w in (("one", 1), ("two", 2))
    ]
    data = open_data(tmp_path / "one", verify=True)
    total = data.train.n_tokens + data.held_out.n_tokens
    assert LEAST_TOKENS <= data.held_out.n_tokens <= 1.2 * LEAST_TOKENS < 0.1 * total
    assert corpora.digests(tmp_path / "one") == corpora.digests(tmp_path / "two")
    said = summary(results[0])
    counters = data.manifest["counters"]
    assert counters["documents_split"] >= 1
    assert f"{data.held_out.n_tokens:,} tokens ({data.held_out.n_tokens / total:.1%})" in said
    assert f"{counted(counters['documents_split'], 'long document')} split between both" in said


def test_defect_a_small_corpus_keeps_more_than_noise(tmp_path: Path) -> None:
    path = corpora.write_corpus(tmp_path / "a.txt", 400)
    prepare([str(path)], out=tmp_path / "data", vocab=corpora.write_vocab(tmp_path / "v.txt"))
    data = open_data(tmp_path / "data")
    share = data.held_out.n_tokens / (data.train.n_tokens + data.held_out.n_tokens)
    assert 0.1 <= share < 0.12 and data.held_out.n_documents > 20
    assert data.manifest["counters"]["documents_split"] == 0, "no document is long"
