"""Packed rows: a token attends to its own document and nothing else, in every network and objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import (
    CLS,
    MASK,
    OPS,
    SEP,
    SPECIALS,
    VOCAB,
    Documents,
    Trainer,
    in_double,
    make_electra,
    make_model,
    make_objective,
    tiny_config,
)
from torch import Tensor, nn

from electra.batches.layout import separator_of
from electra.batches.loader import pack
from electra.batches.packed import PackedLayout
from electra.batches.sequences import Sequences, Spans, document_spans, unpack
from electra.bench import ours as bench
from electra.config.schema import Config, DataConfig, GeneratorConfig, ObjectiveConfig, TrainConfig
from electra.model.electra import Bert, Electra
from electra.model.encoder import Encoder, TwoTower
from electra.objective.contrastive import left_whole
from electra.objective.rtd import discriminator_states
from electra.ops.dispatch import Kernels, select
from electra.ops.reference.encoder_stack import document_mask
from electra.train.evaluate import evaluate

LENGTH = 24
CONFIG = tiny_config(data=DataConfig(layout="packed", length=LENGTH), dropout=0.3)
NO_NATIVE_BF16 = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # such a CPU computes it all the same
both_kernels = pytest.mark.parametrize("kernels", ["auto", "plain"])


def packed_rows(count: int, *, length: int = LENGTH, seed: int = 0, average: float = 6.0) -> Tensor:
    """Rows as the packed layout makes them, of documents of no to many tokens."""
    random = np.random.default_rng(seed)
    sizes = [int(size) for size in random.geometric(1 / average, 4 * count * length) - 1]
    documents = [[random.integers(MASK + 1, VOCAB, size).tolist()] for size in sizes[: 2 * count * length // 3]]
    layout = PackedLayout(Documents(documents), DataConfig(length=length), SPECIALS, seed=seed, epoch=0)
    assert layout.count >= count
    keys = random.integers(-(2**31), 2**31, count).astype(np.int32)
    return torch.from_numpy(pack(layout, np.arange(count), keys))


def documents_of(ids: list[int]) -> list[range]:
    """A row's documents, one token after another; what would be left of the row's end goes to the last."""
    found, start = [], 0
    for place, token in enumerate(ids):
        if place == len(ids) - 1 or (token == SEP and place < len(ids) - 2):
            found.append(range(start, place + 1))
            start = place + 1
    return found


@given(
    body=st.lists(st.sampled_from([SEP, 9, 10]), min_size=0, max_size=30),
    other=st.lists(st.sampled_from([SEP, 11]), min_size=30, max_size=30),
)
def test_spans_are_the_documents(body: list[int], other: list[int]) -> None:
    rows = [[CLS, *body, SEP], [CLS, *other[: len(body)], SEP]]
    spans = document_spans(torch.tensor(rows), SEP)
    assert spans.first_BL.dtype == spans.end_BL.dtype == torch.int32
    for ids, first, end in zip(rows, spans.first_BL.tolist(), spans.end_BL.tolist(), strict=True):
        where = {place: document for document in documents_of(ids) for place in document}
        assert first == [where[place].start for place in range(len(ids))]
        assert end == [where[place].stop for place in range(len(ids))]


def test_what_closes_and_opens_a_row() -> None:
    """[CLS] belongs to the first document, and the row's last [SEP] to the last, also after a [SEP] of its own."""
    rows = torch.tensor([[CLS, 9, SEP, 9, 9, SEP], [CLS, SEP, 9, 9, SEP, SEP], [CLS, 9, SEP, SEP, 9, SEP]])
    first, end = document_spans(rows, SEP)
    assert first.tolist() == [[0, 0, 0, 3, 3, 3], [0, 0, 2, 2, 2, 2], [0, 0, 0, 3, 4, 4]]
    assert end.tolist() == [[3, 3, 3, 6, 6, 6], [2, 2, 6, 6, 6, 6], [3, 3, 3, 4, 6, 6]]


def test_only_the_packed_layout_parts_documents() -> None:
    assert separator_of(DataConfig(layout="packed"), SPECIALS) == SEP
    assert separator_of(DataConfig(layout="sentences"), SPECIALS) is None
    rows = packed_rows(3)
    assert unpack(rows).spans is None
    batch = unpack(rows, SEP)
    assert batch.spans is not None
    few = batch.part(slice(1, 3))
    assert few.spans is not None and torch.equal(few.spans.end_BL, batch.spans.end_BL[1:])
    assert torch.equal(few.ids_BL, batch.ids_BL[1:]) and torch.equal(few.keys_B, batch.keys_B[1:])


def test_the_mask_is_between_documents() -> None:
    batch = unpack(packed_rows(5), SEP)
    assert batch.spans is not None
    mask = document_mask(batch.spans, torch.float32)
    assert mask.shape == (5, 1, LENGTH, LENGTH)
    for row, ids in enumerate(batch.ids_BL.tolist()):
        want = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
        for document in documents_of(ids):
            want[document.start : document.stop, document.start : document.stop] = False
        assert torch.equal(mask[row, 0] == torch.finfo(torch.float32).min, want)
        assert torch.equal(mask[row, 0] == 0, ~want)


def lively(config: Config, *, kernels: Kernels = "auto", dtype: torch.dtype = torch.float32) -> Any:
    """Weights large enough that every token a state attends to changes it; the encoders in `dtype`."""
    model = make_model(config, ops=select(kernels, device=torch.device("cpu"), dtype=dtype), dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
    for encoder in model.modules():
        if isinstance(encoder, Encoder):
            for linear in encoder.modules():
                if isinstance(linear, nn.Linear):
                    linear.to(dtype)  # norms stay in fp32
    return model


def generator_states(model: Electra, batch: Sequences, ids_BL: Tensor, keys_B: Tensor | None) -> Tensor:
    x = model.generator_embeddings(ids_BL, batch.segments_BL, keys_B)
    out: Tensor = model.masked_encoder(x, batch.lengths_B, keys_B, batch.spans)
    return out


def detector_states(model: Electra, batch: Sequences, ids_BL: Tensor, keys_B: Tensor | None) -> Tensor:
    return discriminator_states(OPS, model, batch, ids_BL, dropout=keys_B is not None)


def bert_states(model: Bert, batch: Sequences, ids_BL: Tensor, keys_B: Tensor | None) -> Tensor:
    out: Tensor = model.encoder(
        model.embeddings(ids_BL, batch.segments_BL, keys_B), batch.lengths_B, keys_B, batch.spans
    )
    return out


def tower_states(model: Electra, batch: Sequences, ids_BL: Tensor, keys_B: Tensor | None) -> Tensor:
    assert isinstance(model.generator, TwoTower)
    x = model.generator_embeddings(ids_BL, batch.segments_BL, keys_B)
    out: Tensor = model.generator(x, batch.lengths_B, keys_B, batch.spans)
    return out


States = Callable[[Any, Sequences, Tensor, Tensor | None], Tensor]
NETWORKS: dict[str, tuple[States, Config]] = {
    "generator": (generator_states, CONFIG),
    "discriminator": (detector_states, CONFIG),
    "bert": (bert_states, replace(CONFIG, objective=ObjectiveConfig(name="mlm"))),
    "towers": (tower_states, replace(CONFIG, generator=GeneratorConfig(kind="two-tower", width=0.5))),
}


@NO_NATIVE_BF16
@both_kernels
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("dropped", [True, False])
@pytest.mark.parametrize("network", NETWORKS)
def test_promise_a_document_never_attends_to_another(
    network: str, dropped: bool, kind: torch.dtype, kernels: Kernels
) -> None:
    """Changing a token leaves the states of all other documents alone, bit for bit, and changes those of its own."""
    states, config = NETWORKS[network]
    model = lively(config, kernels=kernels, dtype=kind)
    batch = unpack(packed_rows(4, seed=7), SEP)
    keys_B = batch.keys_B if dropped else None
    with torch.no_grad():
        before = states(model, batch, batch.ids_BL, keys_B)
        for place in range(1, LENGTH - 1):
            changed = batch.ids_BL.clone()
            # A [SEP] too: documents stay what they are.
            changed[:, place] = torch.where(changed[:, place] == 90, 91, 90)
            differs_BL = (states(model, batch, changed, keys_B) != before).any(2)
            for row, ids in enumerate(batch.ids_BL.tolist()):
                own = next(document for document in documents_of(ids) if place in document)
                found = set(differs_BL[row].nonzero().flatten().tolist())
                assert found <= set(own)
                expected = set(own) - {place} if network == "towers" else set(own)
                if kind == torch.float32 and not dropped:
                    assert found == expected


@pytest.mark.parametrize("network", ["generator", "discriminator", "bert", "towers"])
def test_a_document_is_read_as_if_it_stood_alone(network: str) -> None:
    _, config = NETWORKS[network]
    model = in_double(lively(replace(config, model=replace(config.model, dropout=0.0, attention_dropout=0.0))))
    encoder = getattr(model, {"towers": "generator", "bert": "encoder"}.get(network, network))
    batch = unpack(packed_rows(4, seed=3), SEP)
    assert batch.spans is not None
    x = torch.randn(4, LENGTH, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    got = encoder(x, batch.lengths_B, None, batch.spans)
    for row, ids in enumerate(batch.ids_BL.tolist()):
        for document in documents_of(ids):
            part = slice(document.start, document.stop)
            want = encoder(x[row : row + 1, part], None, None)
            torch.testing.assert_close(got[row, part], want[0], rtol=1e-9, atol=1e-9)


@both_kernels
def test_gradients_with_dropout(kernels: Kernels) -> None:
    """Those of the reference ops in double precision; and none from one document to another."""
    network = cast(Electra, lively(CONFIG, kernels=kernels)).discriminator
    batch = unpack(packed_rows(3, seed=5), SEP)
    spans = batch.spans
    assert spans is not None
    x = torch.randn(3, LENGTH, 16, generator=torch.Generator().manual_seed(1))
    incoming = torch.randn(3, LENGTH, 32, generator=torch.Generator().manual_seed(2))

    def gradients(encoder: Encoder, kind: torch.dtype) -> list[Tensor]:
        source = x.to(kind).requires_grad_()
        out = encoder(source, batch.lengths_B, batch.keys_B, spans)
        return list(torch.autograd.grad(out, [source, *encoder.parameters()], incoming.to(kind)))

    wanted, found = gradients(in_double(network), torch.float64), gradients(network, torch.float32)
    for exact, single in zip(wanted, found, strict=True):
        torch.testing.assert_close(single.double(), exact, rtol=1e-3, atol=1e-4 * float(exact.abs().max()))
    source = x.clone().requires_grad_()
    out = network(source, batch.lengths_B, batch.keys_B, spans)
    place_L = torch.arange(LENGTH)
    for place in range(LENGTH):
        (reached,) = torch.autograd.grad(out[:, place].sum(), source, retain_graph=True)
        own_BL = (place_L >= spans.first_BL[:, place, None]) & (place_L < spans.end_BL[:, place, None])
        assert not reached[~own_BL].any()


@both_kernels
@pytest.mark.parametrize("network", ["generator", "discriminator", "bert"])
def test_a_row_of_one_document_is_a_row_without_spans(network: str, kernels: Kernels) -> None:
    states, config = NETWORKS[network]
    model = lively(config, kernels=kernels)
    rows = packed_rows(3, average=2000.0)
    rows[:, 1 : LENGTH - 1] = rows[:, 1 : LENGTH - 1].clamp(min=MASK + 1)
    batch, plain = unpack(rows, SEP), unpack(rows)
    assert batch.spans is not None and not batch.spans.first_BL.any()
    for keys_B in (batch.keys_B, None):
        assert torch.equal(states(model, batch, batch.ids_BL, keys_B), states(model, plain, plain.ids_BL, keys_B))


def test_masks_and_replacements_leave_documents_as_they_are() -> None:
    """Spans come from the original ids: a [SEP] that a generator samples parts nothing."""
    model = make_electra(CONFIG)
    batch = unpack(packed_rows(4), SEP)
    assert batch.spans is not None
    corrupted_ids_BL = batch.ids_BL.clone()
    corrupted_ids_BL[:, 5] = SEP
    passed: list[Spans | None] = []
    plain = model.discriminator.forward

    def watched(x: Tensor, lengths: Tensor, keys: Tensor | None, spans: Spans | None) -> Tensor:
        passed.append(spans)
        return plain(x, lengths, keys, spans)

    model.discriminator.forward = watched  # type: ignore[method-assign,assignment]
    discriminator_states(OPS, model, batch, corrupted_ids_BL, dropout=False)
    assert passed[0] is batch.spans


OBJECTIVES = [
    ("rtd", {}),
    ("rtd", {"contrastive_weight": 1.0}),
    ("rtd-15", {}),
    ("mlm", {}),
    ("replace-mlm", {}),
    ("all-tokens-mlm", {}),
    ("electric", {}),
    ("adversarial", {}),
]


@pytest.mark.parametrize(("name", "more"), OBJECTIVES)
def test_every_objective_passes_the_spans_to_its_networks(
    name: str, more: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training and in evaluation; micro-batches add up to the batch."""
    from electra.model import encoder

    passed: list[bool] = []
    plain = encoder.Encoder.forward

    def watched(self: Any, x: Tensor, lengths: Any, keys: Any = None, spans: Any = None, hidden: Any = None) -> Tensor:
        passed.append(spans is not None and len(spans.first_BL) == len(x))
        return plain(self, x, lengths, keys, spans, hidden)

    monkeypatch.setattr(encoder.Encoder, "forward", watched)
    kind = "two-tower" if name == "electric" else "transformer"
    generator = GeneratorConfig(kind=cast(Any, kind), width=0.5)
    adversarial = name == "adversarial"
    objective = ObjectiveConfig(name=cast(Any, "rtd" if adversarial else name), **cast(Any, more))
    train = TrainConfig(algorithm="adversarial" if adversarial else "joint")
    config = replace(CONFIG, objective=objective, generator=generator, train=train)
    rows = packed_rows(8)
    whole, parts = (Trainer(config, micro=micro, separator=SEP) for micro in (8, 2))
    for trainer in (whole, parts):
        for _ in range(2):
            trainer.step(rows, 1e-3)
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    figures, _ = evaluate(whole.model, whole.objective, rows.split(3), separator=SEP)
    assert all(np.isfinite(value) for value in figures.values())
    assert passed and all(passed)


def test_the_sentence_head_classifies_what_cls_attends_to() -> None:
    """A sequence counts as corrupted where its first document is."""
    objective = ObjectiveConfig(contrastive_weight=1.0, contrastive_share=0.0)
    config = replace(CONFIG, objective=objective)
    model, made = make_electra(config), make_objective(config)
    rows = packed_rows(64, average=4.0)
    batch = unpack(rows, SEP)
    assert batch.spans is not None and not left_whole(batch.keys_B, 0.0).any()
    with torch.no_grad():
        model.sentence_head.weight.zero_()
        model.sentence_head.bias.fill_(5.0)  # says that all are corrupted
        masked = made.choose_masked(batch)
        sums = made.loss(model, batch, masked, made.counts(batch, masked)).sums
        everything = made.loss(model, batch._replace(spans=None), masked, made.counts(batch, masked)).sums
    names = made.stats
    correct, of_all = (float(found[names.index("sentence_correct")]) for found in (sums, everything))
    assert of_all == 64.0 and 0 < correct < 64.0


def test_random_rows_of_a_benchmark_are_documents() -> None:
    config = replace(CONFIG, data=DataConfig(layout="packed", length=64))
    rows = bench.random_rows(config, 32)
    assert torch.equal(rows, bench.random_rows(config, 32))
    batch = unpack(rows, bench.SEP)
    assert batch.lengths_B.tolist() == [64] * 32 and not batch.segments_BL.any()
    assert (batch.ids_BL[:, 0] == bench.CLS).all() and (batch.ids_BL[:, -1] == bench.SEP).all()
    assert batch.spans is not None
    openings = (batch.spans.first_BL == torch.arange(64)).sum(1)
    assert openings.min() == 1 and openings.max() > 1
    bench.our_step(config, rows[:4])()


def test_steps_learn_from_packed_rows() -> None:
    trainer = Trainer(replace(CONFIG, model=replace(CONFIG.model, dropout=0.1)), micro=8, separator=SEP)
    rows = packed_rows(16)
    losses = []
    for _ in range(6):
        for _ in range(10):
            trainer.step(rows, 3e-3)
        losses.append(trainer.objective.means(trainer.step.read())["loss"])
    assert losses[-1] < 0.8 * losses[0]


def test_documents_decide_about_attention_alone() -> None:
    """The same positions of a row are masked, whether or not its documents attend to one another."""
    rows = packed_rows(4)
    objective = make_objective(CONFIG)
    one, other = objective.choose_masked(unpack(rows, SEP)), objective.choose_masked(unpack(rows))
    assert torch.equal(one.positions_BM, other.positions_BM) and torch.equal(one.used_BM, other.used_BM)
