"""SIGTERM, SIGINT and SIGUSR1 at any moment of any command: one line and exit code 75, or done; the state goes on.

Every fourth process is started anew, so that signals also come while Python imports packages. Before it runs a line of
this package, nothing listens: signals are sent from the moment on when the process has asked for them.
"""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

from electra.errors import Resumable
from electra.soak.chains import LONGEST_S, Arena, Chain, attack
from electra.soak.children import Child
from electra.soak.report import Report

OUTCOMES = ("stopped", "done", "silent", "different", "refused", "traceback", "hang")
GOOD = OUTCOMES[:2]
LONGEST = 4  # signals in one folder before its command may end
NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
COLD_EVERY = 4
IMPORTS_S = 5.0  # what a start takes on a slow machine


def run_signals(count: int, arena: Arena, *, seed: int = 0) -> Report:
    """Send `count` signals, chain after chain over all commands."""
    report = Report(outcomes=OUTCOMES, bad=OUTCOMES[2:])
    return attack(arena, report, count, seed=seed, chain=LONGEST, done=GOOD, one=_Signalled)


class _Signalled(Chain):
    def interrupt(self, nth: int) -> bool:
        """Send a signal, and look at what the command says and returns."""
        cold = (self.number + nth) % COLD_EVERY == COLD_EVERY - 1
        child = self.start(cold=cold)
        child.wait(most_s=LONGEST_S, until=lambda: _listens(child))
        longest_s = self.target.seconds + (IMPORTS_S if cold else 0.0)
        child.wait(most_s=self.chance.random() * longest_s)
        child.send(self.chance.choice(NUMBERS))
        in_time = child.wait(most_s=LONGEST_S)
        child.kill()
        if in_time and child.code == Resumable.exit_code and _says_stopped(child):
            self.counts["stopped"] += 1
            return True
        if in_time and child.code is not None and child.code in {-number for number in NUMBERS}:
            self.fail("silent", f"{'cold' if cold else 'warm'}, exit code {child.code}, {child.output[-200:]!r}")
            return False
        if self.ended_well(child, in_time=in_time):
            self.counts["done"] += 1
        return False


def _says_stopped(child: Child) -> bool:
    """Whether one line, the last one, says that the command was stopped and can go on."""
    lines = child.output.splitlines()
    own = [line for line in lines if line.startswith("electra: ")]
    return len(own) == 1 and lines[-1] == own[0] and "stopped" in own[0] and "continue" in own[0]


def _listens(child: Child) -> bool:
    """Whether a process has a handler for SIGUSR1, which Python itself has not; without /proc, after a while."""
    try:
        caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{child.pid}/status").read_text())
    except OSError:
        time.sleep(IMPORTS_S)
        return True
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGUSR1 - 1) & 1)
