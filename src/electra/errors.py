"""One exception tree; each branch has the exit code that the command line returns."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Iterable


class ElectraError(Exception):
    """A failure that a user can act on: one line, no traceback."""

    exit_code = 1


class _Located(ElectraError):
    """Names where it went wrong, the reason and the fix."""

    def __init__(self, where: object, reason: str, *, fix: str = "") -> None:
        super().__init__(f"{where}: {reason}" + (f" ({fix})" if fix else ""))


class ConfigError(_Located):
    """An option, a combination of options or a command line that cannot work."""

    exit_code = 2

    def __init__(self, key: str, reason: str, *, fix: str = "") -> None:
        self.key = key
        super().__init__(key, reason, fix=fix)


class Diverged(ElectraError):
    """Training stopped because the numbers no longer mean anything."""

    exit_code = 3


class DataError(_Located):
    """Input text, a vocabulary, shards or a task file that cannot be used."""

    exit_code = 4


class CheckpointError(_Located):
    """A checkpoint or model folder that cannot be trusted."""

    exit_code = 5


class StorageError(CheckpointError):
    """A checkpoint or model folder that the disk did not take or give: full, read-only, gone."""

    exit_code = DataError.exit_code


class Resumable(ElectraError):
    """Work stopped on request after saving; the same command continues it."""

    exit_code = 75


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, of Python's own or of torch's, on a CPU or a GPU; torch need not be imported."""
    messages = ("can't allocate memory", "not enough memory")  # of torch: which one depends on the processor
    on_cpu = isinstance(error, RuntimeError) and any(message in str(error) for message in messages)
    return on_cpu or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def pip_install(extra: str) -> str:
    """The command that adds an extra to this Python; another `pip` would fetch another project of this name."""
    return f"{shlex.quote(sys.executable)} -m pip install 'electra[{extra}]'"


def suggest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` for the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else ""
