"""What generator and discriminator share: parameters, which loss reaches them, checkpoints, and folders outside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from model_folders import RTD, make_run
from tiny import OPS, Trainer, make_electra, make_model, make_objective, ragged_rows, tiny_config
from tiny_runs import make_data, metric_lines, small_config, stop_at, weights
from torch import Tensor

from electra.batches.sequences import Sequences, unpack
from electra.checkpoint import store
from electra.checkpoint.tensors import read_tensors
from electra.config.schema import Config, GeneratorConfig
from electra.errors import CheckpointError, ConfigError
from electra.interop.models import load_model
from electra.interop.transfer import export_model
from electra.model.electra import Electra
from electra.objective.generators import MaskedGenerator
from electra.objective.rtd import ReplacedTokenDetection, discriminator_logits
from electra.pretrain import pretrain

MODES = ["none", "embeddings", "all", "gdes"]


def generator_of(mode: str, *, width: float = 0.75) -> GeneratorConfig:
    return GeneratorConfig(width=1.0 if mode == "all" else width, tying=mode)  # type: ignore[arg-type]


def config_of(mode: str, **parts: Any) -> Config:
    return tiny_config(generator=generator_of(mode), **parts)


def embeddings(size: int) -> int:
    return (150 + 64 + 2 + 2) * size


def encoder(width: int, ffn: int, embedding: int) -> int:
    layer = 3 * width * (width + 1) + width * (width + 1) + ffn * (width + 1) + width * (ffn + 1) + 4 * width
    return 2 * layer + (width * (embedding + 1) if width != embedding else 0)


def masked_head(width: int, embedding: int) -> int:
    return embedding * (width + 1) + 2 * embedding + 150


COUNTS = {
    "none": {
        "embeddings": embeddings(16),
        "generator_embeddings": embeddings(24),
        "generator": encoder(24, 96, 24),
        "generator_head": masked_head(24, 24),
    },
    "embeddings": {
        "embeddings": embeddings(16),
        "generator": encoder(24, 96, 16),
        "generator_head": masked_head(24, 16),
    },
    "all": {"embeddings": embeddings(16), "generator_head": masked_head(32, 16)},
    "gdes": {
        "embeddings": embeddings(16),
        "generator_embeddings": embeddings(16),
        "generator": encoder(24, 96, 16),
        "generator_head": masked_head(24, 16),
    },
}


@pytest.mark.parametrize("mode", MODES)
def test_which_parameters_exist(mode: str) -> None:
    """Two layers of 32 units over embeddings of 16; a generator of 24 units, or the discriminator itself."""
    found: dict[str, int] = {}
    for name, parameter in make_model(config_of(mode)).named_parameters():
        part = name.partition(".")[0]
        found[part] = found.get(part, 0) + parameter.numel()
    kept = {"discriminator": encoder(32, 64, 16), "discriminator_head": 32 * 33 + 33}
    assert found == COUNTS[mode] | kept


@pytest.mark.parametrize("mode", MODES)
def test_the_optimizer_holds_every_number_once(mode: str) -> None:
    trainer = Trainer(config_of(mode), micro=4)
    before = {name: tensor.clone() for name, tensor in trainer.master.tensors()["model"].items()}
    count = sum(tensor.numel() for tensor in before.values())
    assert count == sum(COUNTS[mode].values()) + encoder(32, 64, 16) + 32 * 33 + 33
    assert count <= len(trainer.master.weights) < count + 16
    trainer.step(ragged_rows(8), 1e-2)
    trainer.step(ragged_rows(8, seed=1), 1e-2)
    stored = trainer.master.tensors()["model"]
    read = dict(trainer.model.named_parameters())
    assert stored.keys() == read.keys()
    for name, parameter in read.items():
        assert parameter.data_ptr() == stored[name].data_ptr(), name
    assert all(not torch.equal(before[name], tensor) for name, tensor in stored.items()), "all are trained"


def lively(config: Config) -> Electra:
    model = make_electra(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4)
    return model


def parts(config: Config) -> tuple[dict[str, Tensor | None], dict[str, Tensor | None], dict[str, Tensor | None]]:
    """The gradients of the generator's loss, of the discriminator's, and of both together; None where none arrives."""
    model, objective = lively(config), cast(ReplacedTokenDetection, make_objective(config))
    batch = unpack(ragged_rows(8))
    masked = objective.choose_masked(batch)
    samples = objective.generator.sample(model, batch, masked, dropout=True)
    mlm_sum = OPS.masked_sum(samples.nll_M, masked.used_BM)
    found = objective.detect(model, batch, masked, samples, mlm_sum)
    names = [name for name, _ in model.named_parameters()]

    def gradients(loss: Tensor) -> dict[str, Tensor | None]:
        values = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True, allow_unused=True)
        return dict(zip(names, values, strict=True))

    counts = objective.counts(batch, masked)
    mlm, rtd = found.mlm_sum / counts[0], 50 * found.rtd_sum / counts[1]
    return gradients(mlm), gradients(rtd), gradients(objective.weighted(found, counts))


def reached(gradients: dict[str, Tensor | None]) -> set[str]:
    """The parts of the network that a loss reaches; every parameter of a part must agree."""
    arrived: dict[str, set[bool]] = {}
    for name, gradient in gradients.items():
        arrived.setdefault(name.partition(".")[0], set()).add(gradient is not None and bool(gradient.any()))
    assert all(len(answers) == 1 for answers in arrived.values()), arrived
    return {part for part, answers in arrived.items() if answers == {True}}


@pytest.mark.parametrize(
    ("mode", "by_mlm", "by_rtd"),
    [
        ("none", {"generator_embeddings", "generator"}, {"embeddings", "discriminator"}),
        ("embeddings", {"embeddings", "generator"}, {"embeddings", "discriminator"}),
        ("all", {"embeddings", "discriminator"}, {"embeddings", "discriminator"}),
        ("gdes", {"generator_embeddings", "generator"}, {"embeddings", "discriminator"}),
    ],
)
def test_which_loss_reaches_what(mode: str, by_mlm: set[str], by_rtd: set[str]) -> None:
    mlm, rtd, both = parts(config_of(mode))
    assert reached(mlm) == by_mlm | {"generator_head"}
    assert reached(rtd) == by_rtd | {"discriminator_head"}
    for name, total in both.items():
        assert total is not None, name
        shares = [part[name] for part in (mlm, rtd) if part[name] is not None]
        torch.testing.assert_close(total, sum(cast(list[Tensor], shares)), rtol=1e-4, atol=1e-5)
    shared = [name for name in both if mlm[name] is not None and rtd[name] is not None]
    expected = {"none": 0, "embeddings": 5, "gdes": 0}
    if mode == "all":
        assert shared == [n for n in both if not n.startswith(("generator_head", "discriminator_head"))]
    else:
        assert len(shared) == expected[mode]


def test_gdes_the_discriminator_reads_the_generators_table_and_never_moves_it() -> None:
    model = make_electra(config_of("gdes"))
    delta, base = model.embeddings.token.weight, model.generator_embeddings.token.weight
    assert not delta.any() and base.std() > 0.01, "at the start both read one table"
    batch = unpack(ragged_rows(4))
    with torch.no_grad():
        read = model.embeddings.token(batch.ids_BL) + torch.nn.functional.embedding(batch.ids_BL, base)
        torch.testing.assert_close(read, model.generator_embeddings.token(batch.ids_BL), rtol=0, atol=0)
        before = discriminator_logits(OPS, model, batch, batch.ids_BL, dropout=False)
        base += torch.randn(base.shape, generator=torch.Generator().manual_seed(0)) * 0.1
        after = discriminator_logits(OPS, model, batch, batch.ids_BL, dropout=False)
        assert not torch.allclose(before, after), "what the generator learns, the discriminator reads"
        # Only the sum counts: the same difference in the other table gives the same answer.
        delta += base
        base.zero_()
        torch.testing.assert_close(discriminator_logits(OPS, model, batch, batch.ids_BL, dropout=False), after)
    mlm, rtd, _ = parts(config_of("gdes"))
    assert rtd["generator_embeddings.token.weight"] is None and mlm["embeddings.token.weight"] is None
    assert rtd["embeddings.token.weight"] is not None and rtd["embeddings.token.weight"].any()


def test_all_is_one_encoder_with_two_heads() -> None:
    model = make_electra(config_of("all"))
    assert model.generator is None and model.masked_encoder is model.discriminator
    assert model.generator_embeddings is model.embeddings
    for mode in ("none", "gdes"):
        apart = make_electra(config_of(mode))
        ours = {id(p) for p in apart.embeddings.parameters()}
        assert not ours & {id(p) for p in apart.generator_embeddings.parameters()}


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["generator.tying=all"], "generator.tying"),
        (["generator.tying=all", "generator.width=1", "generator.depth=0.5"], "generator.tying"),
        (["generator.tying=all", "generator.width=1", "generator.kind=unigram"], "generator.tying"),
        (["generator.tying=all", "generator.width=1", "objective.name=replace-mlm"], "generator.tying"),
        (["generator.tying=gdes", "generator.kind=uniform"], "generator.tying"),
    ],
)
def test_promise_20_what_cannot_be_shared_is_refused(overrides: list[str], key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: ") as caught:
        small_config(*overrides)
    assert "\n" not in str(caught.value) and "(" in str(caught.value), "with a fix"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_trains_saves_and_resumes(mode: str, data: Path, tmp_path: Path) -> None:
    overrides = [f"generator.tying={mode}", f"generator.width={1 if mode == 'all' else 0.5}", "train.steps=6"]
    config = small_config(*overrides, "optim.warmup_steps=1", "evaluate.every=0")
    whole = pretrain(config, data=data, out=tmp_path / "whole")
    found = store.latest(whole)
    assert found is not None and found.name == "step-00000006"
    names = set(read_tensors(found / "model.safetensors"))
    assert names == {name for name, _ in make_model(config).named_parameters()}
    stop_at(3, config, data=data, out=tmp_path / "again")
    pretrain(config, data=data, out=tmp_path / "again")
    assert weights(tmp_path / "again") == weights(whole)
    lines = [line for line in metric_lines(whole) if line["kind"] == "train"]
    assert len(lines) == 6 and all(line["train/loss"] > 0 for line in lines)


def reference(config: Config, tensors: dict[str, Tensor], ids: Tensor, part: str) -> Tensor:
    """Logits as training computes them."""
    model = make_electra(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name])
        segments = torch.zeros_like(ids)
        keys = torch.zeros(len(ids), dtype=torch.int32)
        batch = Sequences(ids, torch.full((len(ids),), ids.shape[1]), segments, keys)
        if part == "discriminator":
            return discriminator_logits(OPS, model, batch, ids, dropout=False)
        head = model.generator_head
        assert head is not None
        hidden = model.masked_encoder(model.generator_embeddings(ids, segments, None), None)
        logits: Tensor = head.logits(hidden, model.generator_embeddings.token.weight, head.bias)
        return logits


@pytest.mark.parametrize("part", ["discriminator", "generator"])
@pytest.mark.parametrize("mode", MODES)
def test_promise_15_both_parts_of_every_mode_in_transformers(mode: str, part: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = replace(RTD, generator=generator_of(mode, width=0.5))
    if mode == "none":  # 48 units, so that the table's size is neither the discriminator's nor its width
        config = replace(config, generator=generator_of(mode, width=0.75))
    tensors = make_run(tmp_path / "run", config)
    ids = torch.randint(5, 60, (3, 20), generator=torch.Generator().manual_seed(1))
    expected = reference(config, tensors, ids, part)
    assert expected.std() > 0.1
    loaded = load_model(tmp_path / "run", part=part)
    with torch.inference_mode():
        torch.testing.assert_close(loaded.module.logits(ids, torch.zeros_like(ids), None), expected, rtol=0, atol=1e-5)
    export_model(tmp_path / "run", tmp_path / "hf", part=part)
    kind = "ElectraForPreTraining" if part == "discriminator" else "ElectraForMaskedLM"
    theirs, info = getattr(transformers, kind).from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    with torch.inference_mode():
        torch.testing.assert_close(theirs.eval()(input_ids=ids).logits, expected, rtol=0, atol=1e-5)
    if mode == "none" and part == "generator":
        assert theirs.config.embedding_size == theirs.config.hidden_size == 48
    if mode == "all":
        assert theirs.config.hidden_size == config.model.width
    again = load_model(tmp_path / "hf", part=part)
    with torch.inference_mode():
        torch.testing.assert_close(again.module.logits(ids, torch.zeros_like(ids), None), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["unigram", "uniform", "two-tower"])
def test_generators_that_transformers_does_not_have(kind: str, tmp_path: Path) -> None:
    config = replace(RTD, generator=GeneratorConfig(width=0.5, kind=kind))  # type: ignore[arg-type]
    make_run(tmp_path / "run", config)
    export_model(tmp_path / "run", tmp_path / "hf")
    assert load_model(tmp_path / "hf").config == RTD.model
    with pytest.raises(CheckpointError, match=r"has no generator|two towers") as caught:
        export_model(tmp_path / "run", tmp_path / "generator", part="generator")
    assert "\n" not in str(caught.value) and not (tmp_path / "generator").exists()


def test_a_generator_reads_its_own_embeddings() -> None:
    """With tables of its own, nothing of the discriminator's changes what the generator predicts."""
    for mode in ("none", "gdes"):
        config = config_of(mode, dropout=0.0)
        model = lively(config)
        objective = cast(ReplacedTokenDetection, make_objective(config))
        assert isinstance(objective.generator, MaskedGenerator)
        batch = unpack(ragged_rows(4))
        masked = objective.choose_masked(batch)
        with torch.no_grad():
            before = objective.generator.sample(model, batch, masked, dropout=False).logp_MV
            for part in (model.embeddings, model.discriminator):
                for parameter in part.parameters():
                    parameter.add_(1.0)
            after = objective.generator.sample(model, batch, masked, dropout=False).logp_MV
        assert torch.equal(before, after)
