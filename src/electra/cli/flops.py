"""`electra flops`: what configurations cost, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from electra.cli.lines import echo
from electra.display import aligned
from electra.terminal import json_text

if TYPE_CHECKING:
    from electra.config.schema import Config

COLUMNS = ("preset", "parameters", "kept", "tokens", "paper FLOPs", "real FLOPs", "FLOPs/token", "inference")
NOTE = """\
parameters: all that is trained; kept: embeddings and encoder, for fine-tuning; inference: 128 tokens, paper FLOPs.
paper: the published script's convention (one-hot lookups, backward = forward). real: matrix products, forward and
backward; FLOPs/token is the same a token."""


@click.command("flops")
@click.option("--preset", metavar="NAME", help="Only this preset (default: all of them).")
@click.option("--json", "as_json", is_flag=True, help="A JSON list instead of a table.")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def command(preset: str | None, as_json: bool, overrides: tuple[str, ...]) -> None:
    """Parameters, tokens and FLOPs of presets, changed by KEY=VALUE where given."""
    from electra.config.load import load, preset_names

    rows = [entry(load(name, overrides=overrides)) for name in ([preset] if preset else preset_names())]
    if as_json:
        echo(json_text(rows, indent=2))
        return
    echo("\n".join([*aligned([COLUMNS, *map(_cells, rows)], left=1), "", NOTE]))


def entry(config: Config) -> dict[str, Any]:
    """One configuration's cost as a JSON object."""
    from electra.model.cost import real_flops_per_token, train_flops

    cost = train_flops(config)
    return {
        "preset": config.preset,
        "parameters": {**cost.parameters.parts, "total": cost.parameters.total, "kept": cost.parameters.encoder},
        "tokens": cost.tokens,
        "paper_flops": cost.paper,
        "real_flops": cost.real,
        "real_flops_per_token": real_flops_per_token(config),
        "inference_paper_flops": cost.infer,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["preset"],
        f"{row['parameters']['total'] / 1e6:.1f}M",
        f"{row['parameters']['kept'] / 1e6:.1f}M",
        _power(row["tokens"]),
        _power(row["paper_flops"]),
        _power(row["real_flops"]),
        f"{row['real_flops_per_token'] / 1e6:.1f}M",
        _power(row["inference_paper_flops"]),
    )


def _power(value: float) -> str:
    """`1.29e18`."""
    digits, exponent = f"{value:.2e}".split("e")
    return f"{digits}e{int(exponent)}"
