"""A task fine-tuned over seeds, and the files it writes: results.json, models, predictions, leaderboard files.

Running a task again in its folder runs the seeds that are missing.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from electra.config.finetune import FinetuneConfig
from electra.errors import ConfigError
from electra.finetune.model_folder import About, save_finetuned
from electra.finetune.pretrained import Pretrained, check_length
from electra.finetune.results_file import read_results, write_results
from electra.finetune.seeds import SeedRun, device_of, run_seeds
from electra.finetune.task_results import SeedScore, Suite, TaskResult
from electra.fsio import write_atomic, write_json
from electra.progress import progress, say
from electra.tasks.leaderboard import write_submission
from electra.tasks.spans import Answer
from electra.tasks.squad_files import write_predictions
from electra.tasks.task_data import TaskData
from electra.train.interrupt import stop_on_signals

RESULTS = "results.json"
LEADERBOARD = "leaderboard"
CURVE = "curve.json"
"""In a seed's folder: its losses and evaluations by step."""
_FREE_KEYS = ("seed", "device", "log_every", "compile")  # may differ between the runs of one result


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How a task is run: its settings, its seeds, how many side by side (0: as pays off), and what is saved."""

    config: FinetuneConfig
    seeds: tuple[int, ...]
    together: int = 0
    save: bool = True
    """Save each seed's model too, not only its predictions and scores."""


def open_suite(out: Path) -> Suite:
    """The results in a folder so far."""
    return read_results(out / RESULTS) if (out / RESULTS).is_file() else Suite()


def run_task(base: Pretrained, data: TaskData, *, plan: Plan, out: Path, folder: Path) -> TaskResult:
    """The task's result over all seeds, after running those that `out` lacks; also written to `out`/results.json.

    Models and predictions go into `folder`/seed-N.
    """
    suite = open_suite(out)
    done = next((result for result in suite.results if result.task == data.task.name), None)
    if done is not None:
        _require_same(done, base, data, plan.config, out)
    elif suite.results and folder.resolve() == out.resolve():
        raise ConfigError("--out", f"{out} holds models of {suite.results[0].title}", fix="choose a new folder")
    seeds = [seed for seed in plan.seeds if done is None or seed not in [run.seed for run in done.seeds]]
    if done is not None and not seeds:
        say(f"{data.task.title}: {len(plan.seeds)} seeds already there")
        _write_leaderboard(done, data, folder=folder, out=out / LEADERBOARD)
        return done
    check_length(base, plan.config.length)
    device_of(plan.config)
    title = f"fine-tuning {data.task.title}"
    with progress(title, unit="step") as bar, stop_on_signals() as stop:

        def show(steps: int, total: int, loss: float) -> None:
            bar.total = total
            bar.update(steps, f"loss {loss:.3f}" if loss == loss else "")

        runs = run_seeds(base, data, config=plan.config, seeds=seeds, stop=stop, together=plan.together, on_step=show)
        for run in runs:
            _write_seed(run, base, data, plan=plan, folder=folder / f"seed-{run.seed}")
            score = SeedScore(seed=run.seed, scores=run.scores, stuck=run.stuck, seconds=run.seconds, steps=run.steps)
            done = _first_result(data, base, plan.config, score) if done is None else done.with_run(score)
            # Read again: another process may have added a task meanwhile.
            write_results(out / RESULTS, open_suite(out).with_result(done))
            say(_line(data, run))
    assert done is not None
    _write_leaderboard(done, data, folder=folder, out=out / LEADERBOARD)
    return done


def _first_result(data: TaskData, base: Pretrained, config: FinetuneConfig, first: SeedScore) -> TaskResult:
    rows, full, note = dict(data.rows), dict(data.full), ""
    sequences = len(data.train.ids)  # more than rows where pairs are swapped or passages windowed
    if 0 < config.max_train_rows < sequences:
        if sequences != rows["train"]:
            note = f"trained on {config.max_train_rows:,} of {sequences:,} sequences"
        full.setdefault("train", rows["train"])
        rows["train"] = min(rows["train"], config.max_train_rows)
    return TaskResult(
        task=data.task.name,
        title=data.task.title,
        metrics=data.task.metrics,
        seeds=(first,),
        rows=rows,
        full=full,
        note=note,
        model=base.name,
        config={**_fixed(config), "weights": base.checksum},
    )


def _fixed(config: FinetuneConfig) -> dict[str, Any]:
    return {key: value for key, value in asdict(config).items() if key not in _FREE_KEYS}


def _require_same(done: TaskResult, base: Pretrained, data: TaskData, config: FinetuneConfig, out: Path) -> None:
    begun = _first_result(data, base, config, done.seeds[0])
    wanted = {"model": begun.model, **begun.config, **{f"{split} rows": count for split, count in begun.rows.items()}}
    there = {"model": done.model, **done.config, **{f"{split} rows": count for split, count in done.rows.items()}}
    changed = [f"{key} {there.get(key)!r}, now {value!r}" for key, value in wanted.items() if there.get(key) != value]
    if changed:
        reason = f"{out} holds {done.title} with other settings: {'; '.join(changed[:4])}"
        raise ConfigError("--out", reason, fix="choose a new folder, or give the same settings")


def _line(data: TaskData, run: SeedRun) -> str:
    scores = ", ".join(f"{name} {run.scores[name]:.2f}" for name in data.task.metrics)
    stuck = "; STUCK: it gives one answer to everything" if run.stuck else ""
    return f"{data.task.title}, seed {run.seed}: {scores} ({run.steps:,} steps, {run.seconds:.1f} s){stuck}"


def _write_seed(run: SeedRun, base: Pretrained, data: TaskData, *, plan: Plan, folder: Path) -> None:
    config, task = plan.config, data.task
    if folder.exists():  # left by a run that stopped before it wrote its score
        shutil.rmtree(folder)
    if plan.save:
        about = _about(run, base, data, config)
        save_finetuned(
            folder, run.network, tokenizer=base.tokenizer, config=base.config, about=about, weights=run.weights
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / CURVE, {name: _finite(points) for name, points in asdict(run.curve).items()})
    for split, predictions in run.predictions.items():
        answers = [one for one in predictions.values() if isinstance(one, Answer)]
        if answers:
            odds = {one.id: one.null_odds for one in answers} if "best_exact" in task.metrics else None
            write_predictions(
                folder, {one.id: one.text for one in answers}, null_odds=odds, threshold=config.null_threshold
            )
        else:
            write_atomic(folder / f"{split}.jsonl", _lines(predictions).encode())


def _about(run: SeedRun, base: Pretrained, data: TaskData, config: FinetuneConfig) -> About:
    task = data.task
    return About(
        task=task.name,
        title=task.title,
        kind=task.kind,
        labels=task.labels,
        scale=task.scale,
        pairs=any(a < len(ids) for ids, a in zip(data.train.ids[:1], data.train.a_lengths[:1], strict=True)),
        length=config.length,
        max_query=config.max_query,
        doc_stride=config.doc_stride,
        beam=config.beam,
        n_best=config.n_best,
        max_answer=config.max_answer,
        null_threshold=config.null_threshold if "best_exact" in task.metrics else None,
        dropout=config.dropout,
        seed=run.seed,
        scores=run.scores,
        metrics=task.metrics,
        source=base.name,
        kernels=config.kernels,
        pretrained_length=base.length,
    )


def _finite(points: Sequence[tuple[int, float]]) -> list[tuple[int, float | None]]:
    return [(step, value if math.isfinite(value) else None) for step, value in points]


def _lines(predictions: Mapping[str, Any]) -> str:
    rows = (json.dumps({"id": id, "prediction": one}, ensure_ascii=False) for id, one in predictions.items())
    return "".join(f"{row}\n" for row in rows)


def _write_leaderboard(done: TaskResult, data: TaskData, *, folder: Path, out: Path) -> None:
    """Submission files from the run whose score is the median (the lower of two)."""
    if not data.tests:
        return
    scores = {run.seed: run.scores[done.metrics[0]] for run in done.seeds}
    ranked = sorted(scores, key=lambda seed: scores[seed] if math.isfinite(scores[seed]) else -math.inf)
    seed = ranked[(len(ranked) - 1) // 2]
    out.mkdir(parents=True, exist_ok=True)
    for name, (task, split) in data.tests.items():
        predicted = folder / f"seed-{seed}" / f"{name}.jsonl"
        if not predicted.is_file():  # the test set came after the run
            say(f"{predicted}: no such file, so no {task.title} file for the leaderboard (choose a new folder)")
            continue
        lines = predicted.read_text(encoding="utf-8").splitlines()
        rows: Sequence[dict[str, Any]] = [json.loads(line) for line in lines]
        path = write_submission(
            out,
            task=task,
            split=split,
            ids=[row["id"] for row in rows],
            predictions=[row["prediction"] for row in rows],
        )
        say(f"wrote {path} (seed {seed})")
