"""A fine-tuned model as a folder that transformers loads, with the same outputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from electra import __version__
from electra.errors import CheckpointError, ConfigError
from electra.finetune.model_folder import FinetunedModel, is_finetuned, load_finetuned
from electra.fsio import read_json, write_atomic, write_json
from electra.interop import huggingface, names, settings
from electra.interop.names import Part, Tensors
from electra.interop.transfer import export_model, require_free
from electra.manifest import commit_folder
from electra.model.encoder import discriminator_shape
from electra.tokenizer.codec import CONFIG_FILE

SEQUENCES, TOKENS = "ElectraForSequenceClassification", "ElectraForTokenClassification"
VALUE = "value"
"""Name of a regression's only output."""
_PROBLEMS = {
    "classify": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regress": "regression",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What was written: the transformers class, its number of parameters, and the folder it came from."""

    architecture: str
    parameters: int
    path: Path


def export(path: Path, out: Path, *, part: Part = "discriminator") -> Exported:
    """Write any model of ours for transformers; of a fine-tuning run it is the seed with the median score."""
    if is_finetuned(path):
        if part != "discriminator":
            raise ConfigError("--part", "a fine-tuned model has one network only", fix="leave it out")
        return export_finetuned(path, out)
    source = export_model(path, out, part=part)
    count = sum(tensor.numel() for tensor in source.weights.tensors.values())
    return Exported(architecture=settings.ARCHITECTURES[source.weights.head], parameters=count, path=source.path)


def export_finetuned(path: Path, out: Path) -> Exported:
    """Write a fine-tuned model, or a run's median one, for transformers: config, weights, tokenizer, README.md."""
    require_free(out)
    loaded = load_finetuned(path)
    head = _head(loaded)
    own = {name: tensor.detach() for name, tensor in loaded.network.named_parameters()}
    table = names.translation(discriminator_shape(loaded.config), None)
    tensors = names.to_transformers(own, table) | head
    values = _settings(loaded)
    with commit_folder(out) as aside:
        huggingface.write_files(aside, values, tensors)
        loaded.tokenizer.save(aside)
        # [SEP] written in a text is three ordinary tokens, as in training.
        limits = {"model_max_length": loaded.about.length, "split_special_tokens": True}
        write_json(aside / CONFIG_FILE, read_json(aside / CONFIG_FILE) | limits)
        write_atomic(aside / "README.md", model_card(loaded).encode())
    count = sum(tensor.numel() for tensor in tensors.values())
    return Exported(architecture=values["architectures"][0], parameters=count, path=loaded.path)


def _head(loaded: FinetunedModel) -> Tensors:
    """The head's tensors under transformers' names; refused where its class cannot compute the same."""
    about, width = loaded.about, loaded.config.width
    if about.kind == "span":
        reason = "transformers has no class for its head, which scores the end of an answer given its start"
        raise CheckpointError(loaded.path, reason, fix="electra predict answers questions with it")
    own = dict(loaded.network.head.named_parameters())
    weight, bias = own["out.weight"].detach(), own["out.bias"].detach()
    if about.kind == "tag":
        return {"classifier.weight": weight.clone(), "classifier.bias": bias.clone()}
    if about.kind == "regress":
        weight, bias = weight * about.scale, bias * about.scale
    count = len(weight)
    if 2 * count > width:
        reason = f"{count} labels need {2 * count} units in transformers' classifier, which has the model's {width}"
        raise CheckpointError(loaded.path, reason, fix="electra predict uses it as it is")
    # transformers has a hidden layer there: dense, GELU, out_proj. gelu(z) - gelu(-z) = z makes it our linear one.
    dense, out = torch.zeros(width, width), torch.zeros(count, width)
    dense[:count], dense[count : 2 * count] = weight, -weight
    out[:, :count], out[:, count : 2 * count] = torch.eye(count), -torch.eye(count)
    return {
        "classifier.dense.weight": dense,
        "classifier.dense.bias": torch.zeros(width),
        "classifier.out_proj.weight": out,
        "classifier.out_proj.bias": bias.clone(),
    }


def _settings(loaded: FinetunedModel) -> dict[str, Any]:
    about = loaded.about
    length = about.pretrained_length or loaded.config.positions
    values = settings.to_transformers(loaded.config, head=None, pad_id=loaded.tokenizer.pad_id, length=length)
    labels = about.labels or (VALUE,)
    values |= {
        "architectures": [TOKENS if about.kind == "tag" else SEQUENCES],
        "classifier_dropout": about.dropout,
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }
    if about.kind in _PROBLEMS:
        values["problem_type"] = _PROBLEMS[about.kind]
    return values


def model_card(loaded: FinetunedModel) -> str:
    """Markdown that a model hub shows: the task, the scores, how to use it."""
    about, size = loaded.about, loaded.config
    pipeline = "token-classification" if about.kind == "tag" else "text-classification"
    many = len(about.labels) > 20
    rows = [
        ("task", f"{about.title} ({about.kind})"),
        *([("labels", ", ".join(about.labels[:20]) + (", ..." if many else ""))] if about.labels else []),
        ("network", f"{size.layers} layers x {size.width}, {size.heads} heads, embeddings {size.embedding}"),
        ("longest input", f"{about.length} tokens"),
        *([("fine-tuned from", about.source)] if about.source else []),
        ("seed", str(about.seed)),
        *((f"{name}, development set", f"{about.scores[name]:.2f}") for name in about.metrics if name in about.scores),
    ]
    options = ", top_k=None" if about.kind in ("classify", "multilabel") else ""
    texts = '{"text": "One text.", "text_pair": "Another."}' if about.pairs else '"Some text."'
    lines = [
        "---",
        "library_name: transformers",
        f"pipeline_tag: {pipeline}",
        "tags: [electra]",
        "---",
        f"# ELECTRA for {about.title}",
        "",
        f"Fine-tuned with Electra {__version__}. The figures are this seed's.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {_cell(value)} |" for name, value in rows),
        "",
        "```python",
        "from transformers import pipeline",
        "",
        f'classify = pipeline("{pipeline}", "this folder"{options})',
        f"classify({texts})" if about.kind == "tag" else f"classify({texts}, truncation=True)",
        "```",
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
