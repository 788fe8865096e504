"""google-research/electra checkpoints as networks of ours: names, sizes and which way a kernel lies.

Their kernels are (inputs, outputs), ours (outputs, inputs). Sizes are not stored, so they are read off the shapes; an
attention head has 64 units there, always.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

from electra.config.schema import ModelConfig
from electra.errors import CheckpointError
from electra.interop import names
from electra.interop.names import Head, Part, Tensors
from electra.interop.network import Weights, checked
from electra.interop.tensor_bundle import Bundle
from electra.model.encoder import discriminator_shape

HEAD_UNITS = 64
_SCOPES: dict[Part, str] = {"discriminator": "electra", "generator": "generator"}
_LAYER = re.compile(r"encoder/layer_(\d{1,4})/")


def read_network(bundle: Bundle, part: Part) -> Weights | None:
    """One network of a pre-training checkpoint; None where it has no such network.

    A generator with token tables of its own counts as none: a run of ours cannot hold it.
    """
    scope = _SCOPES[part]
    if not _has(bundle, f"{scope}/encoder/") or _has(bundle, "generator/embeddings/") and part == "generator":
        return None
    config, head = _sizes(bundle, scope), _head(bundle, part)
    table = names.translation(discriminator_shape(config), head)
    theirs: Tensors = {}
    for wanted in (name for group in table.values() for name in group):
        found = _their_name(wanted, bundle, scope)
        array = bundle.read(found)
        theirs[wanted] = torch.from_numpy(np.ascontiguousarray(array.T) if found.endswith("/kernel") else array)
    weights = Weights(config=config, head=head, length=config.positions, tensors=names.from_transformers(theirs, table))
    return checked(weights, bundle.prefix)


def _has(bundle: Bundle, scope: str) -> bool:
    return any(name.startswith(scope) for name in bundle.entries)


def _head(bundle: Bundle, part: Part) -> Head | None:
    if part == "discriminator" and _has(bundle, "discriminator_predictions/"):
        return "detection"
    alone = part == "discriminator" and not _has(bundle, "generator/encoder/")  # a BERT has one network and this head
    return "masked" if (alone or part == "generator") and _has(bundle, "generator_predictions/") else None


def _their_name(wanted: str, bundle: Bundle, scope: str) -> str:
    """The variable that holds what transformers names `wanted`."""
    name = wanted.replace(".", "/").replace("dense_prediction/", "dense_1/").replace("layer/", "layer_")
    if name == "generator_lm_head/bias":
        name = "generator_predictions/output_bias"
    elif name.endswith("_embeddings/weight"):
        name = name.removesuffix("/weight")
    elif "LayerNorm/" in name:
        name = name.replace("/weight", "/gamma").replace("/bias", "/beta")
    else:
        name = name.replace("/weight", "/kernel")
    if name.startswith("electra/"):
        shared = name.startswith("electra/embeddings/")  # a generator has the discriminator's
        name = name if shared else scope + name.removeprefix("electra")
    if name not in bundle.entries:
        raise CheckpointError(bundle.prefix, f"lacks the variable {name}", fix="give a checkpoint of pre-training")
    return name


def _sizes(bundle: Bundle, scope: str) -> ModelConfig:
    def shape(name: str, rank: int) -> tuple[int, ...]:
        entry = bundle.entries.get(name)
        if entry is None or len(entry.shape) != rank or min(entry.shape) < 1:
            raise CheckpointError(bundle.prefix, f"lacks the variable {name}", fix="give a checkpoint of pre-training")
        return entry.shape

    vocab_size, embedding = shape("electra/embeddings/word_embeddings", 2)
    width, ffn = shape(f"{scope}/encoder/layer_0/intermediate/dense/kernel", 2)
    layers = {int(found[1]) for name in bundle.entries if (found := _LAYER.match(name.removeprefix(f"{scope}/")))}
    heads = max(1, width // HEAD_UNITS)
    if layers != set(range(len(layers))) or width % heads:
        reason = f"has layers {sorted(layers)[:9]} of width {width}, which is no encoder of google-research/electra"
        raise CheckpointError(bundle.prefix, reason)
    return ModelConfig(
        layers=len(layers),
        width=width,
        heads=heads,
        ffn=ffn,
        embedding=embedding,
        vocab_size=vocab_size,
        positions=shape("electra/embeddings/position_embeddings", 2)[0],
    )


def vocabulary(prefix: Path) -> Path:
    """The folder that holds the checkpoint's vocab.txt; refused where it has none."""
    folder = prefix.parent
    if not (folder / "vocab.txt").is_file():
        fix = "copy the vocab.txt that it was trained with there"
        raise CheckpointError(folder, "has no vocab.txt beside the checkpoint", fix=fix)
    return folder
