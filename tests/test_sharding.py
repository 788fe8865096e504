"""Two and four processes, replicated or sharded by FSDP2: the numbers of one, and its checkpoints, whatever fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch
from ranks import Case, run_all
from tiny_runs import losses, make_data, metric_lines, small_config, weights

from electra import hardware
from electra.checkpoint import store
from electra.checkpoint.tensors import read_tensors
from electra.errors import ConfigError
from electra.model.cost import parameters
from electra.train.memory import require_memory
from electra.train.parallel import World
from electra.train.sharding import plan_sharding

SHARD = "train.shard=true"
STEPS, SAVED = 20, 15
LONG = [f"train.steps={STEPS}", "model.dropout=0", "model.attention_dropout=0", "evaluate.every=0"]
LONG += [f"checkpoint.every={SAVED}", "model.layers=1"]
ENCODERS = """
import importlib
pretrain = importlib.import_module("electra.pretrain")
plan = pretrain.plan_sharding
pretrain.plan_sharding = lambda model, *, world, unit: plan(model, world=world, unit="encoder")
"""

Ended = dict[str, list[tuple[int, str]]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def case(root: Path, data: Path, name: str, size: int, *overrides: str, **more: Any) -> Case:
    return Case(name, size, str(root / f"{name}.out"), tiny_runs.command(data, root / name, *overrides), **more)


def resumed(root: Path, data: Path, source: str, name: str, size: int, *overrides: str) -> Case:
    """The last steps of a run in other processes than the first ones."""
    copied = (str(root / source), str(root / name), SAVED)
    return case(root, data, name, size, *LONG, *overrides, copied=copied)


FAULT = """
import os, resource, signal
import electra.train.execution
from electra.train.memory import require_memory
from electra.train.parallel import World
from electra.train.step import Stepper
rank = int(os.environ["RANK"])

class Faulty(Stepper):
    steps = 0
    def __call__(self, rows, lr):
        Faulty.steps += 1
        super().__call__(rows, lr)
        if (rank, Faulty.steps) == {at}:
            {act}

electra.train.execution.Stepper = Faulty
"""
KILLED_IN_A_SAVE = """
import os, signal
from electra.train.memory import require_memory
from electra.train.parallel import World
send, sent = World.send, []
def deadly(self, tensor):
    sent.append(1)
    if len(sent) == 80:  # of 57 a save: in the second one
        os.kill(os.getpid(), signal.SIGKILL)
    send(self, tensor)
World.send = deadly
"""
STOPPED_BEFORE = """
import os, signal
import torch.distributed
if os.environ["RANK"] == "1":
    torch.distributed.init_process_group = lambda *_, **__: os.kill(os.getpid(), signal.SIGSTOP)
"""
NAN_ON_ONE = """
import os
import electra.train.execution
from electra.train.step import Stepper

class Poisoned(Stepper):
    steps = 0
    def __call__(self, rows, lr):
        Poisoned.steps += 1
        weight = self._model.get_parameter("discriminator_head.score.bias")
        finite = weight.detach().clone()
        if os.environ["RANK"] == "1" and Poisoned.steps > 3:
            weight.data.fill_(float("nan"))
        super().__call__(rows, lr)
        if os.environ["RANK"] == "1" and Poisoned.steps > 3:
            weight.data.copy_(finite)
        print("sum", hash(self._master.weights.numpy().tobytes() + self._master.average.numpy().tobytes()), flush=True)

electra.train.execution.Stepper = Poisoned
"""
FULL = "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"


def fault(rank: int, step: int, act: str) -> str:
    return FAULT.format(at=(rank, step), act=act)


def same_runs(root: Path, data: Path) -> list[Case]:
    """The same run in every way, and resumed in every other."""
    odd = ["train.steps=4", "optim.warmup_steps=2", "train.micro_batch=2", "generator.clip=0.5"]
    rounded = ["train.steps=4", "optim.warmup_steps=2", "train.precision=bf16", "optim.ema=0.5", "model.layers=1"]
    rounded += ["train.batch_size=4", "data.length=16", "evaluate.sequences=4"]  # dear where bf16 is emulated
    return [
        case(root, data, "one", 1, *LONG),
        case(root, data, "two", 2, *LONG),
        case(root, data, "two sharded", 2, *LONG, SHARD),
        case(root, data, "four", 4, *LONG),
        case(root, data, "four sharded", 4, *LONG, SHARD),
        resumed(root, data, "two sharded", "goes on in one", 1),
        resumed(root, data, "two sharded", "goes on in two", 2),
        resumed(root, data, "two sharded", "goes on in two sharded", 2, SHARD),
        resumed(root, data, "two sharded", "goes on in four sharded", 4, SHARD),
        resumed(root, data, "one", "one goes on in two sharded", 2, SHARD),
        case(root, data, "odd", 1, *odd),
        case(root, data, "odd sharded", 2, *odd, SHARD, prelude=ENCODERS),
        case(root, data, "rounded", 1, *rounded),
        case(root, data, "rounded sharded", 2, *rounded, SHARD),
    ]


def faulty_runs(root: Path, data: Path) -> list[Case]:
    """Runs of two processes, sharded, in which one fails; first those in which the other waits long."""
    each = ["checkpoint.every=1", "checkpoint.keep=20", "guard.max_skipped=4"]
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    ask = "os.kill(os.getpid(), signal.SIGUSR1)"
    hang = "os.kill(os.getpid(), signal.SIGSTOP)"

    def two(name: str, prelude: str, *overrides: str, waits: bool = False) -> Case:
        shorter = ["model.layers=1", "train.steps=11", "evaluate.every=0"]
        return case(root, data, name, 2, SHARD, *shorter, *overrides, prelude=prelude, waits=waits)

    return [
        two("killed in a save", KILLED_IN_A_SAVE, waits=True),
        two("stopped", fault(1, 3, hang), "train.timeout_s=10", waits=True),
        two("stopped before they met", STOPPED_BEFORE, "train.timeout_s=10", waits=True),
        two("killed", fault(1, 7, kill), waits=True),
        two("nan", NAN_ON_ONE, *each),
        two("nan replicated", NAN_ON_ONE, *each, "train.shard=false"),
        two("asked", fault(1, 3, ask)),
        two("full on 1", fault(1, 1, FULL)),
        two("full on 0", fault(0, 6, FULL)),
    ]


@pytest.fixture(scope="module")
def ended(root: Path, data: Path) -> Ended:
    """How every process of every run ended: of those in which one fails, and of all others."""
    return run_all([*faulty_runs(root, data), *same_runs(root, data)])


@pytest.fixture(scope="module")
def runs(root: Path, data: Path, ended: Ended) -> Path:
    for name in (one.name for one in same_runs(root, data)):
        for rank, (code, said) in enumerate(ended[name]):
            assert code == 0, f"{name}: {said}"
            assert said.splitlines().count("") == 0 and ("\ndone: " in said) == (rank == 0), f"{name}: {said}"
    return root


@pytest.fixture(scope="module")
def faults(root: Path, ended: Ended) -> tuple[Path, Ended]:
    return root, ended


@pytest.mark.parametrize("name", ["two", "two sharded", "four", "four sharded"])
def test_promise_06_single_is_ddp_is_fsdp2(runs: Path, name: str) -> None:
    assert len(losses(runs / "one")) == STEPS
    assert losses(runs / name) == pytest.approx(losses(runs / "one"), rel=1e-6)
    for file in ("model.safetensors", "optimizer.safetensors"):
        one, other = (store.checkpoint_path(runs / run, STEPS) / file for run in ("one", name))
        assert header(one) == header(other), "who wrote a checkpoint cannot be seen"
        theirs = read_tensors(other)
        for key, tensor in read_tensors(one).items():
            torch.testing.assert_close(theirs[key], tensor, rtol=1e-3, atol=1e-5)


def header(path: Path) -> bytes:
    raw = path.read_bytes()
    return raw[: 8 + int.from_bytes(raw[:8], "little")]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_distributed_checkpoint_reads_what_was_saved(runs: Path) -> None:
    """By its reader of safetensors, which shards as it reads: weights and averages of four processes' run."""
    from torch.distributed import checkpoint as dcp

    found = store.checkpoint_path(runs / "four sharded", STEPS)
    expected = {k: v for file in ("model", "optimizer") for k, v in read_tensors(found / f"{file}.safetensors").items()}
    state = {name: torch.full_like(tensor, torch.nan) for name, tensor in expected.items()}
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(found)), no_dist=True)
    assert len(state) > 100 and all(torch.equal(state[name], tensor) for name, tensor in expected.items())


def test_the_shared_table_has_one_name(runs: Path) -> None:
    """In the weights and in the averages; a second one would be trained apart from the first."""
    found = store.checkpoint_path(runs / "four sharded", STEPS)
    for file in ("model.safetensors", "optimizer.safetensors"):
        names = [name for name in read_tensors(found / file) if name.endswith("token.weight")]
        assert names in (["embeddings.token.weight"], [f"{g}.embeddings.token.weight" for g in ("average", "square")])


@pytest.mark.parametrize(
    "name",
    ["goes on in one", "goes on in two", "goes on in two sharded", "goes on in four sharded"]
    + ["one goes on in two sharded"],
)
def test_promise_05_a_checkpoint_goes_on_in_any_number_of_processes(runs: Path, name: str) -> None:
    assert losses(runs / name) == pytest.approx(losses(runs / "one"), rel=1e-6)


def test_promise_04_a_sharded_run_resumes_bit_for_bit(runs: Path) -> None:
    assert weights(runs / "goes on in two sharded") == weights(runs / "two sharded")


def test_micro_batches_and_clipping_apart_are_those_of_one_process(runs: Path) -> None:
    """With whole encoders gathered at once, as fused kernels need it, and with dropout."""
    one, sharded = metric_lines(runs / "odd"), metric_lines(runs / "odd sharded")
    for line, other in zip(one, sharded, strict=True):
        if line["kind"] == "train":
            assert other["train/loss"] == pytest.approx(line["train/loss"], rel=1e-6)
            assert other["optim/grad_norm"] == pytest.approx(line["optim/grad_norm"], rel=1e-4)


def test_bf16_keeps_fp32_master_weights(runs: Path) -> None:
    """And their running average, with which held-out text is evaluated."""
    one, sharded = (
        [line["eval/mlm_loss"] for line in metric_lines(runs / name) if line["kind"] == "eval"]
        for name in ("rounded", "rounded sharded")
    )
    assert sharded == pytest.approx(one, rel=2e-3)
    assert losses(runs / "rounded sharded") == pytest.approx(losses(runs / "rounded"), rel=2e-3)
    model = read_tensors(store.checkpoint_path(runs / "rounded sharded", 4) / "model.safetensors")
    matrix = model["discriminator.layers.0.up.weight"]
    assert not torch.equal(matrix, matrix.bfloat16().float())


@pytest.mark.parametrize("name", ["nan", "nan replicated"])
def test_promise_12_nan_on_one_changes_nothing_on_any(faults: tuple[Path, Ended], name: str) -> None:
    root, ended = faults
    for code, said in ended[name]:
        assert code == 3 and "step 7: 4 steps had a non-finite gradient and were skipped" in said.splitlines()[-1], said
        sums = [line for line in said.splitlines() if line.startswith("sum ")]
        assert len(sums) == 7 and len(set(sums[2:])) == 1 and len(set(sums)) == 3
    saved = sorted((root / name / "checkpoints").glob("step-*"))
    models = [(path / "model.safetensors").read_bytes() for path in saved]
    assert len(models) == 6 and models[2] == models[3] == models[4] == models[5] != models[1]
    skipped = [line["optim/skipped"] for line in metric_lines(root / name) if line["kind"] == "train"]
    assert skipped == [0, 0, 0, 1, 1, 1, 1]


def test_promise_11_a_signal_to_one_stops_all(faults: tuple[Path, Ended]) -> None:
    root, ended = faults
    (lead, first), (other, second) = ended["asked"]
    assert (lead, other) == (75, 75), first + second
    assert "electra: stopped by a signal to another process at step 3, saved" in first
    assert "electra: stopped by SIGUSR1 at step 3, saved" in second
    assert store.latest(root / "asked") == store.checkpoint_path(root / "asked", 3)


def test_promise_10_a_disk_that_is_full_for_another_process_costs_nothing(faults: tuple[Path, Ended]) -> None:
    """The leading process writes everything."""
    root, ended = faults
    assert [code for code, _ in ended["full on 1"]] == [0, 0], ended["full on 1"]
    assert store.latest(root / "full on 1") == store.checkpoint_path(root / "full on 1", 11)


def test_promise_10_a_disk_that_is_full_ends_all_and_keeps_the_checkpoint_before(faults: tuple[Path, Ended]) -> None:
    root, ended = faults
    (lead, first), (other, second) = ended["full on 0"]
    assert (lead, other) == (4, 4), first + second
    assert "step-00000010: could not be saved: model.safetensors" in first.splitlines()[-1]
    assert second.splitlines()[-1].endswith("process 1 ends because the leading one failed; its message says why")
    assert [path.name for path in (root / "full on 0" / "checkpoints").iterdir()] == ["step-00000005"]


@pytest.mark.parametrize("name", ["killed", "killed in a save", "stopped", "stopped before they met"])
def test_promise_13_a_lost_process_is_named(faults: tuple[Path, Ended], name: str) -> None:
    """In the middle of a step, of a save, and where it hangs; what was saved before stays."""
    root, ended = faults
    (lead, said), (other, _) = ended[name]
    assert (lead, other) == (1, -9), said
    reason = "no answer within train.timeout_s (" if "stopped" in name else ""
    assert said.splitlines()[-1].startswith(f"electra: error: process 0 lost process 1: {reason}"), said
    assert "Traceback" not in said
    assert float((root / f"{name}.out" / "seconds").read_text()) < 60
    saved = [path.name for path in (root / name / "checkpoints").glob("*")]
    assert saved == ([] if "stopped" in name else ["step-00000005"])


def test_rows_of_all_processes_are_all_rows() -> None:
    model = torch.nn.ModuleDict({"token": torch.nn.Embedding(7, 3), "head": torch.nn.Linear(3, 3)})
    for size in (1, 2, 3, 4, 8):
        parts = plan_sharding(model, world=World(0, size), unit="layer")
        assert parts.sizes == {"token.weight": torch.Size((7, 3))} and parts.rows("head.weight") == slice(None)
        rows = [list(range(7))[parts.rows("token.weight", rank)] for rank in range(size)]
        assert sum(rows, []) == list(range(7)) and len(rows[0]) == -(-7 // size)


def test_memory_is_that_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(SHARD)
    count = parameters(config).total
    monkeypatch.setattr(hardware, "memory_bytes", lambda device=None: 6 * count)
    cpu = torch.device("cpu")
    require_memory(config, cpu, processes=4)
    with pytest.raises(ConfigError, match="GiB to train in each of 2 processes, and the device has"):
        require_memory(config, cpu, processes=2)
    with pytest.raises(ConfigError, match=r"smaller, or train.shard=true\)"):
        require_memory(small_config(), cpu, processes=4)
    with pytest.raises(ConfigError, match=r"vocabulary smaller\)"):
        require_memory(config, cpu)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["optim.matrices=muon"], "optim.matrices"),
        (["train.algorithm=two-stage", "train.start_from_generator=false"], "train.shard"),
    ],
)
def test_promise_20_what_cannot_be_sharded_is_named(overrides: list[str], key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: .*cannot be sharded \\(train.shard=false\\)"):
        small_config(SHARD, *overrides)
