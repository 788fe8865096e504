"""Pre-training put together: exact resuming, signals, refusals, budgets, and what a run folder holds."""

from __future__ import annotations

import errno
import getpass
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import corpora
import numpy as np
import one_process
import pytest
import tiny_runs
from click.testing import CliRunner
from tiny_runs import STEPS, losses, make_data, metric_lines, signalled, small_config, stop_at, times, weights

from electra import fsio
from electra.checkpoint import store
from electra.cli import main
from electra.config.load import load
from electra.config.schema import Config
from electra.errors import CheckpointError, ConfigError, DataError, Diverged, Resumable
from electra.fsio import read_json
from electra.pretrain import pretrain
from electra.shards.dataset import open_data
from electra.train.clock import elapsed_seconds
from electra.train.interrupt import SIGNALS, stop_on_signals


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


@pytest.fixture(scope="module")
def config(data: Path) -> Config:
    """A config whose first epoch ends exactly with a step, and whose second does not."""
    seeds = (small_config(f"seed={seed}") for seed in range(1, 200))
    return next(c for c in seeds if tiny_runs.steps_per_epoch(data, c).is_integer())


@pytest.fixture(scope="module")
def whole(data: Path, config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruptions."""
    return pretrain(config, data=data, out=tmp_path_factory.mktemp("whole") / "run")


def test_the_cases_are_what_they_are_called(data: Path, config: Config, whole: Path) -> None:
    epoch = tiny_runs.steps_per_epoch(data, config)
    assert 3 < epoch < STEPS - 1
    state = read_json(whole / "checkpoints" / f"step-{STEPS:08d}" / "state.json")
    assert state["step"] == state["total_steps"] == STEPS and state["cursor"]["epoch"] >= 1


@pytest.mark.parametrize("where", ["first", "mid-epoch", "epoch end", "after an epoch end", "last"])
def test_promise_04_resuming_is_bitwise(where: str, tmp_path: Path, data: Path, config: Config, whole: Path) -> None:
    boundary = round(tiny_runs.steps_per_epoch(data, config))
    stops = {"first": 1, "mid-epoch": boundary - 2, "epoch end": boundary, "after an epoch end": boundary + 1}
    stop = stops.get(where, STEPS - 1)
    out = tmp_path / "run"
    stop_at(stop, config, data=data, out=out)
    state = read_json(store.checkpoint_path(out, stop) / "state.json")
    assert (state["cursor"] == {"epoch": 1, "offset": 0}) == (where == "epoch end")
    pretrain(config, data=data, out=out)
    assert weights(out) == weights(whole)
    assert metric_lines(out) == metric_lines(whole)
    ends = [read_json(store.checkpoint_path(run, STEPS) / "state.json") for run in (out, whole)]
    by_clock = {"elapsed_s": 0, "metrics": 0}  # seconds are in the metrics too
    assert ends[0] | by_clock == ends[1] | by_clock


def test_promise_04_a_step_may_span_two_epochs(tmp_path: Path, data: Path, config: Config) -> None:
    others = (replace(config, seed=seed) for seed in range(1, 200))
    other = next(c for c in others if not tiny_runs.steps_per_epoch(data, c).is_integer())
    spans = math.ceil(tiny_runs.steps_per_epoch(data, other))
    once = pretrain(other, data=data, out=tmp_path / "once")
    for stop in (spans - 1, spans):
        out = tmp_path / str(stop)
        stop_at(stop, other, data=data, out=out)
        cursor = read_json(store.checkpoint_path(out, stop) / "state.json")["cursor"]
        assert (cursor["epoch"], 0 < cursor["offset"] < 8) == ((1, True) if stop == spans else (0, False))
        pretrain(other, data=data, out=out)
        assert weights(out) == weights(once) and metric_lines(out) == metric_lines(once)


def test_promise_04_stopping_at_every_other_step(tmp_path: Path, data: Path, config: Config, whole: Path) -> None:
    out = tmp_path / "run"
    for reached in range(2, STEPS, 2):
        with signalled(2), pytest.raises(Resumable, match=f"at step {reached},"):
            pretrain(config, data=data, out=out)
    pretrain(config, data=data, out=out)
    assert weights(out) == weights(whole)
    assert metric_lines(out) == metric_lines(whole)


def test_promise_04_kill_9_of_the_real_process(tmp_path: Path, data: Path, config: Config) -> None:
    """Every part is a process of its own: what earlier tests left in this one must not matter to the last bit."""
    whole, out = tmp_path / "whole", tmp_path / "run"
    untouched = tiny_runs.start(tiny_runs.command(data, whole, f"seed={config.seed}"), one_process.program())
    said = untouched.communicate(timeout=120)[0]
    assert untouched.returncode == 0, said
    arguments = tiny_runs.command(data, out, f"seed={config.seed}")
    process = tiny_runs.start(arguments)
    tiny_runs.wait_for(lambda: (out / "checkpoints" / "step-00000005").exists(), process)
    process.kill()
    said = process.communicate(timeout=60)[0]
    assert process.returncode == -signal.SIGKILL, said
    assert store.checkpoint_path(out, STEPS) not in (out / "checkpoints").iterdir(), "killed too late to show anything"
    (out / "checkpoints" / ".tmp-step-00000010-abcd").mkdir(exist_ok=True)
    (out / ".tmp-config.toml-abcd").write_text("cut sh")
    with (out / "metrics.jsonl").open("ab") as metrics:
        metrics.write(b'{"kind": "train", "step": 7, "train/lo')
    again = tiny_runs.start(arguments)
    said = again.communicate(timeout=120)[0]
    assert again.returncode == 0 and "resuming at step 5" in said, said
    assert f"done: {out}  (next: {sys.executable} -m electra export " in said, "as it was called"
    assert weights(out) == weights(whole)
    assert metric_lines(out) == metric_lines(whole)
    assert not list(out.rglob(".tmp-*"))


def test_promise_09_a_run_goes_on_from_before_the_damage(
    tmp_path: Path, data: Path, config: Config, whole: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    stop_at(7, config, data=data, out=out)
    bad = store.checkpoint_path(out, 7) / "optimizer.safetensors"
    os.truncate(bad, 100)
    pretrain(config, data=data, out=out)
    said = capfd.readouterr().err
    assert f"skipping a damaged checkpoint: {bad}: has 100 bytes, not" in said and "resuming at step 5" in said
    assert weights(out) == weights(whole) and metric_lines(out) == metric_lines(whole)
    assert len(list((out / "checkpoints").glob("damaged-step-00000007-*"))) == 1


def test_promise_11_a_signal_saves_and_exits_75(tmp_path: Path, data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C of a process, then each signal in this one; test_run_integrity sends all three before training."""
    out, overrides = tmp_path / "run", ["train.steps=100000", "checkpoint.every=100000", "train.log_every=2"]
    process = tiny_runs.start(tiny_runs.command(data, out, *overrides), one_process.program())
    metrics = out / "metrics.jsonl"
    tiny_runs.wait_for(lambda: metrics.exists() and b'"train"' in metrics.read_bytes(), process)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 75, said
    step = store.step_of(store.latest(out) or Path("step-0"))
    last = f"electra: stopped by SIGINT at step {step}, saved; run the same command to continue"
    assert said.splitlines()[-1] == last and "Traceback" not in said
    assert step == metric_lines(out)[-1]["step"]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        stopped = f"stopped by {number.name} at step {step + 3},"
        with signalled(3, number), pytest.raises(Resumable, match=stopped) as stop:
            pretrain(small_config(*overrides), data=data, out=out)
        assert stop.value.exit_code == 75 and f"resuming at step {step} " in capfd.readouterr().err
        step += 3


def test_promise_11_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with stop_on_signals() as stop:
        assert all(signal.getsignal(number) not in before for number in SIGNALS) and not stop
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stop and stop.reason == "SIGUSR1"
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_second_ctrl_c_ends_the_program_at_once(tmp_path: Path, data: Path, config: Config) -> None:
    def interrupted(*_: object, **__: object) -> None:
        time.sleep(0.3)  # by then the run waits for this save: an interrupt inside a finalizer would be swallowed
        os.kill(os.getpid(), signal.SIGINT)

    with signalled(2, signal.SIGINT), pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pretrain(config, data=data, out=tmp_path / "run")


def test_training_in_a_thread_goes_without_signals(tmp_path: Path, data: Path) -> None:
    runs: list[Path] = []
    config = small_config("train.steps=2", "optim.warmup_steps=1")
    thread = threading.Thread(target=lambda: runs.append(pretrain(config, data=data, out=tmp_path / "run")))
    thread.start()
    thread.join(120)
    assert runs == [tmp_path / "run"] and weights(runs[0])[0] == "step-00000002"


def test_promise_14_a_finished_run_is_left_alone(
    data: Path, config: Config, whole: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = times(whole)
    assert pretrain(config, data=data, out=whole) == whole
    assert capfd.readouterr().err == f"{whole}: finished at step {STEPS}; nothing to do\n"
    assert times(whole) == before


def test_defect_a_kill_behind_the_last_save_left_a_checkpoint_too_many_for_ever(
    tmp_path: Path, data: Path, config: Config, whole: Path
) -> None:
    """The folder as the kill leaves it: all checkpoints that are kept, and the one that was to go."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    kept = store.steps(run)
    assert len(kept) == config.checkpoint.keep
    shutil.copytree(kept[0], store.checkpoint_path(run, 1))
    pretrain(config, data=data, out=run)
    assert store.steps(run) == kept and weights(run) == weights(whole)


def test_promise_14_a_changed_config_is_refused_with_what_changed(tmp_path: Path, data: Path, whole: Path) -> None:
    seed = load(file=whole / "config.toml").seed
    before = times(whole)
    overrides = [f"seed={seed}", "optim.lr=0.25", "data.layout=packed", "train.steps=13"]
    result = CliRunner().invoke(main, tiny_runs.command(data, whole, *overrides))
    assert result.exit_code == 2
    for change in ("optim.lr 0.0005 -> 0.25", "data.layout sentences -> packed", "train.steps 12 -> 13"):
        assert change in result.stderr
    assert len(result.stderr.splitlines()) == 1 and "use another --out" in result.stderr and "seed" not in result.stderr
    assert times(whole) == before


def test_promise_14_other_data_is_refused(tmp_path: Path, config: Config, whole: Path) -> None:
    other = make_data(tmp_path / "other", seed="other")
    with pytest.raises(DataError, match="other: is not the data that .* was started on") as error:
        pretrain(config, data=other, out=whole)
    assert error.value.exit_code == 4


def test_a_folder_is_trained_in_by_one_process_at_a_time(data: Path, config: Config, whole: Path) -> None:
    with fsio.only_one(whole), pytest.raises(ConfigError, match="another process is training in"):
        pretrain(config, data=data, out=whole)


def test_a_damaged_run_json_is_one_line(tmp_path: Path, data: Path, config: Config) -> None:
    stop_at(1, config, data=data, out=tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(CheckpointError, match="run.json: has 1 bytes, not the "):
        pretrain(config, data=data, out=tmp_path / "run")


def test_a_state_of_another_kind_is_one_line(tmp_path: Path, data: Path, config: Config) -> None:
    out = tmp_path / "run"
    stop_at(1, config, data=data, out=out)
    tensors, _ = store.load(store.checkpoint_path(out, 1))
    store.save(out, step=2, tensors=tensors, state={"step": 2}, keep=3)
    with pytest.raises(CheckpointError, match=r"step-00000002/state.json: has no 'cursor'"):
        pretrain(config, data=data, out=out)


def test_promise_10_a_disk_that_fills_up_keeps_the_checkpoint_before(
    tmp_path: Path, data: Path, config: Config, whole: Path
) -> None:
    """On a real small disk where this user may mount one, otherwise with a failing write."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "electra-test", str(disk), "-o"]
    mounted = subprocess.run([*mount, "size=2m"], capture_output=True, check=False).returncode == 0
    out, arguments = disk / "run", tiny_runs.command(data, disk / "run", f"seed={config.seed}")

    def seam(name: str) -> None:
        if name == "model-written" and store.latest(out):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    try:
        with pytest.MonkeyPatch.context() as patch:
            if not mounted:
                patch.setattr(store, "seam", seam)
            result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 4, result.output
        last = result.stderr.splitlines()[-1]
        assert "step-00000010: could not be saved" in last and "No space left on device" in last
        assert weights(out)[0] == "step-00000005" and not list(out.rglob(".tmp-*"))
        if mounted:
            subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        assert CliRunner().invoke(main, arguments).exit_code == 0
        assert weights(out) == weights(whole) and metric_lines(out) == metric_lines(whole)
    finally:
        if mounted:
            subprocess.run(["umount", str(disk)], check=True)


def test_promise_10_metrics_that_cannot_be_written_are_one_line(
    tmp_path: Path, data: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("electra.train.metrics_file.os.fsync", full)
    with pytest.raises(CheckpointError, match="run/.*: cannot be used: no space left on device"):
        pretrain(config, data=data, out=tmp_path / "run")


@pytest.mark.parametrize("place", ["file/run", "file"])
def test_promise_10_an_unusable_folder_is_one_line(place: str, tmp_path: Path, data: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    result = CliRunner().invoke(main, tiny_runs.command(data, tmp_path / place))
    assert result.exit_code == 4
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"electra: error: {tmp_path / 'file'}") and "cannot be used" in last


def test_promise_12_non_finite_steps_change_nothing_and_stop_the_run(tmp_path: Path, data: Path) -> None:
    """A rate that overflows the weights in the first step: every later gradient is not a number."""
    overrides = ["optim.lr=1e30", "optim.warmup_steps=0", "guard.max_skipped=5", "checkpoint.every=1"]
    out = tmp_path / "run"
    result = CliRunner().invoke(main, tiny_runs.command(data, out, *overrides, "checkpoint.keep=9"))
    assert result.exit_code == Diverged.exit_code == 3
    last = result.stderr.splitlines()[-1]
    assert last.startswith("electra: error: step 6: 5 steps had a non-finite gradient and were skipped"), result.output
    lines = [line for line in metric_lines(out) if line["kind"] == "train"]
    assert [line["optim/skipped"] for line in lines] == [0, 1, 1, 1, 1, 1]
    assert [line["train/loss"] is None for line in lines] == [False, True, True, True, True, True]
    assert all(line["tokens"] == lines[0]["tokens"] for line in lines)
    broken = [line for line in metric_lines(out) if line["kind"] == "eval"][-1]
    assert broken["step"] == 5 and broken["eval/rtd_loss"] is None and broken["eval/rtd_auc"] is None
    saved = [(path / file).read_bytes() for file in store.FILES - {"state.json"} for path in sorted_steps(out)]
    assert len(sorted_steps(out)) == 5 and len(set(saved)) == 2, "not one byte moved after the first step"
    (dumped,) = sorted_steps(out / "diverged")
    store.verify(dumped)
    state = read_json(dumped / "state.json")
    assert store.step_of(dumped) == state["step"] == 6 and set(state["cursor"]) == {"epoch", "offset"}
    assert {(dumped / name).read_bytes() for name in store.FILES - {"state.json"}} <= set(saved)
    assert store.step_of(store.latest(out)) == 5, "a run goes on from before"


def sorted_steps(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step-*"))


def test_a_time_budget_is_used_over_stops(tmp_path: Path, data: Path) -> None:
    """Six seconds by steps of a twentieth, the first two of them before a stop."""
    config, out = small_config("train.max_minutes=0.1", "train.steps=100000", "evaluate.every=0"), tmp_path / "run"
    with tiny_runs.steps_take(0.05):
        with signalled(40), pytest.raises(Resumable):
            pretrain(config, data=data, out=out)
        stopped = read_json((store.latest(out) or out) / "state.json")
        assert stopped["step"] == 40 and stopped["total_steps"] == pytest.approx(120, abs=1)
        assert stopped["elapsed_s"] == pytest.approx(2.0) and elapsed_seconds(out) == pytest.approx(2.0)
        pretrain(config, data=data, out=out)
    ended = read_json((store.latest(out) or out) / "state.json")
    assert ended["step"] == ended["total_steps"] == pytest.approx(120, abs=1)
    assert ended["elapsed_s"] == pytest.approx(6.0, abs=0.051) and elapsed_seconds(out) == pytest.approx(6.0, abs=0.051)
    rates = [line["optim/lr"] for line in metric_lines(out) if line["kind"] == "train"]
    assert len(rates) == ended["step"] and rates[-1] < 0.2 * max(rates), "the schedule follows the budget to its end"


def test_time_after_the_last_checkpoint_counts(tmp_path: Path, data: Path) -> None:
    """A killed process leaves its seconds behind although its steps are lost."""
    config, out = small_config("train.max_minutes=1", "train.steps=100000", "checkpoint.every=7"), tmp_path / "run"
    stop_at(3, config, data=data, out=out)
    (out / "time.json").write_text('{"elapsed_s": 3600.0}')
    pretrain(config, data=data, out=out)
    ended = read_json((store.latest(out) or out) / "state.json")
    assert ended["step"] == ended["total_steps"] == 4 and ended["elapsed_s"] > 3600
    (out / "time.json").write_text("")
    assert elapsed_seconds(out) == 0.0, "a file cut short by a crash: the checkpoint has the time too"


def test_the_clock_starts_with_the_command(tmp_path: Path, data: Path) -> None:
    config, out = small_config("train.max_minutes=1", "train.steps=100000"), tmp_path / "run"
    pretrain(config, data=data, out=out, began=time.monotonic() - 3600)
    (last,) = metric_lines(out)[-1:]
    assert last["step"] == 1 and 3600 < elapsed_seconds(out) < 3660


def test_promise_07_accumulation_gives_the_same_run(tmp_path: Path, data: Path, config: Config, whole: Path) -> None:
    micro = replace(config, train=replace(config.train, micro_batch=2))
    out = pretrain(micro, data=data, out=tmp_path / "run")
    assert losses(out) == pytest.approx(losses(whole), rel=1e-5)
    assert weights(out)[1] != weights(whole)[1], "other sums: equal to rounding, not to the bit"


def test_promise_02_the_same_command_gives_the_same_run(
    tmp_path: Path, data: Path, config: Config, whole: Path
) -> None:
    out = pretrain(config, data=data, out=tmp_path / "run")
    assert weights(out) == weights(whole) and metric_lines(out) == metric_lines(whole)
    assert (out / "config.toml").read_bytes() == (whole / "config.toml").read_bytes()
    other = pretrain(replace(config, seed=config.seed + 1), data=data, out=tmp_path / "other")
    assert losses(other) != losses(whole)


def test_a_run_folder_holds_what_it_should(data: Path, config: Config, whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} == {
        "run.json",
        "time.json",
        "config.toml",
        "manifest.json",
        "metrics.jsonl",
        "tokenizer",
        "checkpoints",
    }
    assert load(file=whole / "config.toml") == config
    assert corpora.digests(whole / "tokenizer") == corpora.digests(data / "tokenizer")
    steps = [path.name for path in sorted_steps(whole)]
    assert steps == ["step-00000005", "step-00000010", "step-00000012"]
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    kinds = {kind: [line for line in lines if line["kind"] == kind] for kind in ("train", "eval", "sample")}
    assert sum(map(len, kinds.values())) == len(lines)
    assert [line["step"] for line in kinds["train"]] == list(range(1, STEPS + 1))
    assert [line["step"] for line in kinds["eval"]] == [0, 5, 10, 12]
    assert [line["step"] for line in kinds["sample"]] == [step for step in (0, 5, 10, 12) for _ in range(8)]
    assert len({tuple(line["original"]) for line in kinds["sample"]}) == 8
    train = {"loss", "mlm_loss", "rtd_loss", "rtd_accuracy", "replaced_rate"}
    perf = {"perf/tokens_per_s", "perf/steps_per_s", "perf/mfu", "perf/memory_gib"}
    optim = {"optim/lr", "optim/grad_norm", "optim/skipped"}
    place = {"kind", "step", "time_s", "tokens"}
    for line in kinds["train"]:
        assert line.keys() == place | {f"train/{name}" for name in train} | perf | optim
    figures = {"mlm_loss", "mlm_accuracy", "sampled_accuracy", "rtd_loss", "rtd_accuracy", "rtd_precision"}
    figures |= {"rtd_recall", "rtd_auc", "replaced_rate"}
    for line in kinds["eval"]:
        assert line.keys() == place | {f"eval/{name}" for name in figures}
    for line in kinds["sample"]:
        assert line.keys() == {"kind", "step", "spaced", "original", "masked", "replaced", "positions", "probabilities"}
        assert len(line["original"]) == len(line["masked"]) == len(line["replaced"]) == len(line["probabilities"])


def test_promise_19_run_json_names_no_person_and_no_place(
    tmp_path: Path, data: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    arguments = tiny_runs.command(data, out, "train.steps=1", "optim.warmup_steps=0")
    monkeypatch.setattr("sys.argv", [str(tmp_path / "bin" / "electra"), *arguments, f"--config={tmp_path}/x.toml"])
    pretrain(small_config("train.steps=1", "optim.warmup_steps=0"), data=data, out=out)
    text = (out / "run.json").read_text()
    facts = json.loads(text)
    assert facts["argv"][:5] == ["electra", "pretrain", "--data", "data", "--out"]
    assert facts["argv"][-1] == "--config=x.toml" and "train.steps=1" in facts["argv"]
    assert facts["seed"] == 0 and facts["data_sha256"] == fsio.sha256_file(data / "data.json")
    assert facts["ledger"]["tokens"] == 8 * 32
    assert str(tmp_path) not in text and str(Path.home()) not in text.replace('"/"', "")
    for private in (socket.gethostname(), getpass.getuser()):
        assert not re.search(rf"\b{re.escape(private)}\b", text)


def test_masked_language_modelling_runs_and_resumes(tmp_path: Path, data: Path) -> None:
    config = small_config("objective.name=mlm", "train.steps=6", "optim.lr=3e-3")
    once = pretrain(config, data=data, out=tmp_path / "once")
    stop_at(3, config, data=data, out=tmp_path / "twice")
    twice = pretrain(config, data=data, out=tmp_path / "twice")
    assert weights(once) == weights(twice)
    seen = [line for line in metric_lines(once) if line["kind"] == "eval"]
    assert all(set(line) == {"kind", "step", "tokens", "eval/mlm_loss", "eval/mlm_accuracy"} for line in seen)
    assert seen[-1]["eval/mlm_loss"] < seen[0]["eval/mlm_loss"]


def test_a_run_can_start_at_the_words_frequencies(tmp_path: Path, data: Path) -> None:
    """Its first loss is the entropy of the held-out words under the training text's frequencies, but for the noise of
    fresh weights, and resuming is exact."""
    config = small_config("objective.unigram_start=true")
    whole = pretrain(config, data=data, out=tmp_path / "whole")
    prepared = open_data(data)
    chances = prepared.train.counts() + 0.5
    tokens = prepared.held_out.slice(0, prepared.held_out.n_tokens)
    expected = -np.log(chances / chances.sum())[tokens].mean()
    first = next(line for line in metric_lines(whole) if line["kind"] == "eval")["eval/mlm_loss"]
    assert first == pytest.approx(expected, rel=0.1) and first < 0.9 * math.log(prepared.vocab_size)
    out = tmp_path / "run"
    stop_at(3, config, data=data, out=out)
    pretrain(config, data=data, out=out)
    assert weights(out) == weights(whole)


def test_a_vocabulary_size_follows_the_data(
    tmp_path: Path, data: Path, whole: Path, config: Config, capfd: pytest.CaptureFixture[str]
) -> None:
    """And a line names it where another one was chosen, not where the preset has another."""
    usual = load(config.preset).model.vocab_size
    for chosen, named in ((usual + 1, True), (usual, False)):
        pretrain(replace(config, model=replace(config.model, vocab_size=chosen)), data=data, out=whole)
        line = f"model.vocab_size is 200, as in the data, not {chosen}\n"
        output = capfd.readouterr().err
        assert (line in output) is named and ("vocab_size" in output) is named
