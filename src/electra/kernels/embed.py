"""Token, position and segment tables, norm and dropout in one pass; on the way back, no sort of the tokens.

The plain twin is `model.layers.Embeddings`.

Shapes: B texts, L length, T = B·L tokens, V vocabulary, E embedding size, R rows of a program, C columns of half a row,
P programs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.hashing import Drop, drop_at, kept, word, words_under
from electra.kernels.norm import MOST_PROGRAMS, TILE_BACK, tile
from electra.kernels.sums import sum_lines


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
    E: tl.constexpr, HALF: tl.constexpr, C: tl.constexpr, R: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    rows_R = tl.program_id(0) * R + tl.arange(0, R)
    columns_C = tl.arange(0, C)
    here_R = rows_R < tokens
    in0 = here_R[:, None] & (columns_C < HALF)[None, :]
    in1 = here_R[:, None] & (columns_C < E - HALF)[None, :]
    id_R = tl.load(ids + rows_R, here_R, 0)
    kind_R = tl.load(kinds + rows_R, here_R, 0)
    place_R = rows_R % length
    x0 = _summed(table, positions, segments, id_R, kind_R, place_R, columns_C, in0, E)
    x1 = _summed(table, positions, segments, id_R, kind_R, place_R, HALF + columns_C, in1, E)
    mean_R = (tl.sum(x0, 1) + tl.sum(x1, 1)) / E
    x0 = tl.where(in0, x0 - mean_R[:, None], 0.0)
    x1 = tl.where(in1, x1 - mean_R[:, None], 0.0)
    rstd_R = tl.rsqrt((tl.sum(x0 * x0, 1) + tl.sum(x1 * x1, 1)) / E + eps)
    g0 = tl.load(gamma + columns_C, columns_C < HALF, 0.0)
    g1 = tl.load(gamma + HALF + columns_C, columns_C < E - HALF, 0.0)
    b0 = tl.load(beta + columns_C, columns_C < HALF, 0.0)
    b1 = tl.load(beta + HALF + columns_C, columns_C < E - HALF, 0.0)
    y0 = x0 * rstd_R[:, None] * g0[None, :] + b0[None, :]
    y1 = x1 * rstd_R[:, None] * g1[None, :] + b1[None, :]
    if DROP:
        words_R = words_under(word(tl.load(keys + rows_R // length, here_R, 0)), place_R)
        keep0, keep1 = kept(words_R, columns_C, threshold)
        y0 = tl.where(keep0, y0 * grow, 0.0)
        y1 = tl.where(keep1, y1 * grow, 0.0)
    target = rows_R.to(tl.int64)[:, None] * E + columns_C[None, :]
    tl.store(out + target, y0, in0)
    tl.store(out + target + HALF, y1, in1)
    tl.store(mean + rows_R, mean_R, here_R)
    tl.store(rstd + rows_R, rstd_R, here_R)


@triton.jit
def _embed_backward(  # type: ignore[no-untyped-def]
    gradient, ids, kinds, table, positions, segments, gamma, mean, rstd, d_table, d_summed, sums, keys,
    tokens, length, threshold, grow, steps,
    E: tl.constexpr, HALF: tl.constexpr, C: tl.constexpr, R: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    columns_C = tl.arange(0, C)
    g0 = tl.load(gamma + columns_C, columns_C < HALF, 0.0)
    g1 = tl.load(gamma + HALF + columns_C, columns_C < E - HALF, 0.0)
    gamma0 = tl.zeros([R, C], tl.float32)
    gamma1 = tl.zeros([R, C], tl.float32)
    beta0 = tl.zeros([R, C], tl.float32)
    beta1 = tl.zeros([R, C], tl.float32)
    second0 = tl.zeros([R, C], tl.float32)
    second1 = tl.zeros([R, C], tl.float32)
    for step in tl.range(steps):
        rows_R = (tl.program_id(0) * steps + step) * R + tl.arange(0, R)
        here_R = rows_R < tokens
        in0 = here_R[:, None] & (columns_C < HALF)[None, :]
        in1 = here_R[:, None] & (columns_C < E - HALF)[None, :]
        id_R = tl.load(ids + rows_R, here_R, 0)
        kind_R = tl.load(kinds + rows_R, here_R, 0)
        place_R = rows_R % length
        mean_R = tl.load(mean + rows_R, here_R, 0.0)
        rstd_R = tl.load(rstd + rows_R, here_R, 0.0)
        source = rows_R.to(tl.int64)[:, None] * E + columns_C[None, :]
        dy0 = tl.load(gradient + source, in0, 0.0)
        dy1 = tl.load(gradient + source + HALF, in1, 0.0)
        if DROP:
            words_R = words_under(word(tl.load(keys + rows_R // length, here_R, 0)), place_R)
            keep0, keep1 = kept(words_R, columns_C, threshold)
            dy0 = tl.where(keep0, dy0 * grow, 0.0)
            dy1 = tl.where(keep1, dy1 * grow, 0.0)
        x0 = _summed(table, positions, segments, id_R, kind_R, place_R, columns_C, in0, E)
        x1 = _summed(table, positions, segments, id_R, kind_R, place_R, HALF + columns_C, in1, E)
        x0 = tl.where(in0, (x0 - mean_R[:, None]) * rstd_R[:, None], 0.0)
        x1 = tl.where(in1, (x1 - mean_R[:, None]) * rstd_R[:, None], 0.0)
        gamma0 += dy0 * x0
        gamma1 += dy1 * x1
        beta0 += dy0
        beta1 += dy1
        dy0 = dy0 * g0[None, :]
        dy1 = dy1 * g1[None, :]
        level_R = (tl.sum(dy0, 1) + tl.sum(dy1, 1)) / E
        slope_R = (tl.sum(dy0 * x0, 1) + tl.sum(dy1 * x1, 1)) / E
        dx0 = tl.where(in0, (dy0 - level_R[:, None] - x0 * slope_R[:, None]) * rstd_R[:, None], 0.0)
        dx1 = tl.where(in1, (dy1 - level_R[:, None] - x1 * slope_R[:, None]) * rstd_R[:, None], 0.0)
        tl.store(d_summed + source, dx0, in0)
        tl.store(d_summed + source + HALF, dx1, in1)
        row = id_R.to(tl.int64)[:, None] * E + columns_C[None, :]
        tl.atomic_add(d_table + row, dx0, in0, sem="relaxed")
        tl.atomic_add(d_table + row + HALF, dx1, in1, sem="relaxed")
        second_R = kind_R.to(tl.float32)
        second0 += dx0 * second_R[:, None]
        second1 += dx1 * second_R[:, None]
    line = sums + tl.program_id(0).to(tl.int64) * 3 * E + columns_C
    tl.store(line, tl.sum(gamma0, 0), columns_C < HALF)
    tl.store(line + HALF, tl.sum(gamma1, 0), columns_C < E - HALF)
    tl.store(line + E, tl.sum(beta0, 0), columns_C < HALF)
    tl.store(line + E + HALF, tl.sum(beta1, 0), columns_C < E - HALF)
    tl.store(line + 2 * E, tl.sum(second0, 0), columns_C < HALF)
    tl.store(line + 2 * E + HALF, tl.sum(second1, 0), columns_C < E - HALF)


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        ids_BL: Tensor,
        kinds_BL: Tensor,
        drop: Drop,
        eps: float,
        table_VE: Tensor,
        positions_PE: Tensor,
        segments_2E: Tensor,
        gamma_E: Tensor,
        beta_E: Tensor,
    ) -> Tensor:
        size = table_VE.shape[1]
        rows, half, block = tile(size, TILE_BACK)
        out_BLE = torch.empty(*ids_BL.shape, size, dtype=torch.float32, device=table_VE.device)
        mean_T, rstd_T = torch.empty(2, ids_BL.numel(), dtype=torch.float32, device=table_VE.device).unbind()
        _embed_forward[(triton.cdiv(ids_BL.numel(), rows),)](
            ids_BL, kinds_BL, table_VE, positions_PE, segments_2E, gamma_E, beta_E, out_BLE, mean_T, rstd_T,
            ids_BL if drop.keys_B is None else drop.keys_B,
            ids_BL.numel(), ids_BL.shape[1], drop.threshold, drop.grow, eps,
            E=size, HALF=half, C=block, R=rows, DROP=drop.keys_B is not None, num_warps=1,
        )  # fmt: skip
        ctx.save_for_backward(ids_BL, kinds_BL, table_VE, positions_PE, segments_2E, gamma_E, mean_T, rstd_T)
        ctx.drop = drop
        return out_BLE

    @staticmethod
    def backward(ctx: Any, gradient_BLE: Tensor) -> tuple[Tensor | None, ...]:
        ids_BL, kinds_BL, table_VE, positions_PE, segments_2E, gamma_E, mean_T, rstd_T = ctx.saved_tensors
        drop, (texts, length), size = ctx.drop, ids_BL.shape, table_VE.shape[1]
        rows, half, block = tile(size, TILE_BACK)
        steps = max(1, triton.cdiv(ids_BL.numel(), rows * MOST_PROGRAMS))
        programs = triton.cdiv(ids_BL.numel(), rows * steps)
        d_table_VE = torch.zeros_like(table_VE)
        d_summed_TE = torch.empty_like(gradient_BLE, memory_format=torch.contiguous_format)
        sums_P3E = torch.empty(programs, 3, size, dtype=torch.float32, device=table_VE.device)
        _embed_backward[(programs,)](
            gradient_BLE.contiguous(), ids_BL, kinds_BL, table_VE, positions_PE, segments_2E, gamma_E, mean_T, rstd_T,
            d_table_VE, d_summed_TE, sums_P3E,
            ids_BL if drop.keys_B is None else drop.keys_B,
            ids_BL.numel(), length, drop.threshold, drop.grow, steps,
            E=size, HALF=half, C=block, R=rows, DROP=drop.keys_B is not None, num_warps=1,
        )  # fmt: skip
        d_gamma_E, d_beta_E, d_second_E = sum_lines(sums_P3E.view(1, programs, -1)).view(3, size).unbind()
        d_places_LE = sum_lines(d_summed_TE.view(1, texts, -1)).view(length, size)
        d_positions_PE = torch.zeros_like(positions_PE)
        d_positions_PE[:length] = d_places_LE
        d_segments_2E = torch.stack((sum_lines(d_places_LE[None])[0] - d_second_E, d_second_E))
        return None, None, None, None, d_table_VE, d_positions_PE, d_segments_2E, d_gamma_E, d_beta_E


@torch.compiler.disable
def embed(
    ids_BL: Tensor, kinds_BL: Tensor, keys_B: Tensor | None, tables: tuple[Tensor, ...], *, rate: float, eps: float
) -> Tensor:
    """(B, L, E) fp32; `tables` are those of tokens, positions and segments, and the norm's weights."""
    drop = drop_at(None if keys_B is None else keys_B.contiguous(), rate, 0)  # the keys are this place's own
    assert ids_BL.shape[1] <= len(tables[1]), "more tokens than positions"
    with torch.cuda.device_of(ids_BL):
        out_BLE: Tensor = _Embed.apply(  # type: ignore[no-untyped-call]
            ids_BL.contiguous(), kinds_BL.contiguous(), drop, eps, *tables
        )
    return out_BLE
