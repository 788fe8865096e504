"""The plain `transformers` loop over GLUE-5: its learning rates, its metrics, and the record that it makes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import task_files
import tiny_runs
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from model_folders import make_run

from electra.bench import transformers_glue as plain
from electra.finetune.paper_settings import settings as paper
from electra.finetune.task_model import depth_scale
from electra.interop.transfer import export_model
from electra.metrics.classification import matthews
from electra.metrics.regression import spearman
from electra.speedrun.record import read
from electra.speedrun.train import speedrun
from electra.tasks.glue_tasks import TASKS
from electra.tasks.rows import Example

pytest.importorskip("transformers")
pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    make_run(folder / "run")
    export_model(folder / "run", folder / "model")
    return folder / "model"


def test_learning_rates_fall_with_depth_as_in_our_trainer(model: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    network = AutoModelForSequenceClassification.from_pretrained(model)
    layers = network.config.num_hidden_layers
    groups = plain.parameter_groups(network, lr=1.0, decay=0.8)
    rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    ours = depth_scale(0.8, layers, official=False)
    assert len(rates) == sum(1 for _ in network.parameters())
    for name, parameter in network.named_parameters():
        named = "head.out" if name.startswith("classifier.") else name.partition(".")[2].replace("layer.", "layers.")
        assert rates[id(parameter)] == pytest.approx(ours(named)), name


@given(values=st.lists(st.tuples(st.integers(0, 1), st.booleans()), min_size=2, max_size=30))
@settings(max_examples=30, deadline=None)
def test_metrics_are_ours(values: list[tuple[int, bool]]) -> None:
    values = [(0, True), (1, True), *values]  # both labels are there, as in every dev set
    gold, right = [one for one, _ in values], [two for _, two in values]
    predicted = [label if hit else 1 - label for label, hit in zip(gold, right, strict=True)]
    rows = [Example(id=str(row), text="", label=str(label)) for row, label in enumerate(gold)]
    logits = torch.nn.functional.one_hot(torch.tensor(predicted), 2).float()
    assert plain.metric(logits, rows, TASKS["sst2"]) == pytest.approx(100 * sum(right) / len(right))
    assert plain.metric(logits, rows, TASKS["cola"]) == pytest.approx(100 * matthews(predicted, gold), abs=1e-9)
    numbered = [Example(id="", text="", label=float(row % 4)) for row in range(len(rows))]
    close = torch.tensor([[0.3 * place + float(label)] for place, label in enumerate(gold)])
    expected = 100 * spearman(close.squeeze(1).numpy(), [one.label for one in numbered])
    assert plain.metric(close, numbered, TASKS["stsb"]) == pytest.approx(expected)
    assert plain.metric(torch.zeros(len(rows), 1), numbered, TASKS["stsb"]) == 0.0


def test_a_task_that_can_be_learnt_is_learnt(model: Path, tmp_path: Path) -> None:
    task_files.sst2(tmp_path, train=64, dev=32)
    task_files.stsb(tmp_path, train=24, dev=8)
    config = paper("sst2", "tiny")
    lr = {"lr": 5e-3, "epochs": 12.0, "length": 24, "encoder_dropout": 0.0, "attention_dropout": 0.0}
    learnt = plain.finetune_task(
        model, TASKS["sst2"], replace(config, **lr), glue=tmp_path, seed=0, device=torch.device("cpu")
    )
    assert learnt > 90, "one word says the label"
    one_epoch = replace(config, epochs=1.0, length=24)
    value = plain.finetune_task(model, TASKS["stsb"], one_epoch, glue=tmp_path, seed=0, device=torch.device("cpu"))
    assert -100 <= value <= 100


def test_the_record_is_the_speedruns_with_other_scores(tmp_path: Path) -> None:
    """Seeds that are done are not run again: here all of them."""
    data, run = tiny_runs.make_data(tmp_path / "data"), tmp_path / "run"
    overrides = [text for text in tiny_runs.SMALL if not text.startswith("train.steps")]
    speedrun(data=data, out=run, minutes=0.001, preset="tiny", overrides=overrides)
    folder = run / "scores" / "report" / "transformers"
    folder.mkdir(parents=True)
    for seed in range(10, 15):
        scores = {"cola": seed, "sst2": 80.0, "mrpc": 2 * seed, "stsb": 50.0, "rte": 60.0}
        for task, score in scores.items():
            (folder / f"{task}-{seed}.json").write_text(json.dumps({"score": score}))
    done = CliRunner().invoke(plain.command, ["--run", str(run), "--glue", str(tmp_path / "none"), "--commit", "abc"])
    assert done.exit_code == 0, (done.output, done.exception)
    (record,) = read(run / "records.jsonl")
    assert record.scores.glue5 == pytest.approx((12 + 80 + 24 + 50 + 60) / 5) and record.scorer == "transformers"
    assert done.stdout == record.line + "\n" and "medians of seeds 10-14 by transformers" in record.line
    assert (folder / "model" / "config.json").is_file()
