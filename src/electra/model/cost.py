"""What a configuration costs: parameters, tokens, and FLOPs by the paper's rules and as matrix products really done.

The paper's rules are those of its published script: a matrix product is 2mn, the backward pass costs what the forward
pass does, embedding lookups are multiplications by one-hot vectors, and 15.625 % of the tokens meet the output softmax.
Both counts add up the same list of parts; what the script does not know (two towers, a vocabulary on every token, a
frozen generator) is priced by its rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from electra.batches.masking import slot_count
from electra.config.schema import Config, ModelConfig
from electra.model.encoder import Shape, discriminator_shape, generator_shape
from electra.model.prices import Prices, Products, Script

INFERENCE_LENGTH = 128  # at which the paper states inference FLOPs


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """Trained numbers by part, named as the parts of the network are."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        """All that pre-training trains."""
        return sum(self.parts.values())

    @property
    def kept(self) -> int:
        """What is kept for fine-tuning: embeddings and encoder, no head."""
        return self.parts["embeddings"] + self.parts.get("discriminator", self.parts.get("encoder", 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class Ledger:
    """The bill of a pre-training run."""

    parameters: Parameters
    tokens: int
    """Tokens processed, padding included: steps x batch x length."""
    paper: float
    """Training FLOPs in the paper's convention."""
    real: float
    """Training FLOPs of the matrix products, forward and backward."""
    infer: float
    """FLOPs of classifying one sequence of 128 tokens, in the paper's convention."""


class Times(NamedTuple):
    """How often training pays for what a forward pass computes: as matrix products, and by the paper's rules."""

    real: int
    paper: int


TRAINED = Times(3, 2)  # the backward pass has two products for each of the forward pass
RECOMPUTED = Times(4, 2)  # the forward pass is done again on the way back, to save memory
UNREAD = Times(2, 2)  # no gradient goes on to what it reads
FROZEN = Times(1, 1)


class Part(NamedTuple):
    """A piece of the forward pass, in FLOPs a token."""

    forward: float
    times: Times


def train_flops(config: Config, *, steps: int | None = None) -> Ledger:
    """The bill of a whole run, or of its first `steps` steps."""
    steps = config.train.steps if steps is None else steps
    a_step = config.train.batch_size * config.data.length
    alone = min(steps, generator_steps(config))
    real, paper = (
        alone * a_step * _spent(config, prices, alone=True) + (steps - alone) * a_step * _spent(config, prices)
        for prices in (_products(config), _script(config))
    )
    return Ledger(
        parameters=parameters(config),
        tokens=steps * a_step,
        paper=paper,
        real=real,
        infer=paper_infer_flops(config.model),
    )


def generator_steps(config: Config) -> int:
    """Steps in which the generator trains alone."""
    return config.train.stage_steps[0] if config.train.algorithm == "two-stage" else 0


def learns(config: Config) -> bool:
    """Whether the generator has weights."""
    return config.objective.name != "mlm" and config.generator.kind in ("transformer", "two-tower")


def parameters(config: Config) -> Parameters:
    """Trained numbers by part; what generator and discriminator share is counted once."""
    model, kept, objective = config.model, discriminator_shape(config.model), config.objective
    embeddings = _embeddings_parameters(model, model.embedding)
    if objective.name == "mlm":
        head = _masked_head_parameters(kept.width, kept.embedding, model.vocab_size)
        return Parameters(parts={"embeddings": embeddings, "encoder": _encoder_parameters(kept), "head": head})
    parts = {"embeddings": embeddings}
    small, towers = generator_shape(model, config.generator), _towers(config)
    if learns(config):
        if config.generator.tying in ("none", "gdes") or config.train.algorithm == "two-stage":
            parts["generator_embeddings"] = _embeddings_parameters(model, small.embedding)
        if config.generator.tying != "all":
            parts["generator"] = towers * _encoder_parameters(small)
        parts["generator_head"] = _masked_head_parameters(towers * small.width, small.embedding, model.vocab_size)
    parts["discriminator"] = _encoder_parameters(kept)
    words = _masked_head_parameters(kept.width, kept.embedding, model.vocab_size)
    heads = {"replace-mlm": words, "all-tokens-mlm": words + _dense(kept.width, 1)}
    detection = _dense(kept.width, kept.width) + _dense(kept.width, 1)
    parts["discriminator_head"] = heads.get(objective.name, detection)
    if objective.contrastive_weight:
        parts["sentence_head"] = _dense(kept.width, 1)
    if config.train.algorithm == "adversarial":
        parts["baseline_head"] = _dense(small.width, 1)
    return Parameters(parts=parts)


def _dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _embeddings_parameters(model: ModelConfig, width: int) -> int:
    return (model.vocab_size + model.positions + 2 + 2) * width  # two segments, and the norm's two


def _encoder_parameters(shape: Shape) -> int:
    h, ffn = shape.width, shape.ffn
    layer = _dense(h, 3 * h) + _dense(h, h) + _dense(h, ffn) + _dense(ffn, h) + 2 * 2 * h
    return shape.layers * layer + (_dense(shape.embedding, h) if shape.embedding != h else 0)


def _masked_head_parameters(inputs: int, embedding: int, vocab: int) -> int:
    return _dense(inputs, embedding) + 2 * embedding + vocab


def _towers(config: Config) -> int:
    return 2 if config.generator.kind == "two-tower" else 1


# FLOPs: the parts of a forward pass, and two ways to price each.


def forward_flops_per_token(config: Config) -> float:
    """Matrix-product FLOPs of one token's forward pass, of generator and discriminator together."""
    return sum(part.forward for part in _parts(config, _products(config)))


def real_flops_per_token(config: Config) -> float:
    """Matrix-product FLOPs of training on one token, forward and backward; of two stages, the mean."""
    return _mean(config, _products(config))


def stage_flops_per_token(config: Config) -> tuple[float, ...]:
    """Matrix-product FLOPs of training on one token, in each stage of the run."""
    prices = _products(config)
    alone = (_spent(config, prices, alone=True),) if config.train.algorithm == "two-stage" else ()
    return *alone, _spent(config, prices)


def paper_flops_per_token(config: Config) -> float:
    """FLOPs of training on one token in the paper's convention; of two stages, the mean."""
    return _mean(config, _script(config))


def paper_infer_flops(model: ModelConfig, *, length: int = INFERENCE_LENGTH) -> float:
    """FLOPs of classifying one sequence of `length` tokens, in the paper's convention."""
    shape = discriminator_shape(model)
    prices = Script(length=length, vocab=model.vocab_size)
    return length * (prices.encoder(shape) + prices.detection(shape.width))


def _products(config: Config) -> Prices:
    length = config.data.length
    share = max(1, slot_count(length, config.masking.rate)) / length
    return Products(length=length, vocab=config.model.vocab_size, share=share)


def _script(config: Config) -> Prices:
    return Script(length=config.data.length, vocab=config.model.vocab_size)


def _mean(config: Config, prices: Prices) -> float:
    alone = generator_steps(config) / config.train.steps
    together = _spent(config, prices)
    return alone * _spent(config, prices, alone=True) + (1 - alone) * together if alone else together


def _spent(config: Config, prices: Prices, *, alone: bool = False) -> float:
    """FLOPs of training on one token, of the first of two stages if `alone`."""
    parts = _generator_parts(config, prices, TRAINED) if alone else _parts(config, prices)
    return sum(part.forward * (part.times.paper if prices.paper else part.times.real) for part in parts)


def _parts(config: Config, prices: Prices) -> list[Part]:
    """The forward pass of training; of two stages, of the second."""
    objective, kept = config.objective, discriminator_shape(config.model)
    times = FROZEN if config.train.algorithm == "two-stage" else TRAINED
    words, score = prices.words(kept.width, kept.embedding), prices.score(kept.width)
    parts = [*_generator_parts(config, prices, times), Part(prices.encoder(kept), TRAINED)]
    if objective.name in ("mlm", "replace-mlm"):
        parts.append(Part(prices.share * words, TRAINED))
    elif objective.name == "all-tokens-mlm":
        parts.append(Part(words + score, TRAINED))
    else:
        parts.append(Part(prices.detection(kept.width), TRAINED))
    if objective.contrastive_weight:
        parts.append(Part(score / config.data.length, TRAINED))
    return parts


def _generator_parts(config: Config, prices: Prices, times: Times) -> list[Part]:
    if not learns(config):
        return []
    small, towers = generator_shape(config.model, config.generator), _towers(config)
    words = prices.words(towers * small.width, small.embedding)
    parts = [Part(prices.encoder(small, towers), times), Part(prices.share * words, times)]
    if config.objective.name == "electric":  # every token is asked for; the samples teach nothing
        parts[1:] = [Part(prices.share * words, FROZEN), Part(words, RECOMPUTED)]
    if config.train.algorithm == "adversarial":
        parts.append(Part(prices.share * prices.score(small.width), UNREAD))
    return parts
