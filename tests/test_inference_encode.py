"""Embeddings beside transformers' hidden states, pooled by hand; windows of long texts; what cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from model_folders import WORDS, make_run
from tuned_folders import make_tuned, save_finetuned

from electra.errors import CheckpointError, ConfigError
from electra.finetune.pretrained import Pretrained, load_pretrained
from electra.inference.encode import encode
from electra.inference.vector_files import json_lines
from electra.interop.embedding_folder import Pooling
from electra.interop.transfer import export_model
from electra.terminal import visible

TEXTS = ["the chef ate the meal", "a dog", "", "we saw money and a zoo"]
LONG = " ".join(WORDS * 6)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encode") / "run"
    make_run(folder)
    return folder


@pytest.fixture(scope="module")
def model(run: Path) -> Pretrained:
    return load_pretrained(run)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_those_of_transformers(model: Pretrained, run: Path, tmp_path: Path, pooling: Pooling) -> None:
    from transformers import AutoTokenizer, ElectraModel

    export_model(run, tmp_path / "hf")
    theirs, tokenizer = (
        ElectraModel.from_pretrained(tmp_path / "hf").eval(),
        AutoTokenizer.from_pretrained(tmp_path / "hf"),
    )
    found = encode(model, TEXTS, pooling=pooling, batch_size=3)
    assert found.shape == (len(TEXTS), model.config.width) and found.dtype == np.float32
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.inference_mode():
            hidden = theirs(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        wanted = hidden.mean(0) if pooling == "mean" else hidden[0]
        np.testing.assert_allclose(vector, wanted.numpy(), atol=2e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_long_text_is_the_mean_of_its_windows(model: Pretrained, pooling: Pooling) -> None:
    words, capacity = LONG.split(), model.length - 2
    assert len(model.tokenizer.encode_batch([LONG])[0]) == len(words) > 2 * capacity, "one token a word"
    starts = [*range(0, len(words) - capacity, capacity // 2), len(words) - capacity]
    windows = encode(model, [" ".join(words[start : start + capacity]) for start in starts], pooling=pooling)
    [found] = encode(model, [LONG], pooling=pooling)
    np.testing.assert_allclose(found, windows.mean(0), atol=1e-5)


def test_batches_and_order_do_not_matter(model: Pretrained) -> None:
    texts = [*TEXTS, LONG]
    together = encode(model, texts)
    for size in (1, 2):
        np.testing.assert_allclose(encode(model, texts, batch_size=size), together, atol=1e-5)
    np.testing.assert_allclose(encode(model, texts[::-1])[::-1], together, atol=1e-5)
    assert encode(model, []).shape == (0, model.config.width)


def test_a_fine_tuned_model_encodes_with_its_own_encoder(model: Pretrained, tmp_path: Path) -> None:
    network, about = make_tuned("classify")
    save_finetuned(tmp_path / "seed-0", network, tokenizer=model.tokenizer, config=model.config, about=about)
    tuned = load_pretrained(tmp_path / "seed-0")
    found = encode(tuned, TEXTS)
    assert found.shape == (len(TEXTS), model.config.width)
    assert not np.allclose(found, encode(model, TEXTS), atol=1e-3), "another encoder"


def test_what_cannot_be(model: Pretrained) -> None:
    with pytest.raises(ConfigError, match="pooling: 'max' is not one of mean, cls"):
        encode(model, TEXTS, pooling="max")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="batch size: 0"):
        encode(model, TEXTS, batch_size=0)
    with pytest.raises(CheckpointError, match="a length of 2 leaves no place for text"):
        encode(replace(model, length=2), TEXTS)


def test_a_line_of_json_is_the_same_on_a_terminal() -> None:
    line = next(json_lines(["a\x85\x1bé"], np.zeros((1, 2), np.float32)))
    assert visible(line) == line and json.loads(line)["text"] == "a\x85\x1bé"
