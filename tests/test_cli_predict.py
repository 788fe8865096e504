"""`electra predict` as people call it: files of every kind, standard input, pipes, mistakes."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import one_process
import pyarrow.parquet as parquet
import pytest
from click.testing import CliRunner, Result
from model_folders import make_run
from tuned_folders import loaded, save

import electra
from electra.cli import main
from electra.cli.lines import echo_data
from electra.errors import CheckpointError
from electra.finetune.model_folder import load_finetuned
from electra.inference.predict import predict

LINES = ["the dog sat on the mat", "we saw a chef", "", "The bank, the money!"]
SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": "The chef cooked a meal.",
                    "qas": [
                        {"id": "q1", "question": "the chef?", "answers": [{"text": "meal", "answer_start": 18}]},
                        {"id": "q2", "question": "a dog?", "answers": []},
                    ],
                }
            ],
        }
    ],
}


def run(*arguments: object, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["predict", *map(str, arguments)], input=given)


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def alike(said: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert len(said) == len(wanted)
    for one, other in zip(said, wanted, strict=True):
        assert one.keys() == other.keys()
        for key, value in other.items():
            if key == "n_best":
                assert [span["text"] for span in one[key]] == [span["text"] for span in value]
            elif isinstance(value, float | dict):
                assert one[key] == pytest.approx(value, rel=1e-4, abs=1e-5)
            elif key == "probabilities":
                assert one[key] == pytest.approx(value, abs=1e-5)
            else:
                assert one[key] == value


def of_table(wanted: list[dict[str, Any]], answer: str, columns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The predictions as a table shows them: behind its own columns, their answer called `prediction`."""
    added = [{"prediction" if key == answer else key: value for key, value in one.items()} for one in wanted]
    kept = [{key: value for key, value in one.items() if key not in ("id", "words")} for one in added]
    return [own | one for own, one in zip(columns, kept, strict=True)]


def test_lines_of_text(tmp_path: Path) -> None:
    model = loaded(tmp_path / "m", "classify")
    (tmp_path / "in.txt").write_text("\n".join(LINES) + "\n")
    (tmp_path / "in.txt.gz").write_bytes(gzip.compress(("\n".join(LINES) + "\n").encode()))
    wanted = predict(model, LINES)
    alike(rows(run("--model", tmp_path / "m", "--input", tmp_path / "in.txt")), wanted)
    alike(rows(run("--model", tmp_path / "m", "--input", tmp_path / "in.txt.gz", "--batch-size", 1)), wanted)
    alike(rows(run("--model", tmp_path / "m", "--input", "-", given="\n".join(LINES))), wanted)
    alike(rows(run("--model", tmp_path / "m", "--input", "-", given="\r\n".join(LINES) + "\r\n")), wanted)
    assert run("--model", tmp_path / "m", "--input", "-", given="").stdout == ""


def test_more_lines_than_are_answered_at_once(tmp_path: Path) -> None:
    model = loaded(tmp_path / "m", "regress")
    many = [LINES[number % 4] for number in range(1300)]
    said = rows(run("--model", tmp_path / "m", "--input", "-", given="\n".join(many) + "\n"))
    assert [one["id"] for one in said] == [str(number) for number in range(1300)]
    wanted = predict(model, LINES)
    assert [one["value"] for one in said] == pytest.approx([wanted[n % 4]["value"] for n in range(1300)], abs=1e-3)


def test_columns(tmp_path: Path) -> None:
    model = loaded(tmp_path / "m", "multilabel", pairs=True)
    pairs = [("the dog", 'a "fine" cat'), ("we, saw", "money")]
    wanted = predict(model, pairs)
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"a": a, "b": b, "n": n}) + "\n" for n, (a, b) in enumerate(pairs))
    )
    (tmp_path / "in.csv").write_text('n,a,b\n0,the dog,"a ""fine"" cat"\n1,"we, saw",money\n')
    (tmp_path / "in.tsv").write_text('n\ta\tb\n0\tthe dog\ta "fine" cat\n1\twe, saw\tmoney\n')
    for kind in ("jsonl", "csv", "tsv"):
        options = ("--text", "a", "--pair", "b", "--id", "n")
        columns = [{"n": n if kind == "jsonl" else str(n), "a": a, "b": b} for n, (a, b) in enumerate(pairs)]
        said = rows(run("--model", tmp_path / "m", "--input", tmp_path / f"in.{kind}", *options))
        alike(said, of_table(wanted, "labels", columns))
    alike(rows(run("--model", tmp_path / "m", "--input", "-", given="\n".join("\t".join(p) for p in pairs))), wanted)


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_table_keeps_its_numbers(form: str, tmp_path: Path) -> None:
    """Those of the answer are rounded, as to seconds where the labels are such."""
    loaded(tmp_path / "m", "regress", offset=1.65e9, scale=1e6)
    own = {"text": "the dog", "price": 1234567.8915, "n": 0.1234567, "count": 2**53 - 1}
    (tmp_path / "in.jsonl").write_text(json.dumps(own) + "\n")
    out = tmp_path / f"out.{form}"
    assert run("--model", tmp_path / "m", "--input", tmp_path / "in.jsonl", "--out", out).exit_code == 0
    if form == "parquet":
        (row,) = parquet.read_table(out).to_pylist()
    else:
        text = out.read_text()
        (row,) = csv.DictReader(text.splitlines()) if form == "csv" else [json.loads(text)]
    assert {name: type(own[name])(row[name]) for name in own} == own
    (whole,) = predict(load_finetuned(tmp_path / "m"), ["the dog"])
    assert float(row["prediction"]) == round(whole["value"]) != float(f"{whole['value']:.6g}")


def test_answers_of_several_models_stand_side_by_side(tmp_path: Path) -> None:
    """A table keeps its columns, those that an earlier model added among them."""
    labels = loaded(tmp_path / "m", "classify").about.labels
    (tmp_path / "0.csv").write_text(f"review,probability_{labels[0]}\nthe dog,7\n")
    for step in range(3):
        names = ("--input", tmp_path / f"{step}.csv", "--out", tmp_path / f"{step + 1}.csv", "--text", "review")
        assert run("--model", tmp_path / "m", *names).exit_code == 0
    once, last = (next(csv.DictReader((tmp_path / f"{step}.csv").read_text().splitlines())) for step in (1, 3))
    assert list(last)[: len(once)] == list(once) and {name: last[name] for name in once} == once
    assert once[f"probability_{labels[0]}"] == "7" and float(once[f"model_probability_{labels[0]}"]) < 1
    for ahead in ("model_", "model_model_"):
        assert last[f"{ahead}prediction"] == once["prediction"]
        assert last[f"{ahead}model_probability_{labels[0]}"] == once[f"model_probability_{labels[0]}"]
        assert last[f"{ahead}probability_{labels[1]}"] == once[f"probability_{labels[1]}"]


def test_defect_null_is_predicted_as_an_empty_cell_is(tmp_path: Path) -> None:
    model = loaded(tmp_path / "m", "classify")
    (tmp_path / "in.csv").write_text("n,text\n0,\n1,the dog\n")
    (tmp_path / "in.jsonl").write_text('{"n": "0", "text": null}\n{"n": "1", "text": "the dog"}\n')
    for name, empty in (("in.csv", ""), ("in.jsonl", None)):
        result = run("--model", tmp_path / "m", "--input", tmp_path / name)
        columns = [{"n": "0", "text": empty}, {"n": "1", "text": "the dog"}]
        alike(rows(result), of_table(predict(model, ["", "the dog"]), "label", columns))
        assert f"{name}: 1 of 2 rows have no text in 'text', the first in line" in result.stderr


def test_words_to_tag(tmp_path: Path) -> None:
    model = loaded(tmp_path / "m", "tag")
    wanted = predict(model, ["the dog sat", "a zoo"])
    (tmp_path / "in.conll").write_text("the DT O\ndog NN B-X\nsat VB O\n\na DT O\nzoo NN O\n")
    (tmp_path / "in.txt").write_text("the dog  sat\na zoo\n")
    (tmp_path / "in.csv").write_text("text\nthe dog sat\na zoo\n")
    for name in ("in.conll", "in.txt"):
        alike(rows(run("--model", tmp_path / "m", "--input", tmp_path / name)), wanted)
    columns = [{"text": "the dog sat"}, {"text": "a zoo"}]
    said = rows(run("--model", tmp_path / "m", "--input", tmp_path / "in.csv"))
    alike(said, of_table(wanted, "tags", columns))
    alike(rows(run("--model", tmp_path / "m", "--input", "-", given="the dog sat\na zoo\n")), wanted)


def test_questions(tmp_path: Path) -> None:
    model = loaded(tmp_path / "m", "span", pairs=True)
    (tmp_path / "in.json").write_text(json.dumps(SQUAD))
    context = "The chef cooked a meal."
    wanted = predict(model, [("the chef?", context), ("a dog?", context)])
    named = [one | {"id": name} for one, name in zip(wanted, ("q1", "q2"), strict=True)]
    said = rows(run("--model", tmp_path / "m", "--input", tmp_path / "in.json"))
    alike(said, named)
    assert all(one["answer"] == context[one["start"] : one["end"]] for one in said)
    asked = [{"question": "the chef?", "context": context}, {"question": "a dog?", "context": context}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    alike(rows(run("--model", tmp_path / "m", "--input", tmp_path / "in.jsonl")), of_table(wanted, "answer", asked))
    alike(
        rows(run("--model", tmp_path / "m", "--input", "-", given=f"the chef?\t{context}\na dog?\t{context}\n")), wanted
    )


@pytest.mark.parametrize(
    ("kind", "header", "width", "lines"),
    [
        ("classify", "id\tlabel\tbad\tfair\tgood", 5, 4),
        ("multilabel", "id\tlabels\tanimal\tfood\tmoney\tplace", 6, 4),
        ("regress", "id\tvalue", 2, 4),
        ("tag", "id\tword\ttag\tprobability", 4, 14),
        ("span", "id\tanswer\tstart\tend\tscore\tnull_odds", 6, 2),
    ],
)
def test_tables_out(kind: Any, header: str, width: int, lines: int, tmp_path: Path) -> None:
    save(tmp_path / "m", kind)
    given = "the dog\tThe cat sat.\nwe saw\t\n" if kind == "span" else "\n".join(LINES) + "\n"
    result = run("--model", tmp_path / "m", "--input", "-", "--format", "tsv", given=given)
    assert result.exit_code == 0, result.stderr
    first, *rest = result.stdout.split("\n")[:-1]
    assert first == header and len(rest) == lines and all(len(line.split("\t")) == width for line in rest)


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
def test_defect_a_pipe_gets_the_bytes_that_a_file_gets(form: str, tmp_path: Path) -> None:
    """Control characters became `\\x1b` and the like, as on a terminal."""
    save(tmp_path / "m", "classify")
    (tmp_path / "in.csv").write_bytes('text,n\n"the dog\r\nsat",\x1b[2J \x9b é\n'.encode())
    arguments = ("--model", tmp_path / "m", "--input", tmp_path / "in.csv", "--format", form)
    piped = run(*arguments).stdout_bytes
    assert run(*arguments, "--out", tmp_path / f"out.{form}").exit_code == 0
    assert piped == (tmp_path / f"out.{form}").read_bytes() and b"\\x" not in piped
    assert form == "jsonl" or b"\x1b[2J" in piped


def test_a_terminal_is_not_steered_by_a_prediction(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    echo_data("\x1b[2J,good")
    assert capsys.readouterr().out == "\\x1b[2J,good\n"


def test_a_file_to_write_is_whole_or_absent(tmp_path: Path) -> None:
    save(tmp_path / "m", "classify")
    wanted = run("--model", tmp_path / "m", "--input", "-", given="\n".join(LINES)).stdout
    result = run(
        "--model", tmp_path / "m", "--input", "-", "--out", tmp_path / "new" / "o.jsonl", given="\n".join(LINES)
    )
    assert result.exit_code == 0 and result.stdout == ""
    assert (tmp_path / "new" / "o.jsonl").read_text() == wanted
    no = tmp_path / "no.jsonl"
    assert run("--model", tmp_path / "m", "--input", "-", "--out", no, given=b"a\n\xff\n").exit_code == 4
    assert not no.exists()


@pytest.mark.parametrize("name", ["p.xlsx", "p"])
def test_defect_a_name_that_says_nothing_is_refused(name: str, tmp_path: Path) -> None:
    """It wrote JSON lines, into p.xlsx as well."""
    save(tmp_path / "m", "classify")
    refused = run("--model", tmp_path / "m", "--input", "-", "--out", tmp_path / name, given="the dog\n")
    said = f"--out: '{name}' does not say what to write (end it in .jsonl or .csv or .tsv or .parquet)"
    assert refused.exit_code == 2 and said in refused.stderr and not (tmp_path / name).exists()
    asked = ("--out", tmp_path / name, "--format", "csv")
    assert run("--model", tmp_path / "m", "--input", "-", *asked, given="the dog\n").exit_code == 0
    assert (tmp_path / name).read_text().startswith("id,label,")


def test_a_run_answers_with_its_median(tmp_path: Path) -> None:
    for seed, score in ((0, 10.0), (1, 30.0), (2, 20.0)):
        save(tmp_path / "run" / f"seed-{seed}", "classify", seed=seed, scores={"f1": score}, metrics=("f1",))
    result = run("--model", tmp_path / "run", "--input", "-", given="a dog\n")
    alike(rows(result), predict(load_finetuned(tmp_path / "run" / "seed-2"), ["a dog"]))
    assert "seed-2" in result.stderr


MISTAKES: list[tuple[Any, str, str, list[str], int, str]] = [
    ("classify", "in.csv", "body\na dog\n", [], 4, "no column 'text'; found body"),
    ("classify", "in.csv", "text\na dog\n", ["--text", "txet"], 4, "did you mean 'text'"),
    ("classify", "in.csv", "", [], 4, "in.csv: holds no rows"),
    ("classify", "in.txt", "", [], 4, "in.txt: holds no rows"),
    ("classify", "in.txt", "a\n", ["--text", "b"], 2, "--text: "),
    ("classify", "in.xml", "a\n", [], 4, "does not take .xml"),
    ("classify", "in.json", "{}", [], 4, "CLASSIFY (classify) does not take .json"),
    ("classify", "in.conll", "a O\n", [], 4, "does not take .conll"),
    ("span", "in.json", "{}", [], 4, "in.json"),
    ("span", "in.txt", "what?\n", [], 4, "line 1: SPAN needs a question and a passage, with a tab"),
    ("span", "in.csv", "question\nwhat\n", [], 4, "no column 'context'"),
    ("tag", "in.conll", "", [], 4, "holds no sentences"),
]


@pytest.mark.parametrize(("kind", "name", "content", "options", "code", "said"), MISTAKES)
def test_mistakes_are_one_line(
    kind: Any, name: str, content: str, options: list[str], code: int, said: str, tmp_path: Path
) -> None:
    save(tmp_path / "m", kind)
    (tmp_path / name).write_text(content)
    result = run("--model", tmp_path / "m", "--input", tmp_path / name, *options)
    assert result.exit_code == code and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert said in result.stderr


def test_more_mistakes(tmp_path: Path) -> None:
    save(tmp_path / "m", "classify", pairs=True)
    (tmp_path / "in.csv").write_text("text,other\na,b\n")
    for arguments, given, code, said in (
        (("--model", tmp_path / "m", "--input", tmp_path / "in.csv"), None, 4, "--text, --pair"),
        (("--model", tmp_path / "m", "--input", "-"), "one\ttwo\nthree\n", 4, "line 2: CLASSIFY needs two texts"),
        (("--model", tmp_path / "m", "--input", "-"), b"a\tb\n\xff\n", 4, "line 2 is not valid UTF-8"),
        (("--model", tmp_path / "m", "--input", "-", "--id", "x"), "a\tb\n", 2, "standard input has no columns"),
        (("--model", tmp_path / "m", "--input", tmp_path / "none.csv"), None, 4, "none.csv"),
        (("--model", tmp_path / "none", "--input", "-"), "a\n", 5, "no such folder"),
        (("--model", tmp_path / "m", "--input", "-", "--batch-size", "0"), "a\n", 2, "batch-size"),
        (("--input", "-"), "a\n", 2, "--model"),
    ):
        result = run(*arguments, given=given)
        assert result.exit_code == code and said in result.stderr, result.stderr
        assert len(result.stderr.splitlines()) == 1
    make_run(tmp_path / "pretrained")
    result = run("--model", tmp_path / "pretrained", "--input", "-", given="a\n")
    assert result.exit_code == 5 and "is not a fine-tuned model but a pre-trained one" in result.stderr
    result = run("--model", "electra:tiny", "--input", "-", given="a\n")
    assert result.exit_code == 5 and "electra:tiny: is not a fine-tuned model but a pre-trained one" in result.stderr
    assert "electra finetune TASK FILE --model electra:tiny" in result.stderr
    result = run("--model", tmp_path / "in.csv", "--input", "-", given="a\n")
    assert result.exit_code == 5 and "in.csv: is a file (give a run folder" in result.stderr


def test_a_fine_tuned_model_where_a_pre_trained_one_is_meant(tmp_path: Path) -> None:
    save(tmp_path / "m", "classify")
    for arguments in (
        ("detect", "--model", tmp_path / "m", "a"),
        ("pretrain", "--data", tmp_path, "--out", tmp_path / "o", "--from", tmp_path / "m"),
    ):
        result = CliRunner().invoke(main, [str(one) for one in arguments])
        assert result.exit_code == 5 and "m: is fine-tuned, so it has no pre-training head (" in result.stderr
    (tmp_path / "in.csv").write_text("text\n")
    with pytest.raises(CheckpointError, match=r"in\.csv: is a file \(give a run folder"):
        electra.load(tmp_path / "in.csv")


def started(folder: Path, given: Any = subprocess.PIPE) -> subprocess.Popen[bytes]:
    command = [sys.executable, *one_process.program(), "predict", "--model", str(folder), "--input", "-"]
    place = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    return subprocess.Popen(command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=place)


def test_a_line_is_answered_before_the_next_one_comes(tmp_path: Path) -> None:
    save(tmp_path / "m", "classify")
    with started(tmp_path / "m") as process:
        assert process.stdin and process.stdout
        for number in range(3):
            process.stdin.write(b"the dog\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == str(number)
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    save(tmp_path / "m", "classify")
    (tmp_path / "lines").write_bytes(b"the dog\n" * 5000)
    with (tmp_path / "lines").open("rb") as lines, started(tmp_path / "m", lines) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 1
        assert process.stderr.read() == b""
