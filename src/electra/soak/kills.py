"""SIGKILL of `electra` processes, most of them inside a save: run again, the command ends as if nothing had happened.

Half of the kills come from a seam of a save, between two of its writes; the others when something staged is seen, or at
any moment.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from electra.errors import ElectraError
from electra.soak.chains import LONGEST_S, Arena, Chain, attack
from electra.soak.end_state import lost, progress_in
from electra.soak.report import Report
from electra.soak.seams import die_at

OUTCOMES = ("in a save", "elsewhere", "lost", "different", "refused", "traceback", "hang")
KILLS = OUTCOMES[:2]
LONGEST = 6  # kills of one folder before its command may end
WAYS = ("seam", "staged", "seam", "moment")


def run_kills(count: int, arena: Arena, *, seed: int = 0) -> Report:
    """Kill `count` processes, chain after chain over all commands."""
    report = Report(outcomes=OUTCOMES, bad=OUTCOMES[2:])
    return attack(arena, report, count, seed=seed, chain=LONGEST, done=KILLS, one=_Killed)


class _Killed(Chain):
    known: dict[str, int] = {}

    def interrupt(self, nth: int) -> bool:
        """Kill the command, and look whether anything that was there before is gone."""
        way, staged, in_time = WAYS[(self.number + nth) % len(WAYS)], set[str](), True
        if way == "seam":
            child = self.start(die_at(self.chance.randint(1, max(1, self.target.seams // 2))))
            in_time = child.wait(most_s=LONGEST_S)
        else:
            child = self.start()
            child.wait(most_s=self.chance.random() * self.target.seconds * 0.6)
            staged = _staged(self.place)
            if way == "staged":
                in_time = child.wait(most_s=LONGEST_S, until=lambda: bool(_staged(self.place) - staged))
        child.kill()
        if child.code != -signal.SIGKILL or not in_time:
            self.ended_well(child, in_time=in_time)
            return False
        inside = way == "seam" or bool(_staged(self.place) - staged)
        self.counts[KILLS[0] if inside else KILLS[1]] += 1
        return self._nothing_lost()

    def _nothing_lost(self) -> bool:
        try:
            now = progress_in(self.out)
        except ElectraError as problem:
            self.fail("lost", problem)
            return False
        if gone := lost(self.known, now):
            self.fail("lost", gone)
        self.known = now
        return not gone


def _staged(folder: Path) -> set[str]:
    """What lies aside: files and folders of a write that has not ended."""
    found, folders = set(), [str(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.name.startswith((".tmp-", ".next-")) and "time.json" not in entry.name:
                        found.add(entry.path)
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:  # gone meanwhile
            continue
    return found
