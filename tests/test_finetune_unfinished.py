"""A seed that was stopped goes on from its files, in another process's place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_tuning import MINI, PLAIN, tiny_base, toy

from electra.errors import Resumable
from electra.finetune.task_model import HeadSpec, TaskModel
from electra.finetune.trainer import Evaluate, Evaluated, Trial, train_together
from electra.finetune.unfinished import Unfinished
from electra.train.interrupt import Stop

CUDA = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)


def train_to_the_end(trial: Trial, metric: Evaluate) -> None:
    assert list(train_together([trial], evaluate=metric, stop=Stop())) == [trial]


@pytest.mark.parametrize("select", ["best", "average"])
@pytest.mark.parametrize("kind", ["cpu", CUDA])
def test_a_trial_goes_on_where_another_stood(kind: str, select: str, tmp_path: Path) -> None:
    """Through files, after any step; on a GPU as close as two whole runs are, on a CPU the same bits."""
    base, device = tiny_base(MINI), torch.device(kind, 0) if kind == "cuda" else torch.device("cpu")
    features, labels = toy("classify", 48)
    spec = HeadSpec(kind="classify", labels=labels, dropout=0.1)
    config = replace(PLAIN, device=kind, epochs=2.0, select=select, eval_every=3)  # type: ignore[arg-type]

    def made() -> Trial:
        return Trial(base.embeddings, base.encoder, spec, features, config=config, seed=2, pad_id=0, device=device)

    def metric(tuned: TaskModel) -> Evaluated:
        return Evaluated(-float(tuned.head.out.weight.detach().float().abs().sum()), stuck=False)  # type: ignore[union-attr]

    whole = made()
    train_to_the_end(whole, metric)
    for stop_after in (1, 5, 11):
        stop, first = Stop(), made()
        kept = Unfinished(tmp_path / str(stop_after), {"lr": config.lr})

        def count(done: int, loss: float, stop: Stop = stop, limit: int = stop_after) -> None:
            stop.reason = "SIGTERM" if done == limit else stop.reason

        with pytest.raises(Resumable):
            list(train_together([first], evaluate=metric, stop=stop, save=kept.save, on_step=count))
        second = made()
        kept.load(second)
        assert second.step == stop_after
        train_to_the_end(second, metric)
        for name, value in whole.weights().items():
            if kind == "cpu":
                assert torch.equal(second.weights()[name], value), name
            torch.testing.assert_close(second.weights()[name], value, atol=1e-4, rtol=1e-3, msg=name)
        if kind == "cpu":
            assert second.curve == whole.curve
