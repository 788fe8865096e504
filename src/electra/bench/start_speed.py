"""`python -m electra.bench.start_speed DATA`: how long a start takes before it trains.

Verifying: shards of DATA are copied until there are `--gb` of them, and that folder is opened as a run opens it, twice.
Resuming: a run is started, stopped after its first checkpoint and started again, each time until the metrics file has
its first new step. Everything is written below `--work` and removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from electra.bench.start import start
from electra.checkpoint import store
from electra.errors import DataError, Resumable
from electra.shards.dataset import open_data
from electra.shards.format import TRAIN, read_manifest, write_manifest
from electra.train.metrics_file import FILE, read_lines

PARTS = ("tokens", "sentences", "documents")
SETTINGS = ("train.log_every=1", "checkpoint.every=5", "evaluate.every=0", "train.steps=100000")
LONGEST_S = 600.0
POLL_S = 0.01


@click.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--work", type=click.Path(path_type=Path), help="Where to write; by default the temporary folder.")
@click.option("--gb", type=click.FloatRange(0), default=10.0, show_default=True, help="Of data to verify; 0: none.")
@click.option("--rounds", type=click.IntRange(0), default=3, show_default=True, help="Starts and resumes to time.")
@click.option("--preset", default="tiny", show_default=True, help="Of the run that is started.")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def command(data: Path, work: Path | None, gb: float, rounds: int, preset: str, settings: tuple[str, ...]) -> None:
    """Time how prepared DATA is verified, and how a run on it starts and resumes."""
    with tempfile.TemporaryDirectory(prefix="electra-start-", dir=work) as folder:
        home = Path(folder)
        os.environ["XDG_CACHE_HOME"] = str(home / "cache")  # where verified folders are remembered
        if gb:
            _time_verifying(data, home / "large", int(gb * 1e9))
        arguments = ["--data", str(data), "--preset", preset, *SETTINGS, *settings]
        for number in range(rounds):
            began, again = (_first_step(arguments, home / f"run-{number}") for _ in range(2))
            click.echo(f"first step after {began:.2f} s; resumed, first new step after {again:.2f} s")


def _time_verifying(data: Path, large: Path, most: int) -> None:
    size = enlarge(data, large, most)
    first, second = _seconds(lambda: open_data(large)), _seconds(lambda: open_data(large))
    files = sum(1 for path in large.rglob("*") if path.is_file())
    click.echo(
        f"{size / 1e9:.1f} GB in {files} files: verified in {first:.1f} s, {size / 1e9 / first:.2f} GB/s; "
        f"on the second start in {second:.3f} s"
    )


def enlarge(data: Path, out: Path, most: int) -> int:
    """Copy prepared data, and the shards of its training text again and again up to `most` bytes; the bytes."""
    manifest = read_manifest(data)
    shutil.copytree(data, out, ignore=shutil.ignore_patterns(".*", "manifest.json"))
    known = {file["path"]: file for file in manifest["files"]}
    split = manifest["splits"][TRAIN]
    models = list(split["shards"])
    size: int = sum(file["bytes"] for file in known.values())
    while True:
        shard = models[len(split["shards"]) % len(models)]
        its = [known[f"{TRAIN}/{shard['name']}.{part}"] for part in PARTS]
        if size + sum(file["bytes"] for file in its) > most:
            break
        name = f"{len(split['shards']):05d}"
        for part, file in zip(PARTS, its, strict=True):
            path = f"{TRAIN}/{name}.{part}"
            shutil.copyfile(data / file["path"], out / path)
            manifest["files"].append({**file, "path": path})
            size += file["bytes"]
        split["shards"].append({**shard, "name": name})
        for count in ("tokens", "sentences", "documents"):
            split[count] += shard[count]
    write_manifest(out, manifest)
    return size


def _first_step(arguments: list[str], run: Path) -> float:
    """Seconds from the start of a command to its first new step; it is stopped when it has saved since."""
    before = _last_step(run)
    began = time.monotonic()
    command_line = [sys.executable, "-m", "electra", "pretrain", *arguments, "--out", str(run)]
    process = subprocess.Popen(command_line, stderr=subprocess.PIPE)
    try:
        _wait(process, lambda: _last_step(run) > before)
        took = time.monotonic() - began
        _wait(process, lambda: bool(store.steps(run)))
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=LONGEST_S)[1]
        if process.returncode != Resumable.exit_code:
            raise DataError(run, f"did not stop: exit code {process.returncode}, {output[-200:]!r}")
    finally:
        process.kill()
    return took


def _wait(process: subprocess.Popen[bytes], until: Callable[[], bool]) -> None:
    ends = time.monotonic() + LONGEST_S
    while not until():
        if process.poll() is not None or time.monotonic() > ends:
            output = process.communicate()[1] if process.returncode is not None else b""
            raise DataError(
                "electra pretrain", f"did not come to a step: {output[-300:].decode(errors='replace').strip()}"
            )
        time.sleep(POLL_S)


def _last_step(run: Path) -> int:
    """The last step in the metrics of a run; 0 where there is none."""
    try:
        lines: list[dict[str, Any]] = read_lines(run / FILE)
    except (DataError, OSError):  # half a line, or not yet there
        return 0
    return max((line["step"] for line in lines if line["kind"] == "train"), default=0)


def _seconds(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


if __name__ == "__main__":
    start(command)
