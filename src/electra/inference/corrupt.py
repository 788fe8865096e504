"""The generator replaces tokens of a text, and the discriminator says which: pre-training's game, on any text.

Shapes: B sequences, L length, M masked positions, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from electra import rng
from electra.batches.masking import MaskedPositions
from electra.config.schema import MaskingConfig
from electra.errors import CheckpointError, DataError
from electra.inference.detect import BATCH_SIZE, probabilities
from electra.inference.overlapping_windows import text_capacity
from electra.inference.results import CorruptedToken, Corruption
from electra.interop.models import Loaded
from electra.model.heads import MaskedHead
from electra.ops.dispatch import host_ops
from electra.tokenizer.codec import Tokenizer

_CONTINUES = "##"


def check_pair(generator: Loaded, discriminator: Loaded) -> None:
    """Refuse a generator that cannot sample, or whose ids mean other tokens than the discriminator's."""
    if not isinstance(generator.head, MaskedHead):
        raise CheckpointError(generator.path, "is not a generator: it has no masked-token head")
    if generator.tokenizer.fingerprint != discriminator.tokenizer.fingerprint:
        raise DataError(generator.path, f"has another vocabulary than {discriminator.path}")


def corrupt_texts(
    generator: Loaded,
    discriminator: Loaded,
    texts: Sequence[str],
    *,
    seeds: Sequence[int],
    rate: float = 0.15,
    threshold: float = 0.5,
) -> list[Corruption]:
    """Each text with a share of its tokens sampled anew, and the probability that each token was replaced.

    The same text, seed and rate give the same samples, whatever is computed with them.
    """
    tokenizer = discriminator.tokenizer
    encoded = [tokenizer.encode_with_offsets(text) for text in texts]
    originals = [ids for ids, _ in encoded]
    corrupted, masked = _sampled(generator, originals, seeds=seeds, rate=rate)
    found = probabilities(discriminator, corrupted)
    made = []
    for number, (text, (ids, offsets)) in enumerate(zip(texts, encoded, strict=True)):
        pieces = _pieces(text, ids, corrupted[number], offsets, tokenizer)
        tokens = (
            CorruptedToken(
                original=tokenizer.token(before),
                token=tokenizer.token(after),
                gap=gap,
                piece=piece,
                masked=place in masked[number],
                replaced=before != after,
                probability=probability,
                flagged=probability >= threshold,
            )
            for place, (before, after, (gap, piece), probability) in enumerate(
                zip(ids, corrupted[number], pieces, found[number], strict=True)
            )
        )
        made.append(Corruption(text=text, tokens=tuple(tokens)))
    return made


def _sampled(
    generator: Loaded, sequences: Sequence[list[int]], *, seeds: Sequence[int], rate: float
) -> tuple[list[list[int]], list[set[int]]]:
    """The token sequences with samples in them, and which tokens of each were masked."""
    capacity, tokenizer = text_capacity(generator), generator.tokenizer
    corrupted, masked = [list(ids) for ids in sequences], [set[int]() for _ in sequences]
    stretches = [(number, at) for number, ids in enumerate(sequences) for at in range(0, len(ids), capacity)]
    stretches.sort(key=lambda one: min(capacity, len(sequences[one[0]]) - one[1]))  # batches of similar length
    for first in range(0, len(stretches), BATCH_SIZE):
        batch = stretches[first : first + BATCH_SIZE]
        rows = [[tokenizer.cls_id, *sequences[n][at : at + capacity], tokenizer.sep_id] for n, at in batch]
        keys = [rng.derive(seeds[number], "corrupt", at) for number, at in batch]
        for (number, at), (positions, sampled) in zip(batch, _sample_rows(generator, rows, keys, rate), strict=True):
            for position, token in zip(positions, sampled, strict=True):
                corrupted[number][at + position - 1] = token
                masked[number].add(at + position - 1)
    return corrupted, masked


def _sample_rows(
    generator: Loaded, rows: list[list[int]], keys: list[int], rate: float
) -> list[tuple[list[int], list[int]]]:
    """Masked positions of each row, and the generator's sample at each."""
    head, module, tokenizer, ops = generator.head, generator.module, generator.tokenizer, host_ops()
    assert isinstance(head, MaskedHead)
    device = next(module.parameters()).device
    longest = max(map(len, rows))
    masked_rows, places, targets = [], [], []
    for row, key in zip(rows, keys, strict=True):  # one by one: how many are masked depends on the row's length alone
        ids_1L, key_1 = torch.tensor([row]), torch.tensor([key], dtype=torch.int32)
        masking, special = MaskingConfig(rate=rate), tokenizer.special_ids
        chosen = ops.choose_masked(ids_1L, torch.tensor([len(row)]), key_1, masking=masking, special=special)
        used_M = chosen.used_BM[0]
        chosen = MaskedPositions(chosen.positions_BM[:, used_M], chosen.used_BM[:, used_M])
        targets.append(ops.masked_targets(ids_1L, key_1, chosen))
        places.append(chosen.positions_BM[0])
        masked_rows.append(ids_1L[0].index_fill(0, places[-1], tokenizer.mask_id))
    ids_BL = torch.full((len(rows), longest), tokenizer.pad_id)
    for number, row_L in enumerate(masked_rows):
        ids_BL[number, : len(row_L)] = row_L
    lengths_B = torch.tensor([len(row) for row in rows])
    counts = [len(one) for one in places]
    row_M = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(counts))
    gold_M, keys_M = (torch.cat(parts).to(device) for parts in zip(*targets, strict=True))
    if not sum(counts):  # nothing but special tokens
        return [([], [])] * len(rows)
    with torch.inference_mode():
        hidden_BLD = module(ids_BL.to(device), torch.zeros_like(ids_BL, device=device), lengths_B.to(device))
        hidden_MD = hidden_BLD[row_M.to(device), torch.cat(places).to(device)]
        prediction = head(hidden_MD, module.embeddings.token.weight, gold_M, keys_M, logits=False)
    sampled = prediction.sampled_M.cpu().split(counts)
    return [(place.tolist(), tokens.tolist()) for place, tokens in zip(places, sampled, strict=True)]


def _pieces(
    text: str, ids: list[int], corrupted: list[int], offsets: list[tuple[int, int]], tokenizer: Tokenizer
) -> list[tuple[str, str]]:
    """How to write the corrupted text: what stands in front of each token, and the token's own characters."""
    pieces, end = [], 0
    for before, after, (first, last) in zip(ids, corrupted, offsets, strict=True):
        start = max(end, first)  # two tokens can come from one character
        gap, end = text[end:start], max(end, last)
        if before == after:
            pieces.append((gap, text[start:last]))
            continue
        entry = tokenizer.token(after)
        if tokenizer.tokens_hold_spaces:
            pieces.append((" " if pieces and entry.startswith(" ") else "", entry.removeprefix(" ")))
        elif entry.startswith(_CONTINUES) and len(entry) > len(_CONTINUES):
            pieces.append(("", entry.removeprefix(_CONTINUES)))
        else:  # a word where the rest of one, or a full stop, stood
            words_meet = bool(pieces) and pieces[-1][1][-1:].isalnum() and entry[:1].isalnum()
            pieces.append((gap or (" " if words_meet else ""), entry))
    return pieces
