"""Answers from the scores of start and end tokens; an answer is an exact slice of the passage.

Shapes: N windows, K beam (start tokens a window, and end tokens a start). The head scores starts by log-softmax over
[CLS], the context and the last [SEP] (other positions get -1000), ends likewise given each of the K starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra.tasks.rows import HeadOutputs, Question
from electra.tasks.windows import Windows

N_BEST = 20
MAX_ANSWER_TOKENS = 30
_BLOCK = 2048  # windows at a time: bounds the memory of the N*K*K candidates


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanScores:
    """A span head's outputs for N windows: log-probabilities and token positions, in any order."""

    starts_NK: NDArray[np.floating]
    start_at_NK: NDArray[np.integer]
    ends_NKK: NDArray[np.floating]
    """[n, i, j]: log-probability of end j after start i."""
    end_at_NKK: NDArray[np.integer]
    impossible_N: NDArray[np.floating]
    """Logit that the question has no answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """An answer: `context[start:end]`, with the sum of its start and end log-probability."""

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The answer to a question: the best spans, best first, and the logit that there is no answer."""

    id: str
    spans: tuple[Span, ...]
    null_odds: float
    """The smallest logit of the question's windows: an answer in one window is enough."""

    @property
    def text(self) -> str:
        """The best span's text; empty where no span was possible."""
        return self.spans[0].text if self.spans else ""


def span_scores(outputs: HeadOutputs) -> SpanScores:
    """A span head's outputs as `decode` takes them."""
    arrays: dict[str, NDArray[Any]] = {name: np.asarray(value) for name, value in outputs.items()}
    return SpanScores(
        starts_NK=arrays["starts"],
        start_at_NK=arrays["start_at"],
        ends_NKK=arrays["ends"],
        end_at_NKK=arrays["end_at"],
        impossible_N=arrays["null"],
    )


def decode(
    scores: SpanScores,
    *,
    windows: Windows,
    questions: Sequence[Question],
    n_best: int = N_BEST,
    max_answer: int = MAX_ANSWER_TOKENS,
) -> list[Answer]:
    """One answer a question, in the questions' order.

    Left out are spans that reach outside the context, that start at a token for which another window has more context,
    that end before they start, or that are longer than `max_answer` tokens.
    """
    if len(scores.impossible_N) != len(windows):
        raise ValueError(f"scores of {len(scores.impossible_N)} windows for {len(windows)} windows")
    found = _candidates(scores, windows, max_answer=max_answer)
    null_odds = np.full(len(questions), np.inf)
    np.minimum.at(null_odds, windows.question, scores.impossible_N.astype(np.float64))
    order = np.lexsort((found.chars[:, 1], found.chars[:, 0], -found.score, found.question))
    bounds = np.searchsorted(found.question[order], np.arange(len(questions) + 1))
    answers = []
    for number, one in enumerate(questions):
        spans: dict[tuple[int, int], Span] = {}
        for at in order[bounds[number] : bounds[number + 1]]:
            if len(spans) == n_best:
                break
            start, end = found.chars[at].tolist()
            if (start, end) not in spans:
                spans[start, end] = Span(
                    text=one.context[start:end], start=start, end=end, score=float(found.score[at])
                )
        answers.append(Answer(id=one.id, spans=tuple(spans.values()), null_odds=float(null_odds[number])))
    return answers


class _Candidates(NamedTuple):
    question: NDArray[np.int64]
    chars: NDArray[np.int32]
    score: NDArray[np.float64]


def _candidates(scores: SpanScores, windows: Windows, *, max_answer: int) -> _Candidates:
    """Question, characters and score of every span that is allowed."""
    count_N = np.array([len(spans) for spans in windows.spans], dtype=np.int64)
    base_N = np.cumsum(count_N) - count_N
    chars = np.concatenate([*windows.spans, np.zeros((1, 2), dtype=np.int32)])
    fullest = np.concatenate([*windows.max_context, np.zeros(1, dtype=np.bool_)])
    first_N = np.array(windows.features.a_lengths, dtype=np.int64)
    parts = [_Candidates(np.zeros(0, np.int64), np.zeros((0, 2), np.int32), np.zeros(0, np.float64))]
    for at in range(0, len(windows), _BLOCK):
        block = slice(at, at + _BLOCK)
        count, base = count_N[block, None, None], base_N[block, None, None]
        start = scores.start_at_NK[block].astype(np.int64)[:, :, None] - first_N[block, None, None]
        end = scores.end_at_NKK[block].astype(np.int64) - first_N[block, None, None]
        good = (start >= 0) & (start < count)
        good &= fullest[np.where(good, base + start, -1)]
        row, first, last = np.nonzero(good & (end >= start) & (end < count) & (end - start < max_answer))
        from_, to = start[row, first, 0], end[row, first, last]
        shift = base[row, 0, 0]
        total = scores.starts_NK[block][row, first].astype(np.float64) + scores.ends_NKK[block][row, first, last]
        ends = np.stack([chars[shift + from_, 0], chars[shift + to, 1]], axis=1)
        parts.append(_Candidates(windows.question[block][row], ends, total))
    question, places, score = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _Candidates(question, places, score)
