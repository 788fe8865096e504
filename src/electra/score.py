"""How likely texts are to a model: pseudo-log-likelihoods, the sum over a text's tokens of log p(token | the others).

An Electric model gives the logarithms of all tokens at once, up to a constant that training keeps near 0: a token's is
minus its energy, which needs the discriminator alone. A masked language model is asked for one masked token at a time.

Shapes: B sequences, L length, D width, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from electra import hardware
from electra.detect import best_windows, text_room
from electra.errors import CheckpointError, ConfigError
from electra.interop.models import Loaded
from electra.model.heads import DetectionHead, MaskedHead
from electra.progress import progress

BATCH_SIZE = 64
_CHUNK_TEXTS = 1024  # tokenized and sorted by length together
_BAR_TEXTS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenScore:
    """One token of a text, where it stands, and the logarithm of its probability there."""

    token: str
    """The vocabulary entry, such as `##ing`."""
    start: int
    end: int
    """Its characters are `text[start:end]`."""
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TextScore:
    """A text, its tokens, and the sum of their scores: the higher, the likelier. Nothing has a score of 0."""

    text: str
    score: float
    tokens: tuple[TokenScore, ...]


class _Reading(NamedTuple):
    """A window of a text to read, and the tokens to score in it, by their numbers in the text."""

    text: int
    start: int
    end: int
    tokens: tuple[int, ...]


def score(loaded: Loaded, texts: Sequence[str], *, batch_size: int = BATCH_SIZE) -> Iterator[TextScore]:
    """The score of each text, in their order; one longer than the model reads is seen in overlapping windows."""
    if batch_size < 1:
        raise ConfigError("batch size", f"{batch_size} is not at least 1")
    check(loaded)
    with progress("scoring", len(texts), "texts") if len(texts) >= _BAR_TEXTS else nullcontext() as bar:
        for first in range(0, len(texts), _CHUNK_TEXTS):
            chunk = texts[first : first + _CHUNK_TEXTS]
            encoded = [loaded.tokenizer.encode_with_offsets(text) for text in chunk]
            scores = [[0.0] * len(ids) for ids, _ in encoded]
            readings = _readings(loaded, [len(ids) for ids, _ in encoded])
            for begin in range(0, len(readings), batch_size):
                _read(loaded, readings[begin : begin + batch_size], [ids for ids, _ in encoded], scores)
                if bar is not None:
                    bar.update(first + len(chunk) * min(begin + batch_size, len(readings)) // len(readings))
            for text, (ids, offsets), found in zip(chunk, encoded, scores, strict=True):
                tokens = tuple(
                    TokenScore(token=loaded.tokenizer.token(number), start=start, end=end, score=value)
                    for number, (start, end), value in zip(ids, offsets, found, strict=True)
                )
                yield TextScore(text=text, score=sum(found), tokens=tokens)


def check(loaded: Loaded) -> None:
    """Refuse a model that does not say how likely text is."""
    generator = "--part generator takes a run's generator"
    if isinstance(loaded.head, DetectionHead) and loaded.objective != "electric":
        reason = "tells replaced tokens from original ones, not how likely a text is"
        raise CheckpointError(loaded.path, reason, fix=f"give an electric or masked language model; {generator}")
    if loaded.head is None:
        raise CheckpointError(loaded.path, "has no head that gives probabilities", fix=generator)
    if loaded.objective not in (None, "mlm", "electric"):
        reason = f"was trained with {loaded.objective}, so it has never seen a masked token"
        raise CheckpointError(loaded.path, reason, fix=generator)


def on_device(loaded: Loaded, device: str = "auto") -> Loaded:
    """The model, in fp32, on the GPU where there is one."""
    place = hardware.device(device)
    return loaded if place.type == "cpu" else replace(loaded, module=copy.deepcopy(loaded.module).to(place))


def _readings(loaded: Loaded, counts: Sequence[int]) -> list[_Reading]:
    """What has to be read, short windows first: once for all of its tokens, or once for each where that is masked."""
    room = text_room(loaded)
    readings = []
    for text, count in enumerate(counts):
        together: dict[int, list[int]] = {}
        for token, start in enumerate(best_windows(count, room)):
            together.setdefault(start, []).append(token)
        for start, tokens in together.items():
            end = min(count, start + room)
            if isinstance(loaded.head, MaskedHead):
                readings += [_Reading(text, start, end, (token,)) for token in tokens]
            else:
                readings.append(_Reading(text, start, end, tuple(tokens)))
    return sorted(readings, key=lambda reading: reading.end - reading.start)


def _read(loaded: Loaded, readings: list[_Reading], ids: Sequence[list[int]], scores: list[list[float]]) -> None:
    """Fill in the scores of the readings' tokens."""
    tokenizer, module, head = loaded.tokenizer, loaded.module, loaded.head
    device = next(module.parameters()).device
    rows = [[tokenizer.cls_id, *ids[one.text][one.start : one.end], tokenizer.sep_id] for one in readings]
    places_B = torch.tensor([one.tokens[0] - one.start + 1 for one in readings], device=device)
    lengths_B = torch.tensor([len(row) for row in rows], device=device)
    length = int(lengths_B.max())
    ids_BL = torch.tensor([row + [tokenizer.pad_id] * (length - len(row)) for row in rows], device=device)
    with torch.inference_mode():
        if isinstance(head, MaskedHead):
            gold_B1 = ids_BL.gather(1, places_B[:, None])
            shown_BL = ids_BL.scatter(1, places_B[:, None], tokenizer.mask_id)
            hidden_BLD = module(shown_BL, torch.zeros_like(ids_BL), lengths_B)
            hidden_BD = hidden_BLD[torch.arange(len(rows), device=device), places_B]
            logp_BV: Tensor = head(hidden_BD, module.embeddings.token.weight, head.bias).log_softmax(1)
            found = logp_BV.gather(1, gold_B1).tolist()
        else:
            energy_BL = module.logits(ids_BL, torch.zeros_like(ids_BL), lengths_B)
            # A window's tokens stand together: the first of them is where `places` says.
            found = [(-row[place:]).tolist() for row, place in zip(energy_BL, places_B.tolist(), strict=True)]
    for one, values in zip(readings, found, strict=True):
        for token in one.tokens:
            scores[one.text][token] = values[token - one.tokens[0]]
