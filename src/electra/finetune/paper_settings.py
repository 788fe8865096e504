"""The settings that the paper fine-tunes with (its Table 7), by model size and task."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal, get_args

from electra.config.finetune import FinetuneConfig
from electra.config.schema import ModelConfig
from electra.errors import ConfigError, suggest
from electra.finetune.batching import step_count
from electra.tasks.rows import Kind

Size = Literal["tiny", "small", "base", "large"]

_WIDTHS: dict[Size, int] = {"large": 1024, "base": 768, "small": 256}
_LR: dict[str, float] = {
    "tiny": 5e-4,  # not in the paper and not searched for: above small's, as rates fall with width throughout
    "small": 3e-4,  # the released code has 1e-4 and weight decay 0.01; the paper's figures need these
    "base": 1e-4,
    "large": 5e-5,
}
_LAYER_DECAY: dict[str, float] = {"tiny": 0.8, "small": 0.8, "base": 0.8, "large": 0.9}
_NULL_THRESHOLDS = {"joint": -2.75, "plain": 0.0}  # the paper's; as likely as not
_PAIRS_BATCH = 64  # the other texts of the batch are what a text is compared with; not in the paper
_TEN_EPOCHS = {"rte", "sts", "stsb"}
FEW_STEPS, MOST_EPOCHS = 300, 40.0
FEW_BATCH = 16  # with averaged weights as good as 32, in half the time: docs/lab/2026-11-18-few-rows-averaged.md
EVALUATIONS, PATIENCE = 10, 5
EVALUATE_FROM = 10  # steps: an evaluation after fewer says nothing yet
"""Of one's own rows, where the paper has no settings: docs/lab/2026-11-17-few-rows.md."""
FEW_LR = 1 / 3  # of the paper's rate, in all layers alike: 1.5 points above, a third of the spread, of 1,000 rows


def settings(task_name: str, size: str, *, kind: Kind | None = None) -> FinetuneConfig:
    """Table 7 for a task and a size; for tasks that the paper does not have, `kind` decides.

    The length is the task's own: 512 for questions, 256 for tagging as in the released code, otherwise 128. The caller
    caps it by the length of pre-training, since later positions were never trained. Questions of one's own get the head
    that exports; SQuAD gets the paper's.
    """
    if size not in get_args(Size):
        listed = f"one of: {', '.join(get_args(Size))}"
        hint = suggest(size, get_args(Size))
        raise ConfigError("size", f"{size!r} is not a size", fix=f"{listed}; {hint}" if hint else listed)
    task = re.sub(r"[^a-z0-9]", "", task_name.lower())
    span = kind == "span" or (kind is None and task.startswith("squad"))
    config = FinetuneConfig(
        lr=_LR[size],
        layer_decay=_LAYER_DECAY[size],
        epochs=2.0 if span else 10.0 if task in _TEN_EPOCHS else 3.0,
        length=512 if span else 256 if kind == "tag" else 128,
    )
    if kind == "pairs":
        config = replace(config, batch_size=_PAIRS_BATCH)
    return with_span_head(config, "plain" if span and not task.startswith("squad") else "joint")


def with_span_head(config: FinetuneConfig, head: Literal["joint", "plain"]) -> FinetuneConfig:
    """The settings with this span head and the no-answer threshold that belongs to it."""
    return replace(config, span_head=head, null_threshold=_NULL_THRESHOLDS[head])


def settings_for_rows(
    paper: FinetuneConfig, rows: int, *, kind: Kind, epochs: float | None = None, batch_size: int | None = None
) -> FinetuneConfig:
    """The settings for rows of one's own: more epochs where rows are few, with early stopping on the dev set.

    The paper's three epochs are for tens of thousands of rows; of a thousand they are 94 steps. So few rows, of tasks
    with labels for whole texts, also get smaller batches, a lower learning rate, the same in all layers
    (docs/lab/2026-11-17-ten-minutes.md), and averaged weights in place of early stopping. `epochs` and `batch_size`
    are taken where they are given; they do not change whether rows are few.
    """
    few = FEW_STEPS * paper.batch_size > paper.epochs * rows and kind in ("classify", "multilabel", "regress")
    size = batch_size or (FEW_BATCH if few else paper.batch_size)
    enough = min(MOST_EPOCHS, FEW_STEPS * size / max(1, rows))
    epochs = max(paper.epochs, round(enough, 2)) if epochs is None else epochs
    steps = step_count(rows, epochs=epochs, batch_size=min(size, max(1, rows)))
    config = replace(
        paper,
        batch_size=size,
        epochs=epochs,
        eval_every=min(steps, max(EVALUATE_FROM, steps // EVALUATIONS)),
        select="best",
        patience=PATIENCE,
        restarts=1,
        class_weights="auto",
        log_every=10,
    )
    if few:
        config = replace(config, lr=paper.lr * FEW_LR, layer_decay=1.0, select="average", patience=0)
    return config


def size_of(model: ModelConfig) -> Size:
    """The largest size that is not wider than the model; anything narrower than small is tiny."""
    return next((size for size, width in _WIDTHS.items() if model.width >= width), "tiny")
