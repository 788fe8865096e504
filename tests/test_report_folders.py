"""Reports of fine-tuning, GLUE, experiments and several folders: the answer they lead with, charts, differences."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from report_folders import (
    HOSTILE,
    Page,
    evaluation,
    lines,
    made_up,
    make_experiment,
    make_glue,
    make_run,
    make_tuned,
)
from scipy import stats

from electra.cli import main
from electra.config.load import load, to_toml
from electra.errors import ConfigError, DataError
from electra.finetune.results_file import read_results, write_results
from electra.finetune.task_results import SeedScore, Suite, TaskResult
from electra.report import write_report
from electra.report.answers import Answer, answer_about, answer_to
from electra.report.dots import Dot, draw_dots
from electra.report.page import default_page, differences, read_folders
from electra.report.plots import bar_chart
from electra.report.reading import Run, read_run
from electra.report.subjects import Tried, read_subjects
from electra.report.tuned import read_tuned
from electra.report.tuned_view import glue_section, tuned_view
from electra.reproduce.outcome import Outcome


def page_of(*folders: Path, out: Path) -> Page:
    return Page(write_report(*folders, out=out).read_text(encoding="utf-8"))


def answer(subjects: Path) -> Answer:
    return answer_to(read_folders([subjects]))


def rtd_run(folder: Path, *, auc: float, loss: float = 0.2, step: int = 2000) -> Path:
    entries: list[dict[str, Any]] = [{"kind": "train", "step": step, "train/loss": 9.0}]
    figures = {"rtd_auc": auc, "rtd_loss": loss, "replaced_rate": 0.12, "mlm_loss": 5.0}
    entries.append({"kind": "eval", "step": step} | {f"eval/{name}": value for name, value in figures.items()})
    return make_run(folder, entries)


@pytest.mark.parametrize(
    ("auc", "loss", "word"),
    [(0.93, 0.2, "Yes"), (0.93, 0.5, "Partly"), (0.56, 0.36, "Partly"), (0.5, 0.37, "Too early to say")],
)
def test_a_run_s_answer(tmp_path: Path, auc: float, loss: float, word: str) -> None:
    found = answer(rtd_run(tmp_path / "run", auc=auc, loss=loss, step=1500))
    assert found.word == word and f"AUC of {auc:.3f} at step 1,500 of 3,000" in found.reason
    base_rate = 0.3669  # -.12 ln .12 - .88 ln .88
    assert (f"{1 - loss / base_rate:.0%} below" in found.reason) == (word == "Yes")


def evaluated(folder: Path, *points: tuple[int, float, float, float]) -> Path:
    """A run with these held-out figures: step, MLM loss, AUC, RTD loss."""
    figures = [
        {"kind": "eval", "step": step, "eval/mlm_loss": mlm, "eval/rtd_auc": auc, "eval/rtd_loss": loss}
        | {"eval/replaced_rate": 0.147}
        for step, mlm, auc, loss in points
    ]
    return make_run(folder, figures)


@pytest.mark.parametrize(("mlm", "word"), [(7.91, "Too early to say"), (5.5, "Yes")])
def test_random_replacements_that_are_spotted_are_no_learning(tmp_path: Path, mlm: float, word: str) -> None:
    found = answer(evaluated(tmp_path / "run", (0, 8.35, 0.5, 0.42), (10, mlm, 0.864, 0.30)))
    assert found.word == word and "an AUC of 0.864 at step 10" in found.reason
    assert ("MLM loss of 7.91 there, 8.35 at the start" in found.reason) == (word != "Yes")


@pytest.mark.parametrize(
    ("auc", "loss", "step", "word"),
    [
        (0.9, 0.28, 3000, "Yes"),
        (0.878, 0.28, 3000, "Partly"),
        (0.878, 0.31, 3000, "No"),
        (0.878, 0.31, 9, "Too early to say"),
    ],
)
def test_a_run_that_went_on_is_compared_with_its_start(
    tmp_path: Path, auc: float, loss: float, step: int, word: str
) -> None:
    found = answer(evaluated(tmp_path / "run", (0, 2.5, 0.88, 0.3), (step, 2.4, auc, loss)))
    assert found.word == word and f"(AUC 0.880 and {auc:.3f})" in found.reason


def test_a_run_that_went_on_with_a_fresh_generator_cannot_be_compared(tmp_path: Path) -> None:
    found = answer(evaluated(tmp_path / "run", (0, 9.0, 0.95, 0.2), (3000, 4.0, 0.9, 0.25)))
    assert found.word == "Too early to say" and "beside a fresh generator" in found.reason


def test_replacements_that_are_never_learned_are_taken_as_they_are(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "run", (0, 9.0, 0.5, 0.42), (3000, 9.0, 0.95, 0.2))
    (run / "config.toml").write_text(to_toml(load("tiny", overrides=["generator.kind=uniform"])))
    assert answer(run).word == "Yes"


def test_a_run_that_ended_without_learning_or_diverged(tmp_path: Path) -> None:
    run = rtd_run(tmp_path / "run", auc=0.5, step=3000)
    assert answer(run).word == "No" and "of 3,000" not in answer(run).reason
    (run / "diverged").mkdir()
    assert "diverged after step 3,000" in answer(run).reason
    assert answer(make_run(tmp_path / "new", [])).word == "Too early to say"


@pytest.mark.parametrize(("loss", "word"), [(4.0, "Yes"), (7.0, "Partly"), (10.2, "No")])
def test_a_masked_language_model_s_answer(tmp_path: Path, loss: float, word: str) -> None:
    line = {"kind": "eval", "step": 9, "eval/mlm_loss": loss, "eval/mlm_accuracy": 0.3}
    found = answer(make_run(tmp_path / "bert", [line], preset="bert-small"))
    assert found.word == word and "30.0% of the masked tokens of held-out text at step 9" in found.reason


@pytest.mark.parametrize(("scores", "word"), [((91.0, 90.0), "Yes"), ((61.0, 61.0), "Partly"), ((60.0, 60.0), "No")])
def test_a_classifier_s_answer_compares_with_the_most_frequent_label(
    tmp_path: Path, scores: tuple[float, ...], word: str
) -> None:
    found = answer(make_tuned(tmp_path / "reviews", scores=scores))
    assert found.word == word and "always answering “good” gives 60.0" in found.reason


@pytest.mark.parametrize(("right", "rows", "word"), [(8, 12, "Partly"), (12, 12, "Yes"), (80, 120, "Yes")])
def test_few_rows_must_be_further_above_the_most_frequent_label(
    tmp_path: Path, right: int, rows: int, word: str
) -> None:
    """Of 12 rows a coin gets 8 or more right in one of five tries, of 120 it never gets 80."""
    assert (stats.binomtest(right, rows, alternative="two-sided").pvalue < 0.05) == (word == "Yes")
    folder = make_tuned(tmp_path / "reviews", scores=(100 * right / rows,))
    (results,) = read_results(folder / "results.json").results
    write_results(folder / "results.json", Suite(results=(replace(results, rows={"train": 400, "dev": rows}),)))
    half, missed = rows // 2, (rows - right) // 2
    confusion = [[half - missed, missed], [missed, half - missed]]
    (folder / "evaluation.json").write_text(json.dumps({**evaluation(), "confusion": confusion}))
    found = answer(folder)
    assert found.word == word and "always answering “good” gives 50.0" in found.reason
    assert ("on so few rows that means 39 to 86 % of many more" in found.reason) == (word == "Partly")


def regression(folder: Path, score: float, *, rows: int = 50) -> Path:
    run = SeedScore(seed=0, scores={"spearman": score})
    result = TaskResult(
        task="regress", title="r", metrics=("spearman",), seeds=(run,), rows={"train": 400, "dev": rows}
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_results(folder / "results.json", Suite(results=(result,)))
    return folder


@pytest.mark.parametrize(
    ("score", "rows", "word"),
    [(2.6, 50, "No"), (28.0, 50, "No"), (29.0, 50, "Yes"), (1.9, 50_000, "No"), (2.6, 50_000, "Yes"), (90.0, 1, "Yes")],
)
def test_a_regression_s_answer_asks_for_more_than_chance(tmp_path: Path, score: float, rows: int, word: str) -> None:
    found = answer(regression(tmp_path / "r", score, rows=rows))
    assert found.word == word and f"spearman {score:.1f} on {rows:,} rows" in found.reason
    assert ("on so few rows chance alone gives up to 28.6" in found.reason) == (word == "No" and rows == 50)


def test_answers_drawn_at_random_hardly_ever_work(tmp_path: Path) -> None:
    random, labels = np.random.default_rng(0), np.arange(50)
    drawn = (100 * stats.spearmanr(random.permutation(50), labels).statistic for _ in range(400))
    words = [answer(regression(tmp_path / "r", float(score))).word for score in drawn]
    assert words.count("Yes") < 0.05 * len(words), "more than 2 points are 45 % of them"


def test_a_classifier_without_evaluation_or_curves(tmp_path: Path) -> None:
    folder = make_tuned(tmp_path / "reviews")
    (folder / "evaluation.json").unlink()
    for number in (0, 1):
        (folder / f"seed-{number}" / "curve.json").unlink()
    page = page_of(folder, out=tmp_path / "page.html")
    assert "Yes. Reviews: accuracy 90.0 (88.5 to 91.0 over 3 seeds) on 100 rows" in page.text
    assert "Confusion matrix" not in page.text and "Learning curves" not in page.text


def test_a_fine_tuned_folder_has_its_errors(tmp_path: Path) -> None:
    page = page_of(make_tuned(tmp_path / "reviews"), out=tmp_path / "page.html")
    for expected in ("Confusion matrix", "100 rows, seed 2", "Each label", "10 of 100 rows are wrong", "98.7%",
                     "reviews: training loss", "reviews: macro_f1"):  # fmt: skip
        assert expected in page.text, expected
    shares = [attrs["style"] for tag, attrs in page.tags if tag == "td" and "--p" in (attrs.get("style") or "")]
    assert shares == ["--p:0.917", "--p:0.083", "--p:0.125", "--p:0.875"]  # 55 and 5 of 60, 5 and 35 of 40


def test_labels_of_every_kind_and_matrices_too_large(tmp_path: Path) -> None:
    folder = make_tuned(tmp_path / "tags")
    found = evaluation() | {"labels": [str(n) for n in range(40)], "confusion": [[1] * 40 for _ in range(40)]}
    found["errors"] = [
        {"id": "0", "text": "a", "pair": "b", "label": ["O", "B-X"], "prediction": [], "probability": None},
        {"id": "1", "text": "c", "label": 1.5, "prediction": 3, "probability": 0.5},
    ]
    (folder / "evaluation.json").write_text(json.dumps(found))
    (shown,) = tuned_view(read_tuned(folder), 0)["evaluations"]
    assert shown["errors"] == [("a ‖ b", "O B-X", "none", None), ("c", "1.50", "3", 0.5)]
    assert shown["confusion"] == []


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (
            "evaluation.json",
            '{"format": 1, "labels": ["a"], "confusion": [[1, 2]]}',
            "a row and a column for each label",
        ),
        ("evaluation.json", '{"format": 1, "classes": [{}]}', "has no 'classes"),
        ("evaluation.json", "{}", "is not an evaluation.json of format 1"),
        ("evaluation.json", "[", "evaluation.json"),
        ("seed-0/curve.json", '{"evaluations": [[1]]}', "pairs of a step and a value"),
        ("results.json", '{"format": 1, "tasks": []}', "holds no task"),
        ("results.json", '{"experiment": "efficiency"}', "its format is None"),
    ],
)
def test_promise_20_a_damaged_file_is_one_line(tmp_path: Path, name: str, content: str, reason: str) -> None:
    folder = make_tuned(tmp_path / "reviews")
    (folder / "manifest.json").unlink()
    (folder / name).write_text(content)
    result = CliRunner().invoke(main, ["report", str(folder)])
    assert result.exit_code == 4 and reason in result.output and result.output.count("\n") == 1
    assert not (folder / "report.html").exists()


def test_promise_20_what_is_no_folder_of_ours_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, reason in (("gone", "no such folder"), ("file", "is not a folder"), ("empty", "has no metrics.jsonl")):
        result = CliRunner().invoke(main, ["report", str(tmp_path / name)])
        assert result.exit_code == 4 and reason in result.output and "give a folder of electra" in result.output
    with pytest.raises(ConfigError, match="13 are too many"):
        read_folders([tmp_path] * 13)
    assert CliRunner().invoke(main, ["report"]).exit_code == 2


def test_promise_18_text_of_every_folder_is_escaped(tmp_path: Path) -> None:
    tuned = make_tuned(tmp_path / "t<u>ned", text=HOSTILE)
    found = evaluation(HOSTILE) | {"labels": [HOSTILE, "$x_{"]}
    found["classes"][0]["label"] = HOSTILE
    (tuned / "evaluation.json").write_text(json.dumps(found))
    page = page_of(tuned, make_run(tmp_path / "_$\\frac{r<u>n", lines(word=HOSTILE)), out=tmp_path / "page.html")
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "u", "iframe", "link"}
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert page.text.count("<script>alert('x')</script>") >= 5 and "_$\\frac{r<u>n" in page.text


def test_only_the_whole_of_glue_stands_on_the_axis_of_the_paper(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run", lines()))
    whole = glue_section([run], [read_tuned(make_glue(tmp_path / "glue"))], [])
    part = glue_section([run], [read_tuned(make_glue(tmp_path / "part", tasks=("cola", "rte")))], [])
    assert whole is not None and part is not None
    assert len(whole["charts"]) == 1 and "here: run 75.0 at 4.0e+13 FLOPs" in whole["charts"][0]  # 6e13 x 2/3
    assert len(part["charts"]) == 2 and "here" not in part["charts"][0] and "here: run 75.0" in part["charts"][1]
    assert ("ELECTRA Small", 1.4e18, 79.9) in whole["paper"] and ("BERT Base", 6.4e19, 82.2) in whole["paper"]
    assert glue_section([run], [read_tuned(make_glue(tmp_path / "other", model="another"))], []) is None


def test_a_glue_answer_compares_with_one_answer_for_every_row(tmp_path: Path) -> None:
    good = answer_about(read_tuned(make_glue(tmp_path / "good")))
    assert (
        good.word == "Yes" and "GLUE average (8 tasks): 75.0; one answer for every row would give 40.1" in good.reason
    )
    assert answer_about(read_tuned(make_glue(tmp_path / "bad", score=40.0))).word == "No"


def test_scores_of_a_speedrun_come_with_its_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", lines())
    make_glue(run / "scores" / "report")
    assert [one.name for one in read_subjects(run)] == ["run", "run scores"]


def tried(name: str = "efficiency", scale: str = "gpu-1h", **scores: float) -> Tried:
    outcome = made_up(name, scale)
    rows = tuple(
        replace(row, score=replace(row.score, value=value, low=value - 0.2, high=value + 0.2))
        for row in outcome.rows
        if (value := scores.get(row.variant.replace("-", "_"))) is not None
    )
    return Tried(name=name, folder=Path(name), outcome=replace(outcome, rows=rows))


def test_an_experiment_s_answer_is_the_paper_s_order() -> None:
    same = answer_about(tried(electra=80, all_tokens_mlm=79, replace_mlm=78, bert=70))
    assert same.word == "Yes" and "6 of 6 pairs stand in the paper's order (table 5)" in same.reason
    partly = answer_about(tried(electra=80, all_tokens_mlm=81, replace_mlm=78, bert=70))
    assert partly.word == "Partly" and "5 of 6 pairs" in partly.reason and "All-Tokens MLM with 81.0" in partly.reason
    assert answer_about(tried(electra=70, all_tokens_mlm=71, replace_mlm=78, bert=80)).word == "No"
    assert answer_about(tried(electra=80)).reason == "1 configuration finished, so there is nothing to compare"
    smoke = answer_about(tried(scale="cpu-smoke", electra=80, bert=70))
    assert smoke.word == "Too early to say" and "mean nothing" in smoke.reason


def test_an_experiment_without_scores_in_the_paper() -> None:
    outcome: Outcome = made_up("lambda")
    first, second = (row.variant for row in outcome.rows[:2])
    apart = {first.replace("-", "_"): 80.0, second.replace("-", "_"): 70.0}
    assert answer_about(tried("lambda", **apart)).word == "Yes"
    assert answer_about(tried("lambda", **{**apart, second.replace("-", "_"): 79.9})).word == "Partly"


def test_defect_bars_of_the_experiment_page_began_at_81(tmp_path: Path) -> None:
    """Scores are dots, whose place counts; a bar, whose length counts, begins at 0."""
    drawn_bar = re.compile(r'<path d="M [^"C]*z[^"]*"[^>]*style="fill: var\(--(one|two|plain)\)')
    page = write_report(make_experiment(tmp_path / "weight-tying", "weight-tying")).read_text(encoding="utf-8")
    assert drawn_bar.findall(page) == []
    bars = bar_chart("b", title="B", bars=[("x", 0.82, "one"), ("y", 0.84, "two")], baseline=None)
    assert drawn_bar.findall(bars) == ["one", "two"]
    edges = [[float(x) for x in re.findall(r"[ML] ([\d.]+)", path)] for path in re.findall(r'd="(M [^"C]*z)', bars)]
    (x0, x1), (y0, y1) = [(min(edge), max(edge)) for edge in edges if len(edge) == 4][-2:]
    assert x0 == y0 and (x1 - x0) / (y1 - y0) == pytest.approx(0.82 / 0.84, abs=1e-3)


def test_dots_stand_at_their_scores() -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    draw_dots(axes, [Dot(label="a", value=84.3, low=83.0, high=85.0), Dot(label="b", value=None)])
    assert not axes.patches
    assert [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"] == [[84.3]]
    assert [83.0, 85.0] in [list(line.get_xdata()) for line in axes.lines]
    assert axes.get_xlim()[1] - axes.get_xlim()[0] > 3


def test_several_runs_are_overlaid_and_their_settings_compared(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name / "run", lines()) for name in ("a", "b")]
    (runs[1] / "config.toml").write_text(to_toml(load("tiny", overrides=["optim.lr=0.001", "train.batch_size=64"])))
    page = page_of(*runs, out=tmp_path / "page.html")
    assert (
        "Too early to say. None of 2 worked fully; a/run tells replaced tokens best, with an AUC of 0.700 (b/run 0.700)"
        in page.text
    )
    auc = next(attrs["aria-label"] for tag, attrs in page.tags if tag == "svg" and "AUC" in (attrs["aria-label"] or ""))
    assert auc is not None  # another batch size: over tokens, 2000 x 32 x 64 and 2000 x 64 x 64
    assert "a/run: 0.5 at 0, 0.7 at 4.096e+06 tokens" in auc and "b/run: 0.5 at 0, 0.7 at 8.192e+06 tokens" in auc
    (group,) = differences([one for one in read_folders(runs) if isinstance(one, Run)], [])
    assert group["names"] == ["a/run", "b/run"]
    assert dict(group["rows"]) == {"optim.lr": ["0.0005", "0.001"], "train.batch_size": ["32", "64"]}


def test_the_best_of_several_runs_is_named_where_they_compare(tmp_path: Path) -> None:
    folders = [rtd_run(tmp_path / name, auc=auc) for name, auc in (("a", 0.8), ("b", 0.9))]
    mlm = make_run(
        tmp_path / "mlm",
        [{"kind": "train", "step": 2000, "train/loss": 5.0}, {"kind": "eval", "step": 2000, "eval/mlm_loss": 5.0}],
    )

    def reason() -> str:
        return answer_to(read_folders([*folders, mlm])).reason

    assert "; b tells replaced tokens best, with an AUC of 0.900 (a 0.800)" in reason()
    for name, change in (("objective", "objective.rtd_weight=20"), ("generator", "model.width=64")):
        (folders[1] / "config.toml").write_text(to_toml(load("tiny", overrides=[change])))
        assert f"; AUC does not compare, since these differ in {name}: b 0.900, a 0.800" in reason()
    (folders[1] / "config.toml").write_text(to_toml(load("tiny", overrides=["masking.rate=0.25"])))
    rtd_run(tmp_path / "c", auc=0.7, step=1000)
    assert (
        "since these differ in masking and steps: b 0.900, a 0.800, c 0.700"
        in answer_to(read_folders([*folders, tmp_path / "c", mlm])).reason
    )
    assert "AUC" not in answer_to(read_folders([folders[0], mlm])).reason.partition(" worked")[2]


def test_the_command_answers_and_says_where_the_page_is(tmp_path: Path) -> None:
    folder = make_tuned(tmp_path / "reviews")
    result = CliRunner().invoke(main, ["report", str(folder)])
    assert (
        result.output.startswith("Yes. Reviews: accuracy 90.0") and f"page: {folder / 'report.html'}" in result.output
    )
    assert (folder / "report.html").is_file()
    assert default_page([folder, folder]) == Path("report.html")


def test_a_demo_s_folder_is_that_of_its_run(tmp_path: Path) -> None:
    make_run(tmp_path / "demo" / "run", lines())
    (tmp_path / "demo" / "tuned").mkdir()
    assert [one.name for one in read_subjects(tmp_path / "demo")] == ["run"]
    with pytest.raises(DataError, match="has no metrics.jsonl"):
        read_subjects(tmp_path)
