"""What a page shows of pre-training: figures, curves, samples, the demo's task, cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from electra.hardware import machine_of
from electra.report.answers import answer_about
from electra.report.curves import DETECTING, RESTORING, learning, optimisation, overlaid, throughput
from electra.report.plots import Baseline, Chart, Line, bar_chart, line_chart
from electra.report.reading import Points, Run, Sample, number
from electra.report.tokens import by_detection, guesses, milestones, page_tokens, score

EXAMPLES = 6


def runs_section(runs: Sequence[Run]) -> dict[str, Any]:
    """All runs together: curves, alone or overlaid, then each for itself."""
    charts = learning(runs[0]) if len(runs) == 1 else overlaid(runs)
    return {
        "one": len(runs) == 1,
        "curves": [(Markup(line_chart(chart)), caption) for chart, caption in charts],
        "machine": [(Markup(line_chart(chart)), caption) for chart, caption in throughput(runs) + optimisation(runs)],
        "runs": [run_view(run, place) for place, run in enumerate(runs)],
    }


def run_view(run: Run, place: int) -> dict[str, Any]:
    """One run: its answer, figures, samples and cost; `place` makes the ids of its charts unique."""
    objective, gpus = run.config.objective.name, len(run.facts.get("gpus") or ())
    return {
        "run": run,
        "id": f"run-{place}",
        "answer": answer_about(run),
        "config": run.config,
        "cost": run.cost,
        "detecting": objective in DETECTING or run.last("eval/rtd_auc") is not None,
        "restoring": objective in RESTORING,
        "auc": run.last("eval/rtd_auc"),
        "figures": {name: run.last(f"eval/{name}") for name in ("rtd_auc", "rtd_loss", "mlm_loss", "mlm_accuracy")},
        "samples": samples_view(run.samples, adapted=bool(run.start)),
        "task": _task(run, f"run-{place}"),
        "device": (f"{gpus} × " if gpus > 1 else "") + machine_of(run.facts),
        "folder": run.demo.get("folder") or run.name if run.demo else run.name,
    }


def samples_view(samples: Sequence[Sample], *, adapted: bool = False) -> dict[str, Any] | None:
    """The best-detected held-out sequence and a typical one, and how the first one looked earlier in training.

    Of a model that was `adapted`, a typical one before and after it instead.
    """
    if not samples:
        return None
    chosen = milestones(samples)
    ranked = by_detection(samples)
    picked: list[tuple[str, Sample]] = []
    if len(ranked) > 2:
        middle = ranked[len(ranked) // 2]
        picked = [("A typical one", middle[1]), ("The best-detected one", ranked[0][1])]
        if adapted:
            first = min(samples, key=lambda one: (one.original != middle[1].original, one.step))
            picked = [("Before adapting", first), ("After", middle[1])]
    elif chosen[-1].replaced:
        picked = [("At the end", chosen[-1])]
    return {
        "count": len(ranked),
        "adapted": adapted,
        "original": page_tokens(chosen[-1], chosen[-1].original),
        "masked": page_tokens(chosen[-1], chosen[-1].masked),
        "picked": [
            _shown(title, sample, next((auc for auc, other in ranked if other is sample), None))
            for title, sample in picked
        ],
        "milestones": [_shown(_when(sample), sample, None) for sample in chosen],
        "guesses": guesses(chosen),
    }


def _shown(title: str, sample: Sample, auc: float | None) -> dict[str, Any]:
    tokens = page_tokens(sample)
    return {
        "title": title,
        "step": sample.step,
        "auc": auc,
        "tokens": tokens,
        "score": score(sample),
        "replaced": [token for token in tokens if token.changed],
    }


def _when(sample: Sample) -> str:
    return f"step {sample.step:,}" if sample.step else "before training"


def _task(run: Run, name: str) -> dict[str, Any] | None:
    """The fine-tuning section: every encoder's score, charts, examples and which labels get mixed up."""
    demo = run.demo
    if not demo or not all(demo.get(key) for key in ("task", "pretrained", "untrained")):
        return None
    drawn = [("untrained", "untrained", "plain")]
    drawn += [("bundled", run.start, "two"), ("pretrained", "adapted", "one")] if run.start else []
    drawn += [] if run.start else [("pretrained", "pre-trained", "one")]
    task, kinds = demo["task"], {key: demo[key] for key, _, _ in drawn}
    labels = [str(label) for label in task["labels"]]
    scores = {key: number(kind["accuracy"]) or 0.0 for key, kind in kinds.items()}
    chance = Baseline(label="chance", value=1 / len(labels))
    bars = [(label, scores[key], colour) for key, label, colour in drawn]
    epochs = [
        Line(label=label, points=_numbered(kinds[key]["accuracies"]), colour=colour, dots=True)
        for key, label, colour in drawn
    ]
    top = min(1.0, 1.25 * max(*scores.values(), chance.value))
    by_epoch = Chart(
        name=f"{name}-epochs", title="Right answers, epoch by epoch", lines=epochs, baselines=[chance],
        x_label="epochs", percent=True, whole_x=True, y_range=(0.0, top),
    )  # fmt: skip
    return {
        **task,
        **scores,
        "start": run.start,
        "encoders": [(key, label) for key, label, _ in drawn],
        "labels": labels,
        "chance": chance.value,
        "times": task.get("times", 1),  # demos before had one fine-tuning
        "seconds": sum(number(kind["seconds"]) or 0.0 for kind in kinds.values()),
        "bars": Markup(bar_chart(f"{name}-bars", title="Right answers", bars=bars, baseline=chance, top=top)),
        "epochs": Markup(line_chart(by_epoch)),
        "examples": task.get("examples", [])[:EXAMPLES],
        "confusion": _confusion(labels, task.get("gold"), kinds["pretrained"].get("predictions")),
    }


def _numbered(values: list[float | None]) -> Points:
    return [(place, value) for place, value in enumerate(values, 1) if value is not None]


def _confusion(labels: list[str], gold: Any, predicted: Any) -> list[tuple[str, list[tuple[int, float]]]]:
    """For each true label, how often each label was predicted: count and share."""
    if not isinstance(gold, list) or not isinstance(predicted, list) or len(gold) != len(predicted):
        return []
    pairs = Counter(zip(gold, predicted, strict=True))
    totals = Counter(gold)
    return [(true, [(n := pairs[true, label], n / max(1, totals[true])) for label in labels]) for true in labels]
