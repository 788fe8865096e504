"""The networks of a model folder, and what they can answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from electra.checkpoint import store
from electra.errors import CheckpointError
from electra.finetune.model_folder import FinetunedModel, load_finetuned
from electra.finetune.pretrained import Pretrained, embedder, of_loaded
from electra.inference import encode, likelihood, predict
from electra.inference.corrupt import check_pair, corrupt_texts
from electra.inference.detect import detect_all
from electra.interop.finetuned_folder import is_finetuned
from electra.interop.models import Loaded, load_model
from electra.model.heads import DetectionHead
from electra.progress import quiet

Verb = Literal["detect", "replace", "score", "predict", "encode"]


@dataclass(frozen=True, slots=True)
class Query:
    """Items of equal queries are computed together."""

    verb: Verb
    threshold: float = 0.5
    rate: float = 0.15
    pooling: Literal["mean", "cls"] = "mean"


@dataclass(frozen=True, kw_only=True, slots=True)
class Networks:
    """A model to serve: pre-trained, with a generator where there is one, or fine-tuned."""

    name: str
    encoder: Pretrained
    pretrained: Loaded | None = None
    generator: Loaded | None = None
    finetuned: FinetunedModel | None = None
    step: int | None = None
    """The step of the checkpoint, of a run."""

    @property
    def verbs(self) -> tuple[Verb, ...]:
        """What it can answer."""
        if self.finetuned is not None:
            return "predict", "encode"
        model = self.pretrained
        assert model is not None
        found: list[Verb] = []
        if isinstance(model.head, DetectionHead) and model.objective != "electric":
            found += ["detect", "replace"] if self.generator else ["detect"]
        elif _scores(model):
            found.append("score")
        return *found, "encode"

    def answers(self, query: Query, items: Sequence[Any]) -> list[Any]:
        """One answer an item, in the order of the items."""
        if query.verb not in self.verbs:
            raise CheckpointError(self.name, f"cannot {query.verb}", fix=f"it can {', '.join(self.verbs)}")
        if query.verb == "predict":
            return self._predictions(items)
        if query.verb == "encode":
            vectors = encode.encode(self.encoder, [text for texts in items for text in texts], pooling=query.pooling)
            return _split(vectors.tolist(), items)
        assert self.pretrained is not None
        if query.verb == "score":
            return list(likelihood.score(self.pretrained, items))
        if query.verb == "detect":
            return list(detect_all(self.pretrained, items, threshold=query.threshold))
        assert self.generator is not None
        texts, seeds = zip(*items, strict=True)
        options = {"rate": query.rate, "threshold": query.threshold}
        return list(corrupt_texts(self.generator, self.pretrained, texts, seeds=seeds, **options))

    def _predictions(self, items: Sequence[Any]) -> list[Any]:
        assert self.finetuned is not None
        rows = [row for rows in items for row in rows]
        with quiet():  # the answer says how much of a row was cut, not a line for every request
            predictions = predict.predict(self.finetuned, rows)
        return _split(list(zip(predictions, predict.lost_tokens(self.finetuned, rows), strict=True)), items)


def load_networks(path: Path, *, generator: Path | None = None) -> Networks:
    """The model of a run, a checkpoint, an exported, a `transformers` or a fine-tuned folder, or of a hub name."""
    if is_finetuned(path):
        tuned = predict.on_device(load_finetuned(path))
        encoder = encode.on_device(embedder(tuned))
        return Networks(name=path.resolve().name, encoder=encoder, finetuned=tuned)
    checkpoint = store.require_latest(path) if is_run(path) else path
    model = likelihood.on_device(load_model(checkpoint))
    second = _generator(checkpoint, model) if generator is None else load_model(generator, part="generator")
    if second is not None:
        second = likelihood.on_device(second)
        check_pair(second, model)
    known_step = checkpoint.resolve().parent.name == store.FOLDER
    return Networks(
        name=path.resolve().name,
        encoder=encode.on_device(of_loaded(model)),
        pretrained=model,
        generator=second,
        step=store.step_of(checkpoint.resolve()) if known_step else None,
    )


def is_run(path: Path) -> bool:
    """Whether this is the folder of a pre-training run."""
    return (path / "config.toml").is_file()


def _generator(checkpoint: Path, model: Loaded) -> Loaded | None:
    """The generator that was trained with a discriminator, where the folder has one."""
    if not isinstance(model.head, DetectionHead):
        return None
    try:
        return load_model(checkpoint, part="generator")
    except CheckpointError:
        return None


def _scores(model: Loaded) -> bool:
    try:
        likelihood.check(model)
    except CheckpointError:
        return False
    return True


def _split(answers: Sequence[Any], items: Sequence[Sequence[Any]]) -> list[Any]:
    """The answers of all rows, by the item that each row belongs to."""
    ends, found = 0, []
    for item in items:
        found.append(list(answers[ends : ends + len(item)]))
        ends += len(item)
    return found
