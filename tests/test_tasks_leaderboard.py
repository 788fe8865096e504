"""Submission files, byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from electra.errors import DataError
from electra.tasks.glue_tasks import TASKS
from electra.tasks.leaderboard import submission_file, write_submission


def test_names_of_all_files() -> None:
    names = [submission_file(task, split) for task in TASKS.values() for split in task.tests]
    expected = "CoLA SST-2 MRPC STS-B QQP MNLI-m MNLI-mm QNLI RTE WNLI AX"
    assert names == [f"{name}.tsv" for name in expected.split()]
    with pytest.raises(ValueError, match="no test split 'dev'"):
        submission_file(TASKS["cola"], "dev")


def test_classes_are_names_for_inference_and_numbers_otherwise(tmp_path: Path) -> None:
    path = write_submission(tmp_path / "new", task=TASKS["cola"], ids=["0", "1"], predictions=["1", "0"])
    assert path.read_bytes() == b"index\tprediction\n0\t1\n1\t0\n"
    path = write_submission(
        tmp_path, task=TASKS["mnli"], split="test_mismatched", ids=["5", "3"], predictions=["neutral", "entailment"]
    )
    assert path.name == "MNLI-mm.tsv" and path.read_bytes() == b"index\tprediction\n5\tneutral\n3\tentailment\n"
    path = write_submission(tmp_path, task=TASKS["ax"], ids=["0"], predictions=["contradiction"])
    assert path.name == "AX.tsv"


def test_similarity_is_clipped_and_has_three_decimals(tmp_path: Path) -> None:
    scores = [float(value) for value in np.array([-0.4, 2.34567, 7.0], np.float32)]
    path = write_submission(tmp_path, task=TASKS["stsb"], ids=["0", "1", "2"], predictions=scores)
    assert path.read_text() == "index\tprediction\n0\t0.000\n1\t2.346\n2\t5.000\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["STS-B.tsv"]


def test_what_would_be_refused_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'2' is not a label of CoLA"):
        write_submission(tmp_path, task=TASKS["cola"], ids=["0"], predictions=["2"])
    with pytest.raises(ValueError, match="not a number"):
        write_submission(tmp_path, task=TASKS["stsb"], ids=["0"], predictions=[float("nan")])
    with pytest.raises(ValueError, match="2 ids, 1 predictions"):
        write_submission(tmp_path, task=TASKS["cola"], ids=["0", "1"], predictions=["1"])
    with pytest.raises(DataError, match="same index"):
        write_submission(tmp_path, task=TASKS["cola"], ids=["0", "0"], predictions=["1", "1"])
    assert list(tmp_path.iterdir()) == []
