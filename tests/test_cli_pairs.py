"""`electra finetune pairs` from one CSV, and every command that takes its folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from model_folders import RTD, make_run
from task_files import sentence

import electra
from electra.cli import main
from electra.finetune.model_folder import load_finetuned

FEW = ("epochs=4", "batch_size=8", "precision=fp32", "device=cpu", "length=20")


def call(*arguments: object) -> Result:
    done = CliRunner().invoke(main, [str(one) for one in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, pairs whose second text is the first one backwards, and a model fine-tuned on them."""
    folder = tmp_path_factory.mktemp("pairs")
    make_run(folder / "run", replace(RTD, model=replace(RTD.model, layers=1)))
    rows = []
    for number in range(40):
        words = sentence(number).split()
        rows.append(f"{' '.join(words)},{' '.join(reversed(words))},{number % 6},{sentence((number, 2))}")
    (folder / "faq.csv").write_text("\n".join(["question,answer,grade,bad", *rows]) + "\n", encoding="utf-8")
    (folder / "said.txt").write_text(
        call("finetune", "pairs", folder / "faq.csv", "--model", folder / "run", "--out", folder / "faq", *FEW).output
    )
    return folder


def test_one_csv_gives_a_model_scores_and_next_lines(place: Path) -> None:
    said = (place / "said.txt").read_text()
    assert "reading the texts from columns 'question' and 'answer'" in said
    assert "32 rows to train on, 8 held out" in said and "pairs  mrr" in said and "recall@10" in said
    next_lines = [line.removeprefix("next: electra ").split() for line in said.splitlines() if line.startswith("next:")]
    assert [line[0] for line in next_lines] == ["predict", "encode", "report", "export"]
    assert next_lines[1][-2:] == ["--text", "question"] and "sentence-transformers" in next_lines[3]
    for line in next_lines[:3]:
        call(*line)
    page = (place / "faq" / "report.html").read_text()
    assert "recall@1" in page and " before fine-tuning." in page
    about = load_finetuned(place / "faq").about
    assert about.kind == "pairs" and about.pairs and about.columns == {
        "text": "question", "pair": "answer", "separator": ","
    }  # fmt: skip
    again = call("finetune", "pairs", place / "faq.csv", "--model", place / "run", "--out", place / "faq", *FEW)
    assert "1 seed already there" in again.stderr


def test_the_score_before_fine_tuning_is_the_encoders_own(place: Path) -> None:
    rows = [line.split(",") for line in (place / "faq.csv").read_text().splitlines()[1:]]
    held = [json.loads(line)["id"] for line in (place / "faq" / "seed-0" / "dev.jsonl").read_text().splitlines()]
    vectors = [electra.encode(place / "run", texts=[rows[int(at)][column] for at in held]) for column in (0, 1)]
    one, other = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in vectors)
    scores = one @ other.T
    mrr = (1 / (scores >= np.diag(scores)[:, None]).sum(1)).mean()
    said = (place / "said.txt").read_text()
    assert f"pairs: before fine-tuning: mrr {100 * mrr:.1f}, recall@1 " in said
    assert "before fine-tuning" in call("evaluate", place / "faq").stdout


def test_encode_predict_and_evaluate_agree(place: Path) -> None:
    vectors = []
    for column in ("question", "answer"):
        out = place / f"{column}.npy"
        call("encode", "--model", place / "faq", "--input", place / "faq.csv", "--text", column, "--out", out)
        vectors.append(np.load(out))
    one, other = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in vectors)
    cosines = (one * other).sum(1)
    call("predict", "--model", place / "faq", "--input", place / "faq.csv", "--out", place / "p.jsonl")
    rows = [json.loads(line) for line in (place / "p.jsonl").read_text().splitlines()]
    assert list(rows[0]) == ["question", "answer", "grade", "bad", "prediction"]
    np.testing.assert_allclose([row["prediction"] for row in rows], cosines, atol=1e-5)
    line = f"{rows[0]['question']}\t{rows[0]['answer']}\n"
    done = CliRunner().invoke(main, ["predict", "--model", str(place / "faq"), "--input", "-"], input=line)
    assert json.loads(done.stdout) == {"id": "0", "cosine": pytest.approx(rows[0]["prediction"], abs=1e-5)}
    found = json.loads(call("evaluate", place / "faq", place / "faq.csv", "--json").stdout)
    scores = one @ other.T
    ranks = (scores >= np.diag(scores)[:, None]).sum(1)  # all texts differ
    assert found["metrics"] == ["mrr", "recall@1", "recall@10"] and found["rows"] == 40
    assert found["scores"]["mrr"] == pytest.approx(100 * (1 / ranks).mean(), abs=1e-3)
    graded = call("evaluate", place / "faq", place / "faq.csv", "--score", "grade").stdout
    assert graded.startswith("pairs: spearman ") and "ranked most differently" in graded
    refused = CliRunner().invoke(main, ["predict", "--model", str(place / "faq"), "--input", "-"], input="one text\n")
    assert refused.exit_code == 4 and "two texts" in refused.output


def test_scores_and_hard_negatives_by_the_api(place: Path) -> None:
    options = {"model": place / "run", "data": place / "faq.csv", "settings": list(FEW)}
    graded = electra.finetune("pairs", out=place / "graded", label="grade", name="sts", **options)  # type: ignore[arg-type]
    assert graded.result.title == "sts" and graded.result.metrics == ("spearman", "pearson")
    hard = electra.finetune("pairs", out=place / "hard", negative="bad", **options)  # type: ignore[arg-type]
    assert hard.result.metrics == ("mrr", "recall@1", "recall@10")
    assert load_finetuned(place / "hard").about.columns["negative"] == "bad"
    model = electra.load(place / "graded", device="cpu")
    measured = model.evaluate(place / "faq.csv")
    assert set(measured.scores) == {"spearman", "pearson"} and measured.rows == 40, "it remembers the score's column"
    assert model.encode(["the dog", "a cat"]).shape == (2, 64)
    assert -1 <= model.predict([("the dog", "a cat")])[0]["cosine"] <= 1


def test_an_export_is_an_encoder_of_transformers(place: Path) -> None:
    transformers = pytest.importorskip("transformers")
    made = electra.export(place / "faq", out=place / "hf")
    assert made.architecture == "ElectraModel"
    theirs = transformers.AutoModel.from_pretrained(place / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "hf")
    texts = ["the dog sat on the mat", "a cat"]
    batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    inside = batch["attention_mask"][:, :, None]
    vectors = (theirs(**batch).last_hidden_state * inside).sum(1) / inside.sum(1)
    np.testing.assert_allclose(vectors.detach().numpy(), electra.encode(place / "faq", texts=texts), atol=1e-4)
    assert "AutoModel" in (place / "hf" / "README.md").read_text()


def test_what_is_no_table_of_pairs_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one text\nanother\n")
    (tmp_path / "single.csv").write_text("question\none text\n")
    for name, reason in (("lines.txt", "is not a table of pairs"), ("single.csv", "answer")):
        done = CliRunner().invoke(main, ["evaluate", str(place / "faq"), str(tmp_path / name)])
        assert done.exit_code == 4 and reason in done.output, done.output
