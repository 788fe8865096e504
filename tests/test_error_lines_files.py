"""User's errors about folders and files that no test of their room comes to, each made by the fault that it names."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import task_files
import test_interop_tensorflow as checkpoints
import tiny_runs
import tuned_folders
from test_error_lines import Act, pushed, written
from test_interop_tensorflow import entry

from electra import fsio
from electra.checkpoint import folder as run_folder
from electra.checkpoint.lengthening import config_to_resume
from electra.config.load import to_toml
from electra.errors import CheckpointError, ConfigError, DataError, ElectraError
from electra.finetune.model_folder import load_finetuned
from electra.finetune.seed_folder import read_seed
from electra.finetune.task_run import _glue_tasks
from electra.inference.evaluate_file import evaluate_file
from electra.inference.input_rows import rows_of_file
from electra.inference.prediction_files import form_of
from electra.inference.vector_files import require_format
from electra.interop import tensor_bundle
from electra.interop.continuation import _read as read_model
from electra.interop.tensor_bundle import read_bundle
from electra.manifest import FileSum, Manifest
from electra.serve.networks import load_networks
from electra.shards import verification
from electra.shards.build import prepare
from electra.shards.dataset import open_data
from electra.shards.locks import storage
from electra.shards.options import PrepareOptions
from electra.tasks.columns import Columns
from electra.tasks.table_rows import table_rows
from electra.tokenizer.codec import Tokenizer
from electra.tokenizer.train import _train_wordpiece

SQUAD = {"data": [{"paragraphs": [{"context": "a dog sat", "qas": [{"id": "q1", "question": "who"}]}]}]}


def made(folder: Path) -> Path:
    """A folder with rows of a task to evaluate on, and none to train on."""
    task_files.rte(folder)
    (folder / "RTE" / "train.tsv").unlink()
    return folder


def changed_model(tmp: Path, **about: Any) -> None:
    """A fine-tuned folder of version 0.2, which had no sums of its description, with one value changed."""
    tuned_folders.save(tmp / "model", "classify")
    (tmp / "model" / "manifest.json").unlink()
    described = json.loads((tmp / "model" / "task.json").read_text())
    written(tmp / "model" / "task.json", described | {"format": 1, "about": described["about"] | about})
    load_finetuned(tmp / "model")


def evaluated(tmp: Path, kind: Any, name: str, content: Any, **changes: Any) -> None:
    loaded = tuned_folders.loaded(tmp / "model", kind, **changes)
    evaluate_file(loaded, written(tmp / name, content), columns=Columns())


def unreadable_sums(tmp: Path, name: str) -> Manifest:
    """A manifest of one file, which is a FIFO, or lies below a file."""
    os.mkfifo(tmp / "fifo")
    written(tmp / "file", "")
    return Manifest(folder=tmp, files={name: FileSum(0, "")}, error=DataError)


def shard_of_another_count(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    data = tiny_runs.make_data(tmp / "data")
    (data / "manifest.json").unlink()
    facts = json.loads((data / "data.json").read_text())
    split = facts["splits"]["train"]
    for one in (split, split["shards"][0]):
        one["tokens"] += 1
    written(data / "data.json", facts)
    open_data(data)


def index_beyond_its_files(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoints, "entry", lambda array, **place: entry(array, **(place | {"shard": 3})))
    checkpoints.write(tmp / "model.ckpt", {"w": np.zeros(2, np.float32)})
    read_bundle(tmp / "model.ckpt")


def index_without_end(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tensor_bundle, "_MAX_INDEX_BYTES", 4)
    checkpoints.write(tmp / "model.ckpt", {"w": np.zeros(2, np.float32)})
    read_bundle(tmp / "model.ckpt")


def run_without_checkpoints(tmp: Path) -> Path:
    run = written(tmp / "run" / "config.toml", to_toml(tiny_runs.small_config())).parent
    written(run / "run.json", {"format": 1})
    return run


def tokenizer_of_a_later_version(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    text = written(tmp / "text.txt", "\n\n".join(f"the river saw the mountain {number}" for number in range(60)))
    options = PrepareOptions(vocab_size=300, tokenizer="bytes", held_out_share=0.2, min_chars=1)
    prepare([str(text)], out=tmp / "data", options=options, workers=1)
    path = tmp / "data" / "tokenizer" / "tokenizer.json"
    described = json.loads(path.read_text())
    Tokenizer.read(written(path, described | {"pre_tokenizer": {"type": "Whitespace"}}))


def large_parquet(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("electra.tasks.table_rows.MAX_LINES", 2)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b", "c"]}), tmp / "rows.parquet")
    list(table_rows(tmp / "rows.parquet"))


def full_disk_elsewhere(tmp: Path, patch: pytest.MonkeyPatch) -> None:
    with storage(tmp / "data"):
        written(tmp / "file", "")
        (tmp / "file" / "below").mkdir()


def lengthened(tmp: Path, changed: str) -> None:
    run = run_without_checkpoints(tmp)
    written(run / "config.toml", to_toml(tiny_runs.small_config(changed)))
    config_to_resume(run, ["train.steps=24"])


CASES: dict[str, tuple[Act, type[ElectraError], str]] = {
    "tuned: dropout": (lambda tmp, _: changed_model(tmp, dropout=7.0), CheckpointError, "dropout is 7.0, not from 0"),
    "tuned: scale": (lambda tmp, _: changed_model(tmp, scale=0.0), CheckpointError, "scale is 0.0, not above 0"),
    "tuned: beam": (lambda tmp, _: changed_model(tmp, beam=0), CheckpointError, "a setting for questions is below 1"),
    "seed: sums": (
        lambda tmp, _: read_seed(written(tmp / "results.json", {}).parent), CheckpointError, "manifest.json: is miss",
    ),
    "evaluate: text": (
        lambda tmp, _: evaluated(tmp, "classify", "a.txt", "good"), DataError, "a.txt: is not a table with labels",
    ),
    "evaluate: pairs": (
        lambda tmp, _: evaluated(tmp, "classify", "a.csv", "text,label\na,good\n", pairs=True),
        DataError, "CLASSIFY was fine-tuned on pairs of texts .*--pair",
    ),
    "evaluate: answers": (
        lambda tmp, _: evaluated(tmp, "span", "a.json", SQUAD), DataError, "question 'q1' has no answer to score",
    ),
    "predict: file": (
        lambda tmp, _: rows_of_file(tmp / "none.conll", tuned_folders.make_tuned("classify")[1]),
        DataError, "none.conll: is not a file",
    ),
    "predict: Parquet": (
        lambda tmp, patch: (patch.setitem(sys.modules, "pyarrow", None), form_of(tmp / "a.parquet", None)),
        ConfigError, "--out: writing Parquet needs pyarrow",
    ),
    "encode: Parquet": (
        lambda tmp, patch: (patch.setitem(sys.modules, "pyarrow", None), require_format(tmp / "a.parquet")),
        ConfigError, "--out: writing Parquet needs pyarrow",
    ),
    "manifest: FIFO": (
        lambda tmp, _: unreadable_sums(tmp, "fifo").verify(), DataError, "fifo: cannot be read: is not a regular file",
    ),
    "manifest: below a file": (
        lambda tmp, _: unreadable_sums(tmp, "file/x").verify(), DataError, "file/x: cannot be read: Not a directory",
    ),
    "data: FIFO": (
        lambda tmp, _: verification.verify_once(unreadable_sums(tmp, "fifo")), DataError, "cannot be read: is not",
    ),
    "data: gone": (
        lambda tmp, _: verification.verify_once(unreadable_sums(tmp, "none")), DataError, "none: cannot be read: No",
    ),
    "data: counts": (shard_of_another_count, DataError, "00000.tokens: does not fit the counts in data.json"),
    "JSON lines: folder": (lambda tmp, _: fsio.read_json_lines(tmp), DataError, "cannot be read: is a folder"),
    "bundle: shards": (index_beyond_its_files, CheckpointError, "model.ckpt.index: names a file beyond its 1"),
    "bundle: large": (index_without_end, CheckpointError, "has more than 4 bytes, which no list of tensors needs"),
    "bundle: folder": (
        lambda tmp, _: ((tmp / "a.index").mkdir(), read_bundle(tmp / "a")), CheckpointError, "cannot be read: Is a dir",
    ),
    "run: begun": (
        lambda tmp, _: read_model(run_without_checkpoints(tmp), None), CheckpointError, "has no whole checkpoint yet",
    ),
    "serve: begun": (
        lambda tmp, _: load_networks(run_without_checkpoints(tmp)), CheckpointError, "has no whole checkpoint yet",
    ),
    "run: newer": (
        lambda tmp, _: run_folder._needs_manifest(written(tmp / "run.json", {"format": 99}).parent),
        CheckpointError, r"format 99 is newer than this program's \d \(upgrade electra\)",
    ),
    "run: short": (
        lambda tmp, _: lengthened(tmp, "data.length_start=16"),
        ConfigError, "data.length_start: the short sequences of a run that has",
    ),
    "run: small": (
        lambda tmp, _: lengthened(tmp, "train.batch_start=4"),
        ConfigError, "train.batch_start: the small batches of a run that has",
    ),
    "push: package": (
        lambda tmp, patch: (patch.setitem(sys.modules, "huggingface_hub", None), pushed(tmp, patch, public=True)),
        ConfigError, r"needs huggingface_hub \(.*python.* -m pip install",
    ),
    "prepare: elsewhere": (full_disk_elsewhere, DataError, "data: cannot be written: not a directory"),
    "prepare: words": (
        lambda tmp, _: _train_wordpiece([], 9, None, lowercase=True, strip_accents=True), DataError, "no words to",
    ),
    "tokenizer: steps": (tokenizer_of_a_later_version, DataError, "splits text in a way that this Electra does not"),
    "task: rows": (large_parquet, DataError, r"rows.parquet: holds more than .* or 2 rows \(give a part of it\)"),
    "glue: none": (lambda tmp, _: _glue_tasks(made(tmp), ()), DataError, "holds no GLUE task .*give the folder"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_promise_20_a_folder_that_cannot_be_used_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, kind, message = CASES[name]
    with pytest.raises(kind, match=message) as raised:
        act(tmp_path, monkeypatch)
    assert "\n" not in str(raised.value)
