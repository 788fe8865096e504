"""A model to use: what `electra.load` gives, and its export. Heavy imports wait for the first call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal, get_args

from electra.api_results import Evaluation, Exported
from electra.errors import CheckpointError, ConfigError, suggest
from electra.inference.results import Detection, Predictions, Scores

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from electra.finetune.model_folder import FinetunedModel
    from electra.finetune.pretrained import Pretrained
    from electra.inference.predict import Input
    from electra.interop.embedding_folder import Pooling
    from electra.interop.models import Loaded

PathLike = str | Path
Part = Literal["discriminator", "generator"]
Device = Literal["auto", "cpu", "cuda"]
Format = Literal["hf", "onnx", "sentence-transformers"]


class Model:
    """A model to use, from `electra.load`.

    A pre-trained model can `detect`, `score` and `encode`; a fine-tuned one can `predict`, `evaluate` and `encode`.
    """

    def __init__(self, path: PathLike, *, part: Part = "discriminator", device: Device = "auto") -> None:
        from electra.finetune.model_folder import load_finetuned
        from electra.interop.finetuned_folder import is_finetuned
        from electra.interop.models import load_model

        _require_choice("part", part, get_args(Part))
        _require_choice("device", device, get_args(Device))
        self.path, self.part, self.device = path_of(path, key="model"), part, device
        self._finetuned: FinetunedModel | None = None
        self._pretrained: Loaded | None = None
        if is_finetuned(self.path):
            if part != "discriminator":
                raise ConfigError("part", "a fine-tuned model has one network only", fix="leave it out")
            self._finetuned = load_finetuned(self.path)
        else:
            self._pretrained = load_model(self.path, part=part)

    @property
    def task(self) -> str | None:
        """The title of the task it was fine-tuned on; None for a pre-trained model."""
        return self._finetuned.about.title if self._finetuned else None

    def predict(self, rows: Sequence[Input], *, batch_size: int = 128) -> Predictions:
        """One prediction a row: a text, a pair of texts, the words of a sentence, or a question with its passage."""
        from electra.inference.predict import predict

        model = self._for_prediction
        found = predict(model, [rows] if isinstance(rows, str) else rows, batch_size=batch_size)
        return Predictions(title=model.about.title, rows=tuple(found))

    def predict_file(
        self,
        path: PathLike,
        *,
        text: str | None = None,
        pair: str | None = None,
        id: str | None = None,
        batch_size: int = 128,
    ) -> Predictions:
        """One prediction a row of a file; `text`, `pair` and `id` name its columns, otherwise those of fine-tuning."""
        from electra.inference.input_rows import rows_of_file

        found = rows_of_file(path_of(path, key="path"), self._for_prediction.about, text=text, pair=pair, id=id)
        return self.predict(found.rows, batch_size=batch_size)

    def evaluate(
        self, file: PathLike, *, text: str | None = None, pair: str | None = None, label: str | None = None
    ) -> Evaluation:
        """The scores on the labelled rows of a file; the arguments name its columns, otherwise those of fine-tuning."""
        from electra.inference.evaluate_file import evaluate_file
        from electra.tasks.columns import Columns

        columns = Columns(text=text, pair=pair, label=label)
        path = path_of(file, key="file")
        return Evaluation(path=path, values=evaluate_file(self._for_prediction, path, columns=columns))

    def detect(self, text: str, *, threshold: float = 0.5) -> Detection:
        """The tokens of a text, each with the probability that it was replaced; flagged from `threshold` on."""
        from electra.inference.detect import detect
        from electra.inference.given_texts import require_text

        if not 0 <= threshold <= 1:
            raise ConfigError("threshold", f"{threshold} is not a probability", fix="give one from 0 to 1")
        return detect(self._with_head, require_text(text, where="text"), threshold=threshold)

    def score(self, texts: str | Sequence[str], *, batch_size: int = 64) -> Scores:
        """The pseudo-log-likelihood of each text; needs an electric model or a masked language model."""
        from electra.inference.given_texts import require_texts
        from electra.inference.likelihood import score

        return Scores(texts=tuple(score(self._with_head, require_texts(texts), batch_size=batch_size)))

    def encode(
        self, texts: str | Sequence[str], *, pooling: Pooling = "mean", batch_size: int = 64
    ) -> NDArray[np.float32]:
        """One vector a text, (texts, width): the mean of the last hidden states, or with `cls` that of [CLS]."""
        from electra.inference.encode import encode
        from electra.inference.given_texts import require_texts

        return encode(self._encoder, require_texts(texts), pooling=pooling, batch_size=batch_size)

    def export(
        self, out: PathLike, *, format: Format = "hf", int8: bool = False, pooling: Pooling = "mean"
    ) -> Exported:
        """A folder that other programs load, written from this model; as `electra.export`."""
        return export(self.path, out=out, part=self.part, format=format, int8=int8, pooling=pooling)

    def __repr__(self) -> str:
        config = (self._finetuned or self._with_head).config
        kind = f"fine-tuned on {self.task}" if self._finetuned else f"pre-trained {self.part}"
        return f"<electra.Model {self.path}: {kind}, {config.layers} layers x {config.width}>"

    @cached_property
    def _for_prediction(self) -> FinetunedModel:
        from electra.inference.predict import on_device

        if self._finetuned is None:
            raise CheckpointError(self.path, "is not a fine-tuned model", fix="electra.finetune makes one")
        return on_device(self._finetuned, self.device)

    @cached_property
    def _with_head(self) -> Loaded:
        from electra.inference.likelihood import on_device

        if self._pretrained is None:
            reason = "is fine-tuned, so it has no pre-training head"
            raise CheckpointError(self.path, reason, fix="load the pre-trained model")
        return on_device(self._pretrained, self.device)

    @cached_property
    def _encoder(self) -> Pretrained:
        from electra.finetune.pretrained import embedder, of_loaded
        from electra.inference.encode import on_device

        if self._finetuned is not None:
            return on_device(embedder(self._finetuned), self.device)
        assert self._pretrained is not None
        return on_device(of_loaded(self._pretrained), self.device)


def export(
    model: PathLike,
    *,
    out: PathLike,
    part: Part = "discriminator",
    format: Format = "hf",
    int8: bool = False,
    pooling: Pooling = "mean",
) -> Exported:
    """A folder that other programs load, written from a pre-trained or fine-tuned model.

    `hf` is for `transformers`, `onnx` for ONNX Runtime (`int8`: in 8 bits too); `pooling` is of sentence-transformers.
    """
    from electra.finetune.export import export as write
    from electra.interop.embedding_folder import Pooling

    for key, value, known in (("part", part, Part), ("format", format, Format), ("pooling", pooling, Pooling)):
        _require_choice(key, value, get_args(known))
    source, folder = path_of(model, key="model"), path_of(out, key="out")
    made = write(source, folder, part=part, form=format, int8=int8, pooling=pooling)
    folders = {"path": folder, "source": made.path}
    return Exported(**folders, architecture=made.architecture, parameters=made.parameters, notes=made.notes)


def path_of(value: object, *, key: str) -> Path:
    """The argument as a path; refused by its name where it is none."""
    if not isinstance(value, str | PurePath):
        raise ConfigError(key, f"{value!r} is not a path", fix="give a text or a pathlib.Path")
    return Path(value)


def path_or_none(value: object, *, key: str) -> Path | None:
    """`path_of` an argument that may be left out."""
    return None if value is None else path_of(value, key=key)


def _require_choice(key: str, value: object, known: Sequence[str]) -> None:
    """Refuse a value that is none of these, as the command line does."""
    if value not in known:
        fix = suggest(str(value), known) or "leave it out for the default"
        raise ConfigError(key, f"{value!r} is not one of {', '.join(known)}", fix=fix)
