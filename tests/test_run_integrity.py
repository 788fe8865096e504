"""A run folder is only ever continued as what it is: nothing missing, nothing damaged, the same kernels or a word."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_runs
import torch
from tiny_runs import as_version_02_left_it, make_data, small_config, stop_at, wait_for, weights

from electra.checkpoint import folder as run_folder
from electra.config.schema import Config
from electra.errors import CheckpointError, ConfigError, DataError, Diverged
from electra.interop.transfer import export_model
from electra.ops import dispatch
from electra.ops.cpp import library
from electra.pretrain import pretrain
from electra.report.reading import read_run
from electra.shards import verification
from electra.train import heartbeat


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


@pytest.fixture(scope="module")
def begun(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after seven steps."""
    out = tmp_path_factory.mktemp("begun") / "run"
    stop_at(7, small_config(), data=data, out=out)
    return out


@pytest.fixture
def run(begun: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(begun, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def config() -> Config:
    return small_config()


def flip(path: Path, at: int | None = None, *, keep_time: bool = False) -> None:
    times, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


# --- what a run is


@pytest.mark.parametrize("kind", ["export", "data", "texts"])
def test_a_folder_of_something_else_is_refused(kind: str, begun: Path, data: Path, tmp_path: Path) -> None:
    """An export would keep its own tokenizer files, data lose its manifest."""
    out = tmp_path / kind
    if kind == "export":
        export_model(begun, out)
    elif kind == "data":
        shutil.copytree(data, out)
    else:
        out.mkdir()
        (out / "one.txt").write_text("the old house\n")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=rf"--out: {out} holds other files: .* \(choose a new folder\)"):
        pretrain(small_config(), data=data, out=out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_log_may_be_there_already(data: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "today.log").write_text("begun by hand\n")
    pretrain(small_config(), data=data, out=tmp_path / "run")


def test_a_run_that_could_not_begin_takes_the_corrected_settings(data: Path, tmp_path: Path) -> None:
    """Refused before, in the folder that the failed command had made: it held a run with another config."""
    out, config = tmp_path / "run", small_config()
    with pytest.raises(DataError, match="holds no whole sequence"):
        pretrain(small_config("data.layout=packed", "data.length=512", "model.positions=512"), data=data, out=out)
    pretrain(config, data=data, out=out)
    pretrain(config, data=data, out=tmp_path / "fresh")
    assert run_folder.read_config(out) == config
    assert weights(out) == weights(tmp_path / "fresh")


@pytest.mark.parametrize("kind", ["saved", "trained", "other data"])
def test_the_settings_of_a_run_that_has_begun_stay(kind: str, run: Path, data: Path, tmp_path: Path) -> None:
    if kind != "saved":
        shutil.rmtree(run / "checkpoints")
    if kind == "other data":
        (run / "metrics.jsonl").unlink()
        data = make_data(tmp_path / "others", seed=5)
    with pytest.raises((ConfigError, DataError), match=r"another config: seed|is not the data"):
        pretrain(small_config("seed=99"), data=data, out=run)
    assert run_folder.read_config(run) == small_config()


@pytest.mark.parametrize("missing", [("run.json",), ("config.toml",), ("run.json", "config.toml")])
def test_promise_14_a_run_that_lost_a_file_is_refused(missing: tuple[str, ...], run: Path, data: Path) -> None:
    """Without them another configuration would train on from these weights."""
    for name in missing:
        (run / name).unlink()
    with pytest.raises(CheckpointError, match=f"{missing[-1]}: is missing: without it this run cannot go on"):
        pretrain(small_config("optim.lr=0.1"), data=data, out=run)


@pytest.mark.parametrize("name", ["run.json", "config.toml", "tokenizer/tokenizer.json"])
def test_promise_09_a_damaged_file_of_a_run_is_refused(name: str, run: Path, data: Path, config: Config) -> None:
    flip(run / name)
    with pytest.raises(CheckpointError, match=f"{name}: is damaged: its sha256 is not the recorded one"):
        pretrain(config, data=data, out=run)


def test_promise_09_a_lost_manifest_is_refused(run: Path, data: Path, config: Config) -> None:
    (run / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="manifest.json: is missing"):
        pretrain(config, data=data, out=run)


def test_promise_09_damaged_metrics_are_refused(run: Path, data: Path, config: Config) -> None:
    """A figure that reads like another one is worse than none."""
    path = run / "metrics.jsonl"
    read_run(run)
    path.write_text(path.read_text().replace('"train/loss": 2', '"train/loss": 1', 1))
    for look in (lambda: read_run(run), lambda: pretrain(config, data=data, out=run)):
        with pytest.raises(CheckpointError, match="metrics.jsonl: is damaged: its lines up to step 7 are not those"):
            look()
    path.unlink()
    assert pretrain(config, data=data, out=run) == run


def test_promise_16_a_run_of_before_manifests_goes_on(
    run: Path, data: Path, config: Config, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As version 0.2 left it: no manifest, no format, no record of the kernels."""
    as_version_02_left_it(run)
    pretrain(config, data=data, out=run)
    assert capfd.readouterr().err.count("run: has no manifest.json, as written before version 0.3") == 1
    assert weights(run) == weights(pretrain(config, data=data, out=tmp_path / "whole"))


def test_promise_08_replacing_run_json_survives_a_kill_anywhere(
    run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Old or new, and always one that its manifest fits."""
    seams = ["files-staged", "files-listed", "file-replaced"]
    for name in seams:
        copy = tmp_path / name
        shutil.copytree(run, copy)
        before = run_folder.read_facts(copy / "run.json")

        def die(here: str, name: str = name) -> None:
            if here == name:
                raise MemoryError  # nothing of ours catches it

        execution = {**before["executions"][-1], "threads": 99}
        with monkeypatch.context() as patch:
            patch.setattr("electra.manifest.seam", die)
            with pytest.raises(MemoryError):
                run_folder.note_execution(copy, step=7, execution=execution, refuse=False)
        found = run_folder.read_facts(copy / "run.json")["executions"]
        assert len(found) == (1 if name == "files-staged" else 2)
        run_folder.verify_run(copy)


# --- which kernels ran


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine as it is without a C++ compiler and without a cache."""
    monkeypatch.setattr(library, "missing", lambda: "no C++ compiler")
    dispatch.host_ops.cache_clear()
    yield
    dispatch.host_ops.cache_clear()


def test_promise_02_run_json_says_which_kernels_ran(begun: Path) -> None:
    (execution,) = run_folder.read_facts(begun / "run.json")["executions"]
    chosen = dispatch.select(device=torch.device("cpu"), dtype=torch.float32)
    assert execution["step"] == 0 and execution["device"] == "cpu" and execution["precision"] == "float32"
    assert {row["op"]: row["backend"] for row in execution["ops"]} == {name: one.backend for name, one in chosen}
    assert execution["threads"] == torch.get_num_threads() and execution["processes"] == 1


@pytest.mark.usefixtures("without_compiler")
def test_promise_02_other_kernels_are_a_warning_or_refused(
    run: Path, data: Path, config: Config, capfd: pytest.CaptureFixture[str]
) -> None:
    strict = replace(config, checkpoint=replace(config.checkpoint, same_kernels=True))
    with pytest.raises(ConfigError, match=r"checkpoint.same_kernels: .* encoder_stack cpp .* -> reference") as refused:
        pretrain(strict, data=data, out=run)
    assert refused.value.exit_code == 2
    pretrain(config, data=data, out=run)
    said = capfd.readouterr().err
    assert "warning: steps execute in another way than before:" in said and "not bit for bit the same" in said
    first, second = run_folder.read_facts(run / "run.json")["executions"]
    assert (first["step"], second["step"]) == (0, 7)
    assert {row["backend"] for row in second["ops"]} == {"reference"}
    run_folder.verify_run(run)


def test_the_same_kernels_are_no_word_worth(
    run: Path, data: Path, config: Config, capfd: pytest.CaptureFixture[str]
) -> None:
    pretrain(replace(config, checkpoint=replace(config.checkpoint, same_kernels=True)), data=data, out=run)
    assert "another way" not in capfd.readouterr().err
    assert len(run_folder.read_facts(run / "run.json")["executions"]) == 1


# --- the data, while it is trained on


@pytest.mark.parametrize("name", ["train/00000.tokens", "held-out/00000.sentences", "tokenizer/tokenizer.json"])
def test_promise_09_data_that_decays_stops_the_run_at_its_next_save(
    name: str, data: Path, config: Config, tmp_path: Path
) -> None:
    """Size and time of the file stay: it was found whole before, and only the background reads it again."""
    copy, out = tmp_path / "data", tmp_path / "run"
    shutil.copytree(data, copy)
    assert verification.verify_once(tiny_runs.open_data(copy).sums) is False
    at = 1 if name.endswith(".sentences") else None
    flip(copy / name, at, keep_time=True)
    with pytest.raises(
        DataError, match="is damaged|do not follow|not the tokenizer|holds token|cannot be read as JSON"
    ):
        pretrain(config, data=copy, out=out)
    assert not list((out / "checkpoints").glob("step-*")), "nothing was saved"
    flip(copy / name, at, keep_time=True)
    pretrain(config, data=copy, out=out)
    assert weights(out) == weights(pretrain(config, data=data, out=tmp_path / "whole"))


# --- ends


def test_promise_12_a_run_that_ends_in_bad_steps_is_diverged(data: Path, tmp_path: Path) -> None:
    """Fewer of them than `guard.max_skipped`: it must not end like a good run."""
    hot = small_config("optim.lr=1e30", "optim.warmup_steps=0", "optim.clip=1e30")
    with pytest.raises(Diverged, match=r"step 12: the run ends with 1\d steps whose gradient was not finite") as end:
        pretrain(hot, data=data, out=tmp_path / "hot")
    assert end.value.exit_code == 3
    assert (tmp_path / "hot" / "diverged" / "checkpoints" / "step-00000012").is_dir()
    assert not (tmp_path / "hot" / "checkpoints" / "step-00000012").exists()


def test_promise_12_a_run_whose_weights_give_no_numbers_is_diverged(data: Path, tmp_path: Path) -> None:
    """One step destroyed the weights, and it was finite: the steps after it are few, and in one line with it."""
    hot = small_config("optim.lr=1e38", "optim.warmup_steps=1", "train.steps=3", "train.log_every=5")
    with pytest.raises(Diverged, match="step 3: the run ends, and its mlm_loss on held-out text is not a number"):
        pretrain(hot, data=data, out=tmp_path / "hot")
    assert (tmp_path / "hot" / "diverged" / "checkpoints" / "step-00000003").is_dir()
    assert not (tmp_path / "hot" / "checkpoints").exists()


def test_promise_12_a_run_that_ends_far_worse_than_guessing_is_diverged(data: Path, tmp_path: Path) -> None:
    """Every number is finite, and no line before the end shows the rise."""
    rarely = ["train.log_every=20", "evaluate.every=20", "checkpoint.every=20"]
    hot = small_config("optim.lr=50", "optim.warmup_steps=1", *rarely)
    with pytest.raises(Diverged, match=r"step 12: the run ends, and its mlm_loss on held-out text is [\d,.]+, where"):
        pretrain(hot, data=data, out=tmp_path / "hot")
    assert not (tmp_path / "hot" / "checkpoints" / "step-00000012").exists()


def test_promise_11_a_signal_before_training_is_one_line(data: Path, tmp_path: Path) -> None:
    """While packages are imported and the model is built, nothing is there to be saved."""
    for number, wait_s in ((signal.SIGTERM, 0.4), (signal.SIGUSR1, 0.9), (signal.SIGINT, 1.5)):
        process = tiny_runs.start(tiny_runs.command(data, tmp_path / "run"))
        time.sleep(wait_s)
        process.send_signal(number)
        said = process.communicate(timeout=60)[0]
        assert process.returncode == 75, said
        assert "stopped" in said.splitlines()[-1] and "Traceback" not in said


def test_promise_11_a_signal_after_the_last_step_changes_nothing(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = tiny_runs.start(tiny_runs.command(data, out))
    wait_for(lambda: (out / "checkpoints" / "step-00000012").exists(), process)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[0]
    assert process.returncode in (0, 75) and "Traceback" not in said, said
    assert process.returncode == 0 or "stopped by SIGTERM" in said


class Store(dict[str, bytes]):
    """What `Heartbeat` uses of a torch.distributed store."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


def test_promise_13_silent_processes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.02)
    monkeypatch.setattr(heartbeat, "LOOK_S", 0.3)
    store = Store()
    beats = [heartbeat.Heartbeat(store, rank=rank, size=4) for rank in (0, 1, 2)]  # rank 3 never came
    time.sleep(0.1)
    beats[1].close()
    assert beats[0].lost() == [1, 3] and beats[2].lost() == [1, 3]
    for beat in beats:
        beat.close()
