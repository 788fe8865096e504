"""What tests of fine-tuning share: a tiny ELECTRA beside transformers' own, hand-made tasks, a plain optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_folders import SIZE, VOCAB
from torch import Tensor

from electra.config.finetune import FinetuneConfig
from electra.config.schema import ModelConfig
from electra.finetune.pretrained import Pretrained
from electra.finetune.task_model import TaskModel
from electra.finetune.trainer import Evaluate, Evaluated
from electra.interop import huggingface, settings
from electra.interop.network import Network, build
from electra.model.electra import initialise
from electra.ops.dispatch import host_ops
from electra.tasks.rows import Features, Kind
from electra.tokenizer.codec import Tokenizer

STILL = replace(SIZE, dropout=0.0, attention_dropout=0.0)
MINI = replace(STILL, layers=1, width=32, ffn=64, embedding=16)
PLAIN = FinetuneConfig(
    precision="fp32",
    device="cpu",
    dropout=0.0,
    encoder_dropout=0.0,
    attention_dropout=0.0,
    length=24,
    batch_size=8,
    log_every=1,
)
CLS, SEP = VOCAB.index("[CLS]"), VOCAB.index("[SEP]")
FIRST = VOCAB.index("a")  # of the ordinary tokens


def tiny_base(config: ModelConfig = STILL, *, seed: int = 0) -> Pretrained:
    """A network with the weights that pre-training starts from."""
    network = Network(config, None, ops=host_ops())
    initialise(network, std=0.1, seed=seed)  # as tiny as it is, 0.02 would drown the tokens in the residual stream
    return Pretrained(
        name="tiny",
        embeddings=network.embeddings,
        encoder=network.encoder,
        tokenizer=Tokenizer(VOCAB),
        config=config,
        length=24,
    )


def healthy(metric: Callable[[TaskModel], float]) -> Evaluate:
    """A metric whose network is never stuck."""
    return lambda network: Evaluated(metric(network), stuck=False)


def beside_transformers(folder: Path, config: ModelConfig = STILL) -> tuple[Any, Pretrained]:
    """A random ElectraModel of transformers, and what is read from the folder that it writes."""
    import transformers

    torch.manual_seed(11)
    values = settings.to_transformers(config, head=None, pad_id=0, length=24)
    theirs = transformers.ElectraModel(transformers.ElectraConfig(**values)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.5 / config.width**0.5)
    theirs.save_pretrained(folder)
    network = build(huggingface.read_folder(folder))
    base = replace(tiny_base(config), embeddings=network.embeddings, encoder=network.encoder)
    return theirs, base


def adamw(
    named: Iterable[tuple[str, Tensor]],
    state: dict[str, tuple[Tensor, Tensor]],
    *,
    lr: Callable[[str], float],
    clip: float = 1.0,
    decay: Callable[[str], float] = lambda name: 0.0,
) -> float:
    """One step as the released code does it, by hand, without bias correction; the norm before clipping."""
    named = list(named)
    gradients = {name: parameter.grad for name, parameter in named}
    norm = float(sum(gradient.double().square().sum() for gradient in gradients.values()) ** 0.5)  # type: ignore
    with torch.no_grad():
        for name, parameter in named:
            gradient = gradients[name]
            assert gradient is not None, name
            gradient = gradient * min(1.0, clip / norm)
            m, v = state.get(name, (torch.zeros_like(parameter), torch.zeros_like(parameter)))
            m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient.square()
            state[name] = m, v
            parameter -= lr(name) * (m / (v.sqrt() + 1e-6) + decay(name) * parameter)
            parameter.grad = None
    return norm


def toy(kind: Kind, count: int, *, seed: int = 0) -> tuple[Features, tuple[str, ...]]:
    """A task that can be learnt: one token says it. Sequences of several lengths; the task's labels."""
    random = np.random.default_rng(seed)
    ids: list[list[int]] = []
    a_lengths: list[int] = []
    targets: list[Any] = []
    signal = FIRST  # the first letters of the alphabet mean something, the others nothing
    for _ in range(count):
        body = random.integers(FIRST + 6, FIRST + 20, int(random.integers(4, 9))).tolist()
        place = int(random.integers(0, len(body) - 1))
        if kind == "classify":
            target: Any = int(random.integers(0, 2))
            if target:
                body[place] = signal
        elif kind == "regress":
            target = int(random.integers(0, 3))
            body[place] = signal + target
            target /= 2
        elif kind == "multilabel":
            target = random.integers(0, 2, 2).tolist()
            for number, on in enumerate(target):
                if on:
                    body[place + number] = signal + number
        elif kind == "tag":
            body[place] = signal
            target = [-1, *(int(token == signal) + (token > FIRST + 12) for token in body), -1]
        else:
            body[place] = signal
            start = 4 + place + 1
            target = [start, start, 0]
        question = [signal + 1, signal + 2] if kind == "span" else []
        first = [CLS, *question, SEP] if question else [CLS]
        ids.append([*first, *body, SEP])
        a_lengths.append(len(first) if question else len(body) + 2)
        targets.append(target)
    labels = {"classify": ("without", "with"), "multilabel": ("a", "b"), "tag": ("low", "high", "it")}.get(kind, ())
    if kind == "tag":
        return Features(ids=ids, a_lengths=a_lengths, targets=targets), labels
    types = {"regress": np.float32, "multilabel": np.float32}
    return Features(ids=ids, a_lengths=a_lengths, targets=np.array(targets, types.get(kind, np.int64))), labels
