"""Tables and plots of experiments: the paper's numbers, what must stand with ours, and valid drawings."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import corpora
import numpy as np
import pytest
from report_folders import made_up
from tiny_runs import make_data

from electra.errors import DataError
from electra.finetune.task_results import SeedScore, Suite, TaskResult
from electra.report import write_report
from electra.report.experiment_view import draw, panel_scores, write_plot
from electra.reproduce import passages
from electra.reproduce.comparison_table import markdown, score_cells
from electra.reproduce.experiments import EXPERIMENTS
from electra.reproduce.outcome import (
    read_outcome,
    score_of,
    write_outcome,
)
from electra.shards.build import prepare
from electra.shards.dataset import open_data

# Reference B: what the paper prints, by the title of our row.
PAPER = {
    "weight-tying": {"nothing shared": 83.6, "embeddings shared": 84.3, "all weights shared": 84.4},
    "efficiency": {
        "ELECTRA": 85.0, "All-Tokens MLM": 84.3, "Replace MLM": 82.4, "ELECTRA 15 %": 82.4, "BERT": 82.2,
    },
    "small-models": {
        "ELECTRA-Small": 79.9, "ELECTRA-Small, after 50 %": 79.0, "ELECTRA-Small, after 25 %": 77.7,
        "ELECTRA-Small, after 12.5 %": 76.0, "ELECTRA-Small, after 6.25 %": 74.1, "BERT-Small": 75.1,
        "ELMo (not run here)": 71.2, "GPT (not run here)": 78.8, "BERT-Base (not run here)": 82.2,
        "ELECTRA-Base (not run here)": 85.1,
    },
    "large-models": {
        "ELECTRA-400K": 89.0, "ELECTRA-1.75M": 89.5, "BERT, our own": 87.2, "BERT-Large (not run here)": 84.0,
        "RoBERTa-100K (not run here)": 87.9, "RoBERTa-500K (not run here)": 88.9, "XLNet (not run here)": 89.1,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PAPER)
def test_the_paper_s_numbers_stand_next_to_ours(name: str) -> None:
    outcome = made_up(name, "paper")  # where every checkpoint is scored
    cells = {row[0]: row for row in score_cells(outcome)[1:]}
    assert {title: float(row[1]) for title, row in cells.items() if row[1]} == PAPER[name]
    text = markdown(outcome)
    for title, number in PAPER[name].items():
        assert f"| {title} | {number:.1f} |" in text


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_table_a_plot_and_a_page(name: str, tmp_path: Path) -> None:
    outcome = made_up(name)
    write_outcome(tmp_path, outcome)
    assert read_outcome(tmp_path) == outcome
    write_plot(tmp_path)
    page = write_report(tmp_path)
    root = ElementTree.parse(tmp_path / "plot.svg").getroot()
    assert root.tag.endswith("svg") and root.get("viewBox")
    drawn = "".join(root.itertext())
    if EXPERIMENTS[name].plot == "dots":
        assert all(row.title in drawn and f"{row.score.value:.1f}" in drawn for row in outcome.rows)
    shown = page.read_text()
    assert all(row.title in shown.replace("&#39;", "'") for row in outcome.rows)
    ids = re.findall(r'\bid="([^"]+)"', shown)
    assert len(ids) == len(set(ids))
    table = markdown(outcome)
    assert "QNLI: subset of train: 9,999 of 104,743 rows" in table and "## What it cost" in table
    widths = {line.count("|") for line in table.split("## What it cost")[1].splitlines() if line.startswith("|")}
    assert widths == {11}


def test_an_experiment_that_has_not_begun_can_be_drawn() -> None:
    empty = replace(made_up("efficiency"), rows=(), missing=("electra",))
    ElementTree.fromstring(draw(empty, sides=panel_scores(empty), name="empty"))
    assert "Not finished: electra" in markdown(empty)


def test_the_order_comes_with_the_spread() -> None:
    outcome = made_up("efficiency")
    scores = {"electra": 70.0, "bert": 66.0, "all-tokens-mlm": 69.9, "replace-mlm": 66.04, "electra-15": 60.0}
    rows = [
        replace(row, score=replace(row.score, value=scores[row.variant], low=scores[row.variant] - 0.2,
                                   high=scores[row.variant] + 0.2))
        for row in outcome.rows
    ]  # fmt: skip
    text = markdown(replace(outcome, rows=tuple(rows)))
    assert "Order here: ELECTRA ≈ All-Tokens MLM > Replace MLM = BERT > ELECTRA 15 %" in text
    assert "In the paper: ELECTRA > All-Tokens MLM > Replace MLM = ELECTRA 15 % > BERT." in text


def test_smoke_says_that_it_means_nothing_and_stuck_runs_are_named() -> None:
    outcome = made_up("weight-tying", "cpu-smoke")
    rows = tuple(replace(row, tasks=(replace(row.tasks[0], stuck=(10,)),)) for row in outcome.rows)
    text = markdown(replace(outcome, rows=rows))
    assert "mean nothing" in text
    assert "Stuck on one answer, and counted like any other (CoLA, seed 10): all weights shared, " in text


def test_the_score_is_the_mean_of_medians_and_its_range_the_seeds_own() -> None:
    suite = Suite(
        results=tuple(
            TaskResult(
                task=task,
                title=task,
                metrics=(metric,),
                seeds=tuple(SeedScore(seed=10 + n, scores={metric: value}) for n, value in enumerate(values)),
            )
            for task, metric, values in (
                ("cola", "matthews", (1.0, 2.0, 9.0)),
                ("rte", "accuracy", (50.0, 40.0, 60.0)),
            )
        )
    )
    score = score_of(suite)
    assert score.value == (2.0 + 50.0) / 2
    assert score.seeds == (25.5, 21.0, 34.5) and (score.low, score.high) == (21.0, 34.5)
    alone = score_of(Suite(results=suite.results[:1]))
    assert alone.value == 2.0 and alone.label == "cola, matthews"


def test_results_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="results.json"):
        read_outcome(tmp_path)
    write_outcome(tmp_path, made_up("lambda"))
    whole = json.loads((tmp_path / "results.json").read_text())
    bad: dict[str, object] = {
        "its format is 99; this version knows 1": {**whole, "format": 99},
        "has no 'rows": {**whole, "rows": [{}]},
        "is not a JSON object": [],
        "its format is None": {},
    }
    for reason, value in bad.items():
        (tmp_path / "results.json").write_text(json.dumps(value))
        with pytest.raises(DataError, match=reason):
            read_outcome(tmp_path)


def test_the_corpus_task_asks_about_neighbours(tmp_path: Path) -> None:
    prepared = open_data(make_data(tmp_path / "data"))
    folder = passages.write_task(tmp_path / "task", prepared, rows=40)
    texts = {}
    for name, split in (("train", prepared.train), ("dev", prepared.held_out)):
        tokens = [
            split.slice(int(a), min(int(b), int(a) + 30)).tolist()
            for a, b in zip(split.sentence_starts, split.sentence_starts[1:], strict=False)
        ]
        sentences = [prepared.tokenizer().decode(one) for one in tokens]
        document = np.searchsorted(split.document_starts, np.arange(len(sentences)), side="right")
        neighbours = {
            pair
            for pair, same in zip(zip(sentences, sentences[1:], strict=False), np.diff(document) == 0, strict=False)
            if same
        }
        rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        texts[name] = rows
        assert [row["label"] for row in rows] == ["apart", "together"] * (len(rows) // 2)
        for row in rows:
            assert row["first"] in sentences and row["second"] in sentences
            assert row["label"] == "apart" or (row["first"], row["second"]) in neighbours
    assert len(texts["train"]) == 40 and len(texts["dev"]) == 32
    before = (folder / "train.jsonl").read_bytes()
    assert passages.write_task(folder, prepared, rows=10).joinpath("train.jsonl").read_bytes() == before
    again = passages.write_task(tmp_path / "again", prepared, rows=40)
    assert (again / "train.jsonl").read_bytes() == before


def test_defect_a_task_of_data_prepared_by_default(tmp_path: Path) -> None:
    """One document of a small corpus was held out, and two were asked for."""
    text = corpora.write_corpus(tmp_path / "a.txt", 60)
    prepare([str(text)], out=tmp_path / "data", vocab=corpora.write_vocab(tmp_path / "v.txt"), workers=1)
    passages.write_task(tmp_path / "task", open_data(tmp_path / "data"), rows=40)
    assert len((tmp_path / "task" / "dev.jsonl").read_text().splitlines()) == 32


def test_a_task_of_a_single_held_out_document(tmp_path: Path) -> None:
    text = corpora.write_corpus(tmp_path / "a.txt", 20)
    (tmp_path / "held.txt").write_text("\n".join(corpora.sentence("held", number) for number in range(9)))
    (tmp_path / "short.txt").write_text("\n".join(corpora.sentence("held", number) for number in range(2)))
    vocab = corpora.write_vocab(tmp_path / "v.txt")
    prepare([str(text)], out=tmp_path / "data", vocab=vocab, held_out=[str(tmp_path / "held.txt")], workers=1)
    prepared = open_data(tmp_path / "data")
    assert prepared.held_out.n_documents == 1
    passages.write_task(tmp_path / "task", prepared, rows=200)
    tokenizer, starts = prepared.tokenizer(), prepared.held_out.sentence_starts.tolist()
    ids = [prepared.held_out.slice(a, min(b, a + passages.TOKENS)).tolist() for a, b in itertools.pairwise(starts)]
    texts = [tokenizer.decode(sentence) for sentence in ids]
    rows = [json.loads(line) for line in (tmp_path / "task" / "dev.jsonl").read_text().splitlines()]
    assert len(rows) == 100 and {row["label"] for row in rows} == set(passages.LABELS)
    for row in rows:
        distance = (texts.index(row["second"]) - texts.index(row["first"])) % len(texts)
        assert (distance == 1) if row["label"] == "together" else distance > 1
    prepare([str(text)], out=tmp_path / "few", vocab=vocab, held_out=[str(tmp_path / "short.txt")], workers=1)
    with pytest.raises(DataError, match=r"no document of several sentences .*give --glue"):
        passages.write_task(tmp_path / "none", open_data(tmp_path / "few"), rows=40)
