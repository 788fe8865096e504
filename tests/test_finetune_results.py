"""Results over seeds: summaries, averages, labels, the file and the table, by hand."""

from __future__ import annotations

import json
import math
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.config.finetune import FinetuneConfig
from electra.config.keys import flatten
from electra.errors import DataError
from electra.finetune.results_file import FORMAT, read_results, to_json, write_results
from electra.finetune.results_table import plain, show
from electra.finetune.task_results import GLUE, GLUE_5, SeedScore, Suite, TaskResult

TITLES = {"cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "stsb": "STS-B", "qqp": "QQP", "mnli": "MNLI"}
TITLES |= {"qnli": "QNLI", "rte": "RTE", "wnli": "WNLI"}
WHOLE = {"cola": 8551, "sst2": 67349, "mrpc": 3668, "stsb": 5749, "qqp": 363846, "mnli": 392702}
WHOLE |= {"qnli": 104743, "rte": 2490, "wnli": 635}


def result(task: str, *scores: float, stuck: tuple[int, ...] = (), rows: int = 0) -> TaskResult:
    metric = GLUE.get(task, "accuracy")
    return TaskResult(
        task=task,
        title=TITLES.get(task, task),
        metrics=(metric,),
        seeds=tuple(
            SeedScore(seed=seed, scores={metric: score}, stuck=seed in stuck, seconds=1.5, steps=10)
            for seed, score in enumerate(scores)
        ),
        rows={"train": rows or WHOLE.get(task, 100)},
        full={"train": WHOLE[task]} if task in WHOLE else {},
        model="small",
        config=flatten(FinetuneConfig()),
    )


def test_stuck_runs_stay_in_the_summary() -> None:
    cola = result("cola", 57.0, 0.0, 55.0, 58.0, 0.0, stuck=(1, 4))
    summary = cola.summary()
    assert (summary.n, summary.median, summary.mean) == (5, 55.0, 34.0)
    assert summary.std == pytest.approx(math.sqrt((23**2 + 34**2 + 21**2 + 24**2 + 34**2) / 4))
    assert (summary.min, summary.max) == (0.0, 58.0)
    assert cola.stuck == [1, 4] and cola.scores("matthews") == [57.0, 0.0, 55.0, 58.0, 0.0]


def test_subsets_are_labelled() -> None:
    qnli = result("qnli", 80.0, rows=9999)
    assert qnli.subset and qnli.labels == ["subset of train: 9,999 of 104,743 rows"]
    assert not result("cola", 1.0).subset and result("cola", 1.0).labels == []
    assert not result("mine", 1.0, rows=7).subset
    longer = result("rte", 1.0, rows=2491)
    assert longer.subset and longer.labels == ["not the published train: 2,491 rows, not 2,490"]
    both = TaskResult(
        task="qqp",
        title="QQP",
        metrics=("accuracy",),
        seeds=(SeedScore(seed=0, scores={"accuracy": 80.0}),),
        rows={"train": 46000, "dev": 5000, "extra": 3},
        full={"train": 363846, "dev": 40430},
        note="dev is a hold-out of ours",
    )
    assert both.labels == [
        "subset of train: 46,000 of 363,846 rows",
        "subset of dev: 5,000 of 40,430 rows",
        "dev is a hold-out of ours",
    ]


def test_glue_average_of_the_paper() -> None:
    # Table 2, ELECTRA-400K: 69.3/96.0/90.6/92.1/92.4/90.5/94.5/86.8, average 89.0
    row = dict(zip(GLUE, (69.3, 96.0, 90.6, 92.1, 92.4, 90.5, 94.5, 86.8), strict=True))
    suite = Suite(results=tuple(result(task, score) for task, score in row.items()) + (result("wnli", 10.0),))
    glue, five = suite.averages
    assert round(glue.value, 1) == 89.0 and glue.label == "GLUE average (8 tasks)"
    assert five.value == pytest.approx((69.3 + 96.0 + 90.6 + 92.1 + 86.8) / 5)
    assert five.label == "GLUE-5 (CoLA, SST-2, MRPC, STS-B, RTE)"


def test_average_is_of_medians_and_says_over_what() -> None:
    suite = Suite(results=(result("rte", 60.0, 70.0, 10.0), result("cola", 50.0), result("wnli", 99.0)))
    (part,) = suite.averages
    assert part.value == 55.0 and part.label == "average over CoLA, RTE (2 of the 8 GLUE tasks)"
    assert part.missing == ("sst2", "mrpc", "stsb", "qqp", "mnli", "qnli")
    assert Suite(results=(result("rte", 60.0),)).averages == []
    assert Suite().averages == []


def test_averages_name_their_subsets() -> None:
    parts = [result(task, 50.0, rows=100 if task in ("qnli", "qqp") else 0) for task in GLUE]
    glue, five = Suite(results=tuple(parts)).averages
    assert glue.label == "GLUE average (8 tasks), on subsets of QQP, QNLI"
    assert five.label.endswith(", RTE)") and five.subsets == ()
    short = [result(task, 50.0, rows=100 if task == "sst2" else 0) for task in GLUE_5]
    assert [average.label for average in Suite(results=tuple(short)).averages] == [
        "average over CoLA, SST-2, MRPC, STS-B, RTE (5 of the 8 GLUE tasks), on subsets of SST-2",
        "GLUE-5 (CoLA, SST-2, MRPC, STS-B, RTE), on subsets of SST-2",
    ]


def test_a_task_scored_otherwise_is_not_averaged() -> None:
    run = SeedScore(seed=0, scores={"pearson": 90.0})
    other = TaskResult(task="stsb", title="STS-B", metrics=("pearson",), seeds=(run,))
    assert Suite(results=(other, result("rte", 60.0))).averages == []


def test_runs_and_tasks_are_added_or_replaced() -> None:
    rte = result("rte", 60.0, 62.0)
    third = SeedScore(seed=2, scores={"accuracy": 64.0})
    again = SeedScore(seed=0, scores={"accuracy": 1.0})
    assert rte.with_run(third).scores() == [60.0, 62.0, 64.0]
    assert rte.with_run(third).with_run(again).scores() == [1.0, 62.0, 64.0]
    suite = Suite().with_result(rte).with_result(result("cola", 50.0))
    assert [r.task for r in suite.results] == ["rte", "cola"]
    assert suite.with_result(rte.with_run(third)).results[0].summary().n == 3


def test_impossible_results() -> None:
    run = SeedScore(seed=0, scores={"accuracy": 1.0})
    for seeds, metrics, message in (
        ((), ("accuracy",), "needs a metric and a run"),
        ((run,), (), "needs a metric and a run"),
        ((run,), ("f1",), "seed 0 has no f1"),
        ((run, run), ("accuracy",), "a seed is there twice"),
    ):
        with pytest.raises(ValueError, match=message):
            TaskResult(task="t", title="T", metrics=metrics, seeds=seeds)
    with pytest.raises(ValueError, match="a task is there twice"):
        Suite(results=(result("rte", 1.0), result("rte", 2.0)))


def test_the_file_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    suite = Suite(results=(result("qnli", 80.0, 82.0, 50.5, stuck=(2,), rows=9999), result("rte", 60.0)))
    write_results(path, suite)
    assert read_results(path) == suite
    stored = json.loads(path.read_text())
    assert stored["format"] == FORMAT == 1 and stored["unit"] == "percent"
    qnli = stored["tasks"][0]
    assert (qnli["summary"]["accuracy"]["median"], qnli["summary"]["accuracy"]["n"]) == (80.0, 3)
    assert qnli["subset"] is True and qnli["labels"] == ["subset of train: 9,999 of 104,743 rows"]
    assert qnli["seeds"][2] == {"seed": 2, "stuck": True, "scores": {"accuracy": 50.5}, "seconds": 1.5, "steps": 10}
    assert qnli["config"]["lr"] == 3e-4 and qnli["model"] == "small"
    assert stored["averages"][0]["value"] == 70.0 and stored["averages"][0]["tasks"] == ["QNLI", "RTE"]
    assert stored["averages"][0]["label"].endswith("on subsets of QNLI")


def test_scores_that_are_no_numbers_are_null(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results(path, Suite(results=(result("stsb", math.nan, 80.0), result("rte", 60.0))))
    stored = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert stored["tasks"][0]["seeds"][0]["scores"] == {"spearman": None}
    assert stored["averages"][0]["value"] is None
    assert math.isnan(read_results(path).results[0].scores()[0])


FIGURES = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(FIGURES, st.booleans()), min_size=1, max_size=5), st.text(max_size=8), st.booleans())
def test_round_trip(runs: list[tuple[float, bool]], name: str, subset: bool) -> None:
    suite = Suite(
        results=(
            TaskResult(
                task=name,
                title=name,
                metrics=(name,),
                seeds=tuple(SeedScore(seed=i, scores={name: x}, stuck=s) for i, (x, s) in enumerate(runs)),
                rows={name: 3},
                full={name: 4} if subset else {},
                note=name,
                config={"lr": 0.1, "loss": name},
            ),
            result("rte", 1.0),
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        write_results(Path(folder) / "results.json", suite)
        assert read_results(Path(folder) / "results.json") == suite


GOOD = to_json(Suite(results=(result("rte", 60.0),)))


def without(key: str) -> dict[str, object]:
    return {**GOOD, "tasks": [{name: value for name, value in GOOD["tasks"][0].items() if name != key}]}


@pytest.mark.parametrize(
    ("stored", "fragment"),
    [
        ("", "cannot be read as JSON"),
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "no format number"),
        ({**GOOD, "format": 0}, "no format number"),
        ({**GOOD, "format": 2}, "format 2 is newer than 1"),
        ({"format": 1}, "no 'tasks'"),
        ({"format": 1, "tasks": [3]}, "has no 'tasks[0]'"),
        ({"format": 1, "tasks": 3}, "tasks is '3', which cannot be"),
        (without("title"), "has no 'tasks[0].title'"),
        (without("seeds"), "has no 'tasks[0].seeds'"),
        ({**GOOD, "tasks": [{**GOOD["tasks"][0], "seeds": []}]}, "rte: a result needs a metric and a run"),
        ({**GOOD, "tasks": [{**GOOD["tasks"][0], "title": 5}]}, "tasks[0].title is '5', which cannot be"),
        ({**GOOD, "tasks": [{**GOOD["tasks"][0], "rows": 5}]}, "tasks[0].rows is '5', which cannot be"),
        ({**GOOD, "tasks": GOOD["tasks"] * 2}, "a task is there twice"),
    ],
    ids=str,
)
def test_promise_20_other_files_are_refused(stored: object, fragment: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(stored if isinstance(stored, str) else json.dumps(stored))
    with pytest.raises(DataError) as caught:
        read_results(path)
    assert str(caught.value).startswith(f"{path}: ") and fragment in str(caught.value)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 4


def test_promise_20_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_results(tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read as JSON"):
        read_results(tmp_path / "binary")


def example() -> Suite:
    mrpc = TaskResult(
        task="mrpc",
        title="MRPC",
        metrics=("accuracy", "f1"),
        seeds=tuple(SeedScore(seed=i, scores={"accuracy": 80.0 + i, "f1": 86.0 + 2 * i}) for i in range(3)),
    )
    cola = result("cola", 57.04, 0.0, 55.0, stuck=(1,))
    return Suite(results=(cola, mrpc, result("qnli", 80.0, 82.0, 84.0, rows=9999)))


TABLE = """\
task           metric    seeds 0 1 2            median  mean   std       range
CoLA           matthews  57.0, 0.0 stuck, 55.0    55.0  37.3  32.4   0.0..57.0
MRPC           accuracy  80.0 81.0 82.0           81.0  81.0   1.0  80.0..82.0
               f1        86.0 88.0 90.0           88.0  88.0   2.0  86.0..90.0
QNLI (subset)  accuracy  80.0 82.0 84.0           82.0  82.0   2.0  80.0..84.0

average over CoLA, MRPC, QNLI (3 of the 8 GLUE tasks), on subsets of QNLI: 72.7
CoLA: seed 1 is stuck (one answer for every row) and counted like any other
QNLI: subset of train: 9,999 of 104,743 rows"""


def test_table_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    assert plain(example()) == TABLE
    show(example())
    assert capsys.readouterr().out == TABLE + "\n"


def test_table_of_one_seed_of_different_seeds_and_of_nothing() -> None:
    assert plain(Suite(results=(result("mine", 50.0),))) == (
        "task  metric    seed 0  median  mean  std  range\nmine  accuracy  50.0      50.0  50.0    -      -"
    )
    lines = plain(Suite(results=(result("rte", 50.0, math.nan), result("cola", 40.0)))).splitlines()
    assert lines[1].split() == ["RTE", "accuracy", "0:", "50.0,", "1:", "-", "-", "-", "-", "-..-"]
    assert lines[2].split() == ["CoLA", "matthews", "0:", "40.0", "40.0", "40.0", "-", "-"]
    assert plain(Suite()) == "task  metric  seeds  median  mean  std  range"


def test_table_is_aligned_with_wide_letters_and_shows_no_control_characters() -> None:
    lines = plain(Suite(results=(result("日本", 50.0), result("\x1b[31mred\n", 50.0)))).splitlines()
    assert lines[1].startswith("日本       accuracy") and lines[2].startswith("\ufffd[31mred\ufffd  accuracy")


def test_table_on_a_terminal() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from test_finetune_results import example\nfrom electra.finetune.results_table import show\nshow(example())"
    )
    root = Path(__file__).parents[1]
    main, side = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "COLUMNS": "100", "TERM": "xterm"}
    done = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=side, env=environment)
    os.close(side)
    out = b""
    while True:
        try:
            block = os.read(main, 65536)
        except OSError:  # Linux says so when the other side is closed
            break
        if not block:
            break
        out += block
    assert done.wait(60) == 0
    os.close(main)
    text = out.decode()
    assert "57.0, 0.0 stuck, 55.0" in text and "QNLI (subset)" in text and "─" in text
    assert "subset of train: 9,999 of 104,743 rows" in text
