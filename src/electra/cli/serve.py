"""`electra serve`: a model on a page of this machine."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from electra.errors import ConfigError, pip_install

PACKAGES = ("fastapi", "uvicorn")


@click.command("serve")
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
@click.option(
    "--generator",
    type=click.Path(path_type=Path),
    metavar="M",
    help="Generator that replaces tokens; of a run, its own by default.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; by default this machine only."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one.")
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="A name that browsers may ask for this server by; repeatable."
)
@click.option(
    "--rate",
    type=click.FloatRange(0.1, 10_000),
    default=20,
    show_default=True,
    help="Requests a second that one client may send.",
)
@click.option(
    "--total-rate",
    type=click.FloatRange(0.1, 100_000),
    default=200,
    show_default=True,
    help="Requests a second that all clients together may send.",
)
def command(
    model: Path,
    generator: Path | None,
    host: str,
    port: int,
    allow_host: tuple[str, ...],
    rate: float,
    total_rate: float,
) -> None:
    """A page to try MODEL on, and a JSON API: http://127.0.0.1:8000.

    MODEL is a run, which is followed as it trains, a checkpoint, an exported or fine-tuned folder, or a hub name.
    """
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise ConfigError("electra serve", f"this needs {' and '.join(missing)}", fix=pip_install("serve"))
    from electra.serve.server import serve
    from electra.serve.service import Service

    service = Service(model, generator=generator)
    serve(service, host=host, port=port, hosts=allow_host, per_client=rate, overall=total_rate)
