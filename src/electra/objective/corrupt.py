"""Choosing what is predicted, showing the reader less than the text, and putting samples in its place.

On a GPU each is one kernel; `batches.masking` and what stands here say what it computes.

Shapes: B sequences, L length, S prediction slots, M = B·S, V vocabulary (padded to whole blocks), K blocks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from electra import rng
from electra.batches.masking import REPLACE, Slots, choose, put, show_draws, slot_count
from electra.batches.sequences import Sequences
from electra.config.schema import MaskingConfig
from electra.kernels import one_launch

BLOCK = 128  # vocabulary entries that sampling sums up together
NEVER = -1e4  # a logit that no softmax picks


def choose_slots(batch: Sequences, masking: MaskingConfig, special: tuple[int, ...]) -> Slots:
    """The positions to predict: the rounded share of each row's tokens, never a special token or padding."""
    if one_launch(batch.ids_BL):
        from electra.kernels import slots as kernel

        count = max(1, slot_count(batch.ids_BL.shape[1], masking.rate))
        again = masking.policy != "without_replacement"
        given = (batch.ids_BL, batch.lengths_B, batch.keys_B)
        return kernel.choose(*given, slots=count, rate=masking.rate, again=again, special=special)
    return choose(batch.ids_BL, batch.lengths_B, batch.keys_B, masking=masking, special=special)


def mask(batch: Sequences, slots: Slots, *, masked_share: float, mask_id: int) -> Tensor:
    """Ids with [MASK] at a share of the slots and the original token at the rest (the generator's input)."""
    if one_launch(batch.ids_BL):
        return _shown(batch, slots, hidden=masked_share, written=masked_share, mask_id=mask_id, vocab=1)
    hide_BS = slots.used_BS & (show_draws(slots, batch.keys_B) < masked_share)
    return put(batch.ids_BL, slots.positions_BS, torch.full_like(slots.positions_BS, mask_id), hide_BS)


def mask_bert(batch: Sequences, slots: Slots, *, mask_id: int, vocab: int) -> Tensor:
    """Ids with 80 % of the slots [MASK], 10 % a random token and 10 % the original one."""
    if one_launch(batch.ids_BL):
        return _shown(batch, slots, hidden=0.8, written=0.9, mask_id=mask_id, vocab=vocab)
    draw_BS = show_draws(slots, batch.keys_B)
    # The part of the draw inside (0.8, 0.9) is itself uniform and picks the random token.
    random_BS = ((draw_BS - 0.8) * 10 * vocab).long().clamp(0, vocab - 1)
    value_BS = torch.where(draw_BS < 0.8, mask_id, random_BS)
    return put(batch.ids_BL, slots.positions_BS, value_BS, slots.used_BS & (draw_BS < 0.9))


def _shown(batch: Sequences, slots: Slots, *, hidden: float, written: float, mask_id: int, vocab: int) -> Tensor:
    from electra.kernels import slots as kernel

    shares = {"hidden": hidden, "written": written}
    return kernel.show(batch.ids_BL, batch.keys_B, slots, **shares, mask_id=mask_id, vocab=vocab)


def pad_vocabulary(table_VE: Tensor, bias_V: Tensor) -> tuple[Tensor, Tensor]:
    """Table and bias filled up to whole blocks with entries that no softmax ever picks."""
    missing = -table_VE.shape[0] % BLOCK
    if missing == 0:  # padding by nothing would still copy the table, there and back
        return table_VE, bias_V
    return F.pad(table_VE, (0, 0, 0, missing)), F.pad(bias_V, (0, missing), value=NEVER)


def sample(
    log_probabilities_MV: Tensor, keys_M: Tensor, *, temperature: float = 1.0, forbidden_M: Tensor | None = None
) -> Tensor:
    """One token id a row, drawn from its distribution: first a block by its total, then a token inside it.

    A `temperature` above 1 makes unlikely tokens likelier; a row's `forbidden` token is never drawn.
    """
    with torch.no_grad():
        p_MV = _weights(log_probabilities_MV.detach(), temperature, forbidden_M)
        p_MKT = p_MV.unflatten(1, (-1, BLOCK))
        draws_M2 = rng.uniform(
            rng.bits(keys_M[:, None], rng.mix(torch.arange(2, dtype=torch.int32, device=keys_M.device)))
        )
        block_M = _pick(p_MKT.sum(2), draws_M2[:, :1])
        inside_MT = p_MKT.gather(1, block_M[:, None, None].expand(-1, 1, BLOCK)).squeeze(1)
        token_M = _pick(inside_MT, draws_M2[:, 1:])
        return block_M * BLOCK + token_M


def _weights(logp_MV: Tensor, temperature: float, forbidden_M: Tensor | None) -> Tensor:
    """What to draw in proportion to."""
    if temperature == 1.0 and forbidden_M is None:
        return logp_MV.exp()
    scores_MV = (logp_MV / temperature).masked_fill(logp_MV < NEVER / 2, -torch.inf)
    if forbidden_M is not None:
        scores_MV = scores_MV.scatter(1, forbidden_M[:, None], -torch.inf)
    # From the likeliest one: a sharpened or nearly certain distribution would leave zeros only.
    return (scores_MV - scores_MV.amax(1, keepdim=True)).exp()


def _pick(weights_MK: Tensor, draw_M1: Tensor) -> Tensor:
    """The index that a uniform draw falls on when the weights are laid end to end."""
    ends_MK = weights_MK.cumsum(1)
    below_MK = ends_MK <= draw_M1 * ends_MK[:, -1:]
    # Rounding may put the draw at the very end: then the last index with any weight.
    last_M = (weights_MK > 0).long().mul(torch.arange(weights_MK.shape[1], device=weights_MK.device)).amax(1)
    return torch.minimum(below_MK.sum(1), last_M)


def gold_and_keys(batch: Sequences, slots: Slots) -> tuple[Tensor, Tensor]:
    """(M,) what stands at the slots, and (M,) keys, one for each slot's replacement."""
    if one_launch(batch.keys_B):
        from electra.kernels import slots as kernel

        return kernel.gold_and_keys(batch.ids_BL, batch.keys_B, slots.positions_BS)
    gold_M = batch.ids_BL.gather(1, slots.positions_BS).flatten().long()
    number_S = torch.arange(slots.positions_BS.shape[1], dtype=torch.int32, device=batch.keys_B.device)
    keys_BS: Tensor = rng.fold(rng.fold(batch.keys_B, REPLACE)[:, None], number_S[None, :])
    return gold_M, keys_BS.flatten()


def replace(batch: Sequences, slots: Slots, sampled_BS: Tensor, *, official: bool) -> Tensor:
    """Ids with the samples at the slots; `official` averages the ids of a position drawn twice, as released."""
    if one_launch(batch.ids_BL):  # without duplicates the mean is the sample itself
        from electra.kernels import slots as kernel

        return kernel.replace(batch.ids_BL, slots, sampled_BS)
    if not official:
        return put(batch.ids_BL, slots.positions_BS, sampled_BS, slots.used_BS)
    length = batch.ids_BL.shape[1]
    shape = (batch.ids_BL.shape[0], length)
    used = slots.used_BS.long()
    total_BL = torch.zeros(shape, dtype=torch.long, device=used.device)
    total_BL = total_BL.scatter_add(1, slots.positions_BS, sampled_BS * used)
    count_BL = torch.zeros(shape, dtype=torch.long, device=used.device).scatter_add(1, slots.positions_BS, used)
    mean_BL = torch.div(total_BL, count_BL.clamp(min=1), rounding_mode="floor")
    return torch.where(count_BL > 0, mean_BL, batch.ids_BL.long()).to(batch.ids_BL.dtype)
