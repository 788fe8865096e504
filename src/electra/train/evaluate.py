"""Held-out figures and a readable sample, without dropout, over every slot and every real token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from electra.batches.sequences import unpack
from electra.metrics.rtd import detection
from electra.objective.base import Evaluation, Objective, Restoring


@dataclass(frozen=True, slots=True)
class Sample:
    """One held-out sequence as ids: the text, what the reader saw, what it became; chances of replacement."""

    original: list[int]
    shown: list[int]
    replaced: list[int]
    probabilities: list[float]


def evaluate(
    model: nn.Module, objective: Objective, batches: Iterable[Tensor], *, separator: int | None
) -> tuple[dict[str, float], Sample]:
    """The figures over all batches of the loader's rows, and the first sequence as a sample.

    `separator` is what `electra.batches.layout.separator_of` gives for these rows.
    """
    sample: Sample | None = None
    slots = nll = right = 0.0
    sampled: float | None = None
    restoring: Tensor | None = None
    logits: list[NDArray[np.float32]] = []
    labels: list[NDArray[np.bool_]] = []
    with torch.inference_mode():
        for rows in batches:
            batch = unpack(rows, separator)
            seen = objective.evaluate(model, batch)
            used = seen.used_BS
            slots += float(used.sum())
            nll += float(seen.nll_BS[used].sum())
            right += float(seen.right_BS[used].sum())
            if seen.sampled_right_BS is not None:
                sampled = (sampled or 0.0) + float(seen.sampled_right_BS[used].sum())
            if seen.restoring is not None:
                sums = _restored(seen.restoring)
                restoring = sums if restoring is None else restoring + sums
            if seen.logits_BL is not None and seen.replaced_BL is not None:
                judged = seen.judged_BL
                if judged is None:
                    judged = torch.arange(batch.ids_BL.shape[1], device=rows.device) < batch.lengths_B[:, None]
                fake = seen.replaced_BL != batch.ids_BL if seen.fake_BL is None else seen.fake_BL
                logits.append(seen.logits_BL[judged].float().cpu().numpy())
                labels.append(fake[judged].cpu().numpy())
            if sample is None:
                sample = _sample(seen, batch.lengths_B)
    assert sample is not None, "no held-out sequences"
    figures = {"mlm_loss": nll / slots, "mlm_accuracy": right / slots}
    if sampled is not None:
        figures["sampled_accuracy"] = sampled / slots
    if restoring is not None:
        asked, cost, found, replaced, restored = restoring.tolist()
        figures |= {"main_loss": cost / asked, "main_accuracy": found / asked}
        figures["restored_accuracy"] = restored / max(1.0, replaced)
    if logits:
        figures |= detection(np.concatenate(logits), np.concatenate(labels))
    return figures, sample


def _restored(seen: Restoring) -> Tensor:
    """Sums over the judged tokens: their count, nll, right ones, replaced ones, right ones of those."""
    right, replaced = seen.right[seen.judged], seen.replaced[seen.judged]
    sums = (seen.judged.sum(), seen.nll[seen.judged].sum(), right.sum(), replaced.sum(), (right & replaced).sum())
    return torch.stack([value.double() for value in sums])


def _sample(seen: Evaluation, lengths_B: Tensor) -> Sample:
    length = int(lengths_B[0])

    def first(tensor: Tensor | None) -> list[int]:
        return [] if tensor is None else tensor[0, :length].tolist()

    chances = [] if seen.logits_BL is None else torch.sigmoid(seen.logits_BL[0, :length].float()).tolist()
    return Sample(first(seen.original_BL), first(seen.shown_BL), first(seen.replaced_BL), chances)


def readable(sample: Sample, token: Sequence[str]) -> dict[str, list[str] | list[int] | list[float]]:
    """A sample with tokens for ids, as the metrics file and the report hold it."""
    changed = [i for i, (a, b) in enumerate(zip(sample.original, sample.shown, strict=True)) if a != b]
    differs = [i for i, (a, b) in enumerate(zip(sample.original, sample.replaced, strict=False)) if a != b]
    return {
        "original": [token[i] for i in sample.original],
        "masked": [token[i] for i in sample.shown],
        "replaced": [token[i] for i in sample.replaced],
        "positions": sorted(set(changed) | set(differs)),
        "probabilities": [round(p, 4) for p in sample.probabilities],
    }
