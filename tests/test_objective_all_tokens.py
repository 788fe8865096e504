"""All-tokens MLM against plain loops: the copy gate, its loss in chunks, what learns from what; and its exports."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_folders import RTD, make_run
from sklearn.metrics import log_loss, roc_auc_score
from tiny import OPS, Trainer, ragged_rows
from torch import Tensor
from vocabulary_losses import FEW, Loops, config_of, gradients, loss_of, made

from electra.batches.sequences import unpack
from electra.config.schema import ObjectiveConfig, OptimConfig
from electra.errors import CheckpointError
from electra.finetune.pretrained import load_pretrained
from electra.interop.models import load_model
from electra.interop.transfer import export_model
from electra.objective import copy_gate
from electra.objective.all_tokens_mlm import AllTokensMLM
from electra.objective.copy_gate import restore
from electra.ops import Chosen, Ops
from electra.ops.reference import copy_cross_entropy as reference
from electra.ops.reference.copy_cross_entropy import copy_cross_entropy, gate
from electra.train.evaluate import evaluate
from electra.train.metrics_file import evaluation_line

NAME = "all-tokens-mlm"
GENERATORS = [("transformer", tying) for tying in ("embeddings", "none", "gdes")] + [
    ("two-tower", "embeddings"),
    ("uniform", "embeddings"),
]


def set_chunk(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """How many tokens' logits exist at a time, in the loss and in evaluation."""
    for module in (reference, copy_gate):
        monkeypatch.setattr(module, "CHUNK", tokens)


@pytest.mark.parametrize("policy", ["without_replacement", "official"])
@pytest.mark.parametrize(("kind", "tying"), GENERATORS)
def test_the_loss_is_what_loops_say(kind: str, tying: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_chunk(monkeypatch, 37)  # several chunks, the last one shorter
    model, objective = made(config_of(NAME, mlm=1.5, kind=kind, tying=tying, policy=policy))
    batch = unpack(ragged_rows(10, vocab=FEW))
    loops = Loops(model, objective, batch)
    copies = torch.sigmoid(loops.model.discriminator_head.copy(loops.main_hidden()))[..., 0].tolist()  # type: ignore[union-attr, operator]
    nll, correct, changed, fakes = [], [], [], []
    for (r, p), softmax in zip(loops.real, loops.main_probabilities(loops.real), strict=True):
        there, gold, d = loops.corrupted_ids[r][p], loops.gold[r][p], copies[r][p]
        gated = [(1 - d) * p for p in softmax]
        gated[there] += d
        assert sum(gated) == pytest.approx(1)
        nll.append(-math.log(gated[gold]))
        correct.append(max(range(len(gated)), key=gated.__getitem__) == gold)
        changed.append(1 - gated[there])
        fakes.append(there != gold)
    tokens = len(loops.real)
    outcome = loss_of(model, objective, batch)
    sums = dict(zip(objective.stats, outcome.sums.tolist(), strict=True))
    expected = {"masked": len(loops.used), "main_sum": sum(nll), "tokens": tokens, "replaced": sum(fakes)}
    expected |= {"mlm_sum": sums["mlm_sum"], "copy_sum": sum(copies[r][p] for r, p in loops.real)}
    loss = sum(nll) / tokens
    if kind != "uniform":
        expected["mlm_sum"] = sum(loops.generator_nll())
        loss += 1.5 * expected["mlm_sum"] / len(loops.used)
    assert sums == pytest.approx(expected, rel=1e-5)
    assert outcome.loss.item() == pytest.approx(loss, rel=1e-5)
    means = objective.means(sums)
    assert means["loss"] == pytest.approx(loss, rel=1e-5) and means["main_loss"] == pytest.approx(sum(nll) / tokens)
    assert means["copy_rate"] == expected["copy_sum"] / tokens or means["copy_rate"] == pytest.approx(
        expected["copy_sum"] / tokens
    )
    assert objective.counts(batch, loops.masked).tolist() == [len(loops.used), tokens]
    figures, (sample, *_) = evaluate(model, objective, ragged_rows(10, vocab=FEW).split(4), separator=None)
    restored = [found for found, fake in zip(correct, fakes, strict=True) if fake]
    named = {
        "main_loss": sum(nll) / tokens,
        "main_accuracy": sum(correct) / tokens,
        "restored_accuracy": sum(restored) / len(restored),
        "rtd_loss": log_loss(fakes, changed),
        "rtd_auc": roc_auc_score(fakes, changed),
        "replaced_rate": sum(fakes) / tokens,
        "mlm_loss": expected["mlm_sum"] / len(loops.used),
    }
    assert {name: figures[name] for name in named} == pytest.approx(named, rel=1e-5)
    assert 0 < figures["main_accuracy"] < 1
    assert sample.probabilities == pytest.approx(changed[: len(sample.original)], abs=1e-5)
    assert "main" in evaluation_line(3, figures)


def made_up(tokens: int = 23, *, vocab: int = 40, width: int = 6, seed: int = 0) -> list[Tensor]:
    """x, table, bias, copies, gold and what stands there; about half of the tokens stand where they were."""
    noise = torch.Generator().manual_seed(seed)
    x, table = torch.randn(tokens, width, generator=noise), torch.randn(vocab, width, generator=noise)
    bias, copies = torch.randn(vocab, generator=noise), torch.randn(tokens, generator=noise)
    gold = torch.randint(vocab, (tokens,), generator=noise)
    there = torch.where(torch.rand(tokens, generator=noise) < 0.5, gold, (gold + 1) % vocab)
    return [x, table, bias, copies, gold, there]


def plain_loss(
    x: Tensor, table: Tensor, bias: Tensor, copies: Tensor, gold: Tensor, same: Tensor, weight: Tensor
) -> Tensor:
    d = torch.sigmoid(copies)
    p = (1 - d) * torch.softmax(x @ table.T + bias, 1).gather(1, gold[:, None])[:, 0] + d * same
    return -(p.log() * weight).sum()


@pytest.mark.parametrize("chunk", [1, 5, 23, 100])
def test_gradients_in_chunks_are_those_of_the_plain_expression(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    set_chunk(monkeypatch, chunk)
    *floats, gold, there = made_up()
    weight = (torch.arange(23) % 4 != 0).float()
    found, expected = [], []
    for numbers, loss, into in (
        (floats, copy_cross_entropy, found),
        ([t.double() for t in floats], plain_loss, expected),
    ):
        leaves = [t.clone().requires_grad_() for t in numbers]
        value = 3 * loss(*leaves, gold, there == gold, weight)
        value.backward()
        into += [value.detach(), *(leaf.grad for leaf in leaves)]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(copy_cross_entropy(*floats, gold, there == gold, weight) * 3, found[0])


def test_gradients_of_the_fused_loss_are_those_of_the_plain_expression() -> None:
    pytest.importorskip("triton", reason="fused kernels need triton")
    from electra.ops.triton.copy_cross_entropy import copy_cross_entropy as fused

    place = "cuda" if torch.cuda.is_available() else "cpu"
    *floats, gold, there = (tensor.to(place) for tensor in made_up(vocab=256))
    weight = (torch.arange(23) % 4 != 0).float().to(place)
    leaves = [t.clone().requires_grad_() for t in floats]
    value = 3 * fused(*leaves, gold, there == gold, weight)
    value.backward()
    exact = [t.double().requires_grad_() for t in floats]
    wanted = 3 * plain_loss(*exact, gold, there == gold, weight)
    wanted.backward()
    torch.testing.assert_close(value.double(), wanted, rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(leaves, exact, strict=True):
        assert ours.grad is not None and theirs.grad is not None
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-3, atol=1e-4)


def test_a_token_without_weight_gets_no_gradient() -> None:
    *floats, gold, there = made_up()
    leaves = [t.clone().requires_grad_() for t in floats]
    copy_cross_entropy(*leaves, gold, there == gold, torch.zeros(23)).backward()
    assert all(leaf.grad is not None and not leaf.grad.any() for leaf in leaves)


def test_the_gate_at_its_limits() -> None:
    """Open, it copies for nothing and pays dearly for a replaced token; shut, it is the softmax alone."""
    logp = torch.tensor([-3.0, -3.0])
    same = torch.tensor([True, False])
    nll, share = gate(logp, torch.full((2,), 200.0), same)
    assert nll.tolist() == pytest.approx([0.0, 203.0]) and share.tolist() == [0.0, 1.0]
    nll, share = gate(logp, torch.full((2,), -200.0), same)
    assert nll.tolist() == pytest.approx([3.0, 3.0]) and share.tolist() == pytest.approx([1.0, 1.0])
    nll, _ = gate(logp, torch.zeros(2), same)
    assert nll.tolist() == pytest.approx([-math.log(0.5 + 0.5 * math.exp(-3)), 3 + math.log(2)])
    # A softmax that is sure, right or wrong, and a gate that is sure: still numbers.
    nll, _ = gate(torch.tensor([0.0, -1e4]), torch.tensor([-200.0, 200.0]), same)
    assert nll.tolist() == pytest.approx([0.0, 10_200.0])


def test_a_sure_gate_has_finite_gradients() -> None:
    x, table, bias, _, gold, there = made_up()
    for logit in (-1e4, -200.0, 200.0, 1e4):
        copies = torch.full((23,), logit, requires_grad=True)
        inputs = [t.clone().requires_grad_() for t in (x, 30 * table, bias)]
        copy_cross_entropy(*inputs, copies, gold, there == gold, torch.ones(23)).backward()
        for leaf in (*inputs, copies):
            assert leaf.grad is not None and leaf.grad.isfinite().all()
        # An open gate that must not copy is pulled shut, a shut one that should is pulled open.
        assert copies.grad is not None
        assert (copies.grad[there != gold] > 0.99).all() if logit > 0 else (copies.grad[there == gold] <= 0).all()


@given(st.integers(0, 10_000), st.floats(-30, 30))
def test_probabilities_add_up_to_one(seed: int, logit: float) -> None:
    x, table, bias, _, _, there = made_up(1, seed=seed)
    vocab = len(table)
    copies = torch.full((vocab,), logit)
    every = torch.arange(vocab)
    restored = restore(x.expand(vocab, -1), table, bias, copies, every, there.expand(vocab))
    p_V = (-restored.nll_M.double()).exp()
    assert p_V.sum().item() == pytest.approx(1, abs=1e-5)
    best = int(restored.best_M[0])
    assert (restored.best_M == best).all() and p_V[best] == pytest.approx(p_V.max().item(), rel=1e-5)
    odds = torch.sigmoid(restored.replaced_M[0].double()).item()
    assert odds == pytest.approx(1 - p_V[int(there)].item(), abs=1e-5)


@pytest.mark.parametrize("tying", ["embeddings", "none", "gdes"])
def test_which_loss_reaches_what(tying: str) -> None:
    """Nothing passes through the sampling; the embeddings that are shared learn from both."""
    main = gradients(config_of(NAME, mlm=0.0, tying=tying))
    both = gradients(config_of(NAME, mlm=1.0, tying=tying))
    for name, gradient in main.items():
        assert gradient.any() != name.startswith("generator"), name
        if name.startswith("discriminator"):
            assert torch.equal(gradient, both[name]), f"{name} learns from the generator's loss"
        if name.startswith("generator"):
            assert both[name].any(), name
        if name.startswith("embeddings."):
            alone = both[name] - gradient
            assert (alone.abs().max() > 1e-3 * gradient.abs().max()) == (tying == "embeddings"), name
    assert main["embeddings.token.weight"].any(1).all(), "every vocabulary entry is an output"


def test_gradients_of_the_network_are_the_plain_expressions() -> None:
    """Through both networks, with dropout: the same loss written down without chunks."""
    config = config_of(NAME, dropout=0.1, mlm=0.0)
    model, objective = made(config)
    batch = unpack(ragged_rows(6))
    loss_of(model, objective, batch).loss.backward()
    ours = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    assert isinstance(objective, AllTokensMLM)
    unchunked = Ops({**OPS.chosen, "copy_cross_entropy": Chosen(plain_loss, "plain", "the formula")})
    loss_of(model, replace(objective, ops=unchunked), batch).loss.backward()
    for name, parameter in model.named_parameters():
        if not name.startswith("generator"):
            assert parameter.grad is not None and ours[name] is not None
            scale = float(parameter.grad.abs().max())
            torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-4, atol=1e-5 * scale, msg=name)


def test_what_stands_in_padding_does_not_matter() -> None:
    model, objective = made(config_of(NAME))
    rows = ragged_rows(8)
    other = rows.clone()
    for row in other:
        row[int(row[24]) : 24] = 77
    assert torch.equal(loss_of(model, objective, unpack(rows)).sums, loss_of(model, objective, unpack(other)).sums)


def test_start_value() -> None:
    """A fresh network copies with even odds: ln 2 for each token, and ln V more for the replaced ones."""
    config = config_of(NAME)
    trainer = Trainer(config, micro=8)
    trainer.step(ragged_rows(8, full=True), 0.0)
    means = trainer.objective.means(trainer.step.read())
    assert means["main_loss"] == pytest.approx(math.log(2) + means["replaced_rate"] * math.log(150), abs=0.05)
    assert means["copy_rate"] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("kind", ["transformer", "uniform"])
def test_training_lowers_the_loss(kind: str) -> None:
    config = config_of(NAME, kind=kind, optim=OptimConfig(lr=5e-3, warmup_steps=0))
    trainer, rows = Trainer(config, micro=8), ragged_rows(8, vocab=FEW)
    losses = []
    for _ in range(25):
        trainer.step(rows, 5e-3)
        losses.append(trainer.objective.means(trainer.step.read()))
    assert losses[-1]["main_loss"] < 0.5 * losses[0]["main_loss"]
    assert losses[-1]["copy_rate"] > 0.6 > losses[0]["copy_rate"]


@pytest.mark.parametrize("tying", ["embeddings", "gdes"])
def test_export_is_the_encoder(tmp_path: Path, tying: str) -> None:
    """Its softmax without the gate would not be what was trained, so only the encoder leaves the run."""
    transformers = pytest.importorskip("transformers")
    config = replace(RTD, objective=ObjectiveConfig(name=NAME), generator=replace(RTD.generator, tying=tying))  # type: ignore[arg-type]
    stored = make_run(tmp_path / "run", config)
    loaded = load_model(tmp_path / "run")
    assert loaded.head is None and loaded.config == config.model
    with pytest.raises(CheckpointError, match="an encoder only"):
        loaded.probabilities(torch.tensor([[5]]))
    export_model(tmp_path / "run", tmp_path / "hf")
    theirs = transformers.ElectraModel.from_pretrained(tmp_path / "hf").eval()
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        ours = loaded.module(ids, torch.zeros_like(ids), None)
        torch.testing.assert_close(theirs(input_ids=ids).last_hidden_state, ours, rtol=1e-4, atol=1e-4)
    for path in ("run", "hf"):
        base = load_pretrained(tmp_path / path)
        assert torch.equal(base.encoder.layers[1].up.weight, stored["discriminator.layers.1.up.weight"])
