"""Weights and logits against transformers: names in both directions, bytes, numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from electra.checkpoint.tensors import read_tensors
from electra.config.load import preset, preset_names
from electra.config.schema import Config, DataConfig, GeneratorConfig, ModelConfig
from electra.interop import huggingface, names, settings
from electra.interop.names import Head, Part
from electra.interop.network import Network, Weights, build, checked
from electra.model.electra import Bert, Electra, build_model
from electra.model.encoder import discriminator_shape, generator_shape
from electra.ops.dispatch import host_ops

transformers = pytest.importorskip("transformers")

SMALLEST = replace(
    preset("tiny"),
    model=ModelConfig(layers=2, width=64, heads=2, ffn=128, embedding=32, vocab_size=300, positions=48),
    generator=GeneratorConfig(width=0.5),
    data=DataConfig(length=40),
)
SAME_WIDTH = replace(SMALLEST, model=replace(SMALLEST.model, embedding=64), generator=GeneratorConfig(width=1.0))
CLASSES = {"detection": "ElectraForPreTraining", "masked": "ElectraForMaskedLM"}


def sizes(config: Config, part: Part) -> ModelConfig:
    if part == "discriminator":
        return config.model
    shape = generator_shape(config.model, config.generator)
    return replace(config.model, layers=shape.layers, width=shape.width, heads=shape.heads, ffn=shape.ffn)


def shaken(model: torch.nn.Module, *, width: int) -> dict[str, torch.Tensor]:
    """Random values everywhere, norms and biases included, so that a swapped tensor shows."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.8 / width**0.5)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@cache
def both_networks(config: Config) -> dict[str, torch.Tensor]:
    return shaken(build_model(config, ops=host_ops()), width=config.model.width)


def weights_of(config: Config, part: Part) -> Weights:
    tensors = names.network_of(both_networks(config), part)
    head: Head = "detection" if "head.score.weight" in tensors else "masked"
    weights = Weights(config=sizes(config, part), head=head, length=config.data.length, tensors=tensors)
    return checked(weights, Path("memory"))


def same_bytes(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype and tensor.shape == right[name].shape
        assert tensor.numpy().tobytes() == right[name].numpy().tobytes(), name


def load_theirs(folder: Path, kind: str) -> Any:
    """The transformers model of a folder; anything missing, unexpected or mismatched fails."""
    model, info = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model.eval()


CASES = [
    (SMALLEST, "discriminator"),
    (SMALLEST, "generator"),
    (SAME_WIDTH, "discriminator"),
    (SAME_WIDTH, "generator"),
    (replace(SMALLEST, objective=replace(SMALLEST.objective, name="mlm")), "discriminator"),
    (preset("small"), "discriminator"),
    (preset("small"), "generator"),
]
NAMES = ["rtd", "rtd-generator", "one-width", "one-width-generator", "mlm", "small", "small-generator"]


@pytest.mark.parametrize(("config", "part"), CASES, ids=NAMES)
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_promise_15_logits_equal_transformers(config: Config, part: Part, padded: bool, tmp_path: Path) -> None:
    weights = weights_of(config, part)
    huggingface.write_weights(tmp_path, weights, pad_id=0)
    assert weights.head is not None
    theirs = load_theirs(tmp_path, CLASSES[weights.head])
    assert type(theirs).__name__ in json.loads((tmp_path / "config.json").read_text())["architectures"]

    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(5, 300, (4, 40), generator=generator)
    segments = (torch.arange(40) >= 17).long().expand(4, 40)
    lengths = torch.tensor([40, 31, 2, 18]) if padded else None
    visible = torch.ones(4, 40).bool() if lengths is None else torch.arange(40) < lengths[:, None]
    ids = ids.where(visible, 0)
    with torch.inference_mode():
        ours = build(weights).logits(ids, segments, lengths)
        mask = visible.long() if padded else None
        reference = theirs(input_ids=ids, token_type_ids=segments, attention_mask=mask).logits
    assert reference.std() > 0.1
    assert (ours - reference).abs()[visible].max().item() < 1e-5


@pytest.mark.parametrize(("config", "part"), CASES, ids=NAMES)
def test_promise_15_there_and_back_is_bitwise(config: Config, part: Part, tmp_path: Path) -> None:
    weights = weights_of(config, part)
    (tmp_path / "one").mkdir()
    huggingface.write_weights(tmp_path / "one", weights, pad_id=0)
    back = huggingface.read_folder(tmp_path / "one")
    assert (back.config, back.head, back.length, back.unused) == (weights.config, weights.head, weights.length, ())
    same_bytes(back.tensors, weights.tensors)

    # The other way: what transformers writes, read by us and written again, is the same tensors.
    assert weights.head is not None
    load_theirs(tmp_path / "one", CLASSES[weights.head]).save_pretrained(tmp_path / "two")
    again = huggingface.read_folder(tmp_path / "two")
    same_bytes(again.tensors, weights.tensors)
    theirs = read_tensors(tmp_path / "two" / "model.safetensors")
    same_bytes(read_tensors(tmp_path / "one" / "model.safetensors"), theirs)


@pytest.mark.parametrize("name", preset_names())
def test_promise_15_every_preset_has_the_shapes_of_transformers(name: str) -> None:
    config = preset(name)
    with torch.device("meta"):
        ours = Bert(config, ops=host_ops()) if config.objective.name == "mlm" else Electra(config, ops=host_ops())
    run = dict(ours.named_parameters())
    parts: tuple[Part, ...] = ("discriminator",) if isinstance(ours, Bert) else ("discriminator", "generator")
    for part in parts:
        network = names.network_of(run, part)
        head: Head = "detection" if "head.score.weight" in network else "masked"
        size = sizes(config, part)
        table = names.translation(discriminator_shape(size), head)
        exported = names.to_transformers(network, table)
        values = settings.to_transformers(size, head=head, pad_id=0, length=config.data.length)
        with torch.device("meta"):
            theirs = getattr(transformers, CLASSES[head])(transformers.ElectraConfig(**values))
        expected = {
            key: value.shape for key, value in theirs.state_dict().items() if key != names.OUTPUT_TABLES["electra"]
        }
        assert {key: value.shape for key, value in exported.items()} == expected
        assert settings.from_transformers(values, Path("config.json")) == (size, config.data.length)
        back = names.from_transformers(exported, table)
        assert {k: v.shape for k, v in back.items()} == {k: v.shape for k, v in network.items()}


@pytest.mark.parametrize("name", ["tiny", "small", "base"])
def test_promise_15_presets_there_and_back_are_bitwise(name: str) -> None:
    config = preset(name)
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in Electra(config, ops=host_ops()).named_parameters()}
    generator = torch.Generator().manual_seed(1)
    block = torch.randn(1 << 16, generator=generator)
    run = {
        key: block.repeat(-(-shape.numel() // block.numel()))[: shape.numel()].view(shape) + number
        for number, (key, shape) in enumerate(shapes.items())
    }
    whole: dict[str, torch.Tensor] = {}
    for part in ("generator", "discriminator"):
        network = names.network_of(run, part)
        head: Head = "detection" if part == "discriminator" else "masked"
        table = names.translation(discriminator_shape(sizes(config, part)), head)
        whole[part] = names.from_transformers(names.to_transformers(network, table), table)  # type: ignore[assignment]
        same_bytes(whole[part], network)  # type: ignore[arg-type]
    same_bytes(names.run_of(whole["discriminator"], whole["generator"]), run)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "head", "unused"),
    [
        ("ElectraForPreTraining", "detection", ()),
        ("ElectraForMaskedLM", "masked", ()),
        ("ElectraModel", None, ()),
        (
            "ElectraForSequenceClassification",
            None,
            (
                "classifier.dense.bias",
                "classifier.dense.weight",
                "classifier.out_proj.bias",
                "classifier.out_proj.weight",
            ),
        ),
    ],
)
def test_folders_that_transformers_wrote(kind: str, head: Head | None, unused: tuple[str, ...], tmp_path: Path) -> None:
    values = settings.to_transformers(SMALLEST.model, head=None, pad_id=0, length=64)
    torch.manual_seed(5)
    theirs = getattr(transformers, kind)(transformers.ElectraConfig(**values)).eval()
    theirs.save_pretrained(tmp_path)
    weights = huggingface.read_folder(tmp_path)
    assert (weights.config, weights.head, weights.unused) == (SMALLEST.model, head, unused)
    ids = torch.arange(5, 35)[None]
    with torch.inference_mode():
        ours = build(weights)(ids, torch.zeros_like(ids), None)
        inner = theirs if kind == "ElectraModel" else theirs.electra
        reference = inner(input_ids=ids).last_hidden_state
    assert (ours - reference).abs().max() < 1e-5


def test_half_precision_and_pieces_and_old_files(tmp_path: Path) -> None:
    """Half precision is widened exactly, split files are joined, and what old versions also stored is known."""
    values = settings.to_transformers(SMALLEST.model, head="masked", pad_id=0, length=64)
    theirs = transformers.ElectraForMaskedLM(transformers.ElectraConfig(**values)).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path / "pieces", max_shard_size="20KB")
    assert not (tmp_path / "pieces" / "model.safetensors").exists()
    weights = huggingface.read_folder(tmp_path / "pieces")
    assert {t.dtype for t in weights.tensors.values()} == {torch.float32}
    assert torch.equal(weights.tensors["embeddings.token.weight"], theirs.get_input_embeddings().weight.float())

    from safetensors.torch import save_file

    old = {key: value.clone() for key, value in theirs.state_dict().items()}
    assert names.OUTPUT_TABLES["electra"] in old
    old["electra.embeddings.position_ids"] = torch.arange(48)[None]
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text((tmp_path / "pieces" / "config.json").read_text())
    save_file(old, tmp_path / "old" / "model.safetensors")
    same_bytes(huggingface.read_folder(tmp_path / "old").tensors, weights.tensors)


def test_network_parameters_are_what_the_table_names() -> None:
    for head in ("detection", "masked", None):
        with torch.device("meta"):
            network = Network(SMALLEST.model, head, ops=host_ops())  # type: ignore[arg-type]
        table = names.translation(discriminator_shape(SMALLEST.model), head)  # type: ignore[arg-type]
        assert table.keys() == dict(network.named_parameters()).keys()
