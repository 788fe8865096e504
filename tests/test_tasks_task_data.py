"""Task files as jobs: rows, features, scores, leaderboard parts; and the seeds that are run from them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import task_files
import torch
from model_folders import VOCAB
from tiny_tuning import MINI, PLAIN, tiny_base

from electra.config.finetune import FinetuneConfig
from electra.errors import ConfigError, DataError
from electra.finetune.pretrained import Pretrained, check_length, load_pretrained, settings_for
from electra.finetune.seeds import run_seeds, together_on
from electra.tasks.features import swapped
from electra.tasks.glue_files import read_glue
from electra.tasks.glue_tasks import TASKS, glue_task
from electra.tasks.named_tasks import split_files
from electra.tasks.task_data import TaskData, load_glue, load_questions, load_table, load_tagging
from electra.tokenizer.codec import Tokenizer
from electra.tokenizer.vocabulary import read_vocab
from electra.train.interrupt import Stop

TOKENIZER = Tokenizer(VOCAB)


def glue(folder: Path, name: str, config: FinetuneConfig = PLAIN) -> TaskData:
    return load_glue(glue_task(name), folder, tokenizer=TOKENIZER, config=config)


def own(folder: Path, kind: str, *, train: int = 8, dev: int = 4, **columns: Any) -> TaskData:
    files = {
        "train": task_files.table(folder / "train.csv", train, kind=kind),
        "dev": task_files.table(folder / "dev.csv", dev, seed=1, kind=kind),
    }
    columns = {"text": "text", "pair": None, "label": "label", **columns}
    return load_table("mine", files, kind=kind, tokenizer=TOKENIZER, config=PLAIN, **columns)  # type: ignore[arg-type]


def decoded(ids: list[int]) -> str:
    return " ".join(VOCAB[one] for one in ids)


def classes(folder: Path, *labels: str, name: str = "train.csv") -> TaskData:
    """A table with a row for each label."""
    path = folder / name
    path.write_text("text,label\n" + "".join(f"row {at},{label}\n" for at, label in enumerate(labels)))
    files = {"train": path}
    return load_table(
        "mine", files, kind="classify", text="text", pair=None, label="label", tokenizer=TOKENIZER, config=PLAIN
    )


# GLUE


def test_a_glue_task(tmp_path: Path) -> None:
    task_files.cola(tmp_path, train=24, dev=8, test=5)
    data = glue(tmp_path, "cola")
    assert data.rows == {"train": 24, "dev": 8} and data.full == {"train": 8551, "dev": 1043}
    assert list(data.eval_splits) == ["dev", "test"] and len(data.train.ids) == 24
    assert decoded(data.train.ids[1]) == f"[CLS] {task_files.sentence(('cola', 'train', 1), sign=True)} [SEP]"
    assert np.array(data.train.targets).tolist() == [0, 1] * 12
    assert data.eval_splits["dev"].evaluate is not None and data.eval_splits["test"].evaluate is None
    scores = np.array([[0.0, 1.0], [2.0, 1.0], [0.0, 3.0], [0.0, 3.0], [1.0, 0.0]])
    assert data.eval_splits["test"].decode({"scores": scores}) == {
        "90": "1",
        "91": "0",
        "92": "1",
        "93": "1",
        "94": "0",
    }
    assert {name: (task.name, split) for name, (task, split) in data.tests.items()} == {"test": ("cola", "test")}


def test_swapped_pairs_are_in_train_only(tmp_path: Path) -> None:
    task_files.mrpc(tmp_path)
    task_files.stsb(tmp_path)
    task_files.rte(tmp_path)
    for name, count in (("mrpc", 48), ("stsb", 48), ("rte", 24)):
        data = glue(tmp_path, name)
        assert len(data.train.ids) == count and len(data.eval_splits["dev"].features.ids) == 8
        assert data.rows == {"train": 24, "dev": 8}, "as in the files"
    data = glue(tmp_path, "stsb")
    first, again = decoded(data.train.ids[3]), decoded(data.train.ids[27])
    left, right = first.removeprefix("[CLS] ").removesuffix(" [SEP]").split(" [SEP] ")
    assert left != right and again == f"[CLS] {right} [SEP] {left} [SEP]"
    assert np.asarray(data.train.targets)[[3, 27]].tolist() == pytest.approx([3 / 5, 3 / 5])


def test_mnli_has_a_score_for_each_dev_set_and_answers_ax(tmp_path: Path) -> None:
    task_files.mnli(tmp_path, test=3, ax=4)
    data = glue(tmp_path, "mnli")
    assert list(data.eval_splits) == ["dev", "dev_mismatched", "test", "test_mismatched", "ax-test"]
    assert data.rows == {"train": 24, "dev": 6, "dev_mismatched": 9}
    assert data.task.metrics == ("accuracy", "accuracy_mismatched") and data.task.metric == "accuracy"
    assert {name: (task.title, split) for name, (task, split) in data.tests.items()} == {
        "test": ("MNLI", "test"),
        "test_mismatched": ("MNLI", "test_mismatched"),
        "ax-test": ("AX", "test"),
    }
    base = tiny_base(MINI)
    run = next(run_seeds(base, data, config=replace(PLAIN, epochs=1.0), seeds=[0], stop=Stop()))
    for split, name in (("dev", "accuracy"), ("dev_mismatched", "accuracy_mismatched")):
        gold = [str(row.label) for row in read_glue(TASKS["mnli"], tmp_path, split)]
        right = [outputs == label for outputs, label in zip(run.predictions[split].values(), gold, strict=True)]
        assert run.scores[name] == pytest.approx(100 * sum(right) / len(right))
    assert list(run.predictions["ax-test"]) == ["0", "1", "2", "3"]
    assert set(run.predictions["ax-test"].values()) <= set(TASKS["ax"].labels)


def test_mnli_without_the_mismatched_set(tmp_path: Path) -> None:
    task_files.mnli(tmp_path)
    (tmp_path / "MNLI" / "dev_mismatched.tsv").unlink()
    data = glue(tmp_path, "mnli")
    assert data.task.metrics == ("accuracy",) and data.rows == {"train": 24, "dev": 6}


def test_glue_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="RTE has no train file .give the folder that holds"):
        glue(tmp_path / "nowhere", "rte")
    task_files.rte(tmp_path)
    (tmp_path / "RTE" / "dev.tsv").unlink()
    with pytest.raises(DataError, match="RTE has no dev file"):
        glue(tmp_path, "rte")
    with pytest.raises(DataError, match="AX has no train file"):
        glue(tmp_path, "ax")


def test_two_test_rows_of_one_index(tmp_path: Path) -> None:
    task_files.cola(tmp_path, test=3)
    path = tmp_path / "CoLA" / "test.tsv"
    path.write_text(path.read_text().replace("91\t", "90\t"))
    with pytest.raises(DataError, match="two rows of CoLA's test file have the same index"):
        glue(tmp_path, "cola")


SLOW = pytest.mark.slow  # many rows to tokenize
REAL = {
    "cola": (8551, 1043),
    "sst2": (67349, 872),
    "mrpc": (3668, 408),
    "stsb": (5749, 1500),
    "rte": (2490, 277),
    "wnli": (635, 71),
    "qnli": (9999, 5463),
    "mnli": (19636, 9815, 1000),
    "qqp": (46000, 5000),
}


@pytest.mark.skipif(not os.environ.get("ELECTRA_DATA"), reason="ELECTRA_DATA names no folder with glue/ and vocab/")
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=SLOW if one in ("sst2", "qqp", "mnli") else ()) for one in REAL]
)
def test_rows_of_the_real_files(name: str) -> None:
    """As the data's README counts them."""
    folder = Path(os.environ["ELECTRA_DATA"])
    tokenizer = Tokenizer(read_vocab(folder / "vocab" / "bert-uncased.txt"))
    data = load_glue(glue_task(name), folder / "glue", tokenizer=tokenizer, config=FinetuneConfig())
    assert tuple(data.rows.values()) == REAL[name]
    doubled = 2 if name in ("mrpc", "stsb") else 1
    assert len(data.train.ids) == doubled * REAL[name][0] and len(data.eval_splits["dev"].features.ids) == REAL[name][1]
    assert (data.rows == data.full) == (name not in ("qnli", "mnli", "qqp"))


# Own data


def test_a_table(tmp_path: Path) -> None:
    data = own(tmp_path, "classify")
    assert data.task.labels == ("no", "yes") and data.task.metrics == ("accuracy", "macro_f1")
    assert data.rows == {"train": 8, "dev": 4} and not data.full and not data.tests
    assert np.asarray(data.train.targets).tolist() == [0, 1] * 4
    evaluation = data.eval_splits["dev"].evaluate({"scores": np.array([[1.0, 0], [0, 1], [0, 1], [0, 1]])})  # type: ignore[misc]
    assert evaluation.scores["accuracy"] == 75.0 and not evaluation.stuck


def test_a_table_of_numbers_is_learned_around_its_mean(tmp_path: Path) -> None:
    data = own(tmp_path, "regress")
    assert (data.task.offset, data.task.scale) == (-0.75, 2.25) and data.task.metrics == ("spearman", "pearson", "mse")
    assert np.asarray(data.train.targets).tolist() == [1.0, -1.0] * 4
    perfect = data.eval_splits["dev"].evaluate({"scores": np.array([[1.5], [-3], [1.5], [-3]])})  # type: ignore[misc]
    assert perfect.scores == pytest.approx({"spearman": 100.0, "pearson": 100.0, "mse": 0.0})


def test_a_table_of_several_labels(tmp_path: Path) -> None:
    data = own(tmp_path, "multilabel")
    assert data.task.labels == ("all", "it")
    assert np.asarray(data.train.targets).tolist() == [[1.0, 1.0], [1.0, 0.0]] * 4
    assert data.eval_splits["dev"].decode({"scores": np.array([[1.0, -1], [-1, -1], [2, 3], [-1, 1]])}) == {
        "0": ("all",),
        "1": (),
        "2": ("all", "it"),
        "3": ("it",),
    }


def test_tables_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="train.csv: line 2: no column 'body'; found text, label"):
        own(tmp_path, "classify", text="body")
    with pytest.raises(DataError, match="train.csv: column 'label' has one label only: 'no'"):
        own(tmp_path, "classify", train=1)
    with pytest.raises(DataError, match=r"train.csv: column 'label' has one number only: 1.5 \(name another column"):
        own(tmp_path, "regress", train=1)
    files = {
        "train": task_files.table(tmp_path / "train.csv", 8),
        "dev": task_files.table(tmp_path / "dev.csv", 4),
    }
    files["dev"].write_text(files["dev"].read_text().replace(",yes", ",maybe"))
    columns: dict[str, Any] = {"text": "text", "pair": None, "label": "label"}
    with pytest.raises(DataError, match="dev.csv: line 3: label 'maybe' is not one of the task's"):
        load_table("mine", files, kind="classify", tokenizer=TOKENIZER, config=PLAIN, **columns)


def test_words_with_tags(tmp_path: Path) -> None:
    """Answers are in the scheme of the file; sentences longer than the model are put together again."""
    long = [("chef", "I-WHO"), ("cooked", "O")] * 30
    files = {
        "train": task_files.conll(tmp_path / "train.txt", [[("the", "O"), ("dog", "I-WHO"), ("cat", "I-WHO")]]),
        "dev": task_files.conll(tmp_path / "dev.txt", [long, [("we", "O")]]),
    }
    data = load_tagging("ner", files, tokenizer=TOKENIZER, config=PLAIN)
    assert data.task.labels == ("O", "I-WHO", "B-WHO") and data.task.metric == "f1"
    assert data.train.targets == [[-1, 0, 1, 1, -1]] and data.rows == {"train": 1, "dev": 2}
    part = data.eval_splits["dev"]
    assert len(part.features.ids) > 2, "windows"
    single, outside = data.task.labels.index("I-WHO"), 0
    right = [np.eye(3)[[single if VOCAB[token] == "chef" else outside for token in ids]] for ids in part.features.ids]
    evaluation = part.evaluate({"scores": right})  # type: ignore[misc]
    assert evaluation.scores == {"accuracy": 100.0, "f1": 100.0, "precision": 100.0, "recall": 100.0}
    assert part.decode({"scores": right})["0"] == ["I-WHO", "O"] * 30
    wrong = [np.eye(3)[[outside] * len(ids)] for ids in part.features.ids]
    evaluation = part.evaluate({"scores": wrong})  # type: ignore[misc]
    assert evaluation.stuck and evaluation.scores["accuracy"] == pytest.approx(100 * 31 / 61)


def test_parts_of_speech_are_scored_by_word(tmp_path: Path) -> None:
    rows = [[("the", "DET"), ("dog", "NOUN")]]
    files = {split: task_files.conll(tmp_path / f"{split}.txt", rows) for split in ("train", "dev")}
    data = load_tagging("pos", files, tokenizer=TOKENIZER, config=PLAIN)
    assert data.task.labels == ("DET", "NOUN") and data.task.metrics == ("accuracy",)


def questions(folder: Path, *, impossible: bool, name: str = "mine", dev: int = 8) -> TaskData:
    files = {
        "train": task_files.squad(folder / "train.json", 12, impossible=impossible),
        "dev": task_files.squad(folder / "dev.json", dev, seed=1, impossible=impossible),
    }
    config = replace(PLAIN, max_query=8, doc_stride=4)
    return load_questions(name, files, tokenizer=TOKENIZER, config=config)


def span_outputs(data: TaskData, *, right: bool) -> dict[str, Any]:
    """A head that is sure of the word after the sign, or of the first word always."""
    features = data.eval_splits["dev"].features
    sign = VOCAB.index(task_files.SIGN)
    at = []
    for ids, first in zip(features.ids, features.a_lengths, strict=True):
        passage = ids[first:]
        at.append(first + passage.index(sign) + 1 if right and sign in passage else first)
    count = len(at)
    null = [-9.0 if sign in ids[first:] else 9.0 for ids, first in zip(features.ids, features.a_lengths, strict=True)]
    return {
        "starts": np.zeros((count, 1), np.float32),
        "start_at": np.array(at)[:, None],
        "ends": np.zeros((count, 1, 1), np.float32),
        "end_at": np.array(at)[:, None, None],
        "null": np.array(null, np.float32),
    }


def test_questions(tmp_path: Path) -> None:
    data = questions(tmp_path, impossible=False)
    assert data.task.metrics == ("exact", "f1") and data.rows == {"train": 12, "dev": 8} and not data.full
    targets = np.asarray(data.train.targets)
    for ids, (start, end, null) in zip(data.train.ids, targets, strict=True):
        assert start == end and not null and VOCAB[ids[start - 1]] == task_files.SIGN
    evaluation = data.eval_splits["dev"].evaluate(span_outputs(data, right=True))  # type: ignore[misc]
    assert evaluation.scores["exact"] == evaluation.scores["f1"] == 100.0 and not evaluation.stuck
    assert questions(tmp_path, impossible=False, name="squad").full == {"train": 87_599, "dev": 10_570}


def test_questions_without_answers(tmp_path: Path) -> None:
    data = questions(tmp_path, impossible=True, name="squad2")
    assert data.task.metrics == ("exact", "f1", "best_exact", "best_f1")
    assert data.full == {"train": 130_319, "dev": 11_873}
    assert np.asarray(data.train.targets)[:, 2].tolist() == [0, 0, 0, 1] * 3
    evaluation = data.eval_splits["dev"].evaluate(span_outputs(data, right=True))  # type: ignore[misc]
    assert evaluation.scores["exact"] == evaluation.scores["best_exact"] == 100.0


def test_question_files_that_cannot_be(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    questions(tmp_path, impossible=False)
    files = {split: tmp_path / f"{split}.json" for split in ("train", "dev")}

    def changed(split: str, **values: Any) -> None:
        whole = json.loads(files[split].read_text())
        for paragraph in whole["data"][0]["paragraphs"]:
            paragraph["qas"][0].update(values)
            if "answers" in values and values["answers"]:
                paragraph["context"] = "dog \u200b cat"
        files[split].write_text(json.dumps(whole))

    config = replace(PLAIN, max_query=8)
    changed("dev", answers=[])
    with pytest.raises(DataError, match="dev.json: question 'q0' has no answer to score against"):
        load_questions("mine", files, tokenizer=TOKENIZER, config=config)
    questions(tmp_path, impossible=False)
    changed("train", answers=[{"text": "\u200b", "answer_start": 4}])
    with pytest.raises(DataError, match="train.json: no answer can be placed in its context, the first is 'q0'"):
        load_questions("mine", files, tokenizer=TOKENIZER, config=config)
    whole = json.loads(files["train"].read_text())
    whole["data"][0]["paragraphs"][0]["qas"][0]["answers"] = [{"text": "dog", "answer_start": 0}]
    files["train"].write_text(json.dumps(whole))
    capfd.readouterr()
    assert len(load_questions("mine", files, tokenizer=TOKENIZER, config=config).train.ids) == 1
    assert "11 of 12 questions left out, their answers cover no token, the first is 'q1'" in capfd.readouterr().err


def test_the_files_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--data: .* is not there"):
        split_files(tmp_path / "none", suffixes=(".csv",))
    (tmp_path / "train.csv").touch()
    with pytest.raises(DataError, match="has no dev file .name it dev.csv, dev.jsonl, valid.csv, valid.jsonl"):
        split_files(tmp_path, suffixes=(".csv", ".jsonl"))
    (tmp_path / "validation.jsonl").touch()
    assert split_files(tmp_path, suffixes=(".csv", ".jsonl")) == {
        "train": tmp_path / "train.csv",
        "dev": tmp_path / "validation.jsonl",
    }


def test_questions_are_stuck_on_one_text(tmp_path: Path) -> None:
    one = questions(tmp_path, impossible=False, dev=1)
    assert not one.eval_splits["dev"].evaluate(span_outputs(one, right=True)).stuck  # type: ignore[misc]
    context = "dog sat on money"
    asked = [
        {"id": text, "question": "what", "answers": [{"text": text, "answer_start": context.index(text)}]}
        for text in ("dog", "money")
    ]
    whole = {"data": [{"paragraphs": [{"context": context, "qas": asked}]}]}
    (tmp_path / "dev.json").write_text(json.dumps(whole))
    files = {split: tmp_path / f"{split}.json" for split in ("train", "dev")}
    data = load_questions("mine", files, tokenizer=TOKENIZER, config=replace(PLAIN, max_query=8))
    outputs = span_outputs(data, right=False)
    assert {name: answer.text for name, answer in data.eval_splits["dev"].decode(outputs).items()} == {
        "dog": "dog",
        "money": "dog",
    }
    evaluation = data.eval_splits["dev"].evaluate(outputs)  # type: ignore[misc]
    assert evaluation.stuck and evaluation.scores["exact"] == 50.0


# From a base to finished seeds


def test_a_base_of_any_length(tmp_path: Path) -> None:
    base = tiny_base(MINI)
    spans = settings_for(base, "squad", kind="span")
    assert (spans.length, spans.doc_stride, spans.max_query) == (24, 6, 12), "windows of a short model overlap"
    assert settings_for(replace(base, length=512), "squad", kind="span") == FinetuneConfig(
        epochs=2.0, length=512, lr=5e-4
    )
    assert settings_for(base, "rte", kind="classify").length == 24
    with pytest.raises(ConfigError, match=r"length: 33 is more than the model's 32 positions \(length=32\)"):
        check_length(base, 33)
    with pytest.raises(ConfigError, match="length: 33 is more"):
        next(run_seeds(base, own(tmp_path, "classify"), config=replace(PLAIN, length=33), seeds=[0], stop=Stop()))


def test_fresh_weights_are_other_weights_of_the_same_sizes() -> None:
    base = tiny_base(MINI)
    fresh, again, other = base.untrained(), base.untrained(), base.untrained(seed=1)
    shapes = [{name: value.shape for name, value in one.encoder.state_dict().items()} for one in (base, fresh, other)]
    assert shapes[0] == shapes[1] == shapes[2]
    assert fresh.name == "tiny, untrained" and fresh.tokenizer is base.tokenizer
    assert fresh.checksum == again.checksum and len({base.checksum, fresh.checksum, other.checksum}) == 3


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    data = own(tmp_path, "classify")
    with pytest.raises(ConfigError, match=r"^device: this machine has no usable CUDA device \(device=cpu\)"):
        next(run_seeds(tiny_base(MINI), data, config=replace(PLAIN, device="cuda"), seeds=[0], stop=Stop()))


def test_seeds_side_by_side() -> None:
    cuda = torch.device("cuda")
    assert [together_on(cuda, width) for width in (128, 256, 257, 768, 1024)] == [5, 5, 2, 2, 1]
    assert together_on(torch.device("cpu"), 128) == 1


def test_seeds_one_after_the_other_or_together_are_the_same(tmp_path: Path) -> None:
    data, base = own(tmp_path, "classify", train=20), tiny_base(MINI)
    config = replace(PLAIN, max_train_rows=12)
    calls: dict[int, list[tuple[int, int]]] = {}
    scores = {}
    for together in (1, 3):
        calls[together] = []
        runs = run_seeds(
            base,
            data,
            config=config,
            seeds=[4, 5, 6],
            stop=Stop(),
            together=together,
            on_step=lambda done, total, loss, into=calls[together]: into.append((done, total)),  # type: ignore[misc]
        )
        scores[together] = [(run.seed, run.scores, run.steps, run.predictions) for run in runs]
    assert scores[1] == scores[3]
    steps = scores[1][0][2]
    assert calls[1] == calls[3] == [(done, 3 * steps) for done in range(1, 3 * steps + 1)]


def test_the_saved_weights_predict_as_was_scored(tmp_path: Path) -> None:
    """What a finished run hands over is the network whose predictions were scored."""
    data, base = own(tmp_path, "classify", train=20, dev=10), tiny_base(MINI)
    run = next(run_seeds(base, data, config=replace(PLAIN, epochs=2.0), seeds=[0], stop=Stop()))
    tuned = {name: value.detach() for name, value in run.network.named_parameters()}
    assert tuned.keys() == run.weights.keys()
    assert all(torch.equal(value, run.weights[name]) for name, value in tuned.items())
    gold = np.asarray(data.eval_splits["dev"].features.targets)
    outputs = [data.task.labels.index(one) for one in run.predictions["dev"].values()]
    assert run.scores["accuracy"] == pytest.approx(100 * float((np.array(outputs) == gold).mean()))


def test_swapping_keeps_single_texts_single(tmp_path: Path) -> None:
    task_files.cola(tmp_path)
    rows = read_glue(TASKS["cola"], tmp_path, "train")
    assert swapped(rows) == rows


def test_a_base_is_any_folder(tmp_path: Path) -> None:
    from model_folders import make_run

    make_run(tmp_path / "run")
    base = load_pretrained(tmp_path / "run")
    assert isinstance(base, Pretrained) and (base.name, base.length) == ("run", 24)


# Labels that look like a mistake


def test_defect_labels_that_differ_in_case_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = classes(tmp_path, *["NEG", "neg", "pos"] * 5)
    assert data.task.labels == ("NEG", "neg", "pos")
    warning = f"warning: {tmp_path}/train.csv: these labels differ in case only, and are classes of their own: NEG, neg"
    assert warning in capsys.readouterr().err.splitlines()
    classes(tmp_path, *["neg", "pos"] * 5)
    assert "warning" not in capsys.readouterr().err


def test_defect_labels_that_hold_another_separator_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.csv"
    path.write_text("text,label\n" + "".join(f"row {at},{['a;b', 'b;c', 'c'][at % 3]}\n" for at in range(30)))
    columns: dict[str, Any] = {"text": "text", "pair": None, "label": "label", "kind": "multilabel"}
    load_table("mine", {"train": path}, tokenizer=TOKENIZER, config=PLAIN, **columns)
    reason = "labels with ';' in them, such as 'a;b', are one label each; --separator ';' takes them apart"
    assert f"warning: {path}: {reason}" in capsys.readouterr().err.splitlines()
    data = load_table("mine", {"train": path}, separator=";", tokenizer=TOKENIZER, config=PLAIN, **columns)
    assert data.task.labels == ("a", "b", "c") and "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("labels", [[f"id-{at}" for at in range(30)], [f"{at / 7:.3f}" for at in range(30)]])
def test_defect_labels_that_occur_once_are_no_classes(
    labels: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that 300 rows are too few."""
    message = (
        r"every label in column 'label' occurs once, .* \(another column with --label, or electra finetune regress"
    )
    with pytest.raises(DataError, match=message):
        classes(tmp_path, *labels)
    assert capsys.readouterr().err == ""


def test_defect_many_numbers_are_hardly_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classes(tmp_path, *[str(at / 2) for at in range(30)] * 2)
    warning = "30 different numbers are a class each; if they measure something, use electra finetune regress"
    assert f"warning: {tmp_path}/train.csv: {warning}" in capsys.readouterr().err.splitlines()
    classes(tmp_path, *[str(at / 2) for at in range(10)] * 2)
    classes(tmp_path, *[f"class {at}" for at in range(30)] * 2)
    assert "warning" not in capsys.readouterr().err
