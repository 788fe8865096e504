"""The demo, end to end: documentation on this machine -> model -> fine-tuned -> report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from electra.config.finetune import FinetuneConfig
from electra.config.load import load
from electra.demo.documentation import PACKAGES, SampleInfo, read_rows, read_sample, write_sample
from electra.errors import ConfigError
from electra.finetune.batching import step_count
from electra.finetune.pretrained import Pretrained, load_pretrained
from electra.finetune.seed_folder import CURVE, read_curve, read_predictions
from electra.finetune.suite import Plan, run_task
from electra.fsio import read_json, write_json
from electra.pretrain import pretrain
from electra.progress import progress, say
from electra.report import write_report
from electra.report.reading import DEMO, read_run
from electra.report.rendering import require_drawing
from electra.shards.build import prepare
from electra.shards.options import PrepareOptions
from electra.tasks.task_data import TaskData, load_table

MINUTES = 2.6
VOCAB_SIZE = 8192
HELD_OUT_SHARE = 0.02
# A few hundred steps: small batches make more of them, and nothing this short needs dropout.
PRETRAIN = (
    "train.steps=10000000",  # more than any number of minutes: these decide
    "train.batch_size=16",
    "optim.warmup_steps=100",
    "optim.lr=4e-4",
    "model.dropout=0.0",
    "model.attention_dropout=0.0",
    "evaluate.every=150",
    "evaluate.sequences=128",
    "train.log_every=20",
    "checkpoint.every=500",
    "checkpoint.keep=1",
)
EPOCHS = 5
# Adam without bias correction steps boldly in a run this short: a third of the usual rate learns more.
FINETUNE = FinetuneConfig(batch_size=16, lr=3e-4, length=64, log_every=10)
TASK = "package"
QUESTION = "Which package does this passage describe? Passages that name one of them are left out."


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoResult:
    """Where the report is, and its headline figures."""

    report: Path
    run: Path
    tuned: Path
    """The fine-tuned model, for `electra predict` and `electra export`."""
    auc: float
    pretrained: float
    untrained: float
    chance: float
    """Accuracy of guessing."""
    seconds: float


def demo(
    out: Path, *, minutes: float = MINUTES, epochs: int = EPOCHS, packages: Sequence[str] = PACKAGES
) -> DemoResult:
    """Run every stage that is not finished yet in the folder `out`.

    `minutes` are for pre-training, `epochs` for fine-tuning; `packages` are those whose documentation is read.
    """
    began = time.monotonic()
    require_drawing("electra demo")
    if minutes <= 0:
        raise ConfigError("--minutes", f"{minutes:g} is not above 0")
    say("1/5 Text: the documentation that is already on this machine")
    sample = _sample(out / "sample", packages)
    say("2/5 Data: a vocabulary of its own, and the text as tokens")
    # lower case: a vocabulary this small, on text this little, has no room for both
    options = PrepareOptions(
        vocab_size=VOCAB_SIZE, tokenizer="wordpiece", lowercase=True, strip_accents=True, held_out_share=HELD_OUT_SHARE
    )
    prepare([str(out / "sample" / sample.corpus)], out=out / "data", options=options)
    say(f"3/5 Pre-training: generator and discriminator, for {minutes:g} minutes")
    config = load("tiny", overrides=[*PRETRAIN, f"train.max_minutes={minutes}"])
    run = pretrain(config, data=out / "data", out=out / "run")
    say("4/5 Fine-tuning: which package does a passage describe? With pre-training, and without")
    results = _finetune(run, sample, folder=out / "sample", out=out / "tuned", epochs=epochs)
    if not (run / DEMO).is_file() or read_json(run / DEMO) != results:
        write_json(run / DEMO, results)
    say("5/5 Report")
    page = write_report(run, out=out / "report.html")
    return DemoResult(
        report=page,
        run=run,
        tuned=out / "tuned" / "pretrained",
        auc=read_run(run).last("eval/rtd_auc") or 0.5,
        pretrained=results["pretrained"]["accuracy"],
        untrained=results["untrained"]["accuracy"],
        chance=1 / len(sample.labels),
        seconds=time.monotonic() - began,
    )


def _sample(folder: Path, packages: Sequence[str]) -> SampleInfo:
    known = read_sample(folder)
    if known is not None:
        say(f"{folder}: already there")
        return known
    with progress("Reading docstrings", unit="packages") as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done)

        return write_sample(folder, packages=packages, on_progress=show)


def _finetune(run: Path, sample: SampleInfo, *, folder: Path, out: Path, epochs: int) -> dict[str, Any]:
    """What the report shows of the pre-trained encoder and the same one untrained, both fine-tuned."""
    base = load_pretrained(run)
    files = {split: folder / f"task-{split}.jsonl" for split in ("train", "dev")}
    config = replace(FINETUNE, epochs=float(epochs), eval_every=_steps_an_epoch(sample.train, epochs=epochs))
    data = load_table(
        TASK, files, kind="classify", text="text", pair=None, label="label", tokenizer=base.tokenizer, config=config
    )
    pretrained = _tune(base, data, name="pretrained", title="pre-trained", config=config, out=out)
    untrained = _tune(base.untrained(), data, name="untrained", title="untrained", config=config, out=out)
    rows = read_rows(files["dev"])
    predicted = zip(rows, pretrained["predictions"], untrained["predictions"], strict=True)
    return {
        "folder": _portable_name(run),
        "tuned": _portable_name(out / "pretrained"),
        "corpus": {"bytes": sample.bytes, "description": _describe(sample)},
        "task": {
            "question": QUESTION,
            "labels": sample.labels,
            "train": sample.train,
            "dev": sample.dev,
            "gold": [label for _, label in rows],
            "examples": [
                {"text": text, "label": label, "pretrained": one, "untrained": other}
                for (text, label), one, other in list(predicted)[:6]
            ],
        },
        "pretrained": pretrained,
        "untrained": untrained,
        "ledger": asdict(read_run(run).cost),
    }


def _steps_an_epoch(rows: int, *, epochs: int) -> int:
    """Steps between evaluations that give one an epoch, the last at the end."""
    return -(-step_count(rows, epochs=epochs, batch_size=FINETUNE.batch_size) // epochs)


def _tune(
    base: Pretrained, data: TaskData, *, name: str, title: str, config: FinetuneConfig, out: Path
) -> dict[str, Any]:
    """The scores of one of the two encoders, fine-tuned in a folder of its name."""
    data = replace(data, task=replace(data.task, name=name, title=f"{data.task.title}, {title}"))
    plan = Plan(config=config, seeds=(config.seed,))
    result = run_task(base, data, plan=plan, out=out, folder=out / name)
    seed = out / name / f"seed-{config.seed}"
    predictions = list(read_predictions(seed / "dev.jsonl").values())
    return {
        "accuracy": result.scores("accuracy")[0] / 100,
        "accuracies": [score / 100 for _, score in read_curve(seed / CURVE).evaluations],
        "predictions": predictions,
        "seconds": result.seeds[0].seconds,
    }


def _portable_name(folder: Path) -> str:
    """A folder as a command can name it, without the machine's own paths."""
    return folder.name if folder.is_absolute() else folder.as_posix()


def _describe(sample: SampleInfo) -> str:
    most = sorted(sample.packages, key=sample.packages.__getitem__, reverse=True)
    more = f" and {len(most) - 5} more packages" if len(most) > 5 else ""
    return f"{sample.documents:,} documents: the documentation of {', '.join(most[:5])}{more}"
