"""A seed that has learned nothing after half of its steps begins again at half the rate."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from sklearn.metrics import log_loss
from tiny_tuning import MINI, PLAIN, tiny_base, toy

from electra.config.finetune import FinetuneConfig
from electra.errors import Resumable
from electra.finetune.guessing import guessing_loss
from electra.finetune.paper_settings import settings, settings_for_rows
from electra.finetune.task_model import HeadSpec, TaskModel
from electra.finetune.trainer import Evaluate, Evaluated, Trial, train_together
from electra.finetune.unfinished import Unfinished
from electra.tasks.rows import Features
from electra.train.interrupt import Stop

CONFIG = replace(PLAIN, epochs=2.0, eval_every=3, select="average", restarts=1)
ANSWERS_ALONE = replace(CONFIG, log_every=100)
"""No loss is read before the end, so that the answers alone decide."""


def made(config: FinetuneConfig) -> Trial:
    features, labels = toy("classify", 48)
    base, spec = tiny_base(MINI), HeadSpec(kind="classify", labels=labels, dropout=0.1)
    device = torch.device("cpu")
    return Trial(base.embeddings, base.encoder, spec, features, config=config, seed=2, pad_id=0, device=device)


def answers(*stuck: bool) -> Evaluate:
    """A metric of which so many first evaluations are stuck, later ones not."""
    left = iter(stuck)
    return lambda network: Evaluated(0.0, stuck=next(left, False))


def trained(trial: Trial, metric: Evaluate) -> tuple[dict[str, torch.Tensor], list[int]]:
    """The weights at the end, and the steps after which it began again."""
    restarts: list[int] = []
    counts: list[int] = []
    (done,) = train_together(
        [trial],
        evaluate=metric,
        stop=Stop(),
        on_step=lambda done, loss: counts.append(done),
        on_restart=lambda trial: restarts.append(trial.step),
    )
    assert counts[-1] == trial.steps and (0 in counts) == bool(restarts), "what a restart throws away is not done"
    return done.weights(), restarts


def test_it_ends_as_one_that_began_at_half_the_rate() -> None:
    trial = made(CONFIG)
    assert trial.steps == 12
    found, restarts = trained(trial, answers(True, True))
    expected, none = trained(made(replace(CONFIG, lr=CONFIG.lr / 2, restarts=0)), answers())
    assert restarts == [6] and none == []
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert [step for step, _ in trial.curve.evaluations] == [3, 6, 9, 12], "of the second beginning alone"
    assert [step for step, _ in trial.curve.losses] == list(range(1, 13))


@pytest.mark.parametrize(
    ("stuck", "again"),
    [([True], []), ([False, True], []), ([False, True, True], [9]), ([True, False, False, True], [])],
)
def test_two_evaluations_in_a_row_decide_from_half_of_the_steps_on(stuck: list[bool], again: list[int]) -> None:
    assert trained(made(ANSWERS_ALONE), answers(*stuck))[1] == again


def test_a_single_evaluation_decides_where_there_is_one() -> None:
    assert trained(made(replace(ANSWERS_ALONE, eval_every=12)), answers(True))[1] == [12]


def test_it_begins_again_as_often_as_asked() -> None:
    for restarts in (0, 1, 2):
        assert trained(made(replace(CONFIG, restarts=restarts)), answers(*[True] * 20))[1] == [6] * restarts


@pytest.mark.parametrize(("lr", "again"), [(1e-8, [30]), (3e-3, [])])
def test_a_training_loss_that_stays_that_of_guessing_decides_too(lr: float, again: list[int]) -> None:
    trial = made(replace(CONFIG, lr=lr, warmup=0.0, epochs=10.0, eval_every=30))
    assert trial.steps == 60
    assert trained(trial, answers())[1] == again


def test_the_loss_of_guessing_is_that_of_the_best_answer_for_all_rows() -> None:
    rng = np.random.default_rng(3)
    rows = Features(ids=[[1]] * 60, a_lengths=[1] * 60)
    classes, weights = rng.choice(3, 60, p=[0.6, 0.3, 0.1]), (0.5, 1.5, 4.0)
    shares = np.bincount(classes) / 60
    found = guessing_loss(replace(rows, targets=classes), HeadSpec(kind="classify", labels=("a", "b", "c")))
    assert found == pytest.approx(log_loss(classes, np.tile(shares, (60, 1))))
    one = HeadSpec(kind="classify", labels=("a", "b", "c"), class_weights=weights)
    answer = minimize(lambda logits: float(weighed(logits, classes, weights)), np.zeros(3))
    assert guessing_loss(replace(rows, targets=classes), one) == pytest.approx(answer.fun, abs=1e-6)
    several = rng.integers(0, 2, (60, 4)).astype(np.float32)
    expected = sum(log_loss(column, np.full(60, column.mean())) for column in several.T)
    assert guessing_loss(replace(rows, targets=several), HeadSpec(kind="multilabel")) == pytest.approx(expected)
    numbers = rng.normal(size=60).astype(np.float32)
    assert guessing_loss(replace(rows, targets=numbers), HeadSpec(kind="regress")) == pytest.approx(numbers.var())
    assert guessing_loss(replace(rows, targets=[[0]] * 60), HeadSpec(kind="tag", labels=("a",))) == 0.0


def weighed(logits: np.ndarray, classes: np.ndarray, weights: tuple[float, ...]) -> torch.Tensor:
    """The mean loss over the rows of one answer for all of them."""
    scores = torch.from_numpy(logits).expand(len(classes), -1)
    weight = torch.tensor(weights, dtype=scores.dtype)
    return F.cross_entropy(scores, torch.from_numpy(classes), weight=weight, reduction="sum") / len(classes)


@pytest.mark.parametrize("stop_after", [4, 5, 8, 14])
def test_stopped_in_either_beginning_it_ends_with_the_same_bits(stop_after: int, tmp_path: Path) -> None:
    whole, _ = trained(made(CONFIG), answers(True, True))
    stop, kept, asked = Stop(), Unfinished(tmp_path, {}), 0

    def metric(network: TaskModel) -> Evaluated:
        nonlocal asked
        asked += 1
        return Evaluated(0.0, stuck=asked <= 2)

    steps = 0

    def count(done: int, loss: float) -> None:
        nonlocal steps
        steps += 1
        stop.reason = "SIGTERM" if steps == stop_after else stop.reason

    with pytest.raises(Resumable):
        list(train_together([made(CONFIG)], evaluate=metric, stop=stop, save=kept.save, on_step=count))
    second = made(CONFIG)
    kept.load(second)
    assert second.restarts == (stop_after > 6) and second.step == stop_after - 6 * second.restarts
    (done,) = train_together([second], evaluate=metric, stop=Stop())
    assert all(torch.equal(done.weights()[name], whole[name]) for name in whole)


@pytest.mark.parametrize("more", [4, 6])
def test_what_is_saved_after_a_restart_replaces_what_was_saved_before(more: int, tmp_path: Path) -> None:
    trial, kept = made(CONFIG), Unfinished(tmp_path, {})
    for steps in (6, more):
        for _ in range(steps):
            trial.advance()
        kept.save(trial)
        if not trial.restarts:
            trial.begin_again()
    second = made(CONFIG)
    kept.load(second)
    assert (second.restarts, second.step) == (1, more)
    assert all(torch.equal(second.weights()[name], tensor) for name, tensor in trial.weights().items())
    assert len(list(tmp_path.rglob("step-*"))) == 1


def test_rows_of_your_own_have_one_restart_and_glue_none() -> None:
    paper = settings("classify", "small", kind="classify")
    assert paper.restarts == 0 == settings("sst2", "small").restarts
    assert settings_for_rows(paper, 1000, kind="classify").restarts == 1


def test_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At an absurd rate both beginnings end with one answer, and both lines say it."""
    from electra.finetune.task_run import Options, finetune_task

    rows = [{"text": f"{word} {place}", "label": word} for place in range(30) for word in ("good", "bad")]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    options = Options(settings=["lr=0.3", "epochs=4", "device=cpu", "precision=fp32", "eval_every=4"])
    model = Path("electra:tiny")
    finetune_task("classify", model=model, out=tmp_path / "out", data=tmp_path / "rows.jsonl", options=options)
    said = capsys.readouterr().err
    assert "seed 0 has learned nothing after 8 of 12 steps: it begins again at half the rate" in said
    assert "STUCK" in said
