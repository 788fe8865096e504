"""Runs that go on from their folder alone, get longer, are tried without a trace, or do not fit into the memory."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_runs
import torch
from click.testing import CliRunner, Result
from tiny_runs import STEPS, make_data, metric_lines, small_config, stop_at, times, weights

from electra.checkpoint import store
from electra.checkpoint.folder import read_config, read_facts
from electra.checkpoint.lengthening import config_to_resume, explain, first_difference, noted_folder, with_goal
from electra.cli import main
from electra.config.schema import OptimConfig
from electra.errors import ConfigError, DataError
from electra.finetune import task_run
from electra.pretrain import pretrain
from electra.train.execution import plan_execution
from electra.train.loop import Position
from electra.train.memory import row_estimate, smaller_step
from electra.train.schedule import learning_rate
from electra.train.trial import Trial

TRAPEZOID = "optim.decay_share=0.25"
LONGER = 16


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with linear decay, without interruptions."""
    return pretrain(small_config(), data=data, out=tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def finished(tmp_path: Path, whole: Path, data: Path) -> Path:
    """A copy of the finished run, its data beside it as it was."""
    shutil.copytree(data, tmp_path / data.parent.name / data.name)
    return shutil.copytree(whole, tmp_path / whole.parent.name / whole.name)


def resume(run: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["pretrain", "--resume", str(run), *arguments])


def test_promise_04_a_run_goes_on_from_its_folder_alone(tmp_path: Path, data: Path, whole: Path) -> None:
    run = tmp_path / "run"
    stop_at(7, small_config(), data=data, out=run)
    result = resume(run)
    assert result.exit_code == 0 and "resuming at step 7" in result.stderr and "lengthened" not in result.stderr
    assert weights(run) == weights(whole) and metric_lines(run) == metric_lines(whole)


def test_run_and_data_may_move_together(finished: Path) -> None:
    result = resume(finished)
    assert result.exit_code == 0 and f"finished at step {STEPS}; nothing to do" in result.stderr


def test_before_its_decay_a_trapezoid_is_exactly_the_longer_run(tmp_path: Path, data: Path) -> None:
    longer = pretrain(small_config(TRAPEZOID, f"train.steps={LONGER}"), data=data, out=tmp_path / "longer")
    run = tmp_path / "run"
    stop_at(8, small_config(TRAPEZOID), data=data, out=run)
    result = resume(run, f"train.steps={LONGER}")
    meaning = f"lengthened at step 8 from {STEPS} to {LONGER} steps: exact, the steps so far are those of a run of"
    assert result.exit_code == 0 and meaning in result.stderr
    assert weights(run) == weights(longer) and metric_lines(run) == metric_lines(longer)


def test_copies_follow_the_length_of_a_run(tmp_path: Path, data: Path) -> None:
    run = tmp_path / "run"
    stop_at(8, small_config(TRAPEZOID, "data.copies=0.5", "data.copies_share=0.3"), data=data, out=run)
    result = resume(run, f"train.steps={LONGER}")
    assert result.exit_code == 0
    assert "from the start, as data.copies_share follows the length" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("changes", "follows"),
    [
        (("data.copies_share=0.3",), None),
        (("data.copies=0.5", "data.copies_share=0.3"), "data.copies_share"),
        (("data.copies=0.5",), None),
        (("model.dropout=0", "model.attention_dropout=0", "model.dropout_share=0.5"), None),
        (("model.dropout=0", "model.attention_dropout=0.1", "model.dropout_share=0.5"), "model.dropout_share"),
        (("masking.rate_start=0.3",), "masking.rate_start"),
    ],
)
def test_only_what_a_run_reads_follows_its_length(changes: tuple[str, ...], follows: str | None) -> None:
    before, config = (small_config(TRAPEZOID, *changes, f"train.steps={steps}") for steps in (60, 90))
    said = explain(Position(step=20, total_steps=90), before, config)
    means = "exact, the steps so far are those" if follows is None else f"as {follows} follows the length"
    assert means in said


def test_a_finished_run_with_linear_decay_is_lengthened_and_says_what_that_means(finished: Path) -> None:
    result = resume(finished, f"train.steps={LONGER}")
    assert result.exit_code == 0
    rate = learning_rate(STEPS, optim=small_config().optim, total=LONGER)
    assert f"lengthened at step {STEPS} from {STEPS} to {LONGER} steps: not those of a run of {LONGER}" in result.stderr
    assert f"from step 1 on; it goes on with {rate:.3g} where it had 0" in result.stderr
    rates = {line["step"]: line["optim/lr"] for line in metric_lines(finished) if line["kind"] == "train"}
    assert list(rates) == list(range(1, LONGER + 1)) and rates[STEPS + 1] == rate
    facts = read_facts(finished / "run.json")
    assert facts["lengthened"] == [{"step": STEPS, "key": "train.steps", "before": STEPS, "after": LONGER}]
    assert facts["ledger"]["tokens"] == LONGER * 8 * 32 and read_config(finished).train.steps == LONGER
    assert f"finished at step {LONGER}; nothing to do" in resume(finished).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("train.steps=5",), 2, "train.steps: 5 is no lengthening of this run's 12"),
        (("train.max_minutes=5",), 2, "train.max_minutes: 5 is no lengthening of this run's 0"),
        (("optim.lr=0.1",), 2, r"optim.lr: is 0.0005 in this run \(a run that has begun may change: train.steps"),
        (("--out", "x"), 2, "--out and --resume exclude each other"),
        (("--preset", "tiny"), 2, "--preset and --resume exclude each other"),
        (("--data", "nowhere"), 4, "nowhere"),
    ],
)
def test_promise_20_what_cannot_be_resumed_so_is_one_line(
    arguments: tuple[str, ...], code: int, message: str, whole: Path
) -> None:
    before = times(whole)
    result = resume(whole, *arguments)
    assert result.exit_code == code and re.search(message, result.stderr) and result.stderr.count("\n") == 1
    assert times(whole) == before


def test_promise_20_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    result = resume(tmp_path)
    assert result.exit_code == 5 and "holds no run to resume" in result.stderr
    result = CliRunner().invoke(main, ["pretrain", "--data", "x"])
    assert result.exit_code == 2 and "Missing option '--out'" in result.stderr


def test_data_that_has_moved_is_asked_for_and_checked(tmp_path: Path, finished: Path, data: Path) -> None:
    folder = finished / read_facts(finished / "run.json")["data_folder"]
    moved = Path(shutil.move(folder.resolve(), tmp_path / "moved"))
    result = resume(finished)
    assert result.exit_code == 4 and "is not there any more (say with --data where it is now)" in result.stderr
    assert resume(finished, "--data", str(moved)).exit_code == 0
    other = make_data(tmp_path / "other", seed="other")
    result = resume(finished, "--data", str(other))
    assert result.exit_code == DataError.exit_code and "is not the data that" in result.stderr


def test_the_refusal_of_a_longer_run_says_how_to_lengthen(data: Path, whole: Path) -> None:
    with pytest.raises(ConfigError, match=rf"electra pretrain --resume {whole} train.steps=13; or use another --out"):
        pretrain(small_config("train.steps=13"), data=data, out=whole)


def test_promise_19_a_data_folder_that_names_the_person_is_not_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert noted_folder(Path("/home/ada/run"), Path("/home/ada/texts/data")) == "../texts/data"
    assert noted_folder(Path("/scratch/run"), Path("/home/ada/data")) is None


def test_the_first_of_two_stages_stays_as_long_as_it_began(tmp_path: Path, data: Path) -> None:
    stages = ("train.algorithm=two-stage", "train.start_from_generator=false", "train.steps=4")
    config = small_config(*stages, "optim.warmup_steps=1")
    run = pretrain(config, data=data, out=tmp_path / "run")
    assert config_to_resume(run, ["train.steps=8"]).train.stage_steps == (2, 6)
    result = resume(run, "train.steps=8", "--data", str(data))
    assert result.exit_code == 0 and "from step 3 on" in result.stderr
    assert read_config(run).train.stage_steps == (2, 6)


def test_a_longer_time_budget_has_more_steps() -> None:
    config = small_config("train.max_minutes=20")
    facts = {"lengthened": [{"step": 100, "key": "train.max_minutes", "before": 10.0, "after": 20.0}]}
    reached = Position(step=100, total_steps=100)
    assert with_goal(reached, config, facts).total_steps == 200
    assert with_goal(replace(reached, step=150, total_steps=190), config, facts).total_steps == 190


@pytest.mark.parametrize(
    ("optim", "first"),
    [
        (OptimConfig(warmup_steps=10, warmup_share=1.0), 1),  # linear decay: from the first rate above 0 on
        (OptimConfig(warmup_steps=10, warmup_share=1.0, decay_share=0.5), 51),
        (OptimConfig(warmup_steps=10, warmup_share=1.0, decay_steps=100), None),
        (OptimConfig(warmup_steps=1000, warmup_share=0.25, decay_share=0.1), 1),  # another warm-up
    ],
)
def test_where_two_schedules_part(optim: OptimConfig, first: int | None) -> None:
    assert first_difference(optim, 100, 200, until=100) == first
    assert first_difference(optim, 100, 200, until=1) is None


def test_steps_that_are_asked_for_are_taken_as_they_are(tmp_path: Path, data: Path) -> None:
    """Between saves and evaluations; the warm-up of a run that has begun stays what it is."""
    limits = ("checkpoint.seconds=60", "evaluate.seconds=12", "optim.warmup_share=0.3")
    run = tmp_path / "run"
    stop_at(4, small_config(*limits), data=data, out=run)
    begun = read_config(run)
    config = config_to_resume(run, ["checkpoint.every=5", "evaluate.every=3", "optim.warmup_steps=4"])
    assert (config.checkpoint.every, config.checkpoint.seconds) == (5, 0.0)
    assert (config.evaluate.every, config.evaluate.seconds) == (3, 0.0)
    assert config.optim == begun.optim
    kept = config_to_resume(run, ["checkpoint.every=2", "checkpoint.seconds=30"]).checkpoint
    assert (kept.every, kept.seconds) == (2, 30.0)
    with pytest.raises(ConfigError, match=r"optim\.warmup_steps: is 4 in this run"):
        config_to_resume(run, ["optim.warmup_steps=5"])
    assert resume(run, "checkpoint.every=2", "checkpoint.keep=9").exit_code == 0
    assert [store.step_of(path) for path in store.steps(run)] == [4, 6, 8, 10, 12]


def test_a_dry_run_leaves_nothing_behind(tmp_path: Path, data: Path, whole: Path) -> None:
    arguments = [*tiny_runs.command(data, tmp_path / "run"), "--dry-run"]
    before, kept = sorted(data.rglob("*")), times(whole)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0 and not (tmp_path / "run").exists() and sorted(data.rglob("*")) == before
    for field in ("tokens/s", "evaluation ", "GiB at its highest of ", "are kept", f"for {STEPS} steps"):
        assert field in result.stdout
    assert resume(whole, "--dry-run").exit_code == 0 and times(whole) == kept


def test_a_dry_run_estimates_by_hand() -> None:
    trial = Trial(
        first_s=5.0, step_s=0.5, tokens=1000, evaluation_s=10, memory_gib=1.25, where="cpu", parameters=10**6,
        memory_bytes=4 << 30,
    )  # fmt: skip
    config = small_config("train.steps=1000", "evaluate.every=250")
    assert trial.seconds(config) == 5 + 500 + 5 * 10
    lines = trial.lines(config)
    assert lines[1] == "  step        0.5 s, 2k tokens/s; the first one took 5 s"
    assert lines[3] == "  memory      1.25 GiB at its highest of 4.0 GiB" and lines[4].startswith("  checkpoint  12MB")
    assert lines[5] == "  time        about 9:15 for 1,000 steps, with evaluations"
    assert "at most 110 steps in 1 minute" in trial.lines(small_config("train.max_minutes=1", "train.steps=9999"))[5]


def test_advice_halves_until_it_fits() -> None:
    config = small_config("train.batch_size=128", "train.micro_batch=128")
    execution = plan_execution(config, torch.device("cpu"), rows=128)
    row = row_estimate(config, execution)
    assert smaller_step(config, execution, free=int(row * 1000)).startswith("train.micro_batch=64:")
    assert smaller_step(config, execution, free=int(row * 12)).startswith("train.micro_batch=8:")
    assert smaller_step(config, execution, free=int(row * 9)).startswith("train.micro_batch=4:")
    assert smaller_step(config, execution, free=1) == "train.micro_batch=1 train.recompute=on, or data.length=16"
    again = replace(execution, recompute=True, micro_batch=1)
    assert smaller_step(config, again, free=0).startswith("data.length=16, or make model.width")


LIMITED = """
import resource, sys
import torch, electra.pretrain, electra.interop.continuation
from electra.cli import main
with open("/proc/self/status") as status:
    size = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmSize:"))
resource.setrlimit(resource.RLIMIT_AS, (size + (300 << 20),) * 2)
main(sys.argv[1:])
"""


def test_out_of_memory_names_a_setting_that_fits(tmp_path: Path, data: Path) -> None:
    settings = ["train.batch_size=1536", "train.steps=1", "optim.warmup_steps=0", "evaluate.every=0"]
    arguments = tiny_runs.command(data, tmp_path / "run", *settings)
    shown, advice = "", ""
    for code in (1, 0):
        process = tiny_runs.start([*arguments, *advice.split()], program=("-c", LIMITED), MALLOC_ARENA_MAX="1")
        shown = process.communicate(timeout=120)[0]
        assert process.returncode == code, shown
        if code:
            found = re.search(r"out of memory: 1536 sequences at once .* \(add (train.micro_batch=\d+):", shown)
            assert found, shown
            advice = found[1]
    assert "done: " in shown


def test_a_run_that_has_begun_may_take_smaller_parts(tmp_path: Path, data: Path) -> None:
    stop_at(3, small_config(), data=data, out=tmp_path / "run")
    run = pretrain(small_config("train.micro_batch=4"), data=data, out=tmp_path / "run")
    assert read_config(run).train.micro_batch == 4


def test_fine_tuning_that_does_not_fit_names_its_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise MemoryError

    monkeypatch.setattr(task_run, "finetune_task", full)
    result = CliRunner().invoke(main, ["finetune", "rte", "--model", "x", "--data", "x", "--out", "x"])
    assert result.exit_code == 1 and "out of memory (lower batch_size or length, such as batch_size=8" in result.stderr
