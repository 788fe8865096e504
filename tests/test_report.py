"""The report page of a run: everything in one file, nothing remote, nothing that data can inject."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from report_folders import HOSTILE, PLANNED_COST, Page, lines, make_run, results, sample_line

from electra.config.load import load, to_toml
from electra.errors import DataError
from electra.report import write_report
from electra.report.plots import Baseline, Chart, Line, bar_chart, line_chart
from electra.report.reading import Sample, read_run
from electra.report.rendering import power
from electra.report.tokens import guesses, milestones, page_tokens, score


def page_of(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


def test_headline_figures_and_costs(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", lines())
    (run / "demo.json").write_text(json.dumps(results()))
    page = page_of(run)
    assert "0.700 AUC" in page.text
    assert "81.2% vs 43.8%" in page.text and "Chance is 50.0%" in page.text
    assert "3.8M tokens" in page.text  # 2000 steps of 1900
    assert "4.1M processed" in page.text  # 2000 x 32 x 64
    assert re.search(r"Training FLOPs 2\.67 × 10 13", page.text)  # 4e13 x 2/3 of the planned tokens
    assert "electra detect --model demo/run" in page.text
    charts = [tag for tag, _ in page.tags if tag == "svg"]
    assert len(charts) == 7


@pytest.mark.parametrize(("untrained", "too_short"), [(0.4375, False), (0.9, True)])
def test_a_run_too_short_to_help_is_called_that(tmp_path: Path, untrained: float, too_short: bool) -> None:
    run = make_run(tmp_path / "run", lines())
    found = results()
    found["untrained"]["accuracy"] = untrained
    (run / "demo.json").write_text(json.dumps(found))
    assert ("too short for pre-training to help" in page_of(run).text) is too_short


@pytest.mark.parametrize(
    ("loss", "untrained", "word"),
    [(0.3, 0.4375, "Yes"), (0.5, 0.4375, "Partly"), (0.3, 0.8, "Partly"), (0.5, 0.8, "No")],
)
def test_a_demo_that_went_on_from_a_model_shows_three(tmp_path: Path, loss: float, untrained: float, word: str) -> None:
    entries = lines()
    evaluations = [entry for entry in entries if entry["kind"] == "eval"]
    evaluations[-1]["eval/rtd_loss"] = loss
    found = results() | {"start": "electra:tiny"}
    found["bundled"] = found["pretrained"] | {"accuracy": 0.75}
    found["untrained"]["accuracy"] = untrained
    found["task"]["examples"][0]["bundled"] = "torch"
    run = make_run(tmp_path / "run", entries)
    (run / "demo.json").write_text(json.dumps(found))
    page = page_of(run)
    moved = "lowered" if loss < 0.4 else "did not lower"
    assert f"{word}. " in page.text and f"{moved} its held-out RTD loss: 0.400 before, {loss:.3f} after" in page.text
    assert "the adapted encoder gives 81.2% right answers, electra:tiny as it is 75.0%" in page.text
    assert f"81.2% vs 75.0% and {untrained:.1%}" in page.text and "electra:tiny says" in page.text
    bars = next(
        str(attributes.get("aria-label")) for tag, attributes in page.tags if tag == "svg" and "Bar" in str(attributes)
    )
    assert bars == f"Bar chart. Right answers: untrained {untrained:.1%}, electra:tiny 75.0%, adapted 81.2%."


@pytest.mark.parametrize("missing", ["folder", "tuned", "corpus", "task", "pretrained", "untrained"])
def test_promise_20_a_demo_that_says_less_is_shown(tmp_path: Path, missing: str) -> None:
    run = make_run(tmp_path / "run", lines())
    (run / "demo.json").write_text(json.dumps({key: value for key, value in results().items() if key != missing}))
    assert "0.700 AUC" in page_of(run).text


def test_promise_18_text_from_data_is_escaped(tmp_path: Path) -> None:
    facts = {
        "cpu": HOSTILE,
        "cores": 2,
        "gpus": [],
        "argv": [HOSTILE],
        "packages": {HOSTILE: HOSTILE},
        "ledger": PLANNED_COST,
    }
    run = make_run(tmp_path / "r<u>n", lines(word=HOSTILE), facts=facts)
    (run / "demo.json").write_text(json.dumps(results(HOSTILE)))
    page = page_of(run)
    tags = {tag for tag, _ in page.tags}
    assert "script" not in tags and "img" not in tags and "u" not in tags
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert page.text.count("<script>alert('x')</script>") >= 5


def test_promise_18_page_loads_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", lines())
    (run / "demo.json").write_text(json.dumps(results()))
    text = write_report(run).read_text(encoding="utf-8")
    for tag, attributes in Page(text).tags:
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "image", "base"}
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    assert re.findall(r"url\((?!#)", text) == []
    assert "@import" not in text and "://" not in text
    assert "default-src 'none'" in text


def test_ids_are_unique_and_known(tmp_path: Path) -> None:
    text = write_report(make_run(tmp_path / "run", lines())).read_text(encoding="utf-8")
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text)) <= set(ids)
    assert not re.findall(r"#[01][0-9a-f]{5}\b", re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL))


def test_same_run_same_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", lines())
    first = write_report(run).read_bytes()
    assert write_report(run, out=tmp_path / "elsewhere.html").read_bytes() == first


def test_masked_language_model_has_no_discriminator_parts(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "bert", lines(rtd=False), preset="bert-small"))
    assert "AUC" not in page.text and "electra detect" not in page.text
    assert "Hidden words guessed right" in page.text


@pytest.mark.parametrize("name", ["replace-mlm", "all-tokens-mlm", "rtd-15"])
def test_objectives_of_the_laboratory(tmp_path: Path, name: str) -> None:
    entries = lines(rtd=name != "replace-mlm")
    if name != "rtd-15":
        figures = {"main_loss": 2.0, "main_accuracy": 0.5, "restored_accuracy": 0.25}
        for entry in entries:
            if entry["kind"] in ("train", "eval"):
                entry |= {f"{entry['kind']}/{key}": value for key, value in figures.items()}
    run = make_run(tmp_path / "run", entries)
    (run / "config.toml").write_text(to_toml(load("tiny", overrides=[f"objective.name={name}"])))
    page = page_of(run)
    assert (
        ("Originals named right" in page.text) == ("learned to name the originals" in page.text) == (name != "rtd-15")
    )
    assert ("AUC" in page.text) == ("Spot the fake" in page.text) == (name != "replace-mlm")
    assert ("electra detect" in page.text) == (name == "rtd-15")
    assert "The generator’s loss on masked tokens" in page.text


@pytest.mark.parametrize("rtd", [True, False])
def test_a_run_that_compares_segments_shows_its_error(tmp_path: Path, rtd: bool) -> None:
    entries, preset = lines(rtd=rtd), "small" if rtd else "bert-small"
    assert "Comparing two segments" not in page_of(make_run(tmp_path / "without", entries, preset=preset)).text
    entries = [one | {"train/overlap_error": 0.05} if one["kind"] == "train" else one for one in entries]
    assert "Comparing two segments" in page_of(make_run(tmp_path / "with", entries, preset=preset)).text


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_run_that_has_just_begun(tmp_path: Path, count: int) -> None:
    assert "What it cost" in page_of(make_run(tmp_path / "run", lines()[:count])).text


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", lines())
    odd = ['{"kind": "train", "step": 2', "[1, 2]", '{"kind": "sample", "step": 5, "original": ["a"], "masked": []}',
           '{"kind": "eval", "step": 3000, "eval/rtd_auc": "high"}']  # fmt: skip
    with open(run / "metrics.jsonl", "a") as out:
        out.write("\n".join(odd) + "\n")
    assert len(read_run(run).samples) == 3
    assert "0.700 AUC" in page_of(run).text


def test_not_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="give a folder of electra pretrain"):
        write_report(tmp_path)


def sample(step: int = 0, *, replaced: list[str], chances: list[float]) -> Sample:
    line = sample_line(step, replaced, chances)
    return Sample(step=step, original=line["original"], masked=line["masked"], replaced=replaced, probabilities=chances)


def test_tokens_of_a_sample() -> None:
    one = sample(replaced=["[CLS]", "the", "dog", "##s", "are", "small", ".", "[SEP]"],
                 chances=[0, 0, 0.9, 0.6, 0, 0.2, 0, 0])  # fmt: skip
    shown = page_tokens(one)
    assert [token.text for token in shown if not token.special] == ["the", "dog", "s", "are", "small", "."]
    assert [token.glued for token in shown][2:7] == [False, True, False, False, True]
    assert [token.changed for token in shown].index(True) == 2 and shown[2].before == "graph"
    assert shown[5].chosen and not shown[5].changed and "guessed it" in shown[5].tooltip
    count = score(one)
    assert (count.changed, count.found, count.luck) == (1, 1, 1 / 8)


def test_milestones_and_guesses() -> None:
    tokens = {step: ["[CLS]", "the", f"x{step}", "##s", "are", "small", ".", "[SEP]"] for step in range(10)}
    chosen = milestones([sample(step, replaced=tokens[step], chances=[0.0] * 8) for step in range(10)])
    assert [one.step for one in chosen] == [0, 3, 6, 9]
    first, second = guesses(chosen)
    assert first.original == "graph" and first.answers == [(f"x{step}", False) for step in (0, 3, 6, 9)]
    assert second.original == "small" and all(same for _, same in second.answers)


def test_charts_take_the_colours_of_the_page() -> None:
    chart = Chart(
        name="c",
        title="T & U",
        lines=[Line(label="a", points=[(0, 1), (1, 2)])],
        baselines=[Baseline(label="l", value=1)],
    )
    svg = line_chart(chart)
    assert svg.startswith("<svg viewBox=") and svg.endswith("</svg>")
    assert "var(--one)" in svg and "T &amp; U" in svg and "xmlns" not in svg
    assert "50.0%" in bar_chart("b", title="B", bars=[("x", 0.5, "one")], baseline=None)
    assert line_chart(Chart(name="e", title="empty", lines=[Line(label="a", points=[])]))


def test_small_figures() -> None:
    assert power(1.4e18) == ("1.40", 18) and power(0) == ("0", 0)
