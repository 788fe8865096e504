"""Whether fused kernels (on a CPU: loops in C++) train as plain operations do: held-out losses after as many steps.

    python benchmarks/quality.py --data DATA --out DIR --preset small --steps 20000
    python benchmarks/quality.py --data DATA --out DIR --preset small --steps 20000 model.layers=6 model.positions=128

Three runs, side by side with --together: fused, and plain with two seeds, which show what chance does. A run that is
there is not made again, so a stopped command goes on. KEY=VALUE settings hold for all three.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from electra.train.telemetry import read_lines

RUNS = {
    "fused, seed 0": ("seed=0",),
    "plain, seed 0": ("seed=0", "train.kernels=plain"),
    "plain, seed 1": ("seed=1", "train.kernels=plain"),
}
FIGURES = ("mlm_loss", "rtd_loss", "rtd_auc")


def folder(out: Path, name: str) -> Path:
    return out / name.replace(", ", "-").replace(" ", "")


def command(args: argparse.Namespace, name: str) -> list[str]:
    given = (f"train.steps={args.steps}", f"evaluate.every={max(1, args.steps // 10)}", *args.overrides, *RUNS[name])
    where = ("--data", str(args.data), "--out", str(folder(args.out, name)), "--preset", args.preset)
    return [sys.executable, "-m", "electra", "pretrain", *where, *given]


def train(args: argparse.Namespace) -> None:
    """All three runs; the first that fails ends the others."""
    at_once = len(RUNS) if args.together else 1
    names = list(RUNS)
    for first in range(0, len(names), at_once):
        running = {name: subprocess.Popen(command(args, name)) for name in names[first : first + at_once]}
        try:
            while any(process.poll() is None for process in running.values()):
                failed = [name for name, process in running.items() if process.poll()]
                if failed:
                    sys.exit(f"{failed[0]}: ended with code {running[failed[0]].returncode}")
                time.sleep(1)
        finally:
            for process in running.values():
                process.terminate()
                process.wait()
        for name, process in running.items():
            if process.returncode:
                sys.exit(f"{name}: ended with code {process.returncode}")


def figures(out: Path, name: str) -> dict[str, float]:
    """The held-out figures at the end of a run."""
    lines = [line for line in read_lines(folder(out, name) / "metrics.jsonl") if line["kind"] == "eval"]
    return {figure: float(lines[-1][f"eval/{figure}"]) for figure in FIGURES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--together", action="store_true", help="all three at once")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    train(args)
    found = {name: figures(args.out, name) for name in RUNS}
    fused, same, other = found.values()
    print("| | " + " | ".join(FIGURES) + " |\n|---|" + "---|" * len(FIGURES))
    for name, row in found.items():
        print(f"| {name} | " + " | ".join(f"{row[figure]:.4f}" for figure in FIGURES) + " |")
    for title, one, two in (("fused, off the plain one of its seed", fused, same), ("plain seeds, apart", other, same)):
        print(f"| {title} | " + " | ".join(f"{100 * (one[f] / two[f] - 1):+.2f} %" for f in FIGURES) + " |")


if __name__ == "__main__":
    main()
