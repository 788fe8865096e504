"""Questions and long passages as overlapping windows, with the characters of every token in the passage."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra.errors import ConfigError, DataError
from electra.tasks.rows import Features, Question
from electra.tokenizer.codec import Tokenizer

MAX_CONTEXT_TOKENS = 32_768  # 256 windows a question; a passage longer than this is a book in the wrong place


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    """`[CLS] question [SEP] part of the context [SEP]`, one entry a window, windows of a question in a row."""

    features: Features
    """Token ids; `a_lengths` is also the position of the first context token. Targets only with `targets=True`."""
    question: NDArray[np.int64]
    """(N,) number of the window's question in the list of questions."""
    spans: list[NDArray[np.int32]]
    """Per window (n, 2): first character of each context token and the one after its last, in the context."""
    max_context: list[NDArray[np.bool_]]
    """Per window (n,): whether this is the window with the most context around the token: one window a token."""
    skipped: tuple[str, ...] = ()
    """Ids of the questions left out, because their first answer covers no token or is not at its start."""

    def __len__(self) -> int:
        return len(self.spans)


def cut_windows(
    questions: Sequence[Question],
    *,
    tokenizer: Tokenizer,
    length: int = 512,
    max_question: int = 64,
    stride: int = 128,
    targets: bool = False,
    where: object = "questions",
) -> Windows:
    """Windows of at most `length` tokens that start `stride` context tokens apart.

    With `targets`, every window gets start and end token of the question's first answer (0 and 0 where the window
    does not hold it whole), and whether the question, not the window, is unanswerable. Questions whose answer
    cannot be placed are left out; an unlabelled question is refused. `where` names the file in errors.
    """
    if length - 3 - max_question < 1:
        raise ConfigError("length", f"{length} leaves no tokens for a passage after {max_question} tokens of question")
    if stride < 1:
        raise ConfigError("stride", f"{stride} is not at least 1")
    contexts: dict[str, tuple[list[int], NDArray[np.int32]]] = {}
    windows: list[_Window] = []
    skipped: list[str] = []
    question_tokens = tokenizer.encode_batch([one.question for one in questions])
    for number, (one, tokens) in enumerate(zip(questions, question_tokens, strict=True)):
        if one.context not in contexts:
            contexts[one.context] = encode_context(one.context, tokenizer=tokenizer)
        context_ids, context_spans = contexts[one.context]
        named = f"{where}, question '{one.id}'"
        if len(context_ids) > MAX_CONTEXT_TOKENS:
            reason = f"its context has {len(context_ids)} tokens, more than {MAX_CONTEXT_TOKENS}"
            raise DataError(named, reason, fix="split it into paragraphs")
        answer = None
        if targets and not one.impossible:
            if not one.answers:
                raise DataError(named, "has no answer to learn from")
            answer = answer_tokens(one, context_spans)
            if answer is None:
                skipped.append(one.id)
                continue
        head = [tokenizer.cls_id, *tokens[:max_question], tokenizer.sep_id]
        cuts = list(window_cuts(len(context_ids), capacity=length - len(head) - 1, stride=stride))
        best = _best_window(len(context_ids), cuts)
        for at, (first, last) in enumerate(cuts):
            windows.append(
                _Window(
                    ids=[*head, *context_ids[first:last], tokenizer.sep_id],
                    a_length=len(head),
                    question=number,
                    spans=context_spans[first:last],
                    max_context=best[first:last] == at,
                    target=_target(answer, first, last, offset=len(head), impossible=one.impossible),
                )
            )
    return _joined(windows, targets=targets, skipped=tuple(skipped))


class _Window(NamedTuple):
    ids: list[int]
    a_length: int
    question: int
    spans: NDArray[np.int32]
    max_context: NDArray[np.bool_]
    target: tuple[int, int, int]


def _target(
    answer: tuple[int, int] | None, first: int, last: int, *, offset: int, impossible: bool
) -> tuple[int, int, int]:
    """Start and end token of the answer in the window over context tokens `first` to `last`, and answerability."""
    if answer is None or answer[0] < first or answer[1] >= last:
        return 0, 0, int(impossible)
    return answer[0] - first + offset, answer[1] - first + offset, 0


def _joined(windows: Sequence[_Window], *, targets: bool, skipped: tuple[str, ...]) -> Windows:
    question = np.array([one.question for one in windows], dtype=np.int64)
    return Windows(
        features=Features(
            ids=[one.ids for one in windows],
            a_lengths=[one.a_length for one in windows],
            targets=np.array([one.target for one in windows], dtype=np.int64).reshape(-1, 3) if targets else None,
            rows=question,
        ),
        question=question,
        spans=[one.spans for one in windows],
        max_context=[one.max_context for one in windows],
        skipped=skipped,
    )


def encode_context(context: str, *, tokenizer: Tokenizer) -> tuple[list[int], NDArray[np.int32]]:
    """Token ids, and (n, 2) character spans that keep an accent with the letter it stands on."""
    ids, offsets = tokenizer.encode_with_offsets(context)
    spans = np.array(offsets, dtype=np.int32).reshape(-1, 2)
    if not context.isascii():  # the tokenizer drops combining marks, and their characters with them
        marks = {at for at, letter in enumerate(context) if unicodedata.category(letter) == "Mn"}
        for row in range(len(spans)) if marks else ():
            while int(spans[row, 1]) in marks and (row + 1 == len(spans) or spans[row, 1] < spans[row + 1, 0]):
                spans[row, 1] += 1
    return ids, spans


def answer_tokens(question: Question, spans: NDArray[np.int32]) -> tuple[int, int] | None:
    """First and last context token of the shortest run that covers the first answer; None where there is none."""
    text, start = question.answers[0]
    end = start + len(text)
    if start < 0 or question.context[start:end] != text:
        return None
    first = int(np.searchsorted(spans[:, 1], start, side="right"))
    last = int(np.searchsorted(spans[:, 0], end, side="left")) - 1
    return (first, last) if first <= last else None


def window_cuts(tokens: int, *, capacity: int, stride: int) -> Iterator[tuple[int, int]]:
    """First and one-past-last context token of each window; one empty window for a context without tokens."""
    first = 0
    while first + capacity < tokens:
        yield first, first + capacity
        first += min(capacity, stride)
    yield first, tokens


def _best_window(tokens: int, cuts: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """(tokens,) the window with the most context on the token's shorter side; longer windows win ties."""
    if len(cuts) == 1:
        return np.zeros(tokens, dtype=np.int64)
    best = np.zeros(tokens, dtype=np.int64)
    score = np.full(tokens, -1.0)
    for number, (first, last) in enumerate(cuts):
        at = np.arange(last - first)
        here = np.minimum(at, last - first - 1 - at) + 0.01 * (last - first)
        ahead = here > score[first:last]
        best[first:last][ahead] = number
        score[first:last][ahead] = here[ahead]
    return best
