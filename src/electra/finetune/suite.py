"""A task fine-tuned over seeds, and the files it writes: results.json, models, predictions, leaderboard files.

Running a task again in its folder runs the seeds that are missing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from electra.checkpoint.folder import held
from electra.config.finetune import FinetuneConfig
from electra.errors import ConfigError, DataError
from electra.finetune.class_weights import class_weights
from electra.finetune.evaluation_file import copy_evaluation
from electra.finetune.pretrained import Pretrained, check_length, untrained_positions
from electra.finetune.results_file import read_results, write_results
from electra.finetune.seed_folder import RESULTS, read_predictions, read_seed, seed_folder, write_seed
from electra.finetune.seeds import SeedRun, device_of, run_seeds, scores_before
from electra.finetune.task_results import SeedScore, Suite, TaskResult
from electra.finetune.unfinished import FOLDER, Unfinished
from electra.fsio import in_turn, remove_leftovers, require_own
from electra.manifest import finish, read_or_say
from electra.metrics.spread import median_place
from electra.progress import counted, progress, say
from electra.tasks.leaderboard import write_submission
from electra.tasks.task_data import TaskData
from electra.train.interrupt import stop_on_signals

LEADERBOARD = "leaderboard"
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


def results_of(run: Path) -> Suite:
    """The results of a folder of `electra finetune` or `electra glue`, or in its results.json; refused without one."""
    path = run / RESULTS if run.is_dir() else run
    if not path.is_file():
        raise DataError(run, f"has no {RESULTS}", fix="electra finetune or electra glue writes one")
    return read_results(path)


def run_task(base: Pretrained, data: TaskData, *, plan: Plan, out: Path, folder: Path) -> TaskResult:
    """The task's result over all seeds, after running those that `out` lacks; also written to `out`/results.json.

    Models and predictions go into `folder`/seed-N.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        return _run_task(base, data, plan=plan, out=out, folder=folder)


def _run_task(base: Pretrained, data: TaskData, *, plan: Plan, out: Path, folder: Path) -> TaskResult:
    finish(out)
    remove_leftovers(folder)
    suite = open_suite(out)
    done = next((result for result in suite.results if result.task == data.task.name), None)
    if not suite.results:
        finished = (path.name for path in folder.glob("seed-*"))  # a kill may have come before the results
        require_own(folder, FOLDER, *finished)
    if done is not None:
        _require_same(done, base, data, plan.config, out)
    elif suite.results and folder.resolve() == out.resolve():
        raise ConfigError("--out", f"{out} holds models of {suite.results[0].title}", fix="choose a new folder")
    done = _with_finished_seeds(done, base, data, plan=plan, out=out, folder=folder)
    unfinished = Unfinished(folder, seed_settings(base, data, plan.config))
    for score in done.seeds if done is not None else ():
        unfinished.remove(score.seed)  # a kill may have come between the two
    seeds = [seed for seed in plan.seeds if done is None or seed not in [run.seed for run in done.seeds]]
    if done is not None and not seeds:
        say(f"{data.task.title}: {counted(len(plan.seeds), 'seed')} already there")
        return _complete(done, data, out=out, folder=folder)
    check_length(base, plan.config.length)
    _say_notices(base, data, plan.config)
    device_of(plan.config)
    before = done.before if done is not None else scores_before(base, data, config=plan.config)
    title = f"fine-tuning {data.task.title}"
    with progress(title, unit="step") as bar, stop_on_signals() as stop:

        def show(steps: int, total: int, loss: float) -> None:
            bar.total = total
            bar.update(steps, f"loss {loss:.3f}{latest}" if loss == loss else "")

        latest = ""

        def evaluated(score: float) -> None:
            nonlocal latest
            latest = f", {data.task.choice} {score:.1f}"

        runs = run_seeds(
            base,
            data,
            config=plan.config,
            seeds=seeds,
            stop=stop,
            together=plan.together,
            unfinished=unfinished,
            on_step=show,
            on_evaluation=evaluated,
        )
        for run in runs:
            score = SeedScore(seed=run.seed, scores=run.scores, stuck=run.stuck, seconds=run.seconds, steps=run.steps)
            alone = replace(_first_result(data, base, plan.config, score), before=before)
            place = seed_folder(folder, run.seed)
            write_seed(run, base, data, config=plan.config, result=alone, out=place, save=plan.save)
            done = alone if done is None else done.with_run(score)
            _add_result(out, done)
            unfinished.remove(run.seed)
            say(_line(data, run))
    assert done is not None
    return _complete(done, data, out=out, folder=folder)


def _complete(done: TaskResult, data: TaskData, *, out: Path, folder: Path) -> TaskResult:
    """The result, with what follows from its seeds in place, also where a kill came before that."""
    if folder.resolve() == out.resolve():
        copy_evaluation(seed_folder(folder, median_seed(done)), folder)
    _write_leaderboard(done, data, folder=folder, out=out / LEADERBOARD)
    return done


def _say_notices(base: Pretrained, data: TaskData, config: FinetuneConfig) -> None:
    if warning := untrained_positions(base, data.train.ids, what=f"training sequences of {data.task.title}"):
        say(warning)
    for line in notices(data, config, positions=base.config.positions):
        say(line)


def _with_finished_seeds(
    done: TaskResult | None, base: Pretrained, data: TaskData, *, plan: Plan, out: Path, folder: Path
) -> TaskResult | None:
    """The result without seeds whose folders are gone, and with those that a kill kept out of it; all verified."""
    recorded = {run.seed: run for run in done.seeds} if done is not None else {}
    places = {seed: seed_folder(folder, seed) for seed in sorted({*plan.seeds, *recorded})}
    found = {seed: read_seed(place) for seed, place in places.items()}
    for seed in recorded:
        if found[seed] is None and places[seed].exists():
            read_or_say(places[seed])
    gone = [seed for seed in recorded if not places[seed].exists()]
    late = [result for seed, result in found.items() if result is not None and seed not in recorded]
    if gone:
        say(f"{data.task.title}: the folders of seeds {', '.join(map(str, gone))} are gone: these seeds run again")
    for result in late:
        _require_same(result, base, data, plan.config, out)
    runs = [run for seed, run in recorded.items() if seed not in gone] + [result.seeds[0] for result in late]
    if not runs or not (late or gone):
        return done if runs else None
    whole = replace(done or late[0], seeds=tuple(sorted(runs, key=lambda run: run.seed)))
    _add_result(out, whole)
    return whole


def _add_result(out: Path, result: TaskResult) -> None:
    """Put a task's result into results.json, beside those that other processes may add meanwhile."""
    with in_turn(out / ".results.lock"):
        remove_leftovers(out)
        write_results(out / RESULTS, open_suite(out).with_result(result))


def _first_result(data: TaskData, base: Pretrained, config: FinetuneConfig, first: SeedScore) -> TaskResult:
    rows, full = dict(data.rows), dict(data.full)
    if 0 < config.max_train_rows < rows["train"]:
        full.setdefault("train", rows["train"])
        rows["train"] = config.max_train_rows
    return TaskResult(
        task=data.task.name,
        title=data.task.title,
        metrics=data.task.metrics,
        seeds=(first,),
        rows=rows,
        full=full,
        model=base.name,
        config={**_fixed(config), "weights": base.checksum},
    )


def _fixed(config: FinetuneConfig) -> dict[str, Any]:
    return {key: value for key, value in asdict(config).items() if key not in _FREE_KEYS}


def seed_settings(base: Pretrained, data: TaskData, config: FinetuneConfig) -> dict[str, Any]:
    """What a seed depends on, besides its number."""
    rows = {f"{split} rows": count for split, count in data.rows.items()}
    return {"model": base.name, **_fixed(config), "weights": base.checksum, **rows}


def _require_same(done: TaskResult, base: Pretrained, data: TaskData, config: FinetuneConfig, out: Path) -> None:
    begun = _first_result(data, base, config, done.seeds[0])
    wanted = {"model": begun.model, **begun.config, **{f"{split} rows": count for split, count in begun.rows.items()}}
    # A result of before these keys was made with the model's own rates and the only head that there was.
    before = {
        "encoder_dropout": base.config.dropout,
        "attention_dropout": base.config.attention_dropout,
        "span_head": "joint",
        "frozen_layers": 0,
        "patience": 0,
        "restarts": 0,
        "class_weights": "off",
        "hold_out": 0.0,
        "hold_out_seed": 0,
        "cosine_scale": 20.0,
    }
    there = {
        "model": done.model,
        **before,
        **done.config,
        **{f"{split} rows": count for split, count in done.rows.items()},
    }
    changed = [f"{key} {there.get(key)!r}, now {value!r}" for key, value in wanted.items() if there.get(key) != value]
    if changed:
        reason = f"{out} holds {done.title} with other settings: {'; '.join(changed[:4])}"
        raise ConfigError("--out", reason, fix="choose a new folder, or give the same settings")


def _line(data: TaskData, run: SeedRun) -> str:
    scores = ", ".join(f"{name} {run.scores[name]:.2f}" for name in data.task.metrics)
    stuck = "; STUCK: it gives one answer to everything" if run.stuck else ""
    early = f", stopped early, best at {run.best_step:,}" if run.early else ""
    return f"{data.task.title}, seed {run.seed}: {scores} ({run.steps:,} steps, {run.seconds:.1f} s{early}){stuck}"


def median_seed(done: TaskResult) -> int:
    """The seed whose score is the median, of two middle ones the lower."""
    return done.seeds[median_place([run.scores[done.metrics[0]] for run in done.seeds])].seed


def notices(data: TaskData, config: FinetuneConfig, *, positions: int) -> list[str]:
    """What a run says of its rows before it trains: how many were cut, and whether classes are weighed."""
    lines = []
    dev = next(iter(data.eval_splits.values())).features
    for name, features in (("training", data.train), ("dev", dev)):
        if features.cut:
            more = (
                f"; length={min(positions, 2 * config.length)} reads more of them" if config.length < positions else ""
            )
            count = f"{features.cut:,} of {len(features.ids):,} {name} {'rows' if features.group == 1 else 'texts'}"
            lines.append(f"{data.task.title}: {count} are longer than {config.length} tokens and were cut{more}")
    if weights := class_weights(data, config.class_weights):
        named = sorted(zip(weights, data.task.labels, strict=True))
        lines.append(
            f"{data.task.title}: rare classes weigh more, from {named[0][1]} x{named[0][0]:.2g} to"
            f" {named[-1][1]} x{named[-1][0]:.2g} (class_weights=off: all the same)"
        )
    return lines


def _write_leaderboard(done: TaskResult, data: TaskData, *, folder: Path, out: Path) -> None:
    """Submission files from the run whose score is the median (the lower of two)."""
    if not data.tests:
        return
    seed = median_seed(done)
    out.mkdir(parents=True, exist_ok=True)
    for name, (task, split) in data.tests.items():
        predicted = seed_folder(folder, seed) / f"{name}.jsonl"
        if not predicted.is_file():  # the test set came after the run
            say(f"{predicted}: no such file, so no {task.title} file for the leaderboard (choose a new folder)")
            continue
        predictions = read_predictions(predicted)
        path = write_submission(
            out, task=task, split=split, ids=list(predictions), predictions=list(predictions.values())
        )
        say(f"wrote {path} (seed {seed})")
