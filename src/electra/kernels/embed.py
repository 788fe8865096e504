"""Token, position and segment tables, norm and dropout in one pass; on the way back, no sort of the tokens.

The plain twin is `model.layers.Embeddings`.

Shapes: B texts, L length, T = B·L tokens, V vocabulary, E embedding size, R rows of a program, C the
power of two that holds a row, P programs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.hashing import Drop, drop_at, kept, word, words_under
from electra.kernels.norm import MOST_PROGRAMS, TILE_BACK, tile
from electra.kernels.sums import sum_into


@triton.jit
def _summed(tokens_table, positions, segments, id_R, segment_R, place_R, columns_C, inside, E: tl.constexpr):  # type: ignore[no-untyped-def]
    """(R, C) rows of the three tables, added up."""
    x = tl.load(tokens_table + id_R.to(tl.int64)[:, None] * E + columns_C[None, :], inside, 0.0)
    x += tl.load(positions + place_R[:, None] * E + columns_C[None, :], inside, 0.0)
    return x + tl.load(segments + segment_R[:, None] * E + columns_C[None, :], inside, 0.0)


@triton.jit
def _embed_forward(  # type: ignore[no-untyped-def]
    ids, kinds, table, positions, segments, gamma, beta, out, mean, rstd, keys,
    tokens, length, threshold, grow, eps,
    E: tl.constexpr, C: tl.constexpr, R: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    rows_R = tl.program_id(0) * R + tl.arange(0, R)
    columns_C = tl.arange(0, C)
    here_R = rows_R < tokens
    inside = here_R[:, None] & (columns_C < E)[None, :]
    id_R = tl.load(ids + rows_R, here_R, 0)
    kind_R = tl.load(kinds + rows_R, here_R, 0)
    place_R = rows_R % length
    x = _summed(table, positions, segments, id_R, kind_R, place_R, columns_C, inside, E)
    mean_R = tl.sum(x, 1) / E
    x = tl.where(inside, x - mean_R[:, None], 0.0)
    rstd_R = tl.rsqrt(tl.sum(x * x, 1) / E + eps)
    gamma_C = tl.load(gamma + columns_C, columns_C < E, 0.0)
    beta_C = tl.load(beta + columns_C, columns_C < E, 0.0)
    y = x * rstd_R[:, None] * gamma_C[None, :] + beta_C[None, :]
    if DROP:
        words_R = words_under(word(tl.load(keys + rows_R // length, here_R, 0)), place_R)
        y = tl.where(kept(words_R, 0, threshold, C), y * grow, 0.0)
    tl.store(out + rows_R.to(tl.int64)[:, None] * E + columns_C[None, :], y.to(out.dtype.element_ty), inside)
    tl.store(mean + rows_R, mean_R, here_R)
    tl.store(rstd + rows_R, rstd_R, here_R)


@triton.jit
def _embed_backward(  # type: ignore[no-untyped-def]
    gradient, ids, kinds, table, positions, segments, gamma, mean, rstd, d_table, d_summed, sums, keys,
    tokens, length, threshold, grow, steps,
    E: tl.constexpr, C: tl.constexpr, R: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    columns_C = tl.arange(0, C)
    gamma_C = tl.load(gamma + columns_C, columns_C < E, 0.0)
    # Rows are added up as they come, or registers would not do: a warp has a column's in one thread, or in few.
    d_gamma_C = tl.zeros([C], tl.float32)
    d_beta_C = tl.zeros([C], tl.float32)
    first_C = tl.zeros([C], tl.float32)
    second_C = tl.zeros([C], tl.float32)
    for step in tl.range(steps):
        rows_R = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        here_R = rows_R < tokens
        inside = here_R[:, None] & (columns_C < E)[None, :]
        id_R = tl.load(ids + rows_R, here_R, 0)
        kind_R = tl.load(kinds + rows_R, here_R, 0)
        place_R = rows_R % length
        mean_R = tl.load(mean + rows_R, here_R, 0.0)
        rstd_R = tl.load(rstd + rows_R, here_R, 0.0)
        source = rows_R.to(tl.int64)[:, None] * E + columns_C[None, :]
        dy = tl.load(gradient + source, inside, 0.0).to(tl.float32)
        if DROP:
            words_R = words_under(word(tl.load(keys + rows_R // length, here_R, 0)), place_R)
            dy = tl.where(kept(words_R, 0, threshold, C), dy * grow, 0.0)
        x = _summed(table, positions, segments, id_R, kind_R, place_R, columns_C, inside, E)
        x = tl.where(inside, (x - mean_R[:, None]) * rstd_R[:, None], 0.0)
        d_gamma_C += tl.sum(dy * x, 0)
        d_beta_C += tl.sum(dy, 0)
        dy = dy * gamma_C[None, :]
        level_R = tl.sum(dy, 1) / E
        slope_R = tl.sum(dy * x, 1) / E
        dx = tl.where(inside, (dy - level_R[:, None] - x * slope_R[:, None]) * rstd_R[:, None], 0.0)
        tl.store(d_summed + source, dx, inside)
        tl.atomic_add(d_table + id_R.to(tl.int64)[:, None] * E + columns_C[None, :], dx, inside, sem="relaxed")
        of_second = kind_R.to(tl.float32)[:, None]
        first_C += tl.sum(dx * (1.0 - of_second), 0)
        second_C += tl.sum(dx * of_second, 0)
    line = sums + tl.program_id(0).to(tl.int64) * 4 * E + columns_C
    tl.store(line, d_gamma_C, columns_C < E)
    tl.store(line + E, d_beta_C, columns_C < E)
    tl.store(line + 2 * E, first_C, columns_C < E)
    tl.store(line + 3 * E, second_C, columns_C < E)


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        ids_BL: Tensor,
        kinds_BL: Tensor,
        drop: Drop,
        eps: float,
        dtype: torch.dtype,
        table_VE: Tensor,
        positions_PE: Tensor,
        segments_2E: Tensor,
        gamma_E: Tensor,
        beta_E: Tensor,
    ) -> Tensor:
        size = table_VE.shape[1]
        rows, block = tile(size, TILE_BACK)
        out_BLE = torch.empty(*ids_BL.shape, size, dtype=dtype, device=table_VE.device)
        mean_T, rstd_T = torch.empty(2, ids_BL.numel(), dtype=torch.float32, device=table_VE.device).unbind()
        _embed_forward[(triton.cdiv(ids_BL.numel(), rows),)](
            ids_BL, kinds_BL, table_VE, positions_PE, segments_2E, gamma_E, beta_E, out_BLE, mean_T, rstd_T,
            ids_BL if drop.keys_B is None else drop.keys_B,
            ids_BL.numel(), ids_BL.shape[1], drop.threshold, drop.grow, eps,
            E=size, C=block, R=rows, DROP=drop.keys_B is not None, num_warps=1,
        )  # fmt: skip
        ctx.save_for_backward(ids_BL, kinds_BL, table_VE, positions_PE, segments_2E, gamma_E, mean_T, rstd_T)
        ctx.drop = drop
        return out_BLE

    @staticmethod
    def backward(ctx: Any, gradient_BLE: Tensor) -> tuple[Tensor | None, ...]:
        ids_BL, kinds_BL, table_VE, positions_PE, segments_2E, gamma_E, mean_T, rstd_T = ctx.saved_tensors
        drop, (texts, length), size = ctx.drop, ids_BL.shape, table_VE.shape[1]
        rows, block = tile(size, TILE_BACK)
        steps = max(1, triton.cdiv(ids_BL.numel(), rows * MOST_PROGRAMS))
        programs = triton.cdiv(ids_BL.numel(), rows * steps)
        d_table_VE = torch.zeros_like(table_VE)
        d_summed_TE = torch.empty(ids_BL.numel(), size, dtype=torch.float32, device=table_VE.device)
        sums_PN = torch.empty(programs, 4 * size, dtype=torch.float32, device=table_VE.device)
        _embed_backward[(programs,)](
            gradient_BLE.contiguous(), ids_BL, kinds_BL, table_VE, positions_PE, segments_2E, gamma_E, mean_T, rstd_T,
            d_table_VE, d_summed_TE, sums_PN,
            ids_BL if drop.keys_B is None else drop.keys_B,
            ids_BL.numel(), length, drop.threshold, drop.grow, steps,
            E=size, C=block, R=rows, DROP=drop.keys_B is not None, num_warps=1,
        )  # fmt: skip
        d_vectors_4E = torch.empty(4, size, dtype=torch.float32, device=table_VE.device)
        d_positions_PE = torch.empty_like(positions_PE)
        d_positions_PE[length:] = 0.0
        sum_into(
            (d_summed_TE.view(1, texts, -1), d_positions_PE[:length].view(1, -1)),
            (sums_PN[None], d_vectors_4E.view(1, -1)),
        )
        d_gamma_E, d_beta_E, d_segments_2E = d_vectors_4E[0], d_vectors_4E[1], d_vectors_4E[2:]
        return None, None, None, None, None, d_table_VE, d_positions_PE, d_segments_2E, d_gamma_E, d_beta_E


@torch.compiler.disable
def embed(
    ids_BL: Tensor, kinds_BL: Tensor, keys_B: Tensor | None, tables: tuple[Tensor, ...], *, rate: float, eps: float,
    dtype: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """(B, L, E), rounded to `dtype`; `tables` are those of tokens, positions and segments, and the norm's weights."""
    drop = drop_at(None if keys_B is None else keys_B.contiguous(), rate, 0)  # the keys are this place's own
    assert ids_BL.shape[1] <= len(tables[1]), "more tokens than positions"
    with torch.cuda.device_of(ids_BL):
        out_BLE: Tensor = _Embed.apply(  # type: ignore[no-untyped-call]
            ids_BL.contiguous(), kinds_BL.contiguous(), drop, eps, dtype, *tables
        )
    return out_BLE
