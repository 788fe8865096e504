"""The two-tower generator: every token is predicted from both its sides, never from itself or from padding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import MASK, OPS, VOCAB, Trainer, make_electra, make_objective, ragged_rows, tiny_config
from torch import Tensor

from electra.batches.sequences import Sequences, unpack
from electra.config.schema import Config, GeneratorConfig
from electra.model.electra import Electra
from electra.model.encoder import TwoTower
from electra.objective.generators import TwoTowerGenerator

CONFIG = tiny_config(generator=GeneratorConfig(kind="two-tower", width=0.5), dropout=0.0)
NO_NATIVE_BF16 = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # such a CPU computes it all the same


def lively(config: Config = CONFIG) -> Electra:
    """Weights large enough that every token a state attends to changes it."""
    model = make_electra(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
    return model


MODEL = lively()
DROPPING = lively(tiny_config(generator=CONFIG.generator, dropout=0.3))


def states(ids_BL: Tensor, batch: Sequences, *, keys_B: Tensor | None = None, model: Electra = MODEL) -> Tensor:
    assert isinstance(model.generator, TwoTower)
    with torch.no_grad():
        x = model.generator_embeddings(ids_BL, batch.segments_BL, keys_B)
        out: Tensor = model.generator(x, batch.lengths_B, keys_B)
    return out


@given(
    seed=st.integers(0, 500),
    place=st.integers(0, 23),
    other=st.integers(MASK + 1, VOCAB - 1),
    dropped=st.booleans(),
)
def test_a_token_never_attends_to_itself(seed: int, place: int, other: int, dropped: bool) -> None:
    """Changing token t leaves position t alone; the left half changes only after it, the right half only before."""
    batch = unpack(ragged_rows(2, seed=seed))
    model = DROPPING if dropped else MODEL
    keys = batch.keys_B if dropped else None
    changed = batch.ids_BL.clone()
    changed[:, place] = torch.where(changed[:, place] == other, other - 1, other)
    before, after = (
        states(batch.ids_BL, batch, keys_B=keys, model=model),
        states(changed, batch, keys_B=keys, model=model),
    )
    assert torch.equal(before[:, place], after[:, place])
    width = before.shape[2] // 2
    assert torch.equal(before[:, : place + 1, :width], after[:, : place + 1, :width]), "forwards: what came before"
    assert torch.equal(before[:, place:, width:], after[:, place:, width:]), "backwards: what comes after"
    for row, size in enumerate(batch.lengths_B.tolist()):
        differs = (before[row] != after[row]).any(1)
        if place >= size:
            assert not differs[:size].any(), "nothing attends to padding"
        elif not dropped:  # dropout may cut the only path from a token
            expected = [p for p in range(size) if p != place]
            assert differs[:size].nonzero().flatten().tolist() == expected, "everything else in the row is attended to"


def test_padding_and_the_ends() -> None:
    batch = unpack(ragged_rows(6))
    together = states(batch.ids_BL, batch)
    width = together.shape[2] // 2
    for row, size in enumerate(batch.lengths_B.tolist()):
        one = batch.part(slice(row, row + 1))
        alone = states(one.ids_BL[:, :size], one._replace(segments_BL=one.segments_BL[:, :size]))
        torch.testing.assert_close(together[row, :size], alone[0], rtol=1e-4, atol=1e-5)
        assert not together[row, 0, :width].any() and not together[row, size - 1, width:].any()
        assert together[row, 1:size, :width].any(1).all() and together[row, : size - 1, width:].any(1).all()


def test_towers_are_causal_encoders() -> None:
    """The forward tower's state of the last token is an ordinary encoder's over the tokens up to it."""
    assert isinstance(MODEL.generator, TwoTower)
    batch = unpack(ragged_rows(1, full=True))
    ids, segments = batch.ids_BL, batch.segments_BL
    out = states(ids, batch)[0]
    width = out.shape[1] // 2
    with torch.no_grad():
        x = MODEL.generator_embeddings(ids, segments, None)
        # One layer without a mask, over the visible tokens only, is the same sum.
        first = MODEL.generator.forwards
        y = first.project(x) if first.project is not None else x
        for layer in first.layers:
            y = torch.cat([layer(y[:, : t + 1], None, None, 0)[:, -1:] for t in range(24)], dim=1)
        torch.testing.assert_close(out[1:, :width], y[0, :-1], rtol=1e-4, atol=1e-5)
        last = MODEL.generator.backwards
        z = last.project(x) if last.project is not None else x
        for layer in last.layers:
            z = torch.cat([layer(z[:, t:], None, None, 0)[:, :1] for t in range(24)], dim=1)
        torch.testing.assert_close(out[:-1, width:], z[0, 1:], rtol=1e-4, atol=1e-5)


def test_what_it_reads_and_samples() -> None:
    objective = make_objective(CONFIG)
    batch = unpack(ragged_rows(5))
    masked = objective.choose_masked(batch)
    samples = TwoTowerGenerator(config=CONFIG.generator, ops=OPS).sample(MODEL, batch, masked, dropout=False)
    assert torch.equal(samples.masked_ids_BL, batch.ids_BL), "nothing is masked"
    assert samples.hidden_MD is not None and samples.hidden_MD.shape == (masked.used_BM.numel(), 32)
    torch.testing.assert_close(samples.logp_MV.exp().sum(1), torch.ones(len(samples.logp_MV)))
    assert int(samples.sampled_M.max()) < VOCAB
    sums = objective.loss(MODEL, batch, masked, objective.counts(batch, masked)).sums
    used = masked.used_BM.flatten()
    nll = -samples.logp_MV[torch.arange(len(used)), samples.gold_M][used].sum()
    assert sums[0].item() == pytest.approx(nll.item(), rel=1e-5)


@NO_NATIVE_BF16
@pytest.mark.parametrize(
    ("tying", "compute", "steps"),
    [
        ("embeddings", torch.float32, 25),
        ("none", torch.float32, 25),
        ("gdes", torch.float32, 25),
        ("embeddings", torch.bfloat16, 8),
    ],
)
def test_a_few_steps_lower_the_loss(tying: str, compute: torch.dtype, steps: int) -> None:
    generator = replace(CONFIG.generator, tying=tying)  # type: ignore[arg-type]
    trainer = Trainer(tiny_config(generator=generator), micro=8, compute=compute)
    rows = ragged_rows(8)
    lines = []
    for _ in range(steps):
        trainer.step(rows, 3e-3)
        lines.append(trainer.step.read())
    assert not any(line["skipped"] for line in lines)
    for name in ("mlm_sum", "rtd_sum"):
        assert lines[-1][name] < 0.95 * lines[0][name], name
