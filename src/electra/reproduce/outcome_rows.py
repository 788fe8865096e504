"""A finished configuration's folders as rows: scores, costs and measured times."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from electra.errors import DataError
from electra.model.cost import train_flops
from electra.reproduce.outcome import Cost, Measured, Row, score_of, task_score
from electra.reproduce.plan import Planned, Point
from electra.reproduce.scorer import Scorer, open_scores
from electra.train.metrics_file import FILE, read_lines


def rows_of(planned: Planned, *, run: Path, scorer: Scorer) -> list[Row]:
    """A row for each scored checkpoint, in the order of training."""
    lines = read_lines(run / FILE)
    return [_row(planned, point, lines, scorer, run) for point in planned.points]


def _row(planned: Planned, point: Point, lines: list[dict[str, Any]], scorer: Scorer, run: Path) -> Row:
    variant, config = planned.variant, planned.config
    upto = [line for line in lines if not point.step or line["step"] <= point.step]
    train = [line for line in upto if line["kind"] == "train"]
    evaluations = [line for line in upto if line["kind"] == "eval"]
    suite = open_scores(scorer.folder(planned, point))
    if not train:
        raise DataError(run / FILE, "has no line of training", fix="train it again")
    steps, last = int(train[-1]["step"]), train[-1]
    cost = train_flops(config, steps=steps)
    speeds = sorted(speed for line in train if (speed := line.get("perf/tokens_per_s")) is not None)
    return Row(
        variant=variant.name,
        title=variant.title,
        share=point.share,
        paper=point.paper,
        score=score_of(suite),
        tasks=tuple(task_score(result) for result in suite.results),
        cost=Cost(
            parameters=cost.parameters.total,
            kept=cost.parameters.encoder,
            steps=steps,
            tokens=cost.tokens,
            text_tokens=int(last.get("tokens") or 0),
            paper_flops=cost.paper,
            real_flops=cost.real,
        ),
        measured=Measured(
            device_seconds=float(last.get("time_s") or 0.0),
            tokens_per_s=speeds[len(speeds) // 2] if speeds else 0.0,
            finetune_seconds=sum(one.seconds for result in suite.results for one in result.seeds),
        ),
        held_out=_figures(evaluations[-1]) if evaluations else {},
        overrides=variant.overrides,
        x=variant.x,
        line=variant.line,
        note=variant.note,
    )


def _figures(line: dict[str, Any]) -> dict[str, float]:
    return {
        key.removeprefix("eval/"): value
        for key, value in line.items()
        if key.startswith("eval/") and isinstance(value, float) and math.isfinite(value)
    }
