"""Rows into token ids and targets: single texts, pairs, and tagged words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from electra.errors import ConfigError, DataError, suggest
from electra.progress import progress, say
from electra.tasks.rows import Example, Features, Kind, Sentence
from electra.tasks.tables import label_names
from electra.tokenizer.codec import Tokenizer
from electra.tokenizer.many_texts import encode_many

NO_TAG = -1
"""Target of a token that is not the first piece of a word, or whose word another window predicts."""

_BATCH_ROWS = 4096  # the tokenizer keeps words and offsets of a whole batch in memory
_BAR_ROWS = 50_000


@dataclass(frozen=True, kw_only=True, slots=True)
class WordWindow:
    """Which words of which sentence one sequence predicts; the windows of a sentence predict each word once."""

    sentence: int
    """Number of the sentence in the list of sentences."""
    first: int
    """Number of the first word in the sentence."""
    positions: tuple[int, ...]
    """Token of the first piece of word `first`, of the next word, and so on."""


def encode_sequences(
    examples: Sequence[Example],
    *,
    tokenizer: Tokenizer,
    task_kind: Kind,
    labels: Sequence[str] = (),
    offset: float = 0.0,
    scale: float = 1.0,
    length: int,
    where: object = "data",
) -> Features:
    """`[CLS] text [SEP]` or `[CLS] text [SEP] pair [SEP]` of each example, at most `length` tokens long.

    What is too long loses tokens at the end, pairs from the longer of the two. `where` names the rows in an error.
    Targets are None where no example has a label.
    """
    if length < 5:
        raise ConfigError("length", f"{length} tokens are too few for two texts", fix="at least 5")
    ids: list[list[int]] = []
    a_lengths: list[int] = []
    cls, sep = [tokenizer.cls_id], [tokenizer.sep_id]
    cut = 0
    for text, pair in _encoded(examples, tokenizer=tokenizer, where=where):
        cut += len(text) + (0 if pair is None else len(pair) + 1) > length - 2
        if pair is None:
            ids.append(cls + text[: length - 2] + sep)
            a_lengths.append(len(ids[-1]))
        else:
            keep, keep_pair = pair_lengths(len(text), len(pair), limit=length - 3)
            ids.append(cls + text[:keep] + sep + pair[:keep_pair] + sep)
            a_lengths.append(keep + 2)
    targets = _targets(examples, kind=task_kind, labels=labels, offset=offset, scale=scale, where=where)
    return Features(ids=ids, a_lengths=a_lengths, targets=targets, cut=cut)


def pair_lengths(first: int, second: int, *, limit: int) -> tuple[int, int]:
    """What is left of two texts after taking tokens from the longer one (the second of two equals) until they fit."""
    if first + second <= limit:
        return first, second
    half = limit // 2
    if first <= half:
        return first, limit - first
    if second <= half:
        return limit - second, second
    return limit - half, half


def swapped(examples: Sequence[Example]) -> list[Example]:
    """The examples, and after them each pair once more with its texts exchanged."""
    again = [
        replace(example, id=f"{example.id}-swapped", text=example.pair, pair=example.text)
        for example in examples
        if example.pair is not None
    ]
    return [*examples, *again]


def encode_words(
    sentences: Sequence[Sentence],
    *,
    tokenizer: Tokenizer,
    labels: Sequence[str],
    length: int,
    where: object = "data",
) -> tuple[Features, list[WordWindow]]:
    """`[CLS] pieces [SEP]` of each sentence, each word tokenized alone, and where each word's first piece stands.

    A sentence that is too long becomes several overlapping windows. All tokens are of the first segment, which is
    what `transformers` pipelines give a network (the released ELECTRA code tags in the second).
    """
    if length < 3:
        raise ConfigError("length", f"{length} tokens are too few for a word", fix="at least 3")
    capacity = length - 2
    written = [tokenizer.in_sentence(sentence.words) for sentence in sentences]
    words = sorted({word for sentence in written for word in sentence})
    pieces: dict[str, list[int]] = {}
    for first in range(0, len(words), _BATCH_ROWS):
        batch = words[first : first + _BATCH_ROWS]
        for word, found in zip(batch, tokenizer.encode_batch(batch), strict=True):
            pieces[word] = found[:capacity] or [
                tokenizer.unk_id
            ]  # a word of nothing but odd characters needs a tag too
    numbers = {name: number for number, name in enumerate(labels)}
    ids: list[list[int]] = []
    targets: list[list[int]] = []
    windows: list[WordWindow] = []
    long = 0
    tagged = bool(sentences) and _all_known([sentence.tags for sentence in sentences], where=where, what="tags")
    for at, sentence in enumerate(sentences):
        spelled = [pieces[word] for word in written[at]]
        tags = _tag_numbers(sentence, at, numbers, where=where) if tagged else [NO_TAG] * len(spelled)
        parts = list(_cut([len(word) for word in spelled], capacity=capacity))
        long += len(parts) > 1
        for start, end, first, last in parts:
            sequence = [tokenizer.cls_id]
            target = [NO_TAG]
            positions: list[int] = []
            for number in range(start, end):
                predicted = first <= number < last
                if predicted:
                    positions.append(len(sequence))
                target += [tags[number] if predicted else NO_TAG, *[NO_TAG] * (len(spelled[number]) - 1)]
                sequence += spelled[number]
            ids.append([*sequence, tokenizer.sep_id])
            targets.append([*target, NO_TAG])
            windows.append(WordWindow(sentence=at, first=first, positions=tuple(positions)))
    if long:
        say(f"{where}: {long:,} of {len(sentences):,} sentences are longer than {length} tokens, read in windows")
    features = Features(
        ids=ids,
        a_lengths=[len(one) for one in ids],
        targets=targets if tagged else None,
        rows=np.array([window.sentence for window in windows], np.int64),
    )
    return features, windows


def join_words(windows: Sequence[WordWindow], predictions: Sequence[Sequence[int]], *, count: int) -> list[list[int]]:
    """The tag number of every word of each of `count` sentences, from one number a token of each window."""
    tags: list[list[int]] = [[] for _ in range(count)]
    for window, predicted in zip(windows, predictions, strict=True):
        assert len(tags[window.sentence]) == window.first
        tags[window.sentence] += [int(predicted[position]) for position in window.positions]
    return tags


def _encoded(
    examples: Sequence[Example], *, tokenizer: Tokenizer, where: object
) -> Iterator[tuple[list[int], list[int] | None]]:
    """The tokens of each text and of its pair, with a progress bar where there are many rows."""
    many = len(examples) >= _BAR_ROWS
    with progress(f"tokenizing {where}", len(examples), "rows") if many else nullcontext() as bar:
        for first in range(0, len(examples), _BATCH_ROWS):
            batch = examples[first : first + _BATCH_ROWS]
            texts = encode_many(tokenizer, [example.text for example in batch]).lists()
            pairs = iter(encode_many(tokenizer, [one.pair for one in batch if one.pair is not None]).lists())
            for example, text in zip(batch, texts, strict=True):
                yield text, None if example.pair is None else next(pairs)
            if bar is not None:
                bar.update(first + len(batch))


def _cut(sizes: Sequence[int], *, capacity: int) -> Iterator[tuple[int, int, int, int]]:
    """Windows over words of these sizes: first word and word after the last, and the same for those it predicts.

    Neighbours share about a quarter of their tokens; each predicts the half of the shared words that it has more
    context for.
    """
    start, first = 0, 0
    while True:
        end, used = start, 0
        while end < len(sizes) and used + sizes[end] <= capacity:
            used += sizes[end]
            end += 1
        if end == len(sizes):
            yield start, end, first, end
            return
        back, shared = end, 0
        while back > first + 1 and shared + sizes[back - 1] <= capacity // 4:
            back -= 1
            shared += sizes[back]
        if shared + sizes[end] > capacity:  # the next window must reach a word that this one does not
            back = end
        middle = (back + end + 1) // 2
        yield start, end, first, middle
        start, first = back, middle


def _targets(
    examples: Sequence[Example],
    *,
    kind: Kind,
    labels: Sequence[str],
    offset: float,
    scale: float,
    where: object,
) -> NDArray[np.generic] | None:
    if not examples or not _all_known([example.label for example in examples], where=where, what="label"):
        return None
    if kind == "regress":
        values = [example.label for example in examples]
        if not all(isinstance(value, float | int) for value in values):
            raise DataError(where, "regression needs a number as the label of every row")
        return ((np.array(values, np.float64) - offset) / scale).astype(np.float32)
    numbers = {name: number for number, name in enumerate(labels)}
    found = [
        [_number(name, numbers, where=where, place=f"row {row}") for name in label_names(example.label)]
        for row, example in enumerate(examples, 1)
    ]
    if kind == "multilabel":
        several = np.zeros((len(examples), len(labels)), np.float32)
        for row, chosen in enumerate(found):
            several[row, chosen] = 1
        return several
    if odd := next((row for row, chosen in enumerate(found, 1) if len(chosen) != 1), None):
        raise DataError(where, f"row {odd} has {len(found[odd - 1])} labels, not one", fix="a multi-label task?")
    return np.array([chosen[0] for chosen in found], np.int64)


def _all_known(values: Sequence[object], *, where: object, what: str) -> bool:
    missing = [row for row, value in enumerate(values, 1) if value is None]
    if missing and len(missing) < len(values):
        raise DataError(where, f"row {missing[0]} has no {what}, others have", fix="all rows or none")
    return not missing


def _number(name: str, numbers: dict[str, int], *, where: object, place: str) -> int:
    if name not in numbers:
        fix = suggest(name, numbers) or f"known are {', '.join(list(numbers)[:20])}"
        raise DataError(where, f"{place}: label '{name}' is not one of the task's", fix=fix)
    return numbers[name]


def _tag_numbers(sentence: Sentence, at: int, numbers: dict[str, int], *, where: object) -> list[int]:
    tags = sentence.tags or ()
    if len(tags) != len(sentence.words):
        raise DataError(where, f"sentence {at + 1} has {len(sentence.words)} words and {len(tags)} tags")
    return [
        _number(tag, numbers, where=where, place=f"sentence {at + 1}, word {word}") for word, tag in enumerate(tags, 1)
    ]
