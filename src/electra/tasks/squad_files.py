"""SQuAD 1.1 and 2.0 files: reads questions, and writes predictions as the official scorers read them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from electra.errors import DataError
from electra.fsio import read_json, write_json
from electra.progress import counted, say
from electra.tasks.rows import Question

MAX_BYTES = 256 << 20
"""Of a SQuAD file; the largest published one has 42 MB."""
_FORM = "as in SQuAD: data > paragraphs > context, qas"
PREDICTIONS_FILE, NULL_ODDS_FILE = "predictions.json", "null_odds.json"

_TYPES: dict[type, str] = {str: "text", list: "list", dict: "object", int: "whole number", bool: "true or false"}


def read_squad(path: Path) -> list[Question]:
    """The questions of a SQuAD JSON file, in its order; every answer is the slice of its context that it names.

    An answer that does not stand at its `answer_start` is looked up in the context, the nearest place first, and their
    number is printed; an answer that is not in the context is refused. Questions without an `answers` list, or with an
    empty one and no `is_impossible`, are unlabelled.
    """
    questions: list[Question] = []
    ids: set[str] = set()
    moved: list[str] = []
    for where, context, entry in _entries(path):
        id = _text(entry, "id", where=where)
        named = f"{path}, question '{id}'"
        if id in ids:
            raise DataError(named, "stands twice", fix="ids must differ")
        ids.add(id)
        answers = []
        for text, start in _answers(entry, where=named):
            found = _locate(text, context, start)
            if found is None:
                raise DataError(named, f"the answer {_abbreviated(text)} is not in its context")
            if found != (text, start):
                moved.append(id)
            answers.append(found)
        question = _text(entry, "question", where=named)
        questions.append(
            Question(
                id=id,
                question=question.strip(),
                context=context,
                answers=tuple(answers),
                impossible=_impossible(entry, has_answers=bool(answers), where=named),
            )
        )
    if not questions:
        raise DataError(path, "has no questions")
    if moved:
        looked_up = f"{counted(len(moved), 'answer')} not at answer_start, so looked up in the passage"
        say(f"{path}: {looked_up}; first '{moved[0]}'")
    return questions


def gold_texts(questions: list[Question]) -> dict[str, tuple[str, ...]]:
    """The gold answers by question id, as `squad_scores` takes them."""
    return {one.id: tuple(text for text, _ in one.answers) for one in questions}


def write_predictions(
    folder: Path,
    predictions: Mapping[str, str],
    *,
    null_odds: Mapping[str, float] | None = None,
    threshold: float | None = None,
) -> None:
    """Write predictions.json, and null_odds.json where there are some; with a threshold, answers above it are blank."""
    texts = dict(predictions)
    if null_odds is not None:
        if threshold is not None:
            texts = {id: "" if null_odds[id] > threshold else text for id, text in texts.items()}
        write_json(folder / NULL_ODDS_FILE, {id: float(odds) for id, odds in null_odds.items()})
    write_json(folder / PREDICTIONS_FILE, texts)


def _entries(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    whole = read_json(path, most=MAX_BYTES, fix=_FORM)
    for a, article in enumerate(_get(whole, "data", list, where=path), 1):
        for p, paragraph in enumerate(_get(article, "paragraphs", list, where=f"{path}, article {a}"), 1):
            where = f"{path}, article {a}, paragraph {p}"
            context = _text(paragraph, "context", where=where)
            if not context.strip():
                raise DataError(where, "its context is blank")
            for q, entry in enumerate(_get(paragraph, "qas", list, where=where), 1):
                yield f"{where}, question {q}", context, entry


def _get(value: Any, key: str, kind: type, *, where: object) -> Any:
    if not isinstance(value, dict):
        raise DataError(where, "is not a JSON object", fix=_FORM)
    if key not in value:
        raise DataError(where, f"has no '{key}'", fix=_FORM)
    found = value[key]
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise DataError(where, f"'{key}' must be a {_TYPES[kind]}, not {_abbreviated(found)}")
    return found


def _text(value: Any, key: str, *, where: object) -> str:
    text: str = _get(value, key, str, where=where)
    return text


def _answers(entry: dict[str, Any], *, where: str) -> Iterator[tuple[str, int]]:
    if "answers" not in entry:
        return
    for answer in _get(entry, "answers", list, where=where):
        text = _get(answer, "text", str, where=where)
        if not text.strip():
            raise DataError(where, "has a blank answer", fix="an empty 'answers' list and 'is_impossible': true")
        yield text, _get(answer, "answer_start", int, where=where)


def _impossible(entry: dict[str, Any], *, has_answers: bool, where: str) -> bool:
    if "is_impossible" not in entry:
        return False
    impossible: bool = _get(entry, "is_impossible", bool, where=where)
    if impossible and has_answers:
        raise DataError(where, "is_impossible is true, yet there are answers")
    if not impossible and not has_answers and "answers" in entry:
        raise DataError(where, "is_impossible is false, yet there is no answer")
    return impossible


def _locate(text: str, context: str, start: int) -> tuple[str, int] | None:
    """The answer as it stands in the context, nearest to `start`; case and spaces may differ."""
    if start >= 0 and context.startswith(text, start):
        return text, start
    places = [match.span() for match in re.finditer(re.escape(text), context)]
    if not places:
        loose = r"\s+".join(re.escape(word) for word in text.split())
        places = [match.span() for match in re.finditer(loose, context, re.IGNORECASE)]
    if not places:
        return None
    first, last = min(places, key=lambda span: abs(span[0] - start))
    return context[first:last], first


def _abbreviated(value: object) -> str:
    whole = repr(value)
    return whole if len(whole) <= 60 else whole[:57] + "..."
