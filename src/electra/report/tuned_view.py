"""What a page shows of fine-tuning and GLUE: scores with their range, learning curves, errors, GLUE against FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from electra.finetune.results_table import footer
from electra.finetune.task_results import Average, TaskResult
from electra.report.answers import answer_about, one_answer
from electra.report.dots import CostPoint, Dot, cost_chart, dot_chart
from electra.report.paper_points import PAPER
from electra.report.plots import SERIES, Baseline, Chart, Line, line_chart
from electra.report.reading import Run, name_of
from electra.report.subjects import Tried
from electra.report.tuned import Evaluation, SeedCurve, Tuned
from electra.reproduce.comparison_table import named
from electra.tasks.details import Wrong

MOST_ERRORS = 20
MOST_LABELS = 30
GLUE_TASKS = 8


def tuned_section(folders: Sequence[Tuned]) -> dict[str, Any]:
    """All folders: a chart of every score, then each for itself."""
    several = len(folders) > 1
    dots = [
        Dot(
            label=f"{result.title}, {result.metrics[0]}" + (f": {tuned.name}" if several else ""),
            value=result.summary().median,
            low=result.summary().min,
            high=result.summary().max,
            colour=SERIES[place % len(SERIES)],
        )
        for result in _in_order(folders)
        for place, tuned in enumerate(folders)
        if any(result is other for other in tuned.suite.results)
    ]
    base = one_answer(folders[0], folders[0].suite.results[0]) if len(dots) == 1 else None
    blind = None if base is None else Baseline(label="one answer", value=base[1])
    return {
        "one": not several,
        "dots": Markup(dot_chart("scores", title="Scores on the dev set", dots=dots, baseline=blind))
        if blind or len(dots) > 1
        else None,
        "folders": [tuned_view(tuned, place) for place, tuned in enumerate(folders)],
    }


def _in_order(folders: Sequence[Tuned]) -> list[TaskResult]:
    """Results of the same task next to each other."""
    results = [result for tuned in folders for result in tuned.suite.results]
    order = list(dict.fromkeys(result.task for result in results))
    return sorted(results, key=lambda result: order.index(result.task))


def tuned_view(tuned: Tuned, place: int) -> dict[str, Any]:
    """One folder; `place` makes the ids of its charts unique."""
    return {
        "name": tuned.name,
        "id": f"tuned-{place}",
        "answer": answer_about(tuned),
        "rows": [_row(result, metric) for result in tuned.suite.results for metric in result.metrics],
        "notes": footer(tuned.suite),
        "curves": [
            (Markup(line_chart(chart)), caption)
            for number, result in enumerate(tuned.suite.results)
            for chart, caption in _learning(result, tuned, f"tuned-{place}-{number}")
        ],
        "evaluations": [_errors(one, tuned) for one in tuned.evaluations],
    }


def _row(result: TaskResult, metric: str) -> dict[str, Any]:
    summary = result.summary(metric)
    return {
        "task": result.title + (" (subset)" if result.subset else ""),
        "metric": metric,
        "summary": summary,
        "seeds": ", ".join(f"{run.scores[metric]:.1f}" + (" (stuck)" if run.stuck else "") for run in result.seeds),
        "rows": result.rows,
        "seconds": sum(run.seconds for run in result.seeds),
    }


def _learning(result: TaskResult, tuned: Tuned, name: str) -> list[tuple[Chart, str]]:
    """Training loss by step, and the dev score where it was measured on the way; a line a seed."""
    mine = [curve for curve in tuned.curves if curve.task == result.task]
    known = [one.curve.metric for one in tuned.evaluations if one.task == result.task and one.curve is not None]
    metric = next(iter(known), "") or result.metrics[0]
    losses, scores = ([_line(curve, kind, at) for at, curve in enumerate(mine)] for kind in ("losses", "evaluations"))
    made = []
    if any(len(line.points) > 1 for line in losses):
        caption = "Mean loss of a row since the point before (lower is better)."
        made.append((Chart(name=f"{name}-loss", title=f"{result.title}: training loss", lines=losses), caption))
    if any(len(line.points) > 1 for line in scores):
        caption = f"{metric.capitalize()} on the dev set while training."
        made.append((Chart(name=f"{name}-score", title=f"{result.title}: {metric}", lines=scores), caption))
    return made


def _line(curve: SeedCurve, kind: str, place: int) -> Line:
    colour = SERIES[place % len(SERIES)]
    return Line(label=f"seed {curve.seed}", points=getattr(curve, kind), colour=colour, dots=kind == "evaluations")


def _errors(found: Evaluation, tuned: Tuned) -> dict[str, Any]:
    """The confusion matrix with shares of each row, scores of each label, the worst errors."""
    several = len(tuned.evaluations) > 1
    shown = found.confusion if len(found.labels) <= MOST_LABELS else []
    return {
        "title": f": {found.title}" if several else "",
        "seed": found.seed,
        "labels": found.labels,
        "confusion": [
            (label, [(count, count / max(1, sum(row))) for count in row])
            for label, row in zip(found.labels, shown, strict=False)
        ],
        "classes": found.classes[:MOST_LABELS],
        "more_classes": max(0, len(found.classes) - MOST_LABELS),
        "errors": [
            (_text(one), _shown(one.label), _shown(one.prediction), one.probability)
            for one in found.errors[:MOST_ERRORS]
        ],
        "rows": found.rows,
        "wrong": found.wrong,
    }


def _text(one: Wrong) -> str:
    return one.text if one.pair is None else f"{one.text} ‖ {one.pair}"


def _shown(value: Any) -> str:
    """A label as text: a class, some classes or tags, or a number."""
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def glue_section(runs: Sequence[Run], folders: Sequence[Tuned], tried: Sequence[Tried]) -> dict[str, Any] | None:
    """GLUE averages over training FLOPs beside the paper's points; on one axis only where all eight tasks are there."""
    flops = {name_of(run.folder): run.cost.paper_flops for run in runs if run.cost.paper_flops}
    whole: list[CostPoint] = []
    part: list[CostPoint] = []
    labels: list[str] = []
    for tuned in folders:
        average = next(iter(tuned.suite.averages), None)
        model = tuned.suite.results[0].model
        if average is not None and model in flops:
            point = CostPoint(label=model, flops=flops[model], value=average.value)
            (whole if _is_whole(average) else part).append(point)
            labels.append(average.label)
    for one in tried:
        for row in one.outcome.rows:
            if len(row.tasks) > 1:
                complete = len(row.tasks) >= GLUE_TASKS and not any(task.labels for task in row.tasks)
                point = CostPoint(label=named(row), flops=row.cost.paper_flops, value=row.score.value)
                (whole if complete else part).append(point)
                labels.append(row.score.label)
    if not whole and not part:
        return None
    charts = [cost_chart("glue", title="GLUE against training FLOPs", ours=whole, paper=PAPER, unit="GLUE, dev")]
    if part:
        charts.append(cost_chart("glue-part", title="Here, a part of GLUE", ours=part, paper=(), unit="average"))
    return {
        "charts": [Markup(chart) for chart in charts],
        "labels": list(dict.fromkeys(labels)),
        "rows": sorted([(one.label, one.flops, one.value, False) for one in [*whole, *part]], key=lambda row: row[1]),
        "paper": [
            (f"{line.partition(',')[0]} {one.label}", one.flops, one.value)
            for line, points in PAPER
            for one in points
            if one.label
        ],
    }


def _is_whole(average: Average) -> bool:
    return average.name == "GLUE" and not average.missing and not average.subsets
