"""An encoder with a task's head: what is fine-tuned, saved and predicts.

Shapes: B sequences, L length, D width, C outputs, K beam, R rows of G sequences each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.batches.sequences import Sequences
from electra.errors import ConfigError
from electra.finetune.pair_loss import contrastive_loss, graded_loss
from electra.model.encoder import Encoder
from electra.model.heads import FORBIDDEN, MeanHead, OutputHead, PlainSpanHead, SpanHead
from electra.model.layers import Embeddings, FullLinear, with_ops
from electra.ops import Ops
from electra.tasks.rows import Kind

SpanHeadKind = Literal["joint", "plain"]
NULL_WEIGHT = 0.5  # of the answerability loss; the mean of start and end loss has weight 1


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadSpec:
    """Which head a task has: its kind, its classes or tags in order, and how a regression's labels are scaled."""

    kind: Kind
    labels: tuple[str, ...] = ()
    offset: float = 0.0
    scale: float = 1.0
    """Of a regression, which learns (label - offset) / scale."""
    dropout: float = 0.1
    span_head: SpanHeadKind = "joint"
    class_weights: tuple[float, ...] = ()
    """Weight of each class in the loss; none: all the same."""
    group: int = 1
    """Sequences that make a row: the texts of a pair."""
    cosine_scale: float = 20.0
    """Of pairs: what a cosine is multiplied by in the loss."""


class TaskModel(nn.Module):
    """Embeddings, encoder and the head of one task."""

    head: OutputHead | SpanHead | PlainSpanHead | MeanHead
    class_weights: Tensor | None
    """(C,), where classes are weighed in the loss."""

    def __init__(
        self,
        embeddings: Embeddings,
        encoder: Encoder,
        spec: HeadSpec,
        *,
        ops: Ops,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        """Copies of embeddings and encoder, which compute by `ops` in `dtype`, with a fresh head."""
        super().__init__()
        self.spec = spec
        self.embeddings, self.encoder = with_ops(embeddings, ops, dtype), with_ops(encoder, ops, dtype)
        width = encoder.shape.width
        if spec.kind == "span":
            plain = spec.span_head == "plain"
            self.head = PlainSpanHead(width) if plain else SpanHead(width)
        elif spec.kind == "pairs":
            self.head = MeanHead()
        else:
            outputs = 1 if spec.kind == "regress" else len(spec.labels)
            self.head = OutputHead(width, outputs, rate=spec.dropout, first=spec.kind != "tag", ops=ops)
        weights = torch.tensor(spec.class_weights) if spec.class_weights else None
        self.register_buffer("class_weights", weights, persistent=False)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for layer in self.head.modules():
                if isinstance(layer, FullLinear):
                    bound = math.sqrt(6.0 / (layer.in_features + layer.out_features))
                    layer.weight.uniform_(-bound, bound, generator=generator)
                    layer.bias.zero_()
        self.float().requires_grad_(True)

    def hidden(self, batch: Sequences, *, dropout: bool = False) -> Tensor:
        """(B, L, D) last hidden states."""
        keys_B = batch.keys_B if dropout else None
        x_BLE = self.embeddings(batch.ids_BL, batch.segments_BL, keys_B)
        hidden_BLD: Tensor = self.encoder(x_BLE, batch.lengths_B, keys_B)
        return hidden_BLD

    def loss(self, batch: Sequences, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The loss summed over what is predicted, and how many predictions that is.

        `targets` as in `Features`: (B,), (B, C), (B, L) with -1 for tokens without a tag, or (B, 3).
        """
        hidden_BLD = self.hidden(batch, dropout=True)
        if self.spec.kind == "pairs":
            return self._pair_loss(hidden_BLD, batch, targets)
        rows = torch.full((), len(targets), dtype=torch.float32, device=targets.device)
        if self.spec.kind == "span":
            return self._span_loss(hidden_BLD, batch, targets), rows
        scores = self.head(hidden_BLD, batch.keys_B)
        if self.spec.kind == "classify":
            return F.cross_entropy(scores, targets, weight=self.class_weights, reduction="sum"), rows
        if self.spec.kind == "regress":
            return (scores.squeeze(-1) - targets).square().sum(), rows
        if self.spec.kind == "multilabel":
            return F.binary_cross_entropy_with_logits(scores, targets, reduction="sum"), rows
        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=-1)
        return loss, (targets >= 0).sum().float()

    def predict(self, batch: Sequences, *, beam: int = 20) -> dict[str, Tensor]:
        """The head's outputs, without dropout.

        `scores`: (B, C) or, for tags, (B, L, C); regression in the label's own unit. Spans: `starts` and `start_at`
        (B, K), `ends` and `end_at` (B, K, K), all by falling log-probability, and `null` (B,). Pairs: `vectors` (B, D).
        """
        hidden_BLD = self.hidden(batch)
        if self.spec.kind == "span":
            return self._span_outputs(hidden_BLD, batch, beam)
        if self.spec.kind == "pairs":
            return {"vectors": cast(MeanHead, self.head)(hidden_BLD, batch.lengths_B)}
        scores = cast(OutputHead, self.head)(hidden_BLD)
        return {"scores": self._in_unit(scores) if self.spec.kind == "regress" else scores}

    def _in_unit(self, scores_B1: Tensor) -> Tensor:
        """A regression's outputs in the label's own unit; fp64 beside an offset, in which fp32 would lose them."""
        if not self.spec.offset:
            return scores_B1 * self.spec.scale
        return scores_B1.double() * self.spec.scale + self.spec.offset

    def _pair_loss(self, hidden_BLD: Tensor, batch: Sequences, targets_B: Tensor) -> tuple[Tensor, Tensor]:
        vectors_BD = cast(MeanHead, self.head)(hidden_BLD, batch.lengths_B)
        rows = (len(targets_B) // self.spec.group, self.spec.group)
        vectors_RGD, targets_RG = vectors_BD.unflatten(0, rows), targets_B.unflatten(0, rows)
        loss = graded_loss if targets_B.is_floating_point() else contrastive_loss
        count = torch.full((), rows[0], dtype=torch.float32, device=targets_B.device)
        return loss(vectors_RGD, targets_RG, scale=self.spec.cosine_scale), count

    def _span_loss(self, hidden_BLD: Tensor, batch: Sequences, targets_B3: Tensor) -> Tensor:
        allowed_BL = answerable(batch)
        start_B, end_B, null_B = targets_B3.unbind(1)
        if isinstance(self.head, PlainSpanHead):  # no answer is the answer that starts and ends at [CLS]
            starts_BL, ends_BL = plain_scores(self.head, hidden_BLD, allowed_BL)
            pairs = ((starts_BL, start_B), (ends_BL, end_B))
            return torch.stack([F.cross_entropy(scores, at, reduction="sum") for scores, at in pairs]).mean()
        head = cast(SpanHead, self.head)
        starts_BL = head.starts(hidden_BLD, allowed_BL)
        ends_BL = head.ends(hidden_BLD, allowed_BL, start_B[:, None]).squeeze(1)
        spans = F.cross_entropy(starts_BL, start_B, reduction="sum") + F.cross_entropy(ends_BL, end_B, reduction="sum")
        nulls_B = head.nulls(hidden_BLD, starts_BL)
        null = F.binary_cross_entropy_with_logits(nulls_B, null_B.float(), reduction="sum")
        return spans / 2 + NULL_WEIGHT * null

    def _span_outputs(self, hidden_BLD: Tensor, batch: Sequences, beam: int) -> dict[str, Tensor]:
        allowed_BL = answerable(batch)
        beam = min(beam, allowed_BL.shape[1])
        if isinstance(self.head, PlainSpanHead):
            return _plain_outputs(*plain_scores(self.head, hidden_BLD, allowed_BL), beam)
        head = cast(SpanHead, self.head)
        starts_BL = head.starts(hidden_BLD, allowed_BL)
        starts_BK, start_at_BK = starts_BL.log_softmax(1).topk(beam)
        ends_BKL = head.ends(hidden_BLD, allowed_BL, start_at_BK)
        ends_BKK, end_at_BKK = ends_BKL.log_softmax(2).topk(beam)
        null_B = head.nulls(hidden_BLD, starts_BL)
        return {"starts": starts_BK, "start_at": start_at_BK, "ends": ends_BKK, "end_at": end_at_BKK, "null": null_B}


def plain_scores(head: PlainSpanHead, hidden_BLD: Tensor, allowed_BL: Tensor) -> tuple[Tensor, Tensor]:
    """(B, L) start and end scores of the plain head, low where no answer may start or end."""
    starts_BL, ends_BL = head(hidden_BLD)
    forbidden_BL = FORBIDDEN * (~allowed_BL).float()
    return starts_BL + forbidden_BL, ends_BL + forbidden_BL


def _plain_outputs(starts_BL: Tensor, ends_BL: Tensor, beam: int) -> dict[str, Tensor]:
    """As the joint head's: every start has the same ends, and `null` is the score of [CLS] over the best span's."""
    starts_BK, start_at_BK = starts_BL.log_softmax(1).topk(beam)
    ends_BK, end_at_BK = ends_BL.log_softmax(1).topk(beam)
    of_each_start = (-1, beam, -1)
    best_B = (starts_BL[:, 1:].cummax(1).values + ends_BL[:, 1:]).amax(1)
    return {
        "starts": starts_BK,
        "start_at": start_at_BK,
        "ends": ends_BK[:, None].expand(of_each_start),
        "end_at": end_at_BK[:, None].expand(of_each_start),
        "null": starts_BL[:, 0] + ends_BL[:, 0] - best_B,
    }


def answerable(batch: Sequences) -> Tensor:
    """(B, L) where an answer may start or end: the second segment with its [SEP], and [CLS] for none."""
    allowed_BL = batch.segments_BL > 0
    first_L = torch.arange(allowed_BL.shape[1], device=allowed_BL.device) == 0
    return allowed_BL | first_L


def depth_scale(decay: float, layers: int, *, official: bool, frozen: int = 0) -> Any:
    """The learning rate of a parameter of `TaskModel`, by name, as a fraction of the head's.

    The top layer has decay^1, embeddings decay^(layers + 1); `official` adds the released code's extra one to both. Of
    the `frozen` lowest layers and what lies below them it is 0.
    """

    def scale(name: str) -> float:
        if name.startswith("head."):
            return 1.0
        return 0.0 if _is_frozen(name, frozen) else float(decay ** (layers + 1 - _depth(name) + int(official)))

    return scale


def freeze(network: TaskModel, layers: int) -> None:
    """Let the embeddings and so many of the lowest layers need no gradient; 0 freezes nothing.

    Refused where nothing is left to learn, as of pairs, whose head has no weights.
    """
    for name, parameter in network.named_parameters():
        if _is_frozen(name, layers):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        there = network.encoder.shape.layers
        reason = f"{layers} of {there} layers leave nothing to learn: the head of {network.spec.kind} has no weights"
        raise ConfigError("frozen_layers", reason, fix=f"at most {there - 1}")


def _is_frozen(name: str, layers: int) -> bool:
    return layers > 0 and not name.startswith("head.") and _depth(name) <= layers


def _depth(name: str) -> int:
    """The layer of a parameter of `TaskModel` below the head, counted from 1; 0 for what lies before the first."""
    return int(name.split(".")[2]) + 1 if name.startswith("encoder.layers.") else 0
