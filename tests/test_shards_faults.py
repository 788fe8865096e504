"""Faults while preparing: kills, signals, full and read-only disks, bad input; always one line and a clean folder."""

from __future__ import annotations

import errno
import gzip
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import corpora
import pytest

from electra import fsio
from electra.errors import DataError
from electra.shards import build
from electra.shards.build import prepare
from electra.shards.dataset import open_data
from electra.shards.finalise import finalise
from electra.shards.options import PrepareOptions
from electra.tokenizer.codec import Tokenizer
from electra.tokenizer.vocabulary import read_vocab

ROOT = Path(__file__).parents[1]
ENV = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
SMALL = PrepareOptions(vocab_size=300)

RUN = """
import sys, time
from pathlib import Path
from electra.cli import main
from electra.shards import build, pool

build.BLOCK_BYTES = 20_000
make = pool.Worker.__call__
def slowly(self, job):
    time.sleep(0.05)
    return make(self, job)
pool.Worker.__call__ = slowly
if __name__ == "__main__":
    main(["prepare", sys.argv[1], "--out", sys.argv[2], "--vocab-size", "300", "--workers", sys.argv[3]])
"""


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return corpora.write_corpus(tmp_path / "a.txt", 1200)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("undisturbed")
    corpus = corpora.write_corpus(folder / "a.txt", 1200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "BLOCK_BYTES", 20_000)
        prepare([str(corpus)], out=folder / "data", options=SMALL, workers=1)
    return corpora.digests(folder / "data")


@pytest.fixture
def expected(undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Digests of an undisturbed preparation of the same text in blocks of the same size as the test's own."""
    monkeypatch.setattr(build, "BLOCK_BYTES", 20_000)
    return undisturbed


def start(tmp_path: Path, corpus: Path, workers: int) -> subprocess.Popen[bytes]:
    """A slow preparation in a process of its own, with at least two units finished."""
    script = tmp_path / "run.py"
    script.write_text(RUN)
    command = [sys.executable, str(script), str(corpus), str(tmp_path / "data"), str(workers)]
    process = subprocess.Popen(command, env=ENV, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "data").glob(".work/units/*.unit"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline, process.stderr and process.stderr.read()
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("workers", [1, 2])
def test_promise_08_kill_9_then_the_same_command_gives_the_same_bytes(
    tmp_path: Path, corpus: Path, expected: dict[str, str], workers: int
) -> None:
    process = start(tmp_path, corpus, workers)
    process.kill()
    process.communicate(timeout=60)
    with pytest.raises(DataError, match="is not finished"):
        open_data(tmp_path / "data")
    time.sleep(0.3)  # orphaned workers notice and leave
    result = prepare([str(corpus)], out=tmp_path / "data", options=SMALL, workers=workers)
    assert 2 <= result.units_kept < result.units
    assert corpora.digests(tmp_path / "data") == expected


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 2)])
def test_promise_11_signals_stop_with_75_and_the_same_command_continues(
    tmp_path: Path, corpus: Path, expected: dict[str, str], number: int, workers: int
) -> None:
    process = start(tmp_path, corpus, workers)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors
    assert errors.decode().splitlines()[-1].endswith("finished parts are kept, the same command continues")
    assert b"Traceback" not in errors
    assert not list((tmp_path / "data").glob("**/.tmp-*"))
    result = prepare([str(corpus)], out=tmp_path / "data", options=SMALL, workers=1)
    assert result.units_kept >= 2
    assert corpora.digests(tmp_path / "data") == expected


def test_promise_08_death_at_every_seam_of_the_commit(
    tmp_path: Path, corpus: Path, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Die at the n-th step of writing, for growing n, until nothing is left to interrupt."""

    class Killed(BaseException):
        pass

    deaths = 0
    for attempt in range(1000):
        left = 3 + attempt * 5

        def die(name: str) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Killed(name)

        monkeypatch.setattr(fsio, "seam", die)
        try:
            prepare([str(corpus)], out=tmp_path / "data", options=SMALL, workers=1)
            break
        except Killed:
            deaths += 1
            with pytest.raises(DataError):
                open_data(tmp_path / "data")
    assert deaths >= 5
    assert corpora.digests(tmp_path / "data") == expected


def full_disk(after: int) -> Callable[[str], None]:
    left = after

    def seam(name: str) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    return seam


@pytest.mark.parametrize("after", [1, 8, 20, 55])
def test_promise_10_full_disk_keeps_finished_units(
    tmp_path: Path, corpus: Path, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(fsio, "seam", full_disk(after))
    with pytest.raises(DataError, match=r"data: the disk is full \(free some space and run the same command again"):
        prepare([str(corpus)], out=tmp_path / "data", options=SMALL, workers=1)
    assert not list(tmp_path.glob("data/**/.tmp-*")) and not (tmp_path / "data" / "data.json").exists()
    units = len(list(tmp_path.glob("data/.work/units/*.unit")))
    monkeypatch.undo()
    monkeypatch.setattr(build, "BLOCK_BYTES", 20_000)
    result = prepare([str(corpus)], out=tmp_path / "data", options=SMALL, workers=1)
    assert result.units_kept == units
    assert corpora.digests(tmp_path / "data") == expected


def test_promise_10_the_kernel_says_no(tmp_path: Path) -> None:
    """A real failing write, in worker processes: files may not grow beyond a limit."""
    corpora.write_corpus(tmp_path / "a.txt", 20_000)
    vocab = corpora.write_vocab(tmp_path / "v.txt")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    arguments = [str(tmp_path / "a.txt"), "--vocab", str(vocab), "--out", str(tmp_path / "data"), "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "electra", "prepare", *arguments],
        env=ENV,
        capture_output=True,
        timeout=120,
        preexec_fn=limit,
    )
    assert done.returncode == 4, done.stderr
    assert b"the disk is full" in done.stderr.splitlines()[-1] and b"Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()  # not one unit fitted


def test_promise_20_a_worker_that_dies_is_reported_and_continued(
    tmp_path: Path, corpus: Path, expected: dict[str, str]
) -> None:
    script = tmp_path / "run.py"
    script.write_text(RUN.replace("time.sleep(0.05)", "job.path.name == '0000005.unit' and __import__('os')._exit(9)"))
    command = [sys.executable, str(script), str(corpus), str(tmp_path / "data"), "2"]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "a worker process died" in done.stderr.splitlines()[-1]
    prepare([str(corpus)], out=tmp_path / "data", options=SMALL, workers=1)
    assert corpora.digests(tmp_path / "data") == expected


def test_promise_20_a_unit_damaged_before_the_end_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1\.unit: is missing or damaged"):
        finalise(
            tmp_path,
            [tmp_path / "1.unit"],
            held_out_units=0,
            share=0.1,
            tokenizer=Tokenizer(read_vocab(corpora.write_vocab(tmp_path / "v.txt"))),
            about={},
        )


# --- bad input, through the command line


def electra(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "electra", "prepare", *map(str, arguments)]
    return subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


def binary(folder: Path) -> list[object]:
    (folder / "program.txt").write_bytes(bytes(range(256)) * 10)
    return [folder / "program.txt"]


def latin(folder: Path) -> list[object]:
    (folder / "old.txt").write_bytes("Ein schöner Tag.\n".encode("latin-1"))
    return [folder / "old.txt"]


def empty(folder: Path) -> list[object]:
    (folder / "empty.txt").write_bytes(b"\n \n\n")
    return [folder / "empty.txt"]


def nothing(folder: Path) -> list[object]:
    (folder / "nothing.txt").write_bytes(b"")
    return [folder / "nothing.txt", "--vocab", corpora.write_vocab(folder / "v.txt")]


def cut(folder: Path) -> list[object]:
    packed = gzip.compress(corpora.text(corpora.documents(200)).encode())
    (folder / "cut.txt.gz").write_bytes(packed[:-100])
    return [folder / "cut.txt.gz"]


def long_line(folder: Path) -> list[object]:
    with open(folder / "long.txt", "wb") as out:
        out.seek(200_000_000)
        out.write(b"end\n")
    with open(folder / "long.txt", "r+b") as out:
        for _ in range(20):
            out.write(b"word " * 200_000)
    return [folder / "long.txt"]


def no_column(folder: Path) -> list[object]:
    (folder / "table.csv").write_text("title,body\nOne,Some text\n")
    return [folder / "table.csv"]


def no_mask(folder: Path) -> list[object]:
    corpora.write_corpus(folder / "a.txt", 20)
    return [folder / "a.txt", "--vocab", corpora.write_vocab(folder / "v.txt", leave_out="[MASK]")]


def missing(folder: Path) -> list[object]:
    return [folder / "missing.txt"]


def changed(folder: Path) -> list[object]:
    corpora.write_corpus(folder / "a.txt", 40)
    assert electra(folder / "a.txt", "--vocab-size", 300, "--out", folder / "data").returncode == 0
    return [folder / "a.txt", "--vocab-size", 301]


BAD = [
    (binary, 4, "program.txt: line 1 holds a NUL byte"),
    (latin, 4, "old.txt: byte 8 of line 1 (0xf6) is not valid UTF-8"),
    (empty, 4, "no words to train a vocabulary on"),
    (nothing, 4, "corpus: is empty"),
    (cut, 4, "cut.txt.gz: the compressed file ends too early"),
    (long_line, 4, "long.txt: line 1 is longer than 16 MiB"),
    (no_column, 4, "table.csv: no column 'text'; found title, body"),
    (no_mask, 4, "v.txt: the vocabulary lacks [MASK]"),
    (missing, 4, "missing.txt: no such file or folder"),
    (changed, 2, "was prepared differently: vocab_size: 300 -> 301"),
]


@pytest.mark.parametrize(("make", "code", "message"), BAD, ids=[make.__name__ for make, _, _ in BAD])
def test_promise_20_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, make: Callable[[Path], list[object]], code: int, message: str
) -> None:
    done = electra(*make(tmp_path), "--out", tmp_path / "data")
    assert done.returncode == code, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("electra:")]
    assert len(errors) == 1 and message in errors[0], done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "data").exists() == (make is changed)


def test_promise_20_output_that_cannot_be_written(tmp_path: Path) -> None:
    corpora.write_corpus(tmp_path / "a.txt", 20)
    (tmp_path / "file").write_text("in the way")
    places = [tmp_path / "file" / "data", tmp_path / "file"]  # neither can be a folder, not even for root
    if os.geteuid():
        (tmp_path / "locked").mkdir(mode=0o500)
        places.append(tmp_path / "locked" / "data")
    for place in places:
        done = electra(tmp_path / "a.txt", "--out", place)
        assert done.returncode == 4, done.stderr
        assert "cannot be written: " in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "file").read_text() == "in the way"


def test_promise_20_damaged_finished_data_is_not_called_done(tmp_path: Path) -> None:
    corpora.write_corpus(tmp_path / "a.txt", 40)
    arguments = [tmp_path / "a.txt", "--vocab-size", 300, "--out", tmp_path / "data"]
    assert electra(*arguments).returncode == 0
    path = tmp_path / "data" / "train" / "00000.tokens"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    done = electra(*arguments)
    assert done.returncode == 4 and "00000.tokens: is damaged" in done.stderr
