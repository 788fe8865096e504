"""`inspect_corpus`: what a text holds and what `prepare` would make of it, without writing data."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from electra.config.schema import DataConfig
from electra.corpus.scripts import count_characters, script_shares
from electra.inspection import measures
from electra.inspection.cuts import Cuts, cut, lines_to_show
from electra.inspection.facts import Inspection, Vocabulary
from electra.inspection.trial import Trial, spread, trial
from electra.shards.format import HELD_OUT, TRAIN
from electra.shards.options import PrepareOptions
from electra.shards.trained_tokenizer import NAMES

LENGTHS = (64, 128, 512)
"""Sequence lengths of the presets; what to know of the rows is said for the default one."""
MOST_LINES = 2_000
"""Lines that are cut one by one, from all over the text."""
MOST_GUESSED = 500
"""Documents whose language is guessed."""
SHOWN_LINES = 5
LARGE_SCRIPT = 0.05
"""Share of the lines from which on a script is sure to be among those shown."""


def inspect_corpus(
    names: Sequence[str],
    *,
    options: PrepareOptions | None = None,
    vocab: Path | None = None,
    held_out: Sequence[str] = (),
) -> Inspection:
    """Measure the sources, or of large ones a part, as `prepare` with these options would treat them."""
    started = time.monotonic()
    options = options or PrepareOptions()
    options.check()
    with trial(names, options=options, vocab=vocab, held_out=held_out) as tried:
        return _measure(tuple(names), tried, given=vocab is not None, started=started)


def _measure(names: tuple[str, ...], tried: Trial, *, given: bool, started: float) -> Inspection:
    data, manifest = tried.data, tried.data.manifest
    tokenizer = data.tokenizer()
    lines = [line for document in tried.documents for line in document]
    scripts = script_shares(count_characters(lines))
    languages, unsure = measures.language_shares(spread(tried.documents, MOST_GUESSED))
    cuts, some = Cuts(tokenizer), spread(lines, MOST_LINES)
    for line in some:
        cuts.add(line)
    pieces = cuts.pieces()
    counts = data.train.counts() + data.held_out.counts()
    vocabulary = Vocabulary(
        given=given,
        kind=NAMES[tokenizer.kind],
        entries=data.vocab_size,
        occurring=int((counts > 0).sum()),
        whole_words=cuts.total("whole") / cuts.total("words") if pieces and pieces[0].spaced else None,
        unknown=cuts.total("unknown") / max(1, cuts.total("chars")),
    )
    splits = (data.train, data.held_out)
    rows = [measures.rows_at(data.train, DataConfig(length=length)) for length in LENGTHS]
    large = [one.script for one in pieces if one.lines >= LARGE_SCRIPT * cuts.total("lines")]
    shown = lines_to_show(some, large, count=SHOWN_LINES)
    return Inspection(
        names=names,
        extent=tried.extent,
        scripts=scripts,
        languages=languages,
        unsure=unsure,
        too_short=tried.tally.short + manifest["counters"]["dropped_short"],
        repeated=manifest["counters"]["dropped_duplicate"],
        training={name: manifest["splits"][TRAIN][name] for name in ("documents", "sentences", "tokens")},
        held_out={name: manifest["splits"][HELD_OUT][name] for name in ("documents", "sentences", "tokens")},
        document_lengths=measures.lengths(measures.document_sizes(splits)),
        sentence_lengths=measures.lengths(measures.sentence_sizes(splits)),
        vocabulary=vocabulary,
        pieces=pieces,
        lines=tuple(cut(line, tokenizer) for line in shown),
        rows=tuple(row for row, _ in rows),
        warnings=tuple(dict(zip(LENGTHS, rows, strict=True))[DataConfig().length][1]),
        seconds=time.monotonic() - started,
    )
