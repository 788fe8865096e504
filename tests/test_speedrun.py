"""A speedrun: minutes that are spent once, scores over fixed seeds, and the record of both."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import statistics
import time
from dataclasses import replace
from pathlib import Path

import pytest
import task_files
import tiny_runs
from click.testing import CliRunner, Result

from electra import hardware
from electra.checkpoint import store
from electra.cli import main
from electra.config.keys import flatten
from electra.config.load import load
from electra.config.schema import Config
from electra.errors import DataError
from electra.fsio import read_json
from electra.model.cost import train_flops
from electra.speedrun import record as records
from electra.speedrun import score as scoring
from electra.speedrun.entry import entry_names, entry_title, load_entry
from electra.speedrun.record import Record, append, read
from electra.speedrun.records_page import curves, page
from electra.speedrun.screen import Trial, read_trials, table
from electra.speedrun.train import read_claim
from electra.train.clock import elapsed_seconds
from electra.train.metrics_file import read_lines

SETTINGS = [text for text in tiny_runs.SMALL if not text.startswith("train.steps")]
QUICK = ["device=cpu", "length=24", "batch_size=8"]


def electra(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def train(data: Path, out: Path, minutes: float, *changes: str) -> list[str]:
    where = ["speedrun", "train", "--data", str(data), "--out", str(out), "--minutes", str(minutes)]
    values = dict(text.split("=", 1) for text in [*SETTINGS, *changes])
    return [*where, "--preset", "tiny", *(f"{key}={value}" for key, value in values.items())]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.make_data(tmp_path_factory.mktemp("prepared") / "data")


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return task_files.glue5(tmp_path_factory.mktemp("glue"))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished speedrun. Its clock started with this process of tests, so its minutes are over at once."""
    out = tmp_path_factory.mktemp("runs") / "run"
    done = electra(*train(data, out, 0.01, "seed=3"), "--text", "tiny stories")
    assert done.exit_code == 0, done.output
    return out


# Minutes


@pytest.mark.slow
def test_a_killed_run_has_the_minutes_that_are_left(data: Path, tmp_path: Path) -> None:
    """Three minutes by steps of a second each, start-up as it is: killed after 60 steps, it has fewer than 120 left."""
    out = tmp_path / "run"
    arguments = train(data, out, 3, "checkpoint.every=60", "train.log_every=10", "evaluate.every=0")
    code = "import sys, tiny_runs; from electra.cli import main\nwith tiny_runs.steps_take(1): main(sys.argv[1:])"
    paths = os.pathsep.join(str(tiny_runs.ROOT / part) for part in ("src", "tests"))
    first = tiny_runs.start(arguments, ("-c", code), PYTHONPATH=paths)
    tiny_runs.wait_for(lambda: store.latest(out) is not None, first)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert 0 < elapsed_seconds(out) < 180, "noted every second"
    second = tiny_runs.start(arguments, ("-c", code), PYTHONPATH=paths)
    output = second.communicate()[0]
    assert second.returncode == 0, output
    assert "resuming at step" in output and 170 < elapsed_seconds(out) < 180, output
    last = store.latest(out)
    assert last is not None
    state = read_json(last / "state.json")
    assert 60 < state["step"] == state["total_steps"] < 180
    rates = [line["optim/lr"] for line in read_lines(out / "metrics.jsonl") if line["kind"] == "train"]
    assert rates[-1] < 0.1 * max(rates), "the schedule ends with the minutes"
    again = electra(*arguments)
    assert again.exit_code == 0 and "nothing to do" in again.output


def test_a_process_knows_when_it_began() -> None:
    late = "import time; time.sleep(0.3); from electra import hardware"
    code = f"{late}; print(time.monotonic() - hardware.process_began())"
    process = tiny_runs.start([], program=("-c", code))
    assert 0.3 < float(process.communicate()[0]) < 30
    assert hardware.process_began() < time.monotonic()


def test_the_clock_of_a_system_that_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware.time, "clock_gettime", lambda which: 1e9)
    assert hardware.process_began() == hardware._IMPORTED


def test_minutes_are_what_was_asked_for(run: Path) -> None:
    config = load(file=run / "config.toml")
    assert config.train.max_minutes == 0.01 and config.train.steps == 10**9
    claim = read_json(run / "speedrun.json")
    assert claim["entry"] is None
    assert "seed=3" in claim["changes"] and not any(one.startswith(("train.max", "preset")) for one in claim["changes"])


MISTAKES = [
    (["--minutes", "0"], "--minutes: 0 is not above 0"),
    (["--minutes", "1", "train.steps=5"], "train.steps: the minutes decide it"),
    (["--minutes", "1", "train.max_minutes=5"], "train.max_minutes: the minutes decide it"),
    (["--minutes", "1", "--entry", "faithfull"], "--entry: 'faithfull' is not an entry (did you mean 'faithful'?)"),
    (["--minutes", "1", "--entry", "bert", "--preset", "tiny"], "--entry: is a preset with its changes"),
]


@pytest.mark.parametrize(("arguments", "reason"), MISTAKES)
def test_mistakes_are_named(arguments: list[str], reason: str, data: Path, tmp_path: Path) -> None:
    done = electra("speedrun", "train", "--data", data, "--out", tmp_path / "run", *arguments)
    assert done.exit_code == 2 and reason in done.output
    assert not (tmp_path / "run").exists()


def test_a_folder_is_one_speedrun(run: Path, data: Path, tmp_path: Path) -> None:
    other = electra(*train(data, run, 0.02, "seed=3"))
    assert other.exit_code == 2 and "train.max_minutes 0.01 -> 0.02" in other.output
    entry = electra("speedrun", "train", "--data", data, "--out", run, "--minutes", "0.01", "--entry", "bert")
    assert entry.exit_code == 2 and "holds another entry" in entry.output
    assert load(file=run / "config.toml").train.max_minutes == 0.01
    named = shutil.copytree(run, tmp_path / "named", ignore=shutil.ignore_patterns("scores", "records.jsonl"))
    before = read_claim(named)
    for text, found in (("Wikipedia", "Wikipedia"), ("", "Wikipedia")):
        again = electra(*train(data, named, 0.01, "seed=3"), "--text", text)
        assert again.exit_code == 0 and read_claim(named) == replace(before, text=found), again.output
    plain = tmp_path / "plain"
    assert electra(*tiny_runs.command(data, plain, "train.steps=5")).exit_code == 0
    mixed = electra(*train(data, plain, 0.01))
    assert mixed.exit_code == 2 and "holds a run that is no speedrun" in mixed.output


# Entries


def test_the_faithful_entry_is_the_papers() -> None:
    """Table 6 for ELECTRA-Small, by hand, and what the released code does where the paper is silent."""
    config = load_entry("faithful")
    assert (config.model.layers, config.model.width, config.model.ffn, config.model.heads) == (12, 256, 1024, 4)
    assert (config.model.embedding, config.generator.width, config.masking.rate) == (128, 0.25, 0.15)
    assert (config.optim.lr, config.optim.warmup_steps, config.optim.weight_decay) == (5e-4, 10_000, 0.01)
    assert (config.train.batch_size, config.data.length, config.model.dropout) == (128, 128, 0.1)
    assert (config.objective.rtd_weight, config.masking.policy, config.generator.tying) == (
        50,
        "official",
        "embeddings",
    )
    assert not config.objective.unigram_start and not config.objective.base_rate_start
    assert config.data.layout == "paper-official"


def test_bert_differs_from_it_in_the_objective_alone() -> None:
    def alike(config: Config) -> Config:
        return replace(config, preset="", objective=Config().objective, train=replace(config.train, steps=1))

    bert = load_entry("bert")
    assert bert.objective.name == "mlm" and alike(bert) == alike(load_entry("faithful"))


def test_every_entry_says_what_it_is() -> None:
    listed = electra("speedrun", "entries").output
    for name in entry_names():
        assert f"{name}  " in listed and entry_title(name) in listed and entry_title(name)[-1] in ".:"


# Scores


@pytest.fixture(scope="module")
def scored(run: Path, glue: Path) -> tuple[Record, str]:
    done = electra("speedrun", "score", "--run", run, "--glue", glue, "--commit", "c0ffee", *QUICK, "epochs=1")
    assert done.exit_code == 0, done.output
    (record,) = read(run / "records.jsonl")
    return record, done.stdout


def test_the_record_has_every_figure(run: Path, scored: tuple[Record, str]) -> None:
    record, line = scored
    results = {one["task"]: one for one in read_json(run / "scores" / "report" / "results.json")["tasks"]}
    metrics = {"cola": "matthews", "sst2": "accuracy", "mrpc": "accuracy", "stsb": "spearman", "rte": "accuracy"}
    assert list(record.scores.tasks) == list(metrics)
    by_task = {name: [seed["scores"][metric] for seed in results[name]["seeds"]] for name, metric in metrics.items()}
    assert [seed["seed"] for seed in results["rte"]["seeds"]] == [10, 11, 12, 13, 14]
    medians = {name: statistics.median(values) for name, values in by_task.items()}
    assert {name: one.median for name, one in record.scores.tasks.items()} == pytest.approx(medians)
    assert record.scores.glue5 == pytest.approx(statistics.mean(medians.values()))
    each_seed = [statistics.mean(column) for column in zip(*by_task.values(), strict=True)]
    assert record.scores.glue5_mean == pytest.approx(statistics.mean(each_seed))
    assert record.scores.glue5_std == pytest.approx(statistics.stdev(each_seed))
    assert record.finetune == ("length=24", "batch_size=8", "epochs=1"), "where it ran is no setting"
    assert (record.commit, record.seed, record.minutes, record.purpose) == ("c0ffee", 3, 0.01, "report")
    assert record.text == "tiny stories"
    assert record.scores.notes[0].startswith("CoLA: subset of train: 24 of 8,551 rows")
    lines = read_lines(run / "metrics.jsonl")
    last = [one for one in lines if one["kind"] == "eval"][-1]
    assert record.held_out["rtd_auc"] == last["eval/rtd_auc"] and record.curve[-1][:2] == [last["time_s"], last["step"]]
    assert record.tokens == [one for one in lines if one["kind"] == "train"][-1]["tokens"] < record.tokens_padded
    cost = train_flops(load(file=run / "config.toml"), steps=last["step"])
    assert record.flops_real == pytest.approx(cost.real) and record.flops_paper == pytest.approx(cost.paper)
    assert record.steps == last["step"] and record.parameters == cost.parameters.total
    assert record.seconds == round(elapsed_seconds(run), 1)
    assert line.startswith(f"GLUE-5 {record.scores.glue5:.2f} (mean ") and line.count("\n") == 1
    assert "commit c0ffee" in line and f"rtd_auc {last['eval/rtd_auc']:.4f}" in line and "tiny model.layers=2" in line


def test_a_run_that_was_lengthened_says_so(run: Path, data: Path, scored: tuple[Record, str], tmp_path: Path) -> None:
    """Its record is of the minutes that it has now, which those before did not know of."""
    longer = shutil.copytree(run, tmp_path / "longer", ignore=shutil.ignore_patterns("scores", "records.jsonl"))
    done = electra("pretrain", "--resume", longer, "--data", data, "train.max_minutes=0.02")
    assert done.exit_code == 0, done.output
    found = scoring.record_of(longer, scored[0].scores, purpose="report")
    assert (found.minutes, found.changes) == (0.02, scored[0].changes)
    assert found.scores.notes == (
        *scored[0].scores.notes,
        f"lengthened from 0.01 to 0.02 minutes at step {scored[0].steps}",
    )
    assert found.scores.notes[-1] in found.line


def test_scoring_again_runs_and_records_nothing(run: Path, glue: Path, scored: tuple[Record, str]) -> None:
    before = tiny_runs.times(run / "scores")
    again = electra("speedrun", "score", "--run", run, "--glue", glue, "--commit", "c0ffee", *QUICK, "epochs=1")
    assert again.exit_code == 0 and again.stdout == scored[1]
    assert tiny_runs.times(run / "scores") == before and read(run / "records.jsonl") == [scored[0]]
    other = electra("speedrun", "score", "--run", run, "--glue", glue, *QUICK, "epochs=2")
    assert other.exit_code == 2 and "epochs 1.0, now 2.0" in other.output


@pytest.mark.slow
def test_a_process_a_task_and_seed_gives_the_same_scores(
    run: Path, glue: Path, scored: tuple[Record, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tiny_runs.ROOT / "src"))
    assert sorted(scoring.LONGEST_FIRST) == sorted(scoring.GLUE_5)
    tasks = ("stsb", "rte")  # a number and a class; two tasks are enough to mix them up
    for module, name in ((scoring, "LONGEST_FIRST"), (scoring, "GLUE_5"), (records, "GLUE_5")):
        monkeypatch.setattr(module, name, tasks)
    monkeypatch.setattr(scoring, "SEEDS", {"report": range(10, 12)})
    settings = [*QUICK, "epochs=1"]
    found = scoring.score(run, glue=glue, settings=settings, processes=2).scores
    assert list(found.tasks) == [*tasks]
    for name, one in found.tasks.items():
        assert one.seeds == {seed: scored[0].scores.tasks[name].seeds[seed] for seed in ("10", "11")}


def test_seeds_for_choices_are_others() -> None:
    assert not set(scoring.SEEDS["report"]) & set(scoring.SEEDS["choice"])
    assert [*scoring.SEEDS["report"]] == [10, 11, 12, 13, 14]


def test_what_cannot_be_scored_is_refused(run: Path, data: Path, glue: Path, tmp_path: Path) -> None:
    for setting in ("max_train_rows=5", "seed=1"):
        done = electra("speedrun", "score", "--run", run, "--glue", glue, setting)
        assert done.exit_code == 2 and "a speedrun has all rows and fixed seeds" in done.output
    none = electra("speedrun", "score", "--run", data, "--glue", glue)
    assert none.exit_code == 4 and "has no readable speedrun.json" in none.output
    stopped = tmp_path / "stopped"
    with tiny_runs.signalled(2):
        electra(*train(data, stopped, 60))
    unfinished = electra("speedrun", "score", "--run", stopped, "--glue", glue)
    assert unfinished.exit_code == 5 and "has stopped at step 2, before its time was up" in unfinished.output


# Records


def test_records_are_read_as_written(tmp_path: Path, scored: tuple[Record, str]) -> None:
    path, other = tmp_path / "records.jsonl", replace(scored[0], seed=9)
    for record in (scored[0], other, scored[0]):
        append(path, record)
    assert read(path) == [scored[0], other]
    assert all(json.loads(line)["format"] == 1 for line in path.read_text().splitlines())
    path.write_text(path.read_text() + '{"format": 1}\n')
    with pytest.raises(DataError, match=r"line 3: has no 'entry' \(take the line out\)"):
        read(path)
    path.write_text('{\n "format": 1\n}\n')
    with pytest.raises(DataError, match=r"line 1: cannot be read as JSON: .* \(give a file that"):
        read(path)


def headings(page: str) -> list[str]:
    found = re.findall(r"^### (.+)$", page, re.M)
    return sorted(re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in found)


def linked(page: str) -> list[str]:
    return sorted(set(re.findall(r"\]\(#([^)]+)\)", page)))


def test_the_page_shows_each_record_once(scored: tuple[Record, str]) -> None:
    ours = replace(scored[0], entry="faithful", changes=("optim.lr=0.001", "seed=3"), finetune=(), minutes=10.0)
    plain = replace(ours, scorer="transformers", scores=replace(ours.scores, glue5=99.04))
    longer = replace(
        ours, entry="modern-bert", minutes=20.0, held_out={"rtd_loss": None, "rtd_auc": None, "mlm_loss": 2.5}
    )
    shown = page([longer, ours, plain, replace(ours, purpose="choice", seed=77)])
    rows = [line for line in shown.splitlines() if line.startswith(("| 10 ", "| 20 "))]
    assert [row.removesuffix(" |").split(" | ")[-2:] for row in rows[:3]] == [
        ["tiny stories", one] for one in ("transformers", "electra", "electra")
    ]
    assert "**99.0**" in rows[0] and rows[2].startswith("| 20 ") and len(rows) == 5, "three scores, two runs"
    assert rows[4].split(" | ")[3:6] == ["", "", "2.500"]
    assert "--minutes 10 --entry faithful optim.lr=0.001 seed=3\n" in shown and "seed 77" not in shown
    assert linked(shown) == headings(shown) and len(headings(shown)) == 2
    drawn = curves([longer, ours, plain])
    assert set(re.findall(r"\(images/records/([^)]+)\)", shown)) == set(drawn) and len(drawn) == 2
    assert all(svg.startswith("<?xml") and "Held-out" in svg for svg in drawn.values())


def test_runs_of_many_changed_keys_have_short_names_of_their_own(scored: tuple[Record, str]) -> None:
    """The list of keys stands in the command alone: a file's name has 255 bytes at most, and a cell less."""
    keys = [key for key in flatten(Config()) if key.startswith(("model.", "optim.", "train."))]
    runs = [
        replace(scored[0], entry="faithful", finetune=(), changes=tuple(f"{key}={value}" for key in keys))
        for value in ("1", "2")
    ]
    saved = replace(runs[0], changes=(*runs[0].changes, "checkpoint.seconds=85", "seed=3"))
    assert saved.title == runs[0].title and saved.label == f"faithful, {len(keys)} keys changed"
    shown, drawn = page([*runs, runs[0]]), curves(runs)
    assert linked(shown) == headings(shown) and len(headings(shown)) == 2
    assert len(drawn) == 2 and all(len(name) < 100 for name in drawn)
    assert all(f"{keys[-1]}={value}\n" in shown for value in ("1", "2"))


def test_an_empty_page_has_no_figures() -> None:
    assert page([]).endswith("There is no record yet.\n") and "## Runs" not in page([])


# Screening


@pytest.mark.slow
def test_a_screen_trains_and_scores_each_and_names_what_fails(data: Path, tmp_path: Path) -> None:
    """Trials of the entry by the command; the processes of their own that it starts are real ones."""
    glue = task_files.glue5(tmp_path / "glue", train=8)
    trials = tmp_path / "trials.toml"
    lines = {"control": SETTINGS, "broken": [*SETTINGS, "seed=1"]}
    trials.write_text("".join(f"{name} = {json.dumps(changes)}\n" for name, changes in lines.items()))
    out = tmp_path / "screen"
    (out / "runs").mkdir(parents=True)
    (out / "runs" / "broken").write_text("a file where the run's folder should be")
    arguments = ("speedrun", "screen", trials, "--data", data, "--glue", glue, "--out", out, "--minutes", "0.05")
    done = electra(*arguments)
    assert done.exit_code == 0, done.output
    [record] = read(out / "records.jsonl")
    assert record.purpose == "choice" and list(record.scores.tasks["rte"].seeds) == ["0", "1", "2", "3", "4"]
    rows = [line for line in (out / "table.md").read_text().splitlines() if line.startswith("| control")]
    assert len(rows) == 1 and f"| {record.scores.glue5:.2f} |" in rows[0]
    failed = [line for line in done.output.splitlines() if line.startswith("- broken (")]
    assert len(failed) == 1 and "file exists" in failed[0]


LISTS = [
    ("", "lists no trial"),
    ("a = 1", "is no list of settings"),
    ("a = [1]", "is no list of settings"),
    ('"a/b" = []', "names a folder"),
    ("a = [", "is no TOML"),
    ('a = ["optim.rate=1"]', "optim.rate"),
]


@pytest.mark.parametrize(("text", "reason"), LISTS)
def test_mistakes_in_a_list_of_trials(text: str, reason: str, data: Path, glue: Path, tmp_path: Path) -> None:
    (tmp_path / "trials.toml").write_text(text)
    where = ["--data", data, "--glue", glue, "--out", tmp_path / "out"]
    done = electra("speedrun", "screen", tmp_path / "trials.toml", *where)
    assert done.exit_code == 2 and reason in done.output
    assert not (tmp_path / "out").exists()


def test_the_table_says_what_is_noise(scored: tuple[Record, str]) -> None:
    trials = [Trial(name=name, changes=(), record=scored[0]) for name in ("a", "b")]
    assert "differences below about a point are within its noise" in table(trials)
    assert "noise" not in table([trials[0], Trial(name="b", changes=(), failure="it diverged")])


def test_the_trials_of_the_examples() -> None:
    trials = read_trials(tiny_runs.ROOT / "examples" / "trials.toml")
    configs = {trial.name: load_entry("faithful", overrides=trial.changes) for trial in trials}
    assert len(set(configs.values())) == len(trials) > 5
