"""A small folder of every kind that this package writes, and what comes of using it."""

from __future__ import annotations

import hashlib
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from electra.checkpoint import store
from electra.config.finetune import FinetuneConfig
from electra.config.load import load
from electra.errors import Resumable
from electra.finetune.model_folder import load_finetuned
from electra.finetune.pretrained import Pretrained, load_pretrained
from electra.finetune.seeds import run_seeds
from electra.finetune.suite import Plan, open_suite, run_task, seed_settings
from electra.finetune.unfinished import Unfinished
from electra.inference.predict import predict
from electra.interop.models import load_model
from electra.interop.transfer import export_model
from electra.pretrain import pretrain
from electra.report.reading import read_run
from electra.shards.build import prepare
from electra.shards.dataset import open_data
from electra.shards.options import PrepareOptions
from electra.soak.command_lines import sentences, write_table
from electra.tasks.task_data import TaskData, load_table
from electra.train.interrupt import Stop

CONFIG = (
    "model.layers=1", "model.width=64", "model.heads=1", "model.ffn=64", "model.embedding=32", "model.positions=32",
    "data.length=16", "train.steps=3", "train.batch_size=4", "train.log_every=1", "train.device=cpu",
    "train.precision=fp32", "optim.warmup_steps=1", "evaluate.sequences=4", "evaluate.every=2", "checkpoint.every=1",
)  # fmt: skip
TUNING = FinetuneConfig(epochs=3.0, batch_size=4, length=16, device="cpu", precision="fp32", eval_every=2, log_every=2)
STOP_AFTER = 4  # steps of an unfinished seed


@dataclass(frozen=True, slots=True)
class Folder:
    """A whole folder, and what comes of using one like it: anything that can be compared."""

    name: str
    path: Path
    use: Callable[[Path], object]
    written: bool = False
    """Whether its use writes to it."""


def make_folders(home: Path) -> list[Folder]:
    """Prepared data, a run with checkpoints, an export, a fine-tuned model and an unfinished one, in a new folder."""
    data, run, exported, tuned, begun = (home / name for name in ("data", "run", "exported", "tuned", "begun"))
    prepare([str(_write_text(home / "text.txt"))], out=data, options=PrepareOptions(vocab_size=160), workers=1)
    open_data(data)  # found whole, and remembered
    config = load("tiny", overrides=CONFIG)
    pretrain(config, data=data, out=run)
    export_model(run, exported)
    base = replace(load_pretrained(run), name="run")
    rows = _table(home, base)
    plan = Plan(config=TUNING, seeds=(0, 1))
    run_task(base, rows, plan=plan, out=tuned, folder=tuned)
    _begin(base, rows, begun)
    shutil.rmtree(store.checkpoint_path(run, 3))  # as after a kill before the last save

    def trained(folder: Path) -> object:
        with tempfile.TemporaryDirectory(dir=home) as out:
            return _weights(pretrain(replace(config, train=replace(config.train, steps=2)), data=folder, out=Path(out)))

    def resumed(folder: Path) -> object:
        before = [_figures(line) for line in read_run(folder).train if line["step"] < 3]  # the third is not saved yet
        pretrain(config, data=data, out=folder)
        return before, _weights(folder), [_figures(line) for line in read_run(folder).train]

    def retuned(folder: Path) -> object:
        return _scores(run_task(base, rows, plan=plan, out=folder, folder=folder)), _predictions(folder)

    def finished(folder: Path) -> object:
        result = run_task(base, rows, plan=replace(plan, seeds=(0,)), out=folder, folder=folder)
        return _scores(result), (folder / "seed-0" / "model.safetensors").read_bytes()

    return [
        Folder("data", data, trained),
        Folder("run and checkpoints", run, resumed, written=True),
        Folder("export", exported, _probabilities),
        Folder("fine-tuned", tuned, retuned, written=True),
        Folder("unfinished seed", begun, finished, written=True),
    ]


def _begin(base: Pretrained, rows: TaskData, out: Path) -> None:
    """Leave a seed in the middle."""

    class AfterSome(Stop):
        asked = 0

        def __bool__(self) -> bool:
            self.asked += 1
            return self.asked > STOP_AFTER

    unfinished = Unfinished(out, seed_settings(base, rows, TUNING))
    try:
        for _ in run_seeds(base, rows, config=TUNING, seeds=(0,), stop=AfterSome(), unfinished=unfinished):
            pass
    except Resumable:
        return
    raise AssertionError("the seed was done before it was stopped")


def _write_text(path: Path) -> Path:
    path.write_text("\n\n".join(sentences(80, random.Random(0))) + "\n", encoding="utf-8")
    return path


def _table(home: Path, base: Pretrained) -> TaskData:
    path = home / "rows.jsonl"
    write_table(path, "river book page world letters house history mountain".split())
    files = {"train": path, "dev": path}
    return load_table(
        "mine", files, kind="classify", text="text", pair=None, label="label", tokenizer=base.tokenizer, config=TUNING
    )


def _weights(run: Path) -> list[str]:
    last = store.latest(run)
    assert last is not None
    files = (last / "model.safetensors", last / "optimizer.safetensors")
    return [last.name, *(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)]


def _figures(line: dict[str, Any]) -> dict[str, Any]:
    """A line of metrics without what depends on the clock and the memory."""
    return {key: value for key, value in line.items() if key != "time_s" and not key.startswith("perf/")}


def _scores(result: Any) -> object:
    return [(run.seed, run.scores, run.steps) for run in result.seeds]


def _predictions(folder: Path) -> object:
    """What the fine-tuned model predicts, and the scores that its folder reports."""
    found = predict(load_finetuned(folder), ["a river in the house", "a book"])
    return repr(found), [_scores(result) for result in open_suite(folder).results]


def _probabilities(folder: Path) -> object:
    loaded = load_model(folder)
    ids = torch.tensor(
        [[loaded.tokenizer.cls_id, *loaded.tokenizer.encode("the river house"), loaded.tokenizer.sep_id]]
    )
    return loaded.probabilities(ids).numpy().tobytes()
