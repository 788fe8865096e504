"""A regression's labels: learned around their mean, in any unit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from model_folders import VOCAB
from scipy import stats
from tiny_tuning import PLAIN

from electra.tasks.glue_tasks import TASKS
from electra.tasks.task_data import TaskData, load_table
from electra.tokenizer.codec import Tokenizer

TOKENIZER = Tokenizer(VOCAB)


def numbers(folder: Path, labels: list[float]) -> TaskData:
    """A table with a row for each label, which is also its dev set."""
    path = folder / "numbers.csv"
    path.write_text("text,label\n" + "".join(f"row {at},{label!r}\n" for at, label in enumerate(labels)))
    files = {"train": path, "dev": path}
    return load_table(
        "mine", files, kind="regress", text="text", pair=None, label="label", tokenizer=TOKENIZER, config=PLAIN
    )


@pytest.mark.parametrize(("shift", "unit"), [(2000.0, 5.0), (-1.7e9, 1e7), (80.0, 1e-3), (0.0, 1e-9), (1e100, 1e98)])
def test_an_affine_change_of_labels_leaves_the_targets(shift: float, unit: float, tmp_path: Path) -> None:
    """So that training is the same, and the scores with it; only the errors are in the other unit."""
    plain = np.random.default_rng(0).integers(0, 5, 60).astype(float)
    data = numbers(tmp_path, plain.tolist())
    targets = np.asarray(data.train.targets)
    np.testing.assert_allclose(targets, stats.zscore(plain), rtol=1e-6)
    labels = shift + unit * plain
    other = numbers(tmp_path, labels.tolist())
    np.testing.assert_allclose(np.asarray(other.train.targets), targets, rtol=1e-5)
    np.testing.assert_allclose([other.task.offset, other.task.scale], [labels.mean(), unit * plain.std()], rtol=1e-5)
    noisy = labels + unit * np.random.default_rng(1).normal(size=60)
    assert other.eval_splits["dev"].evaluate is not None
    found = other.eval_splits["dev"].evaluate({"scores": noisy[:, None]})
    spearman, mse = stats.spearmanr(noisy, labels).statistic, np.mean(((noisy - labels) / unit) ** 2)
    assert found.scores["spearman"] == pytest.approx(100 * spearman)
    assert found.scores["mse"] == pytest.approx(mse * unit**2, rel=1e-4) and not found.stuck


def test_stsb_is_scaled_as_published() -> None:
    assert (TASKS["stsb"].offset, TASKS["stsb"].scale) == (0.0, 5.0)


@pytest.mark.parametrize("labels", [[0.0, 5e-324], [1.7e308, -1.7e308], [1.0] * 99 + [1 + 2**-52]])
def test_numbers_at_the_ends_of_the_range_have_a_centre_and_a_spread(labels: list[float], tmp_path: Path) -> None:
    data = numbers(tmp_path, labels)
    assert np.isfinite([data.task.offset, data.task.scale]).all() and data.task.scale > 0
    assert np.isfinite(np.asarray(data.train.targets)).all()
