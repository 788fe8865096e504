"""Signals in the first moments of the program: heard before the command line is imported, one line, exit code 75."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tiny_runs import ROOT

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
