"""`python -m electra.bench.prepare_speed CORPUS VOCAB`: `electra prepare` against a bare `tokenizers` loop.

The loop's time is that inside `encode_batch` alone, not counting reading: the strictest yardstick. It runs over one
half of the files before `electra prepare` and over the other half after it, so that a busy machine slows both. The
same data prepared with another number of workers must have the same bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import click

from electra import hardware
from electra.bench.start import start
from electra.errors import DataError, ElectraError
from electra.fsio import sha256_file
from electra.tokenizer.codec import Tokenizer

BATCH_LINES = 1000
METHODS = ("encode_batch", "encode_batch_fast")
WATCH_S = 0.05


@click.command()
@click.argument("corpus", type=click.Path(path_type=Path))
@click.argument("vocab", type=click.Path(path_type=Path))
@click.option("--files", default="*.txt", show_default=True, metavar="GLOB", help="Files of the folder CORPUS.")
@click.option("--workers", type=click.IntRange(1), default=hardware.cores, help="Processes (default: the cores).")
def command(corpus: Path, vocab: Path, files: str, workers: int) -> None:
    """Megabytes of text a second, peak memory, and whether the number of workers changes a byte."""
    paths = sorted(corpus.glob(files))
    if not paths:
        raise DataError(corpus, f"no file matches {files}")
    size = sum(path.stat().st_size for path in paths) / 1e6
    half = (len(paths) + 1) // 2
    with tempfile.TemporaryDirectory(prefix="electra-bench-") as work:
        first = [loop_seconds(paths[:half], vocab, method, threads=workers) for method in METHODS]
        seconds, peak = prepare(paths, vocab, Path(work) / "first", workers=workers)
        second = [loop_seconds(paths[half:], vocab, method, threads=workers) for method in METHODS]
        other = 1 if workers > 1 else 3
        prepare(paths, vocab, Path(work) / "second", workers=other)
        same = digests(Path(work) / "first") == digests(Path(work) / "second")
    click.echo(f"{size:.1f} MB of text, {workers} workers")
    click.echo(f"electra prepare: {size / seconds:.2f} MB/s, {peak:.0f} MB peak memory of all its processes")
    for method, one, two in zip(METHODS, first, second, strict=True):
        click.echo(f"{method}: {size / (one + two):.2f} MB/s; prepare is {(one + two) / seconds:.2f} times as fast")
    click.echo(f"the same bytes with {workers} and {other} workers: {'yes' if same else 'NO'}")
    if not same:
        raise ElectraError("the number of workers changes the prepared data")


def loop_seconds(files: Sequence[Path], vocab: Path, method: str, *, threads: int) -> float:
    """Seconds of a bare loop in a process of its own, where the number of threads can still be set."""
    env = {**os.environ, "TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": str(threads)}
    program = "import sys; from electra.bench.prepare_speed import encode; print(encode(*sys.argv[1:]))"
    command = [sys.executable, "-c", program, str(vocab), method, *map(str, files)]
    return float(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)


def encode(vocab: str, method: str, *files: str) -> float:
    """Seconds that the tokenizer takes for the lines of the files."""
    encode_batch = getattr(Tokenizer.read(Path(vocab)).backend, method)
    seconds = 0.0
    for path in files:
        with open(path, encoding="utf-8") as lines:
            while batch := list(islice(lines, BATCH_LINES)):
                began = time.perf_counter()
                encode_batch(batch, add_special_tokens=False)
                seconds += time.perf_counter() - began
    return seconds


def prepare(files: Sequence[Path], vocab: Path, out: Path, *, workers: int) -> tuple[float, float]:
    """Seconds of the whole command, and the peak memory of all its processes together in MB."""
    arguments = [*map(str, files), "--vocab", str(vocab), "--out", str(out), "--workers", str(workers)]
    command = [sys.executable, "-m", "electra", "prepare", *arguments]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peak, ended = 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(WATCH_S):
            peak = max(peak, sum(map(resident_mb, descendants(process.pid))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, errors = process.communicate()
    seconds = time.perf_counter() - began
    ended.set()
    watcher.join()
    if process.returncode:
        raise ElectraError(errors.strip().splitlines()[-1].removeprefix("electra: error: "))
    return seconds, peak


def descendants(root: int) -> Iterator[int]:
    """The process and everything it started, as far as /proc lists it."""
    yield root
    try:
        children = Path(f"/proc/{root}/task/{root}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from descendants(int(child))


def resident_mb(process: int) -> float:
    """Memory of a process in MB; 0 where it has ended."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file below a folder."""
    return {str(path.relative_to(folder)): sha256_file(path) for path in folder.rglob("*") if path.is_file()}


if __name__ == "__main__":
    start(command)
