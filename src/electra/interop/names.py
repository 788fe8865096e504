"""Weight names: of a run (`discriminator.layers.0...`), of one network (`encoder.layers.0...`), of transformers.

A network's names start with `embeddings.`, `encoder.` or `head.`; the other two are translations of these. Nothing is
computed: tensors are renamed, split and joined, so exporting and importing again gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from electra.model.encoder import Shape

Part = Literal["discriminator", "generator"]
Head = Literal["detection", "masked"]
Tensors = dict[str, Tensor]
Table = dict[str, tuple[str, ...]]

_EMBEDDINGS = {
    "embeddings.token.weight": "word_embeddings.weight",
    "embeddings.position.weight": "position_embeddings.weight",
    "embeddings.segment.weight": "token_type_embeddings.weight",
    "embeddings.norm": "LayerNorm",
}
_LAYER = {
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm": "output.LayerNorm",
}
_DETECTION = {
    "head.dense": "discriminator_predictions.dense",
    "head.score": "discriminator_predictions.dense_prediction",
}
_HEADS = {
    "electra": {
        "detection": _DETECTION,
        "masked": {
            "head.dense": "generator_predictions.dense",
            "head.norm": "generator_predictions.LayerNorm",
            "head.bias": "generator_lm_head.bias",
        },
    },
    "roformer": {
        "detection": _DETECTION,  # our own: RoFormer has no such head, and transformers leaves it out
        "masked": {
            "head.dense": "cls.predictions.transform.dense",
            "head.norm": "cls.predictions.transform.LayerNorm",
            "head.bias": "cls.predictions.bias",
        },
    },
}
OUTPUT_TABLES = {"electra": "generator_lm_head.weight", "roformer": "cls.predictions.decoder.weight"}
"""Copies of the token table that some files carry: ours are tied, so they must be equal."""
ROTATION = "roformer.encoder.embed_positions.weight"
"""Sines and cosines, which RoFormer's files carry although they are not learned."""


def family(*, rotary: bool) -> str:
    """What transformers calls such models: `model_type`, and what the names of an encoder begin with."""
    return "roformer" if rotary else "electra"


def token_table(base: str) -> str:
    """The token table of a family."""
    return f"{base}.embeddings.word_embeddings.weight"


def translation(shape: Shape, head: Head | None) -> Table:
    """Each weight name of a network and what transformers calls it: one name, or three that are joined."""
    base = family(rotary=shape.rotary)
    names = {our: f"{base}.embeddings.{their}" for our, their in _EMBEDDINGS.items()}
    if shape.rotary:
        del names["embeddings.position.weight"]
    if shape.embedding != shape.width:
        names["encoder.project"] = f"{base}.embeddings_project"
    table: Table = {}
    for number in range(shape.layers):
        ours, theirs = f"encoder.layers.{number}", f"{base}.encoder.layer.{number}"
        for kind in ("weight", "bias"):
            table[f"{ours}.attention.qkv.{kind}"] = tuple(
                f"{theirs}.attention.self.{which}.{kind}" for which in ("query", "key", "value")
            )
        names |= {f"{ours}.{our}": f"{theirs}.{their}" for our, their in _LAYER.items()}
    names |= _HEADS[base][head] if head else {}
    for our, their in names.items():
        kinds = ("",) if their.endswith((".weight", ".bias")) else (".weight", ".bias")
        table |= {our + kind: (their + kind,) for kind in kinds}
    return table


def head_in(theirs: Iterable[str]) -> Head | None:
    """Which of the pre-training heads a transformers state dict has."""
    prefixes = {name.split(".")[0] for name in theirs}
    if "discriminator_predictions" in prefixes:
        return "detection"
    return "masked" if prefixes & {"generator_predictions", "cls"} else None


def to_transformers(network: Mapping[str, Tensor], table: Table) -> Tensors:
    """One network's tensors under transformers' names, each in memory of its own."""
    return {
        name: piece.clone(memory_format=torch.contiguous_format)
        for our, names in table.items()
        for name, piece in zip(names, network[our].chunk(len(names)), strict=True)
    }


def from_transformers(theirs: Mapping[str, Tensor], table: Table) -> Tensors:
    """One network's tensors out of a transformers state dict that has all of the table's names."""
    return {
        our: torch.cat([theirs[name] for name in names]) if len(names) > 1 else theirs[names[0]]
        for our, names in table.items()
    }


def network_of(run: Mapping[str, Tensor], part: Part) -> Tensors:
    """One network's tensors out of a run's; a run with a single network gives that one."""
    if any(name.startswith("encoder.") for name in run):
        return dict(run)

    def has(prefix: str) -> bool:
        return any(name.startswith(prefix) for name in run)

    # A head without an encoder of its own stands on the discriminator's: everything else is shared.
    encoder = f"{part}." if has(f"{part}.") or not has(f"{part}_head.") else "discriminator."
    prefixes = {
        f"{part}_embeddings." if has(f"{part}_embeddings.") else "embeddings.": "embeddings.",
        encoder: "encoder.",
        f"{part}_head.": "head.",
    }
    return {
        new + name.removeprefix(old): tensor
        for name, tensor in run.items()
        for old, new in prefixes.items()
        if name.startswith(old)
    }


def run_of(discriminator: Mapping[str, Tensor], generator: Mapping[str, Tensor] | None) -> Tensors:
    """A run's tensors out of one or both networks; the embeddings are the discriminator's."""
    run = {_run_name(name, "discriminator"): tensor for name, tensor in discriminator.items()}
    for name, tensor in (generator or {}).items():
        if not name.startswith("embeddings."):
            run[_run_name(name, "generator")] = tensor
    return run


def _run_name(name: str, part: Part) -> str:
    first, _, rest = name.partition(".")
    renamed = {"embeddings": "embeddings", "encoder": part, "head": f"{part}_head"}
    return f"{renamed[first]}.{rest}"
