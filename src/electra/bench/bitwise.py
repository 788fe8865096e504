"""Whether a change leaves every bit of training as it was: short CPU runs of two source trees, compared by hash.

    python -m electra.bench.bitwise --data DATA --out DIR src other/src

Each tree runs every case below by its own `electra pretrain`; the table shows where losses or weights differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from electra.fsio import read_json_lines

TWO_TOWER = ("generator.kind=two-tower",)
CASES: dict[str, tuple[str, ...]] = {
    "rtd": (),
    "rtd official masks": ("masking.policy=official",),
    "rtd gdes": ("generator.tying=gdes",),
    "rtd all tied": ("generator.tying=all", "generator.width=1.0"),
    "rtd unigram": ("generator.kind=unigram",),
    "rtd temperature": ("generator.temperature=1.5", "generator.disallow_correct=true"),
    "rtd packed": ("data.layout=packed",),
    "rtd micro-batches": ("train.micro_batch=4",),
    "rtd recompute": ("train.recompute=on",),
    "rtd contrastive": ("objective.contrastive_weight=1.0",),
    "rtd rare": ("masking.rare=0.5",),
    "rtd-15": ("objective.name=rtd-15",),
    "mlm": ("objective.name=mlm",),
    "replace-mlm": ("objective.name=replace-mlm",),
    "all-tokens-mlm": ("objective.name=all-tokens-mlm",),
    "electric": ("objective.name=electric", *TWO_TOWER),
    "two-tower": TWO_TOWER,
    "two-stage": ("train.algorithm=two-stage", "generator.width=1.0"),
    "adversarial": ("train.algorithm=adversarial",),
}
ONLY_TINY = ("rtd micro-batches", "rtd recompute", "rtd temperature", "rtd unigram")
BACKENDS = {"cpp": (), "reference": ("train.kernels=plain",)}
COMMON = (
    "train.steps=40", "train.batch_size=8", "optim.warmup_steps=10", "train.log_every=10", "evaluate.sequences=16",
    "train.device=cpu",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a prepared folder")
    parser.add_argument("--out", type=Path, required=True, help="where runs go; finished ones are not run again")
    parser.add_argument("--presets", default="tiny,small")
    parser.add_argument("--precisions", default="fp32")
    parser.add_argument("trees", nargs="+", type=Path, help="folders that hold the package `electra`")
    given = parser.parse_args()
    print("| case | " + " | ".join(f"losses {n} | weights {n}" for n in range(len(given.trees))) + " | equal |")
    print("|---" * (2 + 2 * len(given.trees)) + "|")
    differing = 0
    for preset in given.presets.split(","):
        for precision in given.precisions.split(","):
            for backend, kernels in BACKENDS.items():
                for name, options in CASES.items():
                    if preset != "tiny" and name in ONLY_TINY:
                        continue
                    title = f"{preset}, {name}, {backend}, {precision}"
                    settings = (*COMMON, *options, *kernels, f"train.precision={precision}")
                    found = [run(tree, given.data, given.out, preset, title, settings) for tree in given.trees]
                    differing += len(set(found)) > 1
                    cells = " | ".join(f"{losses} | {weights}" for losses, weights in found)
                    print(f"| {title} | {cells} | {'yes' if len(set(found)) == 1 else 'NO'} |", flush=True)
    sys.exit(1 if differing else 0)


def run(tree: Path, data: Path, out: Path, preset: str, title: str, settings: tuple[str, ...]) -> tuple[str, str]:
    """Hashes of the losses and of the last checkpoint's tensors, from a run of one source tree."""
    tag = hashlib.sha256(str(tree.resolve()).encode()).hexdigest()[:6]
    folder = out / f"{title.replace(', ', '-').replace(' ', '-')}-{tag}"
    command = [sys.executable, "-m", "electra", "pretrain", "--data", str(data), "--out", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [*command, "--preset", preset, *settings], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return "failed", done.stderr.strip().splitlines()[-1][:80]
    lines = read_json_lines(folder / "metrics.jsonl")
    losses = [{k: v for k, v in line.items() if k.startswith(("train/", "eval/", "optim/"))} for line in lines]
    (checkpoint,) = sorted((folder / "checkpoints").glob("step-*"))[-1:]
    weights = hashlib.sha256()
    for path in sorted(checkpoint.glob("*.safetensors")):
        weights.update(path.read_bytes())
    return hashlib.sha256(json.dumps(losses).encode()).hexdigest()[:8], weights.hexdigest()[:8]


if __name__ == "__main__":
    main()
