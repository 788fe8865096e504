"""Any model folder as a tokenizer and a network ready to compute.

Shapes: B sequences, L length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from electra.checkpoint import store
from electra.checkpoint.folder import read_config, verify_tokenizer
from electra.config.schema import Config, GeneratorConfig, ModelConfig
from electra.errors import CheckpointError, DataError
from electra.interop import huggingface, names
from electra.interop.finetuned_folder import is_finetuned
from electra.interop.hub import local_folder
from electra.interop.names import Part
from electra.interop.network import Network, Weights, build, checked
from electra.manifest import read_manifest
from electra.model.encoder import generator_shape
from electra.model.heads import DetectionHead, MaskedHead
from electra.ops.dispatch import Kernels
from electra.progress import say
from electra.tokenizer.codec import CONFIG_FILE, TOKENIZER_FILE, VOCAB_FILE, Tokenizer

ACCEPTED = (
    "give a run folder, a checkpoint, an exported folder, a transformers ELECTRA folder, owner/name of the hub,"
    " electra:small or electra:tiny"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One network of a model folder as data, with its tokenizer and where it came from."""

    path: Path
    weights: Weights
    tokenizer: Tokenizer
    run: Config | None = None
    """The configuration of the run it was trained in, where that is known."""
    step: int | None = None
    """The step of the checkpoint, where it is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A model to use: on the CPU, in fp32, without dropout."""

    path: Path
    tokenizer: Tokenizer
    config: ModelConfig
    """The sizes of this network; a generator's are its own."""
    module: Network
    length: int
    """The longest sequence it saw in pre-training, special tokens included; positions beyond are untrained."""
    objective: str | None = None
    """What it was trained for, where that is known: an objective of ours; a generator's is mlm."""
    kernels: Kernels = "auto"
    """Which ops it computes by: `train.kernels` of its run, where that is known."""

    @property
    def head(self) -> DetectionHead | MaskedHead | None:
        return self.module.head

    def probabilities(
        self, ids_BL: Tensor, lengths_B: Tensor | None = None, segments_BL: Tensor | None = None
    ) -> Tensor:
        """(B, L) probabilities that a token was replaced; what stands on padding means nothing."""
        if not isinstance(self.head, DetectionHead):
            kind = "is a masked language model" if self.head else "has an encoder only"
            raise CheckpointError(self.path, f"{kind}: no replaced-token head", fix="give a discriminator")
        if self.objective == "electric":
            reason = "gives energies, which alone are no probabilities of replacement"
            raise CheckpointError(self.path, reason, fix="electra score tells how likely each token is")
        segments_BL = torch.zeros_like(ids_BL) if segments_BL is None else segments_BL
        with torch.inference_mode():
            return self.module.logits(ids_BL, segments_BL, lengths_B).sigmoid()


def load_model(path: Path, *, part: Part = "discriminator") -> Loaded:
    """The model in a run folder, a checkpoint, an exported folder, a transformers folder or of a hub name.

    `part` chooses between a run's two networks. A folder with one network gives that one, with the head it has;
    `generator` is refused where that one is a discriminator.
    """
    source = read_source(path, part=part)
    kernels: Kernels = "auto" if source.run is None else source.run.train.kernels
    return Loaded(
        path=path,
        tokenizer=source.tokenizer,
        config=source.weights.config,
        module=build(source.weights, kernels=kernels),
        length=source.weights.length,
        objective=source.weights.objective,
        kernels=kernels,
    )


def read_source(path: Path, *, part: Part = "discriminator") -> Source:
    """What `load_model` loads, as data."""
    asked, path = path, local_folder(path)
    if not path.is_dir():
        raise CheckpointError(path, "is a file" if path.is_file() else "no such folder", fix=ACCEPTED)
    run = path.resolve().parent.parent
    if path.resolve().parent.name == store.FOLDER and (run / "config.toml").is_file():
        store.verify(path)
        source = _from_checkpoint(path.resolve(), run, part)
    elif (path / "config.toml").is_file():
        source = _from_checkpoint(store.require_latest(path), path, part)
    elif huggingface.is_folder(path):
        _verify_export(path)
        weights = huggingface.read_folder(path)
        if part == "generator" and weights.head != "masked":
            raise CheckpointError(path, "is not a generator: it has no masked-token head")
        source = Source(path=asked, weights=weights, tokenizer=_tokenizer(path))
    elif is_finetuned(path):
        fix = "electra predict, evaluate and encode use it; give the pre-trained model here"
        raise CheckpointError(path, "is fine-tuned, so it has no pre-training head", fix=fix)
    else:
        raise CheckpointError(path, "holds neither config.toml nor config.json", fix=ACCEPTED)
    require_same_vocabulary(source)
    return source


def require_same_vocabulary(source: Source) -> None:
    """Refuse a model whose tokenizer is not of the size of its token table."""
    entries, rows = source.tokenizer.vocab_size, source.weights.config.vocab_size
    if entries != rows:
        raise DataError(source.path, f"its tokenizer has {entries} entries, but its token table {rows} rows")


def _from_checkpoint(checkpoint: Path, run: Path, part: Part) -> Source:
    config = read_config(run)
    verify_tokenizer(run)
    generates = part == "generator" and config.objective.name != "mlm"
    if generates and config.generator.kind == "two-tower":
        reason = "its generator is two towers, which are not one encoder and have no place outside the run"
        raise CheckpointError(checkpoint, reason, fix="the discriminator can be used")
    stored = store.read_weights(checkpoint)
    tensors = names.network_of(stored, part)
    if not any(name.startswith("encoder.") for name in tensors):
        raise CheckpointError(checkpoint, f"has no {part}")
    if config.generator.tying == "gdes" and part == "discriminator" and "generator_embeddings.token.weight" in stored:
        table = "embeddings.token.weight"  # stored as the difference from the generator's
        tensors[table] = tensors[table] + stored["generator_embeddings.token.weight"]
    weights = Weights(
        config=config.model if not generates else _sizes(config.model, config.generator),
        head="detection" if "head.score.weight" in tensors else "masked" if "head.bias" in tensors else None,
        length=config.data.length,
        tensors=tensors,
        objective="mlm" if generates else config.objective.name,
    )
    return Source(
        path=checkpoint,
        weights=checked(weights, checkpoint),
        tokenizer=_tokenizer(run / "tokenizer"),
        run=config,
        step=store.step_of(checkpoint),
    )


def _verify_export(path: Path) -> None:
    """Refuse an exported folder of ours that is not as written; one from elsewhere has no manifest of ours."""
    try:
        sums = read_manifest(path, fix="export it again, or remove manifest.json to use it as it is")
    except CheckpointError as error:
        say(f"warning: {error}; {path} is read without being verified")
        return
    if sums is not None:
        used = (huggingface.CONFIG, huggingface.WEIGHTS, VOCAB_FILE, TOKENIZER_FILE, CONFIG_FILE)
        sums.verify(*(name for name in used if name in sums.files))


def _sizes(model: ModelConfig, generator: GeneratorConfig) -> ModelConfig:
    """The sizes of a run's generator."""
    shape = generator_shape(model, generator)
    return replace(
        model,
        layers=shape.layers,
        width=shape.width,
        heads=shape.heads,
        ffn=shape.ffn,
        embedding=shape.embedding,
    )


def _tokenizer(folder: Path) -> Tokenizer:
    if not (folder / VOCAB_FILE).is_file() and not (folder / TOKENIZER_FILE).is_file():
        raise CheckpointError(
            folder, "has no tokenizer", fix=f"put the {VOCAB_FILE} that the model was trained with there"
        )
    return Tokenizer.load(folder)
