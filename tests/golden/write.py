"""Writes the golden folders of a version: `PYTHONPATH=<its src> python tests/golden/write.py tests/golden/VERSION`.

Prepared data, a run that was killed in the middle, an export and a fine-tuned model, of a tiny ELECTRA; and
figures.json, what that version computed with them. Versions 0.1.0 and 0.2.0 are the commits 916d515 and 15ea266.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

PRETRAIN = (
    "model.layers=1", "model.width=16", "model.heads=1", "model.ffn=32", "model.embedding=8", "model.positions=32",
    "generator.width=0.5", "data.length=32", "train.steps=6", "train.batch_size=4", "train.log_every=1",
    "train.device=cpu", "train.precision=fp32", "train.kernels=plain", "optim.warmup_steps=2", "evaluate.sequences=4",
    "evaluate.every=3", "checkpoint.every=3",
)  # fmt: skip
FINETUNE = (
    "epochs=20",
    "lr=1e-3",
    "layer_decay=1",
    "dropout=0",
    "batch_size=4",
    "length=16",
    "device=cpu",
    "precision=fp32",
)
WORDS = "the a river mountain house world history letters book page green under over walked found opened".split()
SENTENCE = "the river walked over the house"


def write_text(folder: Path) -> None:
    """A small corpus and a table with a label that one word decides."""
    chance = random.Random(0)
    lines = [" ".join(chance.choice(WORDS) for _ in range(9)).capitalize() + "." for _ in range(120)]
    documents = ["\n".join(lines[at : at + 4]) for at in range(0, len(lines), 4)]
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    pairs = [(f"{('book', 'river')[at % 2]} {word}", ("bad", "good")[at % 2]) for at, word in enumerate(WORDS)]
    rows = [{"text": text, "label": label} for text, label in pairs]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def electra(*arguments: str) -> str:
    """The output of a command of the version that PYTHONPATH names."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "electra", *arguments]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def main(out: Path) -> None:
    out.mkdir()
    os.chdir(out)
    write_text(Path())
    electra("prepare", "text.txt", "--out", "data", "--vocab-size", "160", "--held-out-share", "0.1", "--workers", "1")
    electra("pretrain", "--data", "data", "--out", "run", "--preset", "tiny", *PRETRAIN)
    electra("export", "run", "--out", "export")
    table = ("--train", "rows.jsonl", "--dev", "rows.jsonl")
    electra("finetune", "classify", "--model", "run", *table, "--out", "tuned", *FINETUNE)
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    kept = ("train/loss", "train/mlm_loss", "train/rtd_loss", "optim/lr", "optim/grad_norm")
    figures = {
        "electra": json.loads(Path("run/run.json").read_text())["electra"],
        "train": [{key: line[key] for key in ("step", *kept)} for line in lines if line["kind"] == "train"],
        "eval": [{k: v for k, v in line.items() if k.startswith("eval/")} for line in lines if line["kind"] == "eval"],
        "detect": json.loads(electra("detect", "--model", "export", "--json", SENTENCE)),
        "predict": [
            json.loads(line)
            for line in electra("predict", "--model", "tuned", "--input", "rows.jsonl").splitlines()
        ],
    }  # fmt: skip
    Path("figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    shutil.rmtree("run/checkpoints/step-00000006")  # as after a kill before the last save


if __name__ == "__main__":
    main(Path(sys.argv[1]))
