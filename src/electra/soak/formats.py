"""Every format that this package reads: a whole file of each, and what reads it."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from electra.checkpoint import store
from electra.config.finetune import FinetuneConfig
from electra.config.load import adjust, load
from electra.corpus.blocks import Blocks
from electra.corpus.documents import Tally, documents
from electra.corpus.sources import Source
from electra.finetune.model_folder import load_finetuned
from electra.finetune.results_file import read_results
from electra.finetune.results_table import plain
from electra.finetune.seed_folder import CURVE, RESULTS, read_curve, read_predictions
from electra.finetune.task_run import Options, finetune_task
from electra.fsio import read_object
from electra.interop.models import load_model
from electra.interop.transfer import export_model
from electra.pretrain import pretrain
from electra.records import read_record
from electra.report.page import render
from electra.report.reading import read_run
from electra.shards.build import prepare
from electra.shards.dataset import open_data
from electra.shards.options import PrepareOptions
from electra.soak.command_lines import sentences
from electra.tasks.conll import read_conll
from electra.tasks.glue_files import read_glue
from electra.tasks.glue_tasks import TASKS
from electra.tasks.squad_files import read_squad
from electra.tasks.tables import read_table
from electra.tokenizer.codec import Tokenizer
from electra.train.loop import Position
from electra.train.metrics_file import MetricsWriter

CONFIG = (
    "model.layers=1", "model.width=64", "model.heads=1", "model.ffn=64", "model.embedding=32", "model.positions=32",
    "data.length=16", "train.steps=2", "train.batch_size=4", "train.log_every=1", "train.device=cpu",
    "train.kernels=plain", "optim.warmup_steps=1", "evaluate.sequences=4", "evaluate.every=1",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Format:
    """A file to damage, and the reader that must take it or refuse it."""

    name: str
    path: Path
    read: Callable[[], object]
    weight: int = 4
    """How often it is chosen; a slow reader less often."""


def make_formats(folder: Path, *, pages: bool = True) -> list[Format]:
    """A whole file of every format, in a new folder: prepared data, a run, an export, a fine-tuned model, tasks.

    Drawing a page takes seconds, and is left out without `pages`.
    """
    corpus, tables = _write_corpora(folder / "corpus"), _write_tasks(folder / "tasks")
    data, run, exported, tuned = (folder / name for name in ("data", "run", "exported", "tuned"))
    options = PrepareOptions(vocab_size=160, held_out_share=0.2, tokenizer="wordpiece")
    prepare([str(corpus["corpus.txt"])], out=data, options=options, workers=1)
    pretrain(load("tiny", overrides=CONFIG), data=data, out=run)
    export_model(run, exported)
    (exported / "vocab.txt").unlink(missing_ok=True)  # so that tokenizer.json is read
    settings = ("epochs=1", "batch_size=4", "length=16", "eval_every=1", "device=cpu", "kernels=plain")
    train = tables["rows.jsonl"]
    finetune_task("classify", model=run, out=tuned, train=train, dev=train, options=Options(settings=settings))
    _write_reports(run, folder)
    return [
        *_of_corpora(corpus),
        *_of_tasks(tables),
        *_of_data(data),
        *_of_bytes(folder / "bytes", corpus["corpus.txt"]),
        *_of_run(run, folder, pages=pages),
        *_of_models(exported, tuned),
    ]


def _of_corpora(paths: dict[str, Path]) -> Iterator[Format]:
    for name, path in paths.items():
        source = Source(name=name, path=path, format="." + name.split(".")[1])
        yield Format(name, path, lambda source=source: _documents(source), weight=8)  # type: ignore[misc]


def _documents(source: Source) -> int:
    blocks = Blocks(source, text_column="text", block_bytes=1 << 12)
    return sum(len(lines) for block in blocks for lines in documents(block, text_column="text", tally=Tally()))


def _of_tasks(paths: dict[str, Path]) -> Iterator[Format]:
    def table(path: Path, kind: str) -> Callable[[], object]:
        return lambda: read_table(path, text="text", label="label", kind=kind)  # type: ignore[arg-type]

    for name, path in paths.items():
        for kind in ("classify", "multilabel", "regress") if name.startswith("rows") else ():
            yield Format(f"{name} as {kind}", path, table(path, kind))
    yield Format("SQuAD", paths["squad.json"], lambda: read_squad(paths["squad.json"]), weight=12)
    yield Format("CoNLL", paths["words.conll"], lambda: read_conll(paths["words.conll"]))
    glue = paths["dev.tsv"]
    yield Format("GLUE", glue, lambda: read_glue(TASKS["rte"], glue.parent.parent, "dev"))


def _of_data(data: Path) -> Iterator[Format]:
    def opened() -> object:
        return open_data(data).tokenizer()

    yield Format("data.json", data / "data.json", opened, weight=16)
    folder = data / "tokenizer"
    vocab = data.with_name("vocab.txt")
    vocab.write_text("\n".join(Tokenizer.load(folder).vocab) + "\n", encoding="utf-8")
    yield Format("vocab.txt", vocab, lambda: Tokenizer.read(vocab).encode("a b"), weight=8)
    config = folder / "tokenizer_config.json"
    yield Format("tokenizer_config.json", config, lambda: Tokenizer.load(folder).encode("a b"), weight=8)


def _of_bytes(folder: Path, corpus: Path) -> Iterator[Format]:
    """A byte-level tokenizer, as `prepare` trains it for text of many scripts."""
    options = PrepareOptions(vocab_size=300, held_out_share=0.2, tokenizer="bytes")
    prepare([str(corpus)], out=folder, options=options, workers=1)
    (folder / "manifest.json").unlink(missing_ok=True)  # its sums would refuse all damage unread
    for path in sorted((folder / "tokenizer").glob("*.json")):
        yield Format(
            f"byte-level {path.name}", path, lambda: Tokenizer.load(folder / "tokenizer").encode("a b"), weight=6
        )


def _of_run(run: Path, folder: Path, *, pages: bool) -> Iterator[Format]:
    def again() -> object:
        MetricsWriter(run, step=2).close()  # the last step
        return [read_run(run).cost, read_run(run).samples]

    def page() -> object:
        return render(read_run(run))

    for name in ("metrics.jsonl", "run.json", "demo.json"):
        yield Format(name, run / name, again, weight=12)
        if pages:
            yield Format(f"{name} on a page", run / name, page, weight=1)
    yield Format("config.toml", run / "config.toml", lambda: load(file=run / "config.toml"), weight=16)
    checkpoint = store.latest(run)
    assert checkpoint is not None
    yield Format("manifest.json", checkpoint / "manifest.json", lambda: store.verify(checkpoint), weight=16)
    for name in ("model.safetensors", "optimizer.safetensors"):
        yield Format(name, checkpoint / name, lambda: store.load(checkpoint), weight=2)
    state = checkpoint / "state.json"
    read = lambda: read_record(Position, read_object(state), whole=True, where=state)  # noqa: E731
    yield Format("state.json", state, read, weight=8)
    finetune = folder / "finetune.toml"
    yield Format("finetune.toml", finetune, lambda: adjust(FinetuneConfig(), file=finetune), weight=8)


def _of_models(exported: Path, tuned: Path) -> Iterator[Format]:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        yield Format(f"exported {name}", exported / name, lambda: load_model(exported), weight=6)
    seed = tuned / "seed-0"
    for name in ("task.json", "tokenizer_config.json"):
        yield Format(f"fine-tuned {name}", seed / name, lambda: load_finetuned(tuned), weight=6)
    yield Format("fine-tuned weights", seed / "model.safetensors", lambda: load_finetuned(tuned), weight=2)
    yield Format("results.json", tuned / RESULTS, lambda: plain(read_results(tuned / RESULTS)), weight=12)
    yield Format("dev.jsonl", seed / "dev.jsonl", lambda: read_predictions(seed / "dev.jsonl"))
    yield Format("curve.json", seed / CURVE, lambda: read_curve(seed / CURVE))


def _write_corpora(folder: Path) -> dict[str, Path]:
    """The same documents in every format of text, plain and compressed."""
    folder.mkdir(parents=True)
    lines = sentences(60, random.Random(0))
    contents = {
        "corpus.txt": "\n\n".join(lines) + "\n",
        "corpus.md": "# Title\n\n" + "\n\n".join(f"- *{line}* [a](b)" for line in lines) + "\n",
        "corpus.html": "<html><body>"
        + "".join(f"<p>{line} &amp; <b>more</b></p>" for line in lines)
        + "</body></html>",
        "corpus.jsonl": "".join(json.dumps({"text": line, "n": at}) + "\n" for at, line in enumerate(lines)),
        "corpus.csv": "n,text\n" + "".join(f'{at},"{line}"\n' for at, line in enumerate(lines)),
    }
    packers: dict[str, Callable[[bytes], bytes]] = {
        "": bytes,
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
    }
    for name, content in contents.items():
        for suffix, pack in packers.items():
            (folder / f"{name}{suffix}").write_bytes(pack(content.encode()))
    return {path.name: path for path in sorted(folder.iterdir())}


def _write_tasks(folder: Path) -> dict[str, Path]:
    """Files of every kind of task."""
    (folder / "RTE").mkdir(parents=True)
    rows = [
        (f"a {word} in the house, or not", at % 2) for at, word in enumerate("river book page city dog cat".split())
    ]
    answers = [{"text": "river", "answer_start": 2}]
    questions = [{"id": str(at), "question": "what?", "answers": answers, "is_impossible": False} for at in range(4)]
    paragraph = {"context": "a river in the house", "qas": questions}
    contents = {
        "rows.jsonl": "".join(json.dumps({"text": text, "label": str(label)}) + "\n" for text, label in rows),
        "rows.csv": "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows),
        "rows.tsv": "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows),
        "words.conll": "river NN B-PLACE\nruns VB O\n\nthe DT O\nbook NN O\n",
        "squad.json": json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": [paragraph] * 1}]}),
        "RTE/dev.tsv": "index\tsentence1\tsentence2\tlabel\n" + "0\ta b\tc d\tentailment\n1\te\tf\tnot_entailment\n",
    }
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
    (folder / "rows.csv.gz").write_bytes(gzip.compress(contents["rows.csv"].encode()))
    return {path.name: path for path in sorted(folder.rglob("*.*"))}


def _write_reports(run: Path, folder: Path) -> None:
    """What `electra demo` says of a run, and settings of fine-tuning."""
    encoder = {"accuracy": 0.5, "seconds": 1.0, "accuracies": [0.25, 0.5], "predictions": ["x", "y"]}
    example = {"text": "t", "label": "x", "pretrained": "x", "untrained": "y"}
    task = {"question": "q", "labels": ["x", "y"], "train": 2, "dev": 2, "gold": ["x", "y"], "examples": [example]}
    corpus = {"bytes": 10, "description": "d"}
    results = {
        "folder": "run",
        "tuned": "tuned",
        "corpus": corpus,
        "task": task,
        "pretrained": encoder,
        "untrained": encoder,
    }
    (run / "demo.json").write_text(json.dumps(results), encoding="utf-8")
    (folder / "finetune.toml").write_text(
        'lr = 1e-4\nepochs = 2.0\nselect = "best"\neval_every = 5\n', encoding="utf-8"
    )
