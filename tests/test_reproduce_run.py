"""`electra reproduce` for real, at toy size: folders, resuming after a kill, workers, what is refused."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import one_process
import pytest
import task_files
from click.testing import CliRunner
from tiny_runs import command, make_data, start, times, wait_for

from electra.cli import main
from electra.errors import ConfigError, DataError, ElectraError, Resumable
from electra.model.cost import train_flops
from electra.reproduce.dry_run import describe
from electra.reproduce.execute import claim, make_request, progress_of, reproduce
from electra.reproduce.experiments import experiment
from electra.reproduce.outcome import read_outcome
from electra.reproduce.plan import plan
from electra.reproduce.scale import SCALES
from electra.reproduce.watch import step_reached
from electra.reproduce.workers import Worker, _visible, side_by_side

TOY = ("model.width=32", "model.heads=1", "model.ffn=128", "model.embedding=16", "train.batch_size=4", "data.length=32")
TOKENS = 6 * 4 * 32  # six steps


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("reproduce") / "data")


def arguments(name: str, data: Path, out: Path, *more: str, tokens: int = TOKENS) -> list[str]:
    fixed = ["reproduce", name, "--data", str(data), "--out", str(out), "--tokens", str(tokens)]
    rows = [] if "--rows" in more else ["--rows", "64"]
    return [*fixed, *rows, *more, *TOY, "train.precision=fp32"]


def call(*given: str) -> Any:
    result = CliRunner().invoke(main, list(given))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def alone(*given: str) -> str:
    """What the command says in a process of its own: results are compared to the last bit only between such."""
    process = start(list(given), one_process.program())
    message = process.communicate(timeout=200)[0]
    assert process.returncode == 0, message
    return message


def timeless(out: Path) -> Any:
    """results.json without what a clock says."""
    value = json.loads((out / "results.json").read_text())
    for row in value["rows"]:
        assert set(row.pop("measured")) == {"device_seconds", "tokens_per_s", "finetune_seconds"}
    return value


@pytest.mark.slow
def test_an_experiment_end_to_end_and_again(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call(*arguments("weight-tying", data, out))
    assert done.exit_code == 0, done.output
    for number in ("83.6", "84.3", "84.4"):
        assert number in (out / "table.md").read_text() and number in (out / "report.html").read_text()
        assert number in done.output
    outcome = read_outcome(out)
    planned = plan(experiment("weight-tying"), SCALES["cpu-smoke"], vocab_size=200, overrides=TOY)
    assert [row.variant for row in outcome.rows] == [one.name for one in planned] and not outcome.missing
    for row, one in zip(outcome.rows, planned, strict=True):
        cost = train_flops(one.config, steps=6)
        assert (row.cost.steps, row.cost.tokens, row.cost.paper_flops) == (6, TOKENS, cost.paper)
        assert (row.cost.parameters, row.cost.real_flops) == (cost.parameters.total, cost.real)
        assert 0 < row.cost.text_tokens <= TOKENS and row.measured.device_seconds > 0 < row.measured.tokens_per_s
        lines = [json.loads(line) for line in (out / "runs" / row.variant / "metrics.jsonl").read_text().splitlines()]
        assert row.held_out["mlm_loss"] == [line for line in lines if line["kind"] == "eval"][-1]["eval/mlm_loss"]
        scores = json.loads((out / "scores" / row.variant / "last" / "results.json").read_text())
        assert row.score.value == scores["tasks"][0]["summary"]["accuracy"]["median"] == row.score.low
        assert [run["seed"] for run in scores["tasks"][0]["seeds"]] == [10]
    plot = ElementTree.parse(out / "plot.svg").getroot()
    assert plot.tag == "{http://www.w3.org/2000/svg}svg" and "var(" not in (out / "plot.svg").read_text()
    page = (out / "report.html").read_text()
    assert "mean nothing" in page and str(tmp_path) not in page and "http" not in page.replace("http-equiv", "")

    before, found = times(out / "runs") | times(out / "scores"), timeless(out)
    again = call(*arguments("weight-tying", data, out))
    assert again.exit_code == 0 and "4 of 4 configurations are already there" in again.output
    assert times(out / "runs") | times(out / "scores") == before and timeless(out) == found


PAIR = ("--only", "lambda-50,lambda-1", "train.log_every=1")
LONGER = 6 * TOKENS


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two configurations, one after the other, without an interruption."""
    out = tmp_path_factory.mktemp("whole") / "out"
    alone(*arguments("lambda", data, out, *PAIR, tokens=LONGER))
    return out


@pytest.mark.slow
def test_killed_and_resumed_gives_the_same_results(data: Path, whole: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    process = start(arguments("lambda", data, cut, *PAIR, tokens=LONGER), one_process.program())
    wait_for(lambda: step_reached(cut / "runs" / "lambda-1") > 20, process)  # the second, past a checkpoint
    process.kill()
    process.communicate()
    assert [row["variant"] for row in timeless(cut)["rows"]] == ["lambda-50"]
    assert timeless(cut)["missing"] == ["lambda-1"]
    assert "resuming at step" in alone(*arguments("lambda", data, cut, *PAIR, tokens=LONGER))
    assert timeless(cut) == timeless(whole)
    assert timeless(cut)["seeds"] == [0]  # it chooses a setting


@pytest.mark.slow
def test_workers_do_the_same(data: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    alone(*arguments("lambda", data, out, *PAIR, "--together", "2", tokens=LONGER))
    assert timeless(out) == timeless(whole)
    assert {path.name for path in (out / "logs").iterdir()} == {"lambda-50.txt", "lambda-1.txt"}


@pytest.mark.slow
def test_a_run_that_another_experiment_made_is_taken_over(data: Path, tmp_path: Path) -> None:
    first, second, third, fourth = (tmp_path / name for name in ("first", "second", "third", "fourth"))
    assert call(*arguments("negative-results", data, first, "--only", "electra,temperature")).exit_code == 0
    planned = call(*arguments("lambda", data, second, "--only", "lambda-50", "--reuse", str(first), "--dry-run"))
    assert f"to be taken from electra of {first}, to be scored" in planned.output and not second.exists()
    done = call(*arguments("lambda", data, second, "--only", "lambda-50", "--reuse", str(first)))
    assert f"lambda-50: its run is electra of {first}" in done.output
    weights = next((first / "runs" / "electra").rglob("model.safetensors"))
    assert weights.samefile(second / "runs" / "lambda-50" / weights.relative_to(first / "runs" / "electra"))
    assert read_outcome(first).seeds == (10,) and read_outcome(second).seeds == (0,)  # scored anew with its own seeds
    both = ("--reuse", str(first), "--reuse", str(second))
    done = call(*arguments("mask-rate", data, third, "--only", "rate-15", *both))
    assert f"rate-15: its run is lambda-50 of {second}" in done.output  # not the first's, scored with other seeds
    assert "1 of 1 configurations are already there" in done.output
    assert read_outcome(third).rows[0].tasks == read_outcome(second).rows[0].tasks
    shutil.rmtree(third / "runs" / "rate-15" / "checkpoints")  # what is scored already needs no weights
    done = call(*arguments("mask-rate", data, fourth, "--only", "rate-15,rate-25", "--reuse", str(third)))
    assert "1 of 2 configurations are already there" in done.output  # with its scores; the other has no twin
    kept, made = read_outcome(third).rows[0], read_outcome(fourth).rows
    assert kept == made[0] and made[1].cost.tokens == TOKENS
    other = ("--only", "rate-15", "--reuse", str(third), "--rows", "100")
    refused = call(*arguments("mask-rate", data, tmp_path / "other", *other))  # no weights any more, other scores
    assert "its run is" not in refused.output
    assert f"rate-25: no run to take over (rate-15 of {third} has another masking.rate" in done.output
    refused = call(*arguments("lambda", data, tmp_path / "fifth", "--reuse", str(tmp_path)))
    assert refused.exit_code == 4 and "holds no experiment" in refused.output


@pytest.mark.slow
def test_checkpoints_of_a_run_are_scored_on_glue(data: Path, tmp_path: Path) -> None:
    task_files.rte(tmp_path / "glue")
    task_files.cola(tmp_path / "glue")
    out = tmp_path / "out"
    more = ("--glue", str(tmp_path / "glue"), "--tasks", "cola,rte", "--only", "electra-small", "--seeds", "2")
    done = call(*arguments("small-models", data, out, *more, tokens=16 * 4 * 32))
    assert done.exit_code == 0, done.output
    rows = read_outcome(out).rows
    assert [(row.share, row.cost.steps, row.paper) for row in rows] == [
        (0.0625, 1, 74.1), (0.125, 2, 76.0), (0.25, 4, 77.7), (0.5, 8, 79.0), (1.0, 16, 79.9),
    ]  # fmt: skip
    for row in rows:
        assert row.score.label.startswith("average over CoLA, RTE (2 of the 8 GLUE tasks)")
        assert row.score.value == pytest.approx(sum(task.median for task in row.tasks) / 2)
        assert len(row.score.seeds) == 2 and row.score.low <= row.score.high
    table = (out / "table.md").read_text()
    assert "| ELECTRA-Small, after 25 % | 77.7 |" in table and "| GPT (not run here) | 78.8 |" in table
    assert "subset of train: 24 of 8,551 rows" in table and "seeds 10, 11" in table
    assert "Not run: bert-small" in table
    ElementTree.parse(out / "plot.svg")


@pytest.mark.slow
def test_every_training_algorithm_is_scored_along_the_way(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call(*arguments("training-algorithms", data, out, tokens=16 * 4 * 32))
    assert done.exit_code == 0, done.output
    rows = read_outcome(out).rows
    by_variant = {row.variant: [r.cost.paper_flops for r in rows if r.variant == row.variant] for row in rows}
    assert list(by_variant) == ["joint", "adversarial", "two-stage", "bert", "two-stage-fresh"]
    assert all(costs == sorted(set(costs)) for costs in by_variant.values())
    assert [len(costs) for costs in by_variant.values()] == [4, 4, 2, 4, 2]  # a discriminator once there is one


@pytest.mark.slow
def test_a_worker_s_failure_stops_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "src"))
    bad = Worker(name="bad", arguments=["reproduce", "lambda", "--data", str(tmp_path / "none"), "--out", "x"])
    good = Worker(name="good", arguments=["doctor"])
    with pytest.raises(ElectraError, match="bad: .*none") as caught:
        list(side_by_side([good, bad], logs=tmp_path, together=2))
    assert caught.value.exit_code == DataError.exit_code


@pytest.mark.slow
def test_a_signal_stops_workers_after_they_saved(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(
        arguments("lambda", data, out, "--only", "lambda-50", "--together", "2", tokens=1000 * TOKENS)
        + ["train.log_every=1"],
        one_process.program(),
    )
    wait_for(lambda: step_reached(out / "runs" / "lambda-50") > 10, process)
    process.send_signal(signal.SIGTERM)
    message = process.communicate(timeout=60)[0]
    assert process.returncode == Resumable.exit_code and "stopped by SIGTERM; run the same command" in message
    assert list((out / "runs" / "lambda-50" / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("trains", [False, True])
def test_a_worker_ends_with_its_parent(data: Path, tmp_path: Path, trains: bool) -> None:
    """A parent that is killed takes its worker along: one that still imports packages, and one that trains."""
    run = tmp_path / "run"
    worker = Worker(name="run", arguments=command(data, run, "train.steps=1000000", "checkpoint.every=5"))
    code = f"from pathlib import Path\nfrom electra.reproduce.workers import Worker, side_by_side\nworker = {worker}\n"
    process = start([], program=("-c", f"{code}list(side_by_side([worker], logs=Path({str(tmp_path)!r}), together=1))"))
    log, saved = tmp_path / "run.txt", lambda: any(run.glob("checkpoints/step-*"))
    wait_for(saved if trains else lambda: bool(children(process.pid)), process)
    (worker_id,) = children(process.pid)
    process.kill()
    process.communicate()
    ends = time.monotonic() + 120
    while _alive(worker_id):
        assert time.monotonic() < ends
        time.sleep(0.1)
    assert "stopped by SIGTERM" in log.read_text().splitlines()[-1] and saved() == trains


def children(parent: int) -> list[int]:
    """The processes that a process has started and that go on."""
    return [int(one) for one in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def _alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    try:
        return state.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_several_gpus_are_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [_visible(place, 2) for place in range(3)] == [{"CUDA_VISIBLE_DEVICES": n} for n in ("0", "1", "0")]
    assert _visible(1, 1) == _visible(0, 0) == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert _visible(1, 2) == {"CUDA_VISIBLE_DEVICES": "7"}


def test_a_diverged_configuration_is_named_and_the_others_go_on(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    more = ("--only", "lambda-50,lambda-1", "optim.lr=1e30", "guard.max_skipped=1")
    done = call(*arguments("lambda", data, out, *more))
    assert done.exit_code == 3 and "diverged: lambda-50, lambda-1" in done.output
    assert "Diverged: lambda-50, lambda-1" in (out / "table.md").read_text()
    ElementTree.parse(out / "plot.svg")


def test_progress_is_read_from_the_folders(data: Path, tmp_path: Path) -> None:
    request = make_request(
        "lambda", data=data, scale="cpu-smoke", out=tmp_path / "out", only=["lambda-1"], overrides=TOY, tokens=TOKENS
    )
    claim(request)
    (planned,) = request.planned
    assert progress_of(request, planned) == 0
    run = request.run(planned)
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"kind": "train", "step": 3}\n{"kind": "train", "st')
    assert progress_of(request, planned) == pytest.approx(0.25)
    (run / "metrics.jsonl").unlink()
    reproduce(request)
    assert progress_of(request, planned) == 1
    assert describe(request).endswith(f"{run}: finished")


def test_another_request_is_refused(data: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"data": data, "scale": "cpu-smoke", "out": tmp_path / "out", "overrides": TOY}
    claim(make_request("lambda", tokens=TOKENS, **given))
    for name, changed, message in (
        ("mask-rate", {}, "experiment 'lambda', now 'mask-rate'"),
        ("lambda", {"tokens": 2 * TOKENS}, "changes"),
        ("lambda", {"tokens": TOKENS, "budget": "flops"}, "budget 'steps', now 'flops'"),
        ("lambda", {"tokens": TOKENS, "overrides": [*TOY, "seed=1"]}, "overrides"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            claim(make_request(name, **{**given, **changed}))


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (["reproduce", "lamda"], 2, "--data: is missing"),
        (["reproduce", "lamda", "--data", "DATA", "--out", "x"], 2, "did you mean 'lambda'"),
        (["reproduce", "lambda", "--data", "DATA", "--out", "x", "--scale", "cpu2"], 2, "not a scale"),
        (["reproduce", "lambda", "--data", "DATA", "--out", "x", "--only", "lamda-1"], 2, "did you mean 'lambda-1'"),
        (["reproduce", "lambda", "--data", "DATA", "--out", "x", "train.steps=3"], 2, "the budget of the experiment"),
        (["reproduce", "lambda", "--data", "nowhere", "--out", "x"], 4, "nowhere"),
        (["reproduce", "lambda", "--data", "DATA", "--out", "x", "--glue", "nowhere"], 4, "nowhere"),
        (["reproduce", "lambda", "--data", "DATA", "--out", "x", "--tasks", "rte"], 2, "there is no --glue"),
        (["reproduce", "lambda", "--data", "DATA", "--out", "x", "--glue", "x", "--tasks", "colla"], 2, "mean 'cola'"),
        (
            ["reproduce", "lambda", "--data", "DATA", "--out", "x", "--glue", "x", "--tasks", "rte"],
            4,
            "RTE has no train",
        ),
        (["reproduce", "lambda", "--data", "DATA", "--out", "x", "--seeds", "6"], 2, "--seeds 5 at most"),
    ],
)
def test_errors_are_one_line(data: Path, tmp_path: Path, given: list[str], code: int, message: str) -> None:
    places = {"DATA": str(data), "x": str(tmp_path / "x"), "nowhere": str(tmp_path / "nowhere")}
    result = call(*(places.get(one, one) for one in given))
    assert result.exit_code == code and message in result.output and len(result.output.splitlines()) == 1


def test_the_list_names_every_experiment() -> None:
    message = call("reproduce", "--list").output
    assert all(name in message for name in ("efficiency", "lambda", "small-models", "all-tokens-mlm", "gpu-10min"))
    shown = call("reproduce", "--help").output
    assert "--list" in shown and "--worker" not in shown
