"""What a configuration costs: parameters, tokens, and FLOPs by the paper's rules and as matrix products really done.

The paper's rules are those of its published script: a matrix product is 2mn, the backward pass costs what the forward
pass does, embedding lookups are multiplications by one-hot vectors, and 15.625 % of the tokens meet the output softmax.
"""

from __future__ import annotations

from dataclasses import dataclass

from electra.batches.masking import slot_count
from electra.config.schema import Config, ModelConfig
from electra.model.encoder import Shape, discriminator_shape, generator_shape

DROPOUT, NORM, GELU, SOFTMAX = 4, 5, 8, 5  # operations an element, in the paper's count
PAPER_OUTPUT_SHARE = 0.15625  # whatever the masking rate, also for the large models
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


def train_flops(config: Config, *, steps: int | None = None) -> Ledger:
    """The bill of a whole run, or of its first `steps` steps."""
    tokens = (config.train.steps if steps is None else steps) * config.train.batch_size * config.data.length
    return Ledger(
        parameters=parameters(config),
        tokens=tokens,
        paper=paper_flops_per_token(config) * tokens,
        real=real_flops_per_token(config) * tokens,
        infer=paper_infer_flops(config.model),
    )


def parameters(config: Config) -> Parameters:
    """Trained numbers by part; what generator and discriminator share is counted once."""
    model, kept = config.model, discriminator_shape(config.model)
    embeddings = (model.vocab_size + model.positions + 2 + 2) * model.embedding  # the last 2 are the norm's
    if config.objective.name == "mlm":
        head = _masked_head_parameters(kept, model.vocab_size)
        return Parameters(parts={"embeddings": embeddings, "encoder": _encoder_parameters(kept), "head": head})
    small = generator_shape(model, config.generator)
    return Parameters(
        parts={
            "embeddings": embeddings,
            "generator": _encoder_parameters(small),
            "generator_head": _masked_head_parameters(small, model.vocab_size),
            "discriminator": _encoder_parameters(kept),
            "discriminator_head": _dense(kept.width, kept.width) + _dense(kept.width, 1),
        }
    )


def _dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _encoder_parameters(shape: Shape) -> int:
    h, ffn = shape.width, shape.ffn
    layer = _dense(h, 3 * h) + _dense(h, h) + _dense(h, ffn) + _dense(ffn, h) + 2 * 2 * h
    return shape.layers * layer + (_dense(shape.embedding, h) if shape.embedding != h else 0)


def _masked_head_parameters(shape: Shape, vocab: int) -> int:
    return _dense(shape.width, shape.embedding) + 2 * shape.embedding + vocab


# Matrix products really done.


def real_flops_per_token(config: Config) -> float:
    """FLOPs of training on one token: forward, and twice that backward."""
    return 3 * forward_flops_per_token(config)


def forward_flops_per_token(config: Config) -> float:
    """Matrix-product FLOPs of one token's forward pass, generator included, the vocabulary on masked positions only."""
    model, length = config.model, config.data.length
    kept = discriminator_shape(model)
    share = max(1, slot_count(length, config.masking.rate)) / length
    if config.objective.name == "mlm":
        return _encoder_products(kept, length) + share * _masked_head_products(kept, model.vocab_size)
    small = generator_shape(model, config.generator)
    generator = _encoder_products(small, length) + share * _masked_head_products(small, model.vocab_size)
    return generator + _encoder_products(kept, length) + 2 * kept.width * (kept.width + 1)


def _encoder_products(shape: Shape, length: int) -> int:
    h = shape.width
    layer = 2 * h * 4 * h + 2 * 2 * h * shape.ffn + 2 * 2 * length * h
    return shape.layers * layer + (2 * shape.embedding * h if shape.embedding != h else 0)


def _masked_head_products(shape: Shape, vocab: int) -> int:
    return 2 * shape.width * shape.embedding + 2 * shape.embedding * vocab


# The paper's rules.


def paper_flops_per_token(config: Config) -> float:
    """FLOPs of training on one token in the paper's convention (forward counted twice)."""
    model, length = config.model, config.data.length
    kept = discriminator_shape(model)
    if config.objective.name == "mlm":
        return 2 * (_paper_encoder(kept, length, model.vocab_size) + _paper_masked_head(kept, model.vocab_size))
    small = generator_shape(model, config.generator)
    generator = _paper_encoder(small, length, model.vocab_size) + _paper_masked_head(small, model.vocab_size)
    return 2 * (generator + _paper_encoder(kept, length, model.vocab_size) + _paper_detection_head(kept))


def paper_infer_flops(model: ModelConfig, *, length: int = INFERENCE_LENGTH) -> float:
    """FLOPs of classifying one sequence of `length` tokens, in the paper's convention."""
    shape = discriminator_shape(model)
    return length * (_paper_encoder(shape, length, model.vocab_size) + _paper_detection_head(shape))


def _paper_encoder(shape: Shape, length: int, vocab: int) -> float:
    h, e, ffn = shape.width, shape.embedding, shape.ffn
    products = 3 * 2 * h * h + 2 * 2 * length * h + 2 * h * h + 2 * 2 * h * ffn
    probabilities = (SOFTMAX + DROPOUT + 1) * length * shape.heads  # 1: the scaling
    # The script counts the attention norm as 5 operations, not 5 an element; its figures are the published ones.
    attention = 3 * h + (1 + DROPOUT + 1) * h + NORM
    feed_forward = (GELU + 1) * ffn + (1 + DROPOUT + 1 + NORM) * h
    lookup = 2 * e * vocab + 2 * e * (length + 2) + (2 + NORM + DROPOUT) * e
    project = 2 * h * e + h if e != h else 0
    return shape.layers * (products + probabilities + attention + feed_forward) + lookup + project


def _paper_masked_head(shape: Shape, vocab: int) -> float:
    h, e = shape.width, shape.embedding
    return PAPER_OUTPUT_SHARE * (2 * e * vocab + 2 * h * e + (1 + GELU + NORM) * e + (SOFTMAX + 2) * vocab)


def _paper_detection_head(shape: Shape) -> float:
    return 2 * shape.width * shape.width + (1 + GELU + 2) * shape.width
