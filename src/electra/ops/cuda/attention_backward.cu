// Backward of attention_forward. With p = softmax(s), m = dropout(p) and dm = d_context vᵀ:
//   ds = p * (dropout(dm) - Σ_keys p * dropout(dm)),  dq = ds k * scale,  dk = dsᵀ q * scale,  dv = mᵀ d_context.
// q, k and v in global memory are overwritten with their gradients, which are also summed over each sequence (bias).
//
// Hardware: TMA loads and stores, mbarriers, wgmma, stmatrix, programmatic dependent launch.
// Shared memory: 2 stages x (q, k, v, d_context) tiles | m: 2 tiles of 64 keys | ds: 2 tiles | partial sums of dq and
// dv (2, 8 warps, 64) fp32 | 2 mbarriers.

#include "attention.cuh"

// Columns 8 (n - 1) .. 8 n + 7 of a warp's 16 rows, into tiles of 64 columns.
DEVICE void write_columns(char* tiles, const u32 (&pairs)[16][2], int n, int first_row, int lane) {
  u32 to = shared_address(tiles) + n / 8 * TILE + swizzled(first_row + (lane & 15), (n & 6) + (lane >> 4));
  stmatrix_x4(to, pairs[n - 1]);
}
// From probabilities p and dm to m and ds, both into shared memory; ds also stays in registers.
DEVICE void softmax_dropout_backward(u32 (&ds)[16][2], const float (&p)[16][4], float (&dm)[16][4], char* m_tiles,
                                     char* ds_tiles, const u32 row_bits[2], const u32 (&column_bits)[16], u32 threshold,
                                     float dropout_scale, int first_row, int lane) {
  float dot[2] = {};  // Σ_keys p * dropout(dm)
#pragma unroll
  for (int n = 0; n < 16; n++) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u32 bits = random_bits(row_bits[i], column_bits[n]);
      bool keep0 = keeps_low(bits, threshold), keep1 = keeps_high(bits, threshold);
      dm[n][2 * i] = keep0 ? dm[n][2 * i] : 0;
      dm[n][2 * i + 1] = keep1 ? dm[n][2 * i + 1] : 0;
      dot[i] += p[n][2 * i] * dm[n][2 * i];
      dot[i] += p[n][2 * i + 1] * dm[n][2 * i + 1];
      ds[n][i] = pack_bf16(keep0 ? p[n][2 * i] : 0, keep1 ? p[n][2 * i + 1] : 0);  // m, until it is written
    }
    if (n & 1) write_columns(m_tiles, ds, n, first_row, lane);
  }
  for (int i = 0; i < 2; i++) dot[i] = quad_sum(dot[i]) * dropout_scale;
#pragma unroll
  for (int n = 0; n < 16; n++) {
#pragma unroll
    for (int i = 0; i < 2; i++)
      ds[n][i] = pack_bf16(p[n][2 * i] * (dm[n][2 * i] * dropout_scale - dot[i]),
                           p[n][2 * i + 1] * (dm[n][2 * i + 1] * dropout_scale - dot[i]));
    if (n & 1) write_columns(ds_tiles, ds, n, first_row, lane);
  }
}

KERNEL(256, 1)
attention_backward(TENSOR_MAP qkv,            // in and out (B, L, 3, N, 64) bf16, tiles of 128 rows
                   TENSOR_MAP d_context,      // (B, L, N, 64) bf16, tiles of 128 rows
                   const float* lse,          // (B, N, L) fp32
                   float* sums,               // out (B, 3, N, 64) fp32: sums of gradients over each sequence
                   const int* lengths,        // (B,) int32 valid tokens; null: all
                   const int* dropout_keys,   // (B,) int32; null: no dropout
                   int call_site,             // of dropout
                   int count,                 // B N
                   int length,                // L <= 128
                   int heads,                 // N
                   float scale,               // of scores
                   int dropout_threshold,     // drop probability * 65536
                   float dropout_scale) {     // 1 / keep probability
  SHARED_MEMORY(memory);
  char *m_tiles = memory + 8 * TILE, *ds_tiles = m_tiles + 2 * TILE;
  float* partial_sums = (float*)(ds_tiles + 2 * TILE);
  HeadIterator it = make_head_iterator(memory, (char*)partial_sums + 4096, 4, count, heads);
  int thread = threadIdx.x, lane = thread & 31, warp = thread / 32, warpgroup = thread / WARPGROUP;
  int first_row = warp * 16;
  float scale_log2 = scale * LOG2_E;
  u32 threshold = dropout_keys ? (u32)dropout_threshold << 16 : 0;
  if (!dropout_keys) dropout_scale = 1;
  u32 column_bits[16];
#pragma unroll
  for (int n = 0; n < 16; n++) column_bits[n] = dropout_column_bits(n * 4 + (lane & 3));
  auto load_tiles = [&](const HeadIterator& one) {
    mbarrier_expect_tx(one.barrier(), 4 * TILE);
    load_qkv(one, qkv);
    tma_load(one.tile(3), d_context, one.sequence(), 0, one.head() * 64, one.barrier());
  };
  wait_for_previous_kernel();
  // Ordinary loads run one head ahead of their use.
  float row_lse[2], next_lse[2];
  int valid_length = length, next_valid_length = length;
  u32 key = 0, next_key = 0;
  auto load_inputs = [&](const HeadIterator& one) {
    if (lengths) next_valid_length = lengths[one.sequence()];
    if (dropout_keys) next_key = (u32)dropout_keys[one.sequence()];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int row = first_row + lane / 4 + 8 * i;
      next_lse[i] = row < length ? lse[(long)one.item * length + row] : 0;
    }
  };
  if (it.valid()) {
    if (thread == 0) load_tiles(it);
    load_inputs(it);
  }
  for (; it.valid(); it.advance()) {
    HeadIterator next = it;
    next.advance();
    if (thread == 0 && next.valid()) {
      tma_store_wait_read();  // out of the other stage
      load_tiles(next);
    }
    valid_length = next_valid_length, key = next_key, row_lse[0] = next_lse[0], row_lse[1] = next_lse[1];
    if (next.valid()) load_inputs(next);
    int sequence = it.sequence(), head = it.head();
    char *q_tile = it.tile(0), *k_tile = it.tile(1), *v_tile = it.tile(2), *d_tile = it.tile(3);
    u32 row_bits[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
      row_bits[i] = dropout_row_bits(key, (u32)call_site, head * length + first_row + lane / 4 + 8 * i);
    it.wait();
    float p[16][4], dm[16][4];
    start_scores(p, q_tile + warpgroup * HALF_TILE, k_tile);
    start_scores(dm, d_tile + warpgroup * HALF_TILE, v_tile);
    wgmma_wait<1>(p);
    if (valid_length < ROWS) mask_padding(p, valid_length, lane);
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) p[n][i] = exp2_approx(p[n][i] * scale_log2 - row_lse[i / 2]);
    wgmma_wait<0>(dm);
    u32 ds[16][2];
    softmax_dropout_backward(ds, p, dm, m_tiles, ds_tiles, row_bits, column_bits, threshold, dropout_scale, first_row,
                             lane);
    fence_async_proxy();
    float dq[8][4], dk[8][4], dv[8][4];
    start_weighted_sum(dq, ds, k_tile);
    __syncthreads();  // the other warpgroup's m and ds are there too
    start_transposed(dv, m_tiles + warpgroup * TILE, d_tile);
    start_transposed(dk, ds_tiles + warpgroup * TILE, q_tile);
    wgmma_wait<2>(dq);
    wgmma_wait<1>(dv);
    wgmma_wait<0>(dk);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) dq[n][i] *= scale, dk[n][i] *= scale, dv[n][i] *= dropout_scale;
    column_sums(dq, partial_sums + warp * 64, lane);
    column_sums(dv, partial_sums + 512 + warp * 64, lane);
    __syncthreads();  // no product reads the tiles any more
    write_rows(dq, q_tile, first_row, lane);
    write_rows(dk, k_tile, first_row, lane);
    write_rows(dv, v_tile, first_row, lane);
    fence_async_proxy();
    __syncthreads();
    if (thread == 0)
      for (int i = 0; i < 3; i++) tma_store(it.tile(i), qkv, sequence, 0, (i * heads + head) * 64);
    // A bias added to all keys changes no softmax, so its gradient is zero.
    if (thread < 192) {
      float total = 0;
      int column = thread & 63;
      if (thread / 64 != 1)
        for (int i = 0; i < 8; i++) total += partial_sums[(thread / 64) * 256 + i * 64 + column];
      sums[(sequence * 3 + thread / 64) * heads * 64 + head * 64 + column] = total;
    }
  }
  if (thread == 0) tma_store_wait_all();
}
