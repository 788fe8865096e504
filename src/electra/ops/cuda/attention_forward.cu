// context = dropout(softmax(q kᵀ * scale)) v for every head, and the log-sum-exp of each row of scores for backward.
//
// Hardware: TMA loads and stores, mbarriers, wgmma, programmatic dependent launch. Two blocks a multiprocessor.
// Shared memory: 2 stages x (q, k, v) tiles | column bits of dropout (64 u32) | 2 mbarriers. A head's context replaces
// its queries.

#include "attention.cuh"

KERNEL(256, 2)
attention_forward(TENSOR_MAP qkv,           // (B, L, 3, N, 64) bf16, tiles of 128 rows
                  TENSOR_MAP context,       // out (B, L, N, 64) bf16, tiles of 64 rows
                  float* lse,               // out (B, N, L) fp32, in powers of two
                  const int* lengths,       // (B,) int32 valid tokens; null: all
                  const int* dropout_keys,  // (B,) int32; null: no dropout
                  int call_site,            // of dropout
                  int count,                // B N
                  int length,               // L <= 128
                  int heads,                // N
                  float scale,              // of scores
                  int dropout_threshold,    // drop probability * 65536
                  float dropout_scale) {    // 1 / keep probability
  SHARED_MEMORY(memory);
  u32* column_bits = (u32*)(memory + 6 * TILE);
  HeadIterator it = make_head_iterator(memory, memory + 6 * TILE + 256, 3, count, heads);
  int thread = threadIdx.x, lane = thread & 31, warpgroup = thread / WARPGROUP;
  int first_row = thread / 32 * 16, row = first_row + lane / 4;
  float scale_log2 = scale * LOG2_E;
  if (thread < 64) column_bits[thread] = dropout_column_bits(thread);
  wait_for_previous_kernel();
  if (thread == 0 && it.valid()) {
    mbarrier_expect_tx(it.barrier(), 3 * TILE);
    load_qkv(it, qkv);
  }
  for (; it.valid(); it.advance()) {
    if (thread % WARPGROUP == 0) tma_store_wait_read();
    __syncthreads();  // the other stage has been read
    if (thread == 0 && it.next() < count) {
      HeadIterator next = it;
      next.advance();
      mbarrier_expect_tx(next.barrier(), 3 * TILE);
      load_qkv(next, qkv);
    }
    int sequence = it.sequence(), head = it.head(), valid_length = lengths ? lengths[sequence] : length;
    u32 row_bits[2];
    for (int i = 0; i < 2; i++)
      row_bits[i] =
          dropout_keys ? dropout_row_bits((u32)dropout_keys[sequence], (u32)call_site, head * length + row + 8 * i) : 0;
    char* q_tile = it.tile(0);
    it.wait();
    float s[16][4];
    start_scores(s, q_tile + warpgroup * HALF_TILE, it.tile(1));
    wgmma_wait<0>(s);
    if (valid_length < ROWS) mask_padding(s, valid_length, lane);
    float max[2], sum[2];
    u32 pairs[16][2];
    softmax_dropout(pairs, s, max, sum, row_bits, column_bits, scale_log2,
                    (u32)(dropout_keys ? dropout_threshold : 0) << 16, lane);
    float c[8][4];
    start_weighted_sum(c, pairs, it.tile(2));
    float normaliser[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      sum[i] = fmaxf(quad_sum(sum[i]), 1e-30f);
      normaliser[i] = (dropout_keys ? dropout_scale : 1.0f) / sum[i];
      if ((lane & 3) == 0 && row + 8 * i < length) lse[(long)it.item * length + row + 8 * i] = max[i] + log2f(sum[i]);
    }
    wgmma_wait<0>(c);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) c[n][i] *= normaliser[i / 2];
    sync_warpgroup(warpgroup);  // its queries have been read
    write_rows(c, q_tile, first_row, lane);
    fence_async_proxy();
    sync_warpgroup(warpgroup);
    if (thread % WARPGROUP == 0)
      tma_store(q_tile + warpgroup * HALF_TILE, context, sequence, warpgroup * 64, head * 64);
  }
  if (thread % WARPGROUP == 0) tma_store_wait_all();
}
