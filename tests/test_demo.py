"""`electra demo` from text to report, small; a second run finds everything done."""

from __future__ import annotations

import json
import re
from operator import eq
from pathlib import Path

import pytest
from click.testing import CliRunner

from electra.cli import main
from electra.config.load import load
from electra.demo.demo import FINETUNE, PRETRAIN, _steps_an_epoch, demo
from electra.errors import ConfigError
from electra.finetune.model_folder import load_finetuned
from electra.train.schedule import TimeBudget

PACKAGES = ("numpy", "networkx")


@pytest.mark.slow
def test_end_to_end_and_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    first = demo(out, minutes=0.1, epochs=1, packages=PACKAGES)
    said = capfd.readouterr().err
    assert [line[:3] for line in said.splitlines() if re.match(r"\d/5", line)] == [f"{i}/5" for i in range(1, 6)]
    assert first.report == out / "report.html" and first.chance == 0.5
    shown = json.loads((out / "run" / "demo.json").read_text())
    for key, accuracy in (("pretrained", first.pretrained), ("untrained", first.untrained)):
        gold, given = shown["task"]["gold"], shown[key]["predictions"]
        assert accuracy == pytest.approx(sum(map(eq, given, gold)) / shown["task"]["dev"])
        assert shown[key]["accuracies"] == [shown[key]["accuracy"]] == [accuracy]
    assert shown["ledger"]["steps"] > 0 and shown["ledger"]["real_flops"] > 0
    page = first.report.read_text()
    assert f"{first.pretrained:.1%}" in page and "numpy" in page and str(tmp_path) not in page

    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path != first.report}
    again = demo(out, minutes=0.1, epochs=1, packages=PACKAGES)
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path != first.report}
    assert after == before
    assert (again.auc, again.pretrained, again.untrained) == (first.auc, first.pretrained, first.untrained)
    assert first.report.read_text() == page
    table = CliRunner().invoke(main, ["evaluate", str(out / "tuned")]).output
    assert f"package, pre-trained  accuracy  {100 * first.pretrained:.1f}" in re.sub(" {2,}", "  ", table)
    assert f"package, untrained  accuracy  {100 * first.untrained:.1f}" in re.sub(" {2,}", "  ", table)
    assert load_finetuned(first.tuned).about.labels == ("networkx", "numpy")
    with pytest.raises(ConfigError, match="epochs 1.0, now 2.0"):
        demo(out, minutes=0.1, epochs=2, packages=PACKAGES)
    with pytest.raises(ConfigError, match="train.max_minutes 0.1 -> 0.2"):
        demo(out, minutes=0.2, epochs=1, packages=PACKAGES)


def test_no_time_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["demo", "--out", str(tmp_path / "demo"), "--minutes", "0"])
    assert result.exit_code == 2
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize("epochs", [1, 3, 5])
@pytest.mark.parametrize("rows", [400, 797, 800, 2_403])
def test_one_evaluation_an_epoch(rows: int, epochs: int) -> None:
    steps, every = rows * epochs // FINETUNE.batch_size, _steps_an_epoch(rows, epochs=epochs)
    assert len([step for step in range(1, steps + 1) if step % every == 0 or step == steps]) == epochs


def test_evaluating_the_pretrained_run_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    result = CliRunner().invoke(main, ["evaluate", str(tmp_path / "run")])
    assert result.exit_code == 4 and "has no results.json" in result.output


def test_more_minutes_are_more_steps() -> None:
    """The preset's own number of steps, ten minutes' worth, must not end a longer demo."""
    train = load("tiny", overrides=[*PRETRAIN, "train.max_minutes=60"]).train
    now = 0.0
    budget = TimeBudget(train, elapsed=lambda: now)
    assert budget.total(3, None) is None
    now = 10.0
    assert budget.total(103, None) == pytest.approx(60 * 60 * 10, rel=0.1)  # at ten steps a second
