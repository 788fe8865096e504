"""Pre-training that goes on from a model: a run, an export, or a released discriminator and its generator.

What the model does not have starts fresh: an export is a discriminator alone, so its generator begins from nothing.

The run is the model's own, without what eased its beginning and at a twentieth of its rate: at the whole rate a trained
encoder first loses what it knows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from electra.checkpoint import store
from electra.checkpoint.folder import FACTS, read_facts
from electra.config.load import adjust, given_keys, load
from electra.config.schema import Config
from electra.errors import CheckpointError, ConfigError, DataError, ElectraError
from electra.interop import huggingface
from electra.interop.bundled import bundled_folder
from electra.interop.finetuned_folder import is_finetuned
from electra.interop.hub import local_folder
from electra.interop.names import Tensors
from electra.interop.tensor_bundle import checkpoint_prefix
from electra.interop.transfer import CONFIG, TOKENIZER, read_pair, require_free, write_start
from electra.model.cost import parameters
from electra.model.electra import build_model
from electra.ops.dispatch import host_ops
from electra.progress import counted, say
from electra.tokenizer.codec import Tokenizer

GENTLER = 20  # times lower than the model's own rate
WARMUP_SHARE = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """The model that a run goes on from: what the run has of it at step 0."""

    model: Path
    """As it was named."""
    config: Config
    """Of the run."""
    tensors: Tensors
    tokenizer: Tokenizer
    fresh: tuple[str, ...] = ()
    """Parts that the model does not have."""
    gentle: bool = True
    """Whether the rate is the lower one of going on, neither a whole one nor one that was asked for."""
    begun: bool = False
    """Whether the run has begun: it needs no more of the model."""

    @property
    def facts(self) -> dict[str, dict[str, object]]:
        """What run.json says of the model."""
        known = {"model": _name_of(self.model), "weights": _sum_of(self.tensors), "gentle": self.gentle}
        return {"from": known}

    def place(self, out: Path, fingerprint: str, data: Path) -> None:
        """Have `out` begin with these weights; refused where `data`, by its `fingerprint`, has another vocabulary."""
        if self.begun:
            return
        if self.tokenizer.fingerprint != fingerprint:
            fix = f"prepare the text with --vocab {self.model}"
            raise DataError(data, f"has another vocabulary than {self.model}", fix=fix)
        if not self._is_in(out):
            require_free(out)
            write_start(out, config=self.config, tensors=self.tensors, tokenizer=self.tokenizer)
        minutes = self.config.train.max_minutes
        length = counted(minutes, "minute") if minutes else counted(self.config.train.steps, "step")
        say(
            f"going on from {self.model} for {length} at a peak rate of {self.config.optim.lr:g}"
            " (train.max_minutes, train.steps, optim.lr)"
            + (f"; fresh, because it has none: {', '.join(self.fresh)}" if self.fresh else "")
        )

    def _is_in(self, out: Path) -> bool:
        """Whether a process that was killed had placed just this."""
        first = store.checkpoint_path(out, 0)
        if not ((out / CONFIG).is_file() and first.is_dir()) or load(file=out / CONFIG) != self.config:
            return False
        return _sum_of(store.read_weights(first)) == _sum_of(self.tensors)


def config_of_run(
    out: Path,
    *,
    model: Path | None,
    generator: Path | None,
    preset: str | None,
    file: Path | None,
    overrides: Iterable[str],
) -> tuple[Config, Start | None]:
    """The config that a pre-training command asks for, and where it goes on from a model, what it starts with."""
    if model is not None:
        if preset is not None:
            raise ConfigError("--preset", f"--from {model} decides the model", fix="leave --preset out")
        start = continue_from(model, out, generator=generator, file=file, overrides=overrides)
        return start.config, start
    if generator is not None:
        raise ConfigError("--generator", "is for --from", fix="give the discriminator's folder with --from")
    return load(preset, file=file, overrides=overrides), None


def continue_from(
    model: Path, out: Path, *, generator: Path | None = None, file: Path | None = None, overrides: Iterable[str] = ()
) -> Start:
    """What a run in `out` that goes on from `model` starts with.

    Its config is the model's own as `continued` gives it, changed by a TOML file and `key=value` overrides. Where `out`
    already holds a run from this model, the config is that run's.
    """
    overrides = list(overrides)
    if (out / FACTS).is_file():
        return _of_begun(model, out, generator=generator, file=file, overrides=overrides)
    config, tensors, tokenizer = _read(model, generator)
    begins = "generator" in parameters(config).parts and not any(name.startswith("generator.") for name in tensors)
    gentler = 1 if begins or _is_gentle(model) else GENTLER
    config = adjust(continued(config, gentler=gentler), file=file, overrides=overrides)
    given = given_keys(Config, file=file, overrides=overrides)
    if "train.steps" in given and "train.max_minutes" not in given:  # the model's own budget must not end it before
        config = replace(config, train=replace(config.train, max_minutes=0.0))
    whole, fresh = _complete(config, tensors, model)
    parts = tuple(sorted({name.partition(".")[0] for name in fresh}))
    gentle = not begins and "optim.lr" not in given
    return Start(model=model, config=config, tensors=whole, tokenizer=tokenizer, fresh=parts, gentle=gentle)


def _of_begun(model: Path, out: Path, *, generator: Path | None, file: Path | None, overrides: Iterable[str]) -> Start:
    """What a run that has begun goes on with: its own; refused where it began with another model."""
    config = adjust(load(file=out / CONFIG), file=file, overrides=overrides, begun=True)
    start = Start(model=model, config=config, tensors={}, tokenizer=Tokenizer.load(out / TOKENIZER), begun=True)
    known = _from_of(out)
    if known.get("model") == _name_of(model):  # which may be gone, or have trained on
        return start
    before = known.get("model", "no model")
    fix = "use another --out, or go on with --resume"
    with suppress(ElectraError, OSError):
        if known and _sum_of(_complete(config, _read(model, generator)[1], model)[0]) == known.get("weights"):
            return start
    raise ConfigError("--from", f"{out} holds a run that began with {before}, not with {model}", fix=fix)


def _from_of(run: Path) -> dict[str, Any]:
    """What a run's run.json says of the model that it went on from."""
    known = read_facts(run / FACTS).get("from")
    return known if isinstance(known, dict) else {}


def _is_gentle(model: Path) -> bool:
    """Whether a model is a run that went on from another itself, at the lower rate."""
    run = bundled_folder(model)
    return (run / FACTS).is_file() and _from_of(run).get("gentle") is True


def _name_of(model: Path) -> str:
    """As it was named; of a whole path the last part: where a person's files lie is nobody's business."""
    return model.name if model.is_absolute() else str(model)


def _sum_of(tensors: Tensors) -> str:
    """Sixteen digits that change with any weight."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def continued(config: Config, *, gentler: int = GENTLER) -> Config:
    """The config for going on with a model's pre-training: a learning rate `gentler` times lower; masking, generator,
    lengths and batch size as at its end. Altered copies still come in the last part only, after the text itself."""
    usual = load(config.preset)  # of what eased the beginning nothing stays, nor a warning that it is not read
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
        generator=replace(
            config.generator,
            temperature_start=0.0,
            temperature_share=usual.generator.temperature_share,
            unigram_share=0.0,
        ),
        data=replace(config.data, length_start=0, length_share=usual.data.length_share),
        train=replace(config.train, batch_start=0, batch_share=usual.train.batch_share),
    )


def _read(model: Path, generator: Path | None) -> tuple[Config, Tensors, Tokenizer]:
    """A model's config, its tensors by a run's names, and its tokenizer."""
    model = bundled_folder(model)
    if not (model / CONFIG).is_file():
        if not huggingface.is_folder(local_folder(model)) and checkpoint_prefix(model) is None:
            if is_finetuned(model):
                fix = "give the pre-trained model that it was fine-tuned from"
                raise CheckpointError(model, "is fine-tuned, so it has no pre-training head", fix=fix)
            fix = "give a run folder, an exported folder, a transformers ELECTRA folder or owner/name of the hub"
            raise CheckpointError(model, "holds no model", fix=fix)
        pair = read_pair(model, generator)
        return pair.config, pair.tensors, pair.tokenizer
    if generator is not None:
        raise ConfigError("--generator", f"{model} is a run and has its own generator", fix="leave it out")
    weights = store.read_weights(store.require_latest(model))
    return load(file=model / CONFIG), weights, Tokenizer.load(model / TOKENIZER)


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
