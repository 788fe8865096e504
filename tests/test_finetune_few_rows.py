"""What fine-tuning does for rows of one's own: patience, averages, class weights, the loss from the first step on."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import task_files
import torch
import torch.nn.functional as F
from tiny_tuning import MINI, PLAIN, healthy, tiny_base, toy

from electra.batches.sequences import unpack
from electra.config.load import adjust
from electra.errors import ConfigError
from electra.finetune.batching import FlatSequences, pack
from electra.finetune.class_weights import class_weights
from electra.finetune.suite import notices
from electra.finetune.task_model import HeadSpec, TaskModel
from electra.finetune.trainer import Trial, train_together
from electra.finetune.unfinished import Unfinished
from electra.ops.dispatch import host_ops
from electra.tasks.task_data import TaskData, load_table
from electra.train.interrupt import Stop

CPU = torch.device("cpu")


def trial(scores: list[float], **changes: object) -> tuple[Trial, list[float]]:
    """A trial of 20 steps, and the dev metrics that it will be given."""
    features, labels = toy("classify", 16)
    config = adjust(
        PLAIN, overrides=[f"{key}={value}" for key, value in {"epochs": 10, "eval_every": 2, **changes}.items()]
    )
    base, spec = tiny_base(MINI), HeadSpec(kind="classify", labels=labels)
    one = Trial(base.embeddings, base.encoder, spec, features, config=config, seed=0, pad_id=0, device=CPU)
    return one, scores


@pytest.mark.parametrize(
    ("scores", "steps", "best"),
    [
        ([10, 20, 20, 15, 20, 99], 10, 4),  # three without a better one
        ([10, math.nan, 30, 20, 40, 1, 2, 3], 16, 10),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 20, 20),  # always better: to the end
    ],
)
def test_patience_ends_training_and_the_best_weights_stay(scores: list[float], steps: int, best: int) -> None:
    one, given = trial(scores, patience=3, select="best")
    values = iter(given)
    seen: dict[int, torch.Tensor] = {}

    def metric(tuned: TaskModel) -> float:
        seen[one.step] = next(tuned.parameters()).detach().clone()
        return next(values)

    (ended,) = train_together([one], evaluate=healthy(metric), stop=Stop())
    assert (ended.step, ended.best_step) == (steps, best) and ended.out_of_patience == (steps < 20)
    assert torch.equal(next(ended.network.parameters()).detach(), seen[best])


def test_the_weights_are_the_average_over_the_second_half_of_the_steps() -> None:
    """Beside a twin that trains without averaging; every evaluation of that half is of the average so far."""
    seen: dict[str, list[torch.Tensor]] = {"last": [], "average": []}

    def trained(select: str) -> Trial:
        def metric(tuned: TaskModel) -> float:
            seen[select].append(torch.cat([value.detach().double().flatten() for value in tuned.parameters()]))
            return 0.0

        one, _ = trial([], select=select, eval_every=1, lr=1e-2)
        (ended,) = train_together([one], evaluate=healthy(metric), stop=Stop())
        return ended

    trained("last")
    ended = trained("average")
    assert len(seen["last"]) == ended.steps == 20
    for step, found in enumerate(seen["average"], start=1):
        taken = seen["last"][10:step] or [seen["last"][step - 1]]
        torch.testing.assert_close(found, torch.stack(taken).mean(0), atol=1e-6, rtol=1e-5, msg=f"at step {step}")
    kept = torch.cat([value.detach().double().flatten() for value in ended.network.parameters()])
    assert torch.equal(kept, seen["average"][-1]) and not torch.equal(kept, seen["last"][-1])


def test_a_seed_that_goes_on_remembers_its_patience(tmp_path: Path) -> None:
    scores = [10.0, 20.0, 19.0, 18.0, 17.0, 99.0]
    whole, _ = trial(scores, patience=3, select="best")
    values = iter(scores)
    list(train_together([whole], evaluate=healthy(lambda tuned: next(values)), stop=Stop()))
    first, _ = trial(scores, patience=3, select="best")
    kept, values, stop = Unfinished(tmp_path, {}), iter(scores), Stop()

    def ask(done: int, loss: float) -> None:
        stop.reason = "SIGTERM" if done == 7 else ""

    with pytest.raises(Exception, match="stopped by SIGTERM"):
        list(
            train_together(
                [first], evaluate=healthy(lambda tuned: next(values)), stop=stop, save=kept.save, on_step=ask
            )
        )
    second, _ = trial(scores, patience=3, select="best")
    kept.load(second)
    list(train_together([second], evaluate=healthy(lambda tuned: next(values)), stop=Stop()))
    assert (second.step, second.best_step) == (whole.step, whole.best_step) == (10, 4)
    assert all(torch.equal(value, whole.weights()[name]) for name, value in second.weights().items())


def test_patience_needs_evaluations() -> None:
    with pytest.raises(ConfigError, match="patience: has nothing to wait for: eval_every 0"):
        adjust(PLAIN, overrides=["patience=2"])


def test_the_bar_has_a_loss_from_the_first_step() -> None:
    one, _ = trial([], eval_every=0, log_every=50)
    losses: list[float] = []
    list(
        train_together(
            [one], evaluate=healthy(lambda tuned: 0.0), stop=Stop(), on_step=lambda done, loss: losses.append(loss)
        )
    )
    assert len(losses) == 20 and all(math.isfinite(loss) for loss in losses)
    assert [step for step, _ in one.curve.losses] == [20], "the curve has whole means only"


def unequal(tmp_path: Path, many: int, few: int) -> TaskData:
    lines = [f"{task_files.sentence(at)},{'no' if at < many else 'yes'}" for at in range(many + few)]
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "\n".join(lines) + "\n")
    files = {"train": path, "dev": path}
    tokenizer = tiny_base().tokenizer
    return load_table(
        "mine", files, kind="classify", text="text", pair=None, label="label", tokenizer=tokenizer, config=PLAIN
    )


def test_weights_of_unequal_classes_by_hand(tmp_path: Path) -> None:
    data = unequal(tmp_path, 36, 4)  # nine to one: not strong yet
    assert class_weights(data, "auto") == class_weights(data, "off") == ()
    common, rare = class_weights(data, "on")
    assert rare / common == pytest.approx(9.0) and (36 * common + 4 * rare) / 40 == pytest.approx(1.0)
    theirs = pytest.importorskip("sklearn.utils.class_weight").compute_class_weight
    balanced = theirs("balanced", classes=np.arange(2), y=np.asarray(data.train.targets))
    assert (common, rare) == pytest.approx(tuple(balanced))
    strong = unequal(tmp_path, 40, 4)
    assert len(class_weights(strong, "auto")) == 2
    (line,) = notices(strong, replace(PLAIN, class_weights="auto"), positions=64)
    assert line.startswith("mine: rare classes weigh more, from no x0.55 to yes x5.5 (class_weights=off")


def test_the_loss_of_weighted_classes_is_torchs() -> None:
    base = tiny_base(MINI)
    features, labels = toy("classify", 12)
    spec = HeadSpec(kind="classify", labels=labels, dropout=0.0, class_weights=(0.5, 2.0))
    network = TaskModel(base.embeddings, base.encoder, spec, ops=host_ops())
    packed = pack(FlatSequences.of(features), range(12), pad_id=0, grain=8, positions=32)
    batch, targets = unpack(torch.from_numpy(packed)), torch.from_numpy(np.asarray(features.targets))
    loss, count = network.loss(batch, targets)
    scores = network.predict(batch)["scores"]
    each = F.cross_entropy(scores.double(), targets, reduction="none") * torch.tensor([0.5, 2.0]).double()[targets]
    assert loss.item() == pytest.approx(each.sum().item(), rel=1e-5) and count.item() == 12
    assert "class_weights" not in network.state_dict(), "no part of the model"
