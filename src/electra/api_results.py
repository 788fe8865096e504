"""What the verbs that write folders give back: small values that print as text and show as tables in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.display import html_table, text_table
from electra.finetune.evaluation_table import evaluation_lines, score_line
from electra.finetune.results_table import cells, footer, plain
from electra.finetune.task_results import Suite, TaskResult


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class PreparedData:
    """A folder of token shards with its tokenizer."""

    path: Path
    documents: int
    sentences: int
    tokens: int
    """Of the training split."""
    held_out_tokens: int
    vocab_size: int

    def __repr__(self) -> str:
        return text_table(*self._table())

    def _repr_html_(self) -> str:
        return html_table(*self._table())

    def _table(self) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        header = ("data", "documents", "sentences", "tokens", "held-out tokens", "vocabulary")
        counts = (self.documents, self.sentences, self.tokens, self.held_out_tokens, self.vocab_size)
        return header, [(self.path, *(f"{count:,}" for count in counts))]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Run:
    """A pre-training run: its folder, the steps done, and its last metrics."""

    path: Path
    step: int
    metrics: Mapping[str, float]
    """The last value of each metric, such as `train/rtd_loss` and `eval/rtd_auc`."""

    def __repr__(self) -> str:
        return f"{self.path}: step {self.step:,}\n{text_table(*self._table())}"

    def _repr_html_(self) -> str:
        return html_table(*self._table(), notes=[f"{self.path}: step {self.step:,}"])

    def _table(self) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        return ("metric", "last value"), list(self.metrics.items())


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class FinetuneResult:
    """A task's scores over its seeds, and the folder of its models."""

    path: Path
    result: TaskResult

    @property
    def median(self) -> float:
        """The median over the seeds of the reported metric, in percent."""
        return self.result.summary().median

    def __repr__(self) -> str:
        return plain(Suite(results=(self.result,)))

    def _repr_html_(self) -> str:
        return Results(path=self.path, suite=Suite(results=(self.result,)))._repr_html_()


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Results:
    """The scores of a folder's tasks over their seeds."""

    path: Path
    suite: Suite

    def __repr__(self) -> str:
        return plain(self.suite)

    def _repr_html_(self) -> str:
        header, *rows = cells(self.suite)
        return html_table(header, rows, notes=footer(self.suite))


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Evaluation:
    """A model's scores on the labelled rows of a file."""

    path: Path
    """The file."""
    values: Mapping[str, Any]
    """As in an evaluation.json: `scores`, `classes`, `confusion`, the worst `errors`, ..."""

    @property
    def scores(self) -> dict[str, float]:
        """Metrics by name, in percent, except errors such as `mse`."""
        return dict(self.values["scores"])

    @property
    def rows(self) -> int:
        """How many rows were scored."""
        return int(self.values["rows"])

    def __repr__(self) -> str:
        values = dict(self.values)
        return "\n".join([score_line(values), *evaluation_lines(values)])

    def _repr_html_(self) -> str:
        return html_table(("metric", "score"), list(self.scores.items()), notes=[score_line(dict(self.values))])


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Exported:
    """A folder that other programs load."""

    path: Path
    architecture: str
    """The class that loads it, or whose graph it is."""
    parameters: int
    source: Path
    """The checkpoint or model folder that was exported."""
    notes: tuple[str, ...] = ()
    """What was measured while writing: an ONNX file's difference from torch, its 8-bit form's size and time."""

    def __repr__(self) -> str:
        first = f"{self.path}: {self.architecture}, {self.parameters:,} parameters, from {self.source}"
        return "\n".join([first, *self.notes])

    def _repr_html_(self) -> str:
        header = ("folder", "class", "parameters", "from")
        row = (self.path, self.architecture, f"{self.parameters:,}", self.source)
        return html_table(header, [row], notes=list(self.notes))
