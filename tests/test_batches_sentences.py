"""The layout `sentences`: nothing lost, cut anew in every epoch, rows that are what they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binomtest
from tiny import CLS, PAD, SEP, SPECIALS, Documents, numbered

from electra.batches.layout import Rows, padding_share
from electra.batches.paper_official import PaperOfficialLayout
from electra.batches.sentence_rows import PART_ROWS, SentenceLayout
from electra.bench.made_corpora import CORPORA, Lengths
from electra.bench.row_table import same_rows, whole_documents
from electra.config.schema import DataConfig


def covered(layout: SentenceLayout, total: int) -> NDArray[np.int64]:
    """How many rows of an epoch each token stands in."""
    change = np.zeros(total + 1, np.int64)
    np.add.at(change, layout.runs[:, 0], 1)
    np.add.at(change, layout.runs[:, 1], -1)
    return np.cumsum(change)[:-1]


@pytest.mark.parametrize("length", [64, 128, 512])
@pytest.mark.parametrize("name", CORPORA)
def test_nothing_is_lost_rows_are_full_and_the_next_epoch_is_another(name: str, length: int) -> None:
    made = CORPORA[name]
    split, data = Lengths(made.documents()), DataConfig(length=length)
    first, second = (SentenceLayout(split, data, SPECIALS, seed=3, epoch=epoch) for epoch in range(2))
    for layout in (first, second):
        times = covered(layout, int(split.sentence_starts[-1]))
        assert times.min() == 1 and layout.kept_share == 1
        assert times.mean() < 1.25, "a row takes few tokens of the row before it"
    before = PaperOfficialLayout(Lengths(made.as_formerly_cut()), data, SPECIALS, seed=3, epoch=0)
    assert padding_share(first, length) <= padding_share(before, length) + 0.02
    again = same_rows(first.runs, second.runs)[~whole_documents(second, split)]
    assert made.one_row or again.mean() < 0.1


SENTENCES = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 90)), max_size=25)


@given(
    lengths=st.lists(SENTENCES, max_size=6),
    length=st.integers(8, 40),
    shares=st.sampled_from([(0.1, 0.05, 0), (0.5, 0.5, 5), (0.0, 0.0, 0), (1.0, 0.0, 0), (0.0, 1.0, 5), (0.3, 1.0, 0)]),
    seed=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 5),
)
@example(lengths=[], length=16, shares=(0.1, 0.05, 0), seed=0, epoch=0)
@example(lengths=[[], [3, 3], [], [0, 0], [1]], length=16, shares=(0.1, 0.05, 0), seed=0, epoch=0)
@example(lengths=[[1] * 300, [2, 1] * 60], length=16, shares=(0.5, 1.0, 5), seed=0, epoch=0)
@example(lengths=[[14], [13], [15], [7, 7], [6, 8]], length=16, shares=(0.0, 0.0, 0), seed=0, epoch=0)
@example(lengths=[[9000], [1, 9000], [9000, 1]], length=8, shares=(0.1, 0.05, 0), seed=0, epoch=0)
def test_rows_are_runs_of_one_document(
    lengths: list[list[int]], length: int, shares: tuple[float, float, int], seed: int, epoch: int
) -> None:
    documents = numbered(lengths)
    split = Documents(documents)
    data = DataConfig(length=length, single_segment=shares[0], short=shares[1], short_length=shares[2])
    layout = SentenceLayout(split, data, SPECIALS, seed=seed, epoch=epoch)
    rows = layout.rows(np.arange(layout.count))
    total = sum(map(sum, lengths))
    assert rows.ids.shape == (layout.count, length) and rows.lengths.tolist() == layout.lengths.tolist()
    document_of = {token: n for n, document in enumerate(documents) for sentence in document for token in sentence}
    seen: set[int] = set()
    for ids, size, first, run in zip(
        rows.ids.tolist(), rows.lengths, rows.a_lengths, layout.runs.tolist(), strict=True
    ):
        a, b = ids[1 : first - 1], ids[first : size - 1]
        assert ids == [CLS, *a, SEP, *([*b, SEP] if b else []), *[PAD] * (length - size)]
        assert a and (b or first == size), "segment A is never empty, and without B nothing stands for it"
        assert a + b == list(range(run[0] + 10, run[1] + 10)), "one run of the text, A before B"
        assert len({document_of[token] for token in a + b}) == 1
        seen.update(a + b)
    assert seen == set(range(10, 10 + total)), "every token stands in a row"
    assert layout.kept_share == (1 if total else 0)
    assert rows.ids.dtype == rows.lengths.dtype == rows.a_lengths.dtype == np.int32


def test_any_rows_in_any_order_are_the_same_bits() -> None:
    split = Documents(numbered([[7, 3, 9, 1, 12] * 6, [4] * 30, [2], [400, 40]]))
    layout = SentenceLayout(split, DataConfig(length=16), SPECIALS, seed=1, epoch=0)
    everything = layout.rows(np.arange(layout.count))
    some = np.array([5, 0, 5, layout.count - 1])
    rows = layout.rows(some)
    for part, whole in zip(fields(rows), fields(everything), strict=True):
        assert part.tolist() == whole[some].tolist()
    assert layout.rows(np.arange(0)).ids.shape == (0, 16)
    again = SentenceLayout(split, DataConfig(length=16), SPECIALS, seed=1, epoch=0)
    assert again.rows(some).ids.tolist() == rows.ids.tolist()


def fields(rows: Rows) -> tuple[NDArray[np.int32], ...]:
    return rows.ids, rows.lengths, rows.a_lengths


def test_a_documents_rows_do_not_depend_on_the_other_documents() -> None:
    documents = numbered([[5, 9, 2, 14, 3] * 8, [3000] * 3, [7, 7, 1] * 20, [30, 4, 4, 4] * 9])
    data = DataConfig(length=24, short=0.3)
    together = SentenceLayout(Documents(documents), data, SPECIALS, seed=0, epoch=0)
    alone = []
    for number, document in enumerate(documents):
        layout = SentenceLayout(Documents([document], ids=[number]), data, SPECIALS, seed=0, epoch=0)
        alone += layout.rows(np.arange(layout.count)).ids.tolist()
    assert together.rows(np.arange(together.count)).ids.tolist() == alone


@pytest.mark.parametrize("kind", ["ordinary English", "code", "one huge line"])
def test_seeds_and_epochs_cut_elsewhere(kind: str) -> None:
    split = Lengths(CORPORA[kind].documents())
    found = [
        set(map(tuple, SentenceLayout(split, DataConfig(), SPECIALS, seed=seed, epoch=epoch).runs.tolist()))
        for seed, epoch in ((0, 0), (1, 0), (0, 1), (0, 2))
    ]
    for number, one in enumerate(found):
        for other in found[:number]:
            assert len(one & other) < 0.1 * len(one)


def test_a_short_document_is_one_row_divided_at_a_sentence() -> None:
    """10, 8 and 9 tokens; the middle is at 13: the sentence starts before and after it are at 10 and at 18."""
    split = Documents(numbered([[10, 8, 9]]))
    data = DataConfig(length=32, single_segment=0.0, short=0.0)
    found = set()
    for seed in range(20):
        row = SentenceLayout(split, data, SPECIALS, seed=seed, epoch=0).rows(np.arange(1))
        assert row.lengths.tolist() == [30] and row.ids[0, -2:].tolist() == [PAD, PAD]
        found.add(int(row.a_lengths[0]) - 2)
    assert found == {10, 18}


def test_a_document_that_just_fits_has_one_segment() -> None:
    split = Documents(numbered([[15, 15], [15, 14]]))
    data = DataConfig(length=32, single_segment=0.0, short=0.0)
    rows = SentenceLayout(split, data, SPECIALS, seed=0, epoch=0).rows(np.arange(2))
    assert rows.lengths.tolist() == [32, 32] and rows.a_lengths.tolist() == [32, 17]


def test_a_sentence_that_fits_is_not_divided_and_a_longer_one_is() -> None:
    split = Documents(numbered([[20], [4000]]))
    data = DataConfig(length=32, single_segment=0.0, short=0.0)
    layout = SentenceLayout(split, data, SPECIALS, seed=0, epoch=0)
    rows = layout.rows(np.arange(layout.count))
    assert rows.a_lengths[0] == rows.lengths[0] == 22
    assert (rows.a_lengths < rows.lengths)[1:].all(), "segment B is learned from text without sentence ends too"


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_a_share_of_the_sequences_has_a_single_segment(share: float) -> None:
    split = Lengths(CORPORA["ordinary English"].documents())
    layout = SentenceLayout(split, DataConfig(single_segment=share, short=0.0), SPECIALS, seed=0, epoch=0)
    full = layout.rows(np.flatnonzero(layout.lengths == 128))
    single = int((full.a_lengths == full.lengths).sum())
    assert binomtest(single, len(full.lengths), share).pvalue > 1e-3


@pytest.mark.parametrize("longest", [5, 32])
def test_short_rows_are_whole_sentences(longest: int) -> None:
    split = Lengths(CORPORA["ordinary English"].documents())
    starts = split.sentence_starts
    data = DataConfig(short=0.2, short_length=longest)
    layout = SentenceLayout(split, data, SPECIALS, seed=0, epoch=0)
    runs, ends = layout.runs, starts[split.document_starts[1:]]
    # A document's first rows are shortened and its last ones end with it: neither counts here.
    begins = np.isin(runs[:, 0], starts[split.document_starts[:-1]])
    short = (layout.lengths < 128 - 12) & ~np.isin(runs[:, 1], ends) & ~begins
    assert 0.1 < short.mean() < 0.2
    assert np.isin(runs[short], starts).all()
    sentences = np.diff(np.searchsorted(starts, runs[short]), axis=1)[:, 0]
    last = starts[np.searchsorted(starts, runs[short, 1]) - 1] - runs[short, 0]
    assert (last < longest).all(), "the fewest sentences that reach the length"
    assert (sentences == 1).mean() > (0.9 if longest == 5 else 0.5)
    alone = layout.rows(np.flatnonzero(short)[sentences == 1])
    assert (alone.a_lengths == alone.lengths).all(), "a single sentence is one segment"


def test_most_rows_of_ordinary_text_begin_with_a_sentence_or_nearly_so() -> None:
    split = Lengths(CORPORA["ordinary English"].documents())
    layout = SentenceLayout(split, DataConfig(length=128), SPECIALS, seed=0, epoch=0)
    assert np.isin(layout.runs[:, 0], split.sentence_starts).mean() > 0.4, "one in 25 would by chance"


def test_a_document_of_many_parts_has_no_seam() -> None:
    tokens = 3 * PART_ROWS * 64
    split = Lengths([[tokens], [20] * (tokens // 20)])
    layout = SentenceLayout(split, DataConfig(length=64, short=0.0), SPECIALS, seed=0, epoch=0)
    times = covered(layout, int(split.sentence_starts[-1]))
    assert times.min() == 1 and (layout.lengths < 63).sum() <= 4, "padding at a document's ends only"
