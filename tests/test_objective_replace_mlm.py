"""Replace MLM against plain loops: what is read, what is predicted, what learns from which loss; and its exports.

What holds of both objectives that predict tokens by the main network is tested here for both.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from model_folders import RTD, make_run
from tiny import MASK, Trainer, ragged_rows
from tiny_runs import STEPS, make_data, metric_lines, small_config
from vocabulary_losses import FEW, NO_CLIP, Loops, config_of, gradients, loss_of, made, step_gradient

from electra.batches.sequences import unpack
from electra.config.schema import ObjectiveConfig, OptimConfig
from electra.errors import CheckpointError
from electra.finetune.pretrained import load_pretrained
from electra.interop.models import load_model
from electra.interop.transfer import export_model, import_model
from electra.model.heads import MaskedHead
from electra.pretrain import pretrain
from electra.report import write_report
from electra.train.evaluate import evaluate
from electra.train.metrics_file import evaluation_line

NAME = "replace-mlm"
BOTH = (NAME, "all-tokens-mlm")
GENERATORS = [("transformer", tying) for tying in ("embeddings", "none", "gdes")] + [
    ("two-tower", "embeddings"),
    ("two-tower", "gdes"),
    ("uniform", "embeddings"),
]


def best(probabilities: list[float]) -> int:
    return max(range(len(probabilities)), key=probabilities.__getitem__)


@pytest.mark.parametrize("policy", ["without_replacement", "official"])
@pytest.mark.parametrize(("kind", "tying"), GENERATORS)
def test_the_loss_is_what_loops_say(kind: str, tying: str, policy: str) -> None:
    model, objective = made(config_of(NAME, mlm=1.5, kind=kind, tying=tying, policy=policy))
    batch = unpack(ragged_rows(10, vocab=FEW))
    loops = Loops(model, objective, batch)
    predicted, gold = loops.main_probabilities(loops.used), [loops.gold[r][p] for r, p in loops.used]
    main = [-torch.tensor(p[g], dtype=torch.float64).log().item() for p, g in zip(predicted, gold, strict=True)]
    correct = sum(best(p) == g for p, g in zip(predicted, gold, strict=True))
    masked = len(main)
    outcome = loss_of(model, objective, batch)
    sums = dict(zip(objective.stats, outcome.sums.tolist(), strict=True))
    expected = {"masked": masked, "main_sum": sum(main), "main_correct": correct, "replaced": loops.replaced}
    expected |= {"tokens": len(loops.real), "mlm_sum": sums["mlm_sum"]}
    loss = sum(main) / masked
    if kind != "uniform":
        nll = loops.generator_nll()
        expected["mlm_sum"] = sum(nll)
        loss += 1.5 * sum(nll) / masked
    assert sums == pytest.approx(expected, rel=1e-5)
    assert outcome.loss.item() == pytest.approx(loss, rel=1e-5)
    means = objective.means(sums)
    assert means["loss"] == pytest.approx(loss, rel=1e-5) and means["main_loss"] == pytest.approx(sum(main) / masked)
    assert means["main_accuracy"] == correct / masked and means["replaced_rate"] == loops.replaced / len(loops.real)
    assert objective.counts(batch, loops.masked).tolist() == [masked]
    assert loops.replaced and (kind == "uniform" or loops.replaced < masked), "some samples are right"
    figures, _ = evaluate(model, objective, ragged_rows(10, vocab=FEW).split(4), separator=None)
    sampled = [loops.corrupted_ids[r][p] == g for (r, p), g in zip(loops.used, gold, strict=True)]
    restored = [best(p) == g for p, g, same in zip(predicted, gold, sampled, strict=True) if not same]
    assert figures == pytest.approx(
        {
            "mlm_loss": expected["mlm_sum"] / masked,
            "mlm_accuracy": figures["mlm_accuracy"],
            "sampled_accuracy": sum(sampled) / masked,
            "main_loss": sum(main) / masked,
            "main_accuracy": correct / masked,
            "restored_accuracy": sum(restored) / len(restored),
        },
        rel=1e-5,
    )
    assert "main" in evaluation_line(3, figures) and "rtd" not in evaluation_line(3, figures)


def test_the_main_network_reads_samples_where_the_generator_read_masks() -> None:
    model, objective = made(config_of(NAME))
    loops = Loops(model, objective, unpack(ragged_rows(10, vocab=FEW)))
    hidden = [place for place in loops.real if loops.masked_ids[place[0]][place[1]] == MASK]
    assert hidden and all(loops.corrupted_ids[r][p] != MASK for r, p in hidden)
    untouched = set(loops.real) - set(loops.used)
    assert all(loops.corrupted_ids[r][p] == loops.gold[r][p] for r, p in untouched)


def test_denominators_are_the_given_counts_and_the_detection_weight_plays_no_part() -> None:
    model, objective = made(config_of(NAME, mlm=2.0))
    batch = unpack(ragged_rows(6))
    masked = objective.choose_masked(batch)
    outcome = objective.loss(model, batch, masked, torch.tensor([100.0]))
    sums = dict(zip(objective.stats, outcome.sums.tolist(), strict=True))
    assert outcome.loss.item() == pytest.approx((2 * sums["mlm_sum"] + sums["main_sum"]) / 100, rel=1e-6)
    other = made(config_of(NAME, mlm=2.0, rtd=1.0))[1].loss(model, batch, masked, torch.tensor([100.0]))
    assert torch.equal(other.loss, outcome.loss)


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


def test_the_head_predicts_with_the_table_that_the_network_reads() -> None:
    """A token in no input gets a gradient all the same, as an output."""
    for tying in ("embeddings", "none", "gdes"):
        found = gradients(config_of(NAME, mlm=0.0, tying=tying))["embeddings.token.weight"]
        assert found.any(1).all(), tying


@pytest.mark.parametrize("policy", ["without_replacement", "official"])
@pytest.mark.parametrize("name", BOTH)
def test_micro_batches_do_not_change_the_maths(name: str, policy: str) -> None:
    config = config_of(name, dropout=0.1, policy=policy, optim=NO_CLIP)
    rows = ragged_rows(8)
    whole, totals = step_gradient(config, rows, micro=8)
    for micro in (4, 1, 3):
        parts, sums = step_gradient(config, rows, micro=micro)
        assert (parts - whole).norm() <= 2e-6 * whole.norm()
        assert sums == pytest.approx(totals, rel=1e-6)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bf16 products computes them all the same
@pytest.mark.parametrize("name", BOTH)
def test_half_precision_finds_the_same_gradient(name: str) -> None:
    config, rows = config_of(name, optim=NO_CLIP), ragged_rows(4)
    whole, totals = step_gradient(config, rows, micro=4)
    half, sums = step_gradient(config, rows, micro=4, compute=torch.bfloat16)
    assert F.cosine_similarity(whole, half, dim=0) > 0.99
    assert sums["main_sum"] == pytest.approx(totals["main_sum"], rel=0.02)


@pytest.mark.parametrize("kind", ["transformer", "uniform"])
def test_training_lowers_both_losses(kind: str) -> None:
    config = config_of(NAME, kind=kind, optim=OptimConfig(lr=5e-3, warmup_steps=0))
    trainer, rows = Trainer(config, micro=8), ragged_rows(8, vocab=FEW)
    losses = []
    for _ in range(25):
        trainer.step(rows, 5e-3)
        losses.append(trainer.objective.means(trainer.step.read()))
    assert losses[-1]["main_loss"] < 0.6 * losses[0]["main_loss"]
    assert kind == "uniform" or losses[-1]["mlm_loss"] < 0.6 * losses[0]["mlm_loss"]


@pytest.mark.parametrize("tying", ["embeddings", "none", "gdes"])
def test_export_and_fine_tuning(tmp_path: Path, tying: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = replace(RTD, objective=ObjectiveConfig(name=NAME), generator=replace(RTD.generator, tying=tying))  # type: ignore[arg-type]
    stored = make_run(tmp_path / "run", config)
    loaded = load_model(tmp_path / "run")
    assert isinstance(loaded.head, MaskedHead) and loaded.config == config.model
    with pytest.raises(CheckpointError, match="masked language model"):
        loaded.probabilities(torch.tensor([[5]]))
    export_model(tmp_path / "run", tmp_path / "hf")
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "ElectraForMaskedLM" in card and "# Masked language model" in card
    theirs = transformers.ElectraForMaskedLM.from_pretrained(tmp_path / "hf").eval()
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        ours = loaded.module.logits(ids, torch.zeros_like(ids), None)
        torch.testing.assert_close(theirs(input_ids=ids).logits, ours, rtol=1e-4, atol=1e-4)
    table = stored["embeddings.token.weight"]
    if tying == "gdes":
        table = table + stored["generator_embeddings.token.weight"]
    again = import_model(tmp_path / "hf", tmp_path / "imported")
    assert again.config.objective.name == "mlm" and not again.missing
    for path in ("run", "hf", "imported"):
        base = load_pretrained(tmp_path / path)
        assert torch.equal(base.embeddings.token.weight, table)
        assert torch.equal(base.encoder.layers[1].up.weight, stored["discriminator.layers.1.up.weight"])
    small = load_model(tmp_path / "run", part="generator")
    assert small.config.width == 32 and isinstance(small.head, MaskedHead)


@pytest.mark.parametrize("name", BOTH)
def test_a_run_from_text_to_a_base_for_fine_tuning(tmp_path: Path, name: str) -> None:
    data = make_data(tmp_path / "data")
    run = pretrain(small_config(f"objective.name={name}"), data=data, out=tmp_path / "run")
    training, held_out = (
        [line[f"{kind}/main_loss"] for line in metric_lines(run) if line["kind"] == kind] for kind in ("train", "eval")
    )
    assert len(training) == STEPS and training[-1] < training[0] and held_out[-1] < held_out[0]
    assert load_pretrained(run).config.width == 64
    assert "Originals named right" in write_report(run).read_text(encoding="utf-8")
