"""Progress on stderr: numbers, plain lines and the live bar."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest

from electra import progress as module
from electra.progress import Bar, clock, progress, say, scaled


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (999.6, "1k"),
        (12_345, "12.3k"),
        (1_440_000, "1.44M"),
        (2e9, "2G"),
        (3e13, "30T"),
    ],
)
def test_scaled(value: float, text: str) -> None:
    assert scaled(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (67, "1:07"), (3599.6, "1:00:00"), (10_925, "3:02:05"), (-3, "0:00")]
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rate_and_eta_by_hand() -> None:
    time = Time()
    bar = Bar("train", total=3000, unit="steps", start=0, now=time)
    for second in range(1, 11):
        time.now = 100.0 + second
        bar.update(second * 100, "loss 3.2" if second == 1 else "")
    assert bar.rate() == pytest.approx(100.0)
    assert bar.text() == "1,000/3,000 steps (33%), 100 steps/s, 0:20 left, loss 3.2"


def test_resumed_work_does_not_count_as_speed() -> None:
    time = Time()
    bar = Bar("train", total=2000, unit="steps", start=1000, now=time)
    time.now += 10
    bar.update(1100)
    assert bar.rate() == pytest.approx(10.0)
    assert bar.last_line(failed=False) == "train: done: 1,100 steps in 0:10, 10 steps/s"
    assert bar.last_line(failed=True).startswith("train: stopped at 1,100")


def test_rate_forgets_a_slow_start() -> None:
    time = Time()
    bar = Bar("train", total=None, unit="", start=0, now=time)
    time.now += 600  # a compile
    for second in range(1, 200):
        time.now += 1
        bar.update(second)
    assert bar.rate() == pytest.approx(1.0, rel=0.05)


def test_bytes_and_unknown_total() -> None:
    time = Time()
    bar = Bar("read", total=None, unit="B", start=0, now=time)
    time.now += 2
    bar.update(5_000_000)
    assert bar.text() == "5MB, 2.5MB/s"


def test_plain_lines_are_few(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    monkeypatch.setattr(module.time, "monotonic", time)
    with progress("prepare", 50, "files") as bar:
        for i in range(1, 51):
            time.now += 0.5
            bar.update(i)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "prepare: done: 50 files in 0:25, 2 files/s"
    assert len(lines) == 3


def test_plain_failure_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="x"), progress("work", 3) as bar:
        bar.update(1)
        raise ValueError("x")
    assert "work: stopped at 1" in capsys.readouterr().err


def test_say_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    say("[bold]plain[/bold]")
    out = capsys.readouterr()
    assert (out.out, out.err) == ("", "[bold]plain[/bold]\n")


def test_say_survives_a_closed_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    assert module._terminal() is False


def test_live_bar_on_a_terminal_and_nesting() -> None:
    code = (
        "from electra.progress import progress, say\n"
        "with progress('outer', 10, 'steps') as a:\n"
        "    a.update(5, 'loss 1.5')\n"
        "    say('[a] line')\n"
        "    with progress('inner', 2) as b: b.update(2)\n"
        "    a.update(10)\n"
    )
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], stderr=slave, env=env, check=True, timeout=60)
    os.close(slave)
    text = b""
    try:
        while chunk := os.read(master, 65536):
            text += chunk
    except OSError:
        pass
    os.close(master)
    assert done.returncode == 0
    shown = text.decode()
    assert "outer" in shown and "inner" in shown and "10/10 steps (100%)" in shown and "[a] line" in shown
