"""A fine-tuning task as data: its labels, its metrics, its splits and their official number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from electra.tasks.rows import Kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Everything that differs between one task and another, except how its files are read."""

    name: str
    """As on the command line: `cola`."""
    title: str
    """As in tables and folder names: `CoLA`."""
    kind: Kind
    labels: tuple[str, ...] = ()
    """Class names in the order of the network's outputs; none for regression."""
    metrics: tuple[str, ...] = ("accuracy",)
    """Names of the metrics to print; the first is the reported one, by which runs are compared."""
    chosen_by: str = ""
    """The metric that chooses weights and ends training, where it is not the reported one."""
    offset: float = 0.0
    scale: float = 1.0
    """Regression: the network learns (label - offset) / scale."""
    unordered: bool = False
    """The two texts of a pair may be swapped: training adds the swapped pairs."""
    splits: tuple[str, ...] = ("train", "dev")
    """Splits with labels, the training one first."""
    tests: tuple[str, ...] = ()
    """Splits without labels."""
    model_of: str | None = None
    """Name of the task whose model predicts this one, where it has no training rows of its own."""
    official_rows: Mapping[str, int] = field(default_factory=dict)
    """Rows of each split as published, where known."""

    @property
    def metric(self) -> str:
        """The reported metric."""
        return self.metrics[0]

    @property
    def choice(self) -> str:
        """The metric that chooses weights and ends training."""
        return self.chosen_by or self.metric
