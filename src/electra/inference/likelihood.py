"""Pseudo-log-likelihoods of texts: the sum over a text's tokens of log p(token | the others).

An Electric model gives log p of all tokens in one forward pass: minus the energy, up to a constant that training keeps
near 0. A masked language model needs one forward pass a token, with that token masked.

Shapes: B sequences, L length, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from electra import hardware
from electra.errors import CheckpointError, ConfigError
from electra.inference.overlapping_windows import best_windows, text_capacity
from electra.inference.placement import placed
from electra.inference.results import TextScore, TokenScore
from electra.interop.models import Loaded
from electra.model.heads import DetectionHead, MaskedHead
from electra.progress import progress

BATCH_SIZE = 64
_CHUNK_TEXTS = 1024  # tokenized and sorted by length together
_BAR_TEXTS = 200


class _Window(NamedTuple):
    """A window of a text for one forward pass, and the tokens to score in it, by their numbers in the text."""

    text: int
    start: int
    end: int
    tokens: tuple[int, ...]


def score(loaded: Loaded, texts: Sequence[str], *, batch_size: int = BATCH_SIZE) -> Iterator[TextScore]:
    """The score of each text, in order; a text longer than the model reads becomes overlapping windows."""
    if batch_size < 1:
        raise ConfigError("batch size", f"{batch_size} is not at least 1")
    check(loaded)
    with progress("scoring", len(texts), "texts") if len(texts) >= _BAR_TEXTS else nullcontext() as bar:
        for first in range(0, len(texts), _CHUNK_TEXTS):
            chunk = texts[first : first + _CHUNK_TEXTS]
            encoded = [loaded.tokenizer.encode_with_offsets(text) for text in chunk]
            scores = [[0.0] * len(ids) for ids, _ in encoded]
            windows = _windows(loaded, [len(ids) for ids, _ in encoded])
            for begin in range(0, len(windows), batch_size):
                _score_windows(loaded, windows[begin : begin + batch_size], [ids for ids, _ in encoded], scores)
                if bar is not None:
                    bar.update(first + len(chunk) * min(begin + batch_size, len(windows)) // len(windows))
            for text, (ids, offsets), found in zip(chunk, encoded, scores, strict=True):
                tokens = tuple(
                    TokenScore(token=loaded.tokenizer.token(number), start=start, end=end, score=value)
                    for number, (start, end), value in zip(ids, offsets, found, strict=True)
                )
                yield TextScore(text=text, score=sum(found), tokens=tokens)


def check(loaded: Loaded) -> None:
    """Refuse a model whose outputs are not log-likelihoods."""
    generator = "--part generator takes a run's generator"
    if isinstance(loaded.head, DetectionHead) and loaded.objective != "electric":
        reason = "tells replaced tokens from original ones, not how likely a text is"
        raise CheckpointError(loaded.path, reason, fix=f"give an electric or masked language model; {generator}")
    if loaded.head is None:
        raise CheckpointError(loaded.path, "has no head that gives probabilities", fix=generator)
    if loaded.objective not in (None, "mlm", "electric"):
        reason = f"was trained with {loaded.objective}, so it was never trained on masked tokens"
        raise CheckpointError(loaded.path, reason, fix=generator)


def on_device(loaded: Loaded, device: str = "auto") -> Loaded:
    """The model on the GPU where there is one: in bf16 where it detects, in fp32 where it scores or samples."""
    place = hardware.device(device)
    if place.type == "cpu":
        return loaded
    detects = isinstance(loaded.head, DetectionHead) and loaded.objective != "electric"
    return replace(loaded, module=placed(loaded.module, loaded.kernels, place, precision="auto" if detects else "fp32"))


def _windows(loaded: Loaded, counts: Sequence[int]) -> list[_Window]:
    """The forward passes, short windows first: one a window, or one a token for a masked language model."""
    capacity = text_capacity(loaded)
    windows = []
    for text, count in enumerate(counts):
        together: dict[int, list[int]] = {}
        for token, start in enumerate(best_windows(count, capacity)):
            together.setdefault(start, []).append(token)
        for start, tokens in together.items():
            end = min(count, start + capacity)
            if isinstance(loaded.head, MaskedHead):
                windows += [_Window(text, start, end, (token,)) for token in tokens]
            else:
                windows.append(_Window(text, start, end, tuple(tokens)))
    return sorted(windows, key=lambda window: window.end - window.start)


def _score_windows(loaded: Loaded, windows: list[_Window], ids: Sequence[list[int]], scores: list[list[float]]) -> None:
    """Fill in the scores of the windows' tokens."""
    tokenizer, module, head = loaded.tokenizer, loaded.module, loaded.head
    device = next(module.parameters()).device
    rows = [[tokenizer.cls_id, *ids[one.text][one.start : one.end], tokenizer.sep_id] for one in windows]
    places_B = torch.tensor([one.tokens[0] - one.start + 1 for one in windows], device=device)
    lengths_B = torch.tensor([len(row) for row in rows], device=device)
    length = int(lengths_B.max())
    ids_BL = torch.tensor([row + [tokenizer.pad_id] * (length - len(row)) for row in rows], device=device)
    with torch.inference_mode():
        if isinstance(head, MaskedHead):
            gold_B1 = ids_BL.gather(1, places_B[:, None])
            masked_ids_BL = ids_BL.scatter(1, places_B[:, None], tokenizer.mask_id)
            hidden_BLD = module(masked_ids_BL, torch.zeros_like(ids_BL), lengths_B)
            hidden_BD = hidden_BLD[torch.arange(len(rows), device=device), places_B]
            logp_BV: Tensor = head.logits(hidden_BD, module.embeddings.token.weight, head.bias).log_softmax(1)
            found = logp_BV.gather(1, gold_B1).tolist()
        else:
            energy_BL = module.logits(ids_BL, torch.zeros_like(ids_BL), lengths_B)
            # A window's tokens stand together: the first of them is where `places` says.
            found = [(-row[place:]).tolist() for row, place in zip(energy_BL, places_B.tolist(), strict=True)]
    for one, values in zip(windows, found, strict=True):
        for token in one.tokens:
            scores[one.text][token] = values[token - one.tokens[0]]
