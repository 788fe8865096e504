"""The README of an exported folder: what the model is, what it cost, how to load it."""

from __future__ import annotations

from electra import __version__
from electra.interop.models import Source
from electra.interop.settings import ARCHITECTURES
from electra.model.cost import train_flops
from electra.tokenizer.codec import Tokenizer


def model_card(source: Source) -> str:
    """Markdown that a model hub shows."""
    weights = source.weights
    kind = ARCHITECTURES[weights.head]
    size = weights.config
    count = sum(tensor.numel() for tensor in weights.tensors.values())
    rows = [
        ("network", f"{size.layers} layers x {size.width}, {size.heads} heads, embeddings {size.embedding}"),
        ("parameters", f"{count:,}"),
        ("vocabulary", f"{size.vocab_size:,} {_entries(source.tokenizer)}"),
        ("longest sequence in pre-training", f"{weights.length} tokens"),
        *_training_rows(source),
    ]
    lines = [
        "---",
        "library_name: transformers",
        "tags: [electra]",
        "---",
        f"# {_title(source)}",
        "",
        f"Pre-trained with Electra {__version__}. These are the weights of a `transformers` `{kind}`.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows),
        "",
        "```python",
        "from transformers import AutoTokenizer, " + kind,
        "",
        'tokenizer = AutoTokenizer.from_pretrained("this folder")',
        f'model = {kind}.from_pretrained("this folder")',
        "```",
    ]
    return "\n".join(lines) + "\n"


def _entries(tokenizer: Tokenizer) -> str:
    kind = "entries of byte-level BPE" if tokenizer.kind == "bytes" else "WordPieces"
    return f"{kind}, {'lower' if tokenizer.lowercase else 'mixed'} case"


def _title(source: Source) -> str:
    if source.weights.head != "masked":
        return "ELECTRA discriminator" if source.weights.head else "ELECTRA encoder"
    if source.run is None or source.weights.objective == "replace-mlm":
        return "Masked language model"
    return "BERT" if source.run.objective.name == "mlm" else "ELECTRA generator"


def _training_rows(source: Source) -> list[tuple[str, str]]:
    if source.run is None or not source.step:
        return []
    cost = train_flops(source.run, steps=source.step)
    return [
        ("preset", source.run.preset),
        ("training", f"{source.step:,} steps, {cost.tokens:,} tokens"),
        ("training FLOPs, the paper's convention", f"{cost.paper:.3g}"),
        ("training FLOPs, matrix products", f"{cost.real:.3g}"),
    ]
