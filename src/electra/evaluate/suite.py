"""Tasks fine-tuned over seeds, and what they leave behind: results.json, models, predictions, leaderboard files.

A folder may be worked on again: seeds that are finished stay, the missing ones are run.
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
from electra.evaluate.results import SeedScore, Suite, TaskResult
from electra.evaluate.storage import read_results, write_results
from electra.finetune.base import Base, check_length
from electra.finetune.folder import About, save_tuned
from electra.finetune.jobs import Job
from electra.finetune.leaderboard import write_submission
from electra.finetune.run import Finished, device_of, run_seeds
from electra.finetune.spans import Answer
from electra.finetune.squad import write_predictions
from electra.fsio import write_atomic, write_json
from electra.progress import progress, say
from electra.train.interrupt import stop_on_signals

RESULTS = "results.json"
LEADERBOARD = "leaderboard"
CURVE = "curve.json"
"""In a seed's folder: its losses and evaluations by step."""
_FREE_KEYS = ("seed", "device", "log_every", "compile")  # may differ between the runs of one result


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How a task is run: its settings, its seeds, how many side by side (0: as pays off), and what is kept."""

    config: FinetuneConfig
    seeds: tuple[int, ...]
    together: int = 0
    save: bool = True
    """Keep each seed's model, or only its predictions and scores."""


def open_suite(out: Path) -> Suite:
    """The results that a folder holds so far."""
    return read_results(out / RESULTS) if (out / RESULTS).is_file() else Suite()


def run_task(base: Base, job: Job, *, plan: Plan, out: Path, folder: Path) -> TaskResult:
    """Run the seeds of a task that `out` does not hold yet; its whole result, also in `out`/results.json.

    Models and predictions go into `folder`/seed-N.
    """
    suite = open_suite(out)
    done = next((result for result in suite.results if result.task == job.task.name), None)
    if done is not None:
        _require_same(done, base, job, plan.config, out)
    elif suite.results and folder.resolve() == out.resolve():
        raise ConfigError("--out", f"{out} holds models of {suite.results[0].title}", fix="choose a new folder")
    seeds = [seed for seed in plan.seeds if done is None or seed not in [run.seed for run in done.seeds]]
    if done is not None and not seeds:
        say(f"{job.task.title}: {len(plan.seeds)} seeds already there")
        _write_leaderboard(done, job, folder=folder, out=out / LEADERBOARD)
        return done
    check_length(base, plan.config)
    device_of(plan.config)
    title = f"fine-tuning {job.task.title}"
    with progress(title, unit="step") as bar, stop_on_signals() as stop:

        def show(steps: int, total: int, loss: float) -> None:
            bar.total = total
            bar.update(steps, f"loss {loss:.3f}" if loss == loss else "")

        runs = run_seeds(base, job, config=plan.config, seeds=seeds, stop=stop, together=plan.together, on_step=show)
        for run in runs:
            _keep(run, base, job, plan=plan, folder=folder / f"seed-{run.seed}")
            score = SeedScore(seed=run.seed, scores=run.scores, stuck=run.stuck, seconds=run.seconds, steps=run.steps)
            done = _begin(job, base, plan.config, score) if done is None else done.with_run(score)
            # Read again: another task may have been added to the folder meanwhile.
            write_results(out / RESULTS, open_suite(out).with_result(done))
            say(_line(job, run))
    assert done is not None
    _write_leaderboard(done, job, folder=folder, out=out / LEADERBOARD)
    return done


def _begin(job: Job, base: Base, config: FinetuneConfig, first: SeedScore) -> TaskResult:
    rows, full, note = dict(job.rows), dict(job.full), ""
    sequences = len(job.train.ids)  # more than rows where pairs are swapped or passages windowed
    if 0 < config.max_train_rows < sequences:
        if sequences != rows["train"]:
            note = f"trained on {config.max_train_rows:,} of {sequences:,} sequences"
        full.setdefault("train", rows["train"])
        rows["train"] = min(rows["train"], config.max_train_rows)
    return TaskResult(
        task=job.task.name,
        title=job.task.title,
        metrics=job.task.metrics,
        seeds=(first,),
        rows=rows,
        full=full,
        note=note,
        model=base.name,
        config={**_fixed(config), "weights": base.checksum},
    )


def _fixed(config: FinetuneConfig) -> dict[str, Any]:
    return {key: value for key, value in asdict(config).items() if key not in _FREE_KEYS}


def _require_same(done: TaskResult, base: Base, job: Job, config: FinetuneConfig, out: Path) -> None:
    begun = _begin(job, base, config, done.seeds[0])
    wanted = {"model": begun.model, **begun.config, **{f"{split} rows": count for split, count in begun.rows.items()}}
    there = {"model": done.model, **done.config, **{f"{split} rows": count for split, count in done.rows.items()}}
    changed = [f"{key} {there.get(key)!r}, now {value!r}" for key, value in wanted.items() if there.get(key) != value]
    if changed:
        reason = f"{out} holds {done.title} with other settings: {'; '.join(changed[:4])}"
        raise ConfigError("--out", reason, fix="choose a new folder, or give the same settings")


def _line(job: Job, run: Finished) -> str:
    scores = ", ".join(f"{name} {run.scores[name]:.2f}" for name in job.task.metrics)
    stuck = "; STUCK: it gives one answer to everything" if run.stuck else ""
    return f"{job.task.title}, seed {run.seed}: {scores} ({run.steps:,} steps, {run.seconds:.1f} s){stuck}"


def _keep(run: Finished, base: Base, job: Job, *, plan: Plan, folder: Path) -> None:
    config, task = plan.config, job.task
    if folder.exists():  # of a run that was cut off before its score was written
        shutil.rmtree(folder)
    if plan.save:
        about = About(
            task=task.name,
            title=task.title,
            kind=task.kind,
            labels=task.labels,
            scale=task.scale,
            pairs=any(a < len(ids) for ids, a in zip(job.train.ids[:1], job.train.a_lengths[:1], strict=True)),
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
            pretrained_length=base.length,
        )
        save_tuned(folder, run.tuned, tokenizer=base.tokenizer, config=base.config, about=about, weights=run.weights)
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


def _finite(points: Sequence[tuple[int, float]]) -> list[tuple[int, float | None]]:
    return [(step, value if math.isfinite(value) else None) for step, value in points]


def _lines(predictions: Mapping[str, Any]) -> str:
    rows = (json.dumps({"id": id, "prediction": one}, ensure_ascii=False) for id, one in predictions.items())
    return "".join(f"{row}\n" for row in rows)


def _write_leaderboard(done: TaskResult, job: Job, *, folder: Path, out: Path) -> None:
    """Submission files from the run whose score is the median (the lower of two)."""
    if not job.tests:
        return
    scores = {run.seed: run.scores[done.metrics[0]] for run in done.seeds}
    ranked = sorted(scores, key=lambda seed: scores[seed] if math.isfinite(scores[seed]) else -math.inf)
    seed = ranked[(len(ranked) - 1) // 2]
    out.mkdir(parents=True, exist_ok=True)
    for name, (task, split) in job.tests.items():
        answers = folder / f"seed-{seed}" / f"{name}.jsonl"
        if not answers.is_file():  # the test set came after the run
            say(f"{answers}: no such file, so no {task.title} file for the leaderboard (choose a new folder)")
            continue
        lines = answers.read_text(encoding="utf-8").splitlines()
        rows: Sequence[dict[str, Any]] = [json.loads(line) for line in lines]
        path = write_submission(
            out,
            task=task,
            split=split,
            ids=[row["id"] for row in rows],
            predictions=[row["prediction"] for row in rows],
        )
        say(f"wrote {path} (seed {seed})")
