"""Models of the package: built from a run, read by their names, the default of commands, refused when damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tiny_runs
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

import electra
from electra.bundled.build import build, command
from electra.bundled.sources import SOURCES
from electra.checkpoint import store
from electra.checkpoint.folder import read_facts
from electra.cli import main
from electra.demo.demo import demo
from electra.errors import CheckpointError, ConfigError
from electra.finetune.pretrained import default_model
from electra.finetune.suite import open_suite
from electra.interop import bundled
from electra.interop.bundled import NAMES, SMALL, TINY, bytes_of, folder_of, present
from electra.interop.continuation import continue_from
from electra.interop.models import load_model
from electra.interop.transfer import export_model
from electra.manifest import read_manifest
from electra.speedrun.record import FILE as RECORDS
from electra.speedrun.record import Record, Scores, TaskScore, append

TEXT = "the old house near the river"
HERE = [name for name in NAMES if name in present()]
ABSENT = sorted(set(NAMES) - set(HERE))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    tiny_runs.make_data(folder / "data")
    tiny_runs.pretrain(tiny_runs.small_config("optim.ema=0.5"), data=folder / "data", out=folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def made(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package folder with both models, built from the run."""
    place = tmp_path_factory.mktemp("package")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundled, "FOLDER", place)
        for name in NAMES:
            build(
                run,
                name,
                scores=_records(place),
                more=[("SST-2, 1,000 rows", "80.0 (79.1 to 81.2)")],
                training=[("its last steps", "at half the rate")],
            )
    return place


@pytest.fixture
def package(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bundled, "FOLDER", made)
    return made


def _records(folder: Path) -> Path:
    """A file with one record of made-up scores."""
    seeds = {"10": 50.0, "11": 52.0, "12": 54.0}
    tasks = {name: TaskScore.over(seeds, title=name.upper(), metric="accuracy") for name in ("cola", "rte")}
    scores = Scores(glue5=52.0, glue5_mean=52.0, glue5_std=2.0, tasks=tasks)
    numbers = {"minutes": 1.0, "seconds": 60.0, "steps": 12, "tokens": 1.0, "tokens_padded": 1.0, "flops_real": 1.0}
    facts = {"flops_paper": 1.0, "parameters": 1, "seed": 0, "device": "cpu", "data_sha256": "", "commit": None}
    names = {"entry": None, "preset": "tiny", "changes": (), "finetune": (), "purpose": "report"}
    record = Record(**names, **numbers, **facts, scores=scores, held_out={}, curve=[])  # type: ignore[arg-type]
    append(folder / RECORDS, record)
    return folder / RECORDS


@pytest.mark.parametrize("part", ["discriminator", "generator"])
def test_weights_are_the_run_s_rounded_to_bf16(package: Path, run: Path, part: str) -> None:
    ours, theirs = (load_model(path, part=part) for path in (Path(TINY), run))  # type: ignore[arg-type]
    assert ours.tokenizer.fingerprint == theirs.tokenizer.fingerprint and ours.length == theirs.length
    wanted = theirs.module.state_dict()
    for name, tensor in ours.module.state_dict().items():
        assert tensor.dtype == torch.float32 and torch.equal(tensor, wanted[name].bfloat16().float()), name


def test_the_shared_table_is_stored_once_and_there_is_no_optimizer(package: Path, run: Path) -> None:
    (checkpoint,) = store.steps(folder_of(TINY))
    tensors = load_file(checkpoint / "model.safetensors")
    averaged = store.read_weights(store.latest(run))  # type: ignore[arg-type]
    assert tensors.keys() == averaged.keys() and {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert sum(tensor.shape[0] == 200 and tensor.ndim == 2 for tensor in tensors.values()) == 1
    assert load_file(checkpoint / "optimizer.safetensors") == {}


@pytest.mark.parametrize("part", ["discriminator", "generator"])
def test_the_export_agrees_with_transformers(package: Path, tmp_path: Path, part: str) -> None:
    transformers = pytest.importorskip("transformers")
    export_model(Path(SMALL), tmp_path / "hf", part=part)  # type: ignore[arg-type]
    kind = transformers.ElectraForPreTraining if part == "discriminator" else transformers.ElectraForMaskedLM
    theirs, ours = kind.from_pretrained(tmp_path / "hf").eval(), load_model(Path(SMALL), part=part)  # type: ignore[arg-type]
    ids = torch.randint(5, 200, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = ours.module.logits(ids, torch.zeros_like(ids), None)
        assert (theirs(ids).logits - found).abs().max() < 1e-5
    card = (tmp_path / "hf" / "README.md").read_text()
    assert all(f"| {source.title} |" in card and source.licence in card for source in SOURCES.values())


def test_the_card_has_texts_scores_and_nothing_of_the_machine(package: Path, run: Path) -> None:
    card = (folder_of(SMALL) / "README.md").read_text()
    assert all(source.title in card and source.licence in card for source in SOURCES.values())
    assert "| GLUE-5, dev sets, fine-tuning seeds 10 to 12, by electra | 52.0 (std 2.0) |" in card
    assert "| COLA, accuracy, fine-tuning seeds 10 to 12, by electra | 52.0 (50.0 to 54.0) |" in card
    assert "| SST-2, 1,000 rows | 80.0 (79.1 to 81.2) |" in card and "AUC, held-out text" in card
    assert "| its last steps | at half the rate |" in card
    facts = read_facts(folder_of(SMALL) / "run.json")
    assert not {"argv", "data_folder", "executions"} & facts.keys() and facts["data"]["tokens"] > 0
    whole = "".join(
        path.read_text() for path in folder_of(SMALL).rglob("*") if path.suffix in (".json", ".md", ".toml")
    )
    assert str(run.parent) not in whole


def test_a_changed_byte_is_refused(package: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "FOLDER", tmp_path)
    build(run, TINY)
    config = folder_of(TINY) / "config.toml"
    config.write_text(config.read_text().replace("seed = 0", "seed = 1"))
    with pytest.raises(CheckpointError, match="config.toml: is damaged"):
        load_model(Path(TINY))
    build(run, TINY)  # in place of what is there
    (weights,) = folder_of(TINY).glob("checkpoints/*/model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match="has no whole checkpoint"):
        load_model(Path(TINY))


def test_names_that_are_none(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="of this package .did you mean 'electra:small'"):
        load_model(Path("electra:smal"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / SMALL).mkdir()  # a folder of that name does not hide the model
    assert load_model(Path(SMALL)).config.layers == 2
    monkeypatch.setattr(bundled, "FOLDER", tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="electra:small: is not in this installation"):
        load_model(Path(SMALL))
    with pytest.raises(ConfigError, match="--model: is missing, and this installation has no model of its own"):
        default_model()
    result = CliRunner().invoke(main, ["detect", TEXT])
    assert isinstance(result.exception, (SystemExit, ConfigError)) and result.exit_code != 0


def test_commands_and_functions_take_it_where_no_model_is_named(package: Path) -> None:
    run = CliRunner().invoke
    shown = json.loads(run(main, ["detect", "--json", TEXT]).output)
    assert shown == json.loads(run(main, ["detect", "--model", SMALL, "--json", TEXT]).output)
    vector = json.loads(run(main, ["encode", TEXT]).output)
    assert vector == json.loads(run(main, ["encode", "--model", SMALL, TEXT]).output)
    assert electra.detect(text=TEXT) == electra.load(SMALL).detect(TEXT)
    assert electra.encode(texts=TEXT).tolist() == electra.load().encode(TEXT).tolist()


def test_fine_tuning_takes_it_where_no_model_is_named(package: Path, tmp_path: Path) -> None:
    rows = "".join(
        f'{{"text": "{label} house {place}", "label": "{label}"}}\n' for place in range(20) for label in "ab"
    )
    (tmp_path / "rows.jsonl").write_text(rows)
    arguments = ["finetune", "classify", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(main, [*arguments, "epochs=1", "batch_size=8"])
    assert result.exit_code == 0, result.output
    assert open_suite(tmp_path / "out").results[0].model == SMALL


def test_pretraining_goes_on_from_it(package: Path, tmp_path: Path) -> None:
    data = tiny_runs.make_data(tmp_path / "data", vocab=folder_of(TINY))
    start = continue_from(
        Path(TINY), tmp_path / "out", overrides=["train.steps=6", "optim.ema=0.0", "checkpoint.keep=9"]
    )
    tiny_runs.pretrain(start.config, data=data, out=tmp_path / "out", start=start)
    written = load_file(tmp_path / "out" / "checkpoints" / "step-00000000" / "model.safetensors")
    stored = load_file(next(folder_of(TINY).glob("checkpoints/*/model.safetensors")))
    assert all(torch.equal(written[name], tensor.float()) for name, tensor in stored.items())
    assert {tensor.dtype for tensor in written.values()} == {torch.float32}
    assert store.steps(tmp_path / "out")[-1].name == "step-00000006"


def test_preparing_takes_its_vocabulary(package: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the old house\n\nnear the river\n" * 20)
    arguments = ["prepare", str(tmp_path / "text.txt"), "--vocab", TINY, "--out", str(tmp_path / "data")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert electra.prepare(tmp_path / "text.txt", out=tmp_path / "data", vocab=TINY).vocab_size == 200


def test_doctor_lists_them(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from electra.cli.doctor import _models, examine

    assert examine()["models"] == {name: bytes_of(name) for name in NAMES}
    assert _models({SMALL: 28_300_000}) == "electra:small (28.3 MB); --model takes them by name"
    assert _models({}) == "none in this installation: --model has no default"


def test_the_builder_refuses_what_cannot_be_bundled(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match="--name: electra:large"):
        build(run, "electra:large")
    monkeypatch.setitem(NAMES, TINY, 1000)
    with pytest.raises(CheckpointError, match="makes a folder of .* bytes .electra:tiny has less than 1,000"):
        build(run, TINY)
    assert not folder_of(TINY).exists()
    result = CliRunner().invoke(command, ["--run", str(run), "--name", SMALL, "--text", "sotu"])
    assert result.exit_code == 0 and "of at most 32,000,000" in result.output
    assert [source["title"] for source in read_facts(folder_of(SMALL) / "run.json")["text"]] == [SOURCES["sotu"].title]


@pytest.mark.parametrize("name", NAMES)
def test_the_package_s_own_are_whole_small_and_described(name: str) -> None:
    if name not in present():
        pytest.skip(f"{name} is not in this tree yet")
    assert bytes_of(name) < NAMES[name]
    sums = read_manifest(folder_of(name))
    assert sums is not None
    sums.verify()
    card = (folder_of(name) / "README.md").read_text()
    assert all(f"## {title}" in card for title in ("Data", "Compute", "Scores", "Limits", "Use"))
    assert "CC BY-SA" in card and "minutes on" in card


ORDINARY = (
    "He was born in a small town in the north of the country and went to school there for two years.",
    "The river runs through the middle of the city and flows into the sea near the old harbour.",
    "In the war many soldiers were killed and the king had to leave his palace and flee to the mountains.",
    "She wrote several books about the history of science and taught at the university until her death.",
)


@pytest.mark.parametrize("name", NAMES)
def test_the_package_s_own_suspect_words_out_of_order(name: str) -> None:
    if name not in present():
        pytest.skip(f"{name} is not in this tree yet")
    model = electra.load(name)

    def suspicion(text: str) -> float:
        return sum(token.probability for token in model.detect(text).tokens)

    for text in ORDINARY:
        words = text.split()
        for place in range(2, len(words) - 2, 5):  # every fifth word changes places with the next one
            words[place : place + 2] = reversed(words[place : place + 2])
        assert suspicion(" ".join(words)) > 1.5 * suspicion(text), text


def test_the_package_s_small_one_finds_the_word_that_was_replaced() -> None:
    if SMALL not in present():
        pytest.skip(f"{SMALL} is not in this tree yet")
    model = electra.load(SMALL)
    for text, right, wrong in zip(
        ORDINARY, ("town", "sea", "king", "books"), ("spoon", "book", "window", "rivers"), strict=True
    ):
        tokens = model.detect(text.replace(right, wrong)).tokens
        assert max(tokens, key=lambda token: token.probability).token == wrong
        assert all(token.probability < 0.5 for token in model.detect(text).tokens)


def test_runs_that_cannot_be_built_from(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "FOLDER", tmp_path / "package")
    shutil.copytree(run, tmp_path / "empty", ignore=shutil.ignore_patterns("step-*"))
    with pytest.raises(CheckpointError, match="has no checkpoint yet .train it first"):
        build(tmp_path / "empty", TINY)
    plain = tmp_path / "data"
    tiny_runs.make_data(plain)
    mlm = tiny_runs.pretrain(tiny_runs.small_config("objective.name=mlm"), data=plain, out=tmp_path / "mlm")
    with pytest.raises(CheckpointError, match="was trained for mlm"):
        build(mlm, TINY)
    last = tiny_runs.pretrain(tiny_runs.small_config(), data=plain, out=tmp_path / "rtd")
    for name in ("optimizer.safetensors", "manifest.json"):
        (store.steps(last)[-1] / name).unlink()
    with pytest.raises(CheckpointError, match="has no manifest .copy it again"):
        build(last, TINY)
    assert not (tmp_path / "package").exists()


def test_the_demo_says_that_its_model_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "FOLDER", tmp_path / "nothing")
    with pytest.raises(ConfigError, match="electra:tiny is not in this installation .electra demo --from-zero"):
        demo(tmp_path / "demo")
