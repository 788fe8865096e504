"""Sizes and settings: our ModelConfig as transformers' config.json, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from electra.checkpoint.tensors import require_memory
from electra.config.schema import ModelConfig
from electra.config.validate import validate_model
from electra.errors import CheckpointError, ConfigError
from electra.interop.names import Head, family
from electra.model.cost import encoder_parameters
from electra.ops import NORM_EPS

_CLASSES: dict[str, dict[Head | None, str]] = {
    "electra": {"detection": "ElectraForPreTraining", "masked": "ElectraForMaskedLM", None: "ElectraModel"},
    "roformer": {"detection": "RoFormerModel", "masked": "RoFormerForMaskedLM", None: "RoFormerModel"},
}
# transformers leaves values out of config.json that are its defaults, so the defaults are part of the format.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522,
    "embedding_size": 128,
    "hidden_size": 256,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "max_position_embeddings": 512,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
_ROFORMER_DEFAULTS: dict[str, Any] = _DEFAULTS | {
    "vocab_size": 50000,
    "embedding_size": None,  # the hidden size
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 1536,
}
_SIZES = [key for key, value in _DEFAULTS.items() if isinstance(value, int)]
_FIXED: dict[str, Any] = {
    "hidden_act": "gelu",
    "layer_norm_eps": NORM_EPS,
    "type_vocab_size": 2,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "rotary_value": False,
}
_SUMMARY = {
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": "gelu",
    "summary_last_dropout": 0.1,
}
LENGTH = "pretrained_length"
"""Our own key in config.json: the longest sequence seen in pre-training, beyond which positions are untrained."""

OBJECTIVE = "pretrained_objective"
"""Our own key in config.json: what the network was trained for, where it is ours."""


def architecture(config: ModelConfig, head: Head | None) -> str:
    """The transformers class that loads a network of this kind."""
    return _CLASSES[family(rotary=config.rotary)][head]


def check_sizes(config: ModelConfig, where: Path) -> None:
    """Refuse a network that cannot be, or that this machine cannot hold, before anything is built of it."""
    try:
        validate_model(config)
    except ConfigError as error:
        raise CheckpointError(where, str(error)) from error
    require_memory(encoder_parameters(config), where=where)


def to_transformers(config: ModelConfig, *, head: Head | None, pad_id: int, length: int) -> dict[str, Any]:
    """The content of config.json for one network."""
    return {
        "architectures": [architecture(config, head)],
        "model_type": family(rotary=config.rotary),
        "vocab_size": config.vocab_size,
        "embedding_size": config.embedding,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.ffn,
        "max_position_embeddings": config.positions,
        "type_vocab_size": _FIXED["type_vocab_size"],
        "hidden_act": _FIXED["hidden_act"],
        "layer_norm_eps": _FIXED["layer_norm_eps"],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "initializer_range": config.init_std,
        "pad_token_id": pad_id,
        "tie_word_embeddings": True,
        **({"rotary_value": False} if config.rotary else _SUMMARY),
        "dtype": "float32",
        LENGTH: length,
    }


def from_transformers(values: Any, where: Path) -> tuple[ModelConfig, int]:
    """The ModelConfig and pre-training length of a config.json's content; refused where we would compute otherwise."""
    if not isinstance(values, dict):
        raise CheckpointError(where, "is not a JSON object", fix="give a folder that save_pretrained wrote")
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in _CLASSES:
        fix = "only 'electra' and 'roformer' models can be read"
        raise CheckpointError(where, f"model_type is {str(kind)[:40]!r}", fix=fix)
    for key, only in _FIXED.items():
        if values.get(key, only) != only:
            raise CheckpointError(where, f"{key} is {values[key]!r}, and only {only!r} is supported")
    defaults = _ROFORMER_DEFAULTS if kind == "roformer" else _DEFAULTS
    sizes = {key: values.get(key, default) for key, default in defaults.items()}
    if kind == "roformer" and sizes["embedding_size"] is None:
        sizes["embedding_size"] = sizes["hidden_size"]
    for key, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int if key in _SIZES else int | float):
            raise CheckpointError(where, f"{key} is {value!r}, which is not a number")
        if value < (1 if key in _SIZES else 0):
            raise CheckpointError(where, f"{key} is {value!r}, which is too small")
    if sizes["hidden_size"] % sizes["num_attention_heads"]:
        reason = (
            f"num_attention_heads {sizes['num_attention_heads']} does not divide hidden_size {sizes['hidden_size']}"
        )
        raise CheckpointError(where, reason)
    config = ModelConfig(
        layers=sizes["num_hidden_layers"],
        width=sizes["hidden_size"],
        heads=sizes["num_attention_heads"],
        ffn=sizes["intermediate_size"],
        embedding=sizes["embedding_size"],
        vocab_size=sizes["vocab_size"],
        positions=sizes["max_position_embeddings"],
        dropout=float(sizes["hidden_dropout_prob"]),
        attention_dropout=float(sizes["attention_probs_dropout_prob"]),
        rotary=kind == "roformer",
        init_std=float(sizes["initializer_range"]),
    )
    check_sizes(config, where)
    length = values.get(LENGTH, config.positions)
    whole = isinstance(length, int) and not isinstance(length, bool)
    return config, min(length, config.positions) if whole and length > 0 else config.positions
