"""Small run folders for tests that need a model: real files, random weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from electra.checkpoint import store
from electra.config.load import preset, to_toml
from electra.config.schema import Config, DataConfig, GeneratorConfig, ModelConfig, ObjectiveConfig
from electra.manifest import commit_files, sums_below
from electra.model.electra import build_model
from electra.ops.dispatch import host_ops
from electra.tokenizer.backends import SPECIALS
from electra.tokenizer.codec import Tokenizer

WORDS = [
    "the",
    "a",
    "chef",
    "cooked",
    "ate",
    "meal",
    "dog",
    "sat",
    "on",
    "mat",
    "we",
    "saw",
    "bank",
    "money",
    "and",
    "cat",
]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
VOCAB = [*SPECIALS, *dict.fromkeys([*LETTERS, *WORDS]), *("##" + letter for letter in LETTERS), ".", ",", "!"]

SIZE = ModelConfig(layers=2, width=64, heads=2, ffn=128, embedding=32, vocab_size=len(VOCAB), positions=32)
RTD = replace(preset("tiny"), model=SIZE, generator=GeneratorConfig(width=0.5), data=DataConfig(length=24))
MLM = replace(RTD, objective=ObjectiveConfig(name="mlm"))


def make_run(run: Path, config: Config = RTD, *, step: int = 70, seed: int = 3) -> dict[str, torch.Tensor]:
    """Write a run folder with one checkpoint; its tensors."""
    model = build_model(replace(config, seed=seed), ops=host_ops())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    Tokenizer(VOCAB).save(run / "tokenizer")
    commit_files(run, {"config.toml": to_toml(config).encode()}, others=sums_below(run, "tokenizer"))
    store.save(
        run, step=step, tensors={"model": tensors, "average": zeros, "square": zeros}, state={"step": step}, keep=3
    )
    return tensors
