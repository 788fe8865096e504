"""First minutes with a CSV: one file to a scored classifier, which then scores and predicts other files."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import task_files
from click.testing import CliRunner, Result
from model_folders import RTD, SIZE, make_run
from tuned_folders import save

from electra.cli import main
from electra.cli.lines import command_line, next_lines, program
from electra.finetune.evaluation_file import read_evaluation
from electra.finetune.model_folder import load_finetuned
from electra.finetune.paper_settings import settings, settings_for_rows

FAST = ("precision=fp32", "device=cpu", "batch_size=8")
SMALLER = replace(RTD, model=replace(SIZE, layers=1, width=32, heads=1, ffn=64))
ROOT = Path(__file__).parents[1]


def cells(path: Path, separator: str = ",") -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO(path.read_text()), delimiter=separator))


def electra(*args: object, given: str | None = None) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args], input=given)


def done(*args: object, given: str | None = None) -> Result:
    result = electra(*args, given=given)
    assert result.exit_code == 0, result.output
    return result


def reviews(path: Path, count: int = 40) -> Path:
    """A table with columns of other names, and one text that is far too long."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["number", "review", "verdict"])
        for row in range(count):
            text = task_files.sentence(("review", row), sign=row % 2 == 1, words=60 if row == 3 else 5)
            rows.writerow([100 + row, text, ("bad", "good")[row % 2]])
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a table, and what the one command made of them."""
    folder = tmp_path_factory.mktemp("csv")
    make_run(folder / "run", SMALLER)
    reviews(folder / "reviews.csv")
    before = Path.cwd()
    os.chdir(folder)
    try:
        result = done("finetune", "classify", "reviews.csv", "--model", "run", *FAST, "epochs=5")
    finally:
        os.chdir(before)
    (folder / "said.txt").write_text(result.stdout)
    (folder / "errors.txt").write_text(result.stderr)
    return folder


def test_one_file_is_enough(place: Path) -> None:
    """Refused before: --train without --dev, --data must be a folder, --out missing, the columns not named."""
    errors, lines = (place / "errors.txt").read_text(), (place / "said.txt").read_text().splitlines()
    assert "reviews.csv: reading the text from column 'review', the label from 'verdict' (--text and" in errors
    assert "reviews.csv: 32 rows to train on, 8 held out to evaluate on" in errors
    assert "classify: 1 of " in errors and "rows are longer than 24 tokens and were cut; length=32" in errors
    about = load_finetuned(place / "reviews-model").about
    assert about.columns == {"text": "review", "label": "verdict", "separator": ","}
    table = next(at for at, line in enumerate(lines) if line.split() == ["class", "precision", "recall", "f1", "rows"])
    assert [line.split()[0] for line in lines[table + 1 : table + 3]] == ["bad", "good"]
    assert ["real", "\\", "predicted", "bad", "good"] in [line.split() for line in lines]
    following = lines[lines.index("done: reviews-model") + 1 :]
    assert following[0] == "next: electra predict --model reviews-model --input reviews.csv"
    assert following[-1] == "next: electra export reviews-model --out reviews-model-hf"


@pytest.mark.parametrize(
    ("options", "said", "columns"),
    [
        (
            (),
            "reading the texts from columns 'text' and 'pair', the label from 'verdict' (--text, --pair",
            {"text": "text", "pair": "pair", "label": "verdict", "separator": ","},
        ),
        (
            ("--text", "text"),
            "not read: 'pair' (--pair pair reads a second text)",
            {"text": "text", "label": "verdict", "separator": ","},
        ),
    ],
)
def test_defect_a_second_text_was_left_out_without_a_word(
    options: tuple[str, ...], said: str, columns: dict[str, str], place: Path, tmp_path: Path
) -> None:
    rows = [
        {"text": row["review"], "pair": row["review"], "verdict": row["verdict"]}
        for row in cells(place / "reviews.csv")
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("finetune", "classify", tmp_path / "rows.jsonl", "--model", place / "run", *options, *FAST, "epochs=0.2")
    assert f"rows.jsonl: {said}" in done(*command, "--out", tmp_path / "out").stderr
    assert load_finetuned(tmp_path / "out").about.columns == columns


def test_a_folder_of_something_else_is_refused(place: Path, tmp_path: Path) -> None:
    texts = reviews(tmp_path / "reviews.csv").parent
    refused = electra("finetune", "classify", texts / "reviews.csv", "--model", place / "run", "--out", texts, *FAST)
    assert f"--out: {texts} holds other files: reviews.csv (choose a new folder)" in refused.output
    assert [path.name for path in texts.iterdir()] == ["reviews.csv"]


def test_the_next_lines_work_as_typed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    said = (place / "said.txt").read_text().splitlines()
    commands = [line.removeprefix("next: electra ").split() for line in said if line.startswith("next: ")]
    assert len(commands) >= 2
    for command in commands:
        done(*command)


def test_what_is_behind_the_score_is_in_a_file(place: Path) -> None:
    out = place / "reviews-model"
    found = read_evaluation(out / "evaluation.json")
    assert found == json.loads((out / "seed-0" / "evaluation.json").read_text())
    assert (found["rows"], found["train_rows"], found["held_out"]) == (8, 32, True)
    matrix = np.array(found["confusion"])
    assert matrix.sum() == 8 and matrix.sum(1).tolist() == [one["support"] for one in found["classes"]] == [4, 4]
    assert found["scores"]["accuracy"] == pytest.approx(100 * np.trace(matrix) / 8)
    curve = found["curve"]
    assert curve["losses"] and [step for step, _ in curve["evaluations"]] == [10, 20]
    assert curve["best_step"] in (10, 20) and curve["metric"] == "macro_f1"
    assert set(found["cut"]) == {"train", "dev"} and sum(found["cut"].values()) == 1
    texts = {row["review"][:500] for row in cells(place / "reviews.csv")}
    assert all(one["text"] in texts for one in found["errors"]) and len(found["errors"]) == found["wrong"]


def test_the_same_file_is_split_in_the_same_way(place: Path) -> None:
    ids = [
        json.loads(line)["id"] for line in (place / "reviews-model" / "seed-0" / "dev.jsonl").read_text().splitlines()
    ]
    out = place / "again"
    done(
        "finetune",
        "classify",
        "--train",
        place / "reviews.csv",
        "--model",
        place / "run",
        "--out",
        out,
        *FAST,
        "epochs=1",
        "seed=7",
    )
    again = [json.loads(line)["id"] for line in (out / "seed-7" / "dev.jsonl").read_text().splitlines()]
    assert again == ids and ids == sorted(ids, key=int) and len(ids) == 8


def test_a_labelled_file_is_scored(place: Path) -> None:
    """There was no way to do that."""
    truth = pytest.importorskip("sklearn.metrics")
    model = place / "reviews-model"
    predicted = done("predict", "--model", model, "--input", place / "reviews.csv").stdout.splitlines()
    rows = [json.loads(line) for line in predicted]
    gold, guessed = [row["verdict"] for row in rows], [row["prediction"] for row in rows]
    found = json.loads(done("evaluate", model, place / "reviews.csv", "--json", "--out", place / "e.json").stdout)
    assert found == json.loads((place / "e.json").read_text())
    assert found["confusion"] == truth.confusion_matrix(gold, guessed, labels=["bad", "good"]).tolist()
    assert found["scores"]["accuracy"] == pytest.approx(100 * truth.accuracy_score(gold, guessed))
    assert found["scores"]["macro_f1"] == pytest.approx(100 * truth.f1_score(gold, guessed, average="macro"))
    shown = done("evaluate", model, place / "reviews.csv")
    assert shown.stdout.splitlines()[0].endswith(" (40 rows)")
    assert "1 of 40 rows are longer than 24 tokens and were cut" in shown.stderr
    assert "median" in done("evaluate", model).stdout, "without a file, the results of the run"
    refused = electra("evaluate", model, "--text", "review")
    assert refused.exit_code == 2 and "--text needs a FILE" in refused.stderr
    other = electra("evaluate", model, place / "reviews.csv", "--label", "number")
    assert other.exit_code == 4 and "line 2: label '100' is not one of the task's (known are bad, good)" in other.stderr


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_predictions_keep_the_columns_in_every_format(kind: str, place: Path, tmp_path: Path) -> None:
    """Before: columns to be named again, no CSV, no Parquet, the input gone, its labels ignored."""
    wanted = cells(place / "reviews.csv")
    out = tmp_path / f"out.{kind}"
    done("predict", "--model", place / "reviews-model", "--input", place / "reviews.csv", "--out", out)
    rows: list[dict[str, Any]]
    match kind:
        case "jsonl":
            rows = [json.loads(line) for line in out.read_text().splitlines()]
            shares = [row.pop("probabilities") for row in rows]
            named = [{f"probability_{name}": share for name, share in one.items()} for one in shares]
            rows = [row | one for row, one in zip(rows, named, strict=True)]
        case "parquet":
            rows = pyarrow.parquet.read_table(out).to_pylist()
        case _:
            rows = cells(out, "\t" if kind == "tsv" else ",")
    assert [{name: row[name] for name in wanted[0]} for row in rows] == wanted
    assert list(rows[0]) == ["number", "review", "verdict", "prediction", "probability_bad", "probability_good"]
    for row in rows:
        shares = {name: float(row[f"probability_{name}"]) for name in ("bad", "good")}
        assert row["prediction"] == max(shares, key=lambda name: shares[name])
        assert sum(shares.values()) == pytest.approx(1, abs=1e-4)
    again = done("predict", "--model", place / "reviews-model", "--input", out).stdout
    assert json.loads(again.splitlines()[0])["model_prediction"] == rows[0]["prediction"], (
        "its own output is a table too"
    )


def test_columns_of_other_files(place: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("text\nthe dog sat\n")
    found = done(
        "predict", "--model", place / "reviews-model", "--input", tmp_path / "new.csv", "--format", "csv"
    ).stdout
    assert found.splitlines()[0] == "text,prediction,probability_bad,probability_good"
    (tmp_path / "other.csv").write_text("body\nthe dog sat\n")
    refused = electra("predict", "--model", place / "reviews-model", "--input", tmp_path / "other.csv")
    assert refused.exit_code == 4 and "no column 'review'; found body" in refused.stderr
    clash = electra("predict", "--model", place / "reviews-model", "--input", "-", "--out", "a.csv", "--format", "tsv")
    assert clash.exit_code == 2 and "--format: tsv does not go into a.csv" in clash.stderr


def test_tags_are_answered_in_the_users_scheme(place: Path, tmp_path: Path) -> None:
    """B- and I- data answered E-PER and S-PER."""
    others = ("the", "a", "on", "we", "saw", "and")
    rows = [[(other, "O"), ("chef", "B-WHO"), ("dog", "I-WHO")] for other in others]
    rows += [[("cat", "B-WHO"), (other, "O")] for other in others]
    path = task_files.conll(tmp_path / "words.conll", rows)
    done("finetune", "tag", path, "--model", place / "run", "--out", tmp_path / "tags", *FAST, "epochs=20", "lr=0.01")
    said = done("predict", "--model", tmp_path / "tags", "--input", "-", given="the chef dog\ncat sat\n").stdout
    tags = {tag for line in said.splitlines() for tag in json.loads(line)["tags"]}
    assert tags <= {"O", "B-WHO", "I-WHO"} and "B-WHO" in tags
    found = json.loads(done("evaluate", tmp_path / "tags", path, "--json").stdout)
    assert [one["label"] for one in found["classes"]] == ["WHO"] and found["scores"]["f1"] > 50


@pytest.mark.parametrize("scheme", ["bioes", "bilou"])
def test_a_file_in_another_scheme_is_scored(scheme: str, tmp_path: Path) -> None:
    save(tmp_path / "m", "tag", labels=("O", "B-WHO", "I-WHO"), metrics=("f1", "accuracy"))
    end = {"bioes": "E", "bilou": "L"}[scheme]
    path = task_files.conll(tmp_path / "in.conll", [[("chef", "B-WHO"), ("dog", f"{end}-WHO")]])
    assert json.loads(done("evaluate", tmp_path / "m", path, "--json").stdout)["classes"][0]["support"] == 1


def test_questions_are_scored_too(tmp_path: Path) -> None:
    save(tmp_path / "m", "span", pairs=True, metrics=("exact", "f1"))
    path = task_files.squad(tmp_path / "in.json", 4)
    shown = done("evaluate", tmp_path / "m", path).stdout
    assert shown.startswith("SPAN: exact ") and shown.endswith("(4 rows)\n")


def test_a_folder_that_cannot_be_written_is_refused_before_training(place: Path, tmp_path: Path) -> None:
    """It trained a whole seed first."""
    (tmp_path / "file").write_text("not a folder")
    out = tmp_path / "file" / "model"
    result = electra("finetune", "classify", place / "reviews.csv", "--model", tmp_path / "none", "--out", out)
    assert result.exit_code == 4 and len(result.stderr.splitlines()) == 1
    assert f"{out}: cannot be written: Not a directory (choose another --out)" in result.stderr
    wrong = electra(
        "finetune", "classify", place / "reviews.csv", "--model", tmp_path / "none", "--out", tmp_path / "a/b"
    )
    assert wrong.exit_code == 5 and not (tmp_path / "a").exists(), "looking leaves nothing behind"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--epochs", "2"), "--epochs: settings have no dashes (write epochs=2)"),
        (("--batch-size=16",), "settings have no dashes (write batch_size=16)"),
        (("--lr",), "settings have no dashes (write lr=VALUE)"),
        (("--flavour", "2"), "No such option '--flavour'"),
        (("epoch",), "epoch: is neither a file nor key=value"),
        (("none.csv",), "none.csv: no such file"),
        (("{reviews}", "{reviews}"), "is given already (give one file, or --train and --dev)"),
        (("{reviews}", "--data", "somewhere"), "are both given"),
        (("{reviews}", "--train", "{reviews}"), "--train: "),
        ((), "give a FILE: electra finetune classify FILE"),
        (("--data", "somewhere"), "Missing option '--out'"),
        (("{reviews}", "epochs", "=", "1"), "epochs: has spaces around its = (write epochs=1)"),
        (("{reviews}", "epochs=", "1"), "(write epochs=1)"),
        (("epochs", "=1", "{reviews}"), "(write epochs=1)"),
    ],
)
def test_mistakes_name_the_fix(arguments: tuple[str, ...], said: str, place: Path, tmp_path: Path) -> None:
    given = [one.format(reviews=place / "reviews.csv") for one in arguments]
    result = electra(
        "finetune",
        "classify",
        *given,
        *(("--out", tmp_path / "out") if not said.startswith(("Missing", "give a FILE")) else ()),
    )
    assert result.exit_code in (2, 4) and len(result.stderr.splitlines()) == 1, result.output
    assert said in result.stderr


def test_a_file_where_the_task_belongs(place: Path) -> None:
    for name, task in ((place / "reviews.csv", "classify"), ("words.conll", "tag"), ("squad.json", "questions")):
        result = electra("finetune", name, "epochs=1")
        assert result.exit_code == 2
        assert f"the TASK is missing in front of {name}: electra finetune {task} {name}" in result.stderr


def test_help_has_the_keys_of_fine_tuning() -> None:
    for command in ("finetune", "glue"):
        shown = done(command, "--help").stdout
        assert "epochs=3.0" in shown and "patience=0" in shown and "Passes over the training rows." in shown


def test_hints_name_the_program_as_it_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They said `electra` where only `.venv/bin/electra` exists."""
    there = tmp_path / "bin" / "electra"
    there.parent.mkdir()
    there.write_text("#!/bin/sh\n")
    there.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(there)])
    monkeypatch.setenv("PATH", os.defpath)
    assert program() == str(there)
    monkeypatch.setenv("PATH", str(there.parent))
    assert program() == "electra"
    monkeypatch.setattr(sys, "argv", [str(ROOT / "src" / "electra" / "__main__.py")])
    assert program() == f"{sys.executable} -m electra"


def test_few_rows_get_more_epochs_and_many_the_papers() -> None:
    paper = settings("classify", "small", kind="classify")
    few, some, many = (settings_for_rows(paper, rows, kind="classify") for rows in (200, 1000, 67_000))
    assert (few.epochs, some.epochs, many.epochs) == (24.0, 4.8, 3.0)
    assert (some.batch_size, many.batch_size, some.select, many.select) == (16, 32, "average", "best")
    assert (few.class_weights, few.eval_every, few.patience) == ("auto", 30, 0)
    assert (many.lr, many.layer_decay, some.layer_decay) == (3e-4, 0.8, 1.0) and some.lr == pytest.approx(1e-4)
    assert settings_for_rows(paper, 1000, kind="pairs").lr == paper.lr, "not measured, so not changed"
    assert settings_for_rows(paper, 1000, kind="classify", epochs=2.0).epochs == 2.0
    assert settings_for_rows(paper, 1000, kind="classify", batch_size=8).epochs == 3.0, "never below the paper's"
    assert settings_for_rows(paper, 5, kind="classify").eval_every <= 12, "evaluated at least once"


def test_few_rows_are_few_whatever_epochs_are_asked_for(place: Path, tmp_path: Path) -> None:
    """More epochs than the few had by default made them many: another rate, other weights."""
    done("finetune", "classify", place / "reviews.csv", "--model", place / "run", "--out", tmp_path / "out",
         "batch_size=1", "epochs=10", "length=16")  # fmt: skip
    config = json.loads((tmp_path / "out" / "results.json").read_text())["tasks"][0]["config"]
    assert (config["epochs"], config["batch_size"]) == (10.0, 1)
    assert (config["select"], config["layer_decay"]) == ("average", 1.0)


def test_a_full_disk_is_a_file_error_everywhere() -> None:
    """The docs said 4, a checkpoint that could not be saved 5."""
    from electra.errors import CheckpointError, DataError, StorageError

    assert StorageError("x", "y").exit_code == DataError.exit_code == 4
    assert issubclass(StorageError, CheckpointError)


def test_names_with_spaces_are_quoted() -> None:
    assert command_line("detect", "--model", Path("my run"), "TEXT") == "electra detect --model 'my run' TEXT"
    assert next_lines(("predict", "--input", "my reviews.csv")) == ["next: electra predict --input 'my reviews.csv'"]
