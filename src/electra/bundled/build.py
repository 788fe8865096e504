"""`python -m electra.bundled.build --run RUN --name electra:small`: a finished run becomes a model of this package.

For maintainers. The folder is a run folder of weights alone in bf16, which everything that reads runs reads: config,
tokenizer, one checkpoint with an empty optimizer file, the last evaluation, a card, and manifests over all of it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from electra.bench.start import start
from electra.bundled.card import bundled_card
from electra.bundled.sources import SOURCES
from electra.checkpoint import store
from electra.checkpoint.folder import CONFIG, FACTS, FORMAT, TOKENIZER, verify_tokenizer
from electra.checkpoint.tensors import read_tensors
from electra.config.load import to_toml
from electra.errors import CheckpointError, ConfigError
from electra.fsio import json_bytes, remove_folder, write_atomic
from electra.interop.bundled import NAMES, bytes_of, folder_bytes, folder_of
from electra.interop.card import Rows
from electra.interop.transfer import README
from electra.manifest import commit_folder, read_manifest
from electra.progress import say
from electra.report.reading import Run, read_run
from electra.speedrun.record import read as read_records
from electra.tokenizer.codec import Tokenizer
from electra.train.loop import Position
from electra.train.metrics_file import MetricsWriter

KEPT_FACTS = ("electra", "git", "packages", "cpu", "gpus", "seed", "data_sha256", "data", "ledger")
"""Of run.json: how it was made; the command line and the folders of the machine stay out."""


@click.command()
@click.option("--run", required=True, type=click.Path(path_type=Path), help="Finished run with both networks.")
@click.option("--name", required=True, type=click.Choice([*NAMES]), help="Which model it becomes.")
@click.option("--scores", type=click.Path(path_type=Path), metavar="JSONL", help="Records of `electra speedrun score`.")
@click.option("--score", "more", nargs=2, multiple=True, metavar="WHAT VALUE", help="A further score for the card.")
@click.option("--training", nargs=2, multiple=True, metavar="WHAT VALUE", help="A further line on how it was trained.")
@click.option("--text", "texts", multiple=True, type=click.Choice([*SOURCES]), help="Texts it saw.  [all of them]")
def command(
    run: Path,
    name: str,
    scores: Path | None,
    more: tuple[tuple[str, str], ...],
    training: tuple[tuple[str, str], ...],
    texts: tuple[str, ...],
) -> None:
    """Write a finished run into the package as one of its models, in place of the one that is there."""
    folder = build(run, name, scores=scores, more=more, training=training, texts=texts or tuple(SOURCES))
    say(f"{folder}: {bytes_of(name):,} bytes, of at most {NAMES[name]:,}")


def build(
    run: Path,
    name: str,
    *,
    scores: Path | None = None,
    more: Rows = (),
    training: Rows = (),
    texts: Sequence[str] = tuple(SOURCES),
) -> Path:
    """The folder of the bundled model `name`, written from a run; refused where it would be too large.

    `more` scores and lines on its `training` stand in the card beside those of the run.
    """
    if name not in NAMES:
        raise ConfigError("--name", f"{name} is not a bundled model", fix=f"one of {', '.join(NAMES)}")
    read = read_run(run)
    if read.config.objective.name != "rtd" or read.config.generator.kind != "transformer":
        reason = f"was trained for {read.config.objective.name} with a {read.config.generator.kind} generator"
        raise CheckpointError(run, reason, fix="a bundled model is a discriminator and its generator")
    verify_tokenizer(run)
    tokenizer = Tokenizer.load(run / TOKENIZER)
    checkpoint, weights = _weights(run, averaged=read.config.optim.ema > 0)
    records = read_records(scores) if scores is not None else []
    card = bundled_card(name, read, tokenizer=tokenizer, texts=texts, records=records, more=more, training=training)
    step, cost = store.step_of(checkpoint), read.cost
    with tempfile.TemporaryDirectory(prefix="electra-bundled-") as work:
        made = Path(work) / "model"
        with commit_folder(made) as aside:
            write_atomic(aside / CONFIG, to_toml(read.config).encode())
            write_atomic(aside / FACTS, json_bytes(_facts(read, texts)))
            write_atomic(aside / README, str(card).encode())
            _write_last_evaluation(aside, read)
            tokenizer.save(aside / TOKENIZER)
            state = asdict(Position(step=step, tokens=cost.tokens_read, elapsed_s=cost.seconds))
            store.save(aside, step=step, tensors={"model": weights}, state=state, keep=1)
        size = folder_bytes(made)
        if size >= NAMES[name]:
            raise CheckpointError(run, f"makes a folder of {size:,} bytes", fix=f"{name} has less than {NAMES[name]:,}")
        if folder_of(name).exists():
            remove_folder(folder_of(name))
        shutil.copytree(made, folder_of(name))
    return folder_of(name)


def _weights(run: Path, *, averaged: bool) -> tuple[Path, dict[str, Tensor]]:
    """The newest checkpoint and its weights in bf16, verified; the optimizer's file may have been left behind."""
    if not store.steps(run):
        raise CheckpointError(run, "has no checkpoint yet", fix="train it first")
    checkpoint = store.steps(run)[-1]
    if averaged or (checkpoint / "optimizer.safetensors").exists():
        store.verify(checkpoint)
        found = store.read_weights(checkpoint)
    else:
        sums = read_manifest(checkpoint)
        if sums is None:
            raise CheckpointError(checkpoint, "has no manifest", fix="copy it again")
        sums.verify("model.safetensors", store.STATE)
        found = read_tensors(checkpoint / "model.safetensors")
    return checkpoint, {name: tensor.to(torch.bfloat16) for name, tensor in found.items()}


def _facts(run: Run, texts: Sequence[str]) -> dict[str, Any]:
    kept = {key: run.facts[key] for key in KEPT_FACTS if key in run.facts}
    return {"format": FORMAT, **kept, "text": [asdict(SOURCES[text]) for text in texts]}


def _write_last_evaluation(folder: Path, run: Run) -> None:
    """Put the last line about held-out text into the folder's metrics.jsonl."""
    writer = MetricsWriter(folder, step=0)
    for line in run.evals[-1:]:
        values = {key: value for key, value in line.items() if key not in ("kind", "step")}
        writer.write("eval", step=int(line["step"]), **values)
    writer.close()


if __name__ == "__main__":
    start(command)
