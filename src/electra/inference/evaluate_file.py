"""A fine-tuned model's scores on a labelled file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from electra.corpus.streams import plain_suffix
from electra.errors import DataError
from electra.finetune.evaluation_file import evaluation
from electra.finetune.head_outputs import head_outputs
from electra.finetune.model_folder import FinetunedModel
from electra.inference.predict import predict_rows
from electra.inference.table_columns import columns_for
from electra.metrics.squad import squad_scores
from electra.progress import say
from electra.tasks.columns import Columns
from electra.tasks.conll import read_conll, scheme_of_labels, to_scheme
from electra.tasks.details import Details
from electra.tasks.pairs import GRADED, RETRIEVAL, pair_split
from electra.tasks.squad_files import gold_texts, read_squad
from electra.tasks.table_rows import FORMATS
from electra.tasks.tables import read_table
from electra.tasks.task import Task
from electra.tasks.task_data import METRICS, EvalSplit, sequence_encoder, sequence_split, tag_split


def evaluate_file(loaded: FinetunedModel, path: Path, *, columns: Columns) -> dict[str, Any]:
    """The values of an evaluation.json, without what belongs to training; columns as in fine-tuning unless named."""
    about = loaded.about
    metrics = about.metrics or METRICS.get(about.kind, ("accuracy",))
    task = Task(
        name=about.task,
        title=about.title,
        kind=about.kind,
        labels=about.labels,
        metrics=metrics,
        offset=about.offset,
        scale=about.scale,
    )
    if about.kind == "span":
        return _of_questions(loaded, path, task)
    if about.kind == "pairs":
        task, split = _pairs(loaded, path, task, columns)
    else:
        split = _tagged(loaded, path, task) if about.kind == "tag" else _table(loaded, path, task, columns)
    if split.features.cut:
        what = "rows" if split.features.group == 1 else "texts"
        count = f"{split.features.cut:,} of {len(split.features.ids):,} {what}"
        say(f"{path}: {count} are longer than {about.length} tokens and were cut")
    outputs = head_outputs(loaded.network, split.features, pad_id=loaded.tokenizer.pad_id)
    assert split.evaluate is not None and split.details is not None
    return evaluation(task, split.details(outputs), scores=split.evaluate(outputs).scores)


def _table(loaded: FinetunedModel, path: Path, task: Task, columns: Columns) -> EvalSplit:
    about = loaded.about
    if plain_suffix(path) not in FORMATS:
        raise DataError(path, "is not a table with labels", fix=f"give one of {' '.join(FORMATS)}")
    found = columns_for(path, about, text=columns.text, pair=columns.pair, label=columns.label)
    if about.pairs:
        found.require_pair(path, about)
    examples = read_table(
        path,
        text=found.text,
        pair=found.pair,
        label=found.label,
        kind=about.kind,
        separator=found.separator,
        labels=about.labels or None,
    )
    encode = sequence_encoder(task, tokenizer=loaded.tokenizer, length=about.length, where=path)
    return sequence_split(task, examples, encode=encode)


def _pairs(loaded: FinetunedModel, path: Path, task: Task, columns: Columns) -> tuple[Task, EvalSplit]:
    """By the scores where the file has the column of fine-tuning or the named one, otherwise by retrieval."""
    about = loaded.about
    if plain_suffix(path) not in FORMATS:
        raise DataError(path, "is not a table of pairs", fix=f"give one of {' '.join(FORMATS)}")
    found = columns_for(path, about, text=columns.text, pair=columns.pair)
    known = about.columns.get("label")
    score = columns.label or (known if known in found.names else None)
    found.require_pair(path, about)
    examples = read_table(path, text=found.text, pair=found.pair, label=score, kind="pairs")
    task = replace(task, metrics=RETRIEVAL if score is None else GRADED)
    return task, pair_split(examples, tokenizer=loaded.tokenizer, length=about.length, where=path)


def _tagged(loaded: FinetunedModel, path: Path, task: Task) -> EvalSplit:
    sentences = read_conll(path)
    scheme = scheme_of_labels(task.labels)
    if scheme is not None:  # the file may have another
        sentences = [replace(one, tags=to_scheme(one.tags or (), scheme)) for one in sentences]
    return tag_split(task, sentences, tokenizer=loaded.tokenizer, length=loaded.about.length, where=path)


def _of_questions(loaded: FinetunedModel, path: Path, task: Task) -> dict[str, Any]:
    questions = read_squad(path)
    if unknown := next((one.id for one in questions if not one.answers and not one.impossible), None):
        raise DataError(path, f"question {unknown!r} has no answer to score against", fix="electra predict takes it")
    texts = {one["id"]: one["answer"] for one in predict_rows(loaded, questions)}
    scores = squad_scores(texts, gold_texts(questions))
    return evaluation(task, Details(rows=len(questions)), scores=scores)
