"""The metrics file survives crashes and resumes; its console lines say what they should."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from electra.train.metrics_file import FILE, MetricsWriter, evaluation_line, read_lines, sample_line, status


def write(run: Path, steps: list[int], *, resume: int = 0) -> None:
    writer = MetricsWriter(run, step=resume)
    for step in steps:
        writer.write("train", step=step, loss=float(step))
    writer.sync()
    writer.close()


def steps(run: Path) -> list[int]:
    return [line["step"] for line in read_lines(run / FILE)]


def test_one_json_object_a_line(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, step=0)
    writer.write("train", step=1, loss=0.5, tokens=128)
    writer.write("sample", step=1, original=["naïve", "北京", "a\nb", "x\u2028y"])
    # Written at once, so a page that reads along sees it.
    raw = (tmp_path / FILE).read_bytes()
    writer.close()
    assert raw.count(b"\n") == 2 and raw.endswith(b"\n") and "北京".encode() in raw
    assert [json.loads(line) for line in raw.split(b"\n")[:-1]] == read_lines(tmp_path / FILE)
    assert read_lines(tmp_path / FILE) == [
        {"kind": "train", "step": 1, "loss": 0.5, "tokens": 128},
        {"kind": "sample", "step": 1, "original": ["naïve", "北京", "a\nb", "x\u2028y"]},
    ]


def test_resuming_forgets_later_steps(tmp_path: Path) -> None:
    write(tmp_path, [0, 10, 20, 20, 30, 40])
    write(tmp_path, [21, 25], resume=20)
    assert steps(tmp_path) == [0, 10, 20, 20, 21, 25]
    write(tmp_path, [26], resume=25)
    assert steps(tmp_path) == [0, 10, 20, 20, 21, 25, 26]


def test_a_fresh_run_starts_a_fresh_metrics_file(tmp_path: Path) -> None:
    write(tmp_path, [0, 10])
    write(tmp_path, [0], resume=0)
    assert steps(tmp_path) == [0]


def test_no_metrics_file_yet(tmp_path: Path) -> None:
    assert read_lines(tmp_path / FILE) == []
    write(tmp_path / "new" / "run", [1])
    assert steps(tmp_path / "new" / "run") == [1]


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, step=0)
    writer.write("eval", step=1, a=math.nan, b=math.inf, c=-math.inf, d=1.5, e=None, f=3)
    writer.write("sample", step=1, probabilities=[0.5, math.nan, 1.0], tokens=["nan"])
    writer.close()
    first, second = read_lines(tmp_path / FILE)
    assert first == {"kind": "eval", "step": 1, "a": None, "b": None, "c": None, "d": 1.5, "e": None, "f": 3}
    assert second["probabilities"] == [0.5, None, 1.0] and second["tokens"] == ["nan"]
    assert b"NaN" not in (tmp_path / FILE).read_bytes()


def test_a_line_cut_anywhere_is_left_out(tmp_path: Path) -> None:
    whole = b'{"kind": "train", "step": 1}\n'
    last = '{"kind": "sample", "step": 2, "original": ["naïve", "北京"]}\n'.encode()
    for cut in range(len(last) - 1):  # also inside a character
        (tmp_path / FILE).write_bytes(whole + last[:cut])
        assert steps(tmp_path) == [1], cut
        write(tmp_path, [2], resume=1)
        assert steps(tmp_path) == [1, 2], "the torn line does not spoil the next one"
    (tmp_path / FILE).write_bytes(whole + last[:-1])
    assert steps(tmp_path) == [1, 2]


def test_status_shows_losses_speed_and_memory() -> None:
    line: dict[str, float | None] = {
        "train/loss": 14.4567,
        "train/mlm_loss": 3.6111,
        "train/rtd_loss": 0.2169,
        "perf/tokens_per_s": 1_440_000.0,
        "perf/mfu": 0.102,
        "perf/memory_gib": 19.94,
    }
    assert status(line) == "loss 14.457  mlm 3.611  rtd 0.217  1.44M tok/s  MFU 10.2%  19.9 GiB"
    line |= {"perf/mfu": None, "perf/tokens_per_s": None}
    del line["train/rtd_loss"]
    assert status(line) == "loss 14.457  mlm 3.611  0 tok/s  19.9 GiB"


def test_evaluation_line() -> None:
    figures = {"mlm_loss": 3.26, "mlm_accuracy": 0.453}
    assert evaluation_line(1000, figures) == "step 1000: held-out mlm 3.260 (accuracy 45.3%)"
    figures |= {"rtd_loss": 0.159, "rtd_auc": 0.936, "rtd_precision": 0.783, "rtd_recall": 0.49, "replaced_rate": 0.09}
    assert evaluation_line(7, figures).endswith("rtd 0.1590 (AUC 0.936, precision 78.3%, recall 49.0%), 9.0% replaced")


def test_sample_line_marks_replacements_and_flags() -> None:
    sample = {
        "original": ["[CLS]", "the", "chef", "cooked", "[SEP]"],
        "masked": ["[CLS]", "[MASK]", "chef", "[MASK]", "[SEP]"],
        "replaced": ["[CLS]", "the", "chef", "ate", "[SEP]"],
        "probabilities": [0.01, 0.2, 0.7, 0.93, 0.5],
    }
    assert sample_line(sample) == "  sample: [CLS] the chef! cooked->ate! [SEP]"
    assert sample_line(sample, width=2) == "  sample: [CLS] the"
    plain = sample | {"replaced": [], "probabilities": []}
    assert sample_line(plain) == "  sample: [CLS] the->[MASK] chef cooked->[MASK] [SEP]"
    with pytest.raises(ValueError, match="zip"):
        sample_line(sample | {"probabilities": [0.1]})
