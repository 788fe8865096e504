"""`electra bench`: how fast training is here, against the same step written with `transformers` modules."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from electra.cli.config import OVERRIDES, PRESET
from electra.cli.lines import echo
from electra.errors import ConfigError, ElectraError, pip_install


@click.command("bench")
@PRESET
@click.option("--batch", metavar="N,...", help="Sequences a step, one size or several (default: the preset's).")
@click.option("--length", metavar="N,...", help="Tokens a sequence, one length or several (default: the preset's).")
@click.option(
    "--peer", default="eager,compiled", show_default=True, help="Peers to measure too: eager, compiled or none."
)
@click.option(
    "--ours", metavar="KIND,...", help="On a GPU: fused, plain (reference ops) or fused,plain (default: fused)."
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Where to measure (default: auto).")
@click.option("--steps", type=click.IntRange(1), default=30, show_default=True, help="Timed steps a measurement.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Rounds in which ours and the peers take turns, for noisy machines.",
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the figures there too."
)
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw tokens/s over batch and length."
)
@click.option(
    "--profile", type=click.Path(path_type=Path), metavar="FILE", help="Write our step's time by kernel there."
)
@OVERRIDES
def command(
    preset: str | None,
    batch: str | None,
    length: str | None,
    peer: str,
    ours: str | None,
    device: str | None,
    steps: int,
    rounds: int,
    json_file: Path | None,
    plot: Path | None,
    profile: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Tokens a second, MFU, memory and start-up of a training step, ours and the peers', each in a process of its own.

    Several batch sizes and lengths make a grid. KEY=VALUE settings change the preset.
    """
    for option, path in (("--json", json_file), ("--plot", plot), ("--profile", profile)):
        if path is not None and path.is_dir():
            raise ConfigError(option, f"{path} is a folder", fix="name a file")
    if plot is not None and plot.suffix.lower() != ".svg":
        raise ConfigError("--plot", f"{plot.name} is not an .svg file", fix="such as --plot speed.svg")
    if plot is not None and find_spec("matplotlib") is None:
        raise ConfigError("--plot", "needs matplotlib", fix=pip_install("report"))
    from electra.bench import grid

    jobs = grid.plan(
        preset,
        overrides=overrides,
        batches=grid.sizes(batch, "--batch") if batch is not None else (),
        lengths=grid.sizes(length, "--length") if length is not None else (),
        peers=grid.choices(peer, "--peer", [*grid.PEERS, "none"]),
        ours=grid.choices(ours, "--ours", list(grid.ON_GPU)) if ours is not None else (),
        device=device,
        steps=steps,
        profile=profile is not None,
    )
    from electra.bench.processes import Row, run_all
    from electra.bench.speed_table import as_json, as_text, facts_of
    from electra.fsio import write_atomic, write_json

    facts = facts_of(jobs, rounds=rounds)
    rows: list[Row] = []
    for rows in run_all(jobs, title=f"bench {jobs[0].preset}", rounds=rounds):
        # After each, so that Ctrl-C keeps what was measured.
        if json_file is not None:
            write_json(json_file, as_json(rows, facts))
        if plot is not None:
            from electra.bench.speed_plot import draw

            write_atomic(plot, draw(rows, facts).encode())
    echo(as_text(rows, facts))
    if profile is not None:
        text = "\n".join(f"{row.job.title}\n{row.figures.profile}" for row in rows if row.figures and row.job.profile)
        write_atomic(profile, text.encode())
    if all(row.figures is None for row in rows):
        raise ElectraError("nothing could be measured")
