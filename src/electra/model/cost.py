"""What a configuration costs: parameters, tokens, and FLOPs by the paper's rules and as matrix products really done.

The paper's rules are those of its published script: a matrix product is 2mn, the backward pass costs what the forward
pass does, embedding lookups are multiplications by one-hot vectors, and 15.625 % of the tokens meet the output softmax.
Both counts add up the same list of parts; what the script does not know (two towers, a vocabulary on every token, a
frozen generator) is counted by its rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from electra.batches.schedules import mean_masked
from electra.config.schema import Config, GeneratorConfig, MaskingConfig, ModelConfig, ObjectiveConfig, TrainConfig
from electra.model.encoder import Shape, discriminator_shape, generator_shape
from electra.model.flop_rules import FlopRules, MatrixProducts, PaperScript

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
    def encoder(self) -> int:
        """Embeddings and encoder, no head: what fine-tuning starts from."""
        return self.parts["embeddings"] + self.parts.get("discriminator", self.parts.get("encoder", 0))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingCost:
    """Parameters, tokens and FLOPs of a pre-training run."""

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
    """How often training runs what a forward pass computes once: as matrix products, and by the paper's rules."""

    real: int
    paper: int


TRAINED = Times(3, 2)  # the backward pass has two products for each of the forward pass
RECOMPUTED = Times(4, 2)  # the backward pass repeats the forward pass, to save memory
INPUT_DETACHED = Times(2, 2)  # no gradient flows into what it reads
FROZEN = Times(1, 1)


class Part(NamedTuple):
    """A piece of the forward pass, in FLOPs a token."""

    forward: float
    times: Times


class Networks(NamedTuple):
    """What the FLOPs of a training step depend on, apart from the counting rules."""

    encoder: Shape
    generator: Shape | None
    """None where nothing generates with weights."""
    towers: int
    objective: str
    row_outputs: int
    """Numbers that are predicted from [CLS] for a whole row."""
    correction: bool
    algorithm: str
    length: int


def train_flops(config: Config, *, steps: int | None = None) -> TrainingCost:
    """The cost of a whole run, or of its first `steps` steps."""
    steps = config.train.steps if steps is None else steps
    a_step = config.data.length * _sequences(config.train, steps) / max(1, steps)
    alone = min(steps, sum(config.train.stage_steps[:-1]))
    done = 1.0 if config.train.max_minutes else min(1.0, max(1, steps) / max(1, config.train.steps))
    real = paper = 0.0
    for length, share in _lengths(config, steps).items():
        networks, vocab = _networks(config, length), config.model.vocab_size
        own_real, own_paper = (
            alone * a_step * _train(networks, rules, alone=True) + (steps - alone) * a_step * _train(networks, rules)
            for rules in (
                _products(config.masking, networks, vocab, done=done),
                PaperScript(length=length, vocab=vocab),
            )
        )
        real, paper = real + share * own_real, paper + share * own_paper
    return TrainingCost(
        parameters=parameters(config),
        tokens=step_tokens(config, steps),
        paper=paper,
        real=real,
        infer=paper_infer_flops(config.model),
    )


def _learns(objective: ObjectiveConfig, generator: GeneratorConfig) -> bool:
    """Whether the generator has weights."""
    return objective.name != "mlm" and generator.kind in ("transformer", "two-tower")


def parameters(config: Config) -> Parameters:
    """Trained numbers by part; what generator and discriminator share is counted once."""
    model, encoder, objective = config.model, discriminator_shape(config.model), config.objective
    embeddings = _embeddings_parameters(model, model.embedding)
    if objective.name == "mlm":
        head = _masked_head_parameters(encoder.width, encoder.embedding, model.vocab_size)
        parts = {"embeddings": embeddings, "encoder": _encoder_parameters(encoder), "head": head}
        return Parameters(parts=parts | _overlap_head(objective, encoder))
    parts = {"embeddings": embeddings}
    small, towers = generator_shape(model, config.generator), _towers(config.generator)
    if _learns(objective, config.generator):
        if config.generator.tying in ("none", "gdes") or config.train.algorithm == "two-stage":
            parts["generator_embeddings"] = _embeddings_parameters(model, small.embedding)
        if config.generator.tying != "all":
            parts["generator"] = towers * _encoder_parameters(small)
        parts["generator_head"] = _masked_head_parameters(towers * small.width, small.embedding, model.vocab_size)
    parts["discriminator"] = _encoder_parameters(encoder)
    masked = _masked_head_parameters(encoder.width, encoder.embedding, model.vocab_size)
    heads = {"replace-mlm": masked, "all-tokens-mlm": masked + _dense(encoder.width, 1)}
    detection = _dense(encoder.width, encoder.width) + _dense(encoder.width, 1)
    parts["discriminator_head"] = heads.get(objective.name, detection)
    if objective.correction_weight:
        parts["correction_head"] = masked
    parts |= _overlap_head(objective, encoder)
    if objective.contrastive_weight:
        parts["sentence_head"] = _dense(encoder.width, 1)
    if config.train.algorithm == "adversarial":
        parts["baseline_head"] = _dense(small.width, 1)
    return Parameters(parts=parts)


def _overlap_head(objective: ObjectiveConfig, encoder: Shape) -> dict[str, int]:
    return {"overlap_head": _dense(encoder.width, 2)} if objective.overlap_weight else {}


def encoder_parameters(model: ModelConfig) -> int:
    """Numbers in the embeddings and the encoder of one network, without a head."""
    return _embeddings_parameters(model, model.embedding) + _encoder_parameters(discriminator_shape(model))


def _dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _embeddings_parameters(model: ModelConfig, width: int) -> int:
    positions = 0 if model.rotary else model.positions
    return (model.vocab_size + positions + 2 + 2) * width  # two segments, and the norm's two


def _encoder_parameters(shape: Shape) -> int:
    h, ffn = shape.width, shape.ffn
    layer = _dense(h, 3 * h) + _dense(h, h) + _dense(h, ffn) + _dense(ffn, h) + 2 * 2 * h
    return shape.layers * layer + (_dense(shape.embedding, h) if shape.embedding != h else 0)


def _masked_head_parameters(inputs: int, embedding: int, vocab: int) -> int:
    return _dense(inputs, embedding) + 2 * embedding + vocab


def _towers(generator: GeneratorConfig) -> int:
    return 2 if generator.kind == "two-tower" else 1


# FLOPs: the parts of a forward pass, counted by either rule.


def real_flops_per_token(config: Config) -> float:
    """Matrix-product FLOPs of training on one token, forward and backward; of two stages or lengths, the mean."""
    *alone, together = stage_flops_per_token(config)
    steps = config.train.stage_steps
    return (alone[0] * steps[0] + together * steps[1]) / sum(steps) if alone else together


def stage_flops_per_token(config: Config) -> tuple[float, ...]:
    """Matrix-product FLOPs of training on one token, in each stage of the run; of two lengths, the mean."""
    vocab = config.model.vocab_size
    shares = {_networks(config, length): share for length, share in _lengths(config, config.train.steps).items()}
    rules = {networks: _products(config.masking, networks, vocab) for networks in shares}
    together = sum(share * _train(networks, rules[networks]) for networks, share in shares.items())
    if config.train.algorithm != "two-stage":
        return (together,)
    return sum(share * _train(networks, rules[networks], alone=True) for networks, share in shares.items()), together


def paper_infer_flops(model: ModelConfig) -> float:
    """FLOPs of classifying one sequence of 128 tokens, in the paper's convention."""
    shape = discriminator_shape(model)
    rules = PaperScript(length=INFERENCE_LENGTH, vocab=model.vocab_size)
    return INFERENCE_LENGTH * (rules.encoder(shape) + rules.detection(shape.width))


def step_tokens(config: Config, steps: int) -> int:
    """Tokens of the first `steps` steps of a run, padding included.

    Of a batch that grows by the clock it is an estimate, as if all tokens took as long.
    """
    return round(config.data.length * _sequences(config.train, steps))


def _sequences(train: TrainConfig, steps: int) -> float:
    """Sequences of the whole length in the first `steps` steps of a run."""
    if not train.batch_start:
        return steps * train.batch_size
    ends = [0.0, *(end for _, end in train.batch_sizes)]
    shares = [(size, end - start) for (size, end), start in zip(train.batch_sizes, ends, strict=False)]
    if train.max_minutes:
        return steps / sum(share / size for size, share in shares)
    places = [min(steps, round(end * train.steps)) for end in ends[:-1]] + [steps]
    parts = zip(train.batch_sizes, places, places[1:], strict=False)
    return float(sum(size * (end - start) for (size, _), start, end in parts))


def _lengths(config: Config, steps: int) -> dict[int, float]:
    """The lengths of the sequences in the first `steps` steps of a run, each with its share of these steps."""
    data = config.data
    if not data.length_start:
        return {data.length: 1.0}
    total = steps if config.train.max_minutes else config.train.steps
    short = min(1.0, data.length_share * total / max(1, steps))
    return {data.length_start: short, data.length: 1 - short}


def _networks(config: Config, length: int) -> Networks:
    learns = _learns(config.objective, config.generator)
    return Networks(
        encoder=discriminator_shape(config.model),
        generator=generator_shape(config.model, config.generator) if learns else None,
        towers=_towers(config.generator),
        objective=config.objective.name,
        row_outputs=bool(config.objective.contrastive_weight) + 2 * bool(config.objective.overlap_weight),
        correction=bool(config.objective.correction_weight),
        algorithm=config.train.algorithm,
        length=length,
    )


def _products(masking: MaskingConfig, networks: Networks, vocab_size: int, *, done: float = 1.0) -> FlopRules:
    """Of the first `done` share of a run, whose masked positions may become fewer."""
    length = networks.length
    return MatrixProducts(length=length, vocab=vocab_size, share=mean_masked(length, masking, done=done) / length)


def _train(networks: Networks, rules: FlopRules, *, alone: bool = False) -> float:
    """FLOPs of training on one token, of the first of two stages if `alone`."""
    parts = _generator_parts(networks, rules, TRAINED) if alone else _parts(networks, rules)
    return sum(part.forward * (part.times.paper if rules.paper else part.times.real) for part in parts)


def _parts(networks: Networks, rules: FlopRules) -> list[Part]:
    """The forward pass of training; of two stages, of the second."""
    encoder = networks.encoder
    times = FROZEN if networks.algorithm == "two-stage" else TRAINED
    vocabulary, score = rules.vocabulary(encoder.width, encoder.embedding), rules.score(encoder.width)
    parts = [*_generator_parts(networks, rules, times), Part(rules.encoder(encoder), TRAINED)]
    if networks.objective in ("mlm", "replace-mlm"):
        parts.append(Part(rules.share * vocabulary, TRAINED))
    elif networks.objective == "all-tokens-mlm":
        parts.append(Part(vocabulary + score, TRAINED))
    else:
        parts.append(Part(rules.detection(encoder.width), TRAINED))
    if networks.correction:
        parts.append(Part(rules.share * vocabulary, TRAINED))
    if networks.row_outputs:
        parts.append(Part(networks.row_outputs * score / networks.length, TRAINED))
    return parts


def _generator_parts(networks: Networks, rules: FlopRules, times: Times) -> list[Part]:
    small, towers = networks.generator, networks.towers
    if small is None:
        return []
    vocabulary = rules.vocabulary(towers * small.width, small.embedding)
    parts = [Part(rules.encoder(small, towers), times), Part(rules.share * vocabulary, times)]
    if networks.objective == "electric":  # every token is predicted; the samples are not trained on
        parts[1:] = [Part(rules.share * vocabulary, FROZEN), Part(vocabulary, RECOMPUTED)]
    if networks.algorithm == "adversarial":
        parts.append(Part(rules.share * rules.score(small.width), INPUT_DETACHED))
    return parts
