"""An experiment's outcome as Markdown: the paper's scores next to ours, then what each row cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from electra.progress import clock, scaled
from electra.reproduce.experiments import EXPERIMENTS
from electra.reproduce.outcome import Outcome, Row
from electra.reproduce.scale import SCALES

_BUDGETS = {
    "flops": "the same training FLOPs by the paper's rules",
    "steps": "the same number of steps",
    "minutes": "the same training time",
}


def markdown(outcome: Outcome) -> str:
    """The whole page."""
    experiment = EXPERIMENTS[outcome.experiment]
    parts = [f"# {experiment.title}", experiment.question, f"**Paper** ({experiment.source}): {experiment.finding}"]
    parts.append("\n".join(_grid(score_cells(outcome))))
    parts += notes(outcome)
    if outcome.rows:
        parts += ["## What it cost", "\n".join(_grid(cost_cells(outcome)))]
        parts.append(
            f"Scale {shown_scale(outcome)}. Device: {outcome.device}. Every configuration got "
            f"{_BUDGETS[outcome.budget]}, or the part of it that a note names."
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
    """The header and rows of the costs."""
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
        seeds = ("seeds " if outcome.seeds[1:] else "seed ") + ", ".join(map(str, outcome.seeds))
        purpose = "kept for choices" if experiment.choice else "kept for reports"
        found.append(
            f"Here: {'; '.join(labels)}, in percent: the median over fine-tuning {seeds} ({purpose}); the range is "
            "that of the seeds' own averages. One pre-training run each. The paper's scores are on all of GLUE's "
            "development sets, at its own size: compare differences, not absolute scores."
        )
    found += [line for line in (_order(outcome),) if line]
    lines = [f"{row.title}: {row.note}." for row in last_rows(outcome) if row.note]
    lines += [f"Settings for every configuration: {' '.join(outcome.overrides)}"] if outcome.overrides else []
    subsets = {f"*{task.title}: {label}" for row in outcome.rows for task in row.tasks for label in task.labels}
    lines += sorted(subsets)
    stuck: dict[str, list[str]] = {}
    for row in ordered(outcome):
        for task in (task for task in row.tasks if task.stuck):
            stuck.setdefault(f"{task.title}, seed {', '.join(map(str, task.stuck))}", []).append(named(row))
    lines += [
        f"Stuck on one answer, and counted like any other ({where}): {', '.join(rows)}" for where, rows in stuck.items()
    ]
    lines += [f"Not finished: {', '.join(outcome.missing)}"] if outcome.missing else []
    lines += [f"Diverged: {', '.join(outcome.diverged)}"] if outcome.diverged else []
    lines += [f"Not run: {', '.join(outcome.left_out)}"] if outcome.left_out else []
    return [*found, *(["\n".join(f"- {line}" for line in lines)] if lines else [])]


def shown_scale(outcome: Outcome) -> str:
    """The scale's name and title, and what was changed about it."""
    changed = f", with {' '.join(outcome.changes)}" if outcome.changes else ""
    return f"{outcome.scale} ({SCALES[outcome.scale].title}){changed}"


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


def _order(outcome: Outcome) -> str:
    """Who is ahead of whom; `≈` where the seeds' ranges overlap."""
    rows = sorted(last_rows(outcome), key=lambda row: -row.score.value)
    if len(rows) < 2:
        return ""
    here = rows[0].title
    for before, row in zip(rows, rows[1:], strict=False):
        equal = _score(before.score.value) == _score(row.score.value)
        here += f" {'=' if equal else '≈' if before.score.low <= row.score.high else '>'} {row.title}"
    papers = sorted((row for row in rows if row.paper is not None), key=lambda row: -(row.paper or 0.0))
    there = "".join(
        (" = " if number and row.paper == papers[number - 1].paper else " > " if number else "") + row.title
        for number, row in enumerate(papers)
    )
    overlap = " (≈: the seeds' ranges overlap)" if "≈" in here else ""
    return f"Order here: {here}{overlap}." + (f" In the paper: {there}." if there else "")


def _grid(cells: Sequence[Sequence[str]]) -> list[str]:
    header, *body = cells
    rule = ["---", *["---:"] * (len(header) - 1)]
    return ["| " + " | ".join(row) + " |" for row in (header, rule, *body)]


def _score(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if math.isfinite(value) else "-"
