"""The command `electra` for tests that start it often: one process imports it, and a fork of that runs each command.

python tests/one_process.py serve SOCKET MODULE... imports, then waits for commands
python tests/one_process.py SOCKET PROGRAM ARG...  runs one, with this process's folder, environment and streams

To who starts it, the second is the command: signals reach it, `kill -9` too, and it ends as the command ends.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

MESSAGE_BYTES = 1 << 20
COMMANDS = (
    "prepare pretrain watch track finetune evaluate predict detect encode serve export report doctor config".split()
)
BEHIND = """pretrain finetune.task_run finetune.results_table finetune.evaluation_file finetune.evaluation_table
finetune.export tasks.named_tasks shards.build inference.detect inference.encode inference.predict interop.models
interop.transfer serve.server serve.service report.curves report.run_view report.tuned_view
tracking.terminal_view""".split()
PACKAGES = ("torch._dynamo", "matplotlib.pyplot", "pyarrow.parquet", "fastapi", "uvicorn.protocols.http.h11_impl")
"""What these commands import when they run: imported once here, before any fork."""


ALL = (*(f"electra.cli.{one}" for one in COMMANDS), *(f"electra.{one}" for one in BEHIND), *PACKAGES)
OFTEN = (
    *(f"electra.cli.{one}" for one in ("pretrain", "reproduce", "speedrun", "detect", "predict", "export")),
    *("electra.pretrain", "electra.finetune.task_run", "electra.reproduce.execute", "electra.speedrun.train"),
    *("electra.inference.detect", "electra.inference.predict"),
)
"""What most of the commands that tests start import."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
PATIENCE_S = 120.0


def serve(address: str, *modules: str) -> None:
    """Wait for commands until who started this has gone; each runs in a process of its own."""
    parent = os.getppid()
    for name in modules:
        importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.bind(address)
        waiting.listen()
        while os.getppid() == parent:
            if select.select([waiting], [], [], 1.0)[0]:
                connection, _ = waiting.accept()
                if os.fork() == 0:
                    waiting.close()
                    keep(connection)
                connection.close()
            with contextlib.suppress(ChildProcessError):  # those that have ended since
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def keep(connection: socket.socket) -> None:
    """Run what is asked for in a fork of this process; say how it ended, and kill it where the asker is killed."""
    message, streams, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 3)
    pid = os.fork()
    if pid == 0:
        connection.close()
        run(json.loads(message), streams)
    for stream in streams:
        os.close(stream)
    connection.sendall(f"{pid}\n".encode())

    def watch() -> None:
        connection.recv(1)
        with contextlib.suppress(ProcessLookupError):  # it may have ended before who asked
            os.kill(pid, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(f"{code}\n".encode())
    os._exit(0)


def run(asked: dict[str, Any], streams: list[int]) -> None:
    """Be the command that was asked for."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = asked["arguments"]
    from electra.__main__ import main

    code = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)  # what a test process leaves at its end is not this one's


def ask(address: str, *arguments: str) -> int:
    """Have a command run; its exit code. Signals go on to it, and this process ends by the signal that ended it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        asked = {"folder": os.getcwd(), "environment": dict(os.environ), "arguments": arguments}
        socket.send_fds(connection, [json.dumps(asked).encode()], [0, 1, 2])
        answer = connection.makefile("r")
        process = int(answer.readline())

        def pass_on(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

        for number in PASSED_ON:
            signal.signal(number, pass_on)
        code = int(answer.readline() or 1)
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_DFL if number == -code else signal.SIG_IGN)
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


def program() -> tuple[str, ...]:
    """What follows `python` in a command line in the place of `-m electra`: a fork of a process that has imported it.

    Not for tests of how a process begins or ends: what it imports, or which signals it hears then.
    """
    return ("-S", __file__, _address(), "electra")


@functools.cache
def _address() -> str:
    """Where the one process of these tests waits; it starts at the first call and ends with them."""
    folder = tempfile.mkdtemp(prefix="electra-tests-")
    server = start_server(Path(folder) / "socket", *OFTEN)

    def end() -> None:
        server.kill()
        server.wait()
        shutil.rmtree(folder)

    atexit.register(end)
    return str(Path(folder) / "socket")


def start_server(address: Path, *modules: str) -> subprocess.Popen[bytes]:
    """The process that has imported these modules and waits for commands."""
    source = str(Path(__file__).parents[1] / "src")
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen([sys.executable, __file__, "serve", str(address), *modules], env=environment)
    ends = time.monotonic() + PATIENCE_S
    while not address.exists():
        if server.poll() is not None or time.monotonic() > ends:
            server.kill()
            server.wait()
            raise RuntimeError("the process for commands did not start")
        time.sleep(0.05)
    return server


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    sys.exit(ask(*sys.argv[1:]))
