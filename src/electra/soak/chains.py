"""One folder whose command is interrupted several times, then ends, and must leave what its uninterrupted twin left."""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from electra.hardware import peak_resident_bytes
from electra.soak.children import Child, import_everything, start
from electra.soak.command_lines import CommandLine, make_inputs
from electra.soak.end_state import differences, end_state
from electra.soak.report import Report
from electra.soak.seams import count_into, save_often

LONGEST_S = 120.0
MOST_FAILURES = 10  # more of them teach nothing


@dataclass(frozen=True, slots=True)
class Target:
    """A command, what it leaves undisturbed, how long that takes and how many seams it passes."""

    line: CommandLine
    twin: dict[str, str]
    seconds: float
    seams: int


@dataclass(frozen=True, slots=True)
class Arena:
    """A folder for a campaign, and the commands to attack."""

    home: Path
    targets: list[Target]


@contextlib.contextmanager
def open_arena(names: Collection[str] = ()) -> Iterator[Arena]:
    """An arena with all commands, or those of these names, each run once undisturbed."""
    import_everything()
    with tempfile.TemporaryDirectory(prefix="electra-soak-") as folder:
        home = Path(folder)
        yield Arena(home, [_measure(line, home) for line in make_inputs(home) if not names or line.name in names])


def _measure(line: CommandLine, home: Path) -> Target:
    counted, began = home / "seams", time.monotonic()
    counted.write_bytes(b"")
    child = start(line.into(line.twin), log=home / "log", fault=count_into(counted))
    if not child.wait(most_s=LONGEST_S) or child.code:
        child.kill()
        raise RuntimeError(f"{line.name} does not work undisturbed: {child.output}")
    return Target(line, end_state(line.twin), time.monotonic() - began, len(counted.read_bytes()))


def attack(
    arena: Arena, report: Report, count: int, *, seed: int, chain: int, done: tuple[str, ...], one: type[Chain]
) -> Report:
    """Make chains of at most this length, command after command, until there are `count` outcomes that are `done`."""
    began, number = time.monotonic(), 0
    each = min(chain, -(-count // len(arena.targets)))
    while (left := count - sum(report.total[kind] for kind in done)) > 0 and len(report.failures) < MOST_FAILURES:
        target = arena.targets[number % len(arena.targets)]
        one(number, target, arena.home / "chain", report, seed=seed).go(min(left, each))
        shutil.rmtree(arena.home / "chain")
        number += 1
    report.seconds, report.peak_bytes = time.monotonic() - began, peak_resident_bytes()
    return report


class Chain:
    """One folder, attacked; a campaign says how, in `interrupt`."""

    def __init__(self, number: int, target: Target, place: Path, report: Report, *, seed: int) -> None:
        self.number, self.target, self.report = number, target, report
        self.place, self.out, self.log = place, place / "out", place / "log"
        self.chance = random.Random(f"{seed} {number}")
        self.counts = report.counts.setdefault(target.line.name, Counter())
        place.mkdir()

    def go(self, most: int) -> None:
        """Interrupt the command up to `most` times, let it end, and compare."""
        for nth in range(most):
            if self._is_there() or not self.interrupt(nth):
                break
        if not self._is_there():
            child = self.start()
            if not self.ended_well(child, in_time=child.wait(most_s=LONGEST_S)):
                return
        if names := [*differences(self.out, self.target.twin), *self._leftovers()]:
            self.fail("different", names)

    def interrupt(self, nth: int) -> bool:
        """Start the command and disturb it; whether it can be done again."""
        raise NotImplementedError

    def start(self, fault: Callable[[], None] = save_often, *, cold: bool = False) -> Child:
        return start(self.target.line.into(self.out), log=self.log, fault=fault, cold=cold)

    def _leftovers(self) -> list[str]:
        """What lies beside the folder although the command has ended."""
        return sorted(path.name for path in self.place.iterdir() if path not in (self.out, self.log))

    def _is_there(self) -> bool:
        return self.target.line.once and self.out.exists()

    def ended_well(self, child: Child, *, in_time: bool) -> bool:
        """Whether a command ended by itself, with exit code 0; a failure otherwise."""
        child.kill()
        if not in_time:
            self.fail("hang", child.output[-300:])
        elif "Traceback" in child.output:
            self.fail("traceback", child.output[-400:])
        elif child.code:
            self.fail("refused", f"exit code {child.code}, {child.output.splitlines()[-1:]}")
        return in_time and child.code == 0

    def fail(self, outcome: str, reason: object) -> None:
        self.counts[outcome] += 1
        self.report.failures.append(f"chain {self.number}, {self.target.line.name}: {outcome}: {reason}"[:600])
