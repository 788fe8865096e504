"""What int8 costs and brings: `python -m electra.bench.onnx_int8 FOLDER TABLE`.

FOLDER is a classifier that `electra export --format onnx --int8` wrote, TABLE a labelled .csv, .tsv or .jsonl. Both
files classify every row; accuracy, agreement and the time a row are printed, for single rows and for batches of 32.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from electra.display import text_table
from electra.fsio import read_json
from electra.interop.onnx_graph import FILE, INPUTS, INT8_FILE, session
from electra.tasks.tables import read_table
from electra.tokenizer.codec import CONFIG_FILE, Tokenizer

BATCHES = (1, 32)
_TIMED_ROWS = 320


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.argument("table", type=click.Path(path_type=Path, exists=True))
@click.option("--text", default="text", show_default=True)
@click.option("--label", default="label", show_default=True)
@click.option("--json", "as_json", is_flag=True)
def command(folder: Path, table: Path, text: str, label: str, as_json: bool) -> None:
    """Print accuracy and speed of model.onnx and model_quantized.onnx on a table."""
    found = compare(folder, table, text=text, label=label)
    click.echo(json.dumps(found, indent=2) if as_json else _shown(found))


def compare(folder: Path, table: Path, *, text: str = "text", label: str = "label") -> dict[str, Any]:
    """Accuracy, agreement with fp32, size and milliseconds a row of both files."""
    labels = {name: int(number) for number, name in read_json(folder / "config.json")["id2label"].items()}
    rows = read_table(table, text=text, label=label, labels=tuple(labels))
    gold = np.array([labels[str(row.label)] for row in rows])
    tokenizer = Tokenizer.load(folder)
    length = int(read_json(folder / CONFIG_FILE)["model_max_length"])
    ids = [
        [tokenizer.cls_id, *one[: length - 2], tokenizer.sep_id]
        for one in tokenizer.encode_batch([r.text for r in rows])
    ]
    found: dict[str, Any] = {"rows": len(rows)}
    answers: dict[str, NDArray[np.int64]] = {}
    for name in (FILE, INT8_FILE):
        running = session(folder / name)
        logits = np.concatenate(
            [_logits(running, ids[at : at + 32], tokenizer.pad_id) for at in range(0, len(ids), 32)]
        )
        answers[name] = logits.argmax(1)
        found[name] = {
            "megabytes": (folder / name).stat().st_size / 1e6,
            "accuracy": 100 * float((answers[name] == gold).mean()),
            "agreement": 100 * float((answers[name] == answers[FILE]).mean()),
            **{
                f"ms_a_row_{size}": _milliseconds(running, ids[:_TIMED_ROWS], size, tokenizer.pad_id)
                for size in BATCHES
            },
        }
    return found


def _logits(running: Any, ids: list[list[int]], pad_id: int) -> NDArray[np.float32]:
    length = max(map(len, ids))
    ids_BL = np.array([one + [pad_id] * (length - len(one)) for one in ids])
    mask_BL = (np.arange(length) < np.array([[len(one)] for one in ids])).astype(np.int64)
    logits: NDArray[np.float32] = running.run(None, dict(zip(INPUTS, (ids_BL, mask_BL, 0 * ids_BL), strict=True)))[0]
    return logits


def _milliseconds(running: Any, ids: list[list[int]], size: int, pad_id: int) -> float:
    """Of a row, the best of three passes over the rows."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        for at in range(0, len(ids), size):
            _logits(running, ids[at : at + size], pad_id)
        times.append(1e3 * (time.perf_counter() - began) / len(ids))
    return min(times)


def _shown(found: dict[str, Any]) -> str:
    names = [name for name in found if name != "rows"]
    header = ("file", "MB", "accuracy", "agreement", *(f"ms a row, {size} at a time" for size in BATCHES))
    rows = [(name, *(f"{value:.2f}" for value in found[name].values())) for name in names]
    return f"{text_table(header, rows)}\n{found['rows']:,} rows"


if __name__ == "__main__":
    command()
