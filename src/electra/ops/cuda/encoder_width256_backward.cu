// Backward of a post-norm transformer layer from its output to attention's context: width 256, MLP of 1024, at most 128
// tokens, bf16; and before it the last product of the layer above, whose attention has run backward in between:
//   d_z = d_residual + d_qkv qkv                                    (layer above; in the last layer d_z is given)
//   d_s2, d_down = norm2'(d_z), with dropout;  d_preact = (d_down down) * gelu'(preact);  d_y = d_s2 + d_preact up
//   d_residual, d_out = norm1'(d_y), with dropout;  d_context = d_out out
// and partial sums over tokens of the gradients of gammas, betas and the biases of `down`, `up` and `out`.
//
// A block takes one sequence, each of two consumer warpgroups 64 of its rows; warpgroups exchange nothing. Nothing that a
// block writes to global memory is read again in the same launch.
//
// Hardware: TMA loads, stores and prefetches, mbarriers, wgmma, setmaxnreg, named barriers, programmatic dependent launch.
// Shared memory, in tiles of 16 KiB: gradients 0-3 | second pipeline 4-7: d_qkv, sums under norm2, `up`, half of `out` |
// 128 inner columns 8-9, or partial sums of norms | first pipeline 10-13: `qkv`, `down`, sums under norm1, half of `out` |
// mbarriers | column bits | partial sums of `up`'s bias. All products and both norms use a pipeline's four stages once, so
// stages are constants; each warpgroup's rows of a tile are its own.

#include "encoder_width256_backward.cuh"

// One sequence: what its threads read and write without TMA.
struct Sequence {
  int number, length;
  u16* d_residual;
  const float *mean2, *rstd2, *gamma2, *mean1, *rstd1, *gamma1;
  float *norm1_sums, *norm2_sums, *up_sums;
  int call_site1, call_site2;
};

// d_residual + d_qkv qkv, in place of d_residual.
DEVICE void qkv_backward(const Buffers& b, const Consumer& t) {
  int own = t.warpgroup * HALF_TILE;
  float c[2][16][4];
  for (int i = 0; i < 2; i++) read_rows(c[i], b.gradient_tiles() + i * 2 * TILE, t.first_row, t.lane);
#pragma unroll 1
  for (int group = 0; group < 3; group++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      for (int i = 0; i < 2; i++) mbarrier_wait(b.second().full(2 * half + i), group & 1);
      start_product<1>(c, b.second().stage(2 * half) + own, b.first(), half);
      wgmma_wait<1>();
      release_stages(b.first(), 0, 2, t.lane);
      release_stage(b.second(), 2 * half, t.lane);
      finish_product(c);
      release_stages(b.first(), 2, 2, t.lane);
      release_stage(b.second(), 2 * half + 1, t.lane);
    }
  for (int i = 0; i < 2; i++) write_rows(c[i], b.gradient_tiles() + i * 2 * TILE, t.first_row, t.lane);
  __syncwarp();
}

// Partial sums of `up`'s bias over the rows of two warps, of 128 inner columns. Of two warps the second writes to shared
// memory, and after the barrier the first, with `to`, adds its own. By the next part the first has read: it releases the
// inner tiles later, and the second waits until they are full again.
DEVICE void add_up_sums(const float (&totals)[4], float* shared, float* to, const Consumer& t) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int column = reduced_column<16>(i, t.lane);
    if (to) to[column] = totals[i] + shared[column];
    else shared[column] = totals[i];
  }
}

// From d_down in the gradient tiles and d_s2 in the second pipeline's to d_y, in the gradient tiles. 128 inner columns at
// a time; the next ones' product follows the last one's at once.
DEVICE void mlp_backward(const Maps& maps, const Sequence& s, const Buffers& b, Norm& norm1, int odd, const Consumer& t) {
  int own = t.warpgroup * HALF_TILE, warp = threadIdx.x / 32 % 4;
  float c[2][16][4], d[16][4];
  float* shared_sums = b.up_sums(t.warpgroup) + warp / 2 * 128;
  for (int i = 0; i < 2; i++) read_rows(c[i], b.second().stage(2 * i), t.first_row, t.lane);
  fence_async_proxy();
  release_stages(b.second(), 0, STAGES, t.lane);
  start_product<1>(d, b.gradient_tiles() + own, b.first(), 0, t.lane, [](int) {});
#pragma unroll 1
  for (int part = 0;; part++) {
    finish_product(d, b.first(), t.lane);
    gelu_backward_rows(d, b, part, t);
    fence_async_proxy();
    float totals[4];
    reduce_columns(totals, d, t.lane);
    if (warp & 1) add_up_sums(totals, shared_sums, nullptr, t);
    sync_warpgroup(t.warpgroup);
    if (t.leader) store_tiles(b.inner_tiles(), 2, maps.d_preact, s.number, part * 128, t);
    if (!(warp & 1)) add_up_sums(totals, shared_sums, s.up_sums + warp / 2 * INNER + part * 128, t);
    start_product<1>(c, b.inner_tiles() + own, b.second(), part & 1 ^ odd);
    if (part == PARTS - 1) break;
    start_product<1>(d, b.gradient_tiles() + own, b.first(), part & 1 ^ 1, t.lane, [&](int committed) {
      wgmma_wait<2>();
      release_stages(b.second(), 2 * committed, 2, t.lane);
      if (t.leader) committed ? tma_store_wait_read<0>() : tma_store_wait_read<1>();  // one store a tile
      mbarrier_arrive_warp(b.inner_empty(t.warpgroup, committed), t.lane);
    });
  }
  load_norm(norm1, s.gamma1, s.mean1, s.rstd1, s.length, t);
  finish_product(c);
  release_stages(b.second(), 0, STAGES, t.lane);
  if (t.leader) tma_store_wait_read();  // out of the gradient and inner tiles
  sync_warpgroup(t.warpgroup);
  for (int i = 0; i < 2; i++) write_rows(c[i], b.gradient_tiles() + i * 2 * TILE, t.first_row, t.lane);
  __syncwarp();
}

// Backward of a norm, from and to the gradient tiles; of the residual also to `residual`, or without it to `pipeline`.
DEVICE void norm_backward(const Norm& norm, const WeightPipeline& pipeline, int parity, const TensorMap& d_branch,
                          u16* residual, float* sums, int call_site, const Dropout& dropout, const Sequence& s,
                          const Buffers& b, const Consumer& t) {
  for (int i = 0; i < STAGES; i++) mbarrier_wait(pipeline.full(i), parity);
  norm_dropout_backward(b.gradient_tiles(), pipeline.stage(0), norm, b.column_bits(), dropout, call_site, residual,
                        b.norm_sums(t.warpgroup, threadIdx.x / 32 % 4), s.length, t);
  fence_async_proxy();
  if (residual) release_stages(pipeline, 0, STAGES, t.lane);
  sync_warpgroup(t.warpgroup);
  if (t.leader) store_tiles(b.gradient_tiles(), 4, d_branch, s.number, 0, t);
  add_norm_sums(b, sums, t);
}

// d_out out, by way of the gradient tiles.
DEVICE void out_backward(const Maps& maps, const Sequence& s, const Buffers& b, int odd, const Consumer& t) {
  int own = t.warpgroup * HALF_TILE;
  float c[2][16][4];
  zero(c[0]);
  zero(c[1]);
  start_product<1>(c, b.gradient_tiles() + own, b.second(), odd);
  finish_product(c);
  start_product<1>(c, b.gradient_tiles() + 2 * TILE + own, b.first(), 1);
  finish_product(c);
  if (t.leader) tma_store_wait_read();
  sync_warpgroup(t.warpgroup);
  for (int i = 0; i < 2; i++) write_rows(c[i], b.gradient_tiles() + i * 2 * TILE, t.first_row, t.lane);
  fence_async_proxy();
  sync_warpgroup(t.warpgroup);
  if (t.leader) {
    store_tiles(b.gradient_tiles(), 4, maps.d_context, s.number, 0, t);
    tma_store_wait_all();
  }
}

KERNEL(THREADS, 1)
encoder_width256_backward(TENSOR_MAP qkv_weight,     // (768, 256) bf16 of the layer above, tiles of 64 rows, as all below
                          TENSOR_MAP down,           // (256, 1024) bf16
                          TENSOR_MAP up,             // (1024, 256) bf16
                          TENSOR_MAP out,            // (256, 256) bf16
                          TENSOR_MAP gradient,       // (B, L, 256) bf16: d_residual of the layer above, or d_z
                          TENSOR_MAP d_qkv,          // (B, L, 768) bf16 of the layer above
                          TENSOR_MAP residual_sum2,  // (B, L, 256) bf16: under the second norm
                          TENSOR_MAP residual_sum1,  // (B, L, 256) bf16: under the first norm
                          TENSOR_MAP preact,         // (B, L, 1024) bf16: before the GELU
                          TENSOR_MAP d_down,         // out (B, L, 256) bf16
                          TENSOR_MAP d_preact,       // out (B, L, 1024) bf16
                          TENSOR_MAP d_out,          // out (B, L, 256) bf16
                          TENSOR_MAP d_context,      // out (B, L, 256) bf16
                          u16* d_residual,           // out (B, L, 256) bf16; may be residual_sum1's memory
                          const float* mean2,        // (B, L) fp32
                          const float* rstd2,        // (B, L) fp32
                          const float* gamma2,       // (256,) fp32
                          const float* mean1,        // (B, L) fp32
                          const float* rstd1,        // (B, L) fp32
                          const float* gamma1,       // (256,) fp32
                          float* norm1_sums,         // out (2 B, 3, 256) fp32: of gamma, beta, and the bias of `out`
                          float* norm2_sums,         // out (2 B, 3, 256) fp32: of gamma, beta, and the bias of `down`
                          float* up_sums,            // out (4 B, 1024) fp32
                          const int* dropout_keys,   // (B,) int32; null: no dropout
                          int has_above,             // bool: whether `qkv_weight` and `d_qkv` are of a layer above
                          int length,                // L <= 128
                          int call_site1,            // of dropout before the first norm
                          int call_site2,            // of dropout before the second norm
                          int dropout_threshold,     // drop probability * 65536
                          float dropout_scale) {     // 1 / keep probability
  SHARED_MEMORY(memory);
  Buffers b = {memory};
  Maps maps = {qkv_weight, down, up, out, gradient, d_qkv, residual_sum2, residual_sum1, preact, d_down, d_preact, d_out,
               d_context};
  int thread = threadIdx.x, warpgroup = warp_uniform(thread / WARPGROUP), sequence = blockIdx.x;
  if (thread == 0) init_barriers(b);
  if (thread < WIDTH / 2) b.column_bits()[thread] = dropout_column_bits(thread);
  if (thread == CONSUMERS) prefetch_weights(maps, has_above);  // which no kernel just before this one writes
  wait_for_previous_kernel();
  __syncthreads();

  if (warpgroup == 2) {
    setmaxnreg_dec<24>();
    if (thread == CONSUMERS) produce(maps, b, sequence, has_above);
    else if (thread == CONSUMERS + 32) produce_inner(maps, b, sequence, 0);
    else if (thread == CONSUMERS + 64) produce_inner(maps, b, sequence, 1);
    __syncwarp();
  } else {
    setmaxnreg_inc<240>();
    Consumer t = make_consumer();
    long first = (long)sequence * length, row = 2 * sequence + t.warpgroup;
    Sequence s = {sequence, length, d_residual + first * WIDTH, mean2 + first, rstd2 + first, gamma2, mean1 + first,
                  rstd1 + first, gamma1, norm1_sums + row * NORM_SUMS, norm2_sums + row * NORM_SUMS,
                  up_sums + row * 2 * INNER, call_site1, call_site2};
    u32 key = dropout_keys ? (u32)dropout_keys[sequence] : 0;
    Dropout dropout = make_dropout(dropout_keys != nullptr, key, dropout_threshold, dropout_scale);
    // The second pipeline's number of uses before `up` is even with a layer above and odd without one.
    int odd = has_above ? 0 : 1;
    Norm norm;
    load_norm(norm, s.gamma2, s.mean2, s.rstd2, length, t);
    mbarrier_wait(b.gradient_full(), 0);
    if (has_above) qkv_backward(b, t);
    norm_backward(norm, b.second(), odd ^ 1, maps.d_down, nullptr, s.norm2_sums, s.call_site2, dropout, s, b, t);
    fence_async_proxy();
    for (int tile = 0; tile < 2; tile++) mbarrier_arrive_warp(b.inner_empty(t.warpgroup, tile), t.lane);
    mlp_backward(maps, s, b, norm, odd, t);
    norm_backward(norm, b.first(), 0, maps.d_out, s.d_residual, s.norm1_sums, s.call_site1, dropout, s, b, t);
    out_backward(maps, s, b, odd, t);
  }
  __syncthreads();
}
