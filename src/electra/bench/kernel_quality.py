"""`python -m electra.bench.kernel_quality --data DATA --out DIR`: do fused kernels train as plain operations do?

Three runs: fused, and plain with two seeds, whose difference shows what the seed alone does. A table compares their
held-out figures after as many steps. A run that is there is not made again, so a stopped command continues.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import click

from electra.bench.start import start
from electra.errors import ElectraError
from electra.train.metrics_file import FILE, read_lines

RUNS = {
    "fused, seed 0": ("seed=0",),
    "plain, seed 0": ("seed=0", "train.kernels=plain"),
    "plain, seed 1": ("seed=1", "train.kernels=plain"),
}
METRICS = ("mlm_loss", "rtd_loss", "rtd_auc")


@click.command()
@click.option("--data", type=click.Path(path_type=Path), required=True, help="Folder that `electra prepare` made.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the three runs.")
@click.option("--preset", default="small", show_default=True)
@click.option("--steps", type=click.IntRange(1), default=20_000, show_default=True)
@click.option("--together", is_flag=True, help="Train all three at once.")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def command(data: Path, out: Path, preset: str, steps: int, together: bool, overrides: tuple[str, ...]) -> None:
    """Train fused once and plain twice, and compare; KEY=VALUE settings hold for all three."""
    every = f"evaluate.every={max(1, steps // 10)}"
    commands = {
        name: [
            *(sys.executable, "-m", "electra", "pretrain", "--data", str(data), "--out", str(folder(out, name))),
            *("--preset", preset, f"train.steps={steps}", every, *overrides, *changes),
        ]
        for name, changes in RUNS.items()
    }
    for names in [tuple(RUNS)] if together else [(name,) for name in RUNS]:
        train({name: commands[name] for name in names})
    found = {name: last_metrics(folder(out, name)) for name in RUNS}
    fused, same, other = found.values()
    click.echo("| | " + " | ".join(METRICS) + " |\n|---|" + "---|" * len(METRICS))
    for name, row in found.items():
        click.echo(f"| {name} | " + " | ".join(f"{row[metric]:.4f}" for metric in METRICS) + " |")
    for title, one in (("fused against plain of its seed", fused), ("plain, seed 1 against seed 0", other)):
        click.echo(f"| {title} | " + " | ".join(f"{100 * (one[m] / same[m] - 1):+.2f} %" for m in METRICS) + " |")


def folder(out: Path, name: str) -> Path:
    """Where a run is: `fused-seed0`."""
    return out / name.replace(", ", "-").replace(" ", "")


def train(commands: dict[str, list[str]]) -> None:
    """Run the commands side by side; the first that fails ends the others."""
    running = {name: subprocess.Popen(command) for name, command in commands.items()}
    try:
        while any(process.poll() is None for process in running.values()):
            if any(process.poll() for process in running.values()):
                break
            time.sleep(0.2)
    finally:
        for process in running.values():
            if process.poll() is None:
                process.terminate()
    for name, process in running.items():
        if code := process.wait():
            raise ElectraError(f"{name}: ended with code {code}")


def last_metrics(run: Path) -> dict[str, float]:
    """The held-out figures at the end of a run."""
    lines = [line for line in read_lines(run / FILE) if line["kind"] == "eval"]
    return {metric: float(lines[-1][f"eval/{metric}"]) for metric in METRICS}


if __name__ == "__main__":
    start(command)
