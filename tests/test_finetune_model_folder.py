"""Fine-tuned models as folders: there and back, every kind of damage, the seed that stands for a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_folders import SIZE, VOCAB, make_run
from relisted import relist
from tuned_folders import loaded, make_tuned, save, save_finetuned

from electra.batches.sequences import unpack
from electra.checkpoint.tensors import read_tensors, write_tensors
from electra.errors import CheckpointError
from electra.finetune.head_outputs import head_outputs
from electra.finetune.model_folder import About, load_finetuned, model_folder
from electra.fsio import sha256_file, write_json
from electra.inference.predict import predict
from electra.interop.finetuned_folder import is_finetuned
from electra.tasks.rows import Features, Kind
from electra.tokenizer.codec import Tokenizer

KINDS: list[Kind] = ["classify", "multilabel", "regress", "tag", "span", "pairs"]


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_is_the_same_model(kind: Kind, tmp_path: Path) -> None:
    tuned = save(tmp_path / "model", kind, scores={"accuracy": 71.25, "f1": math.nan}, metrics=("accuracy", "f1"))
    model = load_finetuned(tmp_path / "model")
    assert not model.network.training and model.config == SIZE and model.tokenizer.vocab == tuple(VOCAB)
    wanted = make_tuned(kind, scores={}, metrics=("accuracy", "f1"))[1]
    assert replace(model.about, scores={}) == wanted
    assert model.about.score == 71.25 and math.isnan(model.about.scores["f1"])
    ours, theirs = dict(tuned.named_parameters()), dict(model.network.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]) and theirs[name].dtype == torch.float32, name
    rows = torch.tensor([[2, 9, 8, 3, 7, 3, 6, 4, 0]], dtype=torch.int32)
    with torch.no_grad():
        for one, other in zip(
            tuned.predict(unpack(rows)).values(), model.network.predict(unpack(rows)).values(), strict=True
        ):
            assert torch.equal(one, other)


def test_a_folder_names_no_place_and_holds_only_what_it_needs(tmp_path: Path) -> None:
    save(tmp_path / "model", "classify")
    names = {path.name for path in (tmp_path / "model").iterdir()}
    tokenizer = {"vocab.txt", "tokenizer.json", "tokenizer_config.json"}
    assert names == {"task.json", "model.safetensors", "manifest.json"} | tokenizer
    assert str(tmp_path) not in (tmp_path / "model" / "task.json").read_text()


def test_weights_in_other_precisions_are_saved_in_fp32(tmp_path: Path) -> None:
    """A trainer's network may hold bf16 copies: what is saved are its masters."""
    tuned, about = make_tuned("classify")
    masters = {name: tensor.detach().clone() for name, tensor in tuned.named_parameters()}
    tuned.to(torch.bfloat16)
    save_finetuned(tmp_path / "m", tuned, tokenizer=Tokenizer(VOCAB), config=SIZE, about=about, weights=masters)
    for name, tensor in load_finetuned(tmp_path / "m").network.named_parameters():
        assert torch.equal(tensor, masters[name])


def edit(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        value = json.loads((folder / "task.json").read_text())
        change(value)
        write_json(folder / "task.json", value)
        relist(folder)

    return apply


def retensor(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = read_tensors(path)
        change(tensors)
        write_tensors(path, tensors)
        relist(folder)

    return apply


def flip_last_byte(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size]) and None


def cut_and_listed(name: str, size: int) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        cut(name, size)(folder)
        relist(folder)

    return apply


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (edit(lambda v: v.update(format=3)), "format 3, this version reads up to 2"),
    (edit(lambda v: v.pop("format")), "no format number"),
    (edit(lambda v: v.pop("about")), "has no 'about'"),
    (edit(lambda v: v["about"].pop("kind")), "has no 'about.kind'"),
    (edit(lambda v: v["about"].update(kind="rank")), "about.kind is 'rank'"),
    (edit(lambda v: v["about"].update(labels=["a", 1])), "about.labels"),
    (edit(lambda v: v["about"].update(labels=[])), "no labels"),
    (edit(lambda v: v["about"].update(labels=["a", "b"])), "head.out.weight"),
    (edit(lambda v: v["about"].update(length=1000)), "length is 1000"),
    (edit(lambda v: v["about"].update(scores={"accuracy": "high"})), "about.scores"),
    (edit(lambda v: v["model"].update(width=True)), "model.width"),
    (edit(lambda v: v["model"].update(heads=7)), "7 does not divide model.width"),
    (edit(lambda v: v["model"].update(layers=0)), "model.layers: 0 is too small"),
    (edit(lambda v: v["model"].update(layers=3)), "encoder.layers.2"),
    (edit(lambda v: v.update(tokenizer="0")), "not the one that it was fine-tuned with"),
    (cut("task.json", 40), "task.json: has 40 bytes, not the "),
    (cut("model.safetensors", 5000), "model.safetensors: has 5000 bytes, not the "),
    (cut("vocab.txt", 30), "vocab.txt: has 30 bytes, not the "),
    (cut_and_listed("task.json", 40), "task.json: cannot be read"),
    (cut_and_listed("model.safetensors", 5000), "model.safetensors: cannot be read"),
    (cut_and_listed("vocab.txt", 30), "its tokenizer"),
    (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors: is missing"),
    (lambda folder: (folder / "manifest.json").unlink(), "manifest.json: is missing"),
    (flip_last_byte, "is damaged: its sha256 is not the recorded one"),
    (retensor(lambda t: t.__delitem__("head.out.bias")), "'head.out.bias' is missing"),
    (retensor(lambda t: t.update(extra=torch.zeros(1))), "'extra' is not expected"),
    (retensor(lambda t: t.update({"head.out.bias": torch.zeros(9)})), r"\(9,\), not \(3,\)"),
]


@pytest.mark.parametrize(("damage", "outputs"), DAMAGE, ids=[outputs for _, outputs in DAMAGE])
def test_damage_is_one_line_that_names_the_folder(damage: Callable[[Path], None], outputs: str, tmp_path: Path) -> None:
    save(tmp_path / "model", "classify")
    damage(tmp_path / "model")
    with pytest.raises(CheckpointError, match=outputs) as caught:
        load_finetuned(tmp_path / "model")
    assert "\n" not in str(caught.value) and str(tmp_path / "model") in str(caught.value)


def test_a_model_of_format_1_still_loads(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As versions 0.1 and 0.2 wrote it: no manifest, the weights' sum in task.json."""
    folder = tmp_path / "model"
    save(folder, "classify")
    (folder / "manifest.json").unlink()
    value = json.loads((folder / "task.json").read_text())
    digests = {"model.safetensors": sha256_file(folder / "model.safetensors")}
    write_json(folder / "task.json", value | {"format": 1, "sha256": digests})
    for _ in range(2):
        assert load_finetuned(folder).about == make_tuned("classify")[1]
    assert capfd.readouterr().err.count("it is read without being verified") == 1, "said once"
    flip_last_byte(folder)
    with pytest.raises(CheckpointError, match="is damaged"):
        load_finetuned(folder)


def test_a_regression_of_before_offsets_loads(tmp_path: Path) -> None:
    save(tmp_path / "model", "regress")
    wanted = predict(load_finetuned(tmp_path / "model"), ["the dog", "a cat sat"])
    edit(lambda value: value["about"].pop("offset"))(tmp_path / "model")
    old = load_finetuned(tmp_path / "model")
    assert (old.about.offset, old.network.spec.offset, old.about.scale) == (0.0, 0.0, 5.0)
    assert predict(old, ["the dog", "a cat sat"]) == wanted


def test_keys_of_a_later_version_are_left_out(tmp_path: Path) -> None:
    save(tmp_path / "model", "classify")
    edit(lambda value: value["about"].update(colour="green"))(tmp_path / "model")
    assert load_finetuned(tmp_path / "model").about == make_tuned("classify")[1]


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        load_finetuned(tmp_path / "none")
    make_run(tmp_path / "run")
    with pytest.raises(CheckpointError, match="not a fine-tuned model"):
        load_finetuned(tmp_path / "run")
    save(tmp_path / "suite" / "cola" / "seed-0", "classify")
    save(tmp_path / "suite" / "rte" / "seed-0", "classify")
    with pytest.raises(CheckpointError, match="it holds several: cola, rte; name one"):
        load_finetuned(tmp_path / "suite")
    assert (
        is_finetuned(tmp_path / "suite" / "cola")
        and not is_finetuned(tmp_path / "suite")
        and not is_finetuned(tmp_path / "no")
    )


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ({0: 50.0}, 0),
        ({0: 50.0, 1: 70.0, 2: 60.0}, 2),
        ({0: 50.0, 1: 70.0, 2: 60.0, 3: 65.0}, 2),  # 60 and 65 are in the middle: the lower
        ({0: math.nan, 1: 70.0, 2: 60.0}, 2),  # one that diverged is the worst of all
        ({10: 1.0, 9: 2.0, 2: 3.0}, 9),
        ({4: 5.0, 5: 5.0, 6: 5.0}, 5),
        ({3: None, 2: None}, 2),
    ],
)
def test_a_run_is_the_seed_of_its_median_score(scores: dict[int, float | None], chosen: int, tmp_path: Path) -> None:
    for seed, score in scores.items():
        given = {} if score is None else {"f1": 100.0 - seed, "mcc": score}
        save(tmp_path / f"seed-{seed}", "classify", seed=seed, scores=given, metrics=("mcc", "f1"))
    (tmp_path / "seed-77").mkdir()  # being trained
    (tmp_path / "seed-x").mkdir()
    write_json(tmp_path / "results.json", {})
    assert model_folder(tmp_path).name == f"seed-{chosen}"
    model = load_finetuned(tmp_path)
    assert model.about.seed == chosen and model.path == tmp_path / f"seed-{chosen}"


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_answers_do_not_depend_on_the_batch(kind: Kind, data: st.DataObject) -> None:
    tuned, _ = make_tuned(kind)
    sizes = data.draw(st.lists(st.integers(4, SIZE.positions), max_size=7))
    ids = [[2, *(5 + (7 * at + size) % (SIZE.vocab_size - 5) for at in range(size - 2)), 3] for size in sizes]
    firsts = [data.draw(st.integers(2, size - 1)) if kind != "tag" else size for size in sizes]
    features = Features(ids=ids, a_lengths=firsts)
    counts: list[int] = []
    outputs = head_outputs(tuned, features, batch_size=3, beam=6, pad_id=0, on_batch=counts.append)
    assert counts == sorted(counts) and (counts[-1:] == [len(sizes)] or not sizes)
    for number, (one, first) in enumerate(zip(ids, firsts, strict=True)):
        row = torch.tensor([[*one, len(one), first, 0]], dtype=torch.int32)
        with torch.no_grad():
            alone = {name: value[0] for name, value in tuned.predict(unpack(row), beam=6).items()}
        for name, value in alone.items():
            if kind != "span" or name == "null":
                np.testing.assert_allclose(outputs[name][number], value.numpy(), atol=1e-4)
        if kind == "span":  # forbidden positions may differ in order: compare what can be an answer
            found = sorted(zip(outputs["starts"][number].tolist(), outputs["start_at"][number].tolist(), strict=True))
            mine = {place: score for score, place in found}  # the highest of a place: what fills the beam up is at 0
            for place, score in zip(alone["start_at"].tolist(), alone["starts"].tolist(), strict=True):
                if score > -500:
                    assert mine[place] == pytest.approx(score, abs=1e-3)


def test_about_has_a_score_only_where_there_is_one() -> None:
    about = About(task="t", title="T", kind="classify", labels=("a", "b"))
    assert about.score is None
    assert replace(about, metrics=("f1",), scores={"accuracy": 3.0}).score is None
    assert replace(about, metrics=("f1",), scores={"f1": 3.0}).score == 3.0


def test_loading_leaves_the_caller_free_to_train(tmp_path: Path) -> None:
    model = loaded(tmp_path / "model", "classify")
    assert all(parameter.requires_grad and parameter.device.type == "cpu" for parameter in model.network.parameters())
