"""Fine-tuned models in transformers: the same logits, and pipelines that say what `predict` says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from model_folders import SIZE, VOCAB, make_run
from tuned_folders import LABELS, loaded, make_tuned, save, save_finetuned

from electra.batches.sequences import Sequences
from electra.cli import main
from electra.errors import CheckpointError, ConfigError
from electra.finetune.export import SEQUENCES, SPANS, TOKENS, export_finetuned
from electra.finetune.head_outputs import head_outputs
from electra.finetune.model_folder import FinetunedModel
from electra.finetune.results_file import write_results
from electra.finetune.task_results import SeedScore, Suite, TaskResult
from electra.inference.predict import predict
from electra.interop.models import read_source
from electra.tasks.features import encode_sequences
from electra.tasks.rows import Example, Features, Kind
from electra.tokenizer.codec import Tokenizer

transformers = pytest.importorskip("transformers")

TEXTS = [
    "the dog sat on the mat",
    "we saw the chef",
    "a",
    "",
    "The bank, the money and a CAT!",
    "the chef cooked the meal and the dog ate the meal and the cat sat on the money and we saw the bank and the mat",
    "[MASK] the [SEP] caf\N{LATIN SMALL LETTER E WITH ACUTE} \N{SNOWMAN}",
]
EVEN = 23  # three special tokens, and room that two long texts share evenly
PAIRS = [(first, second) for first in TEXTS for second in TEXTS[::-1]]


def exported(folder: Path, kind: Kind, **changes: Any) -> tuple[FinetunedModel, Any, Any]:
    """Our model, the transformers one of its export (nothing missing, nothing left over), and its tokenizer."""
    ours = loaded(folder / "tuned", kind, **changes)
    made = export_finetuned(folder / "tuned", folder / "hf")
    auto = {
        "tag": transformers.AutoModelForTokenClassification,
        "span": transformers.AutoModelForQuestionAnswering,
    }.get(kind, transformers.AutoModelForSequenceClassification)
    theirs, info = auto.from_pretrained(folder / "hf", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    assert type(theirs).__name__ == made.architecture == {"tag": TOKENS, "span": SPANS}.get(kind, SEQUENCES)
    assert made.parameters == theirs.num_parameters()
    more = made.parameters - sum(parameter.numel() for parameter in ours.network.parameters())
    assert made.notes == ((f"{more:,} of them are a layer that its class has and the model does not",) if more else ())
    assert bool(more) == (kind not in ("tag", "span", "pairs"))
    return ours, theirs.eval(), transformers.AutoTokenizer.from_pretrained(folder / "hf")


def our_scores(ours: FinetunedModel, features: Features) -> Any:
    return head_outputs(ours.network, features, pad_id=ours.tokenizer.pad_id)["scores"]


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("kind", ["classify", "multilabel", "regress"])
def test_promise_15_classifiers_export_exactly(kind: Kind, paired: bool, tmp_path: Path) -> None:
    ours, theirs, tokenizer = exported(tmp_path, kind, length=EVEN)
    rows: list[Any] = PAIRS if paired else [(text, None) for text in TEXTS]
    examples = [Example(id="", text=first, pair=second) for first, second in rows]
    features = encode_sequences(examples, tokenizer=ours.tokenizer, task_kind=kind, length=ours.about.length)
    scores = our_scores(ours, features)
    given_ = ([first for first, _ in rows], [second for _, second in rows] if paired else None)
    batch = tokenizer(*given_, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        padded = theirs(**batch).logits
        np.testing.assert_allclose(scores, padded.numpy(), atol=1e-5, rtol=1e-5)
        for number, (first, second) in enumerate(rows):
            alone = tokenizer([first], [second] if paired else None, truncation=True, return_tensors="pt")
            assert alone["input_ids"][0].tolist() == features.ids[number]  # cut as we cut it
            np.testing.assert_allclose(scores[number], theirs(**alone).logits[0].numpy(), atol=1e-5, rtol=1e-5)


def test_two_long_texts_in_an_odd_length_are_cut_one_token_apart(tmp_path: Path) -> None:
    """The published rule leaves the odd token to the first text, transformers' to the longer one."""
    ours, _, tokenizer = exported(tmp_path, "classify", length=EVEN + 1)
    examples = [Example(id="", text=first, pair=second) for first, second in PAIRS]
    features = encode_sequences(examples, tokenizer=ours.tokenizer, task_kind="classify", length=EVEN + 1)
    differing = 0
    for (first, second), ids, size in zip(PAIRS, features.ids, features.a_lengths, strict=True):
        theirs = tokenizer([first], [second], truncation=True)
        their_size = theirs["token_type_ids"][0].count(0)
        assert len(theirs["input_ids"][0]) == len(ids) and size - their_size in (0, 1)
        differing += theirs["input_ids"][0] != ids
    assert 0 < differing < 5


def test_promise_15_taggers_export_exactly(tmp_path: Path) -> None:
    ours, theirs, tokenizer = exported(tmp_path, "tag")
    batch = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    ids = [
        row[: int(mask.sum())].tolist() for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    scores = our_scores(ours, Features(ids=ids, a_lengths=[len(row) for row in ids]))
    with torch.no_grad():
        padded = theirs(**batch).logits
        for number, row in enumerate(ids):
            np.testing.assert_allclose(scores[number], padded[number, : len(row)].numpy(), atol=1e-5, rtol=1e-5)
            alone = theirs(torch.tensor([row])).logits[0]
            np.testing.assert_allclose(scores[number], alone.numpy(), atol=1e-5, rtol=1e-5)


QUESTIONS = [
    ("we saw the chef", "the dog sat on the mat and we ate"),
    ("the mat", "a bank, the money and a cat!"),
    ("a cat", "the chef cooked the meal"),
]


@pytest.mark.parametrize(("question", "passage"), QUESTIONS)
def test_promise_15_question_models_export_exactly(question: str, passage: str, tmp_path: Path) -> None:
    ours, model, tokenizer = exported(tmp_path, "span", span_head="plain")
    batch = tokenizer(question, passage, return_tensors="pt", return_offsets_mapping=True)
    offsets, ids = batch.pop("offset_mapping")[0], batch["input_ids"]
    with torch.no_grad():
        outputs = model(**batch)
        lengths = torch.tensor([ids.shape[1]])
        rows = Sequences(ids_BL=ids, lengths_B=lengths, segments_BL=batch["token_type_ids"], keys_B=lengths)
        for mine, theirs in zip(
            ours.network.head(ours.network.hidden(rows)), (outputs.start_logits, outputs.end_logits), strict=True
        ):
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=1e-5, rtol=1e-5)
    # The ten lines that a user needs, as the model card has them.
    scores = outputs.start_logits[0][:, None] + outputs.end_logits[0][None, :]
    inside = (batch["token_type_ids"][0] == 1) & (offsets[:, 1] > 0)
    allowed = (inside[:, None] & inside[None, :]).triu().tril(ours.about.max_answer - 1)
    start, end = divmod(int(scores.masked_fill(~allowed, -float("inf")).argmax()), len(offsets))
    [predicted] = predict(ours, [(question, passage)])
    assert predicted["answer"] == passage[offsets[start][0] : offsets[end][1]] != ""
    no_answer = outputs.start_logits[0, 0] + outputs.end_logits[0, 0]
    assert predicted["null_odds"] <= float(no_answer - scores[start, end]) + 1e-4


@pytest.mark.parametrize("kind", ["classify", "multilabel"])
def test_a_pipeline_gives_the_same_labels_and_probabilities(kind: Kind, tmp_path: Path) -> None:
    ours, theirs, tokenizer = exported(tmp_path, kind, length=EVEN)
    ask = transformers.pipeline("text-classification", model=theirs, tokenizer=tokenizer, top_k=None, device="cpu")
    for size in (1, 4):
        for predicted, mine in zip(ask(TEXTS, truncation=True, batch_size=size), predict(ours, TEXTS), strict=True):
            assert {one["label"]: one["score"] for one in predicted} == pytest.approx(mine["probabilities"], abs=1e-5)
            if kind == "classify":
                assert predicted[0]["label"] == mine["label"]
            else:
                assert {one["label"] for one in predicted if one["score"] > 0.5} == set(mine["labels"])
    ours, theirs, tokenizer = exported(tmp_path / "pairs", kind, length=EVEN, pairs=True)
    ask = transformers.pipeline("text-classification", model=theirs, tokenizer=tokenizer, top_k=None, device="cpu")
    whole = [(first, second) for first, second in PAIRS if second]  # a pipeline takes an empty second text for none
    pairs = [{"text": first, "text_pair": second} for first, second in whole]
    for predicted, mine in zip(ask(pairs, truncation=True), predict(ours, whole), strict=True):
        assert {one["label"]: one["score"] for one in predicted} == pytest.approx(mine["probabilities"], abs=1e-5)


def test_a_pipeline_gives_the_same_value(tmp_path: Path) -> None:
    ours, _, _ = exported(tmp_path, "regress")
    ask = transformers.pipeline("text-classification", model=str(tmp_path / "hf"), device="cpu")
    for predicted, mine in zip(ask(TEXTS, truncation=True), predict(ours, TEXTS), strict=True):
        assert predicted == {"label": "value", "score": pytest.approx(mine["value"], abs=1e-5)}


@pytest.mark.parametrize(("offset", "scale"), [(2010.0, 7.5), (-1.7e9, 3e7), (0.0, 1e6)])
def test_a_regression_far_from_0_exports_in_its_unit(offset: float, scale: float, tmp_path: Path) -> None:
    ours, theirs, tokenizer = exported(tmp_path, "regress", offset=offset, scale=scale)
    assert (ours.about.offset, ours.about.scale) == (offset, scale)
    batch = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        logits = theirs(**batch).logits[:, 0].numpy()
    values = [one["value"] for one in predict(ours, TEXTS)]
    np.testing.assert_allclose(logits, values, rtol=1e-5, atol=1e-5 * scale)
    plain = loaded(tmp_path / "plain", "regress", scale=1.0)
    learned = [one["value"] for one in predict(plain, TEXTS)]
    np.testing.assert_allclose(values, offset + scale * np.array(learned), rtol=1e-6, atol=1e-6 * scale)


def test_a_pipeline_gives_the_same_tags(tmp_path: Path) -> None:
    ours, _, _ = exported(tmp_path, "tag")
    ask = transformers.pipeline("token-classification", model=str(tmp_path / "hf"), ignore_labels=[], device="cpu")
    lines = ["the dog sat on the mat", "we saw the zoo", "a bank ate money"]
    for line, mine in zip(lines, predict(ours, lines), strict=True):
        starts = {0, *(at + 1 for at, letter in enumerate(line) if letter == " ")}
        predicted = [one for one in ask(line) if one["start"] in starts]  # the first piece of each word
        assert [one["entity"] for one in predicted] == mine["tags"]
        assert [one["score"] for one in predicted] == pytest.approx(mine["probabilities"], abs=1e-5)


@given(st.integers(1, SIZE.width // 2), st.integers(0, 99))
def test_any_number_of_labels_that_fits(count: int, seed: int) -> None:
    """The head alone, as transformers computes it."""
    from transformers.models.electra.modeling_electra import ElectraClassificationHead

    from electra.finetune.export import _head

    labels = tuple(str(number) for number in range(count))
    tuned, about = make_tuned("classify", seed=seed)
    about = replace(about, labels=labels)
    tuned.head.out = torch.nn.Linear(SIZE.width, count)  # type: ignore[assignment]
    model = FinetunedModel(network=tuned, tokenizer=Tokenizer(VOCAB), config=SIZE, about=about, path=Path("m"))
    config = transformers.ElectraConfig(hidden_size=SIZE.width, num_labels=count)
    head = ElectraClassificationHead(config).eval()
    head.load_state_dict({name.removeprefix("classifier."): tensor for name, tensor in _head(model).items()})
    states = 5 * torch.randn(6, 1, SIZE.width, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        torch.testing.assert_close(head(states), tuned.head.out(states[:, 0]), atol=2e-5, rtol=1e-5)


def test_the_folder_describes_itself(tmp_path: Path) -> None:
    facts = {
        "scores": {"mcc": 61.2345, "f1": 70.0},
        "metrics": ("mcc", "f1"),
        "source": "small",
        "pretrained_length": 24,
    }
    exported(tmp_path, "classify", **facts)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "fair", "2": "good"} and config["label2id"]["good"] == 2
    assert config["problem_type"] == "single_label_classification" and config["pretrained_length"] == 24
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "| mcc, development set | 61.23 |" in card and "bad, fair, good" in card and "from | small" in card
    assert str(tmp_path) not in card
    again = read_source(tmp_path / "hf").weights  # the encoder of an export can be used and fine-tuned again
    assert again.config == SIZE and again.head is None and all("classifier" in name for name in again.unused)


def test_the_card_has_the_spread_over_seeds(tmp_path: Path) -> None:
    scores = {0: 50.0, 1: 90.0, 2: 70.0}
    for seed, score in scores.items():
        facts = {"scores": {"f1": score}, "metrics": ("f1",)}
        save(tmp_path / "run" / f"seed-{seed}", "classify", task="reviews", seed=seed, **facts)
    runs = tuple(SeedScore(seed=seed, scores={"f1": score}, steps=40, seconds=3.0) for seed, score in scores.items())
    rows, config = {"train": 100, "dev": 20}, {"lr": 3e-4, "epochs": 2.0}
    result = TaskResult(
        task="reviews", title="R", metrics=("f1",), seeds=runs, rows=rows, full={"train": 200}, config=config
    )
    write_results(tmp_path / "run" / "results.json", Suite(results=(result,)))
    export_finetuned(tmp_path / "run", tmp_path / "hf")
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "| f1, development set | 70.00 |" in card, "of the exported seed"
    assert "| f1 over 3 seeds | median 70.00, mean 70.00, std 20.00, 50.00 to 90.00 |" in card
    assert "| train rows | 100 of 200 |" in card and "| dev rows | 20 |" in card
    assert "| training | 40 steps, 3 s |" in card and "lr 0.0003, epochs 2.0" in card and "## Limits" in card
    (tmp_path / "run" / "results.json").write_text("{}")
    export_finetuned(tmp_path / "run", tmp_path / "again")
    assert "over 3 seeds" not in (tmp_path / "again" / "README.md").read_text()


def test_what_transformers_cannot_hold_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "qa", "span")
    with pytest.raises(CheckpointError, match="given its start.*span_head=plain.*electra predict answers questions"):
        export_finetuned(tmp_path / "qa", tmp_path / "hf")
    count = SIZE.width // 2 + 1
    tuned, about = make_tuned("tag", labels=tuple(f"l{number}" for number in range(count)))
    many = replace(about, kind="classify")
    save_finetuned(tmp_path / "many", tuned, tokenizer=Tokenizer(VOCAB), config=SIZE, about=many)
    with pytest.raises(
        CheckpointError, match=f"{count} labels need {2 * count} units .* {SIZE.width} .electra predict"
    ):
        export_finetuned(tmp_path / "many", tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
    save(tmp_path / "tags", "tag")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="not an empty folder"):
        export_finetuned(tmp_path / "tags", tmp_path / "full")


def test_the_command_takes_both_kinds_of_models(tmp_path: Path) -> None:
    for seed, score in ((0, 50.0), (1, 90.0), (2, 70.0)):
        save(tmp_path / "run" / f"seed-{seed}", "tag", seed=seed, scores={"f1": score}, metrics=("f1",))
    predicted = CliRunner().invoke(main, ["export", str(tmp_path / "run"), "--out", str(tmp_path / "hf")])
    assert predicted.exit_code == 0, predicted.stderr
    assert "ElectraForTokenClassification" in predicted.stdout and str(Path("run") / "seed-2") in predicted.stdout
    labels = json.loads((tmp_path / "hf" / "config.json").read_text())["id2label"]
    assert tuple(labels.values()) == LABELS["tag"]
    refused = CliRunner().invoke(
        main, ["export", str(tmp_path / "run"), "--out", str(tmp_path / "no"), "--part", "generator"]
    )
    assert refused.exit_code == 2 and "one network only" in refused.stderr
    make_run(tmp_path / "pretrained")
    predicted = CliRunner().invoke(main, ["export", str(tmp_path / "pretrained"), "--out", str(tmp_path / "pre")])
    assert predicted.exit_code == 0 and "ElectraForPreTraining" in predicted.stdout
