"""Pre-training that goes on from a model: a run, an export, or a released discriminator and its generator.

What the model does not have starts fresh: an export is a discriminator alone, so its generator begins from nothing.

The run is the model's own, without what eased its beginning and at a twentieth of its rate: at the whole rate a trained
encoder first loses what it knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from electra.checkpoint import store
from electra.config.load import adjust, load
from electra.config.schema import Config
from electra.errors import CheckpointError, ConfigError
from electra.interop import huggingface
from electra.interop.bundled import bundled_folder
from electra.interop.hub import local_folder
from electra.interop.names import Tensors
from electra.interop.tensor_bundle import checkpoint_prefix
from electra.interop.transfer import CONFIG, TOKENIZER, read_pair, require_free, write_start
from electra.model.cost import parameters
from electra.model.electra import build_model
from electra.ops.dispatch import host_ops
from electra.progress import say
from electra.tokenizer.codec import Tokenizer

GENTLER = 20  # times lower than the model's own rate
WARMUP_SHARE = 0.1


def config_of_run(
    out: Path,
    *,
    model: Path | None,
    generator: Path | None,
    preset: str | None,
    file: Path | None,
    overrides: Iterable[str],
) -> Config:
    """The config that a pre-training command asks for: a preset's, or that of the model it goes on from."""
    if model is not None:
        if preset is not None:
            raise ConfigError("--preset", f"--from {model} decides the model", fix="leave --preset out")
        return continue_from(model, out, generator=generator, file=file, overrides=overrides)
    if generator is not None:
        raise ConfigError("--generator", "is for --from", fix="give the discriminator's folder with --from")
    return load(preset, file=file, overrides=overrides)


def continue_from(
    model: Path, out: Path, *, generator: Path | None = None, file: Path | None = None, overrides: Iterable[str] = ()
) -> Config:
    """The config of a run in `out` that goes on from `model`, whose weights `out` begins with at step 0.

    It is the model's own config as `continued` gives it, changed by a TOML file and `key=value` overrides. Where `out`
    already holds such a run, nothing is written and `model` is not read.
    """
    if (out / CONFIG).is_file():
        return adjust(load(file=out / CONFIG), file=file, overrides=overrides)
    require_free(out)
    config, tensors, tokenizer = _read(model, generator)
    begins = "generator" in parameters(config).parts and not any(name.startswith("generator.") for name in tensors)
    config = adjust(continued(config, gentler=1 if begins else GENTLER), file=file, overrides=overrides)
    whole, fresh = _complete(config, tensors, model)
    write_start(out, config=config, tensors=whole, tokenizer=tokenizer)
    parts = sorted({name.partition(".")[0] for name in fresh})
    minutes = config.train.max_minutes
    length = f"{minutes:g} minute{'s' * (minutes != 1)}" if minutes else f"{config.train.steps:,} steps"
    say(
        f"going on from {model} for {length} at a peak rate of {config.optim.lr:g} (train.max_minutes, optim.lr)"
        + (f"; fresh, because it has none: {', '.join(parts)}" if parts else "")
    )
    return config


def continued(config: Config, *, gentler: int = GENTLER) -> Config:
    """The config of a model's pre-training as it is for going on: `gentler` times lower in rate, and from its first
    step on as it was at the end."""
    return replace(
        config,
        optim=replace(
            config.optim,
            lr=config.optim.lr / gentler,
            warmup_share=min(config.optim.warmup_share, WARMUP_SHARE),
            decay_steps=0,
            decay_share=1.0,
        ),
        masking=replace(config.masking, rate_start=0.0),
        generator=replace(config.generator, temperature_start=0.0, unigram_share=0.0),
        data=replace(config.data, length_start=0),
        train=replace(config.train, batch_start=0),
    )


def _read(model: Path, generator: Path | None) -> tuple[Config, Tensors, Tokenizer]:
    """A model's config, its tensors by a run's names, and its tokenizer."""
    model = bundled_folder(model)
    if not (model / CONFIG).is_file():
        if not huggingface.is_folder(local_folder(model)) and checkpoint_prefix(model) is None:
            fix = "give a run folder, an exported folder, a transformers ELECTRA folder or owner/name of the hub"
            raise CheckpointError(model, "holds no model", fix=fix)
        pair = read_pair(model, generator)
        return pair.config, pair.tensors, pair.tokenizer
    if generator is not None:
        raise ConfigError("--generator", f"{model} is a run and has its own generator", fix="leave it out")
    last = store.latest(model)
    if last is None:
        raise CheckpointError(model, "has no whole checkpoint yet", fix="train it first")
    return load(file=model / CONFIG), store.read_weights(last), Tokenizer.load(model / TOKENIZER)


def _complete(config: Config, tensors: Tensors, where: Path) -> tuple[Tensors, list[str]]:
    """Every tensor of a run with this config, and the names of those that the model did not have."""
    whole: Tensors = {}
    fresh: list[str] = []
    for name, parameter in build_model(config, ops=host_ops("plain")).named_parameters():
        tensor = tensors.get(name)
        if tensor is None:
            fresh.append(name)
        elif tensor.shape != parameter.shape:
            reason = f"{name} is {tuple(tensor.shape)}, but the config asks for {tuple(parameter.shape)}"
            raise CheckpointError(where, reason, fix="leave model.* and generator.* as the model has them")
        whole[name] = parameter.detach() if tensor is None else tensor
    missing = [name for name in fresh if name.startswith(("embeddings.", "discriminator.", "encoder."))]
    if missing:
        raise CheckpointError(where, f"has no {missing[0]}", fix="leave objective.name as the model has it")
    return whole, fresh
