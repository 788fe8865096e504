"""A fine-tuned model's predictions for new texts, sentences or questions, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import compress
from typing import Any, TypeVar

import numpy as np

from electra import hardware
from electra.errors import ConfigError, DataError
from electra.finetune.head_outputs import head_outputs
from electra.finetune.model_folder import FinetunedModel
from electra.inference.given_texts import holds_texts, require_text
from electra.inference.placement import placed
from electra.inference.results import Prediction
from electra.metrics.probabilities import sigmoid, softmax
from electra.progress import Bar, progress, say
from electra.tasks.features import encode_sequences, encode_words
from electra.tasks.pairs import cosines, encode_pairs
from electra.tasks.rows import Example, Features, HeadOutputs, Kind, Question, Sentence
from electra.tasks.spans import Answer, decode, span_scores
from electra.tasks.windows import cut_windows

Input = str | Sequence[str] | Example | Sentence | Question
Row = TypeVar("Row", Example, Sentence, Question)

BATCH_SIZE = 128
_CHUNK_ROWS = 2048  # tokenized, sorted by length and predicted together
_GPU_CHUNK_BATCHES = 64  # of a GPU: so many that most lengths recur often enough to be recorded
_BAR_ROWS = 1000


def on_device(loaded: FinetunedModel, device: str = "auto") -> FinetunedModel:
    """The model where it computes fastest: a copy on the GPU, in bf16 where it has that; itself without a GPU."""
    place = hardware.device(device)
    if place.type == "cpu":
        return loaded
    return replace(loaded, network=placed(loaded.network, loaded.about.kernels, place))


def predict(loaded: FinetunedModel, rows: Sequence[Input], *, batch_size: int = BATCH_SIZE) -> list[Prediction]:
    """One prediction a row, by the model's kind of task.

    A row is a text, a pair of texts, the words of a sentence to tag, a question with its passage, or one of the row
    classes of `tasks/rows.py`. A prediction has the row's `id` and

    - classify: `label`, and the `probabilities` of all labels;
    - multilabel: `labels`, those of at least one half, and `probabilities`;
    - regress: `value`;
    - pairs: `cosine`, of the two texts' vectors;
    - tag: `words`, `tags` and the `probabilities` of these;
    - span: `answer`, which is `context[start:end]`, its `score` (a log-probability), the `n_best` answers, and
      `null_odds`, the logit that there is no answer. Above the threshold of a model trained on unanswerable questions,
      `answer` is empty, `start` and `end` are None.
    """
    if not holds_texts(rows):
        require_text(rows, where="rows")
    whole = [as_row(row, number, kind=loaded.about.kind) for number, row in enumerate(rows)]
    return list(predict_rows(loaded, whole, batch_size=batch_size))


def lost_tokens(loaded: FinetunedModel, rows: Sequence[Example | Sentence | Question]) -> list[int]:
    """How many tokens of each row the model does not read, since the row is longer than it takes.

    Sentences to tag and passages are read in windows, to their ends; of a question too many tokens are lost.
    """
    about, encode = loaded.about, loaded.tokenizer.encode_batch

    def lost(row: Example | Sentence | Question) -> int:
        if isinstance(row, Sentence):
            return 0
        if isinstance(row, Question):
            return max(0, len(encode([row.question])[0]) - about.max_query)
        sizes = [len(ids) for ids in encode([row.text] if row.pair is None else [row.text, row.pair])]
        if about.kind == "pairs":  # a sequence for each text
            return sum(max(0, size + 2 - about.length) for size in sizes)
        return max(0, sum(sizes) + len(sizes) + 1 - about.length)

    return [lost(row) for row in rows]


def as_row(row: Input, number: int, *, kind: Kind) -> Example | Sentence | Question:
    """A text, a pair, words or a question with its passage as the row class that this kind of task takes."""
    if isinstance(row, Example | Sentence | Question):
        return row
    where = f"row {number + 1}"
    texts = tuple(require_text(text, where=where) for text in (row if holds_texts(row) else (row,)))
    if kind == "tag":
        return Sentence(id=str(number), words=tuple(row.split()) if isinstance(row, str) else texts)
    if kind == "span":
        if len(texts) != 2:
            raise DataError(where, f"needs a question and its passage, not {len(texts)} text")
        return Question(id=str(number), question=texts[0], context=texts[1])
    if len(texts) not in (1, 2):
        raise DataError(where, f"needs one text or two, not {len(texts)}")
    return Example(id=str(number), text=texts[0], pair=texts[1] if len(texts) == 2 else None)


def predict_rows(
    loaded: FinetunedModel, rows: Sequence[Example | Sentence | Question], *, batch_size: int = BATCH_SIZE
) -> Iterator[Prediction]:
    """One prediction a row, each as soon as its chunk of rows is done; with a progress bar where there are many."""
    if batch_size < 1:
        raise ConfigError("batch size", f"{batch_size} is not at least 1")
    kind, title = loaded.about.kind, f"predicting {loaded.about.title}"
    with progress(title, len(rows), "rows") if len(rows) >= _BAR_ROWS else nullcontext() as bar:
        on_gpu = next(loaded.network.parameters()).device.type == "cuda"
        size = max(_CHUNK_ROWS, _GPU_CHUNK_BATCHES * batch_size if on_gpu else 0)
        lengths = _Lengths(loaded)
        for first in range(0, len(rows), size):
            chunk = rows[first : first + size]
            advance = _advance(bar, first, len(chunk))
            outputs = _outputs(loaded, batch_size=batch_size, lengths=lengths, on_share=advance)
            if kind == "tag":
                yield from _tags(loaded, _only(Sentence, chunk, loaded), outputs)
            elif kind == "span":
                yield from _answers(loaded, _only(Question, chunk, loaded), outputs)
            elif kind == "pairs":
                yield from _cosines(loaded, _only(Example, chunk, loaded), outputs, first=first)
            else:
                yield from _labels(loaded, _only(Example, chunk, loaded), outputs, first=first)
        lengths.say()


class _Lengths:
    """Counts the sequences that are too long, over all chunks, for one line at the end."""

    def __init__(self, loaded: FinetunedModel) -> None:
        self._about = loaded.about
        self._sequences = self._longer = self._cut = 0

    def count(self, features: Features) -> None:
        known = self._about.trained_length
        self._sequences += len(features.ids)
        self._longer += sum(len(ids) > known for ids in features.ids) if known else 0
        self._cut += features.cut

    def say(self) -> None:
        about, total = self._about, f"{self._sequences:,}"
        if self._longer:
            tokens = f"{about.trained_length} tokens of the longest that the model was trained on"
            say(f"warning: {self._longer:,} of {total} sequences are longer than the {tokens}")
        if self._cut:
            what = "texts" if about.kind == "pairs" else "rows"
            say(f"{self._cut:,} of {total} {what} are longer than {about.length} tokens and were cut")


def _advance(bar: Bar | None, first: int, rows: int) -> Callable[[float], None]:
    """Moves the bar to a share of the chunk that begins at row `first`."""

    def advance(share: float) -> None:
        if bar is not None:
            bar.update(first + int(rows * share))

    return advance


def _outputs(
    loaded: FinetunedModel, *, batch_size: int, lengths: _Lengths, on_share: Callable[[float], None]
) -> Callable[[Features], HeadOutputs]:
    """The network's outputs as a function of features; a row can have several sequences."""

    def outputs(features: Features) -> HeadOutputs:
        lengths.count(features)
        return head_outputs(
            loaded.network,
            features,
            batch_size=batch_size,
            beam=loaded.about.beam,
            pad_id=loaded.tokenizer.pad_id,
            on_batch=lambda sequences: on_share(sequences / len(features.ids)),
        )

    return outputs


_NEEDS: dict[type, str] = {Example: "texts", Sentence: "sentences of words", Question: "questions with passages"}


def _only(cls: type[Row], rows: Sequence[Any], loaded: FinetunedModel) -> list[Row]:
    if odd := next((row for row in rows if not isinstance(row, cls)), None):
        about = loaded.about
        reason = f"{about.title} ({about.kind}) takes {_NEEDS[cls]}, not {_NEEDS[type(odd)]}"
        raise ConfigError(str(loaded.path), reason)
    return list(rows)


def _labels(
    loaded: FinetunedModel, examples: list[Example], outputs: Callable[[Features], HeadOutputs], *, first: int
) -> Iterator[Prediction]:
    about = loaded.about
    _require_pairs(loaded, examples, first=first)
    bare = [one if one.label is None else replace(one, label=None) for one in examples]
    features = encode_sequences(bare, tokenizer=loaded.tokenizer, task_kind=about.kind, length=about.length)
    scores = np.asarray(outputs(features)["scores"], np.float64)
    if about.kind == "regress":
        for one, (value,) in zip(examples, scores.tolist(), strict=True):
            yield {"id": one.id, "value": value}
    elif about.kind == "classify":
        best = scores.argmax(-1).tolist()
        for one, number, row in zip(examples, best, softmax(scores).tolist(), strict=True):
            named = dict(zip(about.labels, row, strict=True))
            yield {"id": one.id, "label": about.labels[number], "probabilities": named}
    else:
        chosen = (scores > 0).tolist()
        for one, are, row in zip(examples, chosen, sigmoid(scores).tolist(), strict=True):
            named = dict(zip(about.labels, row, strict=True))
            yield {"id": one.id, "labels": list(compress(about.labels, are)), "probabilities": named}


def _cosines(
    loaded: FinetunedModel, examples: list[Example], outputs: Callable[[Features], HeadOutputs], *, first: int
) -> Iterator[Prediction]:
    _require_pairs(loaded, examples, first=first)
    bare = [replace(one, label=None, negative=None) for one in examples]
    features = encode_pairs(bare, tokenizer=loaded.tokenizer, length=loaded.about.length)
    for one, cosine in zip(examples, cosines(outputs(features)), strict=True):
        yield {"id": one.id, "cosine": float(cosine)}


def _require_pairs(loaded: FinetunedModel, examples: list[Example], *, first: int) -> None:
    pairs = loaded.about.pairs
    if odd := next((number for number, one in enumerate(examples, first + 1) if pairs != (one.pair is not None)), None):
        counts, taught = ("one text", "pairs") if pairs else ("two texts", "one a row")
        reason = f"is {counts}, and {loaded.about.title} was fine-tuned on {taught}"
        raise DataError(f"row {odd}", reason, fix="give both texts" if pairs else "give one")


def _tags(
    loaded: FinetunedModel, sentences: list[Sentence], outputs: Callable[[Features], HeadOutputs]
) -> Iterator[Prediction]:
    about = loaded.about
    bare = [replace(one, tags=None) for one in sentences]
    features, windows = encode_words(bare, tokenizer=loaded.tokenizer, labels=about.labels, length=about.length)
    found: list[list[tuple[str, float]]] = [[] for _ in sentences]
    for window, scores in zip(windows, outputs(features)["scores"], strict=True):
        probabilities = softmax(np.asarray(scores)[list(window.positions)])
        best = zip(probabilities.argmax(-1), probabilities, strict=True)
        found[window.sentence] += [(about.labels[tag], float(row[tag])) for tag, row in best]
    for one, tagged in zip(sentences, found, strict=True):
        assert len(tagged) == len(one.words)
        yield {
            "id": one.id,
            "words": list(one.words),
            "tags": [tag for tag, _ in tagged],
            "probabilities": [probability for _, probability in tagged],
        }


def _answers(
    loaded: FinetunedModel, questions: list[Question], outputs: Callable[[Features], HeadOutputs]
) -> Iterator[Prediction]:
    about = loaded.about
    windows = cut_windows(
        questions,
        tokenizer=loaded.tokenizer,
        length=about.length,
        max_question=about.max_query,
        stride=about.doc_stride,
    )
    scores = span_scores(outputs(windows.features))
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
