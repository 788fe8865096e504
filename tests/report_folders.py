"""Folders for reports, written by hand: runs, fine-tuned models, GLUE, experiments; and a page's tags and text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from electra.config.load import load, to_toml
from electra.finetune.results_file import write_results
from electra.finetune.task_results import GLUE, SeedScore, Suite, TaskResult
from electra.model.cost import train_flops
from electra.reproduce.experiments import EXPERIMENTS
from electra.reproduce.outcome import Cost, Measured, Outcome, Row, Score, TaskScore, write_outcome
from electra.reproduce.plan import plan, seeds_of
from electra.reproduce.scale import SCALES

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>"
ORIGINAL = ["[CLS]", "the", "graph", "##s", "are", "small", ".", "[SEP]"]
PLANNED_COST = {
    "parameters": {"parts": {"embeddings": 1000, "discriminator": 2000}},
    "tokens": 6_144_000,
    "paper": 6e13,
    "real": 4e13,
}


def sample_line(step: int, replaced: list[str], chances: list[float]) -> dict[str, Any]:
    masked = ["[CLS]", "the", "[MASK]", "##s", "are", "[MASK]", ".", "[SEP]"]
    return {"kind": "sample", "step": step, "original": ORIGINAL, "masked": masked, "replaced": replaced,
            "positions": [2, 5], "probabilities": chances}  # fmt: skip


def lines(*, rtd: bool = True, word: str = "dog") -> list[dict[str, Any]]:
    calm = [0.1] * 8
    made: list[dict[str, Any]] = []
    for step in (0, 1000, 2000):
        if step:
            made.append({"kind": "train", "step": step, "time_s": step / 10, "tokens": step * 1900, "train/loss": 20.0,
                         "train/mlm_loss": 7.0 - step / 1000, "train/rtd_loss": 0.4, "optim/lr": 1e-3,
                         "optim/grad_norm": None, "perf/tokens_per_s": 30_000.0, "perf/mfu": None})  # fmt: skip
        figures = {"mlm_loss": 9.0 - step / 1000, "mlm_accuracy": step / 10_000}
        if rtd:
            figures |= {"rtd_loss": 0.4, "rtd_auc": 0.5 + step / 10_000, "replaced_rate": 0.12}
        made.append({"kind": "eval", "step": step} | {f"eval/{name}": value for name, value in figures.items()})
        replaced = ["[CLS]", "the", word, "##s", "are", "small", ".", "[SEP]"]
        made.append(sample_line(step, replaced if rtd else [], calm[:2] + [0.9] + calm[3:] if rtd else []))
    return made


def results(text: str = "A passage.") -> dict[str, Any]:
    row = {"text": text, "label": "torch", "pretrained": "torch", "untrained": "numpy"}
    curve = {"losses": [1.0, 0.5], "accuracies": [0.4, 0.8], "seconds": 3.0}
    return {
        "folder": "demo/run",
        "corpus": {"bytes": 1000, "description": text},
        "task": {"question": text, "labels": ["torch", "numpy"], "train": 10, "dev": 4, "examples": [row],
                 "gold": ["torch", "torch", "numpy", "numpy"]},
        "pretrained": curve | {"accuracy": 0.8125, "predictions": ["torch", "numpy", "numpy", "numpy"]},
        "untrained": curve | {"accuracy": 0.4375, "predictions": ["torch"] * 4},
    }  # fmt: skip


def make_run(folder: Path, entries: list[dict[str, Any]], *, preset: str = "tiny", facts: Any = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(to_toml(load(preset)))
    facts = facts or {"cpu": "a CPU", "cores": 2, "gpus": [], "packages": {"torch": "2.13.0"}, "ledger": PLANNED_COST}
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def make_tuned(folder: Path, *, scores: tuple[float, ...] = (91.0, 88.5, 90.0), text: str = "A fine film.") -> Path:
    """A classifier over several seeds, with learning curves and an evaluation, as `electra finetune` leaves them."""
    runs = tuple(SeedScore(seed=n, scores={"accuracy": one}, seconds=30.0, steps=60) for n, one in enumerate(scores))
    result = TaskResult(
        task="classify",
        title="reviews",
        metrics=("accuracy",),
        seeds=runs,
        rows={"train": 400, "dev": 100},
        model="run",
    )
    write_results(folder / "results.json", Suite(results=(result,)))
    for run in runs[:2]:
        curve = {
            "losses": [[step, 1.2 * 0.97**step + run.seed / 20] for step in range(10, 70, 10)],
            "evaluations": [[step, 60 + step / 2 + run.seed] for step in range(20, 70, 20)],
        }
        (folder / f"seed-{run.seed}").mkdir()
        (folder / f"seed-{run.seed}" / "curve.json").write_text(json.dumps(curve))
    (folder / "evaluation.json").write_text(json.dumps(evaluation(text)))
    return folder


def evaluation(text: str = "A fine film.") -> dict[str, Any]:
    """What `electra finetune` knows about the dev rows of a classifier."""
    classes = [
        {"label": label, "precision": 90.0, "recall": 88.0, "f1": 89.0, "support": rows, "predicted": rows}
        for label, rows in (("good", 60), ("bad", 40))
    ]
    error = {"id": "7", "text": text, "pair": None, "label": "good", "prediction": "bad", "probability": 0.987}
    return {
        "format": 1, "unit": "percent", "task": "classify", "title": "reviews", "kind": "classify", "seed": 2,
        "labels": ["good", "bad"], "metrics": ["accuracy"], "scores": {"accuracy": 90.0}, "rows": 100,
        "classes": classes, "confusion": [[55, 5], [5, 35]], "wrong": 10, "errors": [error],
        "curve": {"metric": "macro_f1", "best_step": 60},
    }  # fmt: skip


def make_glue(folder: Path, *, score: float = 75.0, tasks: tuple[str, ...] = tuple(GLUE), model: str = "run") -> Path:
    """GLUE results, every task with this score."""
    results = tuple(
        TaskResult(
            task=task, title=task.upper(), metrics=(GLUE[task],), model=model, rows={"dev": 100},
            seeds=tuple(SeedScore(seed=10 + n, scores={GLUE[task]: score + n - 1}) for n in range(3)),
        )
        for task in tasks
    )  # fmt: skip
    folder.mkdir(parents=True)
    write_results(folder / "results.json", Suite(results=results))
    return folder


def make_experiment(folder: Path, name: str = "efficiency", scale: str = "gpu-1h") -> Path:
    folder.mkdir(parents=True)
    write_outcome(folder, made_up(name, scale))
    return folder


def made_up(name: str, scale: str = "gpu-1h") -> Outcome:
    """An outcome as a whole experiment would leave it, its scores drawn at random."""
    random = np.random.default_rng(0)
    rows = []
    for number, one in enumerate(plan(EXPERIMENTS[name], SCALES[scale])):
        for point in one.points:
            middle = 60 + 8 * point.share + 2 * random.random() - number
            seeds = tuple(
                float(middle + shift)
                for shift in random.normal(0, 0.7, len(seeds_of(EXPERIMENTS[name], SCALES[scale])))
            )
            cost = train_flops(one.config, steps=max(1, int(one.config.train.steps * point.share)))
            tasks = tuple(
                TaskScore(title=title, metric="accuracy", median=middle, low=min(seeds), high=max(seeds), labels=labels)
                for title, labels in (("CoLA", ()), ("QNLI", ("subset of train: 9,999 of 104,743 rows",)))
            )
            rows.append(
                Row(
                    variant=one.name,
                    title=one.variant.title,
                    share=point.share,
                    paper=point.paper,
                    score=Score(label="average", value=middle, seeds=seeds, low=min(seeds), high=max(seeds)),
                    tasks=tasks,
                    cost=Cost(
                        parameters=cost.parameters.total, kept=cost.parameters.encoder, steps=one.config.train.steps,
                        tokens=cost.tokens, text_tokens=cost.tokens, paper_flops=cost.paper, real_flops=cost.real,
                    ),
                    measured=Measured(device_seconds=100.0, tokens_per_s=1.5e6, finetune_seconds=60.0),
                    x=one.variant.x,
                    line=one.variant.line,
                    note=one.variant.note,
                )
            )  # fmt: skip
    seeds_used = seeds_of(EXPERIMENTS[name], SCALES[scale])
    return Outcome(
        experiment=name, scale=scale, budget=EXPERIMENTS[name].budget, seeds=seeds_used, rows=tuple(rows), device="H200"
    )
