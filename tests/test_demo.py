"""`electra demo` from text to report, small; a second run finds everything done."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from operator import eq
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from electra.bench.demo_seeds import SeedRow, conclusions
from electra.cli import main
from electra.config.load import load
from electra.demo import documentation
from electra.demo.demo import PRETRAIN, config_of, demo, read_text
from electra.demo.documentation import read_rows
from electra.demo.task import (
    FINETUNE,
    IN_ORDER,
    MIXED_UP,
    PACKAGE,
    SEEDS,
    WORD_ORDER,
    Encoder,
    compare,
    labels_used,
    steps_an_epoch,
    swapped,
    write_word_order,
)
from electra.errors import ConfigError
from electra.finetune.batching import subset
from electra.finetune.model_folder import load_finetuned
from electra.finetune.pretrained import load_pretrained
from electra.finetune.seed_folder import read_predictions
from electra.interop import bundled
from electra.interop.bundled import TINY, present
from electra.tasks.rows import Features
from electra.train.schedule import TimeBudget

PACKAGES = ("numpy", "networkx")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo that has read its text, with fewer rows of the task, and done nothing else."""
    out = tmp_path_factory.mktemp("text") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documentation, "TRAIN_EACH", 32)
        patch.setattr(documentation, "DEV_EACH", 24)
        read_text(out, PACKAGES)
    return out


@pytest.mark.slow
def test_end_to_end_and_again(text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = shutil.copytree(text, tmp_path / "demo")
    first = demo(out, minutes=0.05, epochs=1, packages=PACKAGES, from_zero=True)
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
    again = demo(out, minutes=0.05, epochs=1, packages=PACKAGES, from_zero=True)
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path != first.report}
    assert after == before
    assert (again.auc, again.pretrained, again.untrained) == (first.auc, first.pretrained, first.untrained)
    assert first.report.read_text() == page
    table = CliRunner().invoke(main, ["evaluate", str(out / "tuned")]).output
    assert f"package, pre-trained  accuracy  {100 * first.pretrained:.1f}" in re.sub(" {2,}", "  ", table)
    assert f"package, untrained  accuracy  {100 * first.untrained:.1f}" in re.sub(" {2,}", "  ", table)
    assert load_finetuned(first.tuned).about.labels == ("networkx", "numpy")
    with pytest.raises(ConfigError, match="epochs 1.0, now 2.0"):
        demo(out, minutes=0.05, epochs=2, packages=PACKAGES, from_zero=True)
    with pytest.raises(ConfigError, match="train.max_minutes 0.05 -> 0.2"):
        demo(out, minutes=0.2, epochs=1, packages=PACKAGES, from_zero=True)


def test_no_time_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["demo", "--out", str(tmp_path / "demo"), "--minutes", "0"])
    assert result.exit_code == 2
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize("epochs", [1, 3, 5])
@pytest.mark.parametrize("rows", [400, 797, 800, 2_403])
def test_one_evaluation_an_epoch(rows: int, epochs: int) -> None:
    steps, every = rows * epochs // 16, steps_an_epoch(rows, epochs=epochs, batch_size=16)
    assert len([step for step in range(1, steps + 1) if step % every == 0 or step == steps]) == epochs


def test_with_few_labels_the_score_is_the_mean_of_three_seeds(text: Path, tmp_path: Path) -> None:
    if TINY not in present():
        pytest.skip(f"{TINY} is not in this tree yet")
    write_word_order(tmp_path, passages=text / "sample")
    dev = tmp_path / "task-dev.jsonl"
    dev.write_text("".join(dev.read_text().splitlines(keepends=True)[:16]))
    gold = [label for _, label in read_rows(dev)]
    few = replace(FINETUNE[WORD_ORDER], max_train_rows=8, batch_size=4, length=32)
    given = {"bundled": Encoder(TINY, load_pretrained(Path(TINY)))}
    settings = {"task": WORD_ORDER, "folder": tmp_path, "epochs": 2, "first_seed": 30, "config": few}
    found = compare(given, out=tmp_path / "each", **settings)["bundled"]
    folders = [tmp_path / "each" / "bundled" / f"seed-{seed}" for seed in (30, 31, 32)]
    answers = [list(read_predictions(folder / "dev.jsonl").values()) for folder in folders]
    scores = [sum(map(eq, one, gold)) / len(gold) for one in answers]
    assert found.accuracy == pytest.approx(sum(scores) / 3) and found.accuracies[-1] == pytest.approx(found.accuracy)
    assert len(found.accuracies) == 2 and found.predictions in answers
    assert sum(map(eq, found.predictions, gold)) / len(gold) == sorted(scores)[1]
    at_end = compare(given, out=tmp_path / "end", each_epoch=False, **settings)["bundled"]
    assert at_end == replace(found, accuracies=[], seconds=at_end.seconds), "evaluating on the way changes nothing"


def test_few_labels_are_fewer_than_there_are_and_each_seed_has_its_own() -> None:
    few, whole = FINETUNE[WORD_ORDER], FINETUNE[PACKAGE]
    assert (labels_used(800, config=few), labels_used(64, config=few), labels_used(800, config=whole)) == (128, 64, 800)
    rows = Features(ids=[[number] for number in range(800)], a_lengths=[1] * 800, targets=np.zeros(800, np.int64))
    drawn = [{ids[0] for ids in subset(rows, few.max_train_rows, seed=seed).ids} for seed in range(SEEDS[WORD_ORDER])]
    assert [len(one) for one in drawn] == [128] * 3 and len(set.union(*drawn)) > 256


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


@pytest.mark.slow
def test_it_goes_on_from_the_bundled_model(text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if TINY not in present():
        pytest.skip(f"{TINY} is not in this tree yet")
    out = shutil.copytree(text, tmp_path / "demo")
    found = demo(out, minutes=0.05, epochs=1, packages=PACKAGES)
    assert "electra:tiny, generator and discriminator, goes on" in capfd.readouterr().err
    assert found.bundled is not None and found.auc[0] > 0.7 and found.loss[0] < 0.4, "it begins with trained weights"
    shown = json.loads((out / "run" / "demo.json").read_text())
    assert shown["start"] == TINY and {"pretrained", "bundled", "untrained"} <= shown.keys()
    page = found.report.read_text()
    assert all(f"{score:.1%}" in page for score in (found.pretrained, found.bundled, found.untrained))
    assert "Before adapting" in page and f"{found.loss[0]:.3f} before" in page
    assert shown["task"]["train"] == 64 and shown["task"]["times"] == 3, "it has no 128 rows here"
    assert "3 times, each with labelled passages of its own" in page


def test_without_the_bundled_model_it_names_the_other_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundled, "FOLDER", tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"electra:tiny is not in this installation .electra demo --from-zero"):
        demo(tmp_path / "demo")
    assert not (tmp_path / "demo").exists()


def test_a_key_given_again_counts_and_the_demo_s_own_keys_fit(tmp_path: Path) -> None:
    assert config_of(tmp_path, ["train.steps=700"], from_zero=True)[0].train.steps == 700
    adapts, _ = config_of(tmp_path / "run", ["train.max_minutes=2"], from_zero=False)
    assert adapts.optim.lr == pytest.approx(5e-5) and adapts.data.length == 64 and adapts.train.max_minutes == 2


def test_conclusions_over_seeds() -> None:
    row = SeedRow(seed=10, steps=9, loss=(0.3, 0.2), auc=(0.8, 0.9), untrained=0.4, bundled=0.5, adapted=0.6)
    worse = replace(row, seed=11, loss=(0.3, 0.31), untrained=0.5, adapted=0.3)
    assert row.cells == ["10", "9", "0.3000", "0.2000", "0.8000", "0.9000", "40.0", "50.0", "60.0"]
    above, lower, mean = conclusions([row, worse])
    assert "in 1 of 2 seeds" in above and "in 1 of 2 seeds" in lower
    assert mean.startswith("adapting LOWERS the mean: untrained 45.0") and "bundled 50.0 (std 0.0)" in mean
    assert conclusions([row])[2].startswith("adapting does not lower")


def test_word_order_rows_hold_the_same_words_and_every_second_is_mixed_up(tmp_path: Path) -> None:
    texts = [f"the {word} of a list is the the first number {place}" for place, word in enumerate(["sum", "mean"] * 3)]
    for split in ("train", "dev"):
        rows = "".join(json.dumps({"text": text, "label": "numpy"}) + "\n" for text in texts)
        (tmp_path / f"task-{split}.jsonl").write_text(rows)
    write_word_order(tmp_path / "order", passages=tmp_path)
    made = read_rows(tmp_path / "order" / "task-dev.jsonl")
    assert [label for _, label in made] == [IN_ORDER, MIXED_UP] * 3
    for text, (shown, label) in zip(texts, made, strict=True):
        assert sorted(shown.split()) == sorted(text.split()) and (shown == text) is (label == IN_ORDER)
    assert swapped("a a b", seed=0).split() != ["a", "a", "b"] and swapped("one two", seed=3) == "two one"
