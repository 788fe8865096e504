"""The curves of pre-training: one run with training and held-out lines, or several runs overlaid."""

from __future__ import annotations

import math
from collections.abc import Sequence

from electra.metrics.rtd import entropy
from electra.report.plots import SERIES, Baseline, Chart, Line
from electra.report.reading import Points, Run

DETECTING = ("rtd", "rtd-15", "electric")
RESTORING = ("replace-mlm", "all-tokens-mlm")
Captioned = list[tuple[Chart, str]]

COMPARED = (
    ("auc", "Telling fake from real (AUC)", "eval/rtd_auc", "0.5 is a coin toss, 1.0 is never wrong. It "
     "depends on the generator: compare runs whose generators are alike."),
    ("rtd", "Spotting replaced tokens", "eval/rtd_loss", "The discriminator’s held-out loss (lower is better). It "
     "depends on the generator: compare runs whose generators are alike."),
    ("main", "Naming the original tokens", "eval/main_loss", "The main network’s held-out loss (lower is better)."),
    ("mlm", "Guessing masked tokens", "eval/mlm_loss", "The held-out loss at masked positions (lower is better), of "
     "the generator where there is one."),
    ("train", "Training loss", "train/loss", "The weighted sum that is minimised; comparable only where objective and "
     "weights are the same."),
)  # fmt: skip
"""Name, title, metric and caption of the charts that several runs share."""


def overlaid(runs: Sequence[Run]) -> Captioned:
    """The charts of several runs, a line a run, for every metric that one of them has."""
    made: Captioned = []
    for name, title, key, caption in COMPARED:
        lines = _lines(runs, [run.series(key) for run in runs], dots=key.startswith("eval/"))
        if any(line.points for line in lines):
            blind = [Baseline(label="guessing", value=0.5)] if name == "auc" else []
            made.append((Chart(name=name, title=title, lines=lines, baselines=blind, x_label=x_label(runs)), caption))
    return made


def throughput(runs: Sequence[Run]) -> Captioned:
    """Tokens a second from 0 on, a line a run."""
    lines = _lines(runs, [run.series("perf/tokens_per_s") for run in runs])
    top = max((value for line in lines for _, value in line.points), default=1.0)
    chart = Chart(
        name="speed",
        title="Tokens a second",
        lines=lines,
        x_label=x_label(runs),
        y_range=(0.0, 1.15 * top),
        thousands=True,
    )
    return _drawable([(chart, "Training speed, evaluations left out.")])


def optimisation(runs: Sequence[Run]) -> Captioned:
    """Learning rate and gradient norm, a line a run."""
    clips = ", ".join(f"{clip:g}" for clip in sorted({run.config.optim.clip for run in runs}))
    rate = _lines(runs, [run.series("optim/lr") for run in runs])
    norm = _lines(runs, [run.series("optim/grad_norm") for run in runs])
    return _drawable(
        [
            (Chart(name="lr", title="Learning rate", lines=rate, x_label=x_label(runs)), "Warm-up, then decay."),
            (
                Chart(name="norm", title="Gradient norm", lines=norm, x_label=x_label(runs)),
                f"Before clipping at {clips}.",
            ),
        ]
    )


def _drawable(charts: Captioned) -> Captioned:
    """Those that have a point to draw."""
    return [(chart, caption) for chart, caption in charts if any(line.points for line in chart.lines)]


def x_label(runs: Sequence[Run]) -> str:
    """Steps where a step is the same amount of text in all runs, else tokens."""
    return "steps" if len({_step_tokens(run) for run in runs}) == 1 else "tokens"


def _lines(runs: Sequence[Run], series: Sequence[Points], *, dots: bool = False) -> list[Line]:
    by_tokens = x_label(runs) == "tokens"
    return [
        Line(
            label=run.name,
            points=[(x * (_step_tokens(run) if by_tokens else 1), y) for x, y in points],
            colour=SERIES[place % len(SERIES)],
            dots=dots,
            dashed=place >= len(SERIES),
        )
        for place, (run, points) in enumerate(zip(runs, series, strict=True))
    ]


def _step_tokens(run: Run) -> int:
    return run.config.train.batch_size * run.config.data.length


def learning(run: Run) -> list[tuple[Chart, str]]:
    """The charts of one run's learning with what to say about each."""
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
    comparing = _comparing(run)
    if objective == "mlm":
        accuracy = Line(label="held-out", points=run.series("eval/mlm_accuracy"), dots=True)
        chart = Chart(name="accuracy", title="Hidden words guessed right", lines=[accuracy], percent=True)
        caption = "Share of masked tokens in held-out text whose first guess is the original."
        return [*charts, (chart, caption), *comparing]
    if not run.series("eval/rtd_auc") and objective not in DETECTING:
        return charts
    return [*charts, *_detecting(run), *comparing]


def _comparing(run: Run) -> list[tuple[Chart, str]]:
    """What [CLS] tells of a row's two segments, where a run asks for it."""
    error = Line(label="training", points=run.series("train/overlap_error"), colour="plain")
    if not error.points:
        return []
    return [
        (
            Chart(name="overlap", title="Comparing two segments", lines=[error], percent=True),
            "How far off [CLS] is about the share of one segment’s tokens that stand in the other, rare ones weighing "
            "more (lower is better).",
        )
    ]


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


def _pair(run: Run, name: str) -> list[Line]:
    return [
        Line(label="training", points=run.series(f"train/{name}"), colour="plain"),
        Line(label="held-out", points=run.series(f"eval/{name}"), dots=True),
    ]
