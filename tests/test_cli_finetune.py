"""`electra finetune`, `glue` and `evaluate` on tiny data: what they leave, and one line for what cannot work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import task_files
from click.testing import CliRunner, Result
from model_folders import RTD, SIZE, make_run

from electra.cli import main
from electra.finetune.model_folder import load_finetuned

FAST = ("epochs=1", "precision=fp32", "device=cpu", "batch_size=8")
SMALLER = replace(RTD, model=replace(SIZE, layers=1, width=32, heads=1, ffn=64))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "run"
    make_run(folder, SMALLER)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("glue")
    task_files.cola(folder, test=4)
    task_files.rte(folder)
    task_files.stsb(folder)
    task_files.mnli(folder)
    return folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    task_files.table(folder / "train.csv", 16)
    task_files.table(folder / "dev.csv", 8, seed=1)
    return folder


def electra(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def done(*args: object) -> Result:
    result = electra(*args)
    assert result.exit_code == 0, result.output
    return result


def results(out: Path) -> dict[str, dict[str, object]]:
    return {task["task"]: task for task in json.loads((out / "results.json").read_text())["tasks"]}


def test_own_data_from_folder_to_table(model: Path, tables: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = done("finetune", "classify", "--model", model, "--data", tables, "--out", out, "--seeds", 2, *FAST)
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["task", "metric", "seeds", "0", "1", "median", "mean", "std", "range"]
    assert lines[1].startswith("classify  accuracy") and "macro_f1" in lines[2]
    following = lines[lines.index(f"done: {out}") + 1 :]
    assert following[0] == f"next: electra predict --model {out} --input {tables / 'dev.csv'}"
    assert following[-1] == f"next: electra export {out} --out {out}-hf"
    assert "classify, seed 1: accuracy" in result.stderr and "fine-tuning classify: done: 4 step" in result.stderr
    entry = results(out)["classify"]
    assert [run["seed"] for run in entry["seeds"]] == [0, 1] and entry["model"] == "run"  # type: ignore[union-attr]
    assert load_finetuned(out).about.length == 24, "as long as pre-training was"
    shown = done("evaluate", out)
    assert shown.stdout.splitlines()[:3] == lines[:3]
    assert json.loads(done("evaluate", out, "--json").stdout)["tasks"][0]["task"] == "classify"
    assert done("evaluate", out / "results.json").stdout == shown.stdout

    more = done("finetune", "classify", "--model", model, "--data", tables, "--out", out, "--seeds", 3, *FAST)
    assert "seed 2" in more.stderr and "seed 1:" not in more.stderr, "only what is missing"


def test_untrained_and_named_files_and_a_seed_of_ones_own(model: Path, tables: Path, tmp_path: Path) -> None:
    files = ("--train", tables / "train.csv", "--dev", tables / "dev.csv")
    arguments = ("finetune", "classify", "--model", model, *files, "--name", "signs", "--untrained", *FAST)
    done(*arguments, "--out", tmp_path / "out", "seed=5")
    entry = results(tmp_path / "out")["signs"]
    assert entry["model"] == "run, untrained" and entry["seeds"][0]["seed"] == 5  # type: ignore[index]
    refused = electra(*arguments[:-5], *FAST, "--out", tmp_path / "out", "--name", "signs", "seed=5")
    assert refused.exit_code == 2 and "model 'run, untrained', now 'run'" in refused.stderr


def test_a_fine_tuned_model_can_be_fine_tuned_on(model: Path, tables: Path, tmp_path: Path) -> None:
    for kind, source, out in (("classify", model, "one"), ("regress", tmp_path / "one", "two")):
        folder = tmp_path / kind
        task_files.table(folder / "train.csv", 8, kind=kind)
        task_files.table(folder / "dev.csv", 8, kind=kind, seed=1)
        done("finetune", kind, "--model", source, "--data", folder, "--out", tmp_path / out, *FAST)
    assert results(tmp_path / "two")["regress"]["model"] == "seed-0"
    assert load_finetuned(tmp_path / "two").about.kind == "regress"


def test_words_and_questions(model: Path, tmp_path: Path) -> None:
    rows = [[("the", "O"), ("chef", "B-WHO")], [("dog", "B-WHO"), ("sat", "O")]]
    for split in ("train", "dev"):
        task_files.conll(tmp_path / "words" / f"{split}.conll", rows)
        task_files.squad(tmp_path / "asked" / f"{split}.json", 8, seed=split)
    done("finetune", "tag", "--model", model, "--data", tmp_path / "words", "--out", tmp_path / "tags", *FAST)
    assert load_finetuned(tmp_path / "tags").about.labels == ("O", "B-WHO", "I-WHO"), "as in the file"
    asked = ("--data", tmp_path / "asked", "--out", tmp_path / "answers")
    done("finetune", "questions", "--model", model, *asked, *FAST, "beam=3")
    assert results(tmp_path / "answers")["questions"]["metrics"] == ["exact", "f1"]
    exported = done("export", tmp_path / "answers", "--out", tmp_path / "hf")
    assert "ElectraForQuestionAnswering" in exported.stdout


@pytest.mark.parametrize(
    ("settings", "head", "threshold"),
    [((), "plain", 0.0), (("span_head=joint",), "joint", -2.75), (("null_threshold=1.5",), "plain", 1.5)],
)
def test_the_no_answer_threshold_follows_the_head(
    model: Path, tmp_path: Path, settings: tuple[str, ...], head: str, threshold: float
) -> None:
    for split in ("train", "dev"):
        task_files.squad(tmp_path / "asked" / f"{split}.json", 4, seed=split)
    asked = ("--data", tmp_path / "asked", "--out", tmp_path / "answers")
    done("finetune", "questions", "--model", model, *asked, *FAST, *settings)
    config = results(tmp_path / "answers")["questions"]["config"]
    assert (config["span_head"], config["null_threshold"]) == (head, threshold)  # type: ignore[index]


def test_glue(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "my scores"
    result = done("glue", "--model", model, "--data", data, "--out", out, "--tasks", "rte,cola", *FAST)
    assert [line.split()[0] for line in result.stdout.splitlines()[1:3]] == ["RTE", "CoLA"]
    assert "average over CoLA, RTE (2 of the 8 GLUE tasks), on subsets of CoLA, RTE" in result.stdout
    assert "RTE: subset of train: 24 of 2,490 rows" in result.stdout
    assert f"done: {out}  (again at any time: electra evaluate '{out}')" in result.stdout
    assert "2 tasks, 1 seed each" in result.stderr
    assert (out / "leaderboard" / "CoLA.tsv").is_file() and not (out / "cola" / "seed-0" / "task.json").exists()
    again = done("glue", "--model", model, "--data", data, "--out", out, "--tasks", "rte,cola", *FAST)
    assert again.stdout == result.stdout and "CoLA: 1 seed already there" in again.stderr


def test_glue_from_the_mnli_model(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("glue", "--model", model, "--data", data, "--out", out, "--mnli-init", *FAST)
    alone = electra(*arguments, "--tasks", "rte")
    assert alone.exit_code == 2 and len(alone.stderr.splitlines()) == 1
    assert (
        "--mnli-init: " in alone.stderr and "holds no model fine-tuned on MNLI (let --tasks name mnli" in alone.stderr
    )
    result = done(*arguments)
    assert [line.split()[0] for line in result.stdout.splitlines()[1:7] if line[0] != " "] == [
        "MNLI",
        "CoLA",
        "STS-B",
        "RTE",
    ]
    models = {name: entry["model"] for name, entry in results(out).items()}
    after = "run after MNLI, seed-0"
    assert models == {"mnli": "run", "cola": "run", "stsb": after, "rte": after}
    assert (out / "mnli" / "seed-0" / "task.json").is_file() and not (out / "rte" / "seed-0" / "task.json").exists()
    weights = {name: entry["config"]["weights"] for name, entry in results(out).items()}  # type: ignore[index]
    assert weights["rte"] == weights["stsb"] != weights["cola"] == weights["mnli"]


def test_finetune_of_a_glue_task(model: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done("finetune", "stsb", "--model", model, "--data", data, "--out", out, *FAST, "max_train_rows=10")
    entry = results(out)["stsb"]
    assert entry["metrics"] == ["spearman", "pearson"] and "subset of train: 10 of 5,749 rows" in entry["labels"]
    assert load_finetuned(out).about.scale == 5.0
    other = electra("finetune", "rte", "--model", model, "--data", data, "--out", out, *FAST)
    assert other.exit_code == 2 and "holds models of STS-B (choose a new folder)" in other.stderr


MISTAKES = [
    (("finetune", "clasify", "--data", "{tables}"), 2, "task: unknown task 'clasify'; known are cola"),
    (("finetune", "clasify", "--data", "{tables}"), 2, "did you mean 'classify'?"),
    (("finetune", "classify"), 2, "--data: is missing"),
    (("finetune", "classify", "--dev", "{tables}/dev.csv"), 2, "--train and --dev: --dev alone leaves nothing"),
    (("finetune", "rte", "--train", "a", "--dev", "b"), 2, "GLUE tasks are read from --data"),
    (("finetune", "classify", "--data", "{tmp}/none"), 2, "none is not there"),
    (
        ("finetune", "classify", "--data", "{tmp}"),
        4,
        "has no train file (name it train.csv, train.tsv, train.jsonl, train.parquet)",
    ),
    (("finetune", "squad", "--data", "{tables}"), 4, "has no train file (name it train-v1.1.json, train.json)"),
    (("finetune", "rte", "--data", "{tables}"), 4, "RTE has no train file"),
    (("finetune", "rte", "--data", "{tmp}/none"), 4, "RTE has no train file"),
    (("finetune", "classify", "--data", "{tables}", "--text", "txt"), 4, "train.csv: line 2: no column 'txt'"),
    (
        ("finetune", "classify", "--data", "{tables}", "length=33"),
        2,
        "length: 33 is more than the model's 32 positions",
    ),
    (("glue", "--data", "{data}", "length=33"), 2, "length: 33 is more than the model's 32 positions"),
    (("finetune", "classify", "--data", "{tables}", "length=4"), 2, "length: 4"),
    (("finetune", "classify", "--data", "{tables}", "lrr=1"), 2, "did you mean 'lr'?"),
    (("finetune", "classify", "--data", "{tables}", "lr=fast"), 2, "lr"),
    (("finetune", "classify", "--data", "{tables}", "epochs=0"), 2, "epochs: 0.0 is too small"),
    (("finetune", "classify", "--data", "{tables}", "eval_every=0", "select=best"), 2, "select: best has nothing"),
    (("finetune", "classify", "--data", "{tables}", "--seeds", "0"), 2, "--seeds"),
    (("finetune", "classify", "--data", "{tables}", "--config", "{tmp}/no.toml"), 2, "no.toml"),
    (("glue", "--data", "{tmp}/none"), 4, "none: no such folder"),
    (("glue", "--data", "{tables}"), 4, "no GLUE task here"),
    (("glue", "--data", "{data}", "--tasks", "rte,colla"), 2, "did you mean 'cola'?"),
    (("glue", "--data", "{data}", "--tasks", "qqp"), 4, "QQP has no train file"),
]


@pytest.mark.parametrize(("arguments", "code", "said"), MISTAKES)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], code: int, said: str, model: Path, data: Path, tables: Path, tmp_path: Path
) -> None:
    places = {"tables": tables, "data": data, "tmp": tmp_path}
    given = [argument.format(**places) for argument in arguments]
    result = electra(*given, "--model", model, "--out", tmp_path / "out", "device=cpu")
    assert result.exit_code == code, result.output
    assert result.stdout == "" and result.stderr.startswith("electra: error: ")
    assert len(result.stderr.splitlines()) == 1 and said in result.stderr
    assert not (tmp_path / "out" / "results.json").exists()


def test_models_and_results_that_are_not_there(tables: Path, tmp_path: Path) -> None:
    where = ("--data", tables, "--out", tmp_path / "out")
    missing = electra("finetune", "classify", "--model", tmp_path / "none", *where)
    assert missing.exit_code == 5 and "none: no such folder (give a run folder" in missing.stderr
    empty = electra("finetune", "classify", "--model", tmp_path, *where)
    assert empty.exit_code == 5 and len(empty.stderr.splitlines()) == 1
    nothing = electra("evaluate", tmp_path)
    assert (
        nothing.exit_code == 4 and "has no results.json (electra finetune or electra glue writes one)" in nothing.stderr
    )
    (tmp_path / "results.json").write_text("{")
    assert electra("evaluate", tmp_path).exit_code == 4


def test_a_file_that_is_missing_or_broken_is_named_before_any_task_is_trained(model: Path, tmp_path: Path) -> None:
    task_files.rte(tmp_path / "glue")
    task_files.cola(tmp_path / "glue")
    bad = tmp_path / "glue" / "RTE" / "dev.tsv"
    text = bad.read_text()
    bad.write_text(text + "8\ttoo few\n")
    arguments = ("glue", "--model", model, "--data", tmp_path / "glue", "--out", tmp_path / "out", *FAST)
    for tasks in ((), ("--tasks", "cola,rte"), ("--tasks", "rte,cola")):
        failed = electra(*arguments, *tasks)
        assert failed.exit_code == 4 and "dev.tsv: line 10 has 2 of the 4 fields that RTE needs" in failed.stderr
    bad.unlink()
    failed = electra(*arguments)
    assert failed.exit_code == 4 and "RTE has no dev file" in failed.stderr and f"with {bad})" in failed.stderr
    assert not (tmp_path / "out").exists()
    done(*arguments, "--tasks", "cola")
    bad.write_text(text)
    assert "CoLA: 1 seed already there" in done(*arguments).stderr
    assert list(results(tmp_path / "out")) == ["cola", "rte"]
