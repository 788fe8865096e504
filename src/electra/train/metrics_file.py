"""The run's metrics file: `metrics.jsonl` is the truth, the console shows its latest lines."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from electra.fsio import write_atomic
from electra.progress import scaled

FILE = "metrics.jsonl"


class MetricsWriter:
    """Appends one JSON object a line. Lines of steps after the one resumed from are forgotten first."""

    def __init__(self, run: Path, *, step: int) -> None:
        self._path = run / FILE
        earlier = [line for line in read_lines(self._path) if line["step"] <= step] if step else []
        write_atomic(self._path, b"".join(_encode(line) for line in earlier))
        self._out = open(self._path, "ab")  # noqa: SIM115 (kept open for the run)

    def write(self, kind: str, *, step: int, **values: Any) -> None:
        self._out.write(_encode({"kind": kind, "step": step} | values))
        self._out.flush()

    def sync(self) -> None:
        """Make what was written survive a crash of the machine; called before each checkpoint."""
        os.fsync(self._out.fileno())

    def close(self) -> None:
        self._out.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a metrics file; a line cut short by a crash is left out."""
    if not path.exists():
        return []
    lines = []
    for raw in path.read_bytes().split(b"\n"):  # bytes: a line may end inside a character, and text holds other breaks
        try:
            lines.append(json.loads(raw))
        except ValueError:
            continue
    return lines


def _encode(value: dict[str, Any]) -> bytes:
    tidy = {k: _finite(v) for k, v in value.items()}
    return (json.dumps(tidy, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    """NaN and infinity are not JSON: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def status(line: dict[str, float | None]) -> str:
    """The part of a log line that a person watches."""
    names = {"train/loss": "loss", "train/mlm_loss": "mlm", "train/main_loss": "main", "train/rtd_loss": "rtd"}
    parts = [f"{short} {value:.3f}" for key, short in names.items() if (value := line.get(key)) is not None]
    speed, mfu, memory = line["perf/tokens_per_s"], line["perf/mfu"], line["perf/memory_gib"]
    parts.append(f"{scaled(speed or 0.0)} tok/s")
    if mfu is not None:
        parts.append(f"MFU {mfu:.1%}")
    parts.append(f"{memory:.1f} GiB")
    return "  ".join(parts)


def evaluation_line(step: int, figures: dict[str, float]) -> str:
    """The held-out figures in one line."""
    text = f"step {step}: held-out mlm {figures['mlm_loss']:.3f} (accuracy {figures['mlm_accuracy']:.1%})"
    if "main_loss" in figures:
        text += (
            f", main {figures['main_loss']:.3f} (accuracy {figures['main_accuracy']:.1%},"
            f" {figures['restored_accuracy']:.1%} of replaced)"
        )
    if "rtd_loss" in figures:
        text += (
            f", rtd {figures['rtd_loss']:.4f} (AUC {figures['rtd_auc']:.3f}, precision {figures['rtd_precision']:.1%},"
            f" recall {figures['rtd_recall']:.1%}), {figures['replaced_rate']:.1%} replaced"
        )
    return text


def sample_line(sample: dict[str, Any], *, width: int = 24) -> str:
    """The start of a sample: `original->replacement` where the generator changed a token, `!` where it was flagged."""
    tokens = []
    read = sample["replaced"] or sample["masked"]
    probabilities = sample["probabilities"] or [0.0] * len(read)
    for before, after, probability in list(zip(sample["original"], read, probabilities, strict=True))[:width]:
        token = before if before == after else f"{before}->{after}"
        tokens.append(token + ("!" if probability > 0.5 else ""))
    return "  sample: " + " ".join(tokens)
