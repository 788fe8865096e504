"""Held-out figures and readable samples, without dropout, over every masked position and every real token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from electra.batches.sequences import unpack
from electra.metrics.rtd import detection
from electra.objective.base import Evaluation, Objective, Restoration

SAMPLES = 8
"""Held-out sequences that an evaluation leaves for people to read."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One held-out sequence as ids: original, masked and corrupted; and the probabilities of replacement."""

    original: list[int]
    masked: list[int]
    corrupted: list[int]
    probabilities: list[float]


def evaluate(
    model: nn.Module, objective: Objective, batches: Iterable[Tensor], *, separator: int | None
) -> tuple[dict[str, float], list[Sample]]:
    """The figures over all batches of the loader's rows, and the first sequences, at most `SAMPLES`, as samples.

    `separator` is what `electra.batches.layout.separator_of` gives for these rows.
    """
    samples: list[Sample] = []
    masked = nll = correct = 0.0
    sample_correct: float | None = None
    restoration: Tensor | None = None
    logits: list[NDArray[np.float32]] = []
    labels: list[NDArray[np.bool_]] = []
    with torch.no_grad():  # not inference mode: weights that FSDP gathers in it could not be trained with
        for rows in batches:
            batch = unpack(rows, separator)
            found = objective.evaluate(model, batch)
            used = found.used_BM
            masked += float(used.sum())
            nll += float(found.nll_BM[used].sum())
            correct += float(found.correct_BM[used].sum())
            if found.sample_correct_BM is not None:
                sample_correct = (sample_correct or 0.0) + float(found.sample_correct_BM[used].sum())
            if found.restoration is not None:
                sums = _restored(found.restoration)
                restoration = sums if restoration is None else restoration + sums
            if found.logits_BL is not None and found.corrupted_ids_BL is not None:
                scored = found.scored_BL
                if scored is None:
                    scored = torch.arange(batch.ids_BL.shape[1], device=rows.device) < batch.lengths_B[:, None]
                fake = found.corrupted_ids_BL != batch.ids_BL if found.fake_BL is None else found.fake_BL
                logits.append(found.logits_BL[scored].float().cpu().numpy())
                labels.append(fake[scored].cpu().numpy())
            wanted = min(SAMPLES - len(samples), len(batch.lengths_B))
            samples += [_sample(found, int(batch.lengths_B[row]), row=row) for row in range(wanted)]
    assert samples, "no held-out sequences"
    figures = {"mlm_loss": nll / masked, "mlm_accuracy": correct / masked}
    if sample_correct is not None:
        figures["sampled_accuracy"] = sample_correct / masked
    if restoration is not None:
        scored_count, main_nll, main_correct, replaced, restored = restoration.tolist()
        figures |= {"main_loss": main_nll / scored_count, "main_accuracy": main_correct / scored_count}
        figures["restored_accuracy"] = restored / max(1.0, replaced)
    if logits:
        figures |= detection(np.concatenate(logits), np.concatenate(labels))
    return figures, samples


def _restored(found: Restoration) -> Tensor:
    """Sums over the scored tokens: their count, nll, correct ones, replaced ones, correct ones of those."""
    scored = found.scored
    correct, replaced = found.correct[scored], found.replaced[scored]
    sums = (scored.sum(), found.nll[scored].sum(), correct.sum(), replaced.sum(), (correct & replaced).sum())
    return torch.stack([value.double() for value in sums])


def _sample(found: Evaluation, length: int, *, row: int) -> Sample:
    def sequence(tensor: Tensor | None) -> list[int]:
        return [] if tensor is None else tensor[row, :length].tolist()

    logits_BL = found.logits_BL
    probabilities = [] if logits_BL is None else torch.sigmoid(logits_BL[row, :length].float()).tolist()
    ids = (sequence(found.original_ids_BL), sequence(found.masked_ids_BL), sequence(found.corrupted_ids_BL))
    return Sample(*ids, probabilities)


def readable(sample: Sample, token: Sequence[str]) -> dict[str, list[str] | list[int] | list[float]]:
    """A sample with tokens for ids, as the metrics file and the report hold it."""
    changed = [i for i, (a, b) in enumerate(zip(sample.original, sample.masked, strict=True)) if a != b]
    differs = [i for i, (a, b) in enumerate(zip(sample.original, sample.corrupted, strict=False)) if a != b]
    return {
        "original": [token[i] for i in sample.original],
        "masked": [token[i] for i in sample.masked],
        "replaced": [token[i] for i in sample.corrupted],
        "positions": sorted(set(changed) | set(differs)),
        "probabilities": [round(p, 4) for p in sample.probabilities],
    }
