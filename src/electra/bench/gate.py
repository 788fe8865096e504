"""`make gpu-test`, or `python -m electra.bench.gate`: may these kernels train? One table, in about eight minutes.

A kernel can pass every unit test and still train wrongly, by a tile that is read too early once in thousands of steps.
So after the GPU tests come 3,000 steps whose gradients are compared with the reference's on the device, 5,000 replays
of one step with equal bits where that is promised, and real steps beside the reference for the time that is left.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import click
import torch
from torch import Tensor

from electra import hardware
from electra.batches.layout import Specials
from electra.batches.loader import Loader, Stream
from electra.batches.order import Cursor
from electra.bench.gradient_check import GradientCheck
from electra.bench.ours import make_our_stepper
from electra.bench.planted_faults import FAULTS, with_fault
from electra.bench.start import start
from electra.config.load import load
from electra.config.schema import Config
from electra.demo.documentation import write_sample
from electra.ops.dispatch import select
from electra.shards.dataset import Prepared, open_data
from electra.train.execution import Execution, plan_execution
from electra.train.schedule import learning_rate

TESTS = Path(__file__).parents[3] / "tests"
TEST_PROCESSES = max(1, min(8, (os.cpu_count() or 2) // 2))
WORST_TILE, WORST_SEQUENCE = 0.5, 0.15
"""Largest relative errors of a healthy run's gradient: of a 64 x 64 tile, and of one sequence at an encoder's input."""
LOSS_BAND = 0.02
"""Largest relative difference of both losses' means beside the reference."""
NORM_BAND = 0.25
"""Largest relative difference of the mean gradient norm, where wrong tiles show first."""
TOGETHER_STEPS = 2_500
"""Later, two healthy runs part: the step at which the discriminator leaves its plateau is chance."""
LR = 1e-4


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table."""

    name: str
    figure: str
    limit: str
    passed: bool


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="A prepared folder; without it, this machine's own docs.")
@click.option("--minutes", type=float, default=8.0, show_default=True, help="To aim at; the last check takes the rest.")
@click.option("--steps", type=click.IntRange(1), default=3000, show_default=True, help="Steps with compared gradients.")
@click.option("--replays", type=click.IntRange(1), default=5000, show_default=True)
@click.option("--plant", type=click.Choice(FAULTS), help="Plant a fault: the gate must fail.")
@click.option("--tests/--no-tests", default=True, show_default=True, help="Run the GPU tests first.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the table here too.")
def command(
    data: Path | None, minutes: float, steps: int, replays: int, plant: str | None, tests: bool, json_file: Path | None
) -> None:
    """May these kernels train? Exit code 1 where one check fails."""
    until = time.monotonic() + 60 * minutes
    device = hardware.device("cuda")
    config = load(preset="small", overrides=["optim.warmup_steps=1000"])
    checks = [run_tests(60 * minutes / 2)] if tests else []
    with tempfile.TemporaryDirectory() as folder:
        prepared = open_data(data or prepare_documentation(Path(folder)))
        config = replace(config, model=replace(config.model, vocab_size=prepared.vocab_size))
        execution = plan_execution(config, device, rows=config.train.batch_size)
        if plant:
            execution = replace(execution, ops=with_fault(execution.ops, plant, device))
        specials = Specials.of(prepared.tokenizer())
        with closing(loader(prepared, config, device)) as batches:
            rows = (batch.rows for batch in batches)
            checks += compare_gradients(config, specials, execution, rows, steps=steps, replays=replays)
            checks += train_both(config, specials, execution, rows, until=until)
    report = table(checks)
    click.echo(report)
    if json_file:
        json_file.write_text(json.dumps([{s: getattr(c, s) for s in Check.__slots__} for c in checks], indent=1))
    sys.exit(0 if all(check.passed for check in checks) else 1)


def run_tests(timeout_s: float) -> Check:
    """Every test that needs a GPU, in several processes: most of their time is compiling."""
    # Without the project's settings: they name plugins that a machine where nothing can be installed may lack.
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-c", os.devnull, "--rootdir", str(TESTS.parent)]
    files = [str(path) for path in sorted(TESTS.glob("test_*.py")) if "gpu" in path.read_text(encoding="utf-8").lower()]
    command += ["-p", "no:cacheprovider", "-W", "ignore", *files]
    until = time.monotonic() + timeout_s
    running = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=TESTS.parent,
            env=os.environ | {"ELECTRA_SHARD": f"{number}/{TEST_PROCESSES}"},
        )
        for number in range(TEST_PROCESSES)
    ]  # fmt: skip
    counts: Counter[str] = Counter()
    for process in running:
        try:
            output, _ = process.communicate(timeout=max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            counts["out of time"] += 1
        last = (output.strip().splitlines() or [""])[-1]
        counts.update({kind: int(count) for count, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", last)})
        if process.returncode not in (0, 1, 5):  # 1: tests failed, 5: none in this shard; else it died
            counts["ended early"] += 1
        if process.returncode not in (0, 5):
            click.echo(output[-3000:])
    passed = set(counts) <= {"passed", "skipped"} and counts["passed"] > 0
    return Check("GPU tests", ", ".join(f"{count} {kind}" for kind, count in counts.items()), "none fails", passed)


def prepare_documentation(folder: Path) -> Path:
    """Shards of the documentation on this machine, with a vocabulary of its own."""
    write_sample(folder)
    command = [sys.executable, "-m", "electra", "prepare", str(folder / "corpus.txt"), "--out", str(folder / "data")]
    subprocess.run([*command, "--vocab-size", "30522"], check=True, stdout=subprocess.DEVNULL)
    return folder / "data"


def loader(prepared: Prepared, config: Config, device: torch.device) -> Loader:
    stream = Stream(prepared.train, config.data, Specials.of(prepared.tokenizer()), seed=config.seed)
    return Loader(stream, Cursor(), batch_size=config.train.batch_size, device=device)


def compare_gradients(
    config: Config, specials: Specials, execution: Execution, rows: Iterator[Tensor], *, steps: int, replays: int
) -> list[Check]:
    """Gradients beside the reference's, and one step's bits again and again."""
    # Drawn with replacement, a position may get three gradients, which torch's gather adds in any order.
    masking = replace(config.masking, policy="without_replacement")
    config = replace(config, optim=replace(config.optim, lr=LR), masking=masking)
    check = GradientCheck(config, specials, execution, next(rows))
    began = time.monotonic()
    for _ in range(steps):
        check.step(next(rows))
    worst, seconds = check.read(), time.monotonic() - began
    differing, promised = check.replay(next(rows), replays)
    return [
        _within(f"worst gradient tile of {steps:,} steps ({seconds:.0f} s)", worst["worst tile"], WORST_TILE),
        _within("worst sequence's gradient at an encoder's input", worst["worst sequence"], WORST_SEQUENCE),
        Check("mean error of a gradient tile", f"{worst['mean tile']:.4f}", "", True),
        Check(f"replays that differ, of {replays:,} ({promised:,} gradients)", str(differing), "0", differing == 0),
    ]


def train_both(
    config: Config, specials: Specials, execution: Execution, rows: Iterator[Tensor], *, until: float
) -> list[Check]:
    """Two runs from the same weights over the same rows, fused and reference, for the time that is left."""
    plain = replace(execution, ops=select("plain", device=execution.device, dtype=execution.dtype))
    fused_step, plain_step = (make_our_stepper(config, one, specials) for one in (execution, plain))
    fused: list[dict[str, float]] = []
    reference: list[dict[str, float]] = []
    while time.monotonic() < until:
        for step in range(100 * len(fused), 100 * len(fused) + 100):
            batch, lr = next(rows), learning_rate(step, optim=config.optim, total=None)
            fused_step(batch, lr)
            plain_step(batch, lr)
        fused.append(fused_step.objective.means(totals := fused_step.read()) | totals)
        reference.append(plain_step.objective.means(totals := plain_step.read()) | totals)
    if len(fused) < 4:
        return [Check("real steps beside the reference", f"{100 * len(fused)}", "time for 400", False)]
    near = min(len(fused), TOGETHER_STEPS // 100)
    checks = []
    for name, band in (("mlm_loss", LOSS_BAND), ("rtd_loss", LOSS_BAND), ("grad_norm", NORM_BAND)):
        off = [
            abs(sum(row[name] for row in fused[part]) / sum(row[name] for row in reference[part]) - 1)
            for part in (slice(near // 2, near), slice(near, None))
            if fused[part]
        ]
        checks.append(
            _within(
                f"mean {name} of real steps {100 * (near // 2):,} to {100 * near:,} beside the reference", off[0], band
            )
        )
        if len(off) > 1:
            checks.append(Check(f"the same, to step {100 * len(fused):,}", f"{off[1]:.4f}", "", True))
    return checks


def table(checks: list[Check]) -> str:
    """The checks as Markdown, with the commit and the machine."""
    facts = hardware.facts()
    gpu = facts["gpus"][0]["name"] if facts["gpus"] else "no GPU"
    lines = [f"Commit {str(facts['git'])[:12]}, {gpu}.", "", "| check | figure | limit | |", "|---|---|---|---|"]
    lines += [f"| {c.name} | {c.figure} | {c.limit} | {'pass' if c.passed else 'FAIL'} |" for c in checks]
    return "\n".join(lines)


def _within(name: str, figure: float, limit: float) -> Check:
    return Check(name, f"{figure:.4f}", f"{limit:g}", figure <= limit)


if __name__ == "__main__":
    start(command)
