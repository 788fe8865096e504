"""The processes of a run as torchrun starts them, but forked: packages are imported once for all of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

PROGRAM = """
import json, sys
sys.path.insert(0, {tests!r})
import ranks
import electra.cli.pretrain, electra.interop.continuation, electra.pretrain
cases = [ranks.Case(**case) for case in json.load(sys.stdin)]
if any("train.shard=true" in case.arguments for case in cases):
    import torch._dynamo, torch.distributed.device_mesh, torch.distributed.fsdp, torch.distributed.tensor
ranks.run_cases(cases)
"""
LIMIT_S = 600


@dataclass(frozen=True, slots=True)
class Case:
    """Processes that run `electra` with the same arguments."""

    name: str
    size: int
    out: str
    """Where their output goes: a folder."""
    arguments: list[str]
    prelude: str = ""
    """Python that each of them runs first."""
    copied: tuple[str, str, int] | None = None
    """A run folder that is copied before, where to, and the one checkpoint of it that is copied."""
    waits: bool = False
    """It waits for a timeout more than it computes: the next cases run beside it."""


def run_all(cases: list[Case]) -> dict[str, list[tuple[int, str]]]:
    """Exit code and output of every process of every case, by name; one case runs after another,
    but for those that wait."""
    import tiny_runs

    for case in cases:
        Path(case.out).mkdir(parents=True)
    program = ("-c", PROGRAM.format(tests=str(Path(__file__).parent)))
    with tiny_runs.start([], program, stdin=True, GLOO_SOCKET_IFNAME="lo") as launcher:
        said, _ = launcher.communicate(json.dumps([asdict(case) for case in cases]), timeout=LIMIT_S)
    assert launcher.returncode == 0, said
    return {case.name: [_ended(Path(case.out), rank) for rank in range(case.size)] for case in cases}


def run_cases(cases: list[Case]) -> None:
    """Run cases, one after the other, beside those that wait."""
    beside = []
    for case in cases:
        pid = os.fork() if case.waits else None
        if pid:
            beside.append(pid)
            continue
        fork_all(case)
        if pid == 0:
            os._exit(0)
    for pid in beside:
        os.waitpid(pid, 0)


def fork_all(case: Case) -> None:
    """Run a case; returns when all its processes have ended. One that has stopped is killed when rank 0 has ended."""
    if case.copied is not None:
        copy_run(*case.copied)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = {"WORLD_SIZE": str(case.size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    children, began = [], time.monotonic()
    for rank in range(case.size):
        pid = os.fork()
        if not pid:
            _child(case, rank, world)
        children.append(pid)
    for rank, pid in enumerate(children):
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
        (Path(case.out) / f"{rank}.code").write_text(str(os.waitstatus_to_exitcode(status)))
    (Path(case.out) / "seconds").write_text(str(time.monotonic() - began))


def _child(case: Case, rank: int, world: dict[str, str]) -> None:
    os.environ.update(world, RANK=str(rank), LOCAL_RANK=str(rank))
    fd = os.open(Path(case.out) / f"{rank}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(fd, number)
    code: object = 1
    try:
        from electra.cli import main

        exec(case.prelude, {})
        sys.argv = ["electra", *case.arguments]
        main(case.arguments)
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def copy_run(source: str, target: str, step: int) -> None:
    """Copy a run folder with one checkpoint of it."""
    name = f"step-{step:08d}"
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("checkpoints"))
    shutil.copytree(Path(source) / "checkpoints" / name, Path(target) / "checkpoints" / name)


def _ended(out: Path, rank: int) -> tuple[int, str]:
    return int((out / f"{rank}.code").read_text()), (out / f"{rank}.out").read_text()
