"""The report: a run folder as one static page that opens offline and loads nothing."""

from __future__ import annotations

import math
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

from electra.errors import ConfigError
from electra.fsio import write_atomic
from electra.metrics.rtd import entropy
from electra.progress import clock, scaled
from electra.report.plots import Baseline, Chart, Line, bar_chart, line_chart
from electra.report.reading import Points, Run, number, read_run
from electra.report.tokens import guesses, milestones, page_tokens, score

EXAMPLES = 6
DETECTING = ("rtd", "rtd-15", "electric")
RESTORING = ("replace-mlm", "all-tokens-mlm")


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the page of a run and return where it is: `report.html` in the run folder by default."""
    target = run / "report.html" if out is None else out
    write_atomic(target, render(read_run(run)).encode())
    return target


def render(run: Run) -> str:
    """The page as HTML text."""
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ModuleNotFoundError as error:
        raise ConfigError("report", "needs jinja2", fix="pip install 'electra[report]'") from error
    files = resources.files("electra.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"scaled": scaled, "clock": clock, "power": _power, "percent": lambda x: f"{x:.1%}"}
    template = environment.from_string((files / "page.html").read_text(encoding="utf-8"))
    chosen = milestones(run.samples) if run.samples else []
    return template.render(
        style=Markup((files / "page.css").read_text(encoding="utf-8")),
        run=run,
        config=run.config,
        cost=run.cost,
        detecting=run.config.objective.name in DETECTING,
        restoring=run.config.objective.name in RESTORING,
        auc=run.last("eval/rtd_auc"),
        mlm=run.last("eval/mlm_loss"),
        curves=[(Markup(line_chart(chart)), caption) for chart, caption in _curves(run)],
        details=[(Markup(line_chart(chart)), caption) for chart, caption in _details(run)],
        original=page_tokens(chosen[-1], chosen[-1].original) if chosen else [],
        masked=page_tokens(chosen[-1], chosen[-1].masked) if chosen else [],
        milestones=[(sample.step, page_tokens(sample), score(sample)) for sample in chosen],
        guesses=guesses(chosen),
        task=_task(run.demo, Markup),
        device=_device(run.facts),
    )


def _curves(run: Run) -> list[tuple[Chart, str]]:
    """The charts of the learning section with what to say about each."""
    vocab = run.config.model.vocab_size
    start = math.log(vocab)
    objective = run.config.objective.name
    reader = "model" if objective == "mlm" else "generator"
    charts = [
        (
            Chart(
                name="mlm",
                title="Guessing hidden words",
                lines=_pair(run, "mlm_loss"),
                baselines=[Baseline(label="knowing nothing", value=start)],
            ),
            f"The {reader}’s loss on masked tokens (lower is better). Picking one of the {vocab:,} entries blindly "
            f"costs ln {vocab:,} = {start:.2f}; each 0.69 less halves the words it hesitates between.",
        )
    ]
    if objective in RESTORING:
        charts += _restoring(run)
    if objective == "mlm":
        accuracy = Line(label="held-out", points=run.series("eval/mlm_accuracy"), dots=True)
        chart = Chart(name="accuracy", title="Hidden words guessed right", lines=[accuracy], percent=True)
        return [*charts, (chart, "Share of masked tokens in held-out text whose first guess is the original.")]
    if not run.series("eval/rtd_auc") and objective not in DETECTING:
        return charts
    return charts + _detecting(run)


def _restoring(run: Run) -> list[tuple[Chart, str]]:
    everywhere = run.config.objective.name == "all-tokens-mlm"
    named = Line(label="all it is asked for", points=run.series("eval/main_accuracy"), colour="plain", dots=True)
    restored = Line(label="replaced ones", points=run.series("eval/restored_accuracy"), dots=True)
    return [
        (
            Chart(name="main", title="Naming the original words", lines=_pair(run, "main_loss")),
            f"The main network’s loss on {'every token' if everywhere else 'the chosen tokens'} of the generator’s "
            "text (lower is better). It can rise for a while: as the generator improves, its fakes tell less.",
        ),
        (
            Chart(name="restored", title="Originals named right", lines=[named, restored], percent=True),
            "Share of held-out tokens whose original the main network names, and of those that were replaced.",
        ),
    ]


def _detecting(run: Run) -> list[tuple[Chart, str]]:
    rates = run.series("eval/replaced_rate")
    base: Points = [(step, entropy(rate)) for step, rate in rates if 0 < rate < 1]
    blind = Line(label="knowing only the base rate", points=base, colour="muted", dashed=True)
    auc = Line(label="held-out", points=run.series("eval/rtd_auc"), dots=True)
    ceiling = max([0.9, *(value for _, value in auc.points)])
    return [
        (
            Chart(name="rtd", title="Spotting replaced words", lines=[*_pair(run, "rtd_loss"), blind]),
            "The discriminator’s loss over all tokens (lower is better). Below the dashed line it knows more than how "
            "many tokens are replaced on average. It can rise for a while: as the generator improves, its fakes become "
            "harder to tell.",
        ),
        (
            Chart(
                name="auc",
                title="Telling fake from real (AUC)",
                lines=[auc],
                baselines=[Baseline(label="guessing", value=0.5)],
                y_range=(min([0.45, *(value for _, value in auc.points)]), min(1.0, ceiling + 0.05)),
            ),
            "Shown one replaced and one original token of held-out text, how often does the discriminator find the "
            "replaced one more suspicious? 0.5 is a coin toss, 1.0 is never wrong.",
        ),
    ]


def _details(run: Run) -> list[tuple[Chart, str]]:
    speed = Line(label="tokens/s", points=run.series("perf/tokens_per_s"))
    rate = Line(label="learning rate", points=run.series("optim/lr"))
    norm = Line(label="gradient norm", points=run.series("optim/grad_norm"))
    return [
        (Chart(name="lr", title="Learning rate", lines=[rate]), "Warm-up, then linear decay to the end of the budget."),
        (Chart(name="norm", title="Gradient norm", lines=[norm]), f"Before clipping at {run.config.optim.clip:g}."),
        (Chart(name="speed", title="Tokens a second", lines=[speed]), "Training speed, evaluations left out."),
    ]


def _pair(run: Run, name: str) -> list[Line]:
    return [
        Line(label="training", points=run.series(f"train/{name}"), colour="plain"),
        Line(label="held-out", points=run.series(f"eval/{name}"), dots=True),
    ]


def _task(demo: dict[str, Any] | None, markup: Any) -> dict[str, Any] | None:
    """The fine-tuning section: both scores, charts, examples and which labels get mixed up."""
    if not demo or not all(demo.get(key) for key in ("task", "pretrained", "untrained")):
        return None
    task, kinds = demo["task"], {key: demo[key] for key in ("pretrained", "untrained")}
    labels = [str(label) for label in task["labels"]]
    scores = {key: number(kind["accuracy"]) or 0.0 for key, kind in kinds.items()}
    chance = Baseline(label="chance", value=1 / len(labels))
    bars = [("pre-trained", scores["pretrained"], "one"), ("untrained", scores["untrained"], "plain")]
    epochs = [
        Line(label=label, points=_numbered(kinds[key]["accuracies"]), colour=colour, dots=True)
        for key, label, colour in (("pretrained", "pre-trained", "one"), ("untrained", "untrained", "plain"))
    ]
    top = min(1.0, 1.25 * max(*scores.values(), chance.value))
    by_epoch = Chart(
        name="epochs", title="Right answers, epoch by epoch", lines=epochs, baselines=[chance], x_label="epochs",
        percent=True, whole_x=True, y_range=(0.0, top),
    )  # fmt: skip
    return {
        **task,
        **scores,
        "labels": labels,
        "chance": chance.value,
        "seconds": sum(number(kind["seconds"]) or 0.0 for kind in kinds.values()),
        "bars": markup(bar_chart("bars", title="Right answers", bars=bars, baseline=chance, top=top)),
        "epochs": markup(line_chart(by_epoch)),
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


def _device(facts: dict[str, Any]) -> str:
    gpus = [str(gpu.get("name")) for gpu in facts.get("gpus") or []]
    if gpus:
        return f"{len(gpus)} × {gpus[0]}" if len(gpus) > 1 else gpus[0]
    return f"{facts.get('cpu', 'CPU')}, {facts.get('cores', '?')} cores"


def _power(value: float) -> tuple[str, int]:
    """A number as digits and a power of ten: 1.23 and 15."""
    if value <= 0:
        return "0", 0
    exponent = math.floor(math.log10(value))
    return f"{value / 10**exponent:.2f}", exponent
