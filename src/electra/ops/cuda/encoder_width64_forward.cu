// Forward of post-norm transformer layers: width 64, one head, MLP of 256, at most 128 tokens, bf16. For each layer
//   q, k, v = x qkvᵀ + b;  context = dropout(softmax(q kᵀ scale)) v;  y = norm1(x + dropout(context outᵀ + b))
//   z = norm2(y + dropout(gelu(y upᵀ + b) downᵀ + b)),  norm(s) = (s - mean) * rstd * gamma + beta
//
// A block takes one sequence through all layers, a warp pair 16 of its rows; keys and values are all that pairs
// exchange. cp.async loads a layer's weights while the layer before, or its own attention, runs.
//
// Hardware: cp.async, wgmma, mma.sync, ldmatrix and stmatrix, named barriers, programmatic dependent launch.
// Shared memory: x, q, k, v tiles | 2 staging tiles, one for each half of the warps | 12 weight tiles (qkv 3, out 1, up 4,
// down 4) | column bits of dropout (64 u32) | row sums (3, 2 ROWS) float2 | biases and norms (2 buffers, 832) fp32.

#include "encoder_width64_attention.cuh"

// Offsets of a layer's vectors in shared memory.
#define QKV_BIAS 0
#define UP_BIAS 192
#define OUT_BIAS 448
#define DOWN_BIAS 512
#define NORM1 576
#define NORM2 704
#define VECTORS 832

// norm(residual + dropout(branch)) of the own columns; the residual lies in `tile`, where the output takes its place. The
// sum goes through `staging` to `residual_sum`.
DEVICE void add_dropout_norm(float (&c)[4][4], char* tile, char* staging, const u32 row_bits[2], const u32* column_bits,
                             const Dropout& dropout, float eps, const float* norm, float2* row_sums, char* residual_sum,
                             char* out, float* mean, float* rstd, int length, const Position& p) {
  if (dropout.enabled) apply_dropout(c, row_bits, column_bits, dropout, p);
  float average[2] = {}, square[2] = {};  // over the own columns; then over all, and rstd
  u32 residual[2][4];
  load_own_columns(residual, tile, p);
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u32 x = residual[n / 2][(n & 1) * 2 + i];
      c[n][2 * i] += bf16_low(x);
      c[n][2 * i + 1] += bf16_high(x);
      average[i] += c[n][2 * i] + c[n][2 * i + 1];
    }
#pragma unroll
  for (int i = 0; i < 2; i++) average[i] = quad_sum(average[i]) * (2.0f / WIDTH);
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float difference = c[n][i] - average[i / 2];
      square[i / 2] += difference * difference;
    }
#pragma unroll
  for (int i = 0; i < 2; i++) square[i] = quad_sum(square[i]);
  send_row_sums(row_sums, average, square, p);
  store_rows(c, staging, residual_sum, WIDTH * 2, length, p);
  sync_warp_pair(p.pair);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float2 other = receive_row_sums(row_sums, i, p);
    float apart = average[i] - other.x;
    average[i] = (average[i] + other.x) * 0.5f;
    square[i] = rsqrt_approx((square[i] + other.y + apart * apart * (WIDTH / 4)) * (1.0f / WIDTH) + eps);
    if (p.half == 0 && (p.lane & 3) == 0 && p.row + 8 * i < length) {
      mean[p.row + 8 * i] = average[i];
      rstd[p.row + 8 * i] = square[i];
    }
  }
#pragma unroll
  for (int n = 0; n < 4; n++) {
    const float* here = norm + (p.own + n) * 8 + (p.lane & 3) * 2;
    float2 g = *(const float2*)here, b = *(const float2*)(here + WIDTH);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      c[n][2 * i] = (c[n][2 * i] - average[i]) * square[i] * g.x + b.x;
      c[n][2 * i + 1] = (c[n][2 * i + 1] - average[i]) * square[i] * g.y + b.y;
    }
  }
  store_rows(c, tile, out, WIDTH * 2, length, p);
}

// A thread's part of a layer's biases and norms, loaded early, written to shared memory later.
struct Vectors {
  float part[(VECTORS + THREADS - 1) / THREADS];
};
DEVICE void load_vectors(Vectors& v, const Layer& layer, int thread) {
#pragma unroll
  for (int n = 0; n < (VECTORS + THREADS - 1) / THREADS; n++) {
    int i = n * THREADS + thread, c = i & 63;
    const u16* bias = i < UP_BIAS     ? layer.qkv_b + i
                      : i < OUT_BIAS  ? layer.up_b + (i - UP_BIAS)
                      : i < DOWN_BIAS ? layer.out_b + c
                                      : layer.down_b + c;
    const float* norm = i < NORM1 + 64   ? layer.gamma1
                        : i < NORM2      ? layer.beta1
                        : i < NORM2 + 64 ? layer.gamma2
                                         : layer.beta2;
    v.part[n] = i < NORM1 ? bf16_low(*bias) : i < VECTORS ? norm[c] : 0;
  }
}
DEVICE void write_vectors(const Vectors& v, float* vectors, int thread) {
#pragma unroll
  for (int n = 0; n < (VECTORS + THREADS - 1) / THREADS; n++)
    if (n * THREADS + thread < VECTORS) vectors[n * THREADS + thread] = v.part[n];
}

// Keys or values of the pair's rows by each warp, and the own columns of their queries; all into their tiles.
DEVICE void project_qkv(const char* x_tile, char* q_tile, char* k_tile, char* v_tile, const char* weights,
                        const float* bias, u16* qkv, long first, int length, const Position& p) {
  u32 x[4][4];
  float c[8][4], own[4][4];
  char* to = (char*)(qkv + first * 3 * WIDTH);
  load_rows(x, x_tile, p);
  int which = 1 + p.half;  // keys, or values
  set_bias(c, bias + which * WIDTH, p.lane);
  multiply_tile<0>(c, x, weights + which * WEIGHT_TILE);
  store_rows(c, p.half ? v_tile : k_tile, to + which * WIDTH * 2, 3 * WIDTH * 2, length, p);
  set_bias(own, bias + p.own * 8, p.lane);
  multiply_rows(own, x, weights + p.own * 1024, p.lane);
  store_rows(own, q_tile, to, 3 * WIDTH * 2, length, p);
}

// A warp's buffer for the columns that it sends, 2 KiB.
DEVICE char* exchange_buffer(char* staging, int half, const Position& p) {
  return staging + half * TILE + p.first_row * 128;
}

// Own columns of the context of the pair's queries, which it replaces in `q_tile`.
DEVICE void attend(char* q_tile, const char* k_tile, const char* v_tile, char* staging,
                   float2* row_sums, const Dropout& dropout, int call_site, const u32* column_bits, int valid_length,
                   float scale, float* lse, long first, u16* context, int length, const Position& p) {
  u32 q[4][4];
  float c[8][4], own[4][4], other_own[4][4], max[2], sum[2];
  load_rows(q, q_tile, p);
  attend_half(c, max, sum, q, k_tile, v_tile, dropout, call_site, column_bits, valid_length, scale, p);
  send_columns(own, c, exchange_buffer(staging, p.half, p), p);
  send_row_sums(row_sums, max, sum, p);
  sync_warp_pair(p.pair);
  receive_columns(other_own, exchange_buffer(staging, 1 - p.half, p), p);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float2 other = receive_row_sums(row_sums, i, p);
    float higher = fmaxf(max[i], other.x), factor = exp2_approx(max[i] - higher);
    float other_factor = exp2_approx(other.x - higher);
    float all = fmaxf(sum[i] * factor + other.y * other_factor, 1e-30f);
    float normaliser = (dropout.enabled ? dropout.scale : 1.0f) / all;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
      for (int j = 2 * i; j < 2 * i + 2; j++)
        own[n][j] = (own[n][j] * factor + other_own[n][j] * other_factor) * normaliser;
    if (p.half == 0 && (p.lane & 3) == 0 && p.row + 8 * i < length) lse[first + p.row + 8 * i] = higher + log2f(all);
  }
  store_rows(own, q_tile, (char*)(context + first * WIDTH), WIDTH * 2, length, p);
}

// c = Σ over the warp's half of the inner columns of gelu(y upᵀ + b) downᵀ; saves `preact` through `staging`.
DEVICE void mlp_half(float (&c)[8][4], const u32 (&y)[4][4], const char* up, const char* down, const float* bias,
                     char* staging, u16* preact, int length, const Position& p) {
  zero(c);
#pragma unroll 1
  for (int i = 2 * p.half; i < 2 * p.half + 2; i++) {
    float u[8][4];
    u32 act[4][4];
    set_bias(u, bias + i * WIDTH, p.lane);
    multiply_tile<0>(u, y, up + i * WEIGHT_TILE);
    store_rows(u, staging, (char*)(preact + i * WIDTH), INNER * 2, length, p);
#pragma unroll
    for (int n = 0; n < 8; n++) {
      float cdf[4];
      normal_cdf(cdf, u[n]);
#pragma unroll
      for (int j = 0; j < 4; j++) u[n][j] *= cdf[j];
    }
    pack_rows(act, u);
    multiply_tile<0>(c, act, down + i * WEIGHT_TILE);
  }
}

KERNEL(THREADS, 1)
encoder_width64_forward(GRID_CONSTANT Layers layers,  // K <= 24 of them
                        int count,                    // K
                        const u16* x,                 // (B, L, 64) bf16
                        u16* qkv,                     // out (K, B, L, 192) bf16
                        u16* context,                 // out (K, B, L, 64) bf16
                        float* lse,                   // out (K, B, L) fp32, in powers of two
                        u16* residual_sum1,           // out (K, B, L, 64) bf16: under the first norm
                        float* mean1,                 // out (K, B, L) fp32
                        float* rstd1,                 // out (K, B, L) fp32
                        u16* y,                       // out (K, B, L, 64) bf16: the first norm's output
                        u16* preact,                  // out (K, B, L, 256) bf16: before the GELU
                        u16* residual_sum2,           // out (K, B, L, 64) bf16: under the second norm
                        float* mean2,                 // out (K, B, L) fp32
                        float* rstd2,                 // out (K, B, L) fp32
                        u16* z,                       // out (K, B, L, 64) bf16: the layer's output
                        const int* lengths,           // (B,) int32 valid tokens; null: all
                        const int* dropout_keys,      // (B,) int32
                        int sequences,                // B
                        int length,                   // L <= 128
                        float scale,                  // of scores
                        int attention_dropout_threshold,  // drop probability * 65536
                        float attention_dropout_scale,    // 1 / keep probability
                        int dropout_threshold,        // the same for both branches
                        float dropout_scale,          //
                        float eps,                    // of the norms
                        int use_attention_dropout,    // bool
                        int use_dropout) {            // bool
  SHARED_MEMORY(memory);
  char *x_tile = memory, *q_tile = memory + TILE, *k_tile = memory + 2 * TILE, *v_tile = memory + 3 * TILE;
  char *staging = memory + 4 * TILE, *qkv_tiles = memory + 6 * TILE, *out_tile = qkv_tiles + 3 * WEIGHT_TILE;
  char *up_tiles = qkv_tiles + 4 * WEIGHT_TILE, *down_tiles = qkv_tiles + 8 * WEIGHT_TILE;
  u32* column_bits = (u32*)(qkv_tiles + 12 * WEIGHT_TILE);
  float2* row_sums = (float2*)(column_bits + 64);
  float* both_vectors = (float*)(row_sums + 6 * ROWS);

  wait_for_previous_kernel();
  int sequence = blockIdx.x, thread = threadIdx.x;
  int valid_length = lengths ? lengths[sequence] : length;
  u32 key = use_attention_dropout || use_dropout ? (u32)dropout_keys[sequence] : 0;
  Dropout attention_dropout = {use_attention_dropout, key, (u32)attention_dropout_threshold << 16,
                               attention_dropout_scale};
  Dropout dropout = {use_dropout, key, (u32)dropout_threshold << 16, dropout_scale};
  cp_async_rows(x_tile, ROWS, x + (long)sequence * length * WIDTH, WIDTH * 2, length, thread);
  cp_async_rows(qkv_tiles, 3 * WIDTH, layers.of[0].qkv_w, WIDTH * 2, 3 * WIDTH, thread);
  if (thread < 64) column_bits[thread] = dropout_column_bits(thread);
  Vectors next_vectors;
  load_vectors(next_vectors, layers.of[0], thread);
  write_vectors(next_vectors, both_vectors, thread);
#pragma unroll 1
  for (int number = 0; number < count; number++) {
    const Layer& layer = layers.of[number];
    thread = opaque(thread);
    Position p = position_of(thread);
    float* vectors = both_vectors + (number & 1) * VECTORS;
    long first = ((long)number * sequences + sequence) * length;
    cp_async_wait_all();
    fence_async_proxy();
    __syncthreads();  // all have done with the layer before
    cp_async_rows(out_tile, WIDTH, layer.out_w, WIDTH * 2, WIDTH, thread);
    cp_async_rows(up_tiles, INNER, layer.up_w, WIDTH * 2, INNER, thread);
    for (int i = 0; i < 4; i++)
      cp_async_rows(down_tiles + i * WEIGHT_TILE, WIDTH, layer.down_w + i * WIDTH, INNER * 2, WIDTH, thread);
    cp_async_commit();
    project_qkv(x_tile, q_tile, k_tile, v_tile, qkv_tiles, vectors + QKV_BIAS, qkv, first, length, p);
    fence_async_proxy();
    __syncthreads();
    if (number + 1 < count) {
      cp_async_rows(qkv_tiles, 3 * WIDTH, layers.of[number + 1].qkv_w, WIDTH * 2, 3 * WIDTH, thread);
      load_vectors(next_vectors, layers.of[number + 1], thread);
    }
    cp_async_commit();
    // Rows past the end are the bias alone, and masked as keys.
    attend(q_tile, k_tile, v_tile, staging, row_sums, attention_dropout, layer.call_sites[0],
           column_bits, valid_length, scale, lse, first, context, length, p);
    if (number + 1 < count) write_vectors(next_vectors, both_vectors + (~number & 1) * VECTORS, thread);
    cp_async_wait_group<1>();
    fence_async_proxy();
    __syncthreads();  // the other weights are there
    u32 rows[4][4], row_bits[2];
    float c[8][4], own[4][4], other_own[4][4];
    load_rows(rows, q_tile, p);
    set_bias(own, vectors + OUT_BIAS + p.own * 8, p.lane);
    multiply_rows(own, rows, out_tile + p.own * 1024, p.lane);
    for (int i = 0; i < 2; i++) row_bits[i] = dropout_row_bits(key, (u32)layer.call_sites[1], p.row + 8 * i);
    add_dropout_norm(own, x_tile, staging, row_bits, column_bits, dropout, eps, vectors + NORM1, row_sums + 2 * ROWS,
                     (char*)(residual_sum1 + first * WIDTH), (char*)(y + first * WIDTH), mean1 + first, rstd1 + first,
                     length, p);
    sync_warp_pair(p.pair);
    load_rows(rows, x_tile, p);
    mlp_half(c, rows, up_tiles, down_tiles, vectors + UP_BIAS, staging + p.half * TILE, preact + first * INNER, length, p);
    __syncwarp();
    p = position_of(opaque(threadIdx.x));  // recomputed: nothing is held in registers meanwhile
    send_columns(own, c, exchange_buffer(staging, p.half, p), p);
    sync_warp_pair(p.pair);
    receive_columns(other_own, exchange_buffer(staging, 1 - p.half, p), p);
    float bias[4][4];
    set_bias(bias, vectors + DOWN_BIAS + p.own * 8, p.lane);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) own[n][i] += other_own[n][i] + bias[n][i];
    for (int i = 0; i < 2; i++) row_bits[i] = dropout_row_bits(key, (u32)layer.call_sites[2], p.row + 8 * i);
    add_dropout_norm(own, x_tile, q_tile, row_bits, column_bits, dropout, eps, vectors + NORM2, row_sums + 4 * ROWS,
                     (char*)(residual_sum2 + first * WIDTH), (char*)(z + first * WIDTH), mean2 + first, rstd2 + first,
                     length, p);
  }
}
