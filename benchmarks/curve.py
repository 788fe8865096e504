"""A run's held-out curve beside the official small model's, as an SVG.

    python benchmarks/curve.py RUN/metrics.jsonl --out docs/curve-small.svg

The official points were read off the figure its authors published for the small model on OpenWebText.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from electra.train.telemetry import read_lines

OFFICIAL = {
    "mlm_loss": [
        (1_000, 6.6),
        (4_000, 6.1),
        (8_000, 6.2),
        (12_000, 4.6),
        (20_000, 4.16),
        (30_000, 3.89),
        (50_000, 3.67),
    ],
    "rtd_loss": [
        (1_000, 0.35),
        (4_000, 0.34),
        (8_000, 0.238),
        (12_000, 0.258),
        (20_000, 0.239),
        (30_000, 0.231),
        (50_000, 0.221),
    ],
    "rtd_auc": [
        (1_000, 0.69),
        (4_000, 0.70),
        (10_000, 0.884),
        (12_000, 0.84),
        (20_000, 0.856),
        (30_000, 0.862),
        (50_000, 0.874),
    ],
}
TITLES = {"mlm_loss": "generator: masked LM loss", "rtd_loss": "discriminator: loss", "rtd_auc": "discriminator: AUC"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("metrics", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("curve.svg"))
    args = parser.parse_args()
    plt.rcParams |= {"svg.hashsalt": "electra", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for axis, (key, points) in zip(axes, OFFICIAL.items(), strict=True):
        axis.plot(*zip(*points, strict=True), "o--", color="#999999", markersize=3, label="official, OpenWebText")
        for path in args.metrics:
            rows = [line for line in read_lines(path) if line["kind"] == "eval" and line["step"] > 0]
            axis.plot([r["step"] for r in rows], [r[f"eval/{key}"] for r in rows], label=path.parent.name or "this run")
        axis.set_title(TITLES[key])
        axis.set_xlabel("step")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}k")
    axes[0].legend(frameon=False)
    figure.savefig(args.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
