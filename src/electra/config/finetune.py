"""Every fine-tuning option, once. A field's docstring is its help text; its name is its TOML key and override key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class FinetuneConfig:
    """A whole fine-tuning run of one task; the defaults are the paper's for `small`."""

    lr: float = 3e-4
    """Learning rate of the head (warm-up and decay multiply, so the peak reached is slightly lower)."""
    epochs: float = 3.0
    """Passes over the training rows."""
    batch_size: int = 32
    """Sequences a step."""
    length: int = 128
    """Longest sequence in tokens, special tokens included; longer texts are cut or, for questions, windowed."""
    layer_decay: float = 0.8
    """Learning rate of a layer as a fraction of the one above it; 1 means the same everywhere."""
    layer_decay_exponent: Literal["intended", "official"] = "intended"
    """`intended`: the top layer has decay^1. `official`: decay^2, the off-by-one of the released code."""
    frozen_layers: int = 0
    """Layers, from the lowest, that stay as they are, and the embeddings with them: 1 or more also saves time. With as
    many as there are, the head alone learns."""
    weight_decay: float = 0.0
    """Decoupled weight decay; biases and norms are exempt."""
    warmup: float = 0.1
    """Share of the steps over which the learning rate rises from 0."""
    clip: float = 1.0
    """Largest global gradient norm."""
    dropout: float = 0.1
    """Dropout on what the head reads: the [CLS] vector of a text, the word vectors of a tagged sentence."""
    encoder_dropout: float = 0.1
    """Dropout on the embeddings and on the output of each block of the encoder, whatever it was in pre-training."""
    attention_dropout: float = 0.1
    """Dropout on the attention probabilities, whatever it was in pre-training."""
    beta1: float = 0.9
    """Decay of the gradient average."""
    beta2: float = 0.999
    """Decay of the squared gradient average."""
    eps: float = 1e-6
    """Added to the root of the squared average."""
    loss: Literal["sum", "mean"] = "sum"
    """Over the batch; `sum` as the released code does, where clipping is then nearly always at work."""
    select: Literal["last", "best", "average"] = "last"
    """Which weights to keep: those of the last step (the paper), those of the best evaluation on the dev set, or the
    average over the second half of the steps."""
    eval_every: int = 0
    """Steps between evaluations on the dev set; 0 means only at the end."""
    patience: int = 0
    """Stop after this many evaluations in a row without a better one; 0 means never."""
    restarts: int = 0
    """Times that a seed begins again, at half the rate, where it has learned nothing after half of its steps: two
    evaluations in a row found one answer to every row, or the training loss is that of guessing. The default for rows
    of your own is 1."""
    class_weights: Literal["off", "auto", "on"] = "off"
    """Weigh rare classes more in the loss (one label a row only); `auto`: where one is ten times as frequent as
    another."""
    hold_out: float = 0.0
    """Share of the rows that is held out to evaluate on, where there is one file only; 0: a tenth, of few rows up to
    a fifth."""
    hold_out_seed: int = 0
    """Seed that chooses those rows, whatever the seed of the run."""
    log_every: int = 50
    """Steps between log lines."""
    max_train_rows: int = 0
    """Train on this many rows only, drawn by the seed, counted before pairs are swapped and passages windowed; 0 means
    all."""
    seed: int = 0
    """Seed of the head, the order of the rows and dropout; of the first run, where there are several."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Compute precision; auto: bf16 where the hardware multiplies it natively. Master weights are always fp32."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train."""
    compile: Literal["auto", "on", "off"] = "auto"
    """On a GPU, capture the step of each batch shape in a CUDA graph; `off` runs it operation by operation."""
    kernels: Literal["auto", "plain"] = "auto"
    """`auto`: the fastest implementation of each op that this machine runs. `plain`: the reference, plain PyTorch."""
    cosine_scale: float = 20.0
    """What a cosine is multiplied by in the loss: higher looks harder at the nearest wrong text (pairs only)."""
    span_head: Literal["joint", "plain"] = "joint"
    """`joint` scores an answer's end given its start (the paper); `plain` does not, and exports (questions only)."""
    doc_stride: int = 128
    """Tokens between the starts of two windows over a passage (questions only)."""
    max_query: int = 64
    """Tokens of a question that are read (questions only)."""
    max_answer: int = 30
    """Tokens of the longest answer (questions only)."""
    beam: int = 20
    """Starts tried, and ends tried with each of them (questions only)."""
    n_best: int = 20
    """Answers kept for each question (questions only)."""
    null_threshold: float = -2.75
    """A question is left unanswered when its no-answer score is above this; 0 with the plain head (questions only)."""
