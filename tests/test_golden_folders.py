"""Folders that versions 0.1.0 and 0.2.0 wrote: today's commands open, resume, predict with and export them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from golden.write import PRETRAIN, SENTENCE
from safetensors.torch import load_file
from tiny_runs import metric_lines

from electra.cli import main
from electra.shards.dataset import open_data

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = ("0.1.0", "0.2.0")
MOST_BYTES = 1_000_000


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a version's folders, to write to."""
    return Path(shutil.copytree(GOLDEN / request.param, tmp_path / request.param))


@pytest.fixture
def figures(golden: Path) -> dict[str, Any]:
    """What that version computed with them."""
    found: dict[str, Any] = json.loads((golden / "figures.json").read_text())
    assert found["electra"] == golden.name
    return found


def electra(*arguments: object) -> str:
    done = CliRunner().invoke(main, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def close(figures: dict[str, float]) -> Any:
    """Figures of another CPU: its sums are rounded otherwise."""
    return pytest.approx(figures, rel=1e-5, abs=1e-6)


def test_promise_16_data_opens(golden: Path) -> None:
    data = open_data(golden / "data")
    assert (data.train.n_documents, data.held_out.n_documents) == (29, 1)
    tokenizer, document = data.tokenizer(), data.train.slice(*data.train.sentence_starts[:2].tolist())
    text = (golden / "text.txt").read_text().lower().replace(" ", "")
    assert tokenizer.decode(document.tolist()).replace(" ", "") in text


def test_promise_16_a_killed_run_goes_on(golden: Path, figures: dict[str, Any]) -> None:
    run, out = golden / "run", golden / "new"
    electra("pretrain", "--data", golden / "data", "--out", run, "--preset", "tiny", *PRETRAIN)
    lines = metric_lines(run)
    trained = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in trained] == [1, 2, 3, 4, 5, 6]
    for line, before in zip(trained, figures["train"], strict=True):
        assert {key: line[key] for key in before} == close(before)
    evaluated = [line for line in lines if line["kind"] == "eval"]
    assert {key: evaluated[-1][key] for key in figures["eval"][-1]} == close(figures["eval"][-1])
    electra("export", run, "--out", out)
    weights, before = load_file(out / "model.safetensors"), load_file(golden / "export" / "model.safetensors")
    assert weights.keys() == before.keys()
    for name, tensor in before.items():
        assert weights[name].numpy() == pytest.approx(tensor.numpy(), rel=1e-4, abs=1e-6), name
    assert (out / "vocab.txt").read_bytes() == (golden / "export" / "vocab.txt").read_bytes()


def test_promise_16_an_export_detects(golden: Path, figures: dict[str, Any]) -> None:
    found, before = json.loads(electra("detect", "--model", golden / "export", "--json", SENTENCE)), figures["detect"]
    assert [one["token"] for one in found["tokens"]] == [one["token"] for one in before["tokens"]]
    for now, then in zip(found["tokens"], before["tokens"], strict=True):
        assert now["probability"] == pytest.approx(then["probability"], abs=1e-5)


def test_promise_16_a_fine_tuned_model_predicts_and_exports(golden: Path, figures: dict[str, Any]) -> None:
    rows = electra("predict", "--model", golden / "tuned", "--input", golden / "rows.jsonl").splitlines()
    for now, then in zip(map(json.loads, rows), figures["predict"], strict=True):
        assert now["label"] == then["label"]
        assert now["probabilities"] == pytest.approx(then["probabilities"], abs=1e-5)
    assert len({one["label"] for one in figures["predict"]}) == 2, "it has learnt something"
    electra("export", golden / "tuned", "--out", golden / "out")
    tuned = load_file(golden / "tuned" / "seed-0" / "model.safetensors")
    assert len(load_file(golden / "out" / "model.safetensors")) >= len(tuned)


def test_promise_16_scores_are_read(golden: Path) -> None:
    assert re.search(r"classify .*100\.0", electra("evaluate", golden / "tuned"))


def test_the_golden_folders_stay_small() -> None:
    found = [path for version in VERSIONS for path in (GOLDEN / version).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in found) < MOST_BYTES
