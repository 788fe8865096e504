"""`electra speedrun`: how good an encoder gets in a given number of minutes, by a fixed protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from electra.cli.config import FILE, OVERRIDES
from electra.cli.lines import command_line, echo
from electra.display import aligned

PRESET = click.option("--preset", metavar="NAME", help="Start from this preset instead of an entry.")


@click.group("speedrun")
def command() -> None:
    """How good an encoder gets in a given number of minutes: train for them, then score, each with one command."""


@command.command()
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Folder written by `electra prepare`.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Run folder to make or to resume.")
@click.option("--minutes", required=True, type=float, help="Wall-clock from the command's start, over all resumes.")
@click.option("--entry", metavar="NAME", help="`electra speedrun entries` lists them (default: faithful).")
@PRESET
@FILE
@click.option("--text", default="", metavar="WORDS", help="What the data is, for the record: `Wikipedia, reviews`.")
@OVERRIDES
def train(
    data: Path,
    out: Path,
    minutes: float,
    entry: str | None,
    preset: str | None,
    file: Path | None,
    text: str,
    overrides: tuple[str, ...],
) -> None:
    """Train for so many minutes; run it again to resume with the minutes that are left.

    Start-up, evaluations, checkpoints, and what a killed run had trained since its last checkpoint all count. KEY=VALUE
    changes the entry and stands in the record.
    """
    from electra.hardware import process_began
    from electra.speedrun.train import speedrun
    from electra.train.clock import elapsed_seconds

    run = speedrun(
        data=data,
        out=out,
        minutes=minutes,
        entry=entry,
        preset=preset,
        file=file,
        overrides=overrides,
        text=text,
        began=process_began(),
    )
    took = f"{elapsed_seconds(run):.1f} s of {60 * minutes:g}"
    following = command_line("speedrun", "score", "--run", run, "--glue", "GLUE")
    echo(f"done: {run}, {took}  (next: {following})")


@command.command()
@click.option("--run", required=True, type=click.Path(path_type=Path), help="Folder of `electra speedrun train`.")
@click.option("--glue", required=True, type=click.Path(path_type=Path), help="Folder with the GLUE tasks' folders.")
@click.option(
    "--seeds",
    type=click.Choice(["report", "choice"]),
    default="report",
    show_default=True,
    help="Fine-tuning seeds: 10 to 14 for what is reported, 0 to 4 for choosing settings.",
)
@click.option("--records", type=click.Path(path_type=Path), help="Append the record here (default: RUN/records.jsonl).")
@click.option(
    "--processes",
    default=0,
    type=click.IntRange(0),
    help="Processes at a time, one for each task and seed (default: on a GPU one a core).",
)
@click.option("--commit", help="The commit of the code, where it ran outside a checkout.")
@OVERRIDES
def score(
    run: Path,
    glue: Path,
    seeds: Any,
    records: Path | None,
    processes: int,
    commit: str | None,
    overrides: tuple[str, ...],
) -> None:
    """Fine-tune a finished speedrun on all rows of GLUE-5 over five seeds and print its record in one line.

    GLUE-5 is the mean of five medians: CoLA (Matthews), SST-2, MRPC, RTE (accuracy) and STS-B (Spearman). Settings are
    the paper's; KEY=VALUE changes them for every task and stands in the record.
    """
    from electra.speedrun.record import FILE as RECORDS
    from electra.speedrun.record import append
    from electra.speedrun.score import score as scored

    record = scored(run, glue=glue, purpose=seeds, settings=overrides, processes=processes, commit=commit)
    append(records or run / RECORDS, record)
    echo(record.line)


@command.command()
@click.argument("trials", type=click.Path(path_type=Path))
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Folder written by `electra prepare`.")
@click.option("--glue", required=True, type=click.Path(path_type=Path), help="Folder with the GLUE tasks' folders.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for all runs and records.")
@click.option("--minutes", default=3.0, show_default=True, help="For each trial, wall-clock.")
@click.option("--entry", metavar="NAME", help="What the trials change (default: faithful).")
def screen(trials: Path, data: Path, glue: Path, out: Path, minutes: float, entry: str | None) -> None:
    """Try changes of an entry at equal minutes: train each, score all on seeds 0 to 4, print one table.

    TRIALS is a TOML file with a line for each: name = ["key=value", ...]. A trial that fails is named with its reason
    and stops no other. Run it again to continue.
    """
    from electra.fsio import write_atomic
    from electra.speedrun.screen import read_trials, table
    from electra.speedrun.screen import screen as screened

    tried = screened(read_trials(trials), data=data, glue=glue, out=out, minutes=minutes, entry=entry)
    text = table(tried)
    write_atomic(out / "table.md", f"{text}\n".encode())
    echo(text)


@command.command()
@click.argument("records", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--plot", type=click.Path(path_type=Path), help="Draw scores and leads over the minutes here, as SVG.")
@click.option(
    "--seeds", type=click.Choice(["report", "choice"]), default="report", show_default=True, help="Records of these."
)
def compare(records: tuple[Path, ...], plot: Path | None, seeds: str) -> None:
    """RTD beside MLM: the lead at equal minutes, at equal real FLOPs and at equal FLOPs by the paper's rules.

    RECORDS are files that `electra speedrun score` wrote. Only records of the same text, encoder, changes, device,
    fine-tuning and scorer are compared; what else differs in two recipes is printed. MLM runs have no RTD loss.
    """
    from electra.fsio import write_atomic
    from electra.speedrun.lead import comparisons_of_both
    from electra.speedrun.lead_page import plot as drawn
    from electra.speedrun.lead_page import section
    from electra.speedrun.record import read

    both = comparisons_of_both([one for path in records for one in read(path) if one.purpose == seeds])
    echo("\n\n".join(paragraph for comparison in both for paragraph in section(comparison)))
    if plot is not None:
        write_atomic(plot, drawn(both[0]).encode())
        echo(f"wrote {plot}")


@command.command()
def entries() -> None:
    """The entries, with what each is."""
    from electra.speedrun.entry import entry_names, entry_title

    echo("\n".join(aligned([(name, entry_title(name)) for name in entry_names()])))
