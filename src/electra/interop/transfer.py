"""Models out to transformers folders and in from them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from electra.checkpoint import store
from electra.config.load import load, preset, preset_names, to_toml
from electra.config.schema import Config, GeneratorConfig, ObjectiveConfig
from electra.config.validate import validate
from electra.errors import CheckpointError, ConfigError
from electra.fsio import commit_dir, read_json, write_atomic, write_json
from electra.interop import google, huggingface, names
from electra.interop.card import model_card
from electra.interop.models import Source, read_source, require_same_vocabulary
from electra.interop.names import Part, Tensors
from electra.interop.network import Weights
from electra.interop.tensor_bundle import checkpoint_prefix, read_bundle
from electra.manifest import commit_files, commit_folder, sums_below
from electra.model.encoder import discriminator_shape, generator_shape
from electra.tokenizer.codec import CONFIG_FILE, Tokenizer
from electra.train.loop import Position

CONFIG, TOKENIZER, README = "config.toml", "tokenizer", "README.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Both networks of transformers folders, or what there is of them, under the names that a run gives them."""

    config: Config
    tensors: Tensors
    tokenizer: Tokenizer
    missing: tuple[str, ...]
    """Parts of a run that the folders do not have."""
    unused: tuple[str, ...]
    """Names in the folders that have no place in a run."""


def export_model(path: Path, out: Path, *, part: Part = "discriminator") -> Source:
    """Write a model as a folder that transformers loads: config.json, model.safetensors, tokenizer, README.md."""
    require_free(out)
    source = read_source(path, part=part)
    with commit_folder(out) as aside:
        huggingface.write_weights(aside, source.weights, pad_id=source.tokenizer.pad_id)
        write_tokenizer(aside, source.tokenizer, length=source.weights.length)  # positions beyond it are untrained
        write_atomic(aside / README, str(model_card(source)).encode())
    return source


def write_tokenizer(folder: Path, tokenizer: Tokenizer, *, length: int, split_specials: bool = False) -> None:
    """Put the tokenizer's files into an exported folder: inputs are cut at `length`.

    With `split_specials`, [SEP] written in a text is ordinary tokens.
    """
    tokenizer.save(folder)
    limits = {"model_max_length": length} | ({"split_special_tokens": True} if split_specials else {})
    write_json(folder / CONFIG_FILE, read_json(folder / CONFIG_FILE) | limits)


def import_model(path: Path, out: Path, *, generator: Path | None = None) -> Pair:
    """Make a run folder, at step 0, from a transformers folder, from two (a discriminator's and its generator's), or
    from a TensorFlow checkpoint of google-research/electra.

    What they lack stays absent: nothing is filled with random numbers.
    """
    require_free(out)
    pair = read_pair(path, generator)
    write_start(out, config=pair.config, tensors=pair.tensors, tokenizer=pair.tokenizer)
    return pair


def write_start(out: Path, *, config: Config, tensors: Tensors, tokenizer: Tokenizer) -> None:
    """Make a run folder at step 0: these weights, and Adam averages of zeros."""
    zeros = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    with commit_dir(out) as aside:
        tokenizer.save(aside / TOKENIZER)
        commit_files(aside, {CONFIG: to_toml(config).encode()}, others=sums_below(aside, TOKENIZER))
        start = Position(total_steps=None if config.train.max_minutes else config.train.steps)
        groups = {"model": tensors, "average": zeros, "square": zeros}
        store.save(aside, step=0, tensors=groups, state=asdict(start), keep=1)


def read_pair(path: Path, generator: Path | None = None) -> Pair:
    """A transformers folder, or a discriminator's and its generator's, or a TensorFlow checkpoint of
    google-research/electra, as a run would hold them."""
    source, small = _read_networks(path, generator)
    config = _config_for(source.weights, small, generator or path)
    tensors: Tensors = source.weights.tensors
    missing: tuple[str, ...] = ()
    if config.objective.name != "mlm":
        tensors = names.run_of(source.weights.tensors, small.tensors if small else None)
        absent = {"discriminator_head": source.weights.head is None, "generator": small is None}
        missing = tuple(part for part, gone in absent.items() if gone)
    unused = source.weights.unused + (small.unused if small else ())
    return Pair(config=config, tensors=tensors, tokenizer=source.tokenizer, missing=missing, unused=unused)


def require_free(out: Path) -> None:
    """Refuse a folder to write that already holds something."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError("--out", f"{out} exists and is not an empty folder", fix="choose a new one")


def _read_networks(path: Path, generator: Path | None) -> tuple[Source, Weights | None]:
    """A discriminator, or a network without one, and the generator where there is one."""
    prefix = None if huggingface.is_folder(path) else checkpoint_prefix(path)
    if prefix is not None:
        return _read_tensorflow(prefix, generator)
    source = _read_transformers(path)
    if generator is None:
        return source, None
    if source.weights.head == "masked":
        raise CheckpointError(path, "is a masked language model", fix="give the discriminator first, then --generator")
    return source, _read_transformers(generator).weights


def _read_transformers(path: Path) -> Source:
    if path.is_dir() and not huggingface.is_folder(path):
        fix = "give a folder that save_pretrained wrote, or a TensorFlow checkpoint"
        raise CheckpointError(path, "has no config.json", fix=fix)
    return read_source(path)


def _read_tensorflow(prefix: Path, generator: Path | None) -> tuple[Source, Weights | None]:
    """The discriminator of a checkpoint with its tokenizer, and the generator where it has one."""
    if generator is not None:
        raise ConfigError("--generator", "a TensorFlow checkpoint holds both networks", fix="leave it out")
    bundle = read_bundle(prefix)
    main, small = (google.read_network(bundle, part) for part in ("discriminator", "generator"))
    if main is None:
        fix = "give a pre-training checkpoint of google-research/electra"
        raise CheckpointError(prefix, "has no variables electra/encoder/...", fix=fix)
    source = Source(path=prefix, weights=main, tokenizer=Tokenizer.load(google.vocabulary(prefix)))
    require_same_vocabulary(source)
    return source, small


def _config_for(weights: Weights, small: Weights | None, where: Path) -> Config:
    """The nearest preset with the sizes that were read."""
    energies = weights.head == "detection" and weights.objective == "electric"
    objective = ObjectiveConfig(name="mlm" if weights.head == "masked" else "electric" if energies else "rtd")
    config = _nearest(weights, objective.name)
    fractions = config.generator
    if small is not None:
        fractions = _fractions(weights, small, where)
    if energies:
        fractions = replace(fractions, kind="two-tower")
    config = replace(
        config,
        objective=objective,
        model=weights.config,
        generator=fractions,
        data=replace(config.data, length=weights.length),
    )
    validate(config)
    return config


def _nearest(weights: Weights, objective: str) -> Config:
    """The preset of this objective and shape, of this length where there is one; otherwise the default."""
    shape = discriminator_shape(weights.config)
    known = [preset(name) for name in preset_names()]
    alike = [c for c in known if c.objective.name == objective and discriminator_shape(c.model) == shape]
    same_length = [c for c in alike if c.data.length == weights.length]
    return (same_length or alike or [load()])[0]


def _fractions(weights: Weights, small: Weights, where: Path) -> GeneratorConfig:
    """The generator's size in our terms; refused where the two networks were not trained together."""
    if small.head != "masked":
        raise CheckpointError(where, "is not a generator: it has no masked-token head")
    for name, tensor in weights.tensors.items():
        if name.startswith("embeddings.") and not torch.equal(tensor, small.tensors[name]):
            reason = f"its {name} differs from the discriminator's: not trained together with shared tables"
            raise CheckpointError(where, reason, fix="the embeddings of both are one set of tables here")
    own, main = small.config, weights.config
    fractions = GeneratorConfig(width=own.width / main.width, depth=own.layers / main.layers)
    expected = generator_shape(main, fractions)
    if discriminator_shape(own) != expected:
        reason = f"has {own.heads} heads and inner size {own.ffn}, but a generator of width {own.width}"
        raise CheckpointError(where, f"{reason} has {expected.heads} and {expected.ffn} here")
    return fractions
