"""`electra reproduce`: an experiment of the paper, at the size that your machine and patience allow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from electra.cli.config import OVERRIDES
from electra.cli.lines import echo
from electra.errors import ConfigError

if TYPE_CHECKING:
    from electra.reproduce.execute import Request


@click.command("reproduce")
@click.argument("name", required=False, default="")
@click.option("--list", "listing", is_flag=True, help="The experiments, what each asks, and its configurations.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder that `electra prepare` made.")
@click.option("--scale", default="cpu-smoke", show_default=True, help="cpu-smoke, cpu, gpu-10min, gpu-1h or paper.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for runs, scores, table and plot.")
@click.option("--glue", type=click.Path(path_type=Path), help="GLUE folder (default: a task made of the corpus).")
@click.option("--only", default="", metavar="NAME,...", help="These configurations only.")
@click.option(
    "--budget",
    type=click.Choice(["flops", "steps", "minutes"]),
    help="What all configurations get alike (default: the experiment's).",
)
@click.option("--tokens", type=click.IntRange(1), help="Tokens a configuration, at least (default: the scale's).")
@click.option("--seeds", type=click.IntRange(1), help="Fine-tuning runs a task (default: the scale's).")
@click.option("--tasks", default="", metavar="NAME,...", help="GLUE tasks (default: the scale's).")
@click.option("--rows", type=click.IntRange(1), help="Training rows of a task at most (default: the scale's).")
@click.option("--together", type=click.IntRange(1), help="Configurations side by side on a GPU (default: the scale's).")
@click.option(
    "--reuse",
    multiple=True,
    metavar="OUT",
    type=click.Path(path_type=Path),
    help="Another experiment's folder: runs with the very same settings are taken from it. May be given several times.",
)
@click.option("--dry-run", is_flag=True, help="Print what would run, how long and where; run and write nothing.")
@click.option("--worker", is_flag=True, hidden=True)
@OVERRIDES
def command(
    name: str,
    listing: bool,
    data: Path | None,
    scale: str,
    out: Path | None,
    glue: Path | None,
    only: str,
    budget: Any,
    tokens: int | None,
    seeds: int | None,
    tasks: str,
    rows: int | None,
    together: int | None,
    reuse: tuple[Path, ...],
    dry_run: bool,
    worker: bool,
    overrides: tuple[str, ...],
) -> None:
    """Run an experiment of the paper: table, plot and page, its numbers and ours. Run it again to continue.

    KEY=VALUE settings hold for every configuration, except those that it changes itself.
    """
    if listing or not name:
        echo(_listing(scale))
        return
    for option, value in (("--data", data), ("--out", out)):
        if value is None:
            raise ConfigError(option, "is missing", fix="electra reproduce NAME --data DATA --out RUN")
    assert data is not None and out is not None
    from electra.reproduce.execute import claim, make_request, work

    request = make_request(
        name,
        data=data,
        scale=scale,
        out=out,
        glue=glue,
        only=_names(only),
        overrides=overrides,
        budget=budget,
        tokens=tokens,
        seeds=seeds,
        tasks=_names(tasks),
        rows=rows,
    )
    if dry_run:
        from electra.reproduce.dry_run import describe

        echo(describe(request, together=together, reuse=reuse))
        return
    claim(request)
    if worker:
        for one in request.planned:
            work(request, one)
        return
    _reproduce(request, together=together, reuse=reuse)


def _reproduce(request: Request, *, together: int | None, reuse: tuple[Path, ...]) -> None:
    """Run what is missing, draw the page of what is there, and print the table."""
    from electra.report import write_report
    from electra.report.rendering import require_drawing
    from electra.reproduce.execute import reproduce

    require_drawing("electra reproduce")
    from electra.report.experiment_view import write_plot

    out = request.out
    try:
        reproduce(request, together=together, reuse=reuse)
    finally:
        if (out / "results.json").is_file():
            plot, page = write_plot(out), write_report(out)
    echo((out / "table.md").read_text(encoding="utf-8"))
    echo(f"Table: {out / 'table.md'}  Plot: {plot}  Page: {page}")


def _names(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


def _listing(scale: str) -> str:
    from electra.reproduce.experiments import EXPERIMENTS
    from electra.reproduce.plan import left_out, plan
    from electra.reproduce.scale import SCALES, scale_named

    chosen = scale_named(scale)
    lines = []
    for experiment in EXPERIMENTS.values():
        names = [one.name for one in plan(experiment, chosen)]
        more = left_out(experiment, chosen)
        lines += [f"{experiment.name:<20} {experiment.question} ({experiment.source.partition(' (')[0]})"]
        lines += [f"{'':<20} {', '.join(names)}" + (f"; without time for {', '.join(more)}" if more else "")]
    lines += ["", "scales:", *(f"{one.name:<20} {one.title}" for one in SCALES.values())]
    return "\n".join(lines)
