"""The programs `python -m electra.bench.NAME`: each runs on small data and prints figures that add up."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import corpora
import pytest
import task_files
import tiny_runs
import tuned_folders
from click.testing import CliRunner
from model_folders import make_run

from electra.batches.epoch_plan import LAYOUTS
from electra.bench import (
    few_rows_sweep,
    finetune_speed,
    inference_speed,
    kernel_quality,
    loader_speed,
    prepare_speed,
    row_table,
)
from electra.bench import start_speed as starts
from electra.bench.few_rows import SeedRow
from electra.bench.made_corpora import CORPORA
from electra.cli import main
from electra.config.finetune import FinetuneConfig
from electra.config.load import adjust
from electra.interop.transfer import export_model
from electra.shards.dataset import open_data
from electra.speedrun.screen import read_trials
from electra.tasks.rows import Features


@pytest.fixture(autouse=True)
def processes_find_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tiny_runs.ROOT / "src"))


def test_loader_speed(tmp_path: Path) -> None:
    data = tiny_runs.make_data(tmp_path / "data")
    shape = ["--batch", "4", "--length", "32", "--steps", "20", "--rounds", "1"]
    done = CliRunner().invoke(loader_speed.command, [str(data), *shape])
    assert done.exit_code == 0, done.output
    assert len(re.findall(r"^[a-z-]+: [1-9]\d* sequences planned in", done.output, re.MULTILINE)) == len(LAYOUTS)
    found = re.findall(
        r"^([a-z-]+), median: .* 4 x 32: ([\d.]+) M real tokens/s, ([\d.]+) times", done.output, re.MULTILINE
    )
    assert [name for name, _, _ in found] == list(LAYOUTS)
    for _, speed, times in found:
        assert float(times) == pytest.approx(float(speed) * 1e6 / loader_speed.NEEDED, abs=0.1)


def test_start_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without starting runs: that takes two cold processes a round."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # the program sets it
    data = tiny_runs.make_data(tmp_path / "data")
    where = [str(data), "--work", str(tmp_path), "--gb", "0.0003", "--rounds", "0"]
    done = CliRunner().invoke(starts.command, where)
    assert done.exit_code == 0, (done.output, done.exception)
    assert re.search(r"^0\.0 GB in \d{3} files: verified in [\d.]+ s, .* second start in 0\.\d+ s$", done.output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "data.txt"]
    size = starts.enlarge(data, tmp_path / "large", 200_000)
    large = open_data(tmp_path / "large")
    assert 180_000 < size <= 200_000 and large.verified
    assert large.train.n_tokens == len(large.train.slice(0, large.train.n_tokens)) > 10 * open_data(data).train.n_tokens
    assert (large.train.counts() % open_data(data).train.counts().clip(1) == 0).all()


def test_row_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny_runs.make_data(tmp_path / "data")
    monkeypatch.setattr(row_table, "CORPORA", {"one huge line": CORPORA["one huge line"]})
    done = CliRunner().invoke(row_table.command, [str(data), "data.short=0"])
    assert done.exit_code == 0, done.output
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.output.splitlines() if line[0] == "|"]
    assert [row[:2] for row in rows[2:]] == [
        [name, size] for name in ("one huge line", "data") for size in ("64", "128", "512")
    ]
    kept = {row[0]: row[2:4] for row in rows if row[1] == "128"}
    # 222 tokens of each 1,000 characters, of which the old layout kept 126 or less.
    assert kept == {"one huge line": ["56.8%", "100.0%"], "data": kept["data"]} and kept["data"][1] == "100.0%"


def test_prepare_speed(tmp_path: Path) -> None:
    for number in range(3):
        corpora.write_corpus(tmp_path / "texts" / f"{number}.txt", 200, number)
    vocab = corpora.write_vocab(tmp_path / "vocab.txt")
    done = CliRunner().invoke(prepare_speed.command, [str(tmp_path / "texts"), str(vocab), "--workers", "1"])
    assert done.exit_code == 0, done.output
    assert "the same bytes with 1 and 3 workers: yes" in done.output
    speed, memory = re.search(r"prepare: ([\d.]+) MB/s, (\d+) MB peak", done.output).groups()  # type: ignore[union-attr]
    assert float(speed) > 0 and 20 < int(memory) < 4000
    assert len(re.findall(r"^encode_batch\w*: [\d.]+ MB/s; prepare is [\d.]+ times", done.output, re.MULTILINE)) == 2


def test_finetune_speed(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "model")
    task_files.cola(tmp_path / "glue")
    task_files.rte(tmp_path / "glue")
    model, glue = ["--model", str(tmp_path / "model")], ["--data", str(tmp_path / "glue"), "--tasks", "rte"]
    glue += ["--squad", str(task_files.squad(tmp_path / "squad.json", 8))]
    settings = ["device=cpu", "batch_size=4", "length=24", "precision=fp32"]
    done = CliRunner().invoke(finetune_speed.command, [*model, *glue, "--steps", "3", *settings])
    assert done.exit_code == 0, done.output
    header, *rows = done.stdout.splitlines()
    assert header.split()[0] == "task" and [row.split()[0] for row in rows] == ["rte", "squad", "squad-full"]
    for row in rows:
        ours, first, plain, times, captured = map(float, row.split()[1:])
        assert min(ours, first, plain) > 0
        assert times == pytest.approx(ours / plain, abs=0.1) and captured == pytest.approx(first / plain, abs=0.1)


def test_rows_of_finetune_speed_are_filled_with_those_after_them() -> None:
    features = Features(ids=[[1, 2], [3], [4, 5, 6]], a_lengths=[1, 1, 2])
    assert finetune_speed.filled(features, 5).ids == [[1, 2, 3, 4, 5], [3, 4, 5, 6, 1], [4, 5, 6, 1, 2]]


def test_inference_speed(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    tuned_folders.save(tmp_path / "classifier", "classify")
    (tmp_path / "texts.txt").write_text("the dog sat\n\n" + "a cat ate money and the meal\n" * 6)
    where = ["--texts", str(tmp_path / "texts.txt"), "--batch", "4", "--rounds", "1", "--device", "cpu"]
    found = []
    for model in ("run", "classifier"):
        done = CliRunner().invoke(inference_speed.command, ["--model", str(tmp_path / model), *where])
        assert done.exit_code == 0, (done.output, done.exception)
        assert "7 texts of 6.4 words" in done.output and "1 passes after the first" in done.output
        found += [line.split() for line in done.stdout.splitlines() if line.startswith(("detect", "encode", "predict"))]
    peers = ["electra", "transformers", "onnxruntime"]
    named = [("detect", peer) for peer in peers] + [("encode", peer) for peer in peers[:2]]
    assert [(verb, name) for verb, name, *_ in found] == named + [("predict", peer) for peer in peers]
    assert [(row[-3], row[-1]) for row in found if row[1] == "electra"] == [("1.00", "1.00")] * 3


def test_kernel_quality(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused run in a process of its own, as the program does it; the plain ones here, to spare two imports."""
    begin = kernel_quality.train

    def train(commands: dict[str, list[str]]) -> None:
        ((name, command),) = commands.items()
        if name.startswith("fused"):
            begin(commands)
        else:
            assert CliRunner().invoke(main, command[3:]).exit_code == 0

    monkeypatch.setattr(kernel_quality, "train", train)
    data = tiny_runs.make_data(tmp_path / "data")
    where = ["--data", str(data), "--out", str(tmp_path / "runs"), "--preset", "tiny", "--steps", "5"]
    small = [text for text in tiny_runs.SMALL if not text.startswith(("train.steps", "evaluate.every"))]
    done = CliRunner().invoke(kernel_quality.command, [*where, *small])
    assert done.exit_code == 0, (done.output, done.exception)
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in done.output.splitlines()[2:]}
    assert list(rows)[:3] == list(kernel_quality.RUNS) and len(rows) == 5
    fused, plain = (float(rows[name][0]) for name in ("fused, seed 0", "plain, seed 0"))
    percent = float(rows["fused against plain of its seed"][0].split()[0])
    assert percent == pytest.approx(100 * (fused / plain - 1), abs=0.01)
    assert rows["plain, seed 0"] != rows["plain, seed 1"]


def test_a_failure_is_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "electra.bench.loader_speed", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 4 and done.stderr.startswith("electra: error:") and done.stderr.count("\n") == 1


def test_a_sweep_over_few_rows_goes_on_and_names_what_fails(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    make_run(tmp_path / "run")
    task_files.sst2(tmp_path / "glue")
    (tmp_path / "trials.toml").write_text('a = ["frozen_layers=1"]\nlong = ["length=4000"]\n')
    where = ["--data", str(tmp_path / "glue"), "--out", str(tmp_path / "out"), "--model", str(tmp_path / "run")]
    common = ["epochs=1", "batch_size=8", "device=cpu", "precision=fp32"]
    arguments = [str(tmp_path / "trials.toml"), *where, "--rows", "20", "--count", "1", *common]
    first = CliRunner().invoke(few_rows_sweep.command, arguments)
    assert first.exit_code == 0, first.output
    lines = (tmp_path / "out" / "sweep.jsonl").read_text()
    assert lines.count("\n") == 1 and "- long failed: length: 4000" in first.output
    again = CliRunner().invoke(few_rows_sweep.command, arguments)
    assert (tmp_path / "out" / "sweep.jsonl").read_text() == lines, "nothing is run again"
    found = SeedRow(**json.loads(lines)["found"])
    assert found.seed == 0 and all(f"a, {found.line}" in done.output for done in (first, again))
    assert f"| a | {found.ours:.1f} | 0.0 | {found.ours:.1f} | {found.ours - found.tfidf:+.1f} |" in again.output


def test_the_best_of_a_sweep_comes_first() -> None:
    def line(trial: str, ours: float, seconds: float, seed: int) -> few_rows_sweep.Line:
        found = SeedRow(seed=seed, ours=ours, tfidf=70.0, seconds=seconds, steps=300)
        return few_rows_sweep.Line(trial=trial, settings=(f"lr={ours}",), model="", rows=1000, found=found)

    shown = few_rows_sweep.table([line("a", 74.0, 90, 0), line("b", 80.0, 100, 0), line("b", 78.0, 181, 1)])
    assert [row.split(" | ")[:5] for row in shown.splitlines()[2:]] == [
        ["| b", "79.0", "1.4", "78.0", "+9.0"],
        ["| a", "74.0", "0.0", "74.0", "+4.0"],
    ]
    assert "| 181 (too long) | `lr=80.0` |" in shown


def test_the_trials_of_few_rows_are_settings() -> None:
    trials = read_trials(tiny_runs.ROOT / "examples" / "few_rows.toml")
    configs = {one.name: adjust(FinetuneConfig(eval_every=30), overrides=one.changes) for one in trials}
    assert configs["defaults"] == FinetuneConfig(eval_every=30) and len(set(map(str, configs.values()))) > 10
