"""The run's metrics file: `metrics.jsonl` is the truth, the console shows its latest lines."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from electra.errors import CheckpointError, DataError
from electra.fsio import finite, open_file, read_bytes, write_atomic
from electra.jsontext import parse_json
from electra.manifest import FileSum
from electra.progress import scaled

FILE = "metrics.jsonl"
MAX_BYTES = 1 << 30


class MetricsWriter:
    """Appends one JSON object a line. Lines of steps after the one resumed from are forgotten first."""

    def __init__(self, run: Path, *, step: int) -> None:
        self._path = run / FILE
        earlier = [line for line in read_lines(self._path) if line["step"] <= step] if step else []
        content = b"".join(_encode(line) for line in earlier)
        write_atomic(self._path, content)
        self._bytes, self._digest = len(content), hashlib.sha256(content)
        self._out = open(self._path, "ab")  # noqa: SIM115 (kept open for the run)

    def write(self, kind: str, *, step: int, **values: Any) -> None:
        line = _encode({"kind": kind, "step": step} | values)
        self._out.write(line)
        self._out.flush()
        self._bytes += len(line)
        self._digest.update(line)

    def written(self) -> FileSum:
        """The sum of what was written so far, which a checkpoint keeps."""
        return FileSum(self._bytes, self._digest.hexdigest())

    def sync(self) -> None:
        """Make what was written survive a crash of the machine; called before each checkpoint."""
        os.fsync(self._out.fileno())

    def close(self) -> None:
        self._out.close()


def check_lines(run: Path, known: FileSum, *, step: int) -> None:
    """Refuse a metrics file that does not begin with what was there when a checkpoint was saved at `step`."""
    path = run / FILE
    fix = "restore it from a copy, or remove it to do without its lines"
    if not path.exists():
        return
    with open_file(path) as file:
        found = file.read(known.bytes) if known.bytes <= MAX_BYTES else b""
    if FileSum(len(found), hashlib.sha256(found).hexdigest()) != known:
        raise CheckpointError(path, f"is damaged: its lines up to step {step} are not those that were written", fix=fix)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a metrics file, each with a kind and a step; a line that a crash or damage spoiled is left out."""
    if not path.exists():
        return []
    # Bytes: a line may end inside a character, and text holds other breaks.
    parsed = [parse_line(raw, where=path) for raw in read_bytes(path, most=MAX_BYTES).split(b"\n")]
    return [line for line in parsed if line is not None]


def parse_line(raw: bytes, *, where: Path) -> dict[str, Any] | None:
    """The object of one line of a metrics file; None where the writer could not have written it."""
    with contextlib.suppress(DataError):
        line = parse_json(raw, where=where)
        if isinstance(line, dict) and _is_ours(line):
            return line
    return None


def _is_ours(line: dict[str, Any]) -> bool:
    """Whether the writer could have written it: a kind, a step, and figures that are numbers or missing."""
    kind, step = line.get("kind"), line.get("step")
    figures = line.values() if kind in ("train", "eval") else ()
    return (
        isinstance(kind, str)
        and type(step) is int
        and step >= 0
        and all(value is kind or value is None or type(value) in (int, float) for value in figures)
    )


def _encode(value: dict[str, Any]) -> bytes:
    return (json.dumps(finite(value), ensure_ascii=False, allow_nan=False) + "\n").encode()


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
