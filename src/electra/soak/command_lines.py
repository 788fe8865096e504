"""Small inputs, and every command that writes a folder, on them: what the campaigns start and interrupt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from electra.fsio import json_lines

# A stop saves and logs where it comes: with every step logged and one checkpoint kept, nothing of that stays.
PRETRAIN = (
    "model.layers=1", "model.width=64", "model.heads=1", "model.ffn=64", "model.embedding=32", "model.positions=32",
    "data.length=16", "train.steps=24", "train.batch_size=4", "train.log_every=1", "train.device=cpu",
    "train.precision=fp32", "optim.warmup_steps=4", "evaluate.sequences=4", "evaluate.every=8", "checkpoint.every=3",
    "checkpoint.keep=1",
)  # fmt: skip
FINETUNE = ("epochs=2", "batch_size=4", "length=16", "device=cpu", "precision=fp32", "eval_every=3", "log_every=3")
WORDS = "the a river mountain house café naïve 北京 música день world history letters book page".split()


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command and its arguments, all but the folder to write."""

    name: str
    arguments: tuple[str, ...]
    twin: Path
    """Where it writes undisturbed; later commands read that. All end in `out`: run.json has the name."""
    once: bool = False
    """Whether a folder that is there is refused: its existence says that it is whole."""

    def into(self, out: Path) -> list[str]:
        return [*self.arguments, "--out", str(out)]


def make_inputs(home: Path) -> list[CommandLine]:
    """Text, a table and GLUE files in a new folder, and commands, each of which reads what those before it write."""
    texts, glue = home / "texts", home / "glue"
    _write_texts(texts)
    write_table(home / "rows.jsonl", WORDS)
    _write_glue(glue)
    data, run, tuned, scores, exported, tuned_exported = (home / str(number) / "out" for number in range(6))
    rows = str(home / "rows.jsonl")
    prepare = ("prepare", str(texts), "--vocab-size", "200", "--workers", "1")
    pretrain = ("pretrain", "--data", str(data), "--preset", "tiny", *PRETRAIN)
    finetune = ("finetune", "classify", "--model", str(run), "--train", rows, "--dev", rows, "--seeds", "2", *FINETUNE)
    return [
        CommandLine("prepare", prepare, data),
        CommandLine("pretrain", pretrain, run),
        CommandLine("finetune", finetune, tuned),
        CommandLine("glue", ("glue", "--model", str(run), "--data", str(glue), "--save", *FINETUNE), scores),
        CommandLine("export of a run", ("export", str(run)), exported, once=True),
        CommandLine("export of a tuned model", ("export", str(tuned)), tuned_exported, once=True),
    ]


def sentences(count: int, chance: random.Random) -> list[str]:
    """Twelve words each, of several scripts."""
    return [" ".join(chance.choice(WORDS) for _ in range(12)).capitalize() + "." for _ in range(count)]


def _write_texts(folder: Path) -> None:
    folder.mkdir()
    chance = random.Random(0)
    for file in range(5):
        (folder / f"{file}.txt").write_text("\n\n".join(sentences(40, chance)) + "\n", encoding="utf-8")


def write_table(path: Path, words: Sequence[str]) -> None:
    """A row for each word, of two classes in turn."""
    rows = ({"text": f"a {word} in the house", "label": str(at % 2)} for at, word in enumerate(words))
    path.write_bytes(json_lines(rows))


def _write_glue(folder: Path) -> None:
    """CoLA and RTE with a few rows each."""
    for split in ("train", "dev"):
        cola = [f"x\t{at % 2}\t\tthe {word} is a house" for at, word in enumerate(WORDS)]
        labels = ("entailment", "not_entailment")
        rte = [f"{at}\tthe {word} is a house\ta {word}\t{labels[at % 2]}" for at, word in enumerate(WORDS)]
        for name, lines in (("CoLA", cola), ("RTE", ["index\tsentence1\tsentence2\tlabel", *rte])):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
