"""Texts from the command line, a file or standard input as they arrive, and numbers without meaningless digits."""

from __future__ import annotations

import math
import queue
import shlex
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from electra.errors import DataError
from electra.terminal import visible

STDIN = "standard input"
MAX_LINE_BYTES = 1 << 20
_WAITING_LINES = 512  # handled together at most


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print on standard output; what would steer the terminal is shown instead."""
    click.echo(visible(text), err=err, nl=nl)


def echo_data(line: str) -> None:
    """Print a line of data: as it is into a file or a pipe, where a program reads it, and on a terminal as `echo`."""
    if sys.stdout.isatty():
        echo(line)
    else:
        click.echo(f"{line}\n".encode(errors="replace"), nl=False)


def next_lines(*commands: Sequence[str]) -> list[str]:
    """`next: ...` for each command of this program, to be typed as it stands."""
    return [f"next: {command_line(*one)}" for one in commands]


def command_line(*words: object) -> str:
    """A command of this program, in quotes where a shell needs them."""
    return f"{program()} {shlex.join(map(str, words))}"


def program() -> str:
    """This program as a shell finds it: its name where the PATH leads to it, otherwise as it was called."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py" and called.parent.name == "electra":
        return f"{shlex.quote(sys.executable)} -m electra"
    if called.name != "electra":  # a test, or a program that calls this one
        return "electra"
    found = shutil.which("electra")
    known = found is not None and Path(found).resolve() == called.resolve()
    return "electra" if known else shlex.quote(str(called))


def waiting_lines() -> Iterator[list[str]]:
    """The lines that have arrived on standard input, as often as some have: a single line does not wait for more."""
    lines: queue.Queue[bytes | OSError | None] = queue.Queue(maxsize=_WAITING_LINES)

    def read() -> None:
        try:
            while line := sys.stdin.buffer.readline(MAX_LINE_BYTES + 1):
                lines.put(line)
                if len(line) > MAX_LINE_BYTES:
                    return
            lines.put(None)
        except OSError as error:  # the consumer raises it
            lines.put(error)

    threading.Thread(target=read, name="electra-stdin", daemon=True).start()
    number, more = 0, True
    while more:
        waiting = [lines.get()]
        while isinstance(waiting[-1], bytes) and len(waiting) < _WAITING_LINES:
            try:
                waiting.append(lines.get_nowait())
            except queue.Empty:
                break
        more = waiting[-1] is not None
        decoded = []
        for line in waiting:
            if line is None:
                break
            if isinstance(line, OSError):
                raise line
            number += 1
            if len(line) > MAX_LINE_BYTES:
                reason = f"line {number} is longer than {MAX_LINE_BYTES >> 20} MiB"
                raise DataError(STDIN, reason, fix="break it into lines, or give a file")
            try:
                decoded.append(line.decode("utf-8").rstrip("\r\n"))
            except UnicodeDecodeError as error:
                raise DataError(STDIN, f"line {number} is not valid UTF-8") from error
        yield decoded


def typed(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The texts of a command line; DataError where one is not UTF-8."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:  # Python keeps such a byte as half a surrogate pair
            raise DataError("TEXT", "is not valid UTF-8", fix="give it as UTF-8") from error
    return texts


def text_chunks(source: str | None, column: str | None, texts: tuple[str, ...]) -> Iterator[Sequence[str]]:
    """The texts of a command line, a file or standard input, in chunks that are computed together; a file that
    cannot be read is refused at once."""
    from electra.corpus.streams import plain_suffix
    from electra.errors import ConfigError
    from electra.tasks.table_rows import FORMATS
    from electra.tasks.tables import read_texts

    if bool(texts) == (source is not None):
        raise click.UsageError("give either a TEXT or --input FILE, where - is standard input")
    if column is not None and (source is None or plain_suffix(Path(source)) not in FORMATS):
        raise ConfigError("--text", "there are no columns to choose from", fix=f"use one of {' '.join(FORMATS)}")
    if source is None:
        return iter([typed(texts)])
    if source == "-":
        return waiting_lines()
    return iter([read_texts(Path(source), column=column)])


def short(value: Any) -> Any:
    """The value with its numbers rounded to six digits, or to whole ones from a million on; more mean nothing."""
    if isinstance(value, float):
        return float(round(value)) if 1e6 <= abs(value) < math.inf else float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: short(part) for key, part in value.items()}
    return [short(part) for part in value] if isinstance(value, list) else value
