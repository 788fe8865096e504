"""Threads that wait for each other leave a core to other programs, unless the user has said how they wait."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

ASKED = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}


@pytest.mark.parametrize(
    ("given", "spins"), [({}, "3000"), ({"OMP_WAIT_POLICY": "passive"}, "0"), ({"GOMP_SPINCOUNT": "12345"}, "12345")]
)
def test_how_long_a_thread_spins(given: dict[str, str], spins: str) -> None:
    """As libgomp itself has read it when torch is loaded."""
    own = {key: value for key, value in os.environ.items() if key not in ASKED}
    done = subprocess.run(
        [sys.executable, "-c", "import electra, torch"],
        env=own | given | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    if not found:
        pytest.skip("torch has another OpenMP here")
    assert set(found) == {spins}
