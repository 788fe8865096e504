"""The losses of pairs against float64 arithmetic by hand, and through a network against transformers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_tuning import CLS, FIRST, MINI, PLAIN, SEP, STILL, beside_transformers, tiny_base

from electra.batches.sequences import Sequences, unpack
from electra.finetune.batching import batches, step_count, subset
from electra.finetune.pair_loss import contrastive_loss, excluded, graded_loss
from electra.finetune.task_model import HeadSpec, TaskModel
from electra.finetune.trainer import Trial, train_together
from electra.ops.dispatch import host_ops
from electra.tasks.rows import Features
from electra.train.interrupt import Stop


def vectors(rows: int, group: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, group, 6, generator=torch.Generator().manual_seed(seed))


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    a, b = one.double(), other.double()
    return float(a @ b / (a.norm() * b.norm()))


def by_hand(given: torch.Tensor, negatives: dict[int, list[tuple[int, int]]], *, scale: float) -> float:
    """The summed cross-entropy where row i has the texts `negatives[i]` (row, place) against it."""
    total = 0.0
    for row, others in negatives.items():
        right = scale * cosine(given[row, 0], given[row, 1])
        wrong = [scale * cosine(given[row, 0], given[at]) for at in others]
        total += math.log(sum(math.exp(one - right) for one in [right, *wrong]))
    return total


@pytest.mark.parametrize("group", [2, 3])
def test_contrastive_loss_by_hand(group: int) -> None:
    given, numbers = vectors(5, group), torch.arange(5 * group).view(5, group)
    negatives = {
        row: [(other, place) for place in range(1, group) for other in range(5) if (other, place) != (row, 1)]
        for row in range(5)
    }
    wanted = by_hand(given, negatives, scale=20.0)
    assert float(contrastive_loss(given, numbers, scale=20.0)) == pytest.approx(wanted, rel=1e-5)
    assert float(contrastive_loss(given, numbers, scale=3.0)) == pytest.approx(by_hand(given, negatives, scale=3.0))


def test_what_is_right_elsewhere_in_the_batch_is_no_negative() -> None:
    """Rows 0 and 1 have one second text; rows 2 and 3 one first text; row 4's second text is the first of row 0."""
    given = vectors(5, 3)
    given[1, 1] = given[0, 1]
    given[3, 0] = given[2, 0]
    given[4, 1] = given[0, 0]
    given[1, 2] = given[0, 1]  # a hard negative of row 1 that is right for rows 0 and 1
    numbers = torch.tensor([[0, 1, 2], [3, 1, 1], [4, 5, 6], [4, 7, 8], [9, 0, -1]])  # row 4 has no hard negative
    negatives = {
        0: [(2, 1), (3, 1), (0, 2), (2, 2), (3, 2)],
        1: [(2, 1), (3, 1), (4, 1), (0, 2), (2, 2), (3, 2)],
        2: [(0, 1), (1, 1), (4, 1), (0, 2), (1, 2), (2, 2), (3, 2)],
        3: [(0, 1), (1, 1), (4, 1), (0, 2), (1, 2), (2, 2), (3, 2)],
        4: [(0, 1), (1, 1), (2, 1), (3, 1), (0, 2), (1, 2), (2, 2), (3, 2)],
    }
    kept = {
        row: [(at % 5, at // 5 + 1) for at, out in enumerate(line) if not out and at != row]
        for row, line in enumerate(excluded(numbers).tolist())
    }
    assert kept == negatives
    assert float(contrastive_loss(given, numbers, scale=20.0)) == pytest.approx(by_hand(given, negatives, scale=20.0))


def test_a_pair_that_stands_twice_in_a_batch_is_not_its_own_negative() -> None:
    given, numbers = vectors(4, 2), torch.arange(8).view(4, 2)
    given[3], numbers[3] = given[0], numbers[0]  # as at the end of an epoch and the beginning of the next
    negatives = {0: [(1, 1), (2, 1)], 1: [(0, 1), (2, 1), (3, 1)], 2: [(0, 1), (1, 1), (3, 1)], 3: [(1, 1), (2, 1)]}
    assert float(contrastive_loss(given, numbers, scale=20.0)) == pytest.approx(by_hand(given, negatives, scale=20.0))
    counted = contrastive_loss(given, torch.arange(8).view(4, 2), scale=20.0)
    assert float(counted) > by_hand(given, negatives, scale=20.0) + math.log(2), "what the numbers are for"
    alone = contrastive_loss(given[:1].repeat(3, 1, 1), numbers[:1].repeat(3, 1), scale=20.0)
    assert float(alone) == 0.0, "a batch of one pair has no negatives"


def test_graded_loss_by_hand() -> None:
    given, scores = vectors(6, 2), torch.tensor([0.0, 5.0, 2.5, 2.5, 1.0, 5.0])
    cosines = [cosine(one[0], one[1]) for one in given]
    inside = 1.0
    for one in range(6):
        for other in range(6):
            if scores[one] > scores[other]:
                inside += math.exp(20.0 * (cosines[other] - cosines[one]))
    found = graded_loss(given, scores[:, None].expand(6, 2), scale=20.0)
    assert float(found) == pytest.approx(6 * math.log(inside), rel=1e-5)
    equal = graded_loss(given.requires_grad_(), torch.ones(6, 2), scale=20.0)
    equal.backward()
    assert equal.item() == 0.0 and given.grad is not None and not given.grad.any(), "one score orders nothing"


def pair_features(rows: int, *, seed: int = 0, graded: bool = False) -> Features:
    """Two sequences of other lengths with the same tokens in another order."""
    random = np.random.default_rng(seed)
    ids = []
    for _ in range(rows):
        body = random.choice(np.arange(FIRST, FIRST + 20), int(random.integers(3, 8)), replace=False).tolist()
        ids += [[CLS, *body, SEP], [CLS, *body[::-1], FIRST + 21, SEP]]
    numbers = np.repeat(random.random(rows), 2).astype(np.float32) if graded else np.arange(2 * rows)
    lengths = [len(one) for one in ids]
    return Features(ids=ids, a_lengths=lengths, targets=numbers, rows=np.repeat(np.arange(rows), 2), group=2)


@pytest.mark.parametrize("graded", [False, True])
def test_a_network_gives_the_loss_of_transformers_means(graded: bool, tmp_path: Path) -> None:
    theirs, base = beside_transformers(tmp_path / "hf", STILL)
    spec = HeadSpec(kind="pairs", group=2, cosine_scale=20.0)
    ours = TaskModel(base.embeddings, base.encoder, spec, ops=host_ops())
    features = pair_features(4, graded=graded)
    length = max(map(len, features.ids))
    ids = torch.tensor([one + [0] * (length - len(one)) for one in features.ids])
    lengths, zeros = torch.tensor([len(one) for one in features.ids]), torch.zeros_like(ids)
    with torch.no_grad():
        states = theirs(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
        means = torch.stack([one[:size].mean(0) for one, size in zip(states, lengths, strict=True)])
        batch = Sequences(ids.int(), lengths.int(), zeros.int(), torch.zeros(len(ids), dtype=torch.int32))
        torch.testing.assert_close(ours.predict(batch)["vectors"], means, atol=1e-5, rtol=1e-4)
        targets = torch.from_numpy(np.asarray(features.targets))
        loss, count = ours.loss(batch, targets)
    wanted = (graded_loss if graded else contrastive_loss)(means.view(4, 2, -1), targets.view(4, 2), scale=20.0)
    assert float(loss) == pytest.approx(float(wanted), rel=1e-3) and float(count) == 4
    assert not list(ours.head.parameters()), "the encoder is all there is"


def test_batches_hold_whole_rows_and_a_dropout_key_for_each_text() -> None:
    features = pair_features(10)
    made = list(batches(features, steps=5, batch_size=4, seed=3, pad_id=0, grain=8, positions=32))
    rows = np.concatenate([one.targets for one in made]).reshape(-1, 2)
    assert (rows[:, 0] % 2 == 0).all() and (rows[:, 1] == rows[:, 0] + 1).all()
    assert np.bincount(rows[:, 0] // 2).tolist() == [2] * 10, "five batches of four are two epochs of ten rows"
    keys = np.concatenate([unpack(torch.from_numpy(one.rows)).keys_B.numpy() for one in made])
    assert len(set(keys.tolist())) == 40
    (first,) = batches(features, steps=1, batch_size=4, seed=3, pad_id=0, grain=8, positions=32)
    assert (first.rows == made[0].rows).all()
    assert step_count(features.count, epochs=2.0, batch_size=4) == 5
    drawn = subset(features, 3, seed=1)
    assert drawn.count == 3 and drawn.group == 2 and len(drawn.ids) == 6


def test_a_trial_on_pairs_learns_and_goes_on_with_the_same_bits() -> None:
    base, device = tiny_base(MINI), torch.device("cpu")
    config = replace(PLAIN, epochs=2.0, lr=3e-3, encoder_dropout=0.1)
    spec = HeadSpec(kind="pairs", group=2, cosine_scale=config.cosine_scale)

    def made() -> Trial:
        features = pair_features(32)
        return Trial(base.embeddings, base.encoder, spec, features, config=config, seed=1, pad_id=0, device=device)

    whole = made()
    assert whole.steps == 8
    assert list(train_together([whole], evaluate=lambda network: 0.0, stop=Stop())) == [whole]
    assert whole.curve.losses[-1][1] < whole.curve.losses[0][1] / 2
    begun, second = made(), made()
    for _ in range(3):
        begun.advance()
    second.go_on(*begun.state())
    assert list(train_together([second], evaluate=lambda network: 0.0, stop=Stop())) == [second]
    assert all(torch.equal(second.weights()[name], value) for name, value in whole.weights().items())
