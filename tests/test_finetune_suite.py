"""Tasks over seeds and what they leave behind: killed, continued, refused, labelled."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import task_files
from model_folders import VOCAB
from relisted import relist
from tiny_runs import start, times, wait_for
from tiny_tuning import MINI, PLAIN, tiny_base

from electra.config.finetune import FinetuneConfig
from electra.errors import CheckpointError, ConfigError, DataError, Resumable
from electra.finetune import suite as suites
from electra.finetune.model_folder import load_finetuned, model_folder
from electra.finetune.pretrained import Pretrained
from electra.finetune.results_file import read_results, write_results
from electra.finetune.seed_folder import CURVE, RESULTS
from electra.finetune.suite import Plan, open_suite, run_task
from electra.finetune.task_results import Suite, TaskResult
from electra.inference.predict import predict
from electra.tasks.glue_tasks import glue_task
from electra.tasks.task_data import TaskData, load_glue, load_questions, load_table
from electra.tokenizer.codec import Tokenizer

TOKENIZER = Tokenizer(VOCAB)
QUICK = replace(PLAIN, epochs=2.0, log_every=2)


def table(folder: Path, *, train: int = 16) -> TaskData:
    files = {
        "train": task_files.table(folder / "train.csv", train),
        "dev": task_files.table(folder / "dev.csv", 12, seed=1),
    }
    return load_table(
        "mine", files, kind="classify", text="text", pair=None, label="label", tokenizer=TOKENIZER, config=QUICK
    )


def glue(folder: Path, name: str, **rows: int) -> TaskData:
    getattr(task_files, name)(folder, **rows)
    return load_glue(glue_task(name), folder, tokenizer=TOKENIZER, config=QUICK)


def run(
    data: TaskData, out: Path, *seeds: int, base: Pretrained | None = None, folder: Path | None = None, **changes: Any
) -> TaskResult:
    plan = {key: changes.pop(key) for key in ("save", "together") if key in changes}
    config: FinetuneConfig = replace(QUICK, **changes)
    made = Plan(config=config, seeds=seeds, **plan)
    return run_task(base or tiny_base(MINI), data, plan=made, out=out, folder=folder or out)


def scores(result: TaskResult) -> list[tuple[int, dict[str, float], int]]:
    return [(one.seed, one.scores, one.steps) for one in result.seeds]


def test_defect_positions_that_pre_training_never_saw_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The table has 32 positions, pre-training used 24 of them."""
    rows = [
        "text,label",
        *(f"{'a b ' * (13 if number == 0 else 3)}{'c' if number % 2 else 'd'},{number % 2}" for number in range(16)),
    ]
    (tmp_path / "train.csv").write_text("\n".join(rows))
    (tmp_path / "dev.csv").write_text("\n".join([rows[0], *rows[2:]]))

    def tuned(length: int) -> tuple[str, Path]:
        data = load_table(
            "mine",
            {split: tmp_path / f"{split}.csv" for split in ("train", "dev")},
            kind="classify",
            text="text",
            pair=None,
            label="label",
            tokenizer=TOKENIZER,
            config=replace(QUICK, length=length),
        )
        run(data, tmp_path / f"out-{length}", 0, length=length)
        return capfd.readouterr().err, tmp_path / f"out-{length}"

    assert "warning" not in tuned(24)[0]
    said, out = tuned(32)
    assert "1 of 16 training sequences of mine are longer than the 24 tokens that tiny was pre-trained on" in said
    assert "positions 25 to 29 start untrained (length=24 cuts them; pre-training with data.length=29" in said
    model = load_finetuned(out)
    assert (model.about.length, model.about.pretrained_length, model.about.trained_length) == (32, 24, 29)
    predict(model, ["a b c", "a b " * 13])
    assert "warning" not in capfd.readouterr().err
    predict(model, [*["a b " * 20] * 2, *["a"] * 2046, "a b " * 20])
    lines = [line for line in capfd.readouterr().err.splitlines() if "longer" in line]
    assert len(lines) == 2, "a line each for all rows, and not for every 2,048"
    assert "3 of 2,049 sequences are longer than the 29 tokens of the longest that the model" in lines[0]
    assert "3 of 2,049 rows are longer than 32 tokens and were cut" in lines[1]


def test_what_a_task_leaves_behind(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data, out = table(tmp_path), tmp_path / "out"
    result = run(data, out, 3, 4)
    assert read_results(out / RESULTS).results == (result,) == open_suite(out).results
    assert [one.seed for one in result.seeds] == [3, 4] and result.seeds[0].steps == 4
    assert result.rows == {"train": 16, "dev": 12} and not result.labels and result.model == "tiny"
    outputs = capfd.readouterr().err
    for seed in (3, 4):
        assert f"mine, seed {seed}: accuracy " in outputs
        folder = out / f"seed-{seed}"
        rows = [json.loads(line) for line in (folder / "dev.jsonl").read_text().splitlines()]
        assert [row["id"] for row in rows] == [str(number) for number in range(12)]
        right = [row["prediction"] == ("no", "yes")[number % 2] for number, row in enumerate(rows)]
        found = next(one for one in result.seeds if one.seed == seed)
        assert found.scores["accuracy"] == pytest.approx(100 * sum(right) / 12), "the file holds what was scored"
        assert [step for step, _ in json.loads((folder / CURVE).read_text())["losses"]] == [2, 4]
        loaded = load_finetuned(folder)
        assert loaded.about.scores == pytest.approx(found.scores)
        assert (loaded.about.task, loaded.about.seed, loaded.about.source) == ("mine", seed, "tiny")
    assert model_folder(out).name in ("seed-3", "seed-4")
    again = run(data, out, 3, 4)
    assert again == result and "mine: 2 seeds already there" in capfd.readouterr().err


def test_only_missing_seeds_are_run(tmp_path: Path) -> None:
    data = table(tmp_path)
    whole = run(data, tmp_path / "whole", 0, 1, 2)
    run(data, tmp_path / "parts", 1)
    kept = (tmp_path / "parts" / "seed-1" / "model.safetensors").stat().st_mtime_ns
    parts = run(data, tmp_path / "parts", 0, 1, 2)
    assert scores(parts) == scores(whole)
    assert (tmp_path / "parts" / "seed-1" / "model.safetensors").stat().st_mtime_ns == kept
    for seed in (0, 1, 2):
        left, right = (tmp_path / name / f"seed-{seed}" / "model.safetensors" for name in ("whole", "parts"))
        assert left.read_bytes() == right.read_bytes()


def test_results_are_written_after_every_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked at each step which seeds the file holds: those that are done, and nothing less."""
    data, out = table(tmp_path), tmp_path / "out"
    seen: list[int] = []
    real = suites.run_seeds

    def watched(*args: Any, on_step: Callable[..., None], **options: Any) -> Any:
        def look(done: int, total: int, loss: float) -> None:
            seen.append(sum(len(result.seeds) for result in open_suite(out).results))
            on_step(done, total, loss)

        return real(*args, on_step=look, **options)

    monkeypatch.setattr(suites, "run_seeds", watched)
    run(data, out, 0, 1, 2)
    assert seen == [0] * 4 + [1] * 4 + [2] * 4


def test_a_stop_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = table(tmp_path), tmp_path / "out"
    real = suites.run_seeds

    def stopped(*args: Any, on_step: Callable[..., None], **options: Any) -> Any:
        def ask(done: int, total: int, loss: float) -> None:
            if done == 6:  # the second seed's second step
                os.kill(os.getpid(), signal.SIGTERM)

        return real(*args, on_step=ask, **options)

    with monkeypatch.context() as patch:
        patch.setattr(suites, "run_seeds", stopped)
        with pytest.raises(Resumable, match="stopped by SIGTERM, saved; run the same"):
            run(data, out, 0, 1)
    assert [one.seed for one in open_suite(out).results[0].seeds] == [0]
    assert scores(run(data, out, 0, 1)) == scores(run(data, tmp_path / "other", 0, 1))


KILLED = """
import sys
from pathlib import Path
import test_finetune_suite as suite
folder, out = Path(sys.argv[1]), Path(sys.argv[2])
suite.run(suite.table(folder), out, *range(40), save=True)
"""


def test_a_killed_run_finishes_the_missing_seeds(tmp_path: Path) -> None:
    """SIGKILL after the first seed, wherever that hits; then the same again until it is done."""
    out = tmp_path / "out"
    paths = os.pathsep.join(str(Path(__file__).parents[1] / part) for part in ("src", "tests"))
    process = start([str(tmp_path), str(out)], ("-c", KILLED), PYTHONPATH=paths)
    wait_for(lambda: (out / RESULTS).is_file(), process)
    process.kill()
    process.communicate()
    survived = open_suite(out).results[0]
    assert 1 <= len(survived.seeds) < 40, "killed on the way"
    seeds = range(len(survived.seeds) + 1)
    continued = run(table(tmp_path), out, *seeds)
    assert scores(continued)[: len(survived.seeds)] == scores(survived)
    assert [one.seconds for one in continued.seeds][:-1] == [one.seconds for one in survived.seeds], "not run again"
    assert scores(continued) == scores(run(table(tmp_path), tmp_path / "whole", *seeds))
    assert load_finetuned(out / f"seed-{seeds[-1]}").about.seed == seeds[-1]


HELD_UP = """
import sys, time
from pathlib import Path
import test_finetune_suite as suite
from electra.finetune import trainer
trainer.SAVE_EVERY_S = 0.0
trainer.SAVE_SHARE = 1e9
step = trainer.Trial.advance
trainer.Trial.advance = lambda trial: (step(trial), time.sleep(0.02))
folder, out = Path(sys.argv[1]), Path(sys.argv[2])
suite.run(suite.table(folder, train=64), out, 0, 1, **suite.LONG)
"""
LONG: dict[str, Any] = {"epochs": 6.0, "select": "best", "eval_every": 7, "dropout": 0.1, "log_every": 5}


def started(program: str, folder: Path, out: Path) -> Any:
    paths = os.pathsep.join(str(Path(__file__).parents[1] / part) for part in ("src", "tests"))
    return start([str(folder), str(out)], ("-c", program), PYTHONPATH=paths)


def files(out: Path) -> dict[str, bytes]:
    """What a seed leaves behind, without what holds seconds."""
    timed = {RESULTS, "manifest.json"}
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("seed-*/*") if p.name not in timed}


def test_promise_04_a_seed_killed_on_the_way_ends_bit_for_bit_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL inside a seed, between an evaluation that was the best so far and the next reading of the loss."""
    out, whole = tmp_path / "out", tmp_path / "whole"
    process = started(HELD_UP, tmp_path, out)
    place = out / "unfinished" / "seed-0" / "checkpoints"
    wait_for(lambda: (place / "step-00000009").exists(), process)
    process.kill()
    process.communicate()
    assert not (out / RESULTS).exists()
    data = table(tmp_path, train=64)
    continued = run(data, out, 0, 1, **LONG)
    assert "seed 0 goes on from step " in capfd.readouterr().err
    assert scores(continued) == scores(run(data, whole, 0, 1, **LONG))
    assert files(out) == files(whole) and len(files(whole)) == 16
    assert not (out / "unfinished").exists()


def test_promise_14_a_seed_begun_with_other_settings_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    data, out = table(tmp_path), tmp_path / "out"
    real = suites.run_seeds

    def stopped(*args: Any, on_step: Callable[..., None], **options: Any) -> Any:
        return real(*args, on_step=lambda done, total, loss: os.kill(os.getpid(), signal.SIGTERM), **options)

    with monkeypatch.context() as patch:
        patch.setattr(suites, "run_seeds", stopped)
        with pytest.raises(Resumable):
            run(data, out, 0)
    with pytest.raises(ConfigError, match=r"unfinished/seed-0 was begun with other settings: lr 0.0003, now 0.001"):
        run(data, out, 0, lr=1e-3)
    assert scores(run(data, out, 0)) == scores(run(data, tmp_path / "whole", 0))


@pytest.mark.parametrize("name", ["model.safetensors", "task.json", "vocab.txt", "curve.json", "dev.jsonl", RESULTS])
def test_promise_09_a_damaged_seed_is_refused_and_named(name: str, tmp_path: Path) -> None:
    data, out = table(tmp_path), tmp_path / "out"
    result = run(data, out, 0, 1)
    path = out / "seed-1" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=rf"seed-1/{name}: is damaged: .*\(remove .*seed-1 to run this seed again"
    ):
        run(data, out, 0, 1)
    shutil.rmtree(out / "seed-1")
    assert scores(run(data, out, 0, 1)) == scores(result), "it ran again"
    assert load_finetuned(out / "seed-1").about.seed == 1


def test_promise_09_damaged_results_are_refused(tmp_path: Path) -> None:
    data, out = table(tmp_path), tmp_path / "out"
    run(data, out, 0)
    path = out / RESULTS
    path.write_text(path.read_text().replace('"steps": 4', '"steps": 5'))
    for look in (lambda: read_results(path), lambda: run(data, out, 0)):
        with pytest.raises(DataError, match=f"{RESULTS}: is damaged"):
            look()


def test_promise_08_a_seed_that_a_kill_kept_out_of_the_results_is_not_lost(tmp_path: Path) -> None:
    data, out = table(tmp_path), tmp_path / "out"
    result = run(data, out, 0, 1)
    alone = replace(result, seeds=result.seeds[:1])
    write_results(out / RESULTS, Suite(results=(alone,)))
    assert run(data, out, 0, 1) == result, "with the seconds of its own run"
    for name in (RESULTS, "manifest.json"):
        (out / name).unlink()
    assert run(data, out, 0, 1) == result == open_suite(out).results[0]
    for name in (RESULTS, "manifest.json"):
        (out / name).unlink()
    with pytest.raises(ConfigError, match="with other settings: lr 0.0003, now 0.001"):
        run(data, out, 0, 1, lr=1e-3)


def test_promise_08_a_kill_after_the_last_seed_loses_no_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seeds were all there, so that nothing looked for it again."""
    data, out = table(tmp_path), tmp_path / "out"

    def killed(seed: Path, folder: Path) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(suites, "copy_evaluation", killed)
        with pytest.raises(MemoryError):
            run(data, out, 0)
    assert not (out / "evaluation.json").exists()
    run(data, out, 0)
    assert (out / "evaluation.json").read_bytes() == (out / "seed-0" / "evaluation.json").read_bytes()
    before = times(out)
    run(data, out, 0)
    assert times(out) == before


def test_results_of_before_manifests_are_read_and_added_to(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As versions 0.1 and 0.2 left them: no sums, no scores in a seed's folder."""
    data, out = table(tmp_path), tmp_path / "out"
    first = run(data, out, 0)
    for name in ("manifest.json", "seed-0/manifest.json", f"seed-0/{RESULTS}"):
        (out / name).unlink()
    capfd.readouterr()
    both = run(data, out, 0, 1)
    assert both.seeds[0] == first.seeds[0] and len(both.seeds) == 2
    run(data, out, 0, 1)
    assert capfd.readouterr().err.count("seed-0: has no manifest.json, as written before version 0.3") == 1


def test_promise_14_two_processes_in_a_folder_are_refused(tmp_path: Path) -> None:
    """The second one ends at once, and the first one's seeds are whole."""
    out = tmp_path / "out"
    process = started(HELD_UP, tmp_path, out)
    wait_for(lambda: (out / "unfinished" / "seed-0").exists(), process)
    with pytest.raises(ConfigError, match=f"--out: another process is training in {out}"):
        run(table(tmp_path, train=64), out, 0, 1, **LONG)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    assert scores(open_suite(out).results[0]) == scores(run(table(tmp_path, train=64), tmp_path / "b", 0, 1, **LONG))


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"lr": 1e-3}, "lr 0.0003, now 0.001"),
        ({"epochs": 3.0, "batch_size": 4}, "epochs 2.0, now 3.0; batch_size 8, now 4"),
        ({"max_train_rows": 5}, "max_train_rows 0, now 5"),
    ],
)
def test_other_settings_are_refused(changes: dict[str, Any], shown: str, tmp_path: Path) -> None:
    data, out = table(tmp_path), tmp_path / "out"
    run(data, out, 0, save=False)
    before = (out / RESULTS).read_bytes()
    with pytest.raises(ConfigError, match=f"--out: .* holds mine with other settings: {shown}") as refused:
        run(data, out, 0, 1, **changes)
    assert refused.value.exit_code == 2 and "choose a new folder" in str(refused.value)
    assert (out / RESULTS).read_bytes() == before
    assert len(run(data, out, 0, 1, log_every=1, seed=7, save=False).seeds) == 2, "these change nothing"


def test_another_model_or_other_rows_are_refused(tmp_path: Path) -> None:
    data, out = table(tmp_path), tmp_path / "out"
    base = tiny_base(MINI)
    run(data, out, 0, base=base, save=False)
    with pytest.raises(ConfigError, match="model 'tiny', now 'tiny, untrained'; weights '"):
        run(data, out, 1, base=base.untrained())
    with pytest.raises(ConfigError, match="other settings: weights '[0-9a-f]{8}', now '"):
        run(data, out, 1, base=tiny_base(MINI, seed=5))  # the same folder, trained on
    with pytest.raises(ConfigError, match="other settings: train rows 16, now 18"):
        run(table(tmp_path, train=18), out, 1, base=base)


def test_two_tasks_in_a_folder(tmp_path: Path) -> None:
    """Side by side where each has a folder of its own; never over each other's models."""
    out = tmp_path / "out"
    one, two = glue(tmp_path, "cola"), glue(tmp_path, "rte")
    run(one, out, 0, folder=out / "cola")
    run(two, out, 0, folder=out / "rte")
    assert [result.task for result in open_suite(out).results] == ["cola", "rte"]
    alone = tmp_path / "alone"
    run(one, alone, 0)
    before = (alone / "seed-0" / "task.json").read_bytes()
    with pytest.raises(ConfigError, match="--out: .*alone holds models of CoLA .choose a new folder"):
        run(two, alone, 0)
    assert (alone / "seed-0" / "task.json").read_bytes() == before


def test_leaderboard_files_are_the_median_seeds(tmp_path: Path) -> None:
    data, out = glue(tmp_path, "cola", test=9), tmp_path / "out"
    result = run(data, out, 0, 1, 2, save=False, folder=out / "cola")
    ranked = sorted(result.seeds, key=lambda one: (one.scores["matthews"], one.seed))
    path = out / "leaderboard" / "CoLA.tsv"

    def expected(seed: int) -> str:
        lines = (out / "cola" / f"seed-{seed}" / "test.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        return "index\tprediction\n" + "".join(f"{row['id']}\t{row['prediction']}\n" for row in rows)

    assert path.read_text() == expected(ranked[1].seed)
    assert not (out / "cola" / "seed-0" / "task.json").exists(), "no model was asked for"

    # The median moves with the scores; the middle one of hand-made scores is looked up, the lower of two.
    nan = math.nan
    for values, chosen in (((30.0, 10.0, 20.0), 2), ((nan, 5.0, 50.0), 1), ((7.0, nan, nan), 2), ((30.0, 10.0), 1)):
        seeds = tuple(
            replace(one, scores=one.scores | {"matthews": value})
            for one, value in zip(result.seeds, values, strict=False)
        )
        for seed in (0, 1, 2):
            answers = out / "cola" / f"seed-{seed}" / "test.jsonl"
            rows = [{"id": str(row), "prediction": str(int(row == seed))} for row in range(9)]
            answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
            relist(answers.parent)
        write_results(out / RESULTS, Suite(results=(replace(result, seeds=seeds),)))
        path.unlink()
        run(data, out, *range(len(values)), save=False, folder=out / "cola")
        assert path.read_text() == expected(chosen), "written again though no seed was missing"


def test_test_sets_that_came_later(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    run(glue(tmp_path, "cola"), out, 0, save=False)
    run(glue(tmp_path, "cola", test=4), out, 0, save=False)
    assert "test.jsonl: no such file, so no CoLA file for the leaderboard" in capfd.readouterr().err
    assert not (out / "leaderboard" / "CoLA.tsv").exists()


def test_mnli_answers_for_ax(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run(glue(tmp_path, "mnli", test=3, ax=5), out, 0, save=False, folder=out / "mnli")
    assert result.metrics == ("accuracy", "accuracy_mismatched")
    files = {path.name: len(path.read_text().splitlines()) for path in (out / "leaderboard").iterdir()}
    assert files == {"MNLI-m.tsv": 4, "MNLI-mm.tsv": 4, "AX.tsv": 6}


def test_subsets_are_labelled(tmp_path: Path) -> None:
    some = run(table(tmp_path), tmp_path / "some", 0, save=False, max_train_rows=10)
    assert some.subset and some.labels == ["subset of train: 10 of 16 rows"]
    assert some.seeds[0].steps == 2, "10 rows, twice, in batches of 8"
    more = run(table(tmp_path), tmp_path / "more", 0, save=False, max_train_rows=99)
    assert not more.subset and more.seeds[0].steps == 4
    cola = run(glue(tmp_path, "cola"), tmp_path / "cola", 0, save=False, max_train_rows=10)
    assert cola.labels == ["subset of train: 10 of 8,551 rows", "subset of dev: 8 of 1,043 rows"]


def test_defect_a_cap_counts_rows_before_pairs_are_swapped(tmp_path: Path) -> None:
    """A cap of 40 left 4 of these 24 rows unseen in 8 of 48 sequences, and the row count looked whole."""
    data = glue(tmp_path, "mrpc")
    less = run(data, tmp_path / "less", 0, save=False, max_train_rows=20)
    assert less.rows["train"] == 20 and less.labels[0] == "subset of train: 20 of 3,668 rows"
    assert less.seeds[0].steps == 10, "20 rows, both ways round, twice, in batches of 8"
    most = run(data, tmp_path / "most", 0, save=False, max_train_rows=40)
    assert most.rows["train"] == 24 and most.seeds[0].steps == 12


def test_questions_leave_the_official_files(tmp_path: Path) -> None:
    files = {
        "train": task_files.squad(tmp_path / "train.json", 8, impossible=True),
        "dev": task_files.squad(tmp_path / "dev.json", 6, seed=1, impossible=True),
    }
    data = load_questions("mine", files, tokenizer=TOKENIZER, config=replace(QUICK, max_query=8))
    out = tmp_path / "out"
    result = run(data, out, 0, max_query=8, epochs=1.0, beam=4, null_threshold=-0.02)
    predictions = json.loads((out / "seed-0" / "predictions.json").read_text())
    odds = json.loads((out / "seed-0" / "null_odds.json").read_text())
    assert predictions.keys() == odds.keys() == {f"q{row}" for row in range(6)}
    assert all(predictions[name] == "" for name in odds if odds[name] > -0.02)
    assert set(result.metrics) == {"exact", "f1", "best_exact", "best_f1"}
    assert load_finetuned(out).about.null_threshold == -0.02


def test_a_stuck_seed_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A learning rate of almost nothing leaves the head where it began: one answer for every row."""
    data = table(tmp_path)
    base = tiny_base(MINI)
    for parameter in (*base.embeddings.parameters(), *base.encoder.parameters()):
        parameter.data.zero_()
    result = run(data, tmp_path / "out", 0, base=base, save=False, lr=1e-12)
    assert result.stuck == [0] and result.scores("accuracy") == [50.0]
    assert "STUCK: it gives one answer to everything" in capfd.readouterr().err
    assert np.isfinite(result.scores()).all()
