"""The card of a bundled model: what it is, its text and licences, minutes, scores with their spread, limits, use."""

from __future__ import annotations

from collections.abc import Sequence

from electra import __version__
from electra.bundled.sources import SOURCES
from electra.interop.bundled import SMALL
from electra.interop.card import EVALUATED, Card, Rows, limits, vocabulary
from electra.model.cost import parameters
from electra.report.reading import Run
from electra.speedrun.record import Record
from electra.tokenizer.codec import Tokenizer


def bundled_card(
    name: str,
    run: Run,
    *,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    records: Sequence[Record],
    more: Rows = (),
    training: Rows = (),
) -> Card:
    """The card of a run that becomes the bundled model `name`; `more` scores and `training` as they are to be shown."""
    size = run.config.model
    counted = parameters(run.config)
    return Card(
        title=f"{name}: an ELECTRA encoder that comes with the package",
        intro=f"Pre-trained with Electra {__version__} on openly licensed English text. Discriminator, generator and"
        " tokenizer are here; weights are in bf16 and computed with in fp32.",
        model=[
            ("network", f"{size.layers} layers x {size.width}, {size.heads} heads, embeddings {size.embedding}"),
            ("parameters", f"{counted.total:,}, of both networks; their embeddings are shared"),
            ("vocabulary", vocabulary(tokenizer)),
            ("longest sequence in pre-training", f"{run.config.data.length} tokens"),
        ],
        data=_data(run, texts),
        compute=[*_compute(run), *training],
        scores=[*_held_out(run), *(row for record in records for row in _glue(record)), *more],
        limits=[
            *limits(tokenizer, length=run.config.data.length, positions=size.positions),
            "It was trained for minutes, not days: encoders trained for longer score higher.",
        ],
        use=_use(name),
        library="electra",
        tags=("electra", "en"),
    )


def _data(run: Run, texts: Sequence[str]) -> Rows:
    rows = [(SOURCES[text].title, f"{SOURCES[text].attribution}; {SOURCES[text].licence}") for text in texts]
    counts = run.facts.get("data") or {}
    names = {"documents": "documents", "tokens": "tokens", "held_out_tokens": "tokens held out"}
    return [*rows, *((shown, f"{counts[key]:,}") for key, shown in names.items() if isinstance(counts.get(key), int))]


def _compute(run: Run) -> Rows:
    cost = run.cost
    gpus = [str(gpu.get("name")) for gpu in run.facts.get("gpus") or []]
    machine = f"{len(gpus)} x {gpus[0]}" if gpus else str(run.facts.get("cpu") or "unknown")
    return [
        ("preset", run.config.preset),
        ("time", f"{cost.seconds / 60:.1f} minutes on {machine}"),
        ("training", f"{cost.steps:,} steps, {cost.tokens_read:,.0f} tokens read"),
        ("training FLOPs, matrix products", f"{cost.real_flops:.3g}"),
        ("training FLOPs, the paper's convention", f"{cost.paper_flops:.3g}"),
    ]


def _held_out(run: Run) -> Rows:
    found = [(meaning, run.last(key)) for key, meaning in EVALUATED.items()]
    return [(f"{meaning}, held-out text", f"{value:.4f}") for meaning, value in found if value is not None]


def _glue(record: Record) -> Rows:
    scores, seeds = record.scores, [*next(iter(record.scores.tasks.values())).seeds]
    by = f"fine-tuning seeds {seeds[0]} to {seeds[-1]}, by {record.scorer}"
    rows = [(f"GLUE-5, dev sets, {by}", f"{scores.glue5:.1f} (std {scores.glue5_std:.1f})")]
    for task in scores.tasks.values():
        low, high = min(task.seeds.values()), max(task.seeds.values())
        rows.append((f"{task.title}, {task.metric}, {by}", f"{task.median:.1f} ({low:.1f} to {high:.1f})"))
    return rows


def _use(name: str) -> list[str]:
    load = "electra.load()  # the default" if name == SMALL else f'electra.load("{name}")'
    return [
        "import electra",
        "",
        f"model = {load}",
        'model.detect("The chef ate the meal for his guests.")',
        f'electra.export("{name}", out="encoder")  # then transformers loads it',
    ]
