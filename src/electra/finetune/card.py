"""The README of an exported fine-tuned model: the task, its scores over seeds, limits, how to use it."""

from __future__ import annotations

from collections.abc import Sequence

from electra import __version__
from electra.errors import DataError
from electra.finetune.model_folder import About, FinetunedModel
from electra.finetune.results_file import read_results
from electra.finetune.seed_folder import RESULTS
from electra.finetune.task_results import TaskResult
from electra.interop.card import Card, Rows, limits, vocabulary

PIPELINES = {"tag": "token-classification", "span": "question-answering", "pairs": "sentence-similarity"}
"""By kind of task; the others are text-classification."""


def finetuned_card(loaded: FinetunedModel) -> Card:
    """The card of a fine-tuned model; over all seeds where it lies in its fine-tuning run."""
    about, size = loaded.about, loaded.config
    result = _result(loaded)
    many = len(about.labels) > 20
    length = about.pretrained_length or size.positions
    return Card(
        title=f"ELECTRA for {about.title}",
        intro=f"Fine-tuned with Electra {__version__}. The weights are those of seed {about.seed}.",
        pipeline=pipeline_of(about),
        model=[
            ("task", f"{about.title} ({about.kind})"),
            *([("labels", ", ".join(about.labels[:20]) + (", ..." if many else ""))] if about.labels else []),
            ("network", f"{size.layers} layers x {size.width}, {size.heads} heads, embeddings {size.embedding}"),
            ("vocabulary", vocabulary(loaded.tokenizer)),
            ("longest input", f"{about.length} tokens"),
            *([("fine-tuned from", about.source)] if about.source else []),
        ],
        data=[] if result is None else [(f"{split} rows", _rows_used(result, split)) for split in result.rows],
        compute=_compute(result, about),
        scores=[*_own_scores(about), *_spread(result)],
        limits=[
            f"Longer inputs are cut at {about.length} tokens."
            if about.kind != "span"
            else f"Passages longer than {about.length} tokens are read in overlapping windows.",
            "The scores are of one development set; other text can score very differently.",
            *(["It gives one of its labels to every text, also where none fits."] if about.kind == "classify" else []),
            *limits(loaded.tokenizer, length=length, positions=size.positions),
        ],
        use=_use(about),
    )


def pipeline_of(about: About) -> str:
    """The name of the `transformers` pipeline for this kind of task."""
    return PIPELINES.get(about.kind, "text-classification")


def _result(loaded: FinetunedModel) -> TaskResult | None:
    """What the run of one task, or of GLUE, that holds the model's folder says of all its seeds."""
    about = loaded.about
    for folder in loaded.path.resolve().parents[:2]:
        try:
            found = read_results(folder / RESULTS).results if (folder / RESULTS).is_file() else ()
        except DataError:  # of another version: the card goes without
            continue
        for one in found:
            if one.task == about.task and any(run.seed == about.seed for run in one.seeds):
                return one
    return None


def _rows_used(result: TaskResult, split: str) -> str:
    used, whole = result.rows[split], result.full.get(split)
    return f"{used:,} of {whole:,}" if whole and whole != used else f"{used:,}"


def _compute(result: TaskResult | None, about: About) -> Rows:
    run = next((one for one in result.seeds if one.seed == about.seed), None) if result is not None else None
    if run is None or result is None:
        return []
    keys = ("lr", "epochs", "batch_size", "layer_decay")
    settings = ", ".join(f"{key} {result.config[key]}" for key in keys if key in result.config)
    return [("training", f"{run.steps:,} steps, {run.seconds:.0f} s"), *([("settings", settings)] if settings else [])]


def _own_scores(about: About) -> Rows:
    return [(f"{name}, development set", f"{about.scores[name]:.2f}") for name in about.metrics if name in about.scores]


def _spread(result: TaskResult | None) -> Rows:
    if result is None or len(result.seeds) < 2:
        return []
    rows = []
    for name in result.metrics:
        one = result.summary(name)
        value = f"median {one.median:.2f}, mean {one.mean:.2f}, std {one.std:.2f}, {one.min:.2f} to {one.max:.2f}"
        rows.append((f"{name} over {one.n} seeds", value))
    return rows


def _use(about: About) -> Sequence[str]:
    if about.kind == "span":
        return [
            "import torch",
            "from transformers import AutoModelForQuestionAnswering, AutoTokenizer",
            "",
            'tokenizer = AutoTokenizer.from_pretrained("this folder")',
            'model = AutoModelForQuestionAnswering.from_pretrained("this folder")',
            'question, passage = "Who cooked?", "The chef cooked the meal."',
            'batch = tokenizer(question, passage, return_tensors="pt", return_offsets_mapping=True)',
            'offsets = batch.pop("offset_mapping")[0]',
            "outputs = model(**batch)",
            "scores = outputs.start_logits[0][:, None] + outputs.end_logits[0][None, :]",
            'inside = (batch["token_type_ids"][0] == 1) & (offsets[:, 1] > 0)',
            f"allowed = (inside[:, None] & inside[None, :]).triu().tril({about.max_answer - 1})",
            'start, end = divmod(int(scores.masked_fill(~allowed, -float("inf")).argmax()), len(offsets))',
            "print(passage[offsets[start][0] : offsets[end][1]])",
        ]
    if about.kind == "pairs":
        return [
            "from transformers import AutoModel, AutoTokenizer",
            "",
            'tokenizer = AutoTokenizer.from_pretrained("this folder")',
            'model = AutoModel.from_pretrained("this folder")',
            'batch = tokenizer(["One text.", "Another."], padding=True, truncation=True, return_tensors="pt")',
            'inside = batch["attention_mask"][:, :, None]',
            "vectors = (model(**batch).last_hidden_state * inside).sum(1) / inside.sum(1)",
        ]
    pipeline = pipeline_of(about)
    options = ", top_k=None" if about.kind in ("classify", "multilabel") else ""
    texts = '{"text": "One text.", "text_pair": "Another."}' if about.pairs else '"Some text."'
    return [
        "from transformers import pipeline",
        "",
        f'classify = pipeline("{pipeline}", "this folder"{options})',
        f"classify({texts})" if about.kind == "tag" else f"classify({texts}, truncation=True)",
    ]
