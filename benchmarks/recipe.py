"""Which parts of the recipe matter: short runs, each with one deviation from the official recipe.

    python benchmarks/recipe.py --data DATA --out DIR --steps 12000 official all projection-init ...

Each variant is a run folder under --out; the table at the end compares the held-out figures.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

import electra.pretrain as root
from electra.config.load import load
from electra.config.schema import Config
from electra.model.electra import Bert, Electra, build_model
from electra.model.encoder import Encoder
from electra.model.layers import Embeddings
from electra.train.optim import Update
from electra.train.telemetry import read_lines

DEVIATIONS = ("projection-init", "own-tables", "bias-correction", "packed", "short-schedule")


class CorrectedUpdate(Update):
    """Adam with bias correction: the step counter really counts."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._step.zero_()

    def __call__(self) -> tuple[torch.Tensor, torch.Tensor]:
        self._step += 1
        return super().__call__()


def deviating_model(config: Config, deviations: set[str]) -> Electra | Bert:
    model = build_model(config)
    assert isinstance(model, Electra)
    if "projection-init" in deviations:
        for module in model.modules():
            if isinstance(module, Encoder) and module.project is not None:
                torch.nn.init.normal_(module.project.weight, std=config.model.init_std)
    if "own-tables" in deviations:
        m = config.model
        own = Embeddings(m.vocab_size, m.positions, m.embedding, m.dropout)
        for table in (own.position, own.segment):
            torch.nn.init.normal_(table.weight, std=m.init_std)
        own.token = model.embeddings.token
        model.generator_embeddings = own
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--set", action="append", default=[], help="further key=value for every variant")
    parser.add_argument("variants", nargs="*", default=["official", "all", *DEVIATIONS])
    args = parser.parse_args()
    for name in args.variants:
        deviations = set(DEVIATIONS) if name == "all" else set(name.split("+")) & set(DEVIATIONS)
        decay = 0 if "short-schedule" in deviations else 1_000_000
        changes = [f"train.steps={args.steps}", f"optim.decay_steps={decay}", f"checkpoint.every={args.steps}"]
        changes += ["data.layout=packed"] if "packed" in deviations else []
        config = load("small", overrides=[*changes, "checkpoint.keep=1", *args.set])
        root.build_model = lambda c, d=deviations: deviating_model(c, d)
        root.Update = CorrectedUpdate if "bias-correction" in deviations else Update
        began = time.monotonic()
        root.pretrain(config, data=args.data, out=args.out / name)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    print(f"{'variant':<18}{'step':>7}{'MLM':>8}{'RTD':>8}{'AUC':>7}{'recall':>8}")
    for name in args.variants:
        for line in read_lines(args.out / name / "metrics.jsonl"):
            if line["kind"] == "eval" and line["step"] % 2000 == 0:
                figures = [line[f"eval/{key}"] for key in ("mlm_loss", "rtd_loss", "rtd_auc", "rtd_recall")]
                print(f"{name:<18}{line['step']:>7}" + "".join(f"{value:>8.3f}" for value in figures))


if __name__ == "__main__":
    main()
