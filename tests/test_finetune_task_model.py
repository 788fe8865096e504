"""The network that is fine-tuned: losses, answers and hidden states beside independent expressions; learning rates."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from model_folders import SIZE
from tiny import ragged_rows
from tiny_tuning import STILL, adamw, beside_transformers
from torch import Tensor

from electra.batches.sequences import Sequences, unpack
from electra.config.finetune import FinetuneConfig
from electra.config.schema import ModelConfig
from electra.errors import ConfigError
from electra.finetune.task_model import HeadSpec, TaskModel, answerable, depth_scale, freeze
from electra.interop.network import Network
from electra.model.electra import initialise
from electra.model.heads import SpanHead
from electra.ops.dispatch import host_ops
from electra.tasks.rows import Kind
from electra.train.optim import Update
from electra.train.state import Master

transformers = pytest.importorskip("transformers")

CPU = torch.device("cpu")
LENGTH, ROWS = 16, 5
LABELS: dict[Kind, tuple[str, ...]] = {
    "classify": ("a", "b", "c"),
    "multilabel": ("a", "b", "c", "d"),
    "regress": (),
    "tag": ("O", "B-X", "I-X"),
    "span": (),
}
KINDS = tuple(LABELS)


def network(
    kind: Kind,
    *,
    config: ModelConfig = STILL,
    dropout: float = 0.0,
    offset: float = 0.0,
    scale: float = 1.0,
    seed: int = 1,
) -> TaskModel:
    """A network whose every tensor is random, norms and biases included."""
    parts = Network(config, None, ops=host_ops())
    initialise(parts, std=0.02, seed=seed)
    spec = HeadSpec(kind=kind, labels=LABELS[kind], offset=offset, scale=scale, dropout=dropout)
    tuned = TaskModel(parts.embeddings, parts.encoder, spec, ops=host_ops(), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.8 / config.width**0.5)
    return tuned


def pairs(count: int = ROWS, *, seed: int = 0) -> Sequences:
    return unpack(ragged_rows(count, length=LENGTH, vocab=SIZE.vocab_size, seed=seed))


def targets_for(kind: Kind, batch: Sequences, *, seed: int = 0) -> Tensor:
    random = np.random.default_rng(seed)
    rows, length = batch.ids_BL.shape
    if kind == "classify":
        return torch.from_numpy(random.integers(0, 3, rows))
    if kind == "multilabel":
        return torch.from_numpy(random.integers(0, 2, (rows, 4)).astype(np.float32))
    if kind == "regress":
        return torch.from_numpy(random.random(rows).astype(np.float32))
    if kind == "tag":
        tags = random.integers(-1, 3, (rows, length))
        tags[np.arange(length)[None, :] >= batch.lengths_B.numpy()[:, None]] = -1
        return torch.from_numpy(tags)
    found = torch.zeros(rows, 3, dtype=torch.int64)
    for row, inside in enumerate(batch.segments_BL > 0):
        places = inside.nonzero().flatten().tolist()
        start, end = sorted(random.choice(places, 2).tolist())
        found[row] = torch.tensor((0, 0, 1) if row == 1 else (start, end, 0))
    return found


# Losses


def plain_loss(kind: Kind, tuned: TaskModel, batch: Sequences, targets: Tensor) -> tuple[float, int]:
    """The loss, one row after the other, with nothing but softmax, log and sums."""
    hidden = tuned.hidden(batch)
    if kind == "span":
        return sum(naive_span_loss(tuned, hidden[row], batch, row, targets[row]) for row in range(len(targets))), ROWS
    head = tuned.head.out  # type: ignore[union-attr]
    total, count = 0.0, 0
    for row, target in enumerate(targets):
        if kind == "tag":
            for place in range(hidden.shape[1]):
                if target[place] >= 0:
                    scores = hidden[row, place] @ head.weight.T + head.bias
                    total -= math.log(scores.softmax(0)[target[place]])
                    count += 1
            continue
        scores = hidden[row, 0] @ head.weight.T + head.bias
        count += 1
        if kind == "classify":
            total -= math.log(scores.softmax(0)[target])
        elif kind == "regress":
            total += float(scores[0] - target) ** 2
        else:
            for score, on in zip(scores.sigmoid().tolist(), target.tolist(), strict=True):
                total -= math.log(score if on else 1 - score)
    return total, count


def naive_span_loss(tuned: TaskModel, hidden_LD: Tensor, batch: Sequences, row: int, target: Tensor) -> float:
    """The joint head as it is published: [h_start; h_i] laid side by side, -1000 outside of passage and [CLS]."""
    head = tuned.head
    assert isinstance(head, SpanHead)
    start, end, null = target.tolist()
    length = int(batch.lengths_B[row])
    first = int(batch.segments_BL[row].argmax())
    allowed = {0, *range(first, length)}
    mask = torch.tensor([0.0 if place in allowed else -1000.0 for place in range(len(hidden_LD))])
    starts = hidden_LD @ head.start.weight[0] + head.start.bias + mask
    side_by_side = torch.stack([torch.cat((hidden_LD[start], hidden_LD[place])) for place in range(len(hidden_LD))])
    ends = head.end(F.gelu(head.end_inner(side_by_side))).squeeze(-1) + mask
    meant = sum(share * state for share, state in zip(starts.softmax(0), hidden_LD, strict=True))
    odds = head.null(F.gelu(head.null_inner(torch.cat((hidden_LD[0], meant))))).sigmoid()
    answerability = -math.log(odds if null else 1 - odds)
    return -(math.log(starts.softmax(0)[start]) + math.log(ends.softmax(0)[end])) / 2 + 0.5 * answerability


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_loss_is_the_sum_over_what_is_predicted(kind: Kind) -> None:
    tuned, batch = network(kind), pairs()
    targets = targets_for(kind, batch)
    loss, count = tuned.loss(batch, targets)
    expected, predictions = plain_loss(kind, tuned, batch, targets)
    assert loss.item() == pytest.approx(expected, rel=2e-5)
    assert count.item() == predictions


@torch.no_grad()
def test_a_loss_by_hand() -> None:
    """Head weights 0, bias (0, ln 3): class 1 has probability 3/4, whatever the text."""
    tuned, batch = network("classify"), pairs(2)
    tuned.head.out.weight.zero_()  # type: ignore[union-attr]
    tuned.head.out.bias.copy_(torch.tensor([0.0, math.log(3), -1e9]))  # type: ignore[union-attr]
    loss, count = tuned.loss(batch, torch.tensor([1, 0]))
    assert loss.item() == pytest.approx(-math.log(3 / 4) - math.log(1 / 4), rel=1e-6) and count.item() == 2


@torch.no_grad()
def test_regression_learns_the_scaled_label_and_answers_in_its_unit() -> None:
    tuned, batch = network("regress", scale=5.0), pairs(2)
    tuned.head.out.weight.zero_()  # type: ignore[union-attr]
    tuned.head.out.bias.fill_(0.5)  # type: ignore[union-attr]
    loss, _ = tuned.loss(batch, torch.tensor([4.0, 2.0]) / 5)
    assert loss.item() == pytest.approx((0.5 - 0.8) ** 2 + (0.5 - 0.4) ** 2, rel=1e-6)
    assert tuned.predict(batch)["scores"].tolist() == [[2.5], [2.5]]


@torch.no_grad()
def test_a_regression_far_from_0_keeps_its_answers_apart() -> None:
    plain, far = (network("regress", offset=offset, scale=3.0) for offset in (0.0, 1.7e9))
    scores, moved = (one.predict(pairs(6))["scores"].double() for one in (plain, far))
    assert len(set(scores.flatten().tolist())) == 6, "answers that differ by less than fp32 can tell at 1.7e9"
    torch.testing.assert_close(moved - 1.7e9, scores, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_padding_changes_no_loss_and_no_answer() -> None:
    rows = ragged_rows(4, length=12, vocab=SIZE.vocab_size, seed=3)
    wider = torch.cat((rows[:, :12], torch.zeros(4, 8, dtype=torch.int32), rows[:, 12:]), dim=1)
    for kind in KINDS:
        tuned = network(kind)
        targets = targets_for(kind, unpack(rows))
        padded = F.pad(targets, (0, 8), value=-1) if kind == "tag" else targets
        assert tuned.loss(unpack(wider), padded)[0].item() == pytest.approx(
            tuned.loss(unpack(rows), targets)[0].item(), rel=1e-5
        )


# Spans


@torch.no_grad()
def test_the_beam_is_brute_force() -> None:
    """Every pair of tokens scored one by one, the best kept."""
    tuned, batch = network("span"), pairs(seed=4)
    head = tuned.head
    assert isinstance(head, SpanHead)
    beam = 4
    outputs = tuned.predict(batch, beam=beam)
    hidden = tuned.hidden(batch)
    mask = torch.where(answerable(batch), 0.0, -1000.0)
    for row in range(ROWS):
        starts = (head.start(hidden[row]).squeeze(-1) + mask[row]).log_softmax(0)
        table = {}
        for start, end in itertools.product(range(LENGTH), repeat=2):
            inner = F.gelu(head.end_inner(torch.cat((hidden[row, start], hidden[row, end]))))
            table[start, end] = head.end(inner).item() + mask[row, end].item()
        best = starts.argsort(descending=True)[:beam].tolist()
        assert outputs["start_at"][row].tolist() == best
        torch.testing.assert_close(outputs["starts"][row], starts[best], atol=1e-5, rtol=1e-5)
        for place, start in enumerate(best):
            ends = torch.tensor([table[start, end] for end in range(LENGTH)]).log_softmax(0)
            chosen = ends.argsort(descending=True)[:beam].tolist()
            assert outputs["end_at"][row, place].tolist() == chosen
            torch.testing.assert_close(outputs["ends"][row, place], ends[chosen], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_plain_head_is_brute_force() -> None:
    """Loss, beam and no-answer score of the head that transformers has, from its two columns of logits."""
    parts, batch = network("span"), pairs(seed=4)
    tuned = TaskModel(parts.embeddings, parts.encoder, HeadSpec(kind="span", span_head="plain"), ops=host_ops(), seed=2)
    targets, outputs, hidden = targets_for("span", batch), tuned.predict(batch, beam=3), tuned.hidden(batch)
    total = 0.0
    for row in range(ROWS):
        head = tuned.head.out  # type: ignore[union-attr]
        inside = [0, *range(int(batch.segments_BL[row].argmax()), int(batch.lengths_B[row]))]
        starts, ends = (hidden[row] @ head.weight.T + head.bias).T
        shares = starts[inside].log_softmax(0), ends[inside].log_softmax(0)
        start, end, _ = targets[row].tolist()
        total -= float(shares[0][inside.index(start)] + shares[1][inside.index(end)]) / 2
        for name, share in zip(("start", "end"), shares, strict=True):
            best = share.argsort(descending=True)[:3]
            found = outputs[f"{name}_at"][row], outputs[f"{name}s"][row]
            for at, score in zip(*(found if name == "start" else (found[0][1], found[1][1])), strict=True):
                if at.item() not in inside:  # a passage shorter than the beam
                    assert score.item() < -900
                    continue
                assert at.item() in [inside[place] for place in best]
                assert score.item() == pytest.approx(share[inside.index(int(at))].item(), abs=1e-5)
        spans = [starts[i] + ends[j] for i, j in itertools.combinations_with_replacement(inside[1:], 2)]
        assert outputs["null"][row].item() == pytest.approx(float(starts[0] + ends[0] - max(spans)), abs=1e-5)
    loss, count = tuned.loss(batch, targets)
    assert loss.item() == pytest.approx(total, rel=2e-5) and count.item() == ROWS


@torch.no_grad()
def test_a_beam_beyond_the_length_gives_every_token_once() -> None:
    outputs = network("span").predict(pairs(2), beam=99)
    assert outputs["ends"].shape == (2, LENGTH, LENGTH)
    assert outputs["start_at"].sort().values.tolist() == [list(range(LENGTH))] * 2


def test_where_an_answer_may_be() -> None:
    """[CLS] q q [SEP] p p [SEP] and two of padding: the passage, its [SEP], and [CLS] for no answer."""
    row = torch.tensor([[2, 7, 8, 3, 9, 10, 3, 0, 0, 7, 4, 123]], dtype=torch.int32)
    assert answerable(unpack(row)).int().tolist() == [[1, 0, 0, 0, 1, 1, 1, 0, 0]]


# The encoder, gradients, dropout


@pytest.mark.parametrize("embedding", [32, 64])
@torch.no_grad()
def test_hidden_states_are_those_of_transformers(embedding: int, tmp_path: Path) -> None:
    """Padded pairs through the folder that transformers loads."""
    theirs, base = beside_transformers(tmp_path, replace(SIZE, embedding=embedding))
    tuned = TaskModel(base.embeddings, base.encoder, HeadSpec(kind="classify", labels=("a", "b")), ops=host_ops())
    batch = pairs(6, seed=8)
    assert len(set(batch.lengths_B.tolist())) > 2, "rows of several lengths"
    attended = torch.arange(LENGTH)[None, :] < batch.lengths_B[:, None]
    expected = theirs(
        input_ids=batch.ids_BL.long(), token_type_ids=batch.segments_BL.long(), attention_mask=attended.long()
    ).last_hidden_state
    assert expected.std() > 0.1
    torch.testing.assert_close(tuned.hidden(batch)[attended], expected[attended], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_reaches_every_parameter(kind: Kind) -> None:
    tuned, batch = network(kind), pairs()
    master = Master(tuned, compute=torch.float32, device=CPU)
    loss, _ = tuned.loss(batch, targets_for(kind, batch))
    loss.backward()
    moved = {
        name for name, parameter in tuned.named_parameters() if parameter.grad is not None and parameter.grad.any()
    }
    master.collect(first=True)  # asserts that each has one
    nothing = {name for name, _ in tuned.named_parameters()} - moved
    assert nothing <= {"head.start.bias", "head.end.bias"}, "a softmax does not see what is added to all"


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_dropout_is_in_the_loss_only(kind: Kind) -> None:
    tuned, batch = network(kind, config=SIZE, dropout=0.5), pairs()
    targets = targets_for(kind, batch)
    still = network(kind, config=STILL)
    still.load_state_dict(tuned.state_dict())
    first, again = tuned.loss(batch, targets)[0], tuned.loss(batch, targets)[0]
    other = tuned.loss(batch._replace(keys_B=batch.keys_B + 1), targets)[0]
    assert first == again, "the keys say it all"
    assert len({round(float(x), 4) for x in (first, other, still.loss(batch, targets)[0])}) == 3
    for name, outputs in tuned.predict(batch, beam=3).items():
        torch.testing.assert_close(outputs, still.predict(batch, beam=3)[name], atol=0, rtol=0)


@torch.no_grad()
def test_the_heads_dropout_is_the_heads_alone() -> None:
    """With none in the encoder, half of what the head reads is dropped, and what is left is doubled."""
    tuned, batch = network("classify", dropout=0.5), pairs(64)
    read_BD = tuned.hidden(batch, dropout=True)[:, 0]
    torch.testing.assert_close(read_BD, tuned.hidden(batch)[:, 0], atol=0, rtol=0)
    head = tuned.head.out  # type: ignore[union-attr]
    head.weight.copy_(torch.eye(3, SIZE.width))
    head.bias.zero_()
    outputs = tuned.head(tuned.hidden(batch), batch.keys_B)
    dropped = outputs == 0
    assert 0.35 < dropped.float().mean() < 0.65
    torch.testing.assert_close(outputs[~dropped], 2 * read_BD[:, :3][~dropped])


def test_the_head_is_glorot_and_its_seeds() -> None:
    one, same, other = (network("classify", seed=seed).head.state_dict() for seed in (3, 3, 4))
    assert torch.equal(one["out.weight"], same["out.weight"]) and not torch.equal(
        one["out.weight"], other["out.weight"]
    )
    parts = Network(STILL, None, ops=host_ops())
    spec = HeadSpec(kind="classify", labels=tuple(map(str, range(200))))
    head = TaskModel(parts.embeddings, parts.encoder, spec, ops=host_ops()).head.state_dict()
    bound = math.sqrt(6 / (SIZE.width + 200))
    weight = head["out.weight"]
    assert not head["out.bias"].any() and weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02), "uniform over the whole range"


def test_a_network_is_a_copy_of_what_it_is_made_from() -> None:
    parts = Network(STILL, None, ops=host_ops())
    tuned = TaskModel(parts.embeddings, parts.encoder, HeadSpec(kind="regress"), ops=host_ops())
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter.fill_(7)
    assert all((parameter != 7).all() for parameter in parts.parameters())


# Learning rates by depth


@pytest.mark.parametrize(("official", "top", "bottom"), [(False, 1, 13), (True, 2, 14)])
def test_learning_rates_of_twelve_layers(official: bool, top: int, bottom: int) -> None:
    """The released code gives the top layer d^2 and the embeddings d^(n+2); meant was one less."""
    scale = depth_scale(0.8, 12, official=official)
    assert scale("head.out.weight") == scale("head.null_inner.bias") == 1.0
    layers = [scale(f"encoder.layers.{layer}.attention.qkv.weight") for layer in range(12)]
    assert layers == pytest.approx([0.8 ** (top + 11 - layer) for layer in range(12)], rel=1e-12)
    for name in ("embeddings.token.weight", "embeddings.norm.bias", "encoder.project.weight"):
        assert scale(name) == pytest.approx(0.8**bottom, rel=1e-12)


def test_every_parameter_has_its_layers_rate() -> None:
    tuned = network("span")
    rates = {name: depth_scale(0.5, 2, official=False)(name) for name, _ in tuned.named_parameters()}
    for name, rate in rates.items():
        depth = {"head": 0, "encoder.layers.1": 1, "encoder.layers.0": 2, "embeddings": 3, "encoder.project": 3}
        assert rate == 0.5 ** next(power for start, power in depth.items() if name.startswith(start + ".")), name
    assert {depth_scale(1.0, 2, official=True)(name) for name in rates} == {1.0}


NAMES = [name for name, _ in network("classify").named_parameters()]


@given(st.lists(st.sampled_from([1.0, 0.8, 0.64, 0.25]), min_size=len(NAMES), max_size=len(NAMES)), st.booleans())
def test_groups_cover_every_weight_exactly_once(scales: list[float], half: bool) -> None:
    scale = dict(zip(NAMES, scales, strict=True))
    tuned = network("classify")
    before = {name: parameter.detach().clone() for name, parameter in tuned.named_parameters()}
    compute = torch.bfloat16 if half else torch.float32
    master = Master(tuned, compute=compute, device=CPU, scale=scale.__getitem__)
    places = [place for group in master.groups for place in range(group.part.start, group.part.stop)]
    assert places == list(range(len(master.weights)))
    for left, right in itertools.pairwise(master.groups):
        assert (left.decayed, left.scale) != (right.decayed, right.scale), "neighbours of one kind are one group"
    with torch.no_grad():
        for group in master.groups:
            master.weights[group.part] = group.scale + 10 * group.decayed
    for name, view in master.tensors()["model"].items():
        decayed = name.endswith("weight") and "norm" not in name
        assert view.shape == before[name].shape
        assert (view == torch.tensor(scale[name] + 10 * decayed)).all(), name


@pytest.mark.parametrize("clip", [1.0, 1e9])
def test_five_updates_are_a_hand_written_adamw(clip: float) -> None:
    """Each parameter at its own rate, decay where it belongs, one clipping over all of them."""
    tuned, plain = network("classify", seed=5), network("classify", seed=5)
    scale = depth_scale(0.8, 2, official=True)
    master = Master(tuned, compute=torch.float32, device=CPU, scale=scale)
    update = Update(master, FinetuneConfig(clip=clip, weight_decay=0.1), ops=host_ops())
    state: dict[str, tuple[Tensor, Tensor]] = {}
    for step in range(5):
        lr = 0.01 * (step + 1)
        update.lr.fill_(lr)
        generator = torch.Generator().manual_seed(step)
        both = (dict(tuned.named_parameters()), dict(plain.named_parameters()))
        for name, parameter in both[0].items():
            gradient = torch.randn(parameter.shape, generator=generator) * 10.0 ** (step - 3)
            parameter.grad, both[1][name].grad = gradient.clone(), gradient.clone()
        master.collect(first=True)
        updated = update()
        norm, skipped = updated.norm, updated.skipped
        expected = adamw(
            both[1].items(),
            state,
            lr=lambda name, lr=lr: lr * scale(name),  # type: ignore[misc]
            clip=clip,
            decay=lambda name: 0.1 if name.endswith("weight") and "norm" not in name else 0.0,
        )
        assert norm.item() == pytest.approx(expected, rel=1e-5) and not skipped
        for name, parameter in both[1].items():
            torch.testing.assert_close(both[0][name], parameter, atol=1e-6, rtol=1e-5, msg=name)


def test_a_gradient_that_is_not_finite_changes_nothing_in_any_group() -> None:
    tuned = network("classify")
    master = Master(tuned, compute=torch.float32, device=CPU, scale=depth_scale(0.8, 2, official=False))
    update = Update(master, FinetuneConfig(), ops=host_ops())
    update.lr.fill_(0.1)
    before = master.weights.clone()
    for parameter in tuned.parameters():
        parameter.grad = torch.ones_like(parameter)
    next(tuned.head.parameters()).grad[0] = math.inf  # type: ignore[index]
    master.collect(first=True)
    skipped = update().skipped
    assert skipped == 1 and torch.equal(master.weights, before)
    assert not master.average.any() and not master.square.any()


def test_freezing_everything_is_refused_where_the_head_has_no_weights() -> None:
    network, layers = Network(SIZE, None, ops=host_ops()), SIZE.layers
    made = {
        kind: TaskModel(network.embeddings, network.encoder, HeadSpec(kind=kind, labels=("a", "b")), ops=host_ops())
        for kind in ("classify", "pairs")
    }
    freeze(made["classify"], layers)
    freeze(made["pairs"], layers - 1)
    with pytest.raises(ConfigError, match=rf"frozen_layers: {layers} of {layers} layers .* \(at most {layers - 1}\)"):
        freeze(made["pairs"], layers)
