"""Two processes over gloo: the numbers of one, checkpoints that move between the two, stops and failures together."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest
import tiny_runs
import torch
from ranks import Case, copy_run, run_all
from tiny_runs import STEPS, losses, make_data, metric_lines, small_config, weights

from electra.checkpoint import store
from electra.checkpoint.tensors import read_tensors
from electra.errors import ConfigError, ElectraError
from electra.pretrain import pretrain
from electra.train.parallel import World, join

LIMIT_S = 120
SHARD = "train.shard=true"
ASKED = """
import os, signal
import electra.train.execution
from electra.train.step import Stepper

class Asked(Stepper):
    steps = 0
    def __call__(self, rows, lr):
        Asked.steps += 1
        super().__call__(rows, lr)
        if (os.environ["RANK"], Asked.steps) == ("1", 3):
            os.kill(os.getpid(), signal.SIGTERM)

electra.train.execution.Stepper = Asked
"""

Ended = dict[str, list[tuple[int, str]]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


@pytest.fixture(scope="module")
def root(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs are; `alone` is the one of one process."""
    root = tmp_path_factory.mktemp("runs")
    pretrain(small_config(), data=data, out=root / "alone")
    return root


@pytest.fixture(scope="module")
def ended(root: Path, data: Path) -> Ended:
    """Runs of two processes, by name, as they ended."""

    def two(name: str, *overrides: str, out: str = "", prelude: str = "", source: str = "") -> Case:
        copied = (str(root / source), str(root / name), 5) if source else None
        arguments = tiny_runs.command(data, root / (out or name), *overrides)
        return Case(name, 2, str(root / f"{name}.out"), arguments, prelude=prelude, copied=copied)

    return run_all(
        [
            two("together"),
            two("of one", source="alone"),
            two("other settings", "optim.lr=0.5", out="alone"),
            two("asked", prelude=ASKED),
        ]
    )


@pytest.fixture(scope="module")
def alone(root: Path) -> Path:
    return root / "alone"


@pytest.fixture(scope="module")
def together(root: Path, ended: Ended) -> Path:
    """The same run on two processes."""
    (first, said), (second, others_said) = ended["together"]
    assert (first, second) == (0, 0), said + others_said
    assert said.count("\ndone: ") == 1 and "done: " not in others_said, "one process speaks"
    return root / "together"


def figures(run: Path, kind: str) -> list[dict[str, float]]:
    return [
        {key: value for key, value in line.items() if "/" in key and not key.startswith("perf/")}
        for line in metric_lines(run)
        if line["kind"] == kind
    ]


def test_promise_06_two_processes_compute_what_one_does(alone: Path, together: Path) -> None:
    """With dropout, because it is addressed by the sample."""
    assert small_config().model.dropout > 0
    assert losses(together) == pytest.approx(losses(alone), rel=1e-6)
    for one, two in zip(figures(alone, "train"), figures(together, "train"), strict=True):
        assert two == pytest.approx(one, rel=1e-4)
    assert [line["tokens"] for line in metric_lines(together) if "tokens" in line] == [
        line["tokens"] for line in metric_lines(alone) if "tokens" in line
    ]
    for one, two in zip(figures(alone, "eval"), figures(together, "eval"), strict=True):
        assert two["eval/mlm_loss"] == pytest.approx(one["eval/mlm_loss"], rel=1e-5)
        assert two["eval/rtd_loss"] == pytest.approx(one["eval/rtd_loss"], rel=1e-4)
    one, two = (read_tensors(store.checkpoint_path(run, STEPS) / "model.safetensors") for run in (alone, together))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-3, atol=1e-5)


def test_promise_11_a_signal_to_one_stops_both(root: Path, ended: Ended) -> None:
    (lead, first), (other, second) = ended["asked"]
    assert (lead, other) == (75, 75), first + second
    assert "electra: stopped by a signal to another process at step 3, saved" in first
    assert "electra: stopped by SIGTERM at step 3, saved" in second
    assert store.latest(root / "asked") == store.checkpoint_path(root / "asked", 3)
    assert "Traceback" not in first + second and second.count("\n") < 6, "one process speaks"


def test_promise_05_a_checkpoint_of_two_goes_on_in_one(
    root: Path, data: Path, ended: Ended, together: Path, alone: Path
) -> None:
    """And one of one in two: what a checkpoint holds does not depend on who wrote it."""
    copy_run(str(together), str(root / "of two"), 5)
    pretrain(small_config(), data=data, out=root / "of two")
    assert [code for code, _ in ended["of one"]] == [0, 0], ended["of one"]
    for name in ("of two", "of one"):
        assert weights(root / name)[0] == f"step-{STEPS:08d}"
        assert losses(root / name) == pytest.approx(losses(alone), rel=1e-6)


def test_promise_10_a_failure_of_the_leader_ends_both_with_its_code(ended: Ended) -> None:
    (lead, first), (other, second) = ended["other settings"]
    assert (lead, other) == (2, 2), first + second
    assert "holds a run with another config: optim.lr" in first
    assert second.splitlines()[-1].endswith("process 1 ends because the leading one failed; its message says why")
    assert "Traceback" not in first + second


@pytest.fixture(scope="module")
def sharded(root: Path, data: Path) -> Path:
    """The run of two processes with sharded weights, undisturbed."""
    arguments = tiny_runs.command(data, root / "sharded", SHARD)
    ended = run_all([Case("sharded", 2, str(root / "sharded.out"), arguments)])["sharded"]
    assert [code for code, _ in ended] == [0, 0], ended
    return root / "sharded"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("twin", "sent", "rank"),
    [
        ("together", signal.SIGKILL, 1),
        pytest.param("sharded", signal.SIGKILL, 1, marks=pytest.mark.soak),
        pytest.param("together", signal.SIGSTOP, 1, marks=pytest.mark.soak),
        pytest.param("together", signal.SIGSTOP, 0, marks=pytest.mark.soak),
        pytest.param("sharded", signal.SIGSTOP, 1, marks=pytest.mark.soak),
        pytest.param("sharded", signal.SIGSTOP, 0, marks=pytest.mark.soak),
    ],
)
def test_promise_13_torchrun_starts_again_after_a_lost_process(
    tmp_path: Path, data: Path, request: pytest.FixtureRequest, twin: str, sent: signal.Signals, rank: int
) -> None:
    """`kill -9` of one of the two, or SIGSTOP: the other says which, torchrun starts both again, and the run ends as
    if nothing was. A stopped one costs the timeout, and the 30 s after which torchrun kills what does not end.

    `test_sharding` has a stopped one without torchrun, in every run of the tests.
    """
    lost = f"electra: error: process {1 - rank} lost process {rank}: "
    lost += "no answer within train.timeout_s (" if sent == signal.SIGSTOP else ""
    overrides = ["train.timeout_s=5", *([SHARD] if twin == "sharded" else [])]
    # torchrun itself failed to start again once in 39 runs, cause unknown. It looks every tenth of a second, and on a
    # busy machine may end the other process before that has said what it saw.
    for attempt in ("first", "second"):
        out = tmp_path / attempt
        code, said, took_s = lose_one_process(data, out, *overrides, sent=sent, rank=rank)
        if code == 0 and lost in said:
            break
        print(f"{attempt} attempt: torchrun ended with {code}: {said}")
    assert code == 0, said
    assert took_s < 60 + (5 + 30) * (sent == signal.SIGSTOP)
    assert "resuming at step 5" in said or "resuming at step 10" in said
    assert lost in said and "Traceback" not in said, said
    undisturbed: Path = request.getfixturevalue(twin)
    assert weights(out) == weights(undisturbed) and metric_lines(out) == metric_lines(undisturbed)


def lose_one_process(data: Path, out: Path, *overrides: str, sent: signal.Signals, rank: int) -> tuple[int, str, float]:
    """The launcher's exit code and output, and the seconds it went on, after one of its two processes got a signal."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1")
    arguments = ["-m", "electra", *tiny_runs.command(data, out, *overrides)]
    with tiny_runs.start(arguments, torchrun, GLOO_SOCKET_IFNAME="lo") as launcher:
        try:
            tiny_runs.wait_for(lambda: (out / "checkpoints" / "step-00000005").exists(), launcher)
            os.kill(worker(launcher.pid, rank), sent)
            began = time.monotonic()
            said = launcher.communicate(timeout=LIMIT_S)[0]
        finally:
            launcher.terminate()
    return launcher.returncode, said, time.monotonic() - began


def worker(launcher: int, rank: int) -> int:
    """The process id of a rank below a launcher."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = re.search(r"^PPid:\s+(\d+)$", (entry / "status").read_text(), re.MULTILINE)
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if parent and int(parent[1]) == launcher and f"RANK={rank}".encode() in environment:
                return int(entry.name)
    raise AssertionError(f"no worker of rank {rank}")


def test_a_batch_must_divide_among_the_processes() -> None:
    assert [World(rank, 3).share(12) for rank in range(3)] == [slice(0, 4), slice(4, 8), slice(8, 12)]
    with pytest.raises(ConfigError, match="train.batch_size: 8 is not a multiple of the 3 processes"):
        World(0, 3).share(8)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE: 'two' is not a count"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE: it says 2 processes, but RANK is not set .start them with torchrun"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "WORLD_SIZE: it says 2 processes, but MASTER_ADDR is not set"),
    ],
)
def test_promise_20_half_an_environment_of_torchrun_is_one_line(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said):
        join(torch.device("cpu"), timeout_s=1)


def test_promise_13_a_leader_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torchrun, which keeps the store that the processes meet in, the leading process keeps it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    world = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in world.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ElectraError, match="process 1 lost process 0: no answer within train.timeout_s"):
        join(torch.device("cpu"), timeout_s=0.1)


def test_a_world_of_one_needs_no_group() -> None:
    world = World()
    tensor = torch.ones(2)
    assert world.leads and world.sum_(tensor) is tensor and world.any(True) and not world.any(False)
    assert world.lead(3) == 3 and world.lead(None) is None and world.by_leader(lambda: 4) == 4
    world.close()
