"""Readers with limits, foreign model folders, options at their ends, and text that would steer a terminal."""

from __future__ import annotations

import ast
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from model_folders import make_run
from safetensors.torch import load_file, save_file
from test_json_door import seconds
from tiny_runs import make_data, small_config

from electra import hardware
from electra.cli import main
from electra.cli.lines import MAX_LINE_BYTES, waiting_lines
from electra.config.finetune import FinetuneConfig
from electra.config.load import adjust, load
from electra.errors import CheckpointError, ConfigError, DataError, ElectraError
from electra.interop.models import load_model, read_source
from electra.interop.transfer import export_model
from electra.pretrain import pretrain
from electra.progress import say
from electra.soak.formats import Format
from electra.soak.inputs import OUTCOMES, _one, run_inputs
from electra.soak.report import Report
from electra.tasks import files, squad_files
from electra.tasks.squad_files import read_squad
from electra.tasks.tables import read_table
from electra.terminal import json_text, visible
from electra.tokenizer.codec import read_vocab

ROOT = Path(__file__).parents[1]
STEERING = "\x1b]0;owned\x07 \x1b[2J \x9b31m \x08\x7f\r"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120)


# --- readers with limits


def test_promise_18_a_packed_table_cannot_fill_the_memory(tmp_path: Path) -> None:
    """1 MB of .csv.gz that unpacks to gigabytes; it took 6.3 GB to refuse none of it."""
    member = gzip.compress(b"text,label\n" + b"a,b\n" * (1 << 22))
    (tmp_path / "bomb.csv.gz").write_bytes(member * 64)
    program = (
        "import sys; from pathlib import Path; from electra.errors import DataError\n"
        "from electra.hardware import peak_resident_bytes; from electra.tasks.tables import read_table\n"
        "try: read_table(Path(sys.argv[1]), text='text', label='label')\n"
        "except DataError as error: print(error, peak_resident_bytes() >> 20, sep='\\n')\n"
    )
    done = run("-c", program, str(tmp_path / "bomb.csv.gz"))
    said, peak = done.stdout.splitlines()
    assert said.startswith(
        f"{tmp_path / 'bomb.csv.gz'}: holds more than 512 MiB, or 10,000,000 lines, once it is unpacked"
    )
    assert int(peak) < 600


def test_promise_18_a_file_of_one_long_field_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "long.tsv.gz").write_bytes(gzip.compress(b"text\n" + b"x" * (9 << 20)))
    monkeypatch.setattr(files, "MAX_BYTES", 8 << 20)
    with pytest.raises(DataError, match=r"long.tsv.gz: holds more than 8 MiB.* \(give a part of it\)"):
        read_table(tmp_path / "long.tsv.gz", text="text")


def test_promise_18_a_squad_file_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.json").write_text(json.dumps({"data": [], "x": "x" * 2000}))
    monkeypatch.setattr(squad_files, "MAX_BYTES", 1 << 10)
    with pytest.raises(DataError, match="train.json: cannot be read: is larger than 1024 bytes"):
        read_squad(tmp_path / "train.json")


class Endless(io.RawIOBase):
    """Bytes without a line's end, counted."""

    given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        buffer[:] = b"x" * len(buffer)
        self.given += len(buffer)
        assert self.given < 64 << 20, "it reads on and on"
        return len(buffer)


def test_promise_18_a_line_without_end_on_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Endless()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(endless)))
    with pytest.raises(DataError, match=r"standard input: line 1 is longer than 1 MiB \(break it into lines"):
        list(waiting_lines())
    assert endless.given < 4 * MAX_LINE_BYTES
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\r\ntwo")))
    assert [line for lines in waiting_lines() for line in lines] == ["one", "two"]


@pytest.mark.parametrize(
    "read",
    [
        lambda path: load(file=path),
        lambda path: adjust(FinetuneConfig(), file=path),
        read_vocab,
        read_squad,
        lambda path: read_table(path.rename(path.with_suffix(".csv")), text="text"),
    ],
    ids=["--config", "--config of finetune", "--vocab", "SQuAD", "a table"],
)
def test_promise_18_a_fifo_is_refused_where_a_file_is_needed(read: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with seconds(5), pytest.raises(ElectraError, match="is not a regular file"):
        read(tmp_path / "fifo")


def test_promise_18_settings_and_vocabularies_have_limits(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 40)
    with seconds(10), pytest.raises(ConfigError, match="large: is larger than 256 KiB"):
        load(file=tmp_path / "large")
    with seconds(10), pytest.raises(DataError, match="large: cannot be read: is larger than 64 MiB"):
        read_vocab(tmp_path / "large")
    (tmp_path / "deep.toml").write_text(".".join(["a"] * 100_000) + " = 1\n")
    with seconds(20), pytest.raises(ConfigError, match="is not valid TOML: line 1 has more than 200 dots"):
        load(file=tmp_path / "deep.toml")


# --- foreign model folders


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_run(folder / "run")
    export_model(folder / "run", folder / "exported")
    (folder / "exported" / "manifest.json").unlink()  # others' folders have none
    return folder / "exported"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_hidden_layers": 10**12}, "model.layers: 1000000000000 is too large"),
        ({"hidden_size": 10**12, "num_attention_heads": 1}, "model.width: 1000000000000 is too large"),
        ({"intermediate_size": 2**62}, "model.ffn: 4611686018427387904 is too large"),
        ({"vocab_size": 2**40}, "model.vocab_size: 1099511627776 is too large"),
        ({"max_position_embeddings": 2**40}, "model.positions: 1099511627776 is too large"),
        ({"embedding_size": 2**40}, "model.embedding: 1099511627776 is too large"),
        (
            {"num_hidden_layers": 1024, "hidden_size": 65536, "intermediate_size": 1 << 18},
            "parameters, .* this machine",
        ),
        ({"hidden_dropout_prob": 7}, "model.dropout: 7.0 is not a share"),
        ({"hidden_dropout_prob": 1}, "model.dropout: 1.0 is not a share"),
        ({"attention_probs_dropout_prob": 1e30}, r"model.attention_dropout: 1e\+30 is not a share"),
        ({"initializer_range": 0}, "model.init_std: 0.0 is too small"),
    ],
)
def test_promise_18_a_foreign_configuration_is_counted_before_it_is_built(
    change: dict[str, Any], reason: str, exported: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(exported, tmp_path / "model")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | change))
    with seconds(10), pytest.raises(CheckpointError, match=f"config.json: .*{reason}"):
        load_model(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_promise_18_weights_that_are_no_numbers_are_refused(value: float, exported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    name = "electra.encoder.layer.1.output.dense.weight"
    tensors[name][3, 5] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="encoder.layers.1.down.weight holds NaN or infinity"):
        load_model(folder)


def test_promise_18_tensors_without_a_place_are_not_read(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(exported, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors") | {"classifier.huge": torch.zeros(1 << 20)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    needed = sum(tensor.numel() for name, tensor in tensors.items() if "huge" not in name) * 4
    monkeypatch.setattr(hardware, "memory_bytes", lambda: needed)
    assert read_source(folder).weights.unused == ("classifier.huge",)
    monkeypatch.setattr(hardware, "memory_bytes", lambda: needed // 2)
    with pytest.raises(CheckpointError, match="parameters, .* this machine has"):
        load_model(folder)


# --- options at their ends


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("optim.lr=1e308", "optim.lr: 1e+308 is too large"),
        ("optim.eps=1e39", "optim.eps: 1e+39 is too large"),
        ("objective.rtd_weight=1e300", "objective.rtd_weight: 1e+300 is too large"),
        (f"model.ffn={10**12}", "model.ffn: 1000000000000 is too large"),
        (f"model.layers={2**62}", "model.layers: 4611686018427387904 is too large"),
        (f"train.batch_size={2**63 - 1}", "train.batch_size: 9223372036854775807 is too large"),
        (f"train.micro_batch={2**63 - 1}", "train.micro_batch: 9223372036854775807 is too large"),
        (f"train.steps={2**63 - 1}", "train.steps: 9223372036854775807 is too large"),
        (f"evaluate.sequences={2**63 - 1}", "evaluate.sequences: 9223372036854775807 is too large"),
        (f"data.length={2**40}", "data.length: 1099511627776 is too large (at most 65536)"),
    ],
)
def test_promise_20_an_option_beyond_all_use_is_named(override: str, reason: str) -> None:
    with seconds(5), pytest.raises(ConfigError) as caught:
        load("tiny", overrides=[override])
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize("override", ["lr=1e308", f"batch_size={2**62}", f"length={2**62}", "epochs=1e300"])
def test_promise_20_an_option_of_fine_tuning_beyond_all_use_is_named(override: str) -> None:
    with pytest.raises(ConfigError, match=f"^{override.partition('=')[0]}: .* is too large"):
        adjust(FinetuneConfig(), overrides=[override])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("prepared") / "data")


def test_promise_20_a_model_beyond_the_memory_is_counted_first(data: Path, tmp_path: Path) -> None:
    sizes = ("model.layers=1000", "model.width=65536", "model.heads=1024", "model.ffn=262144", "generator.width=0.25")
    with (
        seconds(20),
        pytest.raises(ConfigError, match="^model: .* parameters take .* GiB to train, and the device has"),
    ):
        pretrain(small_config(*sizes), data=data, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("objective", ["rtd", "rtd-15", "replace-mlm", "all-tokens-mlm", "mlm"])
def test_every_token_may_be_masked(objective: str, data: Path, tmp_path: Path) -> None:
    """masking.rate=1 with the start at the base rate divided by zero."""
    overrides = ("masking.rate=1", f"objective.name={objective}", "train.steps=2", "optim.warmup_steps=1")
    config = small_config(*overrides, "objective.base_rate_start=true")
    assert (pretrain(config, data=data, out=tmp_path / "run") / "checkpoints" / "step-00000002").is_dir()


@pytest.mark.parametrize(
    "options",
    [
        ["--vocab-size", str(10**30)],
        ["--vocab-size", "-5"],
        ["--min-chars", str(10**30)],
        ["--workers", str(10**30)],
        ["--worker", f"1/{10**30}"],
        ["--worker", "1/" + "9" * 5000],
    ],
)
def test_promise_20_an_option_of_prepare_beyond_all_use_is_named(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Some text.\n\nAnd more of it.\n")
    result = CliRunner().invoke(main, ["prepare", str(tmp_path / "a.txt"), "--out", str(tmp_path / "data"), *options])
    assert result.exit_code == 2 and result.stderr.startswith(f"electra: error: {options[0]}: ")
    assert len(result.stderr.splitlines()) == 1


def test_promise_20_a_file_name_that_is_not_utf_8(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "texts")
    os.mkdir(folder)
    with open(folder + b"/caf\xe9.txt", "w") as file:
        file.write("Some text.\n\nAnd more of it.\n")
    for source in (folder, folder + b"/caf\xe9.txt"):
        command = ["-m", "electra", "prepare", os.fsdecode(source), "--out", str(tmp_path / "data")]
        done = run(*command)
        assert done.returncode == 4 and len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.endswith("its name is not UTF-8 (rename it)\n")
    done = run("-m", "electra", "detect", "--model", os.fsdecode(folder + b"/caf\xe9.txt"), "text")
    assert done.returncode == 5 and len(done.stderr.splitlines()) == 1, done.stderr


# --- text that would steer a terminal


def steers(text: str) -> bool:
    return any(ord(char) < 32 and char not in "\t\n" or 127 <= ord(char) < 160 for char in text)


def test_promise_18_control_characters_become_visible() -> None:
    assert visible(STEERING) == r"\x1b]0;owned\x07 \x1b[2J \x9b31m \x08\x7f\x0d"
    assert visible("a\tb\nc déjà 北京 \N{GRINNING FACE}") == "a\tb\nc déjà 北京 \N{GRINNING FACE}"
    assert visible("half \ud800") == r"half \ud800"
    value = {STEERING: [STEERING, "half \ud800"]}
    assert not steers(json_text(value)) and json_text(value).encode() and json.loads(json_text(value)) == value


def test_promise_18_no_message_steers_the_terminal(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    say(f"a sample: {STEERING}")
    assert not steers(capfd.readouterr().err)
    (tmp_path / "rows.csv").write_text(f"text,{STEERING[:-1]}\na,b\n")
    with pytest.raises(SystemExit):
        main(["score", "--model", str(tmp_path), "--input", str(tmp_path / "rows.csv"), "--text", "absent"])
    said = capfd.readouterr().err
    assert r"\x1b[2J" in said and not steers(said) and len(said.splitlines()) == 1


def test_promise_18_nothing_prints_past_the_filter() -> None:
    """Every line goes through `visible`: by `say`, by `echo`, or by one of the few that call it themselves."""
    found = {}
    for path in sorted((ROOT / "src" / "electra").rglob("*.py")):
        room = path.relative_to(ROOT / "src" / "electra").parts[0]
        if room in ("bench", "soak"):  # they print figures of their own
            continue
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "click.echo", "sys.stdout.write"):
                found[path.name] = found.get(path.name, True) and "visible(" in source
    assert found == {"__init__.py": True, "lines.py": True, "progress.py": True, "results_table.py": True}


# --- the campaign


def test_promise_18_damaged_inputs_of_every_format_are_read_or_refused() -> None:
    """The short form of `python -m electra.soak inputs --count 10000`."""
    report = run_inputs(200, seed=25)
    assert report.failures == [] and report.total.total() == 200
    assert report.total["read"] > 20 and report.total["refused"] > 60


def test_the_campaign_sees_a_traceback_and_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.json"
    path.write_text('{"a": 1}')
    monkeypatch.setattr("electra.soak.inputs.HANG_S", 1)

    def hang() -> None:
        while True:
            pass

    def two_lines() -> None:
        raise DataError("f", "one\ntwo")

    report = Report(outcomes=OUTCOMES, bad=OUTCOMES[2:])
    for number, read in enumerate((lambda: {}["x"], hang, two_lines, lambda: None)):
        _one(number, [Format("f", path, read)], {path: path.read_bytes()}, report, seed=0)
    assert report.total == {"traceback": 2, "hang": 1, "read": 1} and len(report.failures) == 3
    assert "KeyError: 'x'" in report.failures[0] and path.read_text() == '{"a": 1}'
