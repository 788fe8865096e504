"""ONNX files in onnxruntime: what torch computes, at any batch and length, for every kind of model; int8 near it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from model_folders import RTD, SIZE, make_run
from tuned_folders import save

from electra.bench import onnx_int8
from electra.cli import main
from electra.errors import CheckpointError, ConfigError
from electra.finetune.export import export
from electra.finetune.export import export_finetuned as export_for_transformers
from electra.finetune.model_folder import load_finetuned
from electra.inference.predict import predict
from electra.interop import onnx_graph
from electra.interop.models import load_model
from electra.interop.transfer import export_model

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'electra[onnx]'")
pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'electra[onnx]'")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install 'electra[hf]'")

TEXTS = ["the dog sat on the mat", "a", "", "The bank, the money and a CAT! we saw the chef"]


def run(folder: Path, batch: dict[str, Any], file: str = "model.onnx") -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(folder / file, providers=["CPUExecutionProvider"])
    names = {one.name: one.shape for one in session.get_inputs()}
    assert names == dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), ["batch", "length"])
    found: list[np.ndarray] = session.run(None, {name: np.asarray(value) for name, value in batch.items()})
    return found


def batches(folder: Path) -> list[Any]:
    """Several shapes as a tokenizer makes them, one padded on the left."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    made = [tokenizer(texts, padding=True, return_tensors="np") for texts in (TEXTS, TEXTS[:1], TEXTS[3:] * 5)]
    left = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    return [*made, left(TEXTS, padding=True, return_tensors="np"), tokenizer("a", "the cat", return_tensors="np")]


def beside_transformers(kind: str, onnx: Path, hf: Path) -> None:
    """The same outputs as transformers' class computes from the exported weights."""
    theirs = getattr(transformers, kind).from_pretrained(hf).eval()
    for batch in batches(onnx):
        with torch.no_grad():
            wanted = theirs(**{name: torch.from_numpy(value) for name, value in batch.items()})
        real = batch["attention_mask"].astype(bool)
        for mine, reference in zip(run(onnx, dict(batch)), wanted.values(), strict=True):
            reference = reference.numpy()
            assert mine.shape == reference.shape and mine.dtype == np.float32
            if mine.shape[:2] == real.shape:
                mine, reference = mine[real], reference[real]
            np.testing.assert_allclose(mine, reference, atol=1e-4, rtol=1e-4)


LAYER = replace(SIZE, layers=1)
SMALLEST = replace(RTD, model=LAYER)


@pytest.fixture(scope="module")
def discriminator(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with a run, its ONNX form in fp32 and int8, and its transformers form; and what the command printed."""
    folder = tmp_path_factory.mktemp("onnx")
    make_run(folder / "run", RTD)
    args = ["export", str(folder / "run"), "--out", str(folder / "onnx"), "--format", "onnx", "--int8"]
    done = CliRunner().invoke(main, args)
    assert done.exit_code == 0, done.output
    export_model(folder / "run", folder / "hf")
    return folder, done


def test_promise_15_a_discriminator(discriminator: tuple[Path, Any]) -> None:
    folder, done = discriminator
    assert "ElectraForPreTraining" in done.stdout and "any batch, up to 32 tokens" in done.stdout
    assert done.stderr == "", "none of the exporter's remarks"
    files = {path.name for path in (folder / "onnx").iterdir()}
    assert files >= {"model.onnx", "config.json", "README.md", "tokenizer.json", "tokenizer_config.json"}
    assert "model.safetensors" not in files
    beside_transformers("ElectraForPreTraining", folder / "onnx", folder / "hf")
    assert str(Path(__file__).parents[1]).encode() not in (folder / "onnx" / "model.onnx").read_bytes(), "no paths"


def test_int8_is_smaller_close_and_measured(discriminator: tuple[Path, Any]) -> None:
    folder, done = discriminator
    fp32, int8 = (folder / "onnx" / name for name in ("model.onnx", "model_quantized.onnx"))
    assert int8.stat().st_size < 0.5 * fp32.stat().st_size
    batch = dict(batches(folder / "onnx")[0])
    real = batch["attention_mask"].astype(bool)
    exact, rounded = (run(folder / "onnx", batch, file.name)[0][real] for file in (fp32, int8))
    assert 0 < np.abs(exact - rounded).max() < 0.5 * exact.std()
    measured = done.stdout.splitlines()[2]
    assert measured.startswith("model_quantized.onnx: int8: ") and " ms instead of " in measured
    assert measured in (folder / "onnx" / "README.md").read_text()


def test_a_graph_that_differs_from_torch_is_refused(discriminator: tuple[Path, Any]) -> None:
    folder, _ = discriminator
    graph = onnx_graph.network_graph(load_model(folder / "run").module)
    assert onnx_graph._check(folder / "onnx" / "model.onnx", graph) < 1e-4
    with torch.no_grad():
        graph.network.head.score.bias.add_(0.01)  # type: ignore[union-attr]
    with pytest.raises(CheckpointError, match="logits differs from torch by 0.01"):
        onnx_graph._check(folder / "onnx" / "model.onnx", graph)


def test_promise_15_a_generator(tmp_path: Path) -> None:
    make_run(tmp_path / "run", SMALLEST)
    export(tmp_path / "run", tmp_path / "onnx", form="onnx", part="generator")
    export_model(tmp_path / "run", tmp_path / "hf", part="generator")
    beside_transformers("ElectraForMaskedLM", tmp_path / "onnx", tmp_path / "hf")


def test_promise_15_an_encoder_gives_its_hidden_states(tmp_path: Path) -> None:
    make_run(tmp_path / "run", SMALLEST)
    export(tmp_path / "run", tmp_path / "encoder", form="sentence-transformers")
    export(tmp_path / "encoder", tmp_path / "onnx", form="onnx")
    beside_transformers("ElectraModel", tmp_path / "onnx", tmp_path / "encoder")


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("classify", "ElectraForSequenceClassification"),
        ("regress", "ElectraForSequenceClassification"),
        ("tag", "ElectraForTokenClassification"),
        ("span", "ElectraForQuestionAnswering"),
        ("pairs", "ElectraModel"),
    ],
)
def test_promise_15_fine_tuned_models(kind: Any, architecture: str, tmp_path: Path) -> None:
    save(tmp_path / "tuned", kind, config=LAYER, span_head="plain")
    made = export(tmp_path / "tuned", tmp_path / "onnx", form="onnx", int8=kind == "classify")
    assert made.architecture == architecture
    export_for_transformers(tmp_path / "tuned", tmp_path / "hf")
    beside_transformers(architecture, tmp_path / "onnx", tmp_path / "hf")
    if kind == "classify":
        as_predict(tmp_path / "tuned", tmp_path / "onnx")


@pytest.mark.parametrize(("offset", "scale"), [(2010.0, 7.5), (0.0, 1e6)])
def test_a_regression_is_in_its_label_s_unit(offset: float, scale: float, tmp_path: Path) -> None:
    save(tmp_path / "tuned", "regress", config=LAYER, offset=offset, scale=scale)
    export(tmp_path / "tuned", tmp_path / "onnx", form="onnx")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "onnx")
    [values] = run(tmp_path / "onnx", dict(tokenizer(TEXTS, padding=True, truncation=True, return_tensors="np")))
    wanted = [one["value"] for one in predict(load_finetuned(tmp_path / "tuned"), TEXTS)]
    np.testing.assert_allclose(values[:, 0], wanted, rtol=1e-5, atol=1e-5 * scale)


def as_predict(tuned: Path, onnx: Path) -> None:
    """The probabilities of `electra predict`."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(onnx)
    [logits] = run(onnx, dict(tokenizer(TEXTS, padding=True, truncation=True, return_tensors="np")))
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = json.loads((onnx / "config.json").read_text())["id2label"]
    for share, mine in zip(shares, predict(load_finetuned(tuned), TEXTS), strict=True):
        found = {labels[str(number)]: float(value) for number, value in enumerate(share)}
        assert found == pytest.approx(mine["probabilities"], abs=1e-4)
    table = onnx.parent / "rows.jsonl"
    best = [labels[str(number)] for number in logits.argmax(1)]
    gold = [best[0], "fair" if best[1] != "fair" else "good", *best[2:]]  # one of four is wrong
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, gold, strict=True)]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = onnx_int8.compare(onnx, table)
    assert found["model.onnx"]["accuracy"] == 75.0 and found["model.onnx"]["agreement"] == 100.0
    shown = CliRunner().invoke(onnx_int8.command, [str(onnx), str(table)])
    assert shown.exit_code == 0 and "model_quantized.onnx" in shown.stdout and "4 rows" in shown.stdout


def test_promise_20_what_cannot_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "run")
    save(tmp_path / "joint", "span")
    with pytest.raises(CheckpointError, match="span_head=plain"):
        export(tmp_path / "joint", tmp_path / "no", form="onnx")
    with pytest.raises(ConfigError, match="--int8: a hf folder has no 8-bit form"):
        export(tmp_path / "run", tmp_path / "no", int8=True)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r"needs onnxscript .\S+ -m pip install 'electra\[onnx\]'"):
        export(tmp_path / "run", tmp_path / "no", form="onnx")
    assert not (tmp_path / "no").exists()
