"""The server's socket and its life."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Collection

import uvicorn

from electra.errors import ConfigError
from electra.progress import say
from electra.serve.app import create_app
from electra.serve.guard import Guard
from electra.serve.rate import RateLimit
from electra.serve.service import Service

MAX_CONNECTIONS = 512


def serve(
    service: Service, *, host: str, port: int, hosts: Collection[str] = (), per_client: float, overall: float
) -> None:
    """Answer until a signal asks for an end; `per_client` and `overall` are requests a second."""
    own = () if _is_address(host) else (host,)
    server = make_server(service, hosts=(*hosts, *own), per_client=per_client, overall=overall)
    with contextlib.closing(_listen(host, port)) as listening:
        if not _is_loopback(host):
            say(f"warning: {host} can be reached from other machines, and there is no password")
        shown = f"[{host}]" if ":" in host else host
        say(f"serving {service.name} at http://{shown}:{listening.getsockname()[1]} (Ctrl-C ends it)")
        # The signal comes once more after a clean end.
        with service.batcher.running(), contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
    say("electra: stopped serving")


def make_server(service: Service, *, hosts: Collection[str] = (), per_client: float, overall: float) -> uvicorn.Server:
    """A server to run on a socket; `hosts` are further names that browsers may ask for it by."""
    app = Guard(create_app(service), rate=RateLimit(per_client=per_client, overall=overall), hosts=hosts)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # a client could claim any address, and be any number of clients
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
    )
    return uvicorn.Server(config)


def _listen(host: str, port: int) -> socket.socket:
    try:
        [family, *_], *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError("--host", f"{host!r} is no address of this machine", fix="--host 127.0.0.1") from error
    except OSError as error:
        reason = f"cannot listen on {host} port {port}: {error.strerror or error}"
        raise ConfigError("--port", reason, fix="--port 0 takes a free one") from error


def _is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
