"""Values that no run can have, and combinations that cannot work, named before anything starts."""

from __future__ import annotations

from dataclasses import replace

from electra.config import finetune_bounds as bounds
from electra.config.finetune import FinetuneConfig
from electra.config.keys import flatten
from electra.config.schema import (
    Config,
    DataConfig,
    GeneratorConfig,
    MaskingConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimConfig,
    TrainConfig,
)
from electra.errors import ConfigError

SPECIAL_TOKENS = 5
HEAD_UNITS = 64

_AT_LEAST = {
    "seed": 0,
    "model.layers": 1,
    "model.width": 1,
    "model.heads": 1,
    "model.ffn": 1,
    "model.embedding": 1,
    "model.vocab_size": SPECIAL_TOKENS + 1,
    "model.positions": 8,
    "objective.mlm_weight": 0,
    "objective.rtd_weight": 0,
    "objective.contrastive_weight": 0,
    "objective.correction_weight": 0,
    "objective.overlap_weight": 0,
    "generator.clip": 0,
    "generator.temperature_start": 0,
    "masking.rare": 0,
    "train.generator_steps": 0,
    "data.length": 8,
    "data.length_start": 0,
    "data.short_length": 0,
    "optim.warmup_steps": 0,
    "optim.decay_steps": 0,
    "optim.weight_decay": 0,
    "train.steps": 1,
    "train.batch_size": 1,
    "train.batch_start": 0,
    "train.micro_batch": 0,
    "train.max_minutes": 0,
    "train.log_every": 1,
    "evaluate.every": 0,
    "evaluate.seconds": 0,
    "evaluate.sequences": 1,
    "checkpoint.every": 1,
    "checkpoint.seconds": 0,
    "checkpoint.keep": 1,
    "guard.max_skipped": 1,
}
_AT_MOST = {  # beyond, nothing fits into a file, a tensor or a lifetime
    "model.layers": 1 << 10,
    "model.width": 1 << 16,
    "model.ffn": 1 << 18,
    "model.embedding": 1 << 16,
    "model.vocab_size": 1 << 24,
    "model.positions": 1 << 20,
    "model.init_std": 1 << 10,
    "data.length": 1 << 16,  # a position has 16 bits where masked ones are drawn
    "masking.rare": 1 << 10,
    "train.steps": 1 << 40,
    "train.generator_steps": 1 << 40,
    "train.batch_size": 1 << 20,
    "train.micro_batch": 1 << 20,
    "train.max_minutes": 1 << 30,
    "train.timeout_s": 1 << 30,
    "optim.warmup_steps": 1 << 40,
    "optim.decay_steps": 1 << 40,
    "evaluate.sequences": 1 << 30,
}
_ABOVE = {
    "model.init_std": 0,
    "generator.temperature": 0,
    "generator.lr_scale": 0,
    "train.timeout_s": 0,
    "optim.lr": 0,
    "optim.eps": 0,
    "optim.clip": 0,
    "guard.max_rise": 1,
}
_SHARES = {  # low end included?, high end included?
    "model.dropout": (True, False),
    "model.attention_dropout": (True, False),
    "model.dropout_share": (False, True),
    "generator.width": (False, True),
    "generator.depth": (False, True),
    "generator.dropout_scale": (True, True),
    "generator.temperature_share": (False, True),
    "generator.unigram_share": (True, True),
    "masking.rate": (False, True),
    "masking.rate_start": (True, True),
    "masking.masked_share": (True, True),
    "objective.contrastive_share": (False, False),
    "data.length_share": (True, True),
    "train.batch_share": (False, True),
    "data.single_segment": (True, True),
    "data.short": (True, True),
    "data.copies": (True, True),
    "data.copies_share": (False, True),
    "optim.decay_share": (False, True),
    "optim.warmup_share": (True, True),
    "optim.beta1": (True, False),
    "optim.beta2": (True, False),
    "optim.ema": (True, False),
}
_LARGEST_SEED = 2**63 - 1
_LARGEST_FLOAT = 3.4e38  # of fp32, in which settings meet tensors


def validate(config: Config | FinetuneConfig) -> None:
    """Raise ConfigError for the first impossible value or combination, with the key, the reason and a fix."""
    if isinstance(config, FinetuneConfig):
        _ranges(config, bounds.AT_LEAST, bounds.AT_MOST, bounds.ABOVE, bounds.SHARES)
        bounds.require_selection(config)
        return
    _ranges(config, _AT_LEAST, _AT_MOST, _ABOVE, _SHARES)
    model, generator, objective = config.model, config.generator, config.objective
    _shapes(model, generator, objective)
    _lengths(model, config.data, config.masking)
    _schedule(config.optim, config.train)
    _objective(objective, generator, config.masking, config.train)
    _generator(generator, objective, config.train)
    _curriculum(config.data, config.masking, generator, objective, config.train)
    _two_segments(config.data, objective)
    if config.train.algorithm == "two-stage":
        _stages(config.train, objective, generator, model)
    _batches(config.train)
    if config.train.shard:
        _sharding(config.train, config.optim)


def validate_model(model: ModelConfig) -> None:
    """The same for the sizes and rates of one network, wherever they come from."""
    tables = (_AT_LEAST, _AT_MOST, _ABOVE, _SHARES)
    ours = [{key: bound for key, bound in table.items() if key.startswith("model.")} for table in tables]
    _ranges(replace(Config(), model=model), *ours)  # type: ignore[arg-type]
    if model.width % model.heads:
        raise ConfigError("model.heads", f"{model.heads} does not divide model.width {model.width}")
    _pairs(model, model.width // model.heads)


def _sharding(train: TrainConfig, optim: OptimConfig) -> None:
    fix = "train.shard=false"
    if optim.matrices != "adamw":
        raise ConfigError("optim.matrices", f"{optim.matrices} needs whole matrices: it cannot be sharded", fix=fix)
    if train.algorithm == "two-stage":
        raise ConfigError("train.shard", "two stages hand whole weights on: they cannot be sharded", fix=fix)


def _ranges(
    config: Config | FinetuneConfig,
    at_least: dict[str, int],
    at_most: dict[str, int],
    above: dict[str, int],
    shares: dict[str, tuple[bool, bool]],
) -> None:
    values = flatten(config)
    for key, least in at_least.items():
        if (value := values[key]) < least:
            raise ConfigError(key, f"{value} is too small", fix=f"at least {least}")
    for key, most in at_most.items():
        if (value := values[key]) > most:
            raise ConfigError(key, f"{value} is too large", fix=f"at most {most}")
    for key, bound in above.items():
        if (value := values[key]) <= bound:
            raise ConfigError(key, f"{value} is too small", fix=f"more than {bound}")
    for key, (low, high) in shares.items():
        value = values[key]
        if not (0 <= value <= 1) or (value == 0 and not low) or (value == 1 and not high):
            interval = f"{'from' if low else 'above'} 0 {'up to' if high else 'and below'} 1"
            raise ConfigError(key, f"{value} is not a share", fix=interval)
    for key, value in values.items():
        if isinstance(value, float) and abs(value) > _LARGEST_FLOAT:
            raise ConfigError(key, f"{value} is too large", fix=f"at most {_LARGEST_FLOAT:g}")
    for key in ("seed", "hold_out_seed"):
        if (seed := values.get(key, 0)) > _LARGEST_SEED:
            raise ConfigError(key, f"{seed} is too large", fix=f"at most {_LARGEST_SEED}")


def _shapes(model: ModelConfig, generator: GeneratorConfig, objective: ObjectiveConfig) -> None:
    if model.width % model.heads:
        fix = f"{model.width // HEAD_UNITS} heads have {HEAD_UNITS} units each" if model.width % HEAD_UNITS == 0 else ""
        raise ConfigError("model.heads", f"{model.heads} does not divide model.width {model.width}", fix=fix)
    _pairs(model, model.width // model.heads)
    if objective.name == "mlm" or generator.kind in ("unigram", "uniform"):
        return
    width = round(model.width * generator.width)
    heads = max(1, width // HEAD_UNITS)
    if width < 1:
        raise ConfigError("generator.width", f"{generator.width} of model.width {model.width} leaves no unit")
    if width % heads:
        whole = max(1, round(width / HEAD_UNITS)) * HEAD_UNITS / model.width
        reason = f"gives a width of {width}, which {heads} heads of about {HEAD_UNITS} units do not divide"
        raise ConfigError("generator.width", f"{generator.width} {reason}", fix=f"try {min(1.0, whole):g}")
    _pairs(model, width // heads)


def _pairs(model: ModelConfig, head_size: int) -> None:
    if model.rotary and head_size % 2:
        reason = f"turns pairs of numbers, and a head has {head_size}"
        raise ConfigError("model.rotary", reason, fix="choose widths that give heads an even number of units")


def _lengths(model: ModelConfig, data: DataConfig, masking: MaskingConfig) -> None:
    length, rate = data.length, min(masking.rate, masking.first_rate)
    if length > model.positions:
        reason = f"{length} is longer than model.positions {model.positions}"
        raise ConfigError("data.length", reason, fix="shorten it, or raise model.positions, which only a new model can")
    if data.length_start and (length % data.length_start or data.length_start < _AT_LEAST["data.length"]):
        reason = f"{data.length_start} must divide data.length {length}, so that a step has as many tokens"
        raise ConfigError("data.length_start", reason, fix=f"0, or {length // 2}")
    length = data.length_start or length
    if int((rate + 0.005) * length) < 1:
        key = "masking.rate" if rate == masking.rate else "masking.rate_start"
        raise ConfigError(key, f"{rate} of {length} tokens is none", fix=f"at least {1 / length:.3g}")


def _two_segments(data: DataConfig, objective: ObjectiveConfig) -> None:
    if data.layout != "packed":
        return
    asked = {"data.copies": data.copies, "objective.overlap_weight": objective.overlap_weight}
    if set_ones := [key for key, value in asked.items() if value]:
        fix = f"{' '.join(f'{key}=0' for key in set_ones)}, or data.layout=sentences"
        raise ConfigError(set_ones[0], "packed rows have no second segment", fix=fix)


def _schedule(optim: OptimConfig, train: TrainConfig) -> None:
    steps, longest = min(train.stage_steps), max(train.stage_steps)
    if steps < 1:
        reason = f"{train.generator_steps} of train.steps {train.steps} leaves one of the two stages no step"
        raise ConfigError("train.generator_steps", reason, fix="0 means half of the run")
    key = "a stage of" if train.algorithm == "two-stage" else "train.steps"
    if 0 < optim.decay_steps < longest and not train.max_minutes:
        reason = f"the learning rate would be 0 from step {optim.decay_steps} to {key} {longest}"
        raise ConfigError("optim.decay_steps", reason, fix="0 means the end of the run")
    if 0 < optim.decay_steps <= optim.warmup(None):
        reason = f"{optim.decay_steps} is not after optim.warmup_steps {optim.warmup_steps}"
        raise ConfigError("optim.decay_steps", reason, fix="0 means the end of the run")
    if not optim.decay_steps and optim.warmup(steps) >= steps:
        reason = f"{optim.warmup_steps} steps of warm-up do not fit into {key} {steps}"
        fix = "leave it out: it is then a share of the run; or optim.decay_steps, to stop a longer schedule early"
        raise ConfigError("optim.warmup_steps", reason, fix=fix)


def _objective(
    objective: ObjectiveConfig, generator: GeneratorConfig, masking: MaskingConfig, train: TrainConfig
) -> None:
    if objective.name == "mlm" and objective.mlm_weight == 0:
        raise ConfigError("objective.mlm_weight", "0 leaves nothing to learn", fix="1 is the usual weight")
    detects = objective.name in ("rtd", "rtd-15", "electric")
    if detects and objective.mlm_weight == objective.rtd_weight == 0:
        raise ConfigError("objective.rtd_weight", "both weights are 0: nothing to learn", fix="50 is the usual weight")
    if objective.contrastive_weight and objective.name != "rtd":
        reason = f"{objective.name} does not say which sequences were corrupted"
        raise ConfigError("objective.contrastive_weight", reason, fix="0, or objective.name=rtd")
    if objective.correction_weight and (objective.name != "rtd" or objective.contrastive_weight):
        reason = "stands beside replaced token detection alone"
        raise ConfigError("objective.correction_weight", reason, fix="0")
    if objective.correction_weight and train.algorithm != "joint":
        raise ConfigError("objective.correction_weight", f"is not for {train.algorithm}", fix="train.algorithm=joint")
    if objective.overlap_weight and (objective.name not in ("rtd", "mlm") or objective.contrastive_weight):
        reason = "stands beside replaced token detection or masked language modelling alone"
        raise ConfigError("objective.overlap_weight", reason, fix="0")
    if objective.overlap_weight and train.algorithm != "joint":
        raise ConfigError("objective.overlap_weight", f"is not for {train.algorithm}", fix="train.algorithm=joint")
    if objective.contrastive_weight and train.algorithm == "adversarial":
        reason = "adversarial rewards samples, and some sequences would have none"
        raise ConfigError("objective.contrastive_weight", reason, fix="0, or train.algorithm=joint")
    if masking.rare and masking.policy == "official":
        reason = "the official policy draws every token alike"
        raise ConfigError("masking.rare", reason, fix="0, or masking.policy=without_replacement")
    if objective.name == "electric" and generator.kind != "two-tower":
        reason = f"{generator.kind} does not give the probability of a token that it has seen"
        raise ConfigError("generator.kind", reason, fix="electric needs generator.kind=two-tower")
    if objective.name == "electric":
        _electric(generator, masking)


def _electric(generator: GeneratorConfig, masking: MaskingConfig) -> None:
    """Electric weighs the odds that a token was sampled, so it must know them."""
    if masking.rate == 1:
        raise ConfigError("masking.rate", "1 leaves no original token to learn from", fix="0.15 is the usual rate")
    if masking.rare:
        reason = "electric must know how often a token is replaced, and rare ones would be more often"
        raise ConfigError("masking.rare", reason, fix="0")
    if generator.temperature != 1:
        reason = "electric must know the probability of a sample, which is that at 1"
        raise ConfigError("generator.temperature", reason, fix="1")
    if generator.disallow_correct:
        reason = "electric needs samples of the generator as it is, right ones too"
        raise ConfigError("generator.disallow_correct", reason, fix="false")


def _generator(generator: GeneratorConfig, objective: ObjectiveConfig, train: TrainConfig) -> None:
    learns = generator.kind in ("transformer", "two-tower")
    if generator.tying == "all":
        if generator.kind != "transformer" or objective.name not in ("rtd", "rtd-15"):
            reason = f"all weights cannot be one network's for generator.kind {generator.kind} and {objective.name}"
            raise ConfigError("generator.tying", reason, fix="embeddings")
        if (generator.width, generator.depth) != (1.0, 1.0):
            reason = "all weights are shared only between networks of one size"
            raise ConfigError("generator.tying", reason, fix="generator.width=1 generator.depth=1")
    if generator.tying == "gdes" and not learns:
        raise ConfigError("generator.tying", f"generator.kind {generator.kind} has no table to share", fix="embeddings")
    if train.algorithm != "joint":
        if objective.name != "rtd" or not learns or generator.tying == "all":
            reason = f"{train.algorithm} trains a separate generator for objective rtd"
            raise ConfigError("train.algorithm", reason, fix="joint")
        if train.algorithm == "adversarial" and generator.kind != "transformer":
            raise ConfigError("train.algorithm", "adversarial needs generator.kind transformer", fix="joint")


def _curriculum(
    data: DataConfig,
    masking: MaskingConfig,
    generator: GeneratorConfig,
    objective: ObjectiveConfig,
    train: TrainConfig,
) -> None:
    """What changes over a run; a sampled token's probability must not where the objective has to know it."""
    samples = {"temperature_start": generator.temperature_start, "unigram_share": generator.unigram_share}
    asked = [f"generator.{key}" for key, value in samples.items() if value]
    if asked and (objective.name == "mlm" or generator.kind in ("unigram", "uniform")):
        raise ConfigError(asked[0], "there is no generator that learns", fix="0")
    asked += ["masking.rate_start"] if masking.rate_start else []
    if train.algorithm == "two-stage":
        asked += ["data.length_start"] if data.length_start else []
        asked += ["train.batch_start"] if train.batch_start else []
    if asked and train.algorithm != "joint":
        raise ConfigError(asked[0], f"is not for {train.algorithm}", fix="0, or train.algorithm=joint")
    if asked and objective.name == "electric":
        raise ConfigError(asked[0], "electric must know the odds of a sample, which would change", fix="0")


def _stages(train: TrainConfig, objective: ObjectiveConfig, generator: GeneratorConfig, model: ModelConfig) -> None:
    if model.dropout_share < 1:
        raise ConfigError("model.dropout_share", "is not for two-stage", fix="1, or train.algorithm=joint")
    if train.max_minutes:
        raise ConfigError("train.max_minutes", "two stages have a number of steps each", fix="train.steps")
    for key, weight in (("mlm_weight", objective.mlm_weight), ("rtd_weight", objective.rtd_weight)):
        if not weight:
            reason, fix = "0 leaves one of the two stages nothing to learn", "1 and 50 are the usual weights"
            raise ConfigError(f"objective.{key}", reason, fix=fix)
    if not train.start_from_generator:
        return
    if generator.kind != "transformer":
        reason = f"a discriminator cannot start from generator.kind {generator.kind}"
        raise ConfigError("train.start_from_generator", reason, fix="false")
    same = model.heads == max(1, model.width // HEAD_UNITS) and model.ffn == 4 * model.width
    same &= (generator.width, generator.depth) == (1.0, 1.0)
    if not same or (generator.tying == "none" and model.embedding != model.width):
        reason = "a discriminator starts from a generator of its own size only"
        fix = "generator.width=1 generator.depth=1, or turn it off"
        if (generator.width, generator.depth) == (1.0, 1.0):
            fix = "false: a generator has heads of 64 units, blocks of 4 widths and, untied, embeddings of its width"
        raise ConfigError("train.start_from_generator", reason, fix=fix)


def _batches(train: TrainConfig) -> None:
    batch, micro = train.batch_size, train.micro_batch
    if (start := train.batch_start) and (batch % start or (batch // start).bit_count() != 1):
        reason = f"{start} does not become train.batch_size {batch} by doubling"
        raise ConfigError("train.batch_start", reason, fix="0" if batch % 2 else f"0, or {batch // 2}")
    if micro and batch % micro:
        largest = max(size for size in range(1, min(micro, batch) + 1) if batch % size == 0)
        reason = f"{micro} does not divide train.batch_size {batch}"
        raise ConfigError("train.micro_batch", reason, fix=f"try {largest}")
