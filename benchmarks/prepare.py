"""`electra prepare` beside a bare `tokenizers` loop over the same lines: speed, memory, equal bytes.

python benchmarks/prepare.py CORPUS_FOLDER VOCAB_FILE [--files 'train-wikipedia-*.txt'] [--megabytes N] [--json]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

SOURCE = str(Path(__file__).parents[1] / "src")
BATCH_LINES = 1000
SPEED_BAR = 0.6
MEMORY_BAR_MB = 1500.0

LOOP = """
import sys, time
sys.path.insert(0, sys.argv[1])
from itertools import islice
from pathlib import Path
from electra.tokenizer.codec import Tokenizer, read_vocab

encode = getattr(Tokenizer(read_vocab(Path(sys.argv[2]))).backend, sys.argv[3])
seconds = 0.0
for path in sys.argv[5:]:
    with open(path, encoding="utf-8") as lines:
        while batch := list(islice(lines, int(sys.argv[4]))):
            began = time.perf_counter()
            encode(batch, add_special_tokens=False)
            seconds += time.perf_counter() - began
print(seconds)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    megabytes: float
    workers: int
    encode_batch_mb_s: float
    encode_batch_fast_mb_s: float
    prepare_mb_s: float
    peak_mb: float
    identical: bool
    sha256: str

    @property
    def ratio(self) -> float:
        return self.prepare_mb_s / self.encode_batch_mb_s

    @property
    def passed(self) -> bool:
        return self.ratio >= SPEED_BAR and self.peak_mb < MEMORY_BAR_MB and self.identical


def bare_loop(files: list[Path], *, vocab: Path, method: str, threads: int) -> float:
    """Seconds inside `encode_batch` alone, not counting reading: the strictest yardstick."""
    env = {**os.environ, "TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", LOOP, SOURCE, str(vocab), method, str(BATCH_LINES), *map(str, files)]
    return float(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)


def prepare(files: list[Path], *, vocab: Path, out: Path, workers: int) -> tuple[float, float]:
    """Seconds of the whole command, and the peak memory of all its processes together in MB."""
    arguments = [*map(str, files), "--vocab", str(vocab), "--out", str(out), "--workers", str(workers)]
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "electra", "prepare", *arguments],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    peak = 0.0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.05):
            peak = max(peak, sum(map(resident_mb, tree(process.pid))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, errors = process.communicate()
    seconds = time.perf_counter() - began
    ended.set()
    watcher.join()
    if process.returncode:
        raise SystemExit(errors)
    return seconds, peak


def tree(root: int) -> Iterator[int]:
    """The process and everything below it."""
    yield root
    try:
        children = Path(f"/proc/{root}/task/{root}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from tree(int(child))


def resident_mb(process: int) -> float:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def digest(folder: Path) -> str:
    """One sha256 over the names and contents of all files."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            total.update(path.relative_to(folder).as_posix().encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def cut(files: list[Path], *, megabytes: float, folder: Path) -> list[Path]:
    """Copies of the first megabytes of the corpus, ending with a whole line."""
    left, result = int(megabytes * 1e6), []
    for path in files:
        if left > 0:
            content = path.read_bytes()[:left]
            left -= len(content)
            result.append(folder / path.name)
            result[-1].write_bytes(content[: content.rfind(b"\n") + 1])
    return result


def measure(files: list[Path], *, vocab: Path, workers: int, work: Path) -> Figures:
    """Loop over the first half, preparation, loop over the second half: a busy neighbour slows all of them."""
    size = sum(path.stat().st_size for path in files) / 1e6
    loops = {"encode_batch": 0.0, "encode_batch_fast": 0.0}
    half = (len(files) + 1) // 2
    for method in loops:
        loops[method] += bare_loop(files[:half], vocab=vocab, method=method, threads=workers)
    seconds, peak = prepare(files, vocab=vocab, out=work / "default", workers=workers)
    for method in loops:
        loops[method] += bare_loop(files[half:], vocab=vocab, method=method, threads=workers) if files[half:] else 0.0
    digests = {workers: digest(work / "default")}
    for other in {1, 3} - {workers}:
        _, other_peak = prepare(files, vocab=vocab, out=work / f"with-{other}", workers=other)
        digests[other] = digest(work / f"with-{other}")
        peak = max(peak, other_peak)
    return Figures(
        megabytes=size,
        workers=workers,
        encode_batch_mb_s=size / loops["encode_batch"],
        encode_batch_fast_mb_s=size / loops["encode_batch_fast"],
        prepare_mb_s=size / seconds,
        peak_mb=peak,
        identical=len(set(digests.values())) == 1,
        sha256=digests[workers],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("vocab", type=Path)
    parser.add_argument("--files", default="*.txt")
    parser.add_argument("--megabytes", type=float, help="only so much of the corpus")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    files = sorted(given.corpus.glob(given.files))
    if not files:
        raise SystemExit(f"{given.corpus}: no file matches {given.files}")
    work = Path(tempfile.mkdtemp(prefix="prepare-"))
    try:
        if given.megabytes:
            files = cut(files, megabytes=given.megabytes, folder=work)
        found = measure(files, vocab=given.vocab, workers=given.workers, work=work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if given.json:
        print(json.dumps({**asdict(found), "ratio": found.ratio, "passed": found.passed}))
    else:
        fast = found.prepare_mb_s / found.encode_batch_fast_mb_s
        print(f"{found.megabytes:.0f} MB of text, {found.workers} workers")
        print(f"  bare encode_batch loop       {found.encode_batch_mb_s:8.2f} MB/s")
        print(f"  bare encode_batch_fast loop  {found.encode_batch_fast_mb_s:8.2f} MB/s")
        print(f"  electra prepare              {found.prepare_mb_s:8.2f} MB/s")
        print(f"  ratio to encode_batch        {found.ratio:8.2f}   (bar {SPEED_BAR}); to encode_batch_fast {fast:.2f}")
        print(f"  peak memory, all processes   {found.peak_mb:8.0f} MB (bar {MEMORY_BAR_MB:.0f})")
        print(f"  same bytes with 1, 3 and {found.workers} workers: {'yes' if found.identical else 'NO'}")
        print("passed" if found.passed else "FAILED")
    sys.exit(0 if found.passed else 1)


if __name__ == "__main__":
    main()
