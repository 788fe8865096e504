"""Model folders: every kind loads, export and import keep every byte, and what cannot be used is named."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from model_folders import MLM, RTD, SIZE, VOCAB, make_run
from relisted import relist

from electra.batches.order import Cursor
from electra.checkpoint.store import checkpoint_path, latest
from electra.checkpoint.store import load as load_checkpoint
from electra.checkpoint.store import save as save_checkpoint
from electra.checkpoint.tensors import read_tensors
from electra.cli.export import command as export_command
from electra.cli.import_ import command as import_command
from electra.config.load import load
from electra.config.schema import GeneratorConfig
from electra.errors import CheckpointError, ConfigError, DataError, ElectraError
from electra.interop.card import model_card
from electra.interop.huggingface import write_weights
from electra.interop.models import load_model, read_source
from electra.interop.transfer import export_model, import_model
from electra.model.heads import DetectionHead, MaskedHead
from electra.tokenizer.codec import Tokenizer
from electra.train.loop import Position

transformers = pytest.importorskip("transformers")
TEXT = "The dog sat on the mat, and we saw money."


def call(command: Any, *args: object) -> Result:
    return CliRunner().invoke(command, [str(arg) for arg in args])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    make_run(tmp_path / "run")
    return tmp_path / "run"


def test_every_kind_of_folder_loads_the_same_model(run: Path, tmp_path: Path) -> None:
    export_model(run, tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "imported")
    ids = torch.arange(5, 25)[None]
    shown = []
    for path in (run, checkpoint_path(run, 70), tmp_path / "hf", tmp_path / "imported"):
        loaded = load_model(path)
        assert isinstance(loaded.head, DetectionHead) and not loaded.module.training
        assert (loaded.config, loaded.length) == (SIZE, 24)
        assert loaded.config.width == 64 and loaded.tokenizer.vocab == tuple(VOCAB)
        assert {p.dtype for p in loaded.module.parameters()} == {torch.float32}
        shown.append(loaded.probabilities(ids))
    assert all(torch.equal(shown[0], other) for other in shown)
    assert shown[0].shape == (1, 20) and shown[0].min() > 0 and shown[0].max() < 1


def test_padding_does_not_change_probabilities(run: Path) -> None:
    loaded = load_model(run)
    ids = torch.randint(5, 60, (2, 20), generator=torch.Generator().manual_seed(1))
    padded = loaded.probabilities(ids, torch.tensor([20, 12]))
    assert torch.allclose(padded[1:, :12], loaded.probabilities(ids[1:, :12]), atol=1e-6)


def test_generator_and_mlm_runs(run: Path, tmp_path: Path) -> None:
    small = load_model(run, part="generator")
    assert isinstance(small.head, MaskedHead) and small.config.width == 32 and small.config.ffn == 128
    with pytest.raises(CheckpointError, match="masked language model: no replaced-token head"):
        small.probabilities(torch.tensor([[5]]))
    make_run(tmp_path / "bert", MLM)
    for part in ("discriminator", "generator"):
        only = load_model(tmp_path / "bert", part=part)  # type: ignore[arg-type]
        assert isinstance(only.head, MaskedHead) and only.config == SIZE


@pytest.mark.parametrize(("config", "part"), [(RTD, "discriminator"), (RTD, "generator"), (MLM, "discriminator")])
def test_promise_15_exported_folder_in_transformers(config: Any, part: Any, tmp_path: Path) -> None:
    make_run(tmp_path / "run", config)
    done = call(export_command, tmp_path / "run", "--out", tmp_path / "hf", "--part", part)
    assert done.exit_code == 0, done.output
    files = {path.name for path in (tmp_path / "hf").iterdir()}
    assert files == {
        "config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "README.md",
        "manifest.json",
    }  # fmt: skip
    loaded = load_model(tmp_path / "run", part=part)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    batch = tokenizer([TEXT, "A cat!"], padding=True, return_tensors="pt")
    assert batch["input_ids"][0].tolist() == [
        loaded.tokenizer.cls_id, *loaded.tokenizer.encode(TEXT), loaded.tokenizer.sep_id
    ]  # fmt: skip
    assert tokenizer.model_max_length == 24, "the length of pre-training: the other positions are untrained"
    kind = "ElectraForPreTraining" if isinstance(loaded.head, DetectionHead) else "ElectraForMaskedLM"
    assert kind in done.output
    theirs, info = getattr(transformers, kind).from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    lengths = batch["attention_mask"].sum(1)
    with torch.inference_mode():
        reference = theirs.eval()(**batch).logits
        ours = loaded.module.logits(batch["input_ids"], batch["token_type_ids"], lengths)
    visible = batch["attention_mask"].bool()
    assert (ours - reference)[visible].abs().max() < 1e-5


def test_promise_15_a_pipeline_fills_masks_as_the_generator_does(run: Path, tmp_path: Path) -> None:
    export_model(run, tmp_path / "hf", part="generator")
    fill = transformers.pipeline("fill-mask", str(tmp_path / "hf"), device="cpu", top_k=5)
    loaded = load_model(run, part="generator")
    one = loaded.tokenizer
    ids = torch.tensor([[one.cls_id, *one.encode("the dog"), one.mask_id, *one.encode("on the mat"), one.sep_id]])
    place = ids[0].tolist().index(one.mask_id)
    with torch.inference_mode():
        shares = loaded.module.logits(ids, torch.zeros_like(ids), None)[0, place].softmax(0)
    best = shares.topk(5)
    found = fill("the dog [MASK] on the mat")
    assert [one["token"] for one in found] == best.indices.tolist()
    assert [one["score"] for one in found] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_promise_15_automodel_gives_the_same_hidden_states(run: Path, tmp_path: Path) -> None:
    export_model(run, tmp_path / "hf")
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "hf").eval()
    ids = torch.arange(5, 25)[None]
    with torch.inference_mode():
        wanted = theirs(ids).last_hidden_state
        assert (load_model(run).module(ids, torch.zeros_like(ids), None) - wanted).abs().max() < 1e-4


def test_promise_15_a_classifier_starts_from_an_export(run: Path, tmp_path: Path) -> None:
    export_model(run, tmp_path / "hf")
    classifier, info = transformers.ElectraForSequenceClassification.from_pretrained(
        tmp_path / "hf", output_loading_info=True
    )
    assert {name.split(".")[0] for name in info["missing_keys"]} == {"classifier"}
    assert {name.split(".")[0] for name in info["unexpected_keys"]} == {"discriminator_predictions"}
    classifier.save_pretrained(tmp_path / "classifier")
    Tokenizer(VOCAB).save(tmp_path / "classifier")
    weights = read_source(tmp_path / "classifier").weights
    assert weights.head is None and len(weights.unused) == 4
    done = call(import_command, tmp_path / "classifier", "--out", tmp_path / "back")
    assert done.exit_code == 0
    assert "missing: no replaced-token head" in done.output and "missing: no generator" in done.output
    assert "left out: classifier.dense.bias" in done.output
    tensors = read_tensors(checkpoint_path(tmp_path / "back", 0) / "model.safetensors")
    assert not any(name.startswith(("generator", "discriminator_head")) for name in tensors), "nothing random"
    encoder = load_model(tmp_path / "back")
    assert encoder.head is None
    with pytest.raises(CheckpointError, match="encoder only: no replaced-token head"):
        encoder.probabilities(torch.tensor([[5]]))


def test_promise_15_a_run_out_and_in_is_bitwise(run: Path, tmp_path: Path) -> None:
    export_model(run, tmp_path / "d")
    export_model(run, tmp_path / "g", part="generator")
    done = call(import_command, tmp_path / "d", "--out", tmp_path / "back", "--generator", tmp_path / "g")
    assert done.exit_code == 0 and "missing" not in done.output, done.output
    newest = latest(tmp_path / "back")
    assert newest is not None and newest.name == "step-00000000"
    before = read_tensors(checkpoint_path(run, 70) / "model.safetensors")
    after = read_tensors(newest / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(before[name].numpy().tobytes() == after[name].numpy().tobytes() for name in before)
    config = load(file=tmp_path / "back" / "config.toml")
    assert (config.model, config.generator, config.data.length) == (SIZE, GeneratorConfig(width=0.5), 24)
    _, state = load_checkpoint(newest)
    start = Position(**(state | {"cursor": Cursor(**state["cursor"])}))
    assert start == Position(total_steps=config.train.steps), "what pre-training starts from"
    moments = read_tensors(newest / "optimizer.safetensors")
    assert len(moments) == 2 * len(before) and not any(tensor.any() for tensor in moments.values())


def test_import_of_a_masked_language_model_is_an_mlm_run(tmp_path: Path) -> None:
    make_run(tmp_path / "run", MLM)
    export_model(tmp_path / "run", tmp_path / "hf")
    done = import_model(tmp_path / "hf", tmp_path / "back")
    assert done.config.objective.name == "mlm" and done.missing == ()
    before = read_tensors(checkpoint_path(tmp_path / "run", 70) / "model.safetensors")
    after = read_tensors(checkpoint_path(tmp_path / "back", 0) / "model.safetensors")
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("config", "part", "title"),
    [
        (RTD, "discriminator", "ELECTRA discriminator"),
        (RTD, "generator", "ELECTRA generator"),
        (MLM, "generator", "BERT"),
    ],
)
def test_card_names_the_network(config: Any, part: Any, title: str, tmp_path: Path) -> None:
    make_run(tmp_path / "run", config)
    assert f"# {title}\n" in str(model_card(read_source(tmp_path / "run", part=part)))


def test_card_states_the_cost(run: Path, tmp_path: Path) -> None:
    export_model(run, tmp_path / "hf")
    card = (tmp_path / "hf" / "README.md").read_text()
    tokens = 70 * RTD.train.batch_size * 24
    assert f"70 steps, {tokens:,} tokens" in card and "training FLOPs" in card
    count = sum(t.numel() for t in read_tensors(tmp_path / "hf" / "model.safetensors").values())
    assert f"| parameters | {count:,} |" in card
    export_model(tmp_path / "hf", tmp_path / "again")
    assert "training FLOPs" not in (tmp_path / "again" / "README.md").read_text()
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "hf" / "model.safetensors"
    ).read_bytes()


def test_card_states_data_machine_scores_and_limits(run: Path) -> None:
    facts = {
        "cpu": "A CPU",
        "gpus": [{"name": "A GPU"}, {"name": "A GPU"}],
        "data_sha256": "ab12",
        "data": {"documents": 1234, "sentences": 5678, "tokens": 91011, "held_out_tokens": 99},
    }
    (run / "run.json").write_text(json.dumps(facts))
    lines = [
        {"kind": "eval", "step": 40, "eval/rtd_auc": 0.6, "eval/mlm_accuracy": 0.2},
        {"kind": "eval", "step": 70, "eval/rtd_auc": 0.8765, "eval/mlm_accuracy": 0.31, "eval/rtd_loss": None},
        {"kind": "eval", "step": 90, "eval/rtd_auc": 0.9, "eval/mlm_accuracy": 0.4},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    card = str(model_card(read_source(run)))
    for row in ("| documents | 1,234 |", "| tokens | 91,011 |", "| trained on | 2 x A GPU |", "| 0.8765 |"):
        assert row in card, row
    assert "Positions beyond 24 tokens were never trained" in card and "0.31" not in card and "0.9000" not in card
    generator = str(model_card(read_source(run, part="generator")))
    assert "| 0.3100 |" in generator and "0.8765" not in generator
    (run / "run.json").write_text('{"gpus": 3, "data": [], "cpu": null, "data_sha256": 7}')
    (run / "metrics.jsonl").unlink()
    assert "## Data" not in str(model_card(read_source(run))) and "## Limits" in str(model_card(read_source(run)))


def test_a_damaged_checkpoint_is_passed_over_or_refused(run: Path) -> None:
    make_run(run, step=80, seed=9)
    weights = checkpoint_path(run, 80) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    older = load_model(checkpoint_path(run, 70)).module.state_dict()
    assert all(torch.equal(tensor, older[name]) for name, tensor in load_model(run).module.state_dict().items())
    with pytest.raises(CheckpointError, match="damaged"):
        load_model(checkpoint_path(run, 80))


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    if (folder / "manifest.json").exists():
        relist(folder)


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    from safetensors.torch import save_file

    tensors = read_tensors(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    if (folder / "manifest.json").exists():
        relist(folder)


def only_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    call_made = folder / "ran"
    (folder / "pytorch_model.bin").write_bytes(f"cos\nmkdir\n(V{call_made}\ntR.".encode())  # unpickled: os.mkdir(...)


def only_index(content: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(content)

    return damage


WORD = "electra.embeddings.word_embeddings.weight"
QUERY = "electra.encoder.layer.1.attention.self.query.bias"
DAMAGES: list[tuple[Callable[[Path], Any], str]] = [
    (lambda f: shutil.rmtree(f), "no such folder .*run folder"),
    (lambda f: (f / "config.json").unlink(), "neither config.toml nor config.json"),
    (lambda f: (f / "config.json").write_text("{"), "config.json: cannot be read as JSON"),
    (lambda f: (f / "config.json").write_text("[]"), "is not a JSON object"),
    (lambda f: change_config(f, model_type="bert"), "model_type is 'bert'"),
    (lambda f: change_config(f, model_type=["electra"]), r"model_type is .\['electra'\]"),
    (lambda f: change_config(f, hidden_act="relu"), "hidden_act is 'relu', and only 'gelu'"),
    (lambda f: change_config(f, layer_norm_eps=1e-5), "layer_norm_eps is 1e-05"),
    (lambda f: change_config(f, hidden_size="64"), "hidden_size is '64', which is not a number"),
    (lambda f: change_config(f, num_hidden_layers=0), "num_hidden_layers is 0, which is too small"),
    (lambda f: change_config(f, num_attention_heads=3), "num_attention_heads 3 does not divide hidden_size 64"),
    (lambda f: change_config(f, num_hidden_layers=3), "lacks 16 tensors, the first is electra.encoder.layer.2"),
    (lambda f: change_config(f, intermediate_size=64), r"up.weight is \(128, 64\), but .* \(64, 64\)"),
    (lambda f: rewrite(f, lambda t: t.pop(QUERY)), f"lacks 1 tensors, the first is {QUERY}"),
    (lambda f: rewrite(f, lambda t: t.update({WORD: t[WORD].int()})), "holds torch.int32"),
    (lambda f: (f / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{"), "model.safetensors: cannot be read"),
    (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors"),
    (only_pickle, "pytorch_model.bin is a pickle.*save_pretrained"),
    (only_index("{}"), "has no weight_map"),
    (only_index('{"weight_map": {"a": "../b.safetensors"}}'), "not a safetensors file of this folder"),
    (only_index('{"weight_map": {"a": "weights.bin"}}'), "not a safetensors file of this folder"),
    (lambda f: [(f / n).unlink() for n in ("vocab.txt", "tokenizer.json")], "has no tokenizer"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_promise_20_what_cannot_be_loaded_is_named(
    damage: Callable[[Path], Any], message: str, run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "hf"
    export_model(run, folder)
    (folder / "manifest.json").unlink()  # as a folder from elsewhere
    damage(folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(folder)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"])
def test_promise_09_a_damaged_export_is_refused(name: str, run: Path, tmp_path: Path) -> None:
    export_model(run, tmp_path / "hf")
    path = tmp_path / "hf" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name}: is damaged: .*\(export it again, or remove manifest.json"):
        load_model(tmp_path / "hf")
    (tmp_path / "hf" / "README.md").write_text("My own words.")  # nothing reads it


@pytest.mark.parametrize("foreign", ["{", '{"name": "theirs"}', '{"format": "web", "files": 3}', "[]"])
def test_a_manifest_of_somebody_else_says_nothing(foreign: str, run: Path, tmp_path: Path) -> None:
    export_model(run, tmp_path / "hf")
    (tmp_path / "hf" / "manifest.json").write_text(foreign)
    assert load_model(tmp_path / "hf").tokenizer.vocab_size == len(VOCAB)


@pytest.mark.parametrize("name", ["config.toml", "tokenizer/vocab.txt", "tokenizer/tokenizer_config.json"])
def test_promise_09_a_run_whose_files_are_damaged_is_refused(name: str, run: Path) -> None:
    path = run / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name}: is damaged"):
        load_model(run)


def test_a_vocabulary_that_does_not_match_is_refused(run: Path, tmp_path: Path) -> None:
    export_model(run, tmp_path / "hf")
    Tokenizer(VOCAB[:-1]).save(tmp_path / "hf")
    relist(tmp_path / "hf")
    with pytest.raises(DataError, match=f"has {len(VOCAB) - 1} entries, but its token table {len(VOCAB)}"):
        load_model(tmp_path / "hf")


def test_an_output_table_of_its_own_is_refused(run: Path, tmp_path: Path) -> None:
    export_model(run, tmp_path / "g", part="generator")
    rewrite(tmp_path / "g", lambda t: t.update({"generator_lm_head.weight": t[WORD] + 1}))
    with pytest.raises(CheckpointError, match="generator_lm_head.weight differs from the token table"):
        load_model(tmp_path / "g")


def test_a_checkpoint_without_a_tensor_is_refused(run: Path) -> None:
    tensors = read_tensors(checkpoint_path(run, 70) / "model.safetensors")
    del tensors["discriminator.layers.0.up.bias"]
    groups = {"model": tensors, "average": {}, "square": {}}
    save_checkpoint(run, step=90, tensors=groups, state={}, keep=9)
    with pytest.raises(CheckpointError, match="step-00000090: lacks 1 tensors, the first is encoder.layers.0.up.bias"):
        load_model(run)


def test_weights_that_cannot_be_written(run: Path, tmp_path: Path) -> None:
    source = read_source(run)
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="model.safetensors: could not be written"):
        write_weights(tmp_path, source.weights, pad_id=0)


def test_promise_17_a_pickle_is_never_opened(run: Path, tmp_path: Path) -> None:
    export_model(run, tmp_path / "hf")
    (tmp_path / "hf" / "manifest.json").unlink()
    only_pickle(tmp_path / "hf")
    done = call(import_command, tmp_path / "hf", "--out", tmp_path / "back")
    assert isinstance(done.exception, CheckpointError) and "pytorch_model.bin is a pickle" in str(done.exception)
    assert not (tmp_path / "back").exists() and not (tmp_path / "hf" / "ran").exists()


def other_generator(tmp_path: Path, **changes: Any) -> Path:
    """A generator folder that was not trained with the run's discriminator, or has another size."""
    make_run(tmp_path / "other", replace(RTD, **changes.pop("config", {})), **changes)
    export_model(tmp_path / "other", tmp_path / "g", part="generator")
    return tmp_path / "g"


def test_import_refuses_halves_that_do_not_fit(run: Path, tmp_path: Path) -> None:
    export_model(run, tmp_path / "d")
    cases: list[tuple[Path, str]] = [
        (tmp_path / "d", "is not a generator"),
        (other_generator(tmp_path, seed=11), "embeddings.token.weight differs .* not trained together"),
        (run, "has no config.json"),
        (tmp_path / "nothing", "no such folder"),
    ]
    for generator, message in cases:
        with pytest.raises(CheckpointError, match=message):
            import_model(tmp_path / "d", tmp_path / "back", generator=generator)
    with pytest.raises(CheckpointError, match="is a masked language model"):
        import_model(tmp_path / "g", tmp_path / "back", generator=tmp_path / "g")
    export_model(run, tmp_path / "own", part="generator")
    change_config(tmp_path / "own", num_attention_heads=4)
    with pytest.raises(
        CheckpointError, match="has 4 heads and inner size 128, but a generator of width 32 has 1 and 128"
    ):
        import_model(tmp_path / "d", tmp_path / "back", generator=tmp_path / "own")
    assert not (tmp_path / "back").exists() and not list(tmp_path.glob(".tmp-*"))


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        (("RUN", "--out", "FULL"), ConfigError, "--out: .* is not an empty folder"),
        (("RUN", "--out", "NEW", "--int8"), ConfigError, "--int8: a hf folder has no 8-bit form"),
        (("nowhere/at/all", "--out", "NEW"), CheckpointError, "no such folder"),
        (("FULL", "--out", "NEW"), CheckpointError, "neither config.toml nor config.json"),
        (("HALF", "--out", "NEW", "--part", "generator"), CheckpointError, "has no generator"),
        (("HF", "--out", "NEW", "--part", "generator"), CheckpointError, "is not a generator"),
        (("EMPTY", "--out", "NEW"), CheckpointError, "has no whole checkpoint yet"),
    ],
)
def test_promise_20_export_refuses(
    args: tuple[str, ...], error: type[ElectraError], message: str, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "FULL").mkdir()
    (tmp_path / "FULL" / "file").write_text("x")
    (tmp_path / "EMPTY").mkdir()
    shutil.copy(run / "config.toml", tmp_path / "EMPTY")
    export_model(run, tmp_path / "HF")
    import_model(tmp_path / "HF", tmp_path / "HALF")
    places = {"RUN": run, **{name: tmp_path / name for name in ("FULL", "NEW", "HALF", "HF", "EMPTY")}}
    done = call(export_command, *(places.get(arg, arg) for arg in args))
    assert isinstance(done.exception, error), done.output
    assert re.search(message, str(done.exception)), str(done.exception)
    assert not (tmp_path / "NEW").exists()


def test_an_empty_folder_may_be_filled(run: Path, tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    assert call(export_command, run, "--out", tmp_path / "hf").exit_code == 0
    assert (tmp_path / "hf" / "model.safetensors").is_file()


def test_a_checkpoint_is_found_from_inside_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint_path(run, 70))
    assert load_model(Path()).config == SIZE
