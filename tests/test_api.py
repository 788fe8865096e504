"""The Python API: its names, its results, and that each verb gives what its command gives."""

from __future__ import annotations

import html
import inspect
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import pytest
import task_files
import torch
from click.testing import CliRunner

import electra
from electra import api
from electra.cli import main
from electra.errors import CheckpointError, ConfigError, DataError

VERBS = {
    "prepare",
    "pretrain",
    "resume",
    "load",
    "finetune",
    "evaluate",
    "predict",
    "detect",
    "score",
    "encode",
    "export",
}
SETTINGS: dict[str, str | int | float | bool] = {
    "model.layers": 2,
    "model.width": 64,
    "model.heads": 1,
    "model.ffn": 128,
    "model.embedding": 32,
    "model.positions": 64,
    "data.length": 32,
    "train.batch_size": 8,
    "train.steps": 10,
    "train.log_every": 5,
    "train.precision": "fp32",
    "train.device": "cpu",
    "optim.warmup_steps": 4,
    "evaluate.sequences": 8,
    "evaluate.every": 5,
}
TUNING = {"epochs": 2, "batch_size": 4, "length": 24, "precision": "fp32", "device": "cpu"}
TEXTS = ["The river saw <b>winter</b>.", "a small house & a dark tree"]


def command(*arguments: object) -> str:
    done = CliRunner().invoke(main, [str(one) for one in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def as_strings(settings: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    corpora.write_corpus(folder / "corpus.txt", 30)
    (folder / "mine").mkdir()
    for split, rows in (("train", 24), ("dev", 8)):
        task_files.table(folder / "mine" / f"{split}.csv", rows, seed=split)
    return folder


@pytest.fixture(scope="module")
def data(place: Path) -> api.PreparedData:
    return electra.prepare(place / "corpus.txt", out=place / "data", vocab_size=200, held_out_share=0.2, workers=1)


@pytest.fixture(scope="module")
def run(place: Path, data: api.PreparedData) -> api.Run:
    return electra.pretrain(data.path, out=str(place / "run"), preset="tiny", settings=SETTINGS)


@pytest.fixture(scope="module")
def tuned(place: Path, run: api.Run) -> api.FinetuneResult:
    return electra.finetune("classify", model=run.path, data=place / "mine", out=place / "tuned", settings=TUNING)


# --- names ---


def test_exported_names() -> None:
    assert set(electra.__all__) == VERBS | {"Model", "__version__"}
    assert set(electra.__all__) <= set(dir(electra)) and len(set(electra.__all__)) == len(electra.__all__)
    for name in VERBS:
        verb = getattr(electra, name)
        assert verb is getattr(api, name) and verb.__doc__ and inspect.signature(verb).return_annotation
        first, *others = inspect.signature(verb).parameters.values()
        assert first.kind is first.POSITIONAL_OR_KEYWORD, name
        assert all(one.kind is one.KEYWORD_ONLY for one in others), name
    with pytest.raises(AttributeError, match="has no attribute 'foretell'"):
        electra.foretell  # noqa: B018


def test_every_result_class_is_there() -> None:
    assert {*VERBS, "Model"} <= set(api.__all__)
    assert all(hasattr(api, name) for name in api.__all__)


def test_importing_is_light_and_verbs_win_over_modules_of_their_name() -> None:
    program = """
import sys
import electra
heavy = {"torch", "numpy", "tokenizers", "click", "electra.api"} & set(sys.modules)
assert not heavy, heavy
assert electra.__version__ and "load" in dir(electra)
heavy = {"torch", "numpy"} & set(sys.modules)
assert not heavy, heavy
import electra.finetune.suite
import electra.pretrain
from electra.pretrain import pretrain as composed
from electra import api, finetune, pretrain
assert electra.pretrain is pretrain is api.pretrain is not composed
assert electra.finetune is finetune is api.finetune
assert sys.modules["electra.finetune.suite"].run_task

from electra.config.load import preset
from electra.interop.network import Network, shapes_only
from electra.ops.dispatch import host_ops
with shapes_only():
    made = Network(preset("tiny").model, "detection", ops=host_ops("plain"))
assert all(weight.is_meta for weight in made.parameters())
assert "torch._dynamo" not in sys.modules, "the compiler takes longer than to load a model"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# --- each verb gives what its command gives ---


def test_prepare(place: Path, data: api.PreparedData) -> None:
    options = ("--vocab-size", 200, "--held-out-share", 0.2, "--workers", 1)
    command("prepare", place / "corpus.txt", "--out", place / "data-cli", *options)
    ours, theirs = corpora.digests(data.path), corpora.digests(place / "data-cli")
    assert ours == theirs and ours
    assert data.tokens > 500 and data.documents > 10 and data.vocab_size == 200
    assert f"{data.tokens:,}" in str(data) and f"<td>{data.tokens:,}</td>" in data._repr_html_()


def test_pretrain(place: Path, data: api.PreparedData, run: api.Run) -> None:
    command("pretrain", "--data", data.path, "--out", place / "run-cli", "--preset", "tiny", *as_strings(SETTINGS))
    weights = "checkpoints/step-00000010/model.safetensors"
    assert (run.path / weights).read_bytes() == (place / "run-cli" / weights).read_bytes()
    assert run.step == 10 and 0 <= run.metrics["eval/rtd_auc"] <= 1 and run.metrics["train/rtd_loss"] > 0
    assert "eval/rtd_auc" in str(run) and "<td>eval/rtd_auc</td>" in run._repr_html_()


def test_settings_are_read_strictly(place: Path, data: api.PreparedData) -> None:
    for settings in ({"train.stepz": 2}, ["train.stepz=2"], {"train.steps": 2.5}, {"train.deterministic": "yes"}):
        with pytest.raises(ConfigError):
            electra.pretrain(data.path, out=place / "never", preset="tiny", settings=settings)  # type: ignore[arg-type]
    assert not (place / "never").exists()
    assert api._overrides({"train.deterministic": True, "optim.lr": 1e-05}) == [
        "train.deterministic=true",
        "optim.lr=1e-05",
    ]
    assert api._overrides("seed=1") == ["seed=1"]


def test_detect(run: api.Run) -> None:
    model = electra.load(str(run.path), device="cpu")  # as the command does
    found = model.detect(TEXTS[0], threshold=0.0)
    wanted = json.loads(command("detect", "--model", run.path, "--threshold", 0, "--json", TEXTS[0]))
    assert [(one.token, one.start, one.end, one.probability) for one in found.tokens] == [
        (one["token"], one["start"], one["end"], one["probability"]) for one in wanted["tokens"]
    ]
    assert found.flagged == found.tokens and not electra.detect(run.path, text=TEXTS[0], threshold=1.0).flagged
    assert f"{found}\n" == command("detect", "--model", run.path, "--threshold", 0, TEXTS[0])
    shown = found._repr_html_()
    assert html.escape("<") in shown and "<b>" not in shown and shown.count("<tr>") == len(found.tokens) + 1
    assert repr(model).startswith("<electra.Model ") and "2 layers x 64" in repr(model) and model.task is None


def test_score(run: api.Run) -> None:
    found = electra.score(run.path, texts=TEXTS, part="generator")
    lines = command("score", "--model", run.path, "--part", "generator", *TEXTS).splitlines()
    for one, line in zip(found, lines, strict=True):
        wanted = json.loads(line)
        assert one.text == wanted["text"] and len(one.tokens) == wanted["count"]
        assert one.score == pytest.approx(wanted["score"], rel=1e-5)
    assert len(found) == 2 and found[1].text == TEXTS[1] and len(found[:1]) == 1
    assert TEXTS[1] in str(found) and html.escape(TEXTS[1]) in found._repr_html_()
    with pytest.raises(CheckpointError, match="tells replaced tokens from original ones"):
        electra.score(run.path, texts=TEXTS)


def test_encode(run: api.Run, tuned: api.FinetuneResult) -> None:
    model = electra.load(run.path, device="cpu")
    vectors = model.encode(TEXTS)
    assert vectors.shape == (2, 64) and vectors.dtype == np.float32 and np.isfinite(vectors).all()
    np.testing.assert_array_equal(electra.encode(run.path, texts=TEXTS, device="cpu"), vectors)
    np.testing.assert_allclose(model.encode(TEXTS[0])[0], vectors[0], atol=1e-5)
    assert not np.allclose(model.encode(TEXTS, pooling="cls"), vectors)
    assert electra.load(tuned.path).encode(TEXTS).shape == (2, 64)


def test_finetune(place: Path, run: api.Run, tuned: api.FinetuneResult) -> None:
    out = place / "tuned-cli"
    printed = command(
        "finetune", "classify", "--model", run.path, "--data", place / "mine", "--out", out, *as_strings(TUNING)
    )
    [theirs] = json.loads((out / "results.json").read_text())["tasks"]
    assert tuned.result.scores("accuracy") == [one["scores"]["accuracy"] for one in theirs["seeds"]]
    assert tuned.median == theirs["summary"]["accuracy"]["median"]
    weights = "seed-0/model.safetensors"
    assert (tuned.path / weights).read_bytes() == (out / weights).read_bytes()
    assert printed.startswith(str(tuned)), "the same table"
    assert "<th>median</th>" in tuned._repr_html_()
    for bad in ({"seeds": 0}, {"together": -1}):
        with pytest.raises(ConfigError, match="too few"):
            electra.finetune("classify", model=run.path, data=place / "mine", out=place / "never", **bad)  # type: ignore[arg-type]


def test_predict(place: Path, tuned: api.FinetuneResult) -> None:
    file = place / "mine" / "dev.csv"
    wanted = [json.loads(line) for line in command("predict", "--model", tuned.path, "--input", file).splitlines()]
    found = electra.predict(tuned.path, input=file)
    assert [one["label"] for one in found] == [one["prediction"] for one in wanted] and len(found) == len(wanted) > 3
    for one, other in zip(found, wanted, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], rel=1e-5)
    model = electra.load(tuned.path)
    assert model.task == "classify" and "fine-tuned on classify" in repr(model)
    again = model.predict(TEXTS)
    assert again.rows == electra.predict(tuned.path, rows=TEXTS).rows and again[0]["id"] == "0"
    assert model.predict(TEXTS[0]).rows[0]["label"] == again[0]["label"], "one text is one row"
    assert again[0]["label"] in str(again) and "<th>label</th>" in again._repr_html_()
    with pytest.raises(ConfigError, match="give rows, or a file"):
        electra.predict(tuned.path)


def test_evaluate(place: Path, run: api.Run, tuned: api.FinetuneResult) -> None:
    file = place / "mine" / "dev.csv"
    found = electra.evaluate(tuned.path, file=file)
    assert json.loads(json.dumps(found.values)) == json.loads(command("evaluate", tuned.path, file, "--json"))
    assert f"{found}\n" == command("evaluate", tuned.path, file)
    assert found.scores == electra.load(tuned.path).evaluate(file, label="label").scores and found.rows == 8
    assert "<td>accuracy</td>" in found._repr_html_()
    whole = electra.evaluate(tuned.path)
    assert f"{whole}\n" == command("evaluate", tuned.path) and whole.suite.results == (tuned.result,)
    assert whole._repr_html_() == tuned._repr_html_()
    with pytest.raises(ConfigError, match="text: names a column, and there is no file"):
        electra.evaluate(tuned.path, text="text")  # type: ignore[call-overload]
    with pytest.raises(CheckpointError, match="is not a fine-tuned model"):
        electra.evaluate(run.path, file=file)


def test_resume(place: Path, data: api.PreparedData, run: api.Run) -> None:
    for name in ("longer", "longer-cli"):
        shutil.copytree(run.path, place / name)
    found = electra.resume(place / "longer", settings={"train.steps": 12})
    command("pretrain", "--resume", place / "longer-cli", "train.steps=12")
    weights = "checkpoints/step-00000012/model.safetensors"
    assert found.step == 12 and found.path == place / "longer"
    assert (place / "longer" / weights).read_bytes() == (place / "longer-cli" / weights).read_bytes()
    assert electra.resume(place / "longer", data=data.path).step == 12, "a finished run stays as it is"
    with pytest.raises(ConfigError, match="train.steps"):
        electra.resume(place / "longer", settings={"train.steps": 11})


def test_models_say_what_they_cannot_do(run: api.Run, tuned: api.FinetuneResult) -> None:
    with pytest.raises(CheckpointError, match="is not a fine-tuned model"):
        electra.load(run.path).predict(TEXTS)
    for verb in ("detect", "score"):
        with pytest.raises(CheckpointError, match="has no pre-training head"):
            getattr(electra.load(tuned.path), verb)(TEXTS[0])
    with pytest.raises(ConfigError, match="one network only"):
        electra.load(tuned.path, part="generator")


def test_defect_choices_that_do_not_exist_are_refused(run: api.Run, place: Path) -> None:
    """`format="tf"` wrote a folder for transformers, `device="tpu"` asked for CUDA, `threshold=50` marked nothing."""
    model, out = electra.load(run.path), place / "no-export"
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: model.export(out, format="onnyx"), r"format: 'onnyx' is not one of hf, onnx, .*did you mean 'onnx'"),  # type: ignore[arg-type]
        (lambda: model.export(out, pooling="max"), "pooling: 'max' is not one of mean, cls"),  # type: ignore[arg-type]
        (lambda: electra.export(run.path, out=out, part="both"), "part: 'both' is not one of"),  # type: ignore[arg-type]
        (lambda: electra.load(run.path, part="g"), "part: 'g' is not one of discriminator, generator"),  # type: ignore[arg-type]
        (lambda: electra.load(run.path, device="tpu"), r"device: 'tpu' is not one of auto, cpu, cuda"),  # type: ignore[arg-type]
        (lambda: model.detect("a", threshold=50), "threshold: 50 is not a probability"),
    ]
    for call, message in wrong:
        with pytest.raises(ConfigError, match=message):
            call()
    assert not out.exists()


def test_missing_cells_are_named_by_their_row(run: api.Run, tuned: api.FinetuneResult) -> None:
    model, classifier = electra.load(run.path), electra.load(tuned.path)
    table = pytest.importorskip("pandas").DataFrame({"text": ["a"]})
    cases: list[tuple[Any, Any, str]] = [
        (classifier.predict, [float("nan")], "row 1: nan is not a text"),
        (classifier.predict, ["a", None], "row 2: None is not a text"),
        (classifier.predict, [("a", None)], "row 1: None is not a text"),
        (classifier.predict, None, "rows: None is not a text"),
        (classifier.predict, [{"text": "a"}], r"row 1: .'text': 'a'. is not a text \(give its texts, such as"),
        (classifier.predict, {"text": ["a"]}, "rows: .* is not a text"),
        (classifier.predict, ["a", {"b", "c"}], "row 2: .* is not a text"),
        (classifier.predict, table, "rows: .* is not a text"),
        (model.encode, {"a": "b"}, "texts: .* is not a text"),
        (
            classifier.predict,
            ["a", ("b", "c")],
            r"row 2: is two texts, and classify was fine-tuned on one a row \(give one",
        ),
        (model.encode, ["a", None], "row 2: None is not a text"),
        (model.encode, None, "texts: None is not a text"),
        (model.detect, None, "text: None is not a text"),
        (model.score, [3], "row 1: 3 is not a text"),
    ]
    for verb, given, message in cases:
        with pytest.raises(DataError, match=message):
            verb(given)


def test_half_a_character_of_a_text_is_left_out_as_in_data(run: api.Run, tuned: api.FinetuneResult) -> None:
    model, classifier = electra.load(run.path), electra.load(tuned.path)
    half, whole = "a\ud83d dog", "a dog"
    assert model.detect(half) == model.detect(whole)
    np.testing.assert_array_equal(model.encode([half]), model.encode([whole]))
    assert classifier.predict([half]).rows == classifier.predict([whole]).rows


def test_one_held_out_file_needs_no_list(place: Path, tmp_path: Path) -> None:
    apart = tmp_path / "apart.txt"
    apart.write_text("A text of its own, which no other document holds.\n", encoding="utf-8")
    made = electra.prepare(place / "corpus.txt", out=tmp_path / "data", vocab_size=200, held_out=str(apart), workers=1)
    assert made.held_out_tokens > 0


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("vocab_size", "many", '--vocab-size: "many" is not a whole number .write digits only'),
        ("vocab_size", 200.0, "--vocab-size: 200.0 is not a whole number"),
        ("vocab_size", True, "--vocab-size: true is not a whole number"),
        ("min_chars", None, "--min-chars: None is not a whole number"),
        ("workers", "2", '--workers: "2" is not a whole number'),
        ("held_out_share", "0.1", '--held-out-share: "0.1" is not a number .such as 0.15'),
        ("text_column", 3, "--text-column: 3 is not a text"),
        ("encoding", 3, "--encoding: 3 is not a text"),
        ("tokenizer", None, "--tokenizer: None is not possible .one of: auto, wordpiece, bytes"),
        ("lowercase", "no", '--lowercase: "no" is not true or false'),
        ("strip_accents", 1, "--strip-accents: 1 is not true or false"),
        ("split_sentences", None, "--split-sentences: None is not true or false"),
        ("held_out", None, "held_out: None is not a path .give a path, or a list of paths"),
        ("out", 3, "out: 3 is not a path .give a text or a pathlib.Path"),
    ],
)
def test_what_prepare_cannot_take_is_named(place: Path, tmp_path: Path, key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        electra.prepare(place / "corpus.txt", **({"out": tmp_path / "data"} | {key: value}))
    assert not (tmp_path / "data").exists()


def test_export(place: Path, run: api.Run, tuned: api.FinetuneResult) -> None:
    for name, model in (("hf", run.path), ("hf-tuned", tuned.path)):
        printed = command("export", model, "--out", place / f"{name}-cli")
        made = electra.export(model, out=place / name)
        assert corpora.digests(made.path) == corpora.digests(place / f"{name}-cli")
        assert printed.replace(f"{name}-cli", name) == f"{made}\n"
        assert f"<td>{made.architecture}</td>" in made._repr_html_()
    assert electra.load(place / "hf").detect(TEXTS[1]).tokens
    assert electra.load(run.path, part="generator").export(place / "generator").architecture == "ElectraForMaskedLM"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_what_the_cpu_gives(run: api.Run, tuned: api.FinetuneResult) -> None:
    here, there = electra.load(run.path, device="cpu"), electra.load(run.path, device="cuda")
    for one, other in zip(here.detect(TEXTS[1]).tokens, there.detect(TEXTS[1]).tokens, strict=True):
        assert one.token == other.token and one.probability == pytest.approx(other.probability, abs=2e-3)
    np.testing.assert_allclose(here.encode(TEXTS), there.encode(TEXTS), atol=5e-3)
    labels = [
        [row["label"] for row in electra.load(tuned.path, device=place).predict(TEXTS)] for place in ("cpu", "cuda")
    ]  # type: ignore[arg-type]
    assert labels[0] == labels[1]
