"""Any model of ours as a folder that others load: transformers, ONNX Runtime, sentence-transformers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from electra.errors import CheckpointError, ConfigError
from electra.finetune.card import finetuned_card
from electra.finetune.model_folder import FinetunedModel, load_finetuned
from electra.fsio import write_atomic
from electra.interop import huggingface, onnx_graph, settings
from electra.interop.card import Card, model_card
from electra.interop.embedding_folder import Pooling, write_modules
from electra.interop.finetuned_folder import is_finetuned
from electra.interop.models import Source, read_source
from electra.interop.names import Part, Tensors
from electra.interop.network import Weights, build
from electra.interop.onnx_graph import Graph
from electra.interop.transfer import README, export_model, require_free, write_tokenizer
from electra.manifest import commit_folder

SEQUENCES, TOKENS = "ElectraForSequenceClassification", "ElectraForTokenClassification"
SPANS = "ElectraForQuestionAnswering"
VALUE = "value"
"""Name of a regression's only output."""
_NOT_COMPARED = "Its vectors were not trained to be compared; `electra finetune pairs` does that."
Format = Literal["hf", "onnx", "sentence-transformers"]
_ARCHITECTURES = {"tag": TOKENS, "span": SPANS}
_PROBLEMS = {
    "classify": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regress": "regression",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What was written: the class it is loaded by, its number of parameters, and the folder it came from."""

    architecture: str
    parameters: int
    path: Path
    notes: tuple[str, ...] = ()
    """What was measured while writing."""


def export(
    path: Path,
    out: Path,
    *,
    part: Part = "discriminator",
    form: Format = "hf",
    int8: bool = False,
    pooling: Pooling = "mean",
) -> Exported:
    """Write any model of ours for others; of a fine-tuning run it is the seed with the median score.

    `int8` adds an 8-bit ONNX file; `pooling` is for sentence-transformers.
    """
    if int8 and form != "onnx":
        raise ConfigError("--int8", f"a {form} folder has no 8-bit form", fix="use --format onnx")
    tuned = is_finetuned(path)
    if tuned and part != "discriminator":
        raise ConfigError("--part", "a fine-tuned model has one network only", fix="leave it out")
    require_free(out)
    if form == "onnx":
        onnx_graph.require_packages()
        return _export_onnx(path, out, part=part, int8=int8, tuned=tuned)
    if form == "sentence-transformers":
        return _export_embeddings(path, out, part=part, pooling=pooling, tuned=tuned)
    if tuned:
        return export_finetuned(path, out)
    source = export_model(path, out, part=part)
    return Exported(
        architecture=settings.architecture(source.weights.config, source.weights.head),
        parameters=_count(source.weights.tensors),
        path=source.path,
    )


def export_finetuned(path: Path, out: Path) -> Exported:
    """Write a fine-tuned model, or a run's median one, for transformers: config, weights, tokenizer, README.md."""
    require_free(out)
    loaded = load_finetuned(path)
    head = _head(loaded)
    tensors = huggingface.tensors_of(_encoder(loaded)) | head
    values = _settings(loaded)
    with commit_folder(out) as aside:
        huggingface.write_files(aside, values, tensors)
        _write_rest(aside, loaded, finetuned_card(loaded))
    count, own = _count(tensors), sum(parameter.numel() for parameter in loaded.network.parameters())
    notes = () if count == own else (f"{count - own:,} of them are a layer that its class has and the model does not",)
    return Exported(architecture=values["architectures"][0], parameters=count, path=loaded.path, notes=notes)


def _export_onnx(path: Path, out: Path, *, part: Part, int8: bool, tuned: bool) -> Exported:
    model: FinetunedModel | Source
    if tuned:
        model = load_finetuned(path)
        values, card, graph = _settings(model), finetuned_card(model), _finetuned_graph(model)
    else:
        model = read_source(path, part=part)
        weights = model.weights
        values = huggingface.settings_of(weights, pad_id=model.tokenizer.pad_id)
        card, graph = model_card(model), onnx_graph.network_graph(build(weights, kernels="plain"))
    with commit_folder(out) as aside:
        huggingface.write_settings(aside, values)
        difference = onnx_graph.write_graph(aside, graph)
        notes = [f"{onnx_graph.FILE}: any batch, up to {graph.positions} tokens; from torch {difference:.1g}"]
        if int8:
            notes.append(f"{onnx_graph.INT8_FILE}: {onnx_graph.write_int8(aside, graph)}")
        card = replace(card, library="onnx", model=[*card.model, ("files", "; ".join(notes))], use=_onnx_use(graph))
        _write_rest(aside, model, card)
    count = sum(parameter.numel() for parameter in graph.parameters())
    return Exported(architecture=values["architectures"][0], parameters=count, path=model.path, notes=tuple(notes))


def _export_embeddings(path: Path, out: Path, *, part: Part, pooling: Pooling, tuned: bool) -> Exported:
    model: FinetunedModel | Source
    compared = False
    if tuned:
        model = load_finetuned(path)
        weights, card = _encoder(model), finetuned_card(model)
        compared = model.about.kind == "pairs"
        if compared and pooling != "mean":
            raise ConfigError("--pooling", "its vectors were trained as means", fix="leave it out")
    else:
        model = read_source(path, part=part)
        kept = {name: tensor for name, tensor in model.weights.tensors.items() if not name.startswith("head.")}
        weights, card = replace(model.weights, head=None, tensors=kept), model_card(model)
    card = replace(
        card,
        library="sentence-transformers",
        pipeline="sentence-similarity",
        tags=("electra", "sentence-transformers"),
        limits=[*([] if compared else [_NOT_COMPARED]), *card.limits],
        use=[
            "from sentence_transformers import SentenceTransformer",
            "",
            'model = SentenceTransformer("this folder")',
            'vectors = model.encode(["one sentence", "another"])',
        ],
    )
    with commit_folder(out) as aside:
        huggingface.write_weights(aside, weights, pad_id=model.tokenizer.pad_id)
        write_modules(aside, width=weights.config.width, length=weights.length, pooling=pooling)
        write_tokenizer(aside, model.tokenizer, length=weights.length, split_specials=True)
        write_atomic(aside / README, str(card).encode())
    return Exported(architecture="SentenceTransformer", parameters=_count(weights.tensors), path=model.path)


def _write_rest(aside: Path, model: FinetunedModel | Source, card: Card) -> None:
    """The tokenizer and the card."""
    if isinstance(model, FinetunedModel):  # [SEP] written in a text is three ordinary tokens, as in training
        write_tokenizer(aside, model.tokenizer, length=model.about.length, split_specials=True)
    else:
        write_tokenizer(aside, model.tokenizer, length=model.weights.length)
    write_atomic(aside / README, str(card).encode())


def _encoder(loaded: FinetunedModel) -> Weights:
    """The encoder of a fine-tuned model."""
    own = {name: tensor.detach() for name, tensor in loaded.network.named_parameters() if not name.startswith("head.")}
    about = loaded.about
    known = about.length if about.kind == "pairs" else about.pretrained_length
    length = min(known or about.length, loaded.config.positions)
    return Weights(config=loaded.config, head=None, length=length, tensors=own)


def _finetuned_graph(loaded: FinetunedModel) -> Graph:
    _require_exportable(loaded)
    kind, offset, scale = loaded.about.kind, loaded.about.offset, loaded.about.scale
    if kind == "pairs":
        return Graph(loaded.network, lambda _, states: (states,), ("last_hidden_state",))
    if kind == "span":
        return Graph(loaded.network, lambda one, states: one.head(states), ("start_logits", "end_logits"))
    if kind == "regress":
        return Graph(loaded.network, lambda one, states: (one.head(states) * scale + offset,), ("logits",), unit=scale)
    return Graph(loaded.network, lambda one, states: (one.head(states),), ("logits",))


def _head(loaded: FinetunedModel) -> Tensors:
    """The head's tensors under transformers' names; refused where its class cannot compute the same."""
    _require_exportable(loaded)
    about, width = loaded.about, loaded.config.width
    if about.kind == "pairs":
        return {}
    own = dict(loaded.network.head.named_parameters())
    weight, bias = own["out.weight"].detach(), own["out.bias"].detach()
    if about.kind in ("tag", "span"):
        name = "classifier" if about.kind == "tag" else "qa_outputs"
        return {f"{name}.weight": weight.clone(), f"{name}.bias": bias.clone()}
    if about.kind == "regress":
        weight, bias = weight * about.scale, bias.double() * about.scale + about.offset
    count = len(weight)
    if 2 * count > width:
        reason = f"{count} labels need {2 * count} units in transformers' classifier, which has the model's {width}"
        raise CheckpointError(loaded.path, reason, fix="electra predict uses it as it is, and so does --format onnx")
    # transformers has a hidden layer there: dense, GELU, out_proj. gelu(z) - gelu(-z) = z makes it our linear one.
    dense, out = torch.zeros(width, width), torch.zeros(count, width)
    dense[:count], dense[count : 2 * count] = weight, -weight
    out[:, :count], out[:, count : 2 * count] = torch.eye(count), -torch.eye(count)
    return {
        "classifier.dense.weight": dense,
        "classifier.dense.bias": torch.zeros(width),
        "classifier.out_proj.weight": out,
        "classifier.out_proj.bias": bias.to(torch.float32, copy=True),
    }


def _require_exportable(loaded: FinetunedModel) -> None:
    if loaded.about.kind == "span" and loaded.about.span_head != "plain":
        reason = "has the joint head, which scores the end of an answer given its start; no other program has it"
        fix = "fine-tune with span_head=plain to export; electra predict answers questions with this one"
        raise CheckpointError(loaded.path, reason, fix=fix)


def _settings(loaded: FinetunedModel) -> dict[str, Any]:
    about = loaded.about
    length = about.pretrained_length or loaded.config.positions
    values = settings.to_transformers(loaded.config, head=None, pad_id=loaded.tokenizer.pad_id, length=length)
    if about.kind == "pairs":
        return values
    named = _ARCHITECTURES.get(about.kind, SEQUENCES)
    values["architectures"] = [named.replace("Electra", "RoFormer") if loaded.config.rotary else named]
    if about.kind == "span":
        return values
    labels = about.labels or (VALUE,)
    values |= {
        "classifier_dropout": about.dropout,
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }
    if about.kind in _PROBLEMS:
        values["problem_type"] = _PROBLEMS[about.kind]
    return values


def _onnx_use(graph: Graph) -> list[str]:
    return [
        "import onnxruntime",
        "from transformers import AutoTokenizer",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("this folder")',
        f'session = onnxruntime.InferenceSession("this folder/{onnx_graph.FILE}")',
        'batch = tokenizer(["Some text."], padding=True, truncation=True, return_tensors="np")',
        f"{', '.join(graph.names)}, = session.run(None, dict(batch))",
    ]


def _count(tensors: Tensors) -> int:
    return sum(tensor.numel() for tensor in tensors.values())
