"""An experiment of the paper as data: what is compared, at which budget, on which tasks, in which plot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from electra.config.schema import Config

Budget = Literal["flops", "steps", "minutes"]
"""What the configurations of an experiment have in common: training FLOPs by the paper's rules, optimizer steps, or
training time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One configuration: what it changes, and what the paper measured for it."""

    name: str
    """Of its folders, and on the command line."""
    title: str
    """In tables and plots."""
    overrides: tuple[str, ...] = ()
    """`key=value` settings that make it different."""
    paper: float | None = None
    """The paper's score, where it prints one."""
    paper_at: tuple[tuple[float, float], ...] = ()
    """The same for earlier checkpoints: share of the run, score."""
    share: float = 1.0
    """Part of the experiment's budget that it gets."""
    like: str = ""
    """The variant whose cost it must have; empty means the experiment's first."""
    x: float | None = None
    """Its place on a plot's horizontal axis."""
    line: str = ""
    """The line of a plot that it is a point of."""
    note: str = ""
    """What a reader of its row must know."""

    def paper_score(self, share: float) -> float | None:
        """The paper's score after this share of the run."""
        return self.paper if share == 1.0 else dict(self.paper_at).get(share)


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """A table or figure of the paper."""

    name: str
    title: str
    question: str
    """One sentence."""
    source: str
    """Where it stands in the paper."""
    finding: str
    """What the paper found, in a sentence."""
    grid: Callable[[Config], tuple[Variant, ...]]
    """The configurations around a scale's own, the ones that matter most first."""
    preset: str = "base"
    """The paper's size."""
    budget: Budget = "flops"
    paper_steps: int = 0
    """Steps of the first configuration in the paper; 0 means its preset's."""
    checkpoints: tuple[float, ...] = (1.0,)
    """Shares of each run after which it is scored."""
    tasks: tuple[str, ...] = ()
    """GLUE tasks to score on; none means the scale's."""
    choice: bool = False
    """Whether it chooses a setting: then it is scored with the seeds for choices, not those for reports."""
    plot: Literal["dots", "lines", "curves"] = "dots"
    """Dots; lines over `Variant.x`; or curves over the FLOPs of each run's checkpoints."""
    x_label: str = ""
    log_x: bool = False
    references: tuple[tuple[str, float], ...] = ()
    """Rows of the paper that are not run here, such as other people's models."""


def fixed(*variants: Variant) -> Callable[[Config], tuple[Variant, ...]]:
    """A grid that is the same at every scale."""
    return lambda base: variants
