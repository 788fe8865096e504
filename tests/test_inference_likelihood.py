"""How likely texts are: beside transformers token by token, windows, refusals and the command."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from model_folders import MLM, RTD, WORDS, make_run
from tiny_runs import make_data, small_config

from electra.cli.score import command
from electra.config.schema import GeneratorConfig, ObjectiveConfig
from electra.errors import CheckpointError, ConfigError, DataError
from electra.inference.detect import detect
from electra.inference.likelihood import check, score
from electra.inference.overlapping_windows import best_windows, window_starts
from electra.inference.results import TextScore
from electra.interop.models import Loaded, load_model
from electra.interop.transfer import export_model, import_model
from electra.model.electra import Electra, build_model
from electra.ops.dispatch import host_ops
from electra.pretrain import pretrain

transformers = pytest.importorskip("transformers")

TOWERS = GeneratorConfig(kind="two-tower", width=0.5)
ELECTRIC = replace(RTD, objective=ObjectiveConfig(name="electric"), generator=TOWERS)
TEXTS = ["The chef ate the zebra, and we saw money!", "a cat", "", "the dog sat on the mat.", "a cat", " \t "]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each kind, and their models as transformers has them."""
    base = tmp_path_factory.mktemp("score")
    for name, config in {"mlm": MLM, "rtd": RTD, "electric": ELECTRIC}.items():
        make_run(base / name, config)
    export_model(base / "mlm", base / "mlm-hf")
    export_model(base / "rtd", base / "generator-hf", part="generator")
    export_model(base / "electric", base / "electric-hf")
    return {path.name: path for path in base.iterdir()}


def naive(folder: Path, loaded: Loaded, text: str) -> list[float]:
    """One forward pass of transformers a token, that token masked."""
    model = transformers.ElectraForMaskedLM.from_pretrained(folder).eval()
    ids = [loaded.tokenizer.cls_id, *loaded.tokenizer.encode(text), loaded.tokenizer.sep_id]
    found = []
    for place in range(1, len(ids) - 1):
        masked = [*ids[:place], loaded.tokenizer.mask_id, *ids[place + 1 :]]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([masked])).logits[0, place].double()
        found.append(float(logits.log_softmax(0)[ids[place]]))
    return found


def values(result: TextScore) -> list[float]:
    return [token.score for token in result.tokens]


@pytest.mark.parametrize(
    ("model", "part", "theirs"),
    [
        ("mlm", "discriminator", "mlm-hf"),
        ("mlm-hf", "discriminator", "mlm-hf"),
        ("rtd", "generator", "generator-hf"),
        ("generator-hf", "discriminator", "generator-hf"),
    ],
)
def test_a_masked_model_is_asked_token_by_token(folders: dict[str, Path], model: str, part: Any, theirs: str) -> None:
    loaded = load_model(folders[model], part=part)
    results = list(score(loaded, TEXTS, batch_size=5))
    assert [result.text for result in results] == TEXTS
    for result in results:
        expected = naive(folders[theirs], loaded, result.text)
        assert values(result) == pytest.approx(expected, abs=1e-4)
        assert result.score == pytest.approx(sum(expected), abs=1e-3) and (result.score < 0 or not expected)


def test_the_masked_model_of_transformers_itself(folders: dict[str, Path], tmp_path: Path) -> None:
    model = transformers.ElectraForMaskedLM.from_pretrained(folders["mlm-hf"])
    model.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "vocab.txt").write_bytes((folders["mlm-hf"] / "vocab.txt").read_bytes())
    loaded = load_model(tmp_path / "theirs")
    assert values(next(score(loaded, [TEXTS[0]]))) == pytest.approx(
        naive(folders["mlm-hf"], loaded, TEXTS[0]), abs=1e-4
    )


@pytest.mark.parametrize("model", ["electric", "electric-hf"])
def test_an_electric_model_says_minus_its_energies(folders: dict[str, Path], model: str) -> None:
    loaded = load_model(folders[model])
    assert loaded.objective == "electric"
    theirs = transformers.ElectraForPreTraining.from_pretrained(folders["electric-hf"]).eval()
    for result in score(loaded, TEXTS, batch_size=4):
        ids = [loaded.tokenizer.cls_id, *loaded.tokenizer.encode(result.text), loaded.tokenizer.sep_id]
        with torch.no_grad():
            energies = theirs(input_ids=torch.tensor([ids])).logits[0, 1:-1].tolist()
        assert values(result) == pytest.approx([-energy for energy in energies], abs=1e-5)
        assert result.score == pytest.approx(-sum(energies), abs=1e-4)


def test_tokens_stand_on_the_text(folders: dict[str, Path]) -> None:
    result = next(score(load_model(folders["electric"]), [TEXTS[0]]))
    assert "".join(TEXTS[0][one.start : one.end] for one in result.tokens) == TEXTS[0].replace(" ", "")
    assert [one.token for one in result.tokens][:3] == ["the", "chef", "ate"]


@pytest.mark.parametrize("model", ["mlm", "electric"])
def test_neither_order_nor_batch_changes_a_score(folders: dict[str, Path], model: str) -> None:
    loaded = load_model(folders[model])
    alone = {text: next(score(loaded, [text])).score for text in TEXTS}
    for batch_size in (1, 3, 64):
        for texts in (TEXTS, TEXTS[::-1]):
            found = [(one.text, one.score) for one in score(loaded, texts, batch_size=batch_size)]
            assert [text for text, _ in found] == texts
            assert [value for _, value in found] == pytest.approx([alone[text] for text in texts], abs=1e-4)
    assert alone[""] == alone[" \t "] == 0


@given(count=st.integers(0, 300), capacity=st.integers(1, 40))
def test_every_token_has_the_window_with_the_most_context(count: int, capacity: int) -> None:
    starts, best = window_starts(count, capacity), best_windows(count, capacity)
    assert len(best) == count
    for place, start in enumerate(best):
        size = min(capacity, count)
        around = {s: min(place - s, s + size - 1 - place) for s in starts if s <= place < s + size}
        assert around[start] == max(around.values())


@pytest.mark.parametrize("model", ["mlm", "electric"])
def test_a_long_text_is_read_in_windows(folders: dict[str, Path], model: str) -> None:
    loaded = load_model(folders[model])
    words = [WORDS[number * 7 % len(WORDS)] for number in range(100)]
    found = values(next(score(loaded, [" ".join(words)])))
    capacity = loaded.length - 2
    assert len(found) == 100 and capacity == 22

    def window(start: int) -> list[float]:
        return values(next(score(loaded, [" ".join(words[start : start + capacity])])))

    assert found[:11] == pytest.approx(window(0)[:11], abs=1e-4)
    assert found[-10:] == pytest.approx(window(100 - capacity)[-10:], abs=1e-4)
    assert found[33 + 6 : 33 + 16] == pytest.approx(window(33)[6:16], abs=1e-4)


def test_models_that_cannot_score_are_named(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not how likely a text is .*--part generator"):
        check(load_model(folders["rtd"]))
    with pytest.raises(CheckpointError, match="two towers, which are not one encoder"):
        load_model(folders["electric"], part="generator")
    replaced = replace(RTD, objective=ObjectiveConfig(name="replace-mlm"))
    make_run(tmp_path / "replace", replaced)
    with pytest.raises(CheckpointError, match="trained with replace-mlm, so it was never trained on masked tokens"):
        next(score(load_model(tmp_path / "replace"), ["a"]))
    assert len(list(score(load_model(tmp_path / "replace", part="generator"), ["a cat"]))) == 1
    bare = transformers.ElectraModel(transformers.AutoConfig.from_pretrained(folders["mlm-hf"]))
    bare.save_pretrained(tmp_path / "bare")
    (tmp_path / "bare" / "vocab.txt").write_bytes((folders["mlm-hf"] / "vocab.txt").read_bytes())
    with pytest.raises(CheckpointError, match="no head that gives probabilities"):
        check(load_model(tmp_path / "bare"))
    with pytest.raises(CheckpointError, match="length of 2 leaves no place"):
        next(score(replace(load_model(folders["electric"]), length=2), ["a"]))
    with pytest.raises(ConfigError, match="0 is not at least 1"):
        next(score(load_model(folders["electric"]), ["a"], batch_size=0))
    with pytest.raises(CheckpointError, match="energies, which alone are no probabilities"):
        detect(load_model(folders["electric"]), "a cat")


def test_an_electric_model_comes_back_as_one(folders: dict[str, Path], tmp_path: Path) -> None:
    done = import_model(folders["electric-hf"], tmp_path / "run")
    assert (done.config.objective.name, done.config.generator.kind) == ("electric", "two-tower")
    before, after = (next(score(load_model(path), [TEXTS[0]])) for path in (folders["electric"], tmp_path / "run"))
    assert after == before


@pytest.mark.parametrize("tying", ["none", "gdes"])
def test_tables_of_their_own_are_put_together(tmp_path: Path, tying: Any) -> None:
    config = replace(ELECTRIC, generator=replace(TOWERS, tying=tying))
    tensors = make_run(tmp_path / "run", config)
    model = build_model(config, ops=host_ops())
    model.load_state_dict(tensors)
    assert isinstance(model, Electra)
    loaded = load_model(tmp_path / "run")
    ids = torch.tensor([[loaded.tokenizer.cls_id, *loaded.tokenizer.encode(TEXTS[0]), loaded.tokenizer.sep_id]])
    with torch.no_grad():
        x = model.embed(ids, torch.zeros_like(ids), None)
        energies = model.discriminator_head(model.discriminator(x, None))[0, 1:-1]
    assert values(next(score(loaded, [TEXTS[0]]))) == pytest.approx((-energies).tolist(), abs=1e-4)


def invoke(*arguments: str, **options: Any) -> list[dict[str, Any]]:
    done = CliRunner().invoke(command, list(arguments), **options)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_command(folders: dict[str, Path], tmp_path: Path) -> None:
    model = ["--model", str(folders["mlm"])]
    expected = list(score(load_model(folders["mlm"]), TEXTS))
    rows = invoke(*model, *TEXTS)
    assert [set(row) for row in rows] == [{"text", "score", "count"}] * len(TEXTS)
    assert [row["text"] for row in rows] == TEXTS
    assert [row["score"] for row in rows] == pytest.approx([one.score for one in expected], rel=1e-5)
    assert [row["count"] for row in rows] == [len(one.tokens) for one in expected]
    (tokened,) = invoke(*model, "--tokens", "--batch-size", "2", TEXTS[0])
    assert set(tokened["tokens"][0]) == {"token", "start", "end", "score"}
    assert sum(token["score"] for token in tokened["tokens"]) == pytest.approx(tokened["score"], rel=1e-4)
    (tmp_path / "texts.txt").write_text("a cat\n\nthe dog sat on the mat.\n", encoding="utf-8")
    lines = invoke(*model, "--input", str(tmp_path / "texts.txt"))
    assert [row["text"] for row in lines] == ["a cat", "", "the dog sat on the mat."]
    piped = invoke(*model, "--input", "-", input="a cat\n\nthe dog sat on the mat.\n")
    assert [row["text"] for row in piped] == [row["text"] for row in lines]
    assert [row["score"] for row in piped] == pytest.approx([row["score"] for row in lines], abs=1e-3)
    with gzip.open(tmp_path / "rows.csv.gz", "wt", encoding="utf-8") as file:
        file.write("id,outputs\n1,a cat\n2,the dog\n")
    table = invoke(*model, "--input", str(tmp_path / "rows.csv.gz"), "--text", "outputs")
    assert [row["text"] for row in table] == ["a cat", "the dog"]
    (generated,) = invoke("--model", str(folders["rtd"]), "--part", "generator", "a cat")
    assert generated["count"] == 2 and generated["score"] < 0


def test_command_refuses_bad_input(folders: dict[str, Path], tmp_path: Path) -> None:
    model = ["--model", str(folders["mlm"])]

    def refused(*arguments: str, **options: Any) -> str:
        done = CliRunner().invoke(command, list(arguments), **options)
        assert done.exit_code != 0
        return f"{type(done.exception).__name__}: {done.exception} {done.output}"

    assert "give either a TEXT or --input" in refused(*model)
    assert "give either a TEXT or --input" in refused(*model, "--input", "-", "a cat")
    assert refused(*model, "--input", "-", input=b"fine\n\xff\n").startswith(
        f"{DataError.__name__}: standard input: line 2"
    )
    assert "DataError" in refused(*model, "--input", str(tmp_path / "missing.txt"))
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    assert "holds no texts (one text a line)" in refused(*model, "--input", str(tmp_path / "empty.txt"))
    assert "ConfigError: --text: there are no columns" in refused(*model, "--text", "x", "a cat")
    assert "CheckpointError" in refused("--model", str(folders["rtd"]), "a cat")


def test_from_text_to_scores(tmp_path: Path) -> None:
    """A short Electric run trains, is evaluated, and its model scores."""
    data = make_data(tmp_path / "data")
    config = small_config(
        "objective.name=electric", "generator.kind=two-tower", "train.steps=6", "optim.warmup_steps=2"
    )
    pretrain(config, data=data, out=tmp_path / "run")
    good, bad = score(load_model(tmp_path / "run"), ["the first of them", "them of first the"])
    assert good.score != bad.score and len(good.tokens) > 0
