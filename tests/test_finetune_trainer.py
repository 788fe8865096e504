"""Training of trials: against a plain loop over transformers, the order of batches, stops, and what can be learnt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tuning import MINI, PLAIN, STILL, adamw, beside_transformers, healthy, tiny_base, toy
from torch import Tensor

from electra.batches.loader import EXTRA_COLUMNS
from electra.config.finetune import FinetuneConfig
from electra.errors import Diverged, Resumable
from electra.finetune.batching import CHUNK_BATCHES, FlatSequences, batches, pack, step_count, subset
from electra.finetune.head_outputs import head_outputs
from electra.finetune.pretrained import Pretrained
from electra.finetune.task_model import HeadSpec, SpanHeadKind, TaskModel
from electra.finetune.trainer import Trial, train_together
from electra.interop.names import from_transformers, translation
from electra.model.encoder import discriminator_shape
from electra.tasks.rows import Features, Kind
from electra.train.interrupt import Stop

CPU = torch.device("cpu")
Weights = dict[str, Tensor]


def trial(
    base: Pretrained, kind: Kind, features: Features, labels: Sequence[str], config: FinetuneConfig, seed: int
) -> Trial:
    spec = HeadSpec(kind=kind, labels=tuple(labels), dropout=config.dropout, span_head=config.span_head)
    return Trial(base.embeddings, base.encoder, spec, features, config=config, seed=seed, pad_id=0, device=CPU)


def trained(*trials: Trial, metric: Any = lambda tuned: 0.0, stop: Stop | None = None) -> list[Trial]:
    return list(train_together(trials, evaluate=healthy(metric), stop=stop or Stop()))


def weights(one: Trial) -> Weights:
    return {name: tensor.clone() for name, tensor in one.weights().items()}


def same(left: Weights, right: Weights) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


# Independent truth


@pytest.mark.parametrize(
    ("exponent", "loss", "frozen"),
    [
        *((exponent, loss, 0) for exponent in ("intended", "official") for loss in ("sum", "mean")),
        ("intended", "sum", 1),
    ],
)
def test_five_steps_are_a_plain_loop_over_transformers(exponent: str, loss: str, frozen: int, tmp_path: Path) -> None:
    """transformers' ElectraModel, torch's Linear and a hand-written optimizer on the same batches."""
    theirs, base = beside_transformers(tmp_path)
    features, labels = toy("classify", 20)
    config = replace(PLAIN, epochs=2.0, lr=2e-3, layer_decay=0.7, weight_decay=0.05, warmup=0.4)
    clip = 1.0 if loss == "sum" else 1e6  # clipped, the two would be nearly the same
    config = replace(config, layer_decay_exponent=exponent, loss=loss, clip=clip, frozen_layers=frozen)  # type: ignore[arg-type]
    ours = trial(base, "classify", features, labels, config, 3)
    assert ours.steps == 5 == step_count(20, epochs=2.0, batch_size=8)

    dense = torch.nn.Linear(STILL.width, 2)
    dense.load_state_dict({name.removeprefix("out."): value for name, value in ours.network.head.state_dict().items()})
    named = {f"electra.{name}": value for name, value in theirs.named_parameters()}
    named |= {f"head.out.{name}": value for name, value in dense.named_parameters()}
    off = 1 if exponent == "official" else 0
    learning = {name: value for name, value in named.items() if not frozen or ".layer.1." in name or "head." in name}

    def rate(name: str, lr: float) -> float:
        if name.startswith("head."):
            return lr
        if ".layer." in name:
            return lr * 0.7 ** (2 - int(name.split(".layer.")[1].split(".")[0]) + off)
        return lr * 0.7 ** (3 + off)

    losses: list[float] = []
    state: dict[str, tuple[Tensor, Tensor]] = {}
    given = batches(features, steps=5, batch_size=8, seed=3, pad_id=0, grain=1, positions=32)
    for step, batch in enumerate(given):
        size = batch.rows.shape[1] - EXTRA_COLUMNS
        ids, lengths = torch.from_numpy(batch.rows[:, :size]).long(), torch.from_numpy(batch.rows[:, size])
        attended = (torch.arange(size) < lengths[:, None]).long()
        hidden = theirs(input_ids=ids, attention_mask=attended).last_hidden_state
        summed = F.cross_entropy(dense(hidden[:, 0]), torch.from_numpy(batch.targets), reduction="sum")
        (summed if loss == "sum" else summed / 8).backward()
        losses.append(summed.item() / 8)
        lr = 2e-3 * (1 - step / 5) * min(1.0, step / 2)
        adamw(
            learning.items(),
            state,
            lr=lambda name, lr=lr: rate(name, lr),
            clip=clip,
            decay=lambda name: 0.0 if "LayerNorm" in name or name.endswith("bias") else 0.05,
        )

    trained(ours)
    assert [loss for _, loss in ours.curve.losses] == pytest.approx(losses, abs=1e-5)
    table = translation(discriminator_shape(STILL), None)
    expected = from_transformers({name: value.detach() for name, value in named.items() if "head." not in name}, table)
    for name, value in weights(ours).items():
        wanted = named[name].detach() if name.startswith("head.") else expected[name]
        torch.testing.assert_close(value, wanted, atol=1e-5, rtol=1e-4, msg=name)
    start = base.encoder.state_dict()["layers.1.up.weight"]
    assert (weights(ours)["encoder.layers.1.up.weight"] - start).abs().max() > 1e-3, "it moved"


# Seeds


def test_a_seed_says_it_all_and_trials_do_not_touch_each_other() -> None:
    base = tiny_base(replace(MINI, dropout=0.1, attention_dropout=0.1))
    features, labels = toy("classify", 30)
    config = replace(PLAIN, epochs=2.0, dropout=0.1)
    frozen = {name: value.clone() for name, value in base.encoder.state_dict().items()}

    def alone(seed: int) -> Trial:
        return trained(trial(base, "classify", features, labels, config, seed))[0]

    first, again, other = alone(0), alone(0), alone(1)
    assert same(weights(first), weights(again)) and first.curve.losses == again.curve.losses
    assert not same(weights(first), weights(other))
    together = trained(*(trial(base, "classify", features, labels, config, seed) for seed in (0, 1, 2)))
    assert [one.seed for one in together] == [0, 1, 2]
    assert same(weights(together[0]), weights(first)) and same(weights(together[1]), weights(other))
    assert together[1].curve.losses == other.curve.losses
    assert all(torch.equal(value, frozen[name]) for name, value in base.encoder.state_dict().items())


def test_trials_of_other_lengths_come_when_they_are_done() -> None:
    base = tiny_base(MINI)
    features, labels = toy("classify", 16)
    made = [trial(base, "classify", features, labels, replace(PLAIN, epochs=e), 0) for e in (3.0, 1.0, 2.0)]
    calls: list[int] = []
    given = train_together(made, evaluate=lambda tuned: 0.0, stop=Stop(), on_step=lambda done, loss: calls.append(done))
    assert [one.steps for one in given] == [2, 4, 6]
    assert calls == list(range(1, 13))


def test_the_dropout_of_every_visit_is_its_own() -> None:
    features, _ = toy("classify", 12)
    keys = [
        tuple(batch.rows[:, -1].tolist())
        for seed in (0, 1)
        for batch in batches(features, steps=6, batch_size=8, seed=seed, pad_id=0, grain=8, positions=32)
    ]
    flat = [key for batch in keys for key in batch]
    assert len(set(flat)) == len(flat)


# Batches


def numbered(lengths: Sequence[int]) -> Features:
    """Sequences of these lengths; the target is the row's number."""
    ids = [[row % 90 + 5] * size for row, size in enumerate(lengths)]
    return Features(ids=ids, a_lengths=[max(1, size // 2) for size in lengths], targets=np.arange(len(lengths)))


lengths_of_rows = st.lists(st.integers(2, 50), min_size=1, max_size=60)


@given(
    lengths=lengths_of_rows,
    batch_size=st.integers(1, 20),
    steps=st.integers(1, 60),
    seed=st.integers(0, 2**31),
    grain=st.sampled_from([8, 32]),
)
def test_batches(lengths: list[int], batch_size: int, steps: int, seed: int, grain: int) -> None:
    features, positions = numbered(lengths), 50
    batch_size = min(batch_size, len(lengths))
    options: dict[str, Any] = {"batch_size": batch_size, "pad_id": 0, "grain": grain, "positions": positions}
    made = list(batches(features, steps=steps, seed=seed, **options))
    assert len(made) == steps
    visits = np.zeros(len(lengths), int)
    for batch in made:
        length = batch.rows.shape[1] - EXTRA_COLUMNS
        assert len(batch.rows) == len(batch.targets) == batch_size
        assert length <= positions and (length % grain == 0 or length == positions)
        assert length - max(lengths[row] for row in batch.targets) < grain, "no longer than needed"
        for row, target in zip(batch.rows, batch.targets, strict=True):
            ids = features.ids[target]
            assert row[: len(ids)].tolist() == ids and not row[len(ids) : length].any()
            assert row[length : length + 2].tolist() == [len(ids), features.a_lengths[target]]
            visits[target] += 1
        assert visits.max() - visits.min() <= 1, "a pass is over before the next begins"
    more = list(batches(features, steps=steps + 5, seed=seed, **options))
    assert all((a.rows == b.rows).all() for a, b in zip(made, more[:steps], strict=True)), "a prefix of longer training"


def test_each_epoch_visits_each_row_once() -> None:
    features = numbered([3 + row % 40 for row in range(96)])
    made = list(batches(features, steps=36, batch_size=8, seed=5, pad_id=0, grain=8, positions=64))
    orders = []
    for epoch in range(3):
        rows = np.concatenate([batch.targets for batch in made[12 * epoch : 12 * epoch + 12]]).tolist()
        assert sorted(rows) == list(range(96))
        orders.append(rows)
    assert orders[0] != orders[1] != orders[2]
    other = next(batches(features, steps=36, batch_size=8, seed=6, pad_id=0, grain=8, positions=64))
    assert other.targets.tolist() != made[0].targets.tolist()


def test_few_rows_are_not_repeated_in_a_batch() -> None:
    """Sorting many passes over a small set by length would fill batches with copies of one row."""
    features = numbered(range(5, 37))
    for batch in batches(features, steps=4 * CHUNK_BATCHES, batch_size=16, seed=0, pad_id=0, grain=8, positions=64):
        assert len(set(batch.targets.tolist())) == 16


def test_the_order_does_not_depend_on_contents_or_global_generators() -> None:
    one, two = numbered([10] * 40), numbered([10] * 40)
    two = replace(two, ids=[[7] * 10 for _ in two.ids])
    options: dict[str, Any] = {"batch_size": 4, "seed": 9, "pad_id": 0, "grain": 8, "positions": 64}
    short = [batch.targets.tolist() for batch in batches(one, steps=2 * CHUNK_BATCHES, **options)]
    assert short == [batch.targets.tolist() for batch in batches(two, steps=len(short), **options)]
    np.random.seed(3)
    torch.manual_seed(3)
    assert short == [batch.targets.tolist() for batch in batches(one, steps=len(short), **options)]


def test_batches_hold_little_padding() -> None:
    """Real batches are sorted: of random ones, a third would be padding here."""
    random = np.random.default_rng(0)
    lengths = random.integers(5, 128, 2000).tolist()
    made = batches(numbered(lengths), steps=60, batch_size=32, seed=0, pad_id=0, grain=8, positions=128)
    sizes = [(batch.rows[:, -3].sum(), batch.rows.shape[0] * (batch.rows.shape[1] - EXTRA_COLUMNS)) for batch in made]
    assert sum(int(used) for used, _ in sizes) / sum(all_ for _, all_ in sizes) > 0.9


def test_a_sequence_beyond_the_positions_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="33 tokens for a model with 32 positions"):
        pack(FlatSequences.of(numbered([33])), [0], pad_id=0, grain=8, positions=32)
    assert pack(FlatSequences.of(numbered([30])), [0], pad_id=0, grain=8, positions=30).shape == (1, 30 + EXTRA_COLUMNS)


def test_tags_are_padded_with_their_sequences() -> None:
    features = Features(ids=[[2, 9, 3], [2, 9, 9, 9, 3]], a_lengths=[3, 5], targets=[[-1, 4, -1], [-1, 1, -1, 2, -1]])
    batch = next(batches(features, steps=1, batch_size=2, seed=0, pad_id=0, grain=8, positions=32))
    by_size = sorted(zip(batch.rows[:, -3].tolist(), batch.targets.tolist(), strict=True))
    assert by_size == [(3, [-1, 4, -1, *[-1] * 5]), (5, [-1, 1, -1, 2, -1, -1, -1, -1])]


@given(lengths=lengths_of_rows, count=st.integers(0, 70), seed=st.integers(0, 9))
@settings(max_examples=30)
def test_a_subset_is_drawn_by_the_seed(lengths: list[int], count: int, seed: int) -> None:
    features = numbered(lengths)
    chosen = subset(features, count, seed=seed)
    if count == 0 or count >= len(lengths):
        assert chosen is features
        return
    assert isinstance(chosen.targets, np.ndarray)
    rows = chosen.targets.tolist()
    assert len(set(rows)) == len(rows) == count == len(chosen.ids)
    assert chosen.ids == [features.ids[row] for row in rows]
    assert chosen.a_lengths == [features.a_lengths[row] for row in rows]
    assert subset(features, count, seed=seed).ids == chosen.ids


def test_a_subset_has_all_sequences_of_its_rows() -> None:
    """Rows 0 to 9, each of them twice: as it is and swapped."""
    rows = np.tile(np.arange(10), 2)
    features = replace(numbered([5] * 20), rows=rows)
    chosen = subset(features, 4, seed=3)
    assert chosen.rows is not None and isinstance(chosen.targets, np.ndarray)
    assert len(chosen.ids) == 8 and len(set(chosen.rows.tolist())) == 4
    assert rows[chosen.targets].tolist() == chosen.rows.tolist()
    assert subset(features, 10, seed=3) is features


def test_subsets_of_tags_and_of_other_seeds() -> None:
    features = Features(ids=[[n] for n in range(50)], a_lengths=[1] * 50, targets=[[n] for n in range(50)])
    drawn = [subset(features, 10, seed=seed) for seed in range(3)]
    assert all(one.targets == one.ids for one in drawn)
    assert len({str(one.ids) for one in drawn}) == 3


@pytest.mark.parametrize(
    ("rows", "epochs", "batch", "steps"), [(8551, 3, 32, 801), (2490, 10, 32, 778), (5, 1, 8, 1), (100, 0.5, 10, 5)]
)
def test_steps(rows: int, epochs: float, batch: int, steps: int) -> None:
    assert step_count(rows, epochs=epochs, batch_size=batch) == steps


@pytest.mark.parametrize("rates", [(0.3, 0.0), (0.0, 0.3), (0.2, 0.4)])
def test_encoder_dropout_is_fine_tunings_own(rates: tuple[float, float]) -> None:
    """A network built with these rates, and one built without dropout whose fine-tuning sets them."""
    features, labels = toy("classify", 16)
    config = replace(PLAIN, encoder_dropout=rates[0], attention_dropout=rates[1])
    built = trial(
        tiny_base(replace(MINI, dropout=rates[0], attention_dropout=rates[1])), "classify", features, labels, config, 0
    )
    told = trial(tiny_base(MINI), "classify", features, labels, config, 0)
    still = trial(tiny_base(MINI), "classify", features, labels, PLAIN, 0)
    for one in (built, told, still):
        trained(one)
    assert same(weights(built), weights(told)) and not same(weights(told), weights(still))


# On the way


def test_the_weights_are_those_of_the_best_evaluation_or_of_the_last() -> None:
    base = tiny_base(MINI)
    features, labels = toy("classify", 16)
    seen: dict[str, list[Weights]] = {"best": [], "last": []}
    for select in ("best", "last"):
        config = replace(PLAIN, epochs=6.0, select=select, eval_every=3)  # type: ignore[arg-type]
        outputs = iter([10.0, math.nan, 30.0, 20.0] if select == "best" else [1.0, 2.0, 3.0, 0.0])
        one = trial(base, "classify", features, labels, config, 0)

        def metric(tuned: TaskModel, *, outputs: Any = outputs, seen: list[Weights] = seen[select]) -> float:
            seen.append({name: value.detach().clone() for name, value in tuned.named_parameters()})
            return next(outputs)

        trained(one, metric=metric)
        assert [step for step, _ in one.curve.evaluations] == [3, 6, 9, 12]
        assert same(weights(one), seen[select][2 if select == "best" else 3])
        tuned = {name: value.detach() for name, value in one.network.named_parameters()}
        assert same(weights(one), tuned), "the network itself has them"


def test_an_evaluation_that_is_not_a_number_is_never_the_best() -> None:
    base = tiny_base(MINI)
    features, labels = toy("classify", 16)
    outputs = iter([math.nan, 1.0, math.nan])
    one = trial(base, "classify", features, labels, replace(PLAIN, epochs=3.0, select="best", eval_every=2), 0)
    seen: list[Weights] = []

    def metric(tuned: TaskModel) -> float:
        seen.append({name: value.detach().clone() for name, value in tuned.named_parameters()})
        return next(outputs)

    trained(one, metric=metric)
    assert same(weights(one), seen[1])


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 computes it all the same
def test_half_precision_learns_in_full_weights() -> None:
    base = tiny_base(MINI)
    features, labels = toy("classify", 64)
    config = replace(PLAIN, precision="bf16", epochs=6.0, lr=3e-3, layer_decay=1.0, select="best", eval_every=12)
    one = trained(trial(base, "classify", features, labels, config, 0), metric=lambda tuned: -1.0)[0]
    kept = weights(one)
    assert {value.dtype for value in kept.values()} == {torch.float32}
    for name, parameter in one.network.named_parameters():
        assert torch.equal(parameter.detach(), kept[name].to(parameter.dtype)), "the copy of the chosen weights"
    assert one.network.encoder.layers[0].up.weight.dtype == torch.bfloat16
    assert one.network.head.out.weight.dtype == torch.float32  # type: ignore[union-attr]
    assert one.curve.losses[-1][1] < one.curve.losses[0][1] / 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_steps_side_by_side_are_plain_steps() -> None:
    base = tiny_base(MINI)
    features, labels = toy("classify", 96)
    spec = HeadSpec(kind="classify", labels=labels, dropout=0.0)
    cuda = torch.device("cuda", torch.cuda.current_device())

    def made(seed: int, compile: str) -> Trial:
        config = replace(PLAIN, device="cuda", epochs=2.0, compile=compile)  # type: ignore[arg-type]
        return Trial(base.embeddings, base.encoder, spec, features, config=config, seed=seed, pad_id=0, device=cuda)

    plain = [trained(made(seed, "off"))[0] for seed in (0, 1)]
    together = trained(*(made(seed, "on") for seed in (0, 1)))
    for left, right in zip(plain, together, strict=True):
        assert [loss for _, loss in right.curve.losses] == pytest.approx(
            [loss for _, loss in left.curve.losses], rel=1e-3
        )
        for name, value in weights(left).items():
            torch.testing.assert_close(weights(right)[name], value, atol=1e-4, rtol=1e-3, msg=name)


def test_without_evaluations_nobody_is_asked() -> None:
    features, labels = toy("classify", 16)
    one = trial(tiny_base(MINI), "classify", features, labels, PLAIN, 0)

    def metric(tuned: TaskModel) -> float:
        raise AssertionError("asked")

    assert trained(one, metric=metric)[0].curve.evaluations == []


def test_the_curve_has_the_mean_loss_between_entries() -> None:
    base = tiny_base(MINI)
    features, labels = toy("classify", 16)
    fine, coarse = (
        trained(trial(base, "classify", features, labels, replace(PLAIN, epochs=5.0, log_every=every), 0))[0].curve
        for every in (1, 4)
    )
    each = [loss for _, loss in fine.losses]
    assert [step for step, _ in coarse.losses] == [4, 8, 10]
    means = [sum(each[:4]) / 4, sum(each[4:8]) / 4, sum(each[8:]) / 2]
    assert [loss for _, loss in coarse.losses] == pytest.approx(means, rel=1e-6)


def test_a_stop_can_be_continued() -> None:
    features, labels = toy("classify", 16)
    stop = Stop()
    made = [trial(tiny_base(MINI), "classify", features, labels, replace(PLAIN, epochs=e), 0) for e in (1.0, 9.0)]
    given = train_together(made, evaluate=lambda tuned: 0.0, stop=stop)
    assert next(given).steps == 2
    stop.reason = "SIGTERM"
    with pytest.raises(Resumable, match="stopped by SIGTERM, saved; run the same command"):
        next(given)
    assert made[1].step < made[1].steps


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    base = tiny_base(MINI)
    with torch.no_grad():
        base.embeddings.token.weight.fill_(math.nan)
    features, labels = toy("classify", 16)
    with pytest.raises(Diverged, match=r"seed 4, step 1: every gradient .* not finite \(lower lr\)") as failed:
        trained(trial(base, "classify", features, labels, PLAIN, 4))
    assert failed.value.exit_code == 3


def test_one_bad_step_is_skipped_and_not_counted() -> None:
    """One row overflows; the others are learnt from as if it were not there, and the mean loss stays a number."""
    base = tiny_base(MINI)
    features, labels = toy("classify", 32)
    ids = [list(one) for one in features.ids]
    ids[0][1] = 4
    with torch.no_grad():
        base.embeddings.token.weight[4] = math.inf
    one = trial(base, "classify", replace(features, ids=ids), labels, replace(PLAIN, epochs=1.0, log_every=4), 0)
    trained(one)
    assert one.steps == 4 and math.isfinite(one.curve.losses[0][1])
    assert all(value.isfinite().all() for name, value in weights(one).items() if name != "embeddings.token.weight")


# What can be learnt is learnt


@pytest.mark.parametrize(
    ("kind", "head"),
    [*((kind, "joint") for kind in ("classify", "regress", "multilabel", "tag", "span")), ("span", "plain")],
)
def test_a_toy_task_is_learnt(kind: Kind, head: SpanHeadKind) -> None:
    base = tiny_base(MINI)
    features, labels = toy(kind, 512)
    dev, _ = toy(kind, 200, seed=1)
    if head == "plain":  # the signal itself: the token after it takes this head more steps than the joint one
        features, dev = (replace(one, targets=np.array(one.targets) - [1, 1, 0]) for one in (features, dev))
    config = replace(PLAIN, epochs=5.0, batch_size=16, lr=3e-3, layer_decay=1.0, span_head=head)
    one = trained(trial(base, kind, features, labels, config, 0))[0]
    assert dev.targets is not None
    outputs = head_outputs(one.network, dev, pad_id=0, beam=5)
    if kind == "span":
        found = np.stack([outputs["start_at"][:, 0], outputs["end_at"][:, 0, 0]], axis=1)  # type: ignore[call-overload]
        right = (found == np.array(dev.targets)[:, :2]).all(1)
    elif kind == "tag":
        pairs = zip(outputs["scores"], dev.targets, strict=True)
        flat = [(scores.argmax(1), np.array(tags)) for scores, tags in pairs]  # type: ignore[union-attr]
        right = np.concatenate([(best == tags)[tags >= 0] for best, tags in flat])
    else:
        scores, targets = np.asarray(outputs["scores"]), np.asarray(dev.targets)
        if kind == "classify":
            right = scores.argmax(1) == targets
        elif kind == "multilabel":
            right = ((scores > 0) == (targets > 0)).all(1)
        else:
            right = np.abs(scores[:, 0] - targets) < 0.25
    assert right.mean() > 0.95
    assert one.curve.losses[-1][1] < one.curve.losses[0][1] / 4
