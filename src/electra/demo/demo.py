"""The demo, end to end: documentation on this machine -> a model adapted to it -> fine-tuned -> report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from electra.config.load import load
from electra.config.schema import Config
from electra.demo.documentation import PACKAGES, SampleInfo, read_rows, read_sample, write_sample
from electra.demo.task import (
    FINETUNE,
    PACKAGE,
    SEEDS,
    SWAPS,
    WORD_ORDER,
    Encoder,
    Tuned,
    compare,
    labels_used,
    write_word_order,
)
from electra.errors import ConfigError
from electra.finetune.pretrained import load_pretrained
from electra.fsio import read_json, write_json
from electra.interop.bundled import TINY, bundled_folder, present
from electra.interop.continuation import Start, continue_from
from electra.pretrain import pretrain
from electra.progress import counted, progress, say
from electra.report import write_report
from electra.report.reading import DEMO, read_run
from electra.report.rendering import require_drawing
from electra.shards.build import prepare
from electra.shards.options import PrepareOptions

MINUTES, MINUTES_FROM_ZERO = 2.0, 2.6
VOCAB_SIZE = 8192
HELD_OUT_SHARE = 0.02
_BOTH = (
    "train.steps=10000000",  # more than any number of minutes: these decide
    "train.batch_size=16",  # a few hundred steps: small batches make more of them
    "model.dropout=0.0",  # nothing this short needs it
    "model.attention_dropout=0.0",
    "train.log_every=20",
    "checkpoint.every=500",
    "checkpoint.keep=1",
)
ADAPT = (
    *_BOTH,
    "optim.warmup_steps=50",
    "optim.warmup_share=0.1",
    "optim.ema=0.0",
    "data.length=64",
    "evaluate.every=100",
    "evaluate.seconds=0.0",
    "evaluate.sequences=512",
    "checkpoint.seconds=60.0",
)
PRETRAIN = (
    *_BOTH,
    "optim.warmup_steps=100",
    "optim.lr=4e-4",
    "evaluate.every=150",
    "evaluate.sequences=128",
)
EPOCHS = 5
QUESTIONS = {
    PACKAGE: "Which package does this passage describe? Passages that name one of them are left out.",
    WORD_ORDER: f"Are the words of this passage in order? In every second one, {SWAPS} pairs of neighbouring words were"
    " swapped.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoResult:
    """Where the report is, and its headline figures."""

    report: Path
    run: Path
    tuned: Path
    """The fine-tuned model, for `electra predict` and `electra export`."""
    auc: tuple[float, float]
    """On held-out text, before and after."""
    loss: tuple[float, float]
    """The discriminator's, on held-out text, before and after."""
    pretrained: float
    """Accuracy of the encoder that the demo trained, fine-tuned, the mean where that is done several times; ..."""
    bundled: float | None
    """... of the one it went on from; None where it began from zero; ..."""
    untrained: float
    """... and of the same network with fresh weights."""
    chance: float
    """Accuracy of guessing."""
    seconds: float


def demo(
    out: Path,
    *,
    minutes: float | None = None,
    epochs: int = EPOCHS,
    packages: Sequence[str] = PACKAGES,
    from_zero: bool = False,
) -> DemoResult:
    """Run every stage that is not finished yet in the folder `out`.

    `minutes` are for pre-training, `epochs` for fine-tuning; `packages` are those whose documentation is read. It goes
    on from `electra:tiny`, or `from_zero`.
    """
    began = time.monotonic()
    require_drawing("electra demo")
    minutes = (MINUTES_FROM_ZERO if from_zero else MINUTES) if minutes is None else minutes
    if minutes <= 0:
        raise ConfigError("--minutes", f"{minutes:g} is not above 0")
    if not from_zero and TINY not in present():
        raise ConfigError("electra demo", f"{TINY} is not in this installation", fix="electra demo --from-zero")
    say("1/5 Text: the documentation that is already on this machine")
    sample = read_text(out, packages)
    made = "a vocabulary of its own, and the text as tokens" if from_zero else f"the text as tokens of {TINY}"
    say(f"2/5 Data: {made}")
    prepare_data(out, sample, from_zero=from_zero)
    what = "generator and discriminator" if from_zero else f"{TINY}, generator and discriminator, goes on"
    say(f"3/5 Pre-training: {what}, for {counted(minutes, 'minute')}")
    config, start = config_of(out / "run", [f"train.max_minutes={minutes}"], from_zero=from_zero)
    run = pretrain(config, data=out / "data", out=out / "run", start=start)
    task = PACKAGE if from_zero else WORD_ORDER
    rows = rows_of(out, from_zero=from_zero)
    labels = labels_used(sample.train, config=FINETUNE[task])
    encoders_named = "two encoders" if from_zero else f"three encoders, {SEEDS[task]} times each"
    say(f"4/5 Fine-tuning: {QUESTIONS[task].partition('?')[0].lower()}? {labels} labels, from {encoders_named}")
    starts = encoders_of(run, from_zero=from_zero)
    encoders = compare(starts, task=task, folder=rows, out=out / "tuned", epochs=epochs)
    results = _results(run, sample, encoders, task=task, rows=rows, tuned=out / "tuned")
    if not (run / DEMO).is_file() or read_json(run / DEMO) != results:
        write_json(run / DEMO, results)
    say("5/5 Report")
    page = write_report(run, out=out / "report.html")
    read = read_run(run)
    auc, loss = read.series("eval/rtd_auc"), read.series("eval/rtd_loss")
    return DemoResult(
        report=page,
        run=run,
        tuned=out / "tuned" / "pretrained",
        auc=(auc[0][1], auc[-1][1]),
        loss=(loss[0][1], loss[-1][1]),
        pretrained=encoders["pretrained"].accuracy,
        bundled=None if from_zero else encoders["bundled"].accuracy,
        untrained=encoders["untrained"].accuracy,
        chance=1 / len(results["task"]["labels"]),
        seconds=time.monotonic() - began,
    )


def read_text(out: Path, packages: Sequence[str]) -> SampleInfo:
    """The corpus and the task's rows, in `out`/sample, written where they are not there yet."""
    folder = out / "sample"
    known = read_sample(folder)
    if known is not None:
        say(f"{folder}: already there")
        return known
    with progress("Reading docstrings", unit="packages") as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done)

        return write_sample(folder, packages=packages, on_progress=show)


def prepare_data(out: Path, sample: SampleInfo, *, from_zero: bool) -> None:
    """The corpus as tokens in `out`/data: of the bundled model's vocabulary, or of one trained on it."""
    corpus = [str(out / "sample" / sample.corpus)]
    if not from_zero:
        options = PrepareOptions(held_out_share=HELD_OUT_SHARE)
        prepare(corpus, out=out / "data", options=options, vocab=bundled_folder(Path(TINY)))
        return
    # lower case: a vocabulary this small, on text this little, has no room for both
    options = PrepareOptions(
        vocab_size=VOCAB_SIZE, tokenizer="wordpiece", lowercase=True, strip_accents=True, held_out_share=HELD_OUT_SHARE
    )
    prepare(corpus, out=out / "data", options=options)


def config_of(run: Path, overrides: Sequence[str], *, from_zero: bool) -> tuple[Config, Start | None]:
    """The config of the demo's pre-training and, where that goes on from a model, what it starts with."""
    given = (*(PRETRAIN if from_zero else ADAPT), *overrides)
    last = {one.partition("=")[0]: one for one in given}.values()
    if from_zero:
        return load("tiny", overrides=last), None
    start = continue_from(Path(TINY), run, overrides=last)
    return start.config, start


def rows_of(out: Path, *, from_zero: bool) -> Path:
    """The folder with the rows to fine-tune on, made where it is not there yet."""
    if from_zero:
        return out / "sample"
    if not (out / "order" / "task-dev.jsonl").is_file():
        write_word_order(out / "order", passages=out / "sample")
    return out / "order"


def encoders_of(run: Path, *, from_zero: bool, seed: int = 0) -> dict[str, Encoder]:
    """The encoders to fine-tune, by their names in demo.json, the demo's own first; `seed` is of fresh weights."""
    trained = load_pretrained(run)
    encoders = {"pretrained": Encoder("pre-trained" if from_zero else "adapted", trained)}
    if not from_zero:
        encoders["bundled"] = Encoder(TINY, load_pretrained(Path(TINY)))
    return {**encoders, "untrained": Encoder("untrained", trained.untrained(seed=seed))}


def _results(
    run: Path, sample: SampleInfo, encoders: dict[str, Tuned], *, task: str, rows: Path, tuned: Path
) -> dict[str, Any]:
    """What the report shows of the text, the task and the fine-tuned encoders."""
    asked = read_rows(rows / "task-dev.jsonl")
    predicted = zip(*(one.predictions for one in encoders.values()), strict=True)
    examples = [
        {"text": text, "label": label, **dict(zip(encoders, given, strict=True))}
        for (text, label), given in zip(asked[:6], predicted, strict=False)
    ]
    return {
        "folder": _portable_name(run),
        "tuned": _portable_name(tuned / "pretrained"),
        **({"start": TINY} if "bundled" in encoders else {}),
        "corpus": {"bytes": sample.bytes, "description": _describe(sample)},
        "task": {
            "question": QUESTIONS[task],
            "labels": sample.labels if task == PACKAGE else sorted({label for _, label in asked}),
            "train": labels_used(sample.train, config=FINETUNE[task]),
            "times": SEEDS[task],
            "dev": sample.dev,
            "gold": [label for _, label in asked],
            "examples": examples,
        },
        **{name: asdict(one) for name, one in encoders.items()},
        "ledger": asdict(read_run(run).cost),
    }


def _portable_name(folder: Path) -> str:
    """A folder as a command can name it, without the machine's own paths."""
    return folder.name if folder.is_absolute() else folder.as_posix()


def _describe(sample: SampleInfo) -> str:
    most = sorted(sample.packages, key=sample.packages.__getitem__, reverse=True)
    more = f" and {len(most) - 5} more packages" if len(most) > 5 else ""
    return f"{sample.documents:,} documents: the documentation of {', '.join(most[:5])}{more}"
