"""electra bench: rows and units, ratios, failures as rows, the plot, and refusals; every measurement a real one."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import one_process
import pytest
import torch
from click.testing import CliRunner, Result

from electra import hardware
from electra.batches.sequences import unpack
from electra.bench import processes
from electra.bench.chosen_ops import STACK_COLUMNS, chosen_ops
from electra.bench.grid import Job, choices, gpu_kinds, plan, sizes
from electra.bench.measure import WARM_UP, Figures, measure, reason, timed
from electra.bench.ours import our_step, random_rows
from electra.bench.processes import Row, run_job
from electra.bench.speed_plot import NO_ROOFLINE, ROOFLINE, draw
from electra.bench.speed_table import as_json, as_text, choice_lines, heading, ratios
from electra.cli import main
from electra.config.load import load
from electra.errors import ConfigError
from electra.model import cost
from electra.ops.dispatch import select

ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
TINY = ("--preset", "tiny", "--device", "cpu", "model.layers=1", "model.vocab_size=512")
SMALLER = ("train.device=cpu", "model.layers=1", "model.vocab_size=512")
EAGER = "transformers eager"
HUGE = 2**20
MEMORY = 6 << 30  # bytes that a process may have: HUGE sequences of 1,024 tokens need more


def electra(*args: str, sitecustomize: str = "", **modules: str) -> Result:
    """`electra bench` in this process; what it measures runs in processes of their own, which find these modules."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        for name, body in {"sitecustomize": sitecustomize, **modules}.items():
            (Path(folder) / f"{name}.py").write_text(body)
        patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{ENV['PYTHONPATH']}")
        return CliRunner().invoke(main, ["bench", *args])


def measured_here(job: Job) -> Row:
    """A measurement in this process: no package is imported once more."""
    return Row(job=job, figures=measure(job))


def job(kind: str = "ours", *, batch: int = 4, length: int = 64, steps: int = 2, extra: tuple[str, ...] = ()) -> Job:
    shape = (f"train.batch_size={batch}", f"data.length={length}")
    overrides = (*SMALLER, *shape, *extra)
    return Job(kind=kind, preset="tiny", overrides=overrides, batch=batch, length=length, steps=steps)


def row(kind: str, speed: float, *, batch: int = 32, length: int = 128, roofline: float | None = None) -> Row:
    seconds = batch * length / speed
    figures = Figures(
        tokens_per_s=speed,
        ms_per_step=seconds * 1e3,
        stretches_ms=[seconds * 1e3],
        memory_gib=1.5,
        start_s=2.0,
        precision="bf16",
        roofline_tokens_per_s=roofline,
        mfu=speed / roofline if roofline else None,
    )
    return Row(job=job(kind, batch=batch, length=length), figures=figures)


H200 = {
    "preset": "small",
    "overrides": ["model.dropout=0"],
    "steps": 30,
    "rounds": 1,
    "device": "cuda:0",
    "gpus": [{"name": "NVIDIA H200"}],
    "packages": {"torch": "2.11.0", "numpy": "2.5.0"},
    "platform": "Linux x86_64",
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One command over a grid of two batches, with a peer, and all its files; the larger ones are measured here."""
    folder = tmp_path_factory.mktemp("bench")
    files = {name: folder / "new" / f"speed.{name}" for name in ("json", "svg", "txt")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "run_job", lambda job, tick: (run_job if job.batch == 2 else measured_here)(job))
        done = electra(
            *TINY, "--batch", "2,4", "--length", "64", "--peer", "eager", "--steps", "3",
            "--json", str(files["json"]), "--plot", str(files["svg"]), "--profile", str(files["txt"]),
        )  # fmt: skip
    assert done.exit_code == 0, done.output
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    return {"out": done.stdout, "err": done.stderr, **texts, "figures": json.loads(texts["json"])}


def test_json_holds_every_row_and_its_units(measured: dict[str, Any]) -> None:
    found = measured["figures"]
    assert (found["preset"], found["device"], found["steps"]) == ("tiny", "cpu", 3)
    assert found["packages"]["torch"] == torch.__version__ and found["cores"] >= 1
    rows = found["measurements"]
    assert [(one["step"], one["batch"], one["length"]) for one in rows] == [
        ("ours", 2, 64), (EAGER, 2, 64), ("ours", 4, 64), (EAGER, 4, 64),
    ]  # fmt: skip
    for one in rows:
        assert one["tokens_per_s"] * one["ms_per_step"] == pytest.approx(1000 * one["batch"] * one["length"])
        assert len(one["stretches_ms"]) == 3 and statistics.median(one["stretches_ms"]) == one["ms_per_step"]
        assert one["precision"] in ("fp32", "bf16") and one["mfu"] is None and one["roofline_tokens_per_s"] is None
        assert 0.05 < one["memory_gib"] < 8 and 1e-3 < one["start_s"] < 200
    assert {one["precision"] for one in rows if one["step"] == EAGER} == {"fp32"}


def test_ratios_are_those_of_the_rows(measured: dict[str, Any]) -> None:
    rows = measured["figures"]["measurements"]
    for ours, peer in (rows[:2], rows[2:]):
        assert ours["times_as_fast_as"] == {EAGER: pytest.approx(ours["tokens_per_s"] / peer["tokens_per_s"])}
        assert peer["times_as_fast_as"] == {EAGER: 1.0}


def test_table_names_machine_and_rows(measured: dict[str, Any]) -> None:
    lines = measured["out"].splitlines()
    assert lines[0].startswith("tiny model.layers=1 model.vocab_size=512") and "3 timed steps" in lines[0]
    assert f"torch {torch.__version__}" in lines[1] and hardware.cpu_name() in lines[1]
    assert lines[3].split()[:1] == ["step"] and lines[3].endswith("x eager")
    body = lines[4:8]
    assert [line.split("  ")[0] for line in body] == ["ours", EAGER, "ours", EAGER]
    for line, one in zip(body, measured["figures"]["measurements"], strict=True):
        assert f"{one['batch']} x 64" in line and f"{one['ms_per_step']:.4g}" in line
        assert line.endswith(f"{one['times_as_fast_as'][EAGER]:.2f}")


def test_table_says_op_by_op_what_ours_ran_and_why(measured: dict[str, Any]) -> None:
    ops = select(device=torch.device("cpu"), dtype=hardware.compute_dtype("auto", torch.device("cpu")))
    chosen = [(name, one.backend, one.reason) for name, one in ops]
    ours, peer = measured["figures"]["measurements"][:2]
    assert [(one["op"], one["backend"], one["reason"]) for one in ours["ops"]] == chosen
    assert ours["stacks"] == [] and not {"ops", "stacks"} & peer.keys(), "encoder kernels are a GPU's"
    lines = measured["out"].splitlines()
    first = lines.index("ops of ours, 2 x 64; ours, 4 x 64")
    assert lines[first + 1].split() == ["op", "backend", "reason"]
    assert [tuple(line.split(maxsplit=2)) for line in lines[first + 2 :]] == chosen, "each choice once"


def test_each_choice_is_printed_with_its_measurements() -> None:
    """Two choices and three shapes on a GPU: two tables, and the encoders by shape below them."""

    def chosen(backend: str, reason: str, layers: str) -> dict[str, list[dict[str, str]]]:
        stack = {"encoder": "generator", "layers": layers, "attention": backend, "linear_gelu": backend}
        return {"ops": [{"op": "attention", "backend": backend, "reason": reason}], "stacks": [stack]}

    fused = [row("ours fused", 4e6, batch=128), row("ours fused", 3e6, batch=32), row("ours plain", 1e6)]
    found = [("triton", "a GPU", "by op"), ("triton", "a GPU", "other"), ("reference", "asked", "reference")]
    rows = [
        replace(one, figures=replace(one.figures, **chosen(*what)))  # type: ignore[type-var]
        for one, what in zip(fused, found, strict=True)
    ]
    assert choice_lines([*rows, row(EAGER, 5e5)]) == [
        "",
        "ops of ours fused, 128 x 128; ours fused, 32 x 128",
        "op         backend  reason",
        "attention  triton   a GPU",
        "",
        "ops of ours plain, 32 x 128",
        "op         backend    reason",
        "attention  reference  asked",
        "",
        "encoders by shape",
        "step        encoder    layers     attention  linear_gelu",
        "ours fused  generator  by op      triton     triton",
        "ours fused  generator  other      triton     triton",
        "ours plain  generator  reference  reference  reference",
    ]
    assert choice_lines([row(EAGER, 5e5)]) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ((), {"discriminator": "by op", "generator": "by op"}),
        (("objective.name=mlm",), {"encoder": "by op"}),
        (("generator.kind=two-tower",), {"discriminator": "by op", "generator": "reference"}),
        (("generator.kind=unigram",), {"discriminator": "by op"}),
        (("model.heads=2",), {"discriminator": "reference", "generator": "by op"}),
        (("train.compile=on",), {"discriminator": "reference", "generator": "reference"}),
        (("train.kernels=plain",), {"discriminator": "reference", "generator": "reference"}),
        (("train.precision=fp32",), {"discriminator": "reference", "generator": "reference"}),
    ],
)
def test_encoders_by_shape_are_those_of_the_step(
    changes: tuple[str, ...], expected: dict[str, str], ampere: torch.device
) -> None:
    defaults = ("train.steps=5000", "optim.warmup_steps=500", "train.recompute=off", "train.precision=bf16")
    named = {change.partition("=")[0] for change in changes}
    overrides = [*(text for text in defaults if text.partition("=")[0] not in named), *changes]
    ops, stacks = chosen_ops(load("small", overrides=overrides), ampere, rows=64)
    assert {one["encoder"].partition(" (")[0]: one["layers"] for one in stacks} == expected
    assert "(64 x 128, width 256, 12 layers)" in stacks[0]["encoder"] and {*stacks[0]} == {*STACK_COLUMNS}
    fused = any(layers == "by op" for layers in expected.values())
    assert fused <= ({one["op"]: one["backend"] for one in ops}["encoder_stack"] == "triton")


def test_progress_names_each_measurement(measured: dict[str, Any]) -> None:
    assert "1/4 ours, 2 x 64: " in measured["err"] and f"4/4 {EAGER}, 4 x 64: " in measured["err"]


def test_profile_is_of_our_step_only(measured: dict[str, Any]) -> None:
    assert "ours, 2 x 64\n" in measured["txt"] and "ours, 4 x 64\n" in measured["txt"]
    assert EAGER not in measured["txt"] and "aten::" in measured["txt"]


def test_what_was_measured_is_kept_when_it_is_stopped(tmp_path: Path) -> None:
    figures, picture = tmp_path / "speed.json", tmp_path / "speed.svg"
    command = [sys.executable, *one_process.program(), "bench", *TINY, "--batch", "2", "--length", "64"]
    command += ["--peer", "none", "--steps", "2", "--rounds", "1000", "--json", str(figures), "--plot", str(picture)]
    process = subprocess.Popen(command, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 200
        while not picture.is_file() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait()
    assert len(json.loads(figures.read_text(encoding="utf-8"))["measurements"]) == 1
    assert ET.fromstring(picture.read_text(encoding="utf-8")).tag.endswith("svg")


def test_plot_is_an_svg_with_every_series(measured: dict[str, Any]) -> None:
    texts = [node.text for node in ET.fromstring(measured["svg"]).iter("{http://www.w3.org/2000/svg}text")]
    ours = measured["figures"]["measurements"][0]["precision"]
    assert {f"ours, {ours}", f"{EAGER}, fp32", NO_ROOFLINE, "length 64", "2", "4"} <= set(texts)
    assert "var(--" not in measured["svg"]


def test_roofline_is_drawn_where_the_peak_is_known() -> None:
    rows = [
        row(kind, speed * length, batch=batch, length=length, roofline=9e6)
        for length in (64, 128)
        for batch in (32, 128, 512)
        for kind, speed in (("ours fused", 9e3), (EAGER, 1e3))
    ]
    rows[-1] = Row(job=rows[-1].job, error="out of memory")
    texts = {node.text for node in ET.fromstring(draw(rows, H200)).iter("{http://www.w3.org/2000/svg}text")}
    assert {ROOFLINE, "ours fused, bf16", f"{EAGER}, failed", "length 64", "length 128"} <= texts
    assert "10M" in texts and NO_ROOFLINE not in texts and "small, NVIDIA H200" in texts
    over = [row("ours fused", 1e6, length=length, roofline=1e7 - length) for length in (64, 128)]
    texts = {node.text for node in ET.fromstring(draw(over, H200)).iter("{http://www.w3.org/2000/svg}text")}
    assert {"batch 32", "64", "128", "tokens a sequence", ROOFLINE} <= texts
    nothing = [Row(job=job(), error="out of memory")]
    assert "ours, failed" in draw(nothing, H200)


def test_a_table_of_a_gpu_and_of_failures() -> None:
    rows = [
        row("ours fused", 4e6, roofline=8e6),
        row(EAGER, 5e5, roofline=8e6),
        Row(job=job("transformers compiled", batch=32, length=128), error="out of memory"),
        row("ours fused", 1e6, batch=64),
    ]
    assert ratios(rows[0], rows) == {EAGER: 8.0} and ratios(rows[2], rows) == {} == ratios(rows[3], rows)
    text = as_text(rows, H200)
    lines = text.splitlines()
    assert lines[:2] == ["small model.dropout=0: 30 timed steps each", "NVIDIA H200, torch 2.11.0, Linux x86_64"]
    assert lines[3].split("  ")[-1] == "x compiled"
    cells = ["ours fused", "32 x 128", "bf16", "4M", "1.024", "50.0%", "1.50 GiB", "2.0 s", "8.00", "-"]
    assert [cell.strip() for cell in lines[4].split("  ") if cell.strip()] == cells
    assert "failed" in lines[6] and "transformers compiled, 32 x 128 failed: out of memory" in lines
    entry = as_json(rows, H200)["measurements"][2]
    assert entry == {"step": "transformers compiled", "batch": 32, "length": 128, "error": "out of memory"}
    assert heading(H200 | {"device": "cpu", "cpu": "X", "cores": 2, "threads": 1})[1].startswith(
        "X, 2 cores, 1 thread, torch"
    )


def test_a_failing_measurement_is_a_row(tmp_path: Path) -> None:
    """A batch larger than the memory is one; the batch that fits is measured all the same."""
    file = tmp_path / "speed.json"
    args = (*TINY, "model.positions=1024", "--length", "1024", "--peer", "none", "--steps", "1", "--json", str(file))
    little = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))"
    done = electra(*args, "--batch", f"2,{HUGE}", sitecustomize=little)
    assert done.exit_code == 0, done.output
    assert [one.get("error") for one in json.loads(file.read_text())["measurements"]] == [None, "out of memory"]
    assert f"ours, {HUGE} x 1024 failed: out of memory" in done.stdout.splitlines()


def test_where_all_fails_so_does_the_command() -> None:
    done = electra(*TINY, "--batch", "2", "--peer", "none", sitecustomize="import os; os._exit(3)")
    assert done.exit_code == 1 and done.stderr.splitlines()[-1] == "electra: error: nothing could be measured"
    assert "ours, 2 x 64 failed: ended with code 3" in done.stdout.splitlines()


def test_rounds_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "run_job", lambda job, tick: measured_here(job))
    file = tmp_path / "found.json"
    args = ("--batch", "2", "--steps", "3", "--rounds", "2", "--peer", "eager", "--json", str(file))
    done = electra(*TINY, *args)
    assert done.exit_code == 0, done.output
    turns = [line.split(":")[0] for line in done.stderr.splitlines() if "tokens/s," in line]
    assert turns == [f"{n}/4 {kind}, 2 x 64" for n, kind in enumerate(("ours", EAGER, "ours", EAGER), 1)]
    assert "3 timed steps each, in each of 2 rounds" in done.stdout
    ours, peer = json.loads(file.read_text())["measurements"]
    for one in (ours, peer):
        assert len(one["stretches_ms"]) == 6 and one["ms_per_step"] == statistics.median(one["stretches_ms"])
        assert one["tokens_per_s"] == pytest.approx(2 * 64 / one["ms_per_step"] * 1e3)
    assert ours["times_as_fast_as"][EAGER] == pytest.approx(peer["ms_per_step"] / ours["ms_per_step"])


def test_a_process_that_dies_is_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, body, words in (
        ("killed", "import os; os.kill(os.getpid(), 9)", "ended by SIGKILL (out of memory?)"),
        ("silent", "import os; os._exit(3)", "ended with code 3"),
        ("loud", "raise SystemExit('no such luck')", "SystemExit: no such luck"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(body)
        monkeypatch.setenv("PYTHONPATH", str(folder))
        assert run_job(job()).error == words


def test_without_transformers_ours_is_measured_all_the_same() -> None:
    missing = "raise ModuleNotFoundError('no', name='transformers')"
    done = electra(*TINY, "--batch", "2", "--steps", "1", "--peer", "eager", transformers=missing)
    assert done.exit_code == 0, done.output
    wanted = f"{EAGER}, 2 x 64 failed: the package 'transformers' is missing (pip install 'electra[hf]')"
    assert wanted in done.stdout and done.stdout.count("failed: ") == 1


def counted(steps: int) -> tuple[int, list[float]]:
    calls = []
    times = timed(lambda: calls.append(1), torch.device("cpu"), steps=steps)
    return len(calls), times


@pytest.mark.parametrize(("steps", "stretches"), [(1, 1), (4, 4), (5, 5), (7, 5), (30, 5)])
def test_steps_are_split_into_stretches(steps: int, stretches: int) -> None:
    calls, times = counted(steps)
    assert calls == steps + WARM_UP - 1 and len(times) == stretches and min(times) > 0


def test_reasons_are_one_line() -> None:
    assert reason(ConfigError("model.heads", "no")) == "model.heads: no"
    assert reason(MemoryError()) == "out of memory" == reason(RuntimeError("CUDA out of memory. Tried to"))
    assert reason(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")) == "out of memory"
    assert reason(ModuleNotFoundError("x", name="triton")) == "the package 'triton' is missing (pip install triton)"
    assert reason(ValueError("\n first\nsecond")) == "ValueError: first" and reason(KeyError()) == "KeyError"
    assert len(reason(ValueError("x" * 999))) == 200


@pytest.mark.parametrize("preset", ["tiny", "small", "bert-small"])
def test_the_peer_is_the_same_network(preset: str) -> None:
    """As many trained numbers as ours, tables shared, and the loss that untrained networks have."""
    from electra.bench.peer import twin

    config = load(preset, overrides=("model.layers=2",))
    model, loss = twin(config)
    assert sum(weight.numel() for weight in model.parameters()) == cost.parameters(config).total
    batch = unpack(random_rows(config, 4))
    start = config.objective.mlm_weight * math.log(config.model.vocab_size)
    start += 0 if config.objective.name == "mlm" else config.objective.rtd_weight * math.log(2)
    assert loss(batch.ids_BL.long(), batch.segments_BL.long()).item() == pytest.approx(start, rel=0.1)


def test_both_steps_train_in_micro_batches() -> None:
    from electra.bench.peer import peer_step

    config = load("tiny", overrides=(*SMALLER, "train.batch_size=4", "train.micro_batch=2", "optim.warmup_steps=1"))
    rows = random_rows(config, 4)
    assert rows.shape == (4, 64 + 3) and rows[:, :64].max() < 512
    for step in (our_step(config, rows), peer_step(config, rows, compiled=False)):
        step()
        step()


@pytest.mark.parametrize(
    "extra",
    [
        ("generator.kind=unigram",),
        ("objective.name=all-tokens-mlm",),
        ("train.algorithm=two-stage", "train.start_from_generator=false"),
        ("masking.rare=0.5", "masking.policy=without_replacement"),
    ],
)
def test_other_trainings_are_measured_without_a_peer(extra: tuple[str, ...]) -> None:
    found = measure(job(steps=1, extra=extra))
    assert found.tokens_per_s > 0 and found.profile == ""


def test_plans_cover_the_grid() -> None:
    jobs = plan("tiny", overrides=SMALLER, batches=[2, 4], lengths=[32, 64], peers=["compiled"], steps=9, profile=True)
    assert [(one.kind, *one.shape, one.profile) for one in jobs] == [
        (kind, batch, length, kind == "ours")
        for length in (32, 64)
        for batch in (2, 4)
        for kind in ("ours", "transformers compiled")
    ]
    assert all(one.config.train.batch_size == one.batch and one.config.data.length == one.length for one in jobs)
    (default,) = plan(None, overrides=("preset=tiny", "train.device=cpu"), peers=[])
    assert (default.preset, *default.shape, default.steps) == ("tiny", 32, 64, 30) and default.config.preset == "tiny"
    assert sizes("32, 64,32", "--batch") == [32, 64] and choices("none", "--peer", ["eager", "none"]) == []


def test_kinds_of_step_on_a_gpu() -> None:
    assert gpu_kinds([], plain=False, triton=True) == ["ours fused"]
    assert gpu_kinds([], plain=True, triton=True) == gpu_kinds([], plain=False, triton=False) == ["ours plain"]
    assert gpu_kinds(["plain", "fused"], plain=False, triton=True) == ["ours plain", "ours fused"]
    with pytest.raises(ConfigError, match="need triton"):
        gpu_kinds(["fused"], plain=False, triton=False)
    with pytest.raises(ConfigError, match="train.kernels=plain"):
        gpu_kinds(["fused"], plain=True, triton=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_has_fused_and_plain_steps(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    done = electra(
        "--preset", "tiny", "--batch", "16", "--steps", "5", "--ours", "fused,plain", "--peer", "eager",
        "--json", str(file),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = json.loads(file.read_text())["measurements"]
    assert [one["step"] for one in rows] == ["ours fused", "ours plain", EAGER]
    assert {one["precision"] for one in rows} == {"bf16"} and all(one["memory_gib"] > 0 for one in rows)


@pytest.mark.parametrize(
    ("args", "fragment"),
    [
        (("--batch", "0"), "--batch: '0' is not a whole number above 0 (such as --batch 32,128)"),
        (("--batch", "32,,64"), "--batch: '' is not a whole number"),
        (("--length", "64,x"), "--length: 'x' is not a whole number"),
        (("--length", "9999"), "data.length: 9999 is longer than model.positions 128"),
        (("--length", "64", "data.length=32"), "data.length: is given twice"),
        (("--batch", "6", "train.micro_batch=4"), "train.micro_batch: 4 does not divide train.batch_size 6"),
        (("--peer", "eagre"), "did you mean 'eager'?"),
        (("--peer", "none,eager"), "--peer: 'none' stands alone (--peer none)"),
        (("--ours", "none"), "--ours: 'none' is not one of fused, plain"),
        (("--ours", "fused"), "--ours: a CPU has one kind of step"),
        (("--steps", "0"), "'--steps': 0 is not in the range"),
        (("--device", "tpu"), "'tpu' is not one of"),
        (("train.device=cpu",), "train.device: is given twice"),
        (("--plot", "speed.png"), "--plot: speed.png is not an .svg file"),
        (("--json", "."), "--json: . is a folder"),
        (("model.width=129",), "model.heads: 2 does not divide model.width 129"),
        (("objective.name=rtd-15",), "--peer: the step with transformers modules has no objective.name=rtd-15"),
        (("data.layout=packed",), "--peer: the step with transformers modules has no data.layout=packed (--peer none)"),
        (
            ("objective.name=mlm", "objective.overlap_weight=5"),
            "--peer: the step with transformers modules has no objective.overlap_weight=5.0",
        ),
        (("generator.tying=none",), "--peer: the step with transformers modules has no generator.tying=none"),
        (("--preset", "tiniest"), "preset: 'tiniest' does not exist"),
    ],
)
def test_promise_20_bad_arguments_are_one_line(
    args: tuple[str, ...], fragment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: nothing is measured, so none is started."""
    given = [] if "--preset" in args else ["--preset", "tiny"]
    given += [] if "--device" in args else ["--device", "cpu"]
    with pytest.raises(SystemExit) as stop:
        main.main(["bench", *given, *args])
    shown = capsys.readouterr()
    assert stop.value.code == 2 and shown.out == ""
    assert shown.err.startswith("electra: error: ") and fragment in shown.err and shown.err.count("\n") == 1
