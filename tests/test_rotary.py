"""Rotary positions: against complex numbers in float64 and RoFormer of transformers, there and back, and its ops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_folders import RTD, SIZE, make_run
from tiny import OPS, in_double, make_electra, ragged_rows, tiny_config
from torch import Tensor
from tuned_folders import loaded

from electra.batches.sequences import unpack
from electra.config.load import load
from electra.config.schema import Config, ModelConfig, ObjectiveConfig
from electra.errors import CheckpointError, ConfigError
from electra.finetune.export import export_finetuned
from electra.finetune.head_outputs import head_outputs
from electra.interop import huggingface, names
from electra.interop.models import load_model, read_source
from electra.interop.transfer import export_model, import_model
from electra.model.layers import Layer
from electra.ops.dispatch import select
from electra.ops.reference.attention import attention, rotation
from electra.tasks.rows import Features, Kind

transformers = pytest.importorskip("transformers")
ROTARY = replace(RTD, model=replace(SIZE, rotary=True))
MLM = replace(ROTARY, objective=ObjectiveConfig(name="mlm"))


def turned(x_LH: Tensor) -> Tensor:
    """Pairs as complex numbers, each multiplied by exp(i · position · 10000^(-2j/H))."""
    length, size = x_LH.shape
    pairs = torch.view_as_complex(x_LH.double().unflatten(1, (-1, 2)).contiguous())
    angles = torch.tensor([[place * 10000 ** (-2 * j / size) for j in range(size // 2)] for place in range(length)])
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles).double(), angles.double())).flatten(1)


def test_attention_is_that_of_turned_queries_and_keys() -> None:
    heads, size, length = 2, 6, 9
    width = heads * size
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, length, width), (3 * width, width), (3 * width,))
    x, weight, bias = (torch.randn(*shape, generator=generator) for shape in shapes)
    settings: dict[str, Any] = {"heads": heads, "mask_B1LL": None, "rate": 0.0, "keys_B": None}
    found = attention(x, weight, bias, **settings, rotation_2LH=rotation(length, size, x.device))
    q, k, v = (x[0].double() @ weight.double().T + bias.double()).chunk(3, dim=1)
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = turned(q[:, part]) @ turned(k[:, part]).T / size**0.5
        torch.testing.assert_close(found[0, :, part].double(), scores.softmax(1) @ v[:, part], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found, attention(x, weight, bias, **settings), atol=1e-3)


def test_scores_depend_on_distances_only() -> None:
    q, k = torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(1)).double()
    scores = [[float(turned(q.expand(12, 8))[i] @ turned(k.expand(12, 8))[j]) for j in range(12)] for i in range(12)]
    cosine, sine = rotation(12, 8, torch.device("cpu")).double()
    across = torch.stack((-k[:, 1::2], k[:, ::2]), -1).flatten(1)
    ours = k * cosine + across * sine
    torch.testing.assert_close(ours, turned(k.expand(12, 8)), atol=1e-6, rtol=1e-6)
    for gap in range(-5, 6):
        along = [scores[i][i + gap] for i in range(12) if 0 <= i + gap < 12]
        assert np.ptp(along) < 1e-6


def test_dropout_and_gradients_are_the_references() -> None:
    """The C++ stack leaves rotary positions to the reference, dropout by address included."""
    config = tiny_config(model=replace(tiny_config().model, rotary=True))
    model, batch = make_electra(config), unpack(ragged_rows(4))
    x = torch.randn(4, 24, 32, generator=torch.Generator().manual_seed(2))
    layer, plain = model.discriminator.layers[0], in_double(model.discriminator)
    assert isinstance(layer, Layer)
    turn = rotation(24, 16, x.device)
    one = layer(x, None, batch.keys_B, 0, turn)
    other = plain.layers[0](x.double(), None, batch.keys_B, 0, turn.double())
    torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)
    one.square().sum().backward()
    other.square().sum().backward()
    own = dict(plain.layers[0].named_parameters())
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), own[name].grad, atol=1e-3, rtol=1e-4)


def load_theirs(folder: Path, *, left: tuple[str, ...] = ()) -> Any:
    """The transformers model that config.json names; nothing is missing, and only what begins with `left` is unused."""
    config = transformers.AutoConfig.from_pretrained(folder)
    model, info = getattr(transformers, config.architectures[0]).from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    assert all(name.startswith(left) for name in info["unexpected_keys"]) if left else not info["unexpected_keys"]
    return model.eval()


@pytest.mark.parametrize(
    ("config", "part", "kind"),
    [
        (ROTARY, "discriminator", "RoFormerModel"),
        (ROTARY, "generator", "RoFormerForMaskedLM"),
        (MLM, "discriminator", "RoFormerForMaskedLM"),
    ],
)
def test_promise_15_encoders_and_mlm_heads_equal_roformer(config: Config, part: Any, kind: str, tmp_path: Path) -> None:
    make_run(tmp_path / "run", config)
    export_model(tmp_path / "run", tmp_path / "hf", part=part)
    theirs = load_theirs(tmp_path / "hf", left=("discriminator_predictions.",) if kind == "RoFormerModel" else ())
    assert type(theirs).__name__ == kind
    ids = torch.randint(5, SIZE.vocab_size, (4, 24), generator=torch.Generator().manual_seed(3))
    segments = (torch.arange(24) >= 11).long().expand(4, 24)
    lengths = torch.tensor([24, 17, 2, 9])
    visible = torch.arange(24) < lengths[:, None]
    ours = load_model(tmp_path / "run", part=part)
    with torch.inference_mode():
        out = theirs(input_ids=ids, token_type_ids=segments, attention_mask=visible.long())
        expected = out.last_hidden_state if kind == "RoFormerModel" else out.logits
        network = ours.module
        found = network(ids, segments, lengths) if kind == "RoFormerModel" else network.logits(ids, segments, lengths)
    assert expected.std() > 0.1
    assert (found - expected).abs()[visible].max().item() < 1e-5


def test_promise_15_there_and_back_is_bitwise(tmp_path: Path) -> None:
    make_run(tmp_path / "run", ROTARY)
    for part in ("discriminator", "generator"):
        export_model(tmp_path / "run", tmp_path / part, part=part)  # type: ignore[arg-type]
        weights, back = read_source(tmp_path / "run", part=part).weights, read_source(tmp_path / part).weights  # type: ignore[arg-type]
        assert (back.config, back.head, back.length, back.unused) == (weights.config, weights.head, weights.length, ())
        assert back.tensors.keys() == weights.tensors.keys() and "embeddings.position.weight" not in back.tensors
        assert all(torch.equal(back.tensors[name], tensor) for name, tensor in weights.tensors.items())
    pair = import_model(tmp_path / "discriminator", tmp_path / "again", generator=tmp_path / "generator")
    assert pair.config.model == ROTARY.model and not pair.missing and not pair.unused
    load_theirs(tmp_path / "generator").save_pretrained(tmp_path / "theirs")
    theirs = huggingface.read_folder(tmp_path / "theirs")
    own = read_source(tmp_path / "generator").weights.tensors
    assert not theirs.unused and all(torch.equal(theirs.tensors[name], tensor) for name, tensor in own.items())


def test_the_replaced_token_head_stays_ours(tmp_path: Path) -> None:
    make_run(tmp_path / "run", ROTARY)
    export_model(tmp_path / "run", tmp_path / "hf")
    assert "no replaced-token head" in (tmp_path / "hf" / "README.md").read_text()
    ids = torch.randint(5, SIZE.vocab_size, (2, 20), generator=torch.Generator().manual_seed(5))
    one, other = (load_model(tmp_path / name).probabilities(ids) for name in ("run", "hf"))
    assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["classify", "regress", "tag", "span"])
def test_promise_15_fine_tuned_heads_equal_roformers(kind: Kind, tmp_path: Path) -> None:
    more = {"span_head": "plain"} if kind == "span" else {}
    ours = loaded(tmp_path / "tuned", kind, config=ROTARY.model, **more)
    made = export_finetuned(tmp_path / "tuned", tmp_path / "hf")
    theirs = load_theirs(tmp_path / "hf")
    assert type(theirs).__name__ == made.architecture and made.architecture.startswith("RoFormerFor")
    ids = [[2, 9, 12, 30, 3], [2, 11, 3], [2, *range(10, 25), 3]]
    features = Features(ids=ids, a_lengths=[len(row) for row in ids])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    text = "the chef cooked a meal."
    assert tokenizer(text)["input_ids"][1:-1] == ours.tokenizer.encode(text)
    found = head_outputs(ours.network, features, pad_id=0)
    for number, row in enumerate(ids):
        with torch.inference_mode():
            out = theirs(input_ids=torch.tensor([row]))
            hidden = ours.network.hidden(unpack(torch.tensor([[*row, len(row), len(row), 0]], dtype=torch.int32)))
        if kind == "span":
            with torch.inference_mode():
                starts, ends = ours.network.head(hidden)
            np.testing.assert_allclose(starts, out.start_logits, atol=1e-5, rtol=1e-5)
            np.testing.assert_allclose(ends, out.end_logits, atol=1e-5, rtol=1e-5)
        else:
            np.testing.assert_allclose(found["scores"][number], out.logits[0], atol=1e-5, rtol=1e-5)


def test_roformer_as_transformers_makes_it_is_read(tmp_path: Path) -> None:
    """Defaults left out of config.json, an embedding size of the width, and angles that are not ours."""
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 40}
    config = transformers.RoFormerConfig(**sizes, vocab_size=60, max_position_embeddings=32)
    model = transformers.RoFormerModel(config).eval()
    model.save_pretrained(tmp_path)
    weights = huggingface.read_folder(tmp_path)
    assert weights.config == ModelConfig(
        layers=1, width=24, heads=2, ffn=40, embedding=24, vocab_size=60, positions=32, rotary=True
    )
    assert weights.head is None and not weights.unused
    with torch.no_grad():
        model.encoder.embed_positions.weight.add_(0.1)
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="embed_positions"):
        huggingface.read_folder(tmp_path)


def test_the_choice_of_ops_says_why() -> None:
    ops = select(device=torch.device("cpu"), dtype=torch.float32, rotary=True)
    for name in ("attention", "encoder_stack"):
        assert (ops.chosen[name].backend, ops.chosen[name].reason) == ("reference", "model.rotary")
    others = {name for name, chosen in ops if chosen.backend == "cpp"}
    assert others == {name for name, chosen in OPS if chosen.backend == "cpp"} - {"attention", "encoder_stack"}


def test_heads_have_whole_pairs() -> None:
    with pytest.raises(ConfigError, match=r"model\.rotary.*a head has 15"):
        load("tiny", overrides=["model.rotary=true", "model.width=60", "model.heads=4", "generator.width=1"])
    assert names.family(rotary=True) == "roformer"
