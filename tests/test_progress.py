"""Progress on stderr: numbers, plain lines and the live bar."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from electra import progress as module
from electra.cli import LONG, main
from electra.progress import Bar, bar_line, clock, counted, progress, say, scaled


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


def test_counted() -> None:
    counts: list[tuple[float | str, str]] = [(1, "1 row"), (1.0, "1 row"), (0, "0 rows"), (1200, "1,200 rows")]
    counts += [(0.5, "0.5 rows"), ("1", "1 row"), ("?", "? rows")]
    for number, text in counts:
        assert counted(number, "row") == text


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


NOTE = "loss 14.457  mlm 3.611  rtd 0.217  1.44M tok/s  MFU 10.2%  19.9 GiB"


def training(time: Time) -> Bar:
    bar = Bar("pretrain small", total=10_000, unit="step", start=0, now=time)
    time.now += 100
    bar.update(1000, NOTE)
    return bar


def test_a_smaller_terminal_drops_the_least_important_fields() -> None:
    bar = training(Time())
    assert bar.text() == f"1,000/10,000 step (10%), 10 step/s, 15:00 left, {NOTE}"
    assert bar.text(85) == "1,000/10,000 step (10%), 10 step/s, 15:00 left, loss 14.457  mlm 3.611  rtd 0.217"
    assert bar.text(60) == "1,000/10,000 step (10%), 15:00 left, loss 14.457  mlm 3.611"
    assert bar.text(50) == "1,000/10,000 step (10%), 15:00 left, loss 14.457"
    assert bar.text(1) == "1,000/10,000 step (10%)"


@pytest.mark.parametrize("width", range(40, 220, 7))
def test_a_bar_fits_its_terminal(width: int) -> None:
    line = bar_line(training(Time()), width).plain
    assert len(line) <= width and line.startswith("pretrain small ") and "1,000/10,000 step (10%)" in line
    assert ("19.9 GiB" in line) == (width >= len("pretrain small ") + len(training(Time()).text()))


def shown_on_a_terminal(code: str, columns: int) -> str:
    """What a program writes to a terminal of so many columns as stderr."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    path = os.pathsep.join(sys.path)
    env = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], stderr=slave, env=env, check=True, timeout=60)
    os.close(slave)
    text = b""
    try:
        while chunk := os.read(master, 65536):
            text += chunk
    except OSError:
        pass
    os.close(master)
    return text.decode()


def test_defect_at_80_columns_the_bar_keeps_time_left_and_loss() -> None:
    code = (
        "import itertools, electra.progress as module\n"
        "ticks = itertools.count(0.0, 2.0)\n"
        "module.time.monotonic = lambda now=module.time.monotonic: now() + next(ticks)\n"
        "with module.progress('pretrain small', 10_000, 'step') as bar:\n"
        f"    for step in range(1, 4): bar.update(step, {NOTE!r})\n"
    )
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown_on_a_terminal(code, 80))
    last = [line for line in re.split(r"[\r\n]+", shown) if "3/10,000" in line][-1]
    assert " left" in last and "loss 14.457" in last and len(last) <= 80


def test_quiet_leaves_warnings_and_verbose_adds_details(capsys: pytest.CaptureFixture[str]) -> None:
    with module.output():
        module.show_less()
        say("a line")
        module.detail("a detail")
        say("warning: look out")
        with progress("work", 3) as bar:
            bar.update(3)
    with module.output():
        module.show_more()
        module.detail("a detail")
    module.detail("not any more")
    assert capsys.readouterr().err == "warning: look out\na detail\n"


def test_a_log_file_has_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "logs" / "run.log"
    for number in range(2):
        with module.output():
            module.log_to(log)
            module.show_less()
            say(f"line {number}")
            module.detail("\x1b[31mred")
            with progress("work", 3) as bar:
                bar.update(3)
    lines = [line.split("  ", 1)[1] for line in log.read_text().splitlines()]
    assert [line.partition(" in ")[0] for line in lines] == [
        "line 0", "\\x1b[31mred", "work: done: 3", "line 1", "\\x1b[31mred", "work: done: 3",
    ]  # fmt: skip
    assert capsys.readouterr().err == ""


def test_long_commands_have_the_options(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    for name in LONG:
        command = main.get_command(None, name)  # type: ignore[arg-type]
        inner = list(command.commands.values()) if isinstance(command, click.Group) else [command]
        assert all({"quiet", "verbose", "log_file"} <= {one.name for one in part.params} for part in inner), name
    result = CliRunner().invoke(main, ["pretrain", "--resume", str(tmp_path), "--quiet", "--log-file", str(log)])
    assert result.exit_code == 5 and "holds no run to resume" in log.read_text()
    result = CliRunner().invoke(main, ["pretrain", "--resume", "x", "--log-file", str(tmp_path / "x.log" / "y")])
    assert result.exit_code == 4 and str(tmp_path / "x.log") in result.stderr


def test_live_bar_on_a_terminal_and_nesting() -> None:
    code = (
        "from electra.progress import progress, say\n"
        "with progress('outer', 10, 'steps') as a:\n"
        "    a.update(5, 'loss 1.5')\n"
        "    say('[a] line')\n"
        "    with progress('inner', 2) as b: b.update(2)\n"
        "    a.update(10)\n"
    )
    shown = shown_on_a_terminal(code, 120)
    assert "outer" in shown and "inner" in shown and "10/10 steps (100%)" in shown and "[a] line" in shown
