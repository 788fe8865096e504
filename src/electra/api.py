"""The verbs of the command line as functions. Paths are `str` or `Path`; heavy imports wait for the first call.

Settings are a mapping, `{"train.steps": 200}`, or strings as on the command line, `["train.steps=200"]`. Either way the
same strict reader reads them: an unknown key or an impossible value is a `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from electra.api_model import Device, Model, Part, PathLike, export, path_of, path_or_none
from electra.api_results import Evaluation, Exported, FinetuneResult, PreparedData, Results, Run
from electra.errors import ConfigError
from electra.inference.results import (
    DetectedToken,
    Detection,
    Prediction,
    Predictions,
    Scores,
    TextScore,
    TokenScore,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from electra.inference.predict import Input
    from electra.interop.embedding_folder import Pooling

Settings = Mapping[str, str | int | float | bool] | Sequence[str]

__all__ = [
    "DetectedToken",
    "Detection",
    "Evaluation",
    "Exported",
    "FinetuneResult",
    "Model",
    "Prediction",
    "Predictions",
    "PreparedData",
    "Results",
    "Run",
    "Scores",
    "TextScore",
    "TokenScore",
    "detect",
    "encode",
    "evaluate",
    "export",
    "finetune",
    "load",
    "predict",
    "prepare",
    "pretrain",
    "resume",
    "score",
]


def load(model: PathLike | None = None, *, part: Part = "discriminator", device: Device = "auto") -> Model:
    """The model in a run folder, a checkpoint, an exported, a `transformers` or a fine-tuned folder, ready to use.

    A hub name, `owner/name`, is looked up in the local hub cache, then downloaded by `huggingface_hub`. Without a model
    it is the largest that comes with the package.
    `part` chooses between a run's two networks. Of a fine-tuning run it is the seed with the median score.
    """
    return Model(_default() if model is None else model, part=part, device=device)


def prepare(
    sources: PathLike | Sequence[PathLike],
    *,
    out: PathLike,
    vocab: PathLike | None = None,
    vocab_size: int = 30522,
    held_out: PathLike | Sequence[PathLike] = (),
    held_out_share: float = 0.005,
    workers: int | None = None,
    text_column: str = "text",
    encoding: str | None = None,
    tokenizer: Literal["auto", "wordpiece", "bytes"] = "auto",
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    split_sentences: bool = True,
    min_chars: int = 5,
) -> PreparedData:
    """A tokenizer and token shards made from text; calling it again continues, or verifies finished data.

    Sources are files (.txt .md .html .jsonl .csv .tsv .parquet, also compressed), folders, globs or hf:NAME. In .txt
    files a blank line ends a document; a .md or .html file is one; elsewhere a row is a document. `encoding` is that of
    text files that are not UTF-8. `vocab` is a vocabulary to use as it is: a BERT vocab.txt, or the tokenizer of a run,
    of data, of an export or of `electra:small`. Without it one is trained, of the kind that suits the scripts of the
    text; it keeps case and accents unless asked otherwise.
    """
    from electra.interop.bundled import bundled_folder
    from electra.shards.build import prepare as build
    from electra.shards.options import PrepareOptions

    options = PrepareOptions(
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        lowercase=lowercase,
        strip_accents=strip_accents,
        text_column=text_column,
        encoding=encoding,
        split_sentences=split_sentences,
        min_chars=min_chars,
        held_out_share=held_out_share,
    )
    result = build(
        _names(sources, key="sources"),
        out=path_of(out, key="out"),
        options=options,
        vocab=None if vocab is None else bundled_folder(path_of(vocab, key="vocab")),
        held_out=_names(held_out, key="held_out"),
        workers=workers,
        worker=None,
    )
    assert result.manifest is not None, "there is one worker"
    train, apart = result.manifest["splits"]["train"], result.manifest["splits"]["held-out"]
    return PreparedData(
        path=result.folder,
        documents=train["documents"],
        sentences=train["sentences"],
        tokens=train["tokens"],
        held_out_tokens=apart["tokens"],
        vocab_size=result.manifest["tokenizer"]["vocab_size"],
    )


def _names(paths: PathLike | Sequence[PathLike], *, key: str) -> list[str]:
    """Paths as on the command line; a single one stands for a list."""
    if not isinstance(paths, Iterable | Path):
        raise ConfigError(key, f"{paths} is not a path", fix="give a path, or a list of paths")
    return [str(one) for one in ([paths] if isinstance(paths, PathLike) else paths)]


def pretrain(
    data: PathLike,
    *,
    out: PathLike,
    model: PathLike | None = None,
    generator: PathLike | None = None,
    preset: str | None = None,
    config: PathLike | None = None,
    settings: Settings = (),
) -> Run:
    """A run: generator and discriminator trained on prepared data; calling it again resumes.

    `model` is what it goes on from: a run, an export, `electra:small` or a transformers ELECTRA folder, with its
    `generator`'s folder.
    `config` is a TOML file with changed keys, `settings` are single keys; both change the model's config or the preset
    (by default `small`).
    """
    from electra.config.unread import warn_of_unread
    from electra.interop.continuation import config_of_run
    from electra.pretrain import pretrain as train
    from electra.train.parallel import is_leader

    folder = path_of(out, key="out")
    loaded, start = config_of_run(
        folder,
        model=path_or_none(model, key="model"),
        generator=path_or_none(generator, key="generator"),
        preset=preset,
        file=path_or_none(config, key="config"),
        overrides=_overrides(settings),
    )
    if is_leader():
        warn_of_unread(loaded)
    return _run(train(loaded, data=path_of(data, key="data"), out=folder, start=start))


def resume(run: PathLike, *, data: PathLike | None = None, settings: Settings = ()) -> Run:
    """A run that goes on as its folder says, as `electra pretrain --resume`; a finished one stays as it is.

    `settings` may lengthen it, by `train.steps` or `train.max_minutes`; a line says what that means for its learning
    rate. `data` says where the prepared data is now, where it was moved.
    """
    from electra.checkpoint.lengthening import config_to_resume, data_of
    from electra.pretrain import pretrain as train

    folder = path_of(run, key="run")
    config = config_to_resume(folder, _overrides(settings))
    return _run(train(config, data=path_or_none(data, key="data") or data_of(folder), out=folder, lengthen=True))


def _run(path: Path) -> Run:
    from electra.report.reading import number, read_run

    run = read_run(path)
    lines = [*run.train, *run.evals]
    values = {name: number(value) for line in lines for name, value in line.items() if "/" in name}
    metrics = {name: value for name, value in values.items() if value is not None}
    return Run(path=path, step=max((int(line["step"]) for line in lines), default=0), metrics=metrics)


def finetune(
    task: str,
    *,
    model: PathLike | None = None,
    out: PathLike,
    data: PathLike | None = None,
    train: PathLike | None = None,
    dev: PathLike | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    negative: str | None = None,
    separator: str = ",",
    name: str | None = None,
    seeds: int = 1,
    together: int = 0,
    untrained: bool = False,
    config: PathLike | None = None,
    settings: Settings = (),
) -> FinetuneResult:
    """The scores of a model fine-tuned on a task, once a seed; calling it again adds missing seeds.

    `task` is a GLUE task, `squad`, `squad2`, or for files of your own `classify`, `multilabel`, `regress`, `pairs`,
    `tag` or `questions`. Files are those of the folder `data`, or `train` and `dev`; of a single file, `data` or
    `train`, a part is held out. `text`, `pair` and `label` name columns; text and label are guessed where that is
    obvious. Of `pairs`, `label` is a graded score and `negative` a text that looks right and is not; both may be left
    out. Without a model it is the one that `load()` loads.
    Settings are the paper's for the model's size; `config` (TOML) and `settings` change them.
    """
    from electra.finetune.task_run import Options, finetune_task
    from electra.tasks.columns import Columns

    if seeds < 1 or together < 0:
        raise ConfigError("seeds and together", f"{seeds} and {together} are too few", fix="at least 1 and 0")
    folder = path_of(out, key="out")
    result = finetune_task(
        task,
        model=path_or_none(model, key="model"),
        out=folder,
        data=path_or_none(data, key="data"),
        train=path_or_none(train, key="train"),
        dev=path_or_none(dev, key="dev"),
        columns=Columns(text=text, pair=pair, label=label, negative=negative, separator=separator),
        title=name,
        options=Options(
            seeds=seeds,
            together=together,
            untrained=untrained,
            file=path_or_none(config, key="config"),
            settings=_overrides(settings),
        ),
    )
    return FinetuneResult(path=folder, result=result)


@overload
def evaluate(model: PathLike) -> Results: ...
@overload
def evaluate(
    model: PathLike,
    *,
    file: PathLike,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    device: Device = "auto",
) -> Evaluation: ...
def evaluate(
    model: PathLike,
    *,
    file: PathLike | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    device: Device = "auto",
) -> Results | Evaluation:
    """The scores in a folder of `finetune` or `electra glue`, or with `file` those of its model on labelled rows.

    `text`, `pair` and `label` name the columns of the file; otherwise they are those of fine-tuning.
    """
    if file is not None:
        return load(model, device=device).evaluate(file, text=text, pair=pair, label=label)
    from electra.finetune.suite import results_of

    if given := [name for name, column in (("text", text), ("pair", pair), ("label", label)) if column is not None]:
        raise ConfigError(given[0], "names a column, and there is no file", fix="give file too")
    folder = path_of(model, key="model")
    return Results(path=folder, suite=results_of(folder))


def predict(
    model: PathLike,
    *,
    rows: Sequence[Input] | None = None,
    input: PathLike | None = None,
    text: str | None = None,
    pair: str | None = None,
    id: str | None = None,
    batch_size: int = 128,
    device: Device = "auto",
) -> Predictions:
    """A fine-tuned model's predictions for `rows`, or for the rows of the file `input`.

    A row is a text, a pair of texts, the words of a sentence to tag, or a question with its passage. `text`, `pair` and
    `id` name the columns of a file.
    """
    if (rows is None) == (input is None):
        raise ConfigError("rows", "give rows, or a file as input", fix="one of both")
    loaded = load(model, device=device)
    if input is not None:
        return loaded.predict_file(input, text=text, pair=pair, id=id, batch_size=batch_size)
    assert rows is not None
    return loaded.predict(rows, batch_size=batch_size)


def detect(model: PathLike | None = None, *, text: str, threshold: float = 0.5, device: Device = "auto") -> Detection:
    """The tokens of a text, each with the probability that it was replaced; flagged from `threshold` on.

    Without a model it is the one that `load()` loads.
    """
    return load(model, device=device).detect(text, threshold=threshold)


def score(
    model: PathLike,
    *,
    texts: str | Sequence[str],
    part: Part = "discriminator",
    batch_size: int = 64,
    device: Device = "auto",
) -> Scores:
    """The pseudo-log-likelihood of each text, by an electric model or a masked language model.

    `part="generator"` takes a run's generator, which is a masked language model.
    """
    return load(model, part=part, device=device).score(texts, batch_size=batch_size)


def encode(
    model: PathLike | None = None,
    *,
    texts: str | Sequence[str],
    pooling: Pooling = "mean",
    batch_size: int = 64,
    device: Device = "auto",
) -> NDArray[np.float32]:
    """One vector a text, (texts, width): the mean of the last hidden states, or with `cls` that of [CLS].

    Without a model it is the one that `load()` loads.
    """
    return load(model, device=device).encode(texts, pooling=pooling, batch_size=batch_size)


def _default() -> Path:
    from electra.finetune.pretrained import default_model

    return default_model()


def _overrides(settings: Settings) -> list[str]:
    """Settings as the command line's `key=value`."""
    if isinstance(settings, str):
        return [settings]
    if not isinstance(settings, Mapping):
        return list(settings)
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()]
