"""Which lines raise a user's error, and which of them the tests have reached.

An error of `electra.errors` notes who makes it: `record` replaces its `__new__` in the test process, at no cost until
then. Child processes are not seen: a line that only they reach is listed in `raise_lines.txt`, with the test that
does it. The whole suite fails where a line is neither reached nor listed.
"""

from __future__ import annotations

import ast
import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra import errors

SRC = Path(__file__).parents[1] / "src" / "electra"
LISTED = Path(__file__).parent / "raise_lines.txt"
_ERRORS = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
CLASSES = _ERRORS | {"NewerFormat", "_Failed"}
PASSED_ON = {"error", "newer"}  # the names of arguments that are such a class

_reached: set[str] = set()


@dataclass(frozen=True, slots=True)
class Line:
    """A place that makes a user's error."""

    file: str
    first: int
    last: int
    source: str
    """The statement on one line, as `raise_lines.txt` has it."""

    @property
    def listed_as(self) -> str:
        return f"{self.file}: {self.source}"


def record() -> None:
    """Note from now on where user's errors are made, in this process."""

    def noting(cls: type[errors.ElectraError], *args: object, **options: object) -> Any:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename == errors.__file__:
            frame = frame.f_back
        _reached.add(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return Exception.__new__(cls, *args)

    errors.ElectraError.__new__ = noting  # type: ignore[method-assign]


def reached() -> list[str]:
    """The places seen so far in this process, as `file:line`."""
    return sorted(_reached)


def lines_of(path: Path, *, below: Path = SRC) -> list[Line]:
    """The statements of a module that make a user's error."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.Return | ast.Assign) and _makes_error(node):
            text = " ".join(ast.unparse(node).split())[:110].rstrip()
            found.append(Line(path.relative_to(below).as_posix(), node.lineno, node.end_lineno or node.lineno, text))
    return found


def _makes_error(node: ast.Raise | ast.Return | ast.Assign) -> bool:
    call = node.exc if isinstance(node, ast.Raise) else node.value
    if not isinstance(call, ast.Call) or any(isinstance(part, ast.Call) for part in ast.walk(call.func)):
        return False  # of f(..., error=X).get(...) it is f that raises
    names = {part.id for part in ast.walk(call.func) if isinstance(part, ast.Name)}
    names |= {part.attr for part in ast.walk(call.func) if isinstance(part, ast.Attribute)}
    return bool(names & CLASSES) or (isinstance(node, ast.Raise) and bool(names & PASSED_ON))


@functools.cache
def _every() -> list[Line]:
    return [line for path in sorted(SRC.rglob("*.py")) for line in lines_of(path)]


def unreached(places: set[str]) -> list[Line]:
    """The lines of the package that none of these places is in."""
    by_file: dict[str, set[int]] = {}
    for place in places:
        file, _, number = place.rpartition(":")
        by_file.setdefault(file, set()).add(int(number))
    return [
        line
        for line in _every()
        if not any(line.first <= number <= line.last for number in by_file.get(str(SRC / line.file), ()))
    ]


def listed() -> set[str]:
    """The lines that tests need not reach: each is followed by its reason, after two spaces and a #."""
    text = LISTED.read_text(encoding="utf-8")
    return {line.partition("  # ")[0] for line in text.splitlines() if line and not line.startswith("#")}
