"""A model served on this machine, by a real server in a thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from electra.serve.server import make_server
from electra.serve.service import Service

LIMIT_S = 60.0


@contextmanager
def served(
    model: Path | Service, *, per_client: float = 10_000, overall: float = 10_000, hosts: tuple[str, ...] = ()
) -> Iterator[str]:
    """The address of a server that lives inside."""
    service = Service(model) if isinstance(model, Path) else model
    server = make_server(service, hosts=hosts, per_client=per_client, overall=overall)
    with closing(socket.create_server(("127.0.0.1", 0))) as listening, service.batcher.running(timeout_s=LIMIT_S):
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            ends = time.monotonic() + LIMIT_S
            while not server.started:
                assert thread.is_alive() and time.monotonic() < ends, "the server did not start"
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(LIMIT_S)
            assert not thread.is_alive()
