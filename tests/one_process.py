"""The command `electra` for tests that start it often: one process imports it, and a fork of that runs each command.

python tests/one_process.py serve SOCKET           imports, then waits for commands
python tests/one_process.py SOCKET PROGRAM ARG...  runs one, with this process's folder, environment and streams
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
from types import FrameType

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


def serve(address: str) -> None:
    """Wait for commands for ever; each runs in a process of its own."""
    for name in (*(f"electra.cli.{one}" for one in COMMANDS), *(f"electra.{one}" for one in BEHIND), *PACKAGES):
        importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.bind(address)
        waiting.listen()
        while True:
            connection, _ = waiting.accept()
            if os.fork() == 0:
                waiting.close()
                run(connection)
            connection.close()
            with contextlib.suppress(ChildProcessError):  # those that have ended since
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def run(connection: socket.socket) -> None:
    """Be the command that was asked for; the last thing sent is its exit code."""
    message, streams, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 3)
    asked = json.loads(message)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = asked["arguments"]
    connection.sendall(f"{os.getpid()}\n".encode())
    from electra.__main__ import main

    code = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stdout.flush()
        connection.sendall(f"{code}\n".encode())
        os._exit(code)  # what a test process leaves at its end is not this one's


def ask(address: str, *arguments: str) -> int:
    """Have a command run; its exit code. Signals go on to it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        asked = {"folder": os.getcwd(), "environment": dict(os.environ), "arguments": arguments}
        socket.send_fds(connection, [json.dumps(asked).encode()], [0, 1, 2])
        answer = connection.makefile("r")
        process = int(answer.readline())

        def pass_on(number: int, frame: FrameType | None) -> None:
            os.kill(process, number)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, pass_on)
        return int(answer.readline() or 1)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    sys.exit(ask(*sys.argv[1:]))
