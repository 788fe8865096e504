"""Every command line in the documentation is one that this version accepts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from electra.cli import COMMANDS, main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - set((ROOT / "docs" / "lab").rglob("*.md")))]
GENERATED = {"cli.md", "config.md", "api.md"}
PROGRAM = re.compile(r"^(?:\$ |echo .* \| |torchrun .* -m )?(?:\.venv/bin/)?electra (?=[a-z])")


def command_lines(text: str) -> list[str]:
    """The lines of a page's code blocks that start this program, without comments; split lines joined."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [PROGRAM.sub("", line) for line in lines if PROGRAM.match(line)]


def check(line: str) -> None:
    """Parse a command line as click would, without running anything or looking at files."""
    name, *arguments = shlex.split(line, comments=True)
    assert name in COMMANDS, f"no command {name}"
    context = click.Context(main, info_name="electra")
    command = main.get_command(context, name)
    assert command is not None
    while isinstance(command, click.Group):
        child, *arguments = arguments
        command = command.get_command(context, child)
        assert command is not None, f"no command {name} {child}"
    command.make_parser(click.Context(command, info_name=name)).parse_args(
        [argument for argument in arguments if argument != "..."]
    )


LINES = [
    pytest.param(line, id=f"{page.relative_to(ROOT)}: {line[:50]}")
    for page in PAGES
    if page.name not in GENERATED
    for line in command_lines(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("line", LINES)
def test_command_line_is_accepted(line: str) -> None:
    check(line)


def test_there_are_command_lines() -> None:
    assert len(LINES) > 50


@pytest.mark.parametrize("line", ["fly --high", "prepare texts --nowhere data", "config remove tiny"])
def test_the_check_sees(line: str) -> None:
    with pytest.raises((AssertionError, click.UsageError)):
        check(line)
