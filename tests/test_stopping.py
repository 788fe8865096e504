"""Signals in the first moments of the program: heard before the command line is imported, one line, exit code 75."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from tiny_runs import ROOT

from electra.cli import main
from electra.errors import DataError

EARLY = """
import os, signal, sys
import electra.__main__ as program
assert "click" not in sys.modules and "electra.cli" not in sys.modules
class Hear:
    def find_spec(self, name, path=None, target=None):
        if name == "electra.cli":
            os.kill(os.getpid(), signal.Signals[sys.argv[1]])
sys.meta_path.insert(0, Hear())
program.main()
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_promise_11_a_signal_before_the_imports_is_one_line(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY, name],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 75, done.stderr
    assert done.stderr == f"electra: stopped by {name}; the same command continues where it can\n"


@pytest.mark.parametrize("error", [ValueError("could not determine the shape"), DataError("shard", "is damaged")])
def test_promise_11_a_signal_that_becomes_another_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    """As safetensors does: it asks torch for a shape, and whatever is raised meanwhile becomes a ValueError."""

    def read(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise error from None

    monkeypatch.setattr("electra.config.load.load", read)
    with pytest.raises(SystemExit) as ended:
        main(["config", "show"])
    assert ended.value.code == 75
    assert capsys.readouterr().err == "electra: stopped by SIGTERM; the same command continues where it can\n"
