"""The embedded default, end to end: documentation on this machine -> model -> fine-tuned -> report."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from electra.config.load import load
from electra.corpus.embedded import PACKAGES, SampleInfo, read_rows, read_sample, write_sample
from electra.errors import ConfigError
from electra.finetune.classify import ClassifyResult, finetune_classifier
from electra.fsio import read_json, write_json
from electra.interop.models import load_model
from electra.model.electra import Electra, build_model
from electra.pretrain import pretrain
from electra.progress import progress, say
from electra.report import write_report
from electra.report.reading import read_run
from electra.shards.build import prepare
from electra.shards.options import PrepareOptions

MINUTES = 2.6
VOCAB_SIZE = 8192
HELD_OUT_SHARE = 0.02
# A few hundred steps: small batches make more of them, and nothing this short needs dropout.
PRETRAIN = (
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
FINETUNE: dict[str, Any] = {"batch_size": 16, "lr": 1e-3, "length": 64, "seed": 0}
QUESTION = "Which package does this passage describe? Passages that name one of them are left out."
RESULTS = "results.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoResult:
    """Where the report is, and its headline figures."""

    report: Path
    run: Path
    auc: float
    pretrained: float
    untrained: float
    chance: float
    seconds: float


def demo(
    out: Path, *, minutes: float = MINUTES, epochs: int = EPOCHS, packages: Sequence[str] = PACKAGES
) -> DemoResult:
    """Run every stage that is not finished yet in the folder `out`.

    `minutes` are for pre-training, `epochs` for fine-tuning; `packages` are those whose documentation is read.
    """
    began = time.monotonic()
    for package in ("jinja2", "matplotlib"):  # the report is minutes away: say now what it would lack
        if importlib.util.find_spec(package) is None:
            raise ConfigError("electra demo", f"needs {package}", fix="pip install 'electra[report]'")
    if minutes <= 0:
        raise ConfigError("--minutes", f"{minutes:g} is not above 0")
    say("1/5 Text: the documentation that is already on this machine")
    sample = _sample(out / "sample", packages)
    say("2/5 Data: a vocabulary of its own, and the text as tokens")
    options = PrepareOptions(vocab_size=VOCAB_SIZE, held_out_share=HELD_OUT_SHARE)
    prepare([str(out / "sample" / sample.corpus)], out=out / "data", options=options)
    say(f"3/5 Pre-training: generator and discriminator, for {minutes:g} minutes")
    config = load("tiny", overrides=[*PRETRAIN, f"train.max_minutes={minutes}"])
    run = pretrain(config, data=out / "data", out=out / "run")
    say("4/5 Fine-tuning: which package does a passage describe? With pre-training, and without")
    results = _finetune(run, sample, folder=out / "sample", settings=FINETUNE | {"epochs": epochs})
    say("5/5 Report")
    page = write_report(run, out / "report.html")
    return DemoResult(
        report=page,
        run=run,
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


def _finetune(run: Path, sample: SampleInfo, *, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Fine-tune the pre-trained encoder and the same one untrained; both results, kept in the run's results.json."""
    source = load_model(run)
    path = run / RESULTS
    basis = {"step": read_run(run).bill.steps, "settings": settings}
    if path.is_file() and (known := read_json(path)).get("basis") == basis:
        say(f"{path}: already there")
        return dict(known)
    train_rows, dev_rows = read_rows(folder / "task-train.jsonl"), read_rows(folder / "task-dev.jsonl")

    def tune(title: str, embeddings: Any, encoder: Any) -> ClassifyResult:
        with progress(title, unit="steps") as bar:

            def show(done: int, total: int, loss: float) -> None:
                bar.total = total
                bar.update(done, f"loss {loss:.2f}")

            return finetune_classifier(
                embeddings,
                encoder,
                tokenizer=source.tokenizer,
                train_rows=train_rows,
                dev_rows=dev_rows,
                labels=sample.labels,
                on_progress=show,
                **settings,
            )

    blank = build_model(load(file=run / "config.toml"))
    assert isinstance(blank, Electra)
    pretrained = tune("Fine-tuning, pre-trained", source.module.embeddings, source.module.encoder)
    untrained = tune("Fine-tuning, untrained", blank.embeddings, blank.discriminator)
    answers = zip(dev_rows, pretrained.predictions, untrained.predictions, strict=True)
    results = {
        "basis": basis,
        "folder": run.as_posix() if not run.is_absolute() else run.name,
        "corpus": {"bytes": sample.bytes, "description": _describe(sample)},
        "task": {
            "question": QUESTION,
            "labels": sample.labels,
            "train": len(train_rows),
            "dev": len(dev_rows),
            "gold": [label for _, label in dev_rows],
            "examples": [
                {"text": text, "label": label, "pretrained": one, "untrained": other}
                for (text, label), one, other in list(answers)[:6]
            ],
        },
        "pretrained": asdict(pretrained),
        "untrained": asdict(untrained),
        "ledger": asdict(read_run(run).bill),
    }
    write_json(path, results)
    return results


def _describe(sample: SampleInfo) -> str:
    most = sorted(sample.packages, key=sample.packages.__getitem__, reverse=True)
    more = f" and {len(most) - 5} more packages" if len(most) > 5 else ""
    return f"{sample.documents:,} documents: the documentation of {', '.join(most[:5])}{more}"
