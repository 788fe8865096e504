// Forward of post-norm transformer layers: width 256, four heads, MLP of 1024, at most 128 tokens, bf16. For each layer
//   q, k, v = x qkvᵀ + b;  context = dropout(softmax(q kᵀ scale)) v;  y = norm1(x + dropout(context outᵀ + b))
//   z = norm2(y + dropout(gelu(y upᵀ + b) downᵀ + b)),  norm(s) = (s - mean) * rstd * gamma + beta
//
// A block takes one sequence through all layers, each of two consumer warpgroups 64 of its rows. Activations stay in
// shared memory and leave only as saved activations for backward; keys and values are all that warpgroups exchange.
// In the MLP the warpgroups multiply in turn (ping-pong): one computes its GELU meanwhile.
//
// Hardware: TMA loads, stores and prefetches, mbarriers, wgmma, setmaxnreg, named barriers, programmatic dependent launch.
// Shared memory, in tiles of 16 KiB: x 0-3 | context 4-7 | k 8 | v 9 | weight stages 10-13 | mbarriers | column bits |
// bias of `up`. In the MLP, tiles 4-5 hold 128 inner columns and 6-9 are stages for `down`.

#include "encoder_width256.cuh"

// One head, whose queries lie in its tile of `context_tiles`; its context replaces them.
DEVICE void attend(float (&c)[16][4], Biases& biases, int head, const Layer& layer, const Buffers& b, const Saved& saved,
                   const Dropout& dropout, float scale, const Position& at, const Consumer& t) {
  int own = t.warpgroup * HALF_TILE;
  char* tile = b.context_tiles() + head * TILE;
  u32 row_bits[2], pairs[16][2];
#pragma unroll
  for (int i = 0; i < 2; i++)
    row_bits[i] = dropout_row_bits(dropout.key, (u32)layer.call_sites[0], head * at.length + t.row + 8 * i);
  float max[2], sum[2];
  start_scores(c, tile + own, b.k_tile());
  wgmma_wait<0>(c);
  if (at.valid_length < ROWS) mask_padding(c, at.valid_length, t.lane);
  softmax_dropout(pairs, c, max, sum, row_bits, b.column_bits(), scale * LOG2_E, dropout.threshold, t.lane);
  float m[8][4];
  start_weighted_sum(m, pairs, b.v_tile());
  load_biases(biases, layer.qkv_b + 128, layer.qkv_b + 192, t.lane);  // of the next two heads' queries
  float normaliser[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    sum[i] = fmaxf(quad_sum(sum[i]), 1e-30f);
    normaliser[i] = dropout.scale / sum[i];
    int row = t.row + 8 * i;
    if ((t.lane & 3) == 0 && row < at.length)
      saved.lse[((long)at.sequence * HEADS + head) * at.length + row] = max[i] + log2f(sum[i]);
  }
  if (t.leader) tma_store_wait_read();
  wgmma_wait<0>(m);
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) m[n][i] *= normaliser[i / 2];
  sync_warpgroup(t.warpgroup);  // its queries have been read
  write_rows(m, tile, t.first_row, t.lane);
  fence_async_proxy();
  sync_warpgroup(t.warpgroup);
  if (t.leader) store_tiles(tile, 1, saved.context, at.sequence, head * 64, t);
}

// q, k, v and attention of all heads, two at a time.
DEVICE void attention(const Layer& layer, const Buffers& b, const Saved& saved, const Dropout& dropout, float scale,
                      const Position& at, const Consumer& t) {
  int thread = threadIdx.x, own = t.warpgroup * HALF_TILE;
  Biases biases;
  u16 up_bias[INNER / CONSUMERS];
#pragma unroll
  for (int i = 0; i < INNER / CONSUMERS; i++) up_bias[i] = layer.up_b[thread + i * CONSUMERS];
  load_biases(biases, layer.qkv_b, layer.qkv_b + 64, t.lane);
#pragma unroll 1
  for (int head_pair = 0; head_pair < HEADS; head_pair += 2) {
    float c[16][4];
    int parity = head_pair / 2;
    multiply_tiles(c, b.x_tiles() + own, b.weights(), parity, t.lane);
    if (t.leader) tma_store_wait_read();
    sync_warpgroup(t.warpgroup);
    write_biased(c, biases, b.context_tiles() + head_pair * TILE, t.first_row, t.lane);
#pragma unroll 1
    for (int head = head_pair; head < head_pair + 2; head++) {
      const u16* bias = layer.qkv_b + head * 64;
      load_biases(biases, bias + WIDTH, bias + 2 * WIDTH, t.lane);
      parity ^= 1;
      multiply_tiles(c, b.x_tiles() + own, b.weights(), parity, t.lane);
      if (t.leader) tma_store_wait_read();
      if (head == 0)
        for (int i = 0; i < INNER / CONSUMERS; i++) b.up_bias()[thread + i * CONSUMERS] = up_bias[i];
      sync_consumers();  // the last keys and values have been read
      write_biased(c, biases, b.k_tile(), t.first_row, t.lane);
      fence_async_proxy();
      sync_consumers();
      if (t.leader) {
        if (head == head_pair) store_tiles(b.context_tiles() + head * TILE, 2, saved.qkv, at.sequence, head * 64, t);
        store_tiles(b.k_tile(), 1, saved.qkv, at.sequence, WIDTH + head * 64, t);
        store_tiles(b.v_tile(), 1, saved.qkv, at.sequence, 2 * WIDTH + head * 64, t);
      }
      attend(c, biases, head, layer, b, saved, dropout, scale, at, t);
    }
  }
}

// Adds the bias to a branch's 256 columns in registers, and norms residual and branch. The branch goes through
// `context_tiles`.
DEVICE void finish_branch(const float (&c)[2][16][4], const Biases& lower, const Biases& upper, const float* gamma,
                          const float* beta, const Buffers& b, const Dropout& dropout, int call_site, float eps,
                          u16* residual_sum, u16* out, float* mean, float* rstd, const Position& at,
                          const Consumer& t) {
  write_biased(c[0], lower, b.context_tiles(), t.first_row, t.lane);
  Norm norm;
  load_norm(norm, gamma, beta, t.lane);
  write_biased(c[1], upper, b.context_tiles() + 2 * TILE, t.first_row, t.lane);
  __syncwarp();
  long first = at.first_token;
  add_dropout_norm(b.context_tiles(), b.x_tiles(), norm, b.column_bits(), dropout, call_site, eps,
                   residual_sum + first * WIDTH, out + first * WIDTH, mean + first, rstd + first, at.length, t);
  fence_async_proxy();
}

// y = norm1(x + dropout(context outᵀ + b)), in place of x.
DEVICE void output_projection(const Layer& layer, const Buffers& b, const Saved& saved, const Dropout& dropout, float eps,
                              const Position& at, const Consumer& t) {
  int own = t.warpgroup * HALF_TILE;
  float c[2][16][4];
  Biases lower, upper;
  load_biases(lower, layer.out_b, layer.out_b + 64, t.lane);
  load_biases(upper, layer.out_b + 128, layer.out_b + 192, t.lane);
  zero(c[0]);
  zero(c[1]);
  start_product(c, b.context_tiles() + own, b.weights(), 0);
  wgmma_wait<1>();
  release_stages(b.weights(), 0, 2, t.lane);
  wgmma_wait<0>();
  release_stages(b.weights(), 2, 2, t.lane);
  start_product(c, b.context_tiles() + 2 * TILE + own, b.weights(), 1);
  finish_product(c);
  release_stages(b.weights(), 0, STAGES, t.lane);
  if (t.leader) tma_store_wait_read();
  sync_warpgroup(t.warpgroup);
  finish_branch(c, lower, upper, layer.gamma1, layer.beta1, b, dropout, layer.call_sites[1], eps,
                saved.residual_sum1, saved.y, saved.mean1, saved.rstd1, at, t);
  release_stages(b.down_weights(), 0, STAGES, t.lane);  // attention has done with their buffers
  sync_warpgroup(t.warpgroup);
}

// z = norm2(y + dropout(gelu(y upᵀ + b) downᵀ + b)), in place of y; 128 inner columns at a time.
DEVICE void mlp(const Layer& layer, const Buffers& b, const Saved& saved, const Dropout& dropout, float eps,
                const Position& at, const Consumer& t) {
  int own = t.warpgroup * HALF_TILE;
  long first = at.first_token;
  char* inner_tiles = b.context_tiles();
  float c[2][16][4], u[16][4];
  zero(c[0]);
  zero(c[1]);
  pingpong_wait(t.warpgroup);
  start_product(u, b.x_tiles() + own, b.weights(), 0, t.lane, [](int) {});
  pingpong_pass(t.warpgroup);
#pragma unroll 1
  for (int part = 0;; part++) {
    u32 pairs[16][2];
    finish_product(u, b.weights(), t.lane);
    add_biases(pairs, u, [&](int n) { return *(const u32*)(b.up_bias() + part * 128 + n * 8 + (t.lane & 3) * 2); });
    apply_gelu(pairs, inner_tiles, saved.preact + first * INNER + part * 128, saved.act + first * INNER + part * 128,
               at.length, t);
    pingpong_wait(t.warpgroup);
    start_product(c, inner_tiles + own, b.down_weights(), part & 1);
    if (part == INNER / 128 - 1) break;
    // The next inner columns follow at once.
    start_product(u, b.x_tiles() + own, b.weights(), part & 1 ^ 1, t.lane, [&](int committed) {
      wgmma_wait<2>();
      release_stages(b.down_weights(), 2 * committed, 2, t.lane);
    });
    pingpong_pass(t.warpgroup);
  }
  finish_product(c);
  pingpong_pass(t.warpgroup);
  Biases lower, upper;
  load_biases(lower, layer.down_b, layer.down_b + 64, t.lane);
  load_biases(upper, layer.down_b + 128, layer.down_b + 192, t.lane);
  sync_consumers();  // the other warpgroup has read the last weights, too
  finish_branch(c, lower, upper, layer.gamma2, layer.beta2, b, dropout, layer.call_sites[2], eps,
                saved.residual_sum2, saved.z, saved.mean2, saved.rstd2, at, t);
  sync_warpgroup(t.warpgroup);
}

KERNEL(THREADS, 1)
encoder_width256_forward(GRID_CONSTANT Layers layers,    // K <= 12 of them
                         int count,                      // K
                         TENSOR_MAP x,                   // (B, L, 256) bf16, tiles of 64 rows, as all below
                         TENSOR_MAP qkv,                 // out (K B, L, 768) bf16
                         TENSOR_MAP context,             // out (K B, L, 256) bf16
                         u16* residual_sum1,             // out (K, B, L, 256) bf16: under the first norm
                         u16* y,                         // out (K, B, L, 256) bf16: the first norm's output
                         u16* preact,                    // out (K, B, L, 1024) bf16: before the GELU
                         u16* act,                       // out (K, B, L, 1024) bf16: after it
                         u16* residual_sum2,             // out (K, B, L, 256) bf16: under the second norm
                         u16* z,                         // out (K, B, L, 256) bf16: the layer's output
                         float* lse,                     // out (K, B, 4, L) fp32, in powers of two
                         float* mean1,                   // out (K, B, L) fp32
                         float* rstd1,                   // out (K, B, L) fp32
                         float* mean2,                   // out (K, B, L) fp32
                         float* rstd2,                   // out (K, B, L) fp32
                         const int* lengths,             // (B,) int32 valid tokens; null: all
                         const int* dropout_keys,        // (B,) int32
                         int sequences,                  // B
                         int length,                     // L <= 128
                         float scale,                    // of scores
                         int attention_dropout_threshold,  // drop probability * 65536
                         float attention_dropout_scale,  // 1 / keep probability
                         int dropout_threshold,          // the same for both branches
                         float dropout_scale,            //
                         float eps,                      // of the norms
                         int use_attention_dropout,      // bool
                         int use_dropout) {              // bool
  SHARED_MEMORY(memory);
  Buffers b = {memory};
  int thread = threadIdx.x, warpgroup = warp_uniform(thread / WARPGROUP), sequence = blockIdx.x;
  if (thread == 0) {
    init_pipeline(b.weights());
    init_pipeline(b.down_weights());
    mbarrier_init(b.x_barrier());
  }
  if (thread < WIDTH / 2) b.column_bits()[thread] = dropout_column_bits(thread);
  wait_for_previous_kernel();
  __syncthreads();

  if (warpgroup == 2) {
    setmaxnreg_dec<24>();
    if (thread == CONSUMERS) {
      mbarrier_expect_tx(b.x_barrier(), 4 * TILE);
      for (int i = 0; i < 8; i++)
        tma_load(b.x_tiles() + i / 2 * TILE + (i & 1) * HALF_TILE, x, sequence, (i & 1) * 64, i / 2 * 64, b.x_barrier());
      produce(layers, count, b.weights(), b.down_weights());
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<240>();
    Consumer t = make_consumer();
    int valid_length = lengths ? lengths[sequence] : length;
    u32 key = use_attention_dropout || use_dropout ? (u32)dropout_keys[sequence] : 0;
    Dropout attention_dropout =
        make_dropout(use_attention_dropout, key, attention_dropout_threshold, attention_dropout_scale);
    Dropout dropout = make_dropout(use_dropout, key, dropout_threshold, dropout_scale);
    Saved saved = {qkv, context, residual_sum1, y, preact, act, residual_sum2, z, lse, mean1, rstd1, mean2, rstd2};
    if (t.warpgroup == 1) pingpong_pass(1);  // the first turn is the other's
    mbarrier_wait(b.x_barrier(), 0);
#pragma unroll 1
    for (int number = 0; number < count; number++) {
      const Layer& layer = layers.of[number];
      int whole = number * sequences + sequence;
      Position at = {whole, (long)whole * length, length, valid_length};
      attention(layer, b, saved, attention_dropout, scale, at, t);
      output_projection(layer, b, saved, dropout, eps, at, t);
      mlp(layer, b, saved, dropout, eps, at, t);
    }
    if (t.leader) tma_store_wait_all();
  }
  __syncthreads();
}
