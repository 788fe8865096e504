"""`electra pretrain`: prepared data in, a run folder out; running it again resumes."""

from __future__ import annotations

from pathlib import Path

import click

from electra.cli.config import FILE, OVERRIDES, PRESET
from electra.cli.lines import command_line, echo


@click.command("pretrain")
@click.option("--data", type=click.Path(path_type=Path), help="Folder written by `electra prepare`.")
@click.option("--out", type=click.Path(path_type=Path), help="Run folder to make or to resume.")
@click.option(
    "--resume", type=click.Path(path_type=Path), metavar="RUN", help="Go on with this run, as its folder says."
)
@click.option(
    "--from",
    "model",
    type=click.Path(path_type=Path),
    metavar="MODEL",
    help="Go on from this model: a run, an export, a transformers ELECTRA folder, or electra:small.",
)
@click.option(
    "--generator", type=click.Path(path_type=Path), metavar="HF_DIR", help="The generator of --from's folder."
)
@click.option("--dry-run", is_flag=True, help="Build everything, do two steps, print memory and time; write nothing.")
@PRESET
@FILE
@OVERRIDES
def command(
    data: Path | None,
    out: Path | None,
    resume: Path | None,
    model: Path | None,
    generator: Path | None,
    dry_run: bool,
    preset: str | None,
    file: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Pre-train an encoder. Running the same command again resumes exactly where it stopped.

    Any option is a KEY=VALUE: train.steps=2000, train.max_minutes=60, optim.lr=3e-4, seed=1;
    `electra config show --help-keys` lists them all.

    `--resume RUN` needs nothing else: settings and data are those of the run. With train.steps=N, or
    train.max_minutes=N for a time budget, it lengthens the run, and says what that means for its learning rate.
    """
    start = None
    if resume is not None:
        others = {"--out": out, "--from": model, "--generator": generator, "--preset": preset, "--config": file}
        if given := [name for name, value in others.items() if value is not None]:
            raise click.UsageError(f"{given[0]} and --resume exclude each other: a run goes on with what it has")
        from electra.checkpoint.lengthening import config_to_resume, data_of

        config, data, out = config_to_resume(resume, overrides), data or data_of(resume), resume
    else:
        for name, value in {"--data": data, "--out": out}.items():
            if value is None:
                raise click.UsageError(f"Missing option '{name}'.")
        assert data is not None and out is not None
        if dry_run and model is not None:
            raise click.UsageError("--dry-run and --from exclude each other: try the model's preset instead")
        from electra.interop.continuation import config_of_run

        config, start = config_of_run(
            out, model=model, generator=generator, preset=preset, file=file, overrides=overrides
        )
    from electra.config.unread import warn_of_unread
    from electra.hardware import process_began
    from electra.pretrain import dry_run as try_out
    from electra.pretrain import pretrain
    from electra.train.parallel import is_leader

    if is_leader():
        warn_of_unread(config)
    if dry_run:
        config, trial = try_out(config, data=data, out=out)
        if is_leader():
            echo("\n".join(trial.lines(config)))
        return
    run = pretrain(config, data=data, out=out, start=start, began=process_began(), lengthen=resume is not None)
    if is_leader():
        following = command_line("export", run, "--out", "DIR"), command_line("detect", "--model", run, "TEXT")
        echo(f"done: {run}  (next: {', '.join(following)})")
