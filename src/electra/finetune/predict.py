"""What a fine-tuned model says about new texts, sentences or questions, in the order in which they are given.

from pathlib import Path
from electra.finetune.folder import load_tuned
from electra.finetune.predict import on_device, predict_texts

model = on_device(load_tuned(Path("runs/sst2")))
predict_texts(model, ["a fine film", "a waste of time"])
# [{'id': '0', 'label': 'positive', 'probabilities': {...}}, {'id': '1', ...}]
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from electra import hardware
from electra.errors import ConfigError, DataError
from electra.finetune.answers import Said, answers, span_scores
from electra.finetune.features import encode_sequences, encode_words
from electra.finetune.folder import LoadedTuned
from electra.finetune.rows import Example, Features, Question, Sentence
from electra.finetune.spans import Answer, decode
from electra.finetune.windows import cut_windows
from electra.model.layers import FullLinear
from electra.progress import Bar, progress

Prediction = dict[str, Any]
Row = TypeVar("Row", Example, Sentence, Question)

BATCH_SIZE = 128
_CHUNK_ROWS = 2048  # tokenized, sorted by length and answered together
_BAR_ROWS = 1000


def on_device(loaded: LoadedTuned, device: str = "auto") -> LoadedTuned:
    """The model where it computes fastest: a copy on the GPU, in bf16 where it has that; itself without a GPU."""
    place = hardware.device(device)
    if place.type == "cpu":
        return loaded
    tuned = copy.deepcopy(loaded.tuned).to(place)
    dtype = hardware.compute_dtype("auto", place)
    for layer in tuned.modules():
        if isinstance(layer, torch.nn.Linear) and not isinstance(layer, FullLinear):
            layer.to(dtype)
    return replace(loaded, tuned=tuned)


def predict_texts(
    loaded: LoadedTuned, rows: Sequence[str | tuple[str, str] | Example], *, batch_size: int = BATCH_SIZE
) -> list[Prediction]:
    """For each text, or pair of texts, by the model's kind of task:

    `label` and the `probabilities` of all labels, `labels` (those of at least one half) and `probabilities`, or
    `value`.
    """
    examples = [
        row
        if isinstance(row, Example)
        else Example(id=str(number), text=row)
        if isinstance(row, str)
        else Example(id=str(number), text=row[0], pair=row[1])
        for number, row in enumerate(rows)
    ]
    return list(predictions(loaded, examples, batch_size=batch_size))


def predict_words(
    loaded: LoadedTuned, sentences: Sequence[str | Sequence[str] | Sentence], *, batch_size: int = BATCH_SIZE
) -> list[Prediction]:
    """For each sentence (words, or a string with blanks between them) `words`, `tags` and `probabilities` of these."""
    whole = [
        one
        if isinstance(one, Sentence)
        else Sentence(id=str(number), words=tuple(one.split() if isinstance(one, str) else one))
        for number, one in enumerate(sentences)
    ]
    return list(predictions(loaded, whole, batch_size=batch_size))


def predict_questions(
    loaded: LoadedTuned, questions: Sequence[tuple[str, str] | Question], *, batch_size: int = BATCH_SIZE
) -> list[Prediction]:
    """For each question and its passage `answer`, which is `context[start:end]`, its `score` and the `n_best`.

    `score` is a log-probability; `null_odds` tells how much speaks for no answer. Where that is too much for a model
    that was trained on unanswerable questions, `answer` is empty, `start` and `end` are None.
    """
    whole = [
        one if isinstance(one, Question) else Question(id=str(number), question=one[0], context=one[1])
        for number, one in enumerate(questions)
    ]
    return list(predictions(loaded, whole, batch_size=batch_size))


def predictions(
    loaded: LoadedTuned, rows: Sequence[Example | Sentence | Question], *, batch_size: int = BATCH_SIZE
) -> Iterator[Prediction]:
    """One prediction a row, as soon as its part of the rows is through; with a bar where there are many."""
    if batch_size < 1:
        raise ConfigError("batch size", f"{batch_size} is not at least 1")
    kind, title = loaded.about.kind, f"predicting {loaded.about.title}"
    with progress(title, len(rows), "rows") if len(rows) >= _BAR_ROWS else nullcontext() as bar:
        for first in range(0, len(rows), _CHUNK_ROWS):
            chunk = rows[first : first + _CHUNK_ROWS]
            ask = _Asker(loaded, batch_size=batch_size, bar=bar, first=first, rows=len(chunk))
            if kind == "tag":
                yield from _words(ask, _only(Sentence, chunk, loaded))
            elif kind == "span":
                yield from _questions(ask, _only(Question, chunk, loaded))
            else:
                yield from _texts(ask, _only(Example, chunk, loaded))


class _Asker:
    """A model to ask about some of the rows, which tells a bar how far it is."""

    def __init__(self, loaded: LoadedTuned, *, batch_size: int, bar: Bar | None, first: int, rows: int) -> None:
        self.loaded, self.about, self.first = loaded, loaded.about, first
        self._batch_size, self._bar, self._rows = batch_size, bar, rows

    def __call__(self, features: Features) -> Said:
        """What the network says; a row can have several sequences."""

        def done(sequences: int) -> None:
            if self._bar is not None:
                self._bar.update(self.first + self._rows * sequences // len(features.ids))

        return answers(
            self.loaded.tuned,
            features,
            device=next(self.loaded.tuned.parameters()).device,
            batch_size=self._batch_size,
            beam=self.about.beam,
            pad_id=self.loaded.tokenizer.pad_id,
            done=done,
        )


_NEEDS: dict[type, str] = {Example: "texts", Sentence: "sentences of words", Question: "questions with passages"}


def _only(cls: type[Row], rows: Sequence[Any], loaded: LoadedTuned) -> list[Row]:
    if odd := next((row for row in rows if not isinstance(row, cls)), None):
        about = loaded.about
        reason = f"{about.title} ({about.kind}) answers {_NEEDS[cls]}, not {_NEEDS[type(odd)]}"
        raise ConfigError(str(loaded.path), reason)
    return list(rows)


def _texts(ask: _Asker, examples: list[Example]) -> Iterator[Prediction]:
    about = ask.about
    single = (number for number, one in enumerate(examples, ask.first + 1) if one.pair is None)
    if about.pairs and (odd := next(single, None)):
        raise DataError(f"row {odd}", f"is one text, and {about.title} was fine-tuned on pairs", fix="give both texts")
    bare = [replace(one, label=None) for one in examples]
    features = encode_sequences(bare, tokenizer=ask.loaded.tokenizer, task_kind=about.kind, length=about.length)
    scores = np.asarray(ask(features)["scores"], np.float64)
    for one, said in zip(examples, scores, strict=True):
        if about.kind == "regress":
            yield {"id": one.id, "value": float(said[0])}
            continue
        chances = softmax(said) if about.kind == "classify" else sigmoid(said)
        named = dict(zip(about.labels, chances.tolist(), strict=True))
        if about.kind == "classify":
            yield {"id": one.id, "label": about.labels[int(said.argmax())], "probabilities": named}
        else:
            chosen = [name for name, score in zip(about.labels, said, strict=True) if score > 0]
            yield {"id": one.id, "labels": chosen, "probabilities": named}


def _words(ask: _Asker, sentences: list[Sentence]) -> Iterator[Prediction]:
    about = ask.about
    bare = [replace(one, tags=None) for one in sentences]
    features, windows = encode_words(bare, tokenizer=ask.loaded.tokenizer, labels=about.labels, length=about.length)
    found: list[list[tuple[str, float]]] = [[] for _ in sentences]
    for window, scores in zip(windows, ask(features)["scores"], strict=True):
        chances = softmax(np.asarray(scores, np.float64)[list(window.positions)])
        best = chances.argmax(-1)
        found[window.sentence] += [(about.labels[tag], float(row[tag])) for tag, row in zip(best, chances, strict=True)]
    for one, tagged in zip(sentences, found, strict=True):
        assert len(tagged) == len(one.words)
        tags, sure = ([tag for tag, _ in tagged], [chance for _, chance in tagged])
        yield {"id": one.id, "words": list(one.words), "tags": tags, "probabilities": sure}


def _questions(ask: _Asker, questions: list[Question]) -> Iterator[Prediction]:
    about = ask.about
    windows = cut_windows(
        questions,
        tokenizer=ask.loaded.tokenizer,
        length=about.length,
        max_question=about.max_query,
        stride=about.doc_stride,
    )
    scores = span_scores(ask(windows.features))
    for answer in decode(
        scores, windows=windows, questions=questions, n_best=about.n_best, max_answer=about.max_answer
    ):
        yield _answer(answer, threshold=about.null_threshold)


def _answer(answer: Answer, *, threshold: float | None) -> Prediction:
    best = next(iter(answer.spans), None)
    if threshold is not None and answer.null_odds > threshold:
        best = None
    return {
        "id": answer.id,
        "answer": best.text if best else "",
        "start": best.start if best else None,
        "end": best.end if best else None,
        "score": best.score if best else None,
        "null_odds": answer.null_odds,
        "n_best": [{"text": one.text, "start": one.start, "end": one.end, "score": one.score} for one in answer.spans],
    }


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities along the last axis."""
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    shares: NDArray[np.float64] = raised / raised.sum(-1, keepdims=True)
    return shares


def sigmoid(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """A probability for each score, on its own."""
    small = np.exp(-np.abs(scores))
    chances: NDArray[np.float64] = np.where(scores >= 0, 1.0, small) / (1.0 + small)
    return chances
