"""Ten languages from text to `transformers`: nothing lost, no [UNK], equal ids, equal logits.

Every language is prepared and tokenized. Three are also trained and exported; `make languages` trains all ten.
"""

from __future__ import annotations

import json
import math
import os
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import electra
from electra.batches.epoch_plan import plan_epoch
from electra.batches.layout import Specials
from electra.cli import main
from electra.config.load import load
from electra.shards.dataset import Prepared, Split, open_data
from electra.tokenizer.codec import Tokenizer
from electra.train.metrics_file import read_lines

transformers = pytest.importorskip("transformers")

TEXTS = Path(__file__).parent / "languages"
LANGUAGES = sorted(path.stem for path in TEXTS.glob("*.txt"))
IN_CI = ("german", "japanese", "thai")
WITHOUT_SPACES = ("chinese", "japanese", "thai")
KEPT_SHARE = 0.97
ALL = os.environ.get("ELECTRA_LANGUAGES") == "all"
STEPS = 200 if ALL else 100

Prepare = Callable[[str], Prepared]


def lines_of(language: str) -> list[str]:
    return [line for line in (TEXTS / f"{language}.txt").read_text(encoding="utf-8").split("\n") if line]


def documents_of(language: str) -> list[str]:
    return (TEXTS / f"{language}.txt").read_text(encoding="utf-8").strip().split("\n\n")


def squeezed(text: str) -> str:
    """The text in NFC without its white space: what every vocabulary must give back."""
    return "".join(unicodedata.normalize("NFC", text).split())


@pytest.fixture(scope="module")
def prepare(tmp_path_factory: pytest.TempPathFactory) -> Prepare:
    """The data of a language, prepared with the options a newcomer gets."""
    folders: dict[str, Path] = {}

    def prepared(language: str) -> Prepared:
        if language not in folders:
            out = folders[language] = tmp_path_factory.mktemp(language) / "data"
            electra.prepare(TEXTS / f"{language}.txt", out=out, vocab_size=4096, workers=1)
        return open_data(folders[language])

    return prepared


def texts_of(split: Split, tokenizer: Tokenizer) -> list[str]:
    """What the tokens of each document stand for."""
    bounds = split.sentence_starts[split.document_starts].tolist()
    return [tokenizer.decode(split.slice(a, b).tolist()) for a, b in zip(bounds, bounds[1:], strict=False)]


def test_the_excerpts_are_what_their_readme_says() -> None:
    asked = {"arabic", "chinese", "french", "german", "hindi", "japanese", "korean", "russian", "thai", "vietnamese"}
    assert set(LANGUAGES) == asked and set(IN_CI) <= asked
    for language in LANGUAGES:
        lines = lines_of(language)
        assert len(lines) == len(set(lines)) == 1000 and len(documents_of(language)) == 50
    assert any(line != unicodedata.normalize("NFC", line) for line in lines_of("hindi"))
    assert max(len(word) for line in lines_of("japanese") for word in line.split()) > 100


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_shards_hold_every_character(language: str, prepare: Prepare) -> None:
    data = prepare(language)
    tokenizer = data.tokenizer()
    texts = [*texts_of(data.train, tokenizer), *texts_of(data.held_out, tokenizer)]
    assert sorted(map(squeezed, texts)) == sorted(map(squeezed, documents_of(language)))
    for split in (data.train, data.held_out):
        assert tokenizer.unk_id not in split.slice(0, split.n_tokens)


@pytest.mark.parametrize("language", LANGUAGES)
def test_lines_survive_the_round_trip(language: str, prepare: Prepare) -> None:
    tokenizer = prepare(language).tokenizer()
    for line in lines_of(language):
        back = tokenizer.decode(tokenizer.encode(line))
        assert squeezed(back) == squeezed(line)
        if language in WITHOUT_SPACES:  # a byte-level vocabulary, which keeps spaces too
            assert back == unicodedata.normalize("NFC", line)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("length", [64, 128, 512])
def test_the_rows_hold_the_tokens(language: str, length: int, prepare: Prepare) -> None:
    data = prepare(language)
    specials = Specials.of(data.tokenizer())
    config = load("tiny", overrides=[f"data.length={length}", f"model.positions={length}"])
    epoch = plan_epoch(data.train, config.data, specials, seed=config.seed, epoch=0)
    assert epoch.kept_share >= KEPT_SHARE


@pytest.mark.parametrize("language", LANGUAGES)
def test_transformers_gives_the_same_ids(language: str, prepare: Prepare) -> None:
    data = prepare(language)
    ours, lines = data.tokenizer(), lines_of(language)
    theirs = transformers.AutoTokenizer.from_pretrained(data.folder / "tokenizer")
    assert len(lines) == 1000
    same_ids(ours, theirs, lines)


def same_ids(ours: Tokenizer, theirs: Any, lines: list[str]) -> None:
    for line, ids in zip(lines, theirs(lines)["input_ids"], strict=True):
        assert ids == [ours.cls_id, *ours.encode(line), ours.sep_id], line


def trained(language: str) -> Any:
    """A test parameter; those outside CI's choice carry the mark that `make languages` asks for."""
    return pytest.param(language, marks=() if language in IN_CI else pytest.mark.languages)


@pytest.mark.parametrize("language", [trained(language) for language in LANGUAGES])
def test_from_text_to_transformers(
    language: str, prepare: Prepare, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, lines = prepare(language), lines_of(language)
    run, exported = tmp_path / "run", tmp_path / "exported"
    settings = {"train.steps": STEPS, "optim.warmup_steps": 10, "train.batch_size": 4, "train.log_every": 10}
    settings |= {"data.length": 64, "optim.lr": 2e-3}
    settings |= {} if ALL else {"model.layers": 1, "model.ffn": 128}
    rare = {"evaluate.sequences": 16, "evaluate.every": STEPS, "checkpoint.every": STEPS}
    electra.pretrain(data.folder, out=run, preset="tiny", settings=settings | rare)
    losses = [line["train/mlm_loss"] for line in read_lines(run / "metrics.jsonl") if line["kind"] == "train"]
    assert losses[-1] < 0.9 * math.log(data.vocab_size) < losses[0]

    electra.export(run, out=exported)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    model = transformers.AutoModelForPreTraining.from_pretrained(exported).eval()
    ours = Tokenizer.load(exported)
    same_ids(ours, tokenizer, lines)

    longest = sorted((line for line in lines if len(ours.encode(line)) <= 60), key=len)[-3:]  # one window each
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["detect", "--model", str(exported), "--json", *longest])
    assert stop.value.code == 0
    for line, said in zip(longest, capsys.readouterr().out.splitlines(), strict=True):
        found = json.loads(said)
        assert found["text"] == line and len(found["tokens"]) == len(ours.encode(line))
        with torch.no_grad():
            theirs = torch.sigmoid(model(**tokenizer(line, return_tensors="pt")).logits)[0, 1:-1]
        torch.testing.assert_close(torch.tensor([token["probability"] for token in found["tokens"]]), theirs)
