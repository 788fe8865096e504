"""The README of an exported folder: what the model is, its data, compute, scores and limits, how to load it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra import __version__
from electra.fsio import read_json
from electra.interop.models import Source
from electra.interop.settings import architecture
from electra.model.cost import train_flops
from electra.tokenizer.codec import Tokenizer
from electra.train.metrics_file import FILE, read_lines

Rows = Sequence[tuple[str, str]]
EVALUATED = {
    "eval/rtd_auc": "detection of replaced tokens, AUC",
    "eval/rtd_loss": "replaced-token loss, nats a token",
    "eval/mlm_accuracy": "masked tokens predicted right",
    "eval/mlm_loss": "masked-token loss, nats a token",
    "eval/main_accuracy": "tokens predicted right",
}
"""Held-out figures that a card shows, in order."""
_OF_DISCRIMINATOR = ("eval/rtd_", "eval/main_")


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What a card says, by section; a section without rows is left out."""

    title: str
    intro: str
    model: Rows
    data: Rows = ()
    compute: Rows = ()
    scores: Rows = ()
    limits: Sequence[str] = ()
    use: Sequence[str] = ()
    """Lines of Python."""
    library: str = "transformers"
    pipeline: str = ""
    tags: Sequence[str] = ("electra",)

    def __str__(self) -> str:
        """Markdown that a model hub shows."""
        tables = {"Data": self.data, "Compute": self.compute, "Scores": self.scores}
        lines = [
            "---",
            f"library_name: {self.library}",
            *([f"pipeline_tag: {self.pipeline}"] if self.pipeline else []),
            f"tags: [{', '.join(self.tags)}]",
            "---",
            f"# {self.title}",
            "",
            self.intro,
            "",
            *_table(self.model),
        ]
        for title, rows in tables.items():
            lines += ["", f"## {title}", "", *_table(rows)] if rows else []
        lines += ["", "## Limits", "", *(f"- {line}" for line in self.limits)] if self.limits else []
        lines += ["", "## Use", "", "```python", *self.use, "```"] if self.use else []
        return "\n".join(lines) + "\n"


def model_card(source: Source) -> Card:
    """The card of a pre-trained network."""
    weights = source.weights
    size = weights.config
    kind = architecture(size, weights.head)
    intro = f"Pre-trained with Electra {__version__}. These are the weights of a `transformers` `{kind}`"
    if size.rotary and weights.head == "detection":
        intro += ", which has no replaced-token head: that one is in the file too, for `electra detect`"
    count = sum(tensor.numel() for tensor in weights.tensors.values())
    facts = _facts(source)
    return Card(
        title=_title(source),
        intro=f"{intro}.",
        model=[
            ("network", f"{size.layers} layers x {size.width}, {size.heads} heads, embeddings {size.embedding}"),
            ("parameters", f"{count:,}"),
            ("vocabulary", vocabulary(source.tokenizer)),
            ("longest sequence in pre-training", f"{weights.length} tokens"),
        ],
        data=_data_rows(facts),
        compute=[*_training_rows(source), *_machine_rows(facts)],
        scores=_score_rows(source),
        limits=limits(source.tokenizer, length=weights.length, positions=size.positions),
        use=[
            "from transformers import AutoTokenizer, " + kind,
            "",
            'tokenizer = AutoTokenizer.from_pretrained("this folder")',
            f'model = {kind}.from_pretrained("this folder")',
        ],
    )


def vocabulary(tokenizer: Tokenizer) -> str:
    """A tokenizer in a few words."""
    kind = "entries of byte-level BPE" if tokenizer.kind == "bytes" else "WordPieces"
    return f"{tokenizer.vocab_size:,} {kind}, {'lower' if tokenizer.lowercase else 'mixed'} case"


def limits(tokenizer: Tokenizer, *, length: int, positions: int) -> list[str]:
    """What a pre-trained network cannot do, as sentences."""
    lines = []
    if length < positions:
        lines.append(f"Positions beyond {length} tokens were never trained: cut longer texts.")
    if tokenizer.lowercase:
        lines.append("It reads every text in lower case.")
    return [
        *lines,
        "It knows the language and the subjects of its training text, and shares that text's mistakes and biases.",
        "Nobody has examined it for bias or for safe use. Evaluate it on your own data before you rely on it.",
    ]


def _title(source: Source) -> str:
    if source.weights.head != "masked":
        return "ELECTRA discriminator" if source.weights.head else "ELECTRA encoder"
    if source.run is None or source.weights.objective == "replace-mlm":
        return "Masked language model"
    return "BERT" if source.run.objective.name == "mlm" else "ELECTRA generator"


def _training_rows(source: Source) -> Rows:
    if source.run is None or not source.step:
        return []
    cost = train_flops(source.run, steps=source.step)
    return [
        ("preset", source.run.preset),
        ("training", f"{source.step:,} steps, {cost.tokens:,} tokens"),
        ("training FLOPs, the paper's convention", f"{cost.paper:.3g}"),
        ("training FLOPs, matrix products", f"{cost.real:.3g}"),
    ]


def _machine_rows(facts: dict[str, Any]) -> Rows:
    gpus = facts.get("gpus")
    names = [str(gpu.get("name")) for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    machine = f"{len(names)} x {names[0]}" if names else facts.get("cpu")
    return [("trained on", machine)] if isinstance(machine, str) and machine else []


def _data_rows(facts: dict[str, Any]) -> Rows:
    data = facts.get("data")
    if not isinstance(data, dict):
        return []
    names = {"documents": "documents", "sentences": "sentences", "tokens": "tokens", "held_out_tokens": "held out"}
    rows = [(shown, f"{data[name]:,}") for name, shown in names.items() if isinstance(data.get(name), int)]
    digest = facts.get("data_sha256")
    texts = facts.get("text")
    for text in texts if isinstance(texts, list) else ():  # of a model that comes with the package
        if isinstance(text, dict) and text.get("title"):
            rows.append((str(text["title"]), f"{text.get('attribution')}; {text.get('licence')}"))
    return [*rows, *([("sha256 of its data.json", digest)] if isinstance(digest, str) else [])]


def _score_rows(source: Source) -> Rows:
    """Figures on held-out text, of the last evaluation up to the checkpoint."""
    run = _run_folder(source)
    if run is None or not (run / FILE).is_file():
        return []
    lines = [line for line in read_lines(run / FILE) if isinstance(line, dict) and line.get("kind") == "eval"]
    last = next((line for line in reversed(lines) if line.get("step", 0) <= (source.step or 0)), {})
    generates = source.weights.head == "masked"
    found = []
    for key, meaning in EVALUATED.items():
        value = last.get(key)
        fits = not generates if key.startswith(_OF_DISCRIMINATOR) else generates
        if fits and isinstance(value, float) and math.isfinite(value):
            found.append((f"{meaning}, held-out text", f"{value:.4f}"))
    return found


def _facts(source: Source) -> dict[str, Any]:
    """What run.json says of the run; nothing where there is none."""
    run = _run_folder(source)
    value = read_json(run / "run.json") if run is not None and (run / "run.json").is_file() else {}
    return value if isinstance(value, dict) else {}


def _run_folder(source: Source) -> Path | None:
    return None if source.run is None else source.path.parent.parent


def _table(rows: Rows) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows)]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
