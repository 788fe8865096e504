"""An experiment's outcome as Markdown: the paper's scores beside ours, and under them what each row cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from electra.progress import clock, scaled
from electra.reproduce.experiment import Experiment
from electra.reproduce.experiments import EXPERIMENTS
from electra.reproduce.results import Outcome, Row
from electra.reproduce.scale import SCALES

_BUDGETS = {
    "flops": "the same training FLOPs by the paper's rules",
    "steps": "the same number of steps",
    "minutes": "the same training time",
}


def markdown(outcome: Outcome) -> str:
    """The whole page."""
    experiment, scale = EXPERIMENTS[outcome.experiment], SCALES[outcome.scale]
    parts = [f"# {experiment.title}", experiment.question, f"**Paper** ({experiment.source}): {experiment.finding}"]
    parts.append("\n".join(_grid(score_cells(outcome))))
    parts += notes(outcome)
    if outcome.rows:
        parts += ["## What it cost", "\n".join(_grid(cost_cells(outcome)))]
        parts.append(
            f"Scale {scale.name}: {scale.title}. Device: {outcome.device}. Every configuration got "
            f"{_BUDGETS[outcome.budget]}, or the part of it that its name says."
        )
    return "\n\n".join(parts) + "\n"


def score_cells(outcome: Outcome) -> list[list[str]]:
    """The header and rows of the scores: the paper's, ours with the range of the seeds, each task's median."""
    experiment = EXPERIMENTS[outcome.experiment]
    titles = list(dict.fromkeys(task.title for row in outcome.rows for task in row.tasks))
    several = titles[1:]
    header = ["configuration", "paper", "here", "range over seeds", *(titles if several else [])]
    body = []
    for row in ordered(outcome):
        medians = {task.title: _score(task.median) + ("*" if task.labels else "") for task in row.tasks}
        spread = f"{_score(row.score.low)} to {_score(row.score.high)}" if len(row.score.seeds) > 1 else "one seed"
        here = f"**{_score(row.score.value)}**"
        body.append(
            [named(row), _score(row.paper), here, spread, *((medians.get(t, "") for t in titles) if several else ())]
        )
    empty = [""] * (len(header) - 4)
    body += [[f"{title} (not run here)", _score(score), "", "", *empty] for title, score in experiment.references]
    return [header, *body]


def cost_cells(outcome: Outcome) -> list[list[str]]:
    """The header and rows of the compute ledger."""
    header = [
        *("configuration", "parameters", "kept", "steps", "tokens", "FLOPs (paper)", "FLOPs (real)"),
        *("device time", "tokens/s", "fine-tuning"),
    ]
    return [
        header,
        *(
            [
                named(row),
                scaled(row.cost.parameters),
                scaled(row.cost.kept),
                f"{row.cost.steps:,}",
                scaled(row.cost.tokens),
                f"{row.cost.paper_flops:.2e}",
                f"{row.cost.real_flops:.2e}",
                clock(row.measured.device_seconds),
                scaled(row.measured.tokens_per_s),
                clock(row.measured.finetune_seconds),
            ]
            for row in ordered(outcome)
        ),
    ]


def notes(outcome: Outcome) -> list[str]:
    """Everything that must be read with the scores."""
    experiment, scale = EXPERIMENTS[outcome.experiment], SCALES[outcome.scale]
    found = [f"**{scale.caution}**"] if scale.caution else []
    if outcome.rows:
        labels = list(dict.fromkeys(row.score.label for row in outcome.rows))
        seeds = ", ".join(map(str, outcome.seeds))
        kept = "kept for choices" if experiment.choice else "kept for reports"
        found.append(
            f"Here: {'; '.join(labels)}, the median over fine-tuning seeds {seeds} ({kept}) in percent; the range is "
            "that of the seeds' own averages. One pre-training run each. The paper's scores are on all of GLUE's "
            "development sets, at its own size: compare differences, not levels."
        )
    found += [line for line in (_order(outcome, experiment),) if line]
    lines = [f"{row.title}: {row.note}." for row in last_rows(outcome) if row.note]
    lines += [f"Settings for every configuration: {' '.join(outcome.overrides)}"] if outcome.overrides else []
    subsets = {f"*{task.title}: {label}" for row in outcome.rows for task in row.tasks for label in task.labels}
    lines += sorted(subsets)
    for row in ordered(outcome):
        stuck = [f"{task.title} (seed {', '.join(map(str, task.stuck))})" for task in row.tasks if task.stuck]
        lines += [f"{named(row)}: stuck on one answer, and counted like any other: {', '.join(stuck)}"] if stuck else []
    lines += [f"Not finished: {', '.join(outcome.missing)}"] if outcome.missing else []
    lines += [f"Diverged: {', '.join(outcome.diverged)}"] if outcome.diverged else []
    lines += [f"Not run at this scale: {', '.join(outcome.left_out)}"] if outcome.left_out else []
    return [*found, *(["\n".join(f"- {line}" for line in lines)] if lines else [])]


def ordered(outcome: Outcome) -> list[Row]:
    """Rows as a reader expects them: by place on the axis where there is one, else the paper's best first."""
    if any(row.x is not None for row in outcome.rows):
        return sorted(outcome.rows, key=lambda row: (row.line, math.inf if row.x is None else row.x, row.share))
    best = {row.variant: row.paper for row in outcome.rows if row.share == 1.0}
    order = list(dict.fromkeys(row.variant for row in outcome.rows))

    def place(row: Row) -> tuple[float, int, float]:
        paper = best.get(row.variant)
        return (math.inf if paper is None else -paper, order.index(row.variant), -row.share)

    return sorted(outcome.rows, key=place)


def last_rows(outcome: Outcome) -> list[Row]:
    """The rows of whole runs."""
    return [row for row in ordered(outcome) if row.share == 1.0]


def named(row: Row) -> str:
    """`ELECTRA-Small` or `ELECTRA-Small, after 25 %`."""
    return row.title if row.share == 1.0 else f"{row.title}, after {row.share * 100:g} %"


def _order(outcome: Outcome, experiment: Experiment) -> str:
    rows = last_rows(outcome)
    here = " > ".join(row.title for row in sorted(rows, key=lambda row: -row.score.value))
    if len(rows) < 2:
        return ""
    papers = sorted((row for row in rows if row.paper is not None), key=lambda row: -(row.paper or 0.0))
    there = "".join(
        (" = " if number and row.paper == papers[number - 1].paper else " > " if number else "") + row.title
        for number, row in enumerate(papers)
    )
    return f"Order here: {here}." + (f" In the paper: {there}." if there else "")


def _grid(cells: Sequence[Sequence[str]]) -> list[str]:
    header, *body = cells
    rule = ["---", *["---:"] * (len(header) - 1)]
    return ["| " + " | ".join(row) + " |" for row in (header, rule, *body)]


def _score(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if math.isfinite(value) else "-"
