"""Small task files for tests of fine-tuning: GLUE folders, tables, CoNLL columns and SQuAD."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

WORDS = "the a chef cooked ate meal dog sat on mat we saw bank money and cat".split()
SIGN = "money"  # where a label follows from a text, it says whether this word is in it


def sentence(seed: object, *, sign: bool = False, words: int = 5) -> str:
    """A few words; with the sign among them where it is asked for."""
    chosen = random.Random(str(seed))
    made = [chosen.choice([word for word in WORDS if word != SIGN]) for _ in range(words)]
    if sign:
        made[chosen.randrange(words)] = SIGN
    return " ".join(made)


def write(path: Path, rows: Sequence[Sequence[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")
    return path


def cola(folder: Path, *, train: int = 24, dev: int = 8, test: int = 0) -> None:
    for split, count in (("train", train), ("dev", dev)):
        rows = [("x", row % 2, "", sentence(("cola", split, row), sign=row % 2 == 1)) for row in range(count)]
        write(folder / "CoLA" / f"{split}.tsv", rows)
    if test:
        rows = [(90 + row, sentence(("cola", "test", row), sign=row % 3 == 0)) for row in range(test)]
        write(folder / "CoLA" / "test.tsv", [("index", "sentence"), *rows])


def sst2(folder: Path, *, train: int = 24, dev: int = 8) -> None:
    for split, count in (("train", train), ("dev", dev)):
        rows = [(sentence(("sst2", split, row), sign=row % 2 == 1), row % 2) for row in range(count)]
        write(folder / "SST-2" / f"{split}.tsv", [("sentence", "label"), *rows])


def glue5(folder: Path, *, train: int = 24, dev: int = 8) -> Path:
    """All of GLUE-5."""
    for task in (cola, sst2, mrpc, stsb, rte):
        task(folder, train=train, dev=dev)
    return folder


def rte(folder: Path, *, train: int = 24, dev: int = 8, test: int = 0) -> None:
    _pairs(folder / "RTE", ("entailment", "not_entailment"), {"train": train, "dev": dev}, test=test)


def mrpc(folder: Path, *, train: int = 24, dev: int = 8) -> None:
    for split, count in (("train", train), ("dev", dev)):
        rows = [
            (row % 2, row, 1000 + row, sentence((split, row), sign=row % 2 == 1), sentence((split, row, 2)))
            for row in range(count)
        ]
        header = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
        write(folder / "MRPC" / f"{split}.tsv", [header, *rows])


def stsb(folder: Path, *, train: int = 24, dev: int = 8) -> None:
    for split, count in (("train", train), ("dev", dev)):
        rows = [
            (row, "news", sentence((split, row), sign=row % 2 == 1), sentence((split, row, 2)), row % 6)
            for row in range(count)
        ]
        write(folder / "STS-B" / f"{split}.tsv", [("index", "genre", "sentence1", "sentence2", "score"), *rows])


def mnli(folder: Path, *, train: int = 24, dev: int = 6, mismatched: int = 9, test: int = 0, ax: int = 0) -> None:
    labels = ("contradiction", "entailment", "neutral")
    counts = {"train": train, "dev_matched": dev, "dev_mismatched": mismatched}
    _pairs(folder / "MNLI", labels, counts, label="gold_label")
    header = ("index", "sentence1", "sentence2")
    for name in ("test_matched", "test_mismatched") if test else ():
        rows = [(row, sentence((name, row)), sentence((name, row, 2))) for row in range(test)]
        write(folder / "MNLI" / f"{name}.tsv", [header, *rows])
    if ax:
        rows = [(row, sentence(("ax", row)), sentence(("ax", row, 2))) for row in range(ax)]
        write(folder / "AX" / "test.tsv", [header, *rows])


def _pairs(folder: Path, labels: Sequence[str], counts: dict[str, int], *, label: str = "label", test: int = 0) -> None:
    for split, count in counts.items():
        rows = [
            (row, sentence((split, row), sign=row % 2 == 1), sentence((split, row, 2)), labels[row % len(labels)])
            for row in range(count)
        ]
        write(folder / f"{split}.tsv", [("index", "sentence1", "sentence2", label), *rows])
    if test:
        rows = [(row, sentence(("test", row)), sentence(("test", row, 2))) for row in range(test)]
        write(folder / "test.tsv", [("index", "sentence1", "sentence2"), *rows])


def table(path: Path, count: int, *, seed: object = 0, kind: str = "classify") -> Path:
    """A CSV whose label says whether the sign is in the text."""
    lines = ["text,label"]
    for row in range(count):
        labels = {"classify": ("no", "yes"), "regress": ("1.5", "-3"), "multilabel": ('"it,all"', "all")}[kind]
        lines.append(f"{sentence((seed, row), sign=row % 2 == 1)},{labels[row % 2]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def conll(path: Path, sentences: Sequence[Sequence[tuple[str, str]]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = ["".join(f"{word} {tag}\n" for word, tag in one) for one in sentences]
    path.write_text("\n".join(blocks), encoding="utf-8")
    return path


def squad(path: Path, count: int, *, seed: object = 0, impossible: bool = False) -> Path:
    """Questions whose answer is the word after the sign; every fourth has none where some may."""
    paragraphs = []
    for row in range(count):
        words = sentence((seed, row), words=8).split()
        place = random.Random(f"{seed} {row}").randrange(7)
        none = impossible and row % 4 == 3
        if not none:
            words[place] = SIGN
        context = " ".join(words)
        answer = {"text": words[place + 1], "answer_start": len(" ".join(words[: place + 1])) + 1}
        asked = {"id": f"q{row}", "question": "what is money on", "answers": [] if none else [answer]}
        if impossible:
            asked["is_impossible"] = none
        paragraphs.append({"context": context, "qas": [asked]})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": paragraphs}]}), encoding="utf-8")
    return path
