"""The minimal classifier fine-tune: it learns, repeats bitwise, ignores padding and leaves the encoder alone."""

from __future__ import annotations

import copy

import pytest
import torch

from electra.config.schema import Config, ModelConfig
from electra.errors import DataError
from electra.finetune import classify
from electra.finetune.classify import Classifier, ClassifyResult, finetune_classifier
from electra.model.electra import Electra, build_model
from electra.tokenizer.codec import SPECIALS, Tokenizer

WORDS = ["red", "green", "blue", "one", "two", "three", "cat", "dog", "sun", "moon"]
MODEL = ModelConfig(layers=2, width=32, heads=2, ffn=64, embedding=16, vocab_size=15, positions=16)


def tokenizer() -> Tokenizer:
    return Tokenizer([*SPECIALS, *WORDS])


def electra(seed: int = 0) -> Electra:
    model = build_model(Config(model=MODEL, seed=seed))
    assert isinstance(model, Electra)
    return model


def rows(count: int, *, start: int = 0) -> list[tuple[str, str]]:
    """Texts of 2 to 9 words; the label says which of cat and dog is in it."""
    made = []
    for i in range(start, start + count):
        words = [WORDS[(i * 7 + j * j) % 6] for j in range(1 + i % 8)]
        animal = "cat" if (i // 3) % 2 else "dog"
        words.insert(i % (len(words) + 1), animal)
        made.append((" ".join(words), animal))
    return made


def finetune(model: Electra, *, seed: int = 3, epochs: int = 6, lr: float = 5e-3) -> ClassifyResult:
    return finetune_classifier(
        model.embeddings,
        model.discriminator,
        tokenizer=tokenizer(),
        train_rows=rows(120),
        dev_rows=rows(40, start=1000),
        labels=["cat", "dog"],
        epochs=epochs,
        batch_size=8,
        lr=lr,
        length=16,
        seed=seed,
    )


def test_learns_a_separable_task() -> None:
    result = finetune(electra())
    assert result.accuracy == 1.0
    assert len(result.losses) == len(result.accuracies) == 6
    assert result.losses[-1] < 0.2 * result.losses[0]
    assert result.predictions == [label for _, label in rows(40, start=1000)]


def test_a_seed_repeats_bitwise_and_another_differs() -> None:
    first, again, other = (finetune(electra(), seed=seed, epochs=2) for seed in (3, 3, 4))
    assert [x.hex() for x in first.losses] == [x.hex() for x in again.losses]
    assert first.predictions == again.predictions
    assert first.losses != other.losses


def test_the_given_encoder_is_not_changed() -> None:
    model = electra()
    before = copy.deepcopy(model.state_dict())
    finetune(model, epochs=1)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_padding_does_not_change_logits() -> None:
    model = electra()
    classifier = Classifier(model.embeddings, model.discriminator, classes=3, rate=0.1, seed=0)
    ids = torch.tensor([[2, 5, 6, 7, 3]])
    padded = torch.tensor([[2, 5, 6, 7, 3, 0, 0, 0]])
    torch.testing.assert_close(classifier(ids, torch.tensor([5])), classifier(padded, torch.tensor([5])))


def test_layers_learn_more_slowly_towards_the_bottom() -> None:
    model = electra()
    classifier = Classifier(model.embeddings, model.discriminator, classes=3, rate=0.1, seed=0)
    groups = classify._groups(classifier, lr=1.0, layer_decay=0.5, weight_decay=0.1)
    rate_of = {id(p): group["lr"] for group in groups for p in group["params"]}  # type: ignore[attr-defined]
    assert len(rate_of) == len(list(classifier.parameters()))
    assert rate_of[id(classifier.head.weight)] == 1.0
    assert rate_of[id(classifier.encoder.layers[1].up.weight)] == 0.5
    assert rate_of[id(classifier.encoder.layers[0].up.weight)] == 0.25
    assert rate_of[id(classifier.embeddings.token.weight)] == 0.125
    assert classifier.encoder.project is not None
    assert rate_of[id(classifier.encoder.project.weight)] == 0.125


def test_schedule_by_hand() -> None:
    factors = [classify._warm_then_decay(step, 20) for step in range(20)]
    assert factors[:3] == [0.5, 1.0, 1.0]
    assert factors[10] == pytest.approx(10 / 18) and factors[-1] == pytest.approx(1 / 18)


def test_each_epoch_has_every_row_once_in_batches_of_similar_length() -> None:
    encoded = classify._encode(rows(300), ["cat", "dog"], tokenizer=tokenizer(), length=16)
    epochs = [list(classify._batches(encoded, 16, key=key)) for key in (1, 2)]
    for batches in epochs:
        assert sorted(i for batch in batches for i in batch) == list(range(300))
        spans = [max(len(encoded.ids[i]) for i in b) - min(len(encoded.ids[i]) for i in b) for b in batches]
        assert sum(spans) / len(spans) < 1  # of lengths that differ by 7
    assert epochs[0] != epochs[1]


def test_progress_counts_every_step() -> None:
    seen: list[tuple[int, int]] = []
    model = electra()
    finetune_classifier(
        model.embeddings,
        model.discriminator,
        tokenizer=tokenizer(),
        train_rows=rows(20),
        dev_rows=rows(4),
        labels=["cat", "dog"],
        epochs=2,
        batch_size=8,
        length=16,
        on_progress=lambda done, total, loss: seen.append((done, total)),
    )
    assert seen == [(i, 6) for i in range(1, 7)]


def test_unknown_label_is_named() -> None:
    with pytest.raises(DataError, match="unknown label 'fish'"):
        classify._encode([("red", "fish")], ["cat", "dog"], tokenizer=tokenizer(), length=16)
