// Backward of encoder_width64_forward, except the products that give weight gradients: their operands are written out.
// A block takes one sequence back through all layers, a warp pair 16 of its rows. Gradients of biases and norms leave as
// partial sums, one row a sequence and layer.
//
// Hardware: cp.async, wgmma, mma.sync, ldmatrix and stmatrix, named barriers, programmatic dependent launch.
// Shared memory: tiles 0-1 staging | 2-5 preact, then d_context, q, k, v | 12 weight tiles (down 4, up 4, qkv 3, out 1);
// after the MLP the gradient of the scores lies in `down` and an exchange buffer in `up` | lse and dot of each query
// (ROWS) float2 | row sums (3, 2 ROWS) float2 | row bits, column bits of dropout | partial sums a pair: (256), 2 x (192) |
// means, rstds and lse of each row (5, ROWS) | gamma2, gamma1.

#include "encoder_width64_attention.cuh"

// Shared memory, as above.
struct Buffers {
  char* memory;

  DEVICE_METHOD char* staging() const { return memory; }
  DEVICE_METHOD char* preact_tiles() const { return memory + 2 * TILE; }
  DEVICE_METHOD char* d_tile() const { return memory + 2 * TILE; }  // d_context
  DEVICE_METHOD char* q_tile() const { return memory + 3 * TILE; }
  DEVICE_METHOD char* k_tile() const { return memory + 4 * TILE; }
  DEVICE_METHOD char* v_tile() const { return memory + 5 * TILE; }
  DEVICE_METHOD char* down_tiles() const { return memory + 6 * TILE; }
  DEVICE_METHOD char* up_tiles() const { return down_tiles() + 4 * WEIGHT_TILE; }
  DEVICE_METHOD char* qkv_tiles() const { return down_tiles() + 8 * WEIGHT_TILE; }
  DEVICE_METHOD char* out_tile() const { return down_tiles() + 11 * WEIGHT_TILE; }
  DEVICE_METHOD float2* row_stats() const { return (float2*)(down_tiles() + 12 * WEIGHT_TILE); }
  DEVICE_METHOD float2* row_sums() const { return row_stats() + ROWS; }
  DEVICE_METHOD u32* attention_row_bits() const { return (u32*)(row_sums() + 3 * ROWS * 2); }
  DEVICE_METHOD u32* column_bits() const { return attention_row_bits() + ROWS; }
  DEVICE_METHOD float* partial_sums() const { return (float*)(column_bits() + 64); }
  DEVICE_METHOD float* partial_sums1() const { return partial_sums() + WARP_PAIRS * INNER; }
  DEVICE_METHOD float* partial_sums2() const { return partial_sums1() + WARP_PAIRS * 192; }
  // mean2, rstd2, mean1, rstd1, lse of each row
  DEVICE_METHOD float* row_values() const { return partial_sums2() + WARP_PAIRS * 192; }
  DEVICE_METHOD float* gammas() const { return row_values() + 5 * ROWS; }
};

// Backward of norm(residual + dropout(branch)), own columns: dy becomes the residual's gradient, `branch` the branch's.
// `partial_sums` (192,) of the pair gets those of gamma, beta and the branch's bias.
DEVICE void norm_dropout_backward(float (&dy)[4][4], float (&branch)[4][4], const u32 (&residual_sum)[2][4],
                                  const float* mean, const float* rstd, const float* gamma, const u32 row_bits[2],
                                  const u32* column_bits, const Dropout& dropout, float2* row_sums, float* partial_sums,
                                  const Position& p) {
  float m[2] = {mean[p.row], mean[p.row + 8]}, r[2] = {rstd[p.row], rstd[p.row + 8]};
  float average[2] = {}, dot[2] = {};  // of dy * gamma, and of that times the normed input
  partial_sums += p.own * 8;
  column_sums(dy, partial_sums + 64, p.lane);
  unpack_rows(branch, residual_sum);
  {
    float product[4][4];
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        branch[n][i] = (branch[n][i] - m[i / 2]) * r[i / 2];
        product[n][i] = dy[n][i] * branch[n][i];
      }
    column_sums(product, partial_sums, p.lane);
  }
#pragma unroll
  for (int n = 0; n < 4; n++) {
    float2 g = *(const float2*)(gamma + (p.own + n) * 8 + (p.lane & 3) * 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      dy[n][i] *= i & 1 ? g.y : g.x;
      average[i / 2] += dy[n][i];
      dot[i / 2] += dy[n][i] * branch[n][i];
    }
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    average[i] = quad_sum(average[i]);
    dot[i] = quad_sum(dot[i]);
  }
  send_row_sums(row_sums, average, dot, p);
  sync_warp_pair(p.pair);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float2 other = receive_row_sums(row_sums, i, p);
    average[i] = (average[i] + other.x) * (1.0f / WIDTH);
    dot[i] = (dot[i] + other.y) * (1.0f / WIDTH);
  }
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      dy[n][i] = (dy[n][i] - average[i / 2] - branch[n][i] * dot[i / 2]) * r[i / 2];
      branch[n][i] = dy[n][i];
    }
  if (dropout.enabled) apply_dropout(branch, row_bits, column_bits, dropout, p);
  column_sums(branch, partial_sums + 128, p.lane);
}

// c (16 x 64): zero except the own columns.
DEVICE void widen_own(float (&c)[8][4], const float (&own)[4][4], const Position& p) {
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) c[n][i] = n / 4 == p.half ? own[n & 3][i] : 0;
}
DEVICE void add(float (&c)[4][4], const float (&other)[4][4]) {
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) c[n][i] += other[n][i];
}

// Sums over the block's pairs, to global memory.
DEVICE void store_partial_sums(const float* partial_sums, int count, float* to, int thread) {
  for (int column = thread; column < count; column += THREADS) {
    float total = 0;
    for (int i = 0; i < WARP_PAIRS; i++) total += partial_sums[i * count + column];
    to[column] = total;
  }
}

// Backward of the MLP over the warp's half of the inner columns: `all` += d_preact up. act replaces preact in global
// memory; d_preact goes there too, and its partial sums to shared memory.
DEVICE void mlp_backward_half(float (&all)[8][4], const Buffers& b, u16* preact, u16* d_preact, int length,
                              const Position& p) {
#pragma unroll 1
  for (int i = 0; i < 2; i++) {
    int j = 2 * p.half + i;
    char* tile = b.preact_tiles() + j * TILE;
    float du[8][4];
    u32 rows[4][4], pairs[4][4];
    load_rows(rows, b.staging(), p);
    zero(du);
    multiply_tile<1>(du, rows, b.down_tiles() + j * WEIGHT_TILE);
    u32 address = shared_address(tile) + swizzled(p.first_row + (p.lane & 15), p.lane >> 4);
    ldmatrix_x4(pairs[0], address);
#pragma unroll
    for (int h = 0; h < 4; h++) {
      if (h < 3) ldmatrix_x4(pairs[h + 1], address ^ (h + 1) << 5);
      gelu_forward_backward<4>(du[2 * h], pairs[h]);
      stmatrix_x4(address ^ h << 5, pairs[h]);
    }
    store_tile<4>(tile, (char*)(preact + j * WIDTH), INNER * 2, length, p);
    column_sums(du, b.partial_sums() + p.pair * INNER + j * WIDTH, p.lane);
    pack_rows(pairs, du);
    store_pairs(pairs, tile, p.first_row + (p.lane & 15), (char*)(d_preact + j * WIDTH), INNER * 2, length, p);
    multiply_tile<1>(all, pairs, b.up_tiles() + j * WEIGHT_TILE);
  }
}

// The gradient of the context, own columns, into `d_tile`; of each query its lse and dot = Σ d_context context.
DEVICE void context_gradient(const Buffers& b, const RowLoads& context, const Position& p) {
  u32 rows[4][4], rounded[2][4], forward[2][4];
  float own[4][4];
  load_rows(rows, b.staging(), p);
  zero(own);
  multiply_columns(own, rows, b.out_tile(), p);
  pack_rows(rounded, own);
  finish_loads(forward, context, b.d_tile(), p);
  float dot[2] = {}, unused[2] = {};
#pragma unroll
  for (int h = 0; h < 2; h++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      dot[i & 1] +=
          bf16_low(rounded[h][i]) * bf16_low(forward[h][i]) + bf16_high(rounded[h][i]) * bf16_high(forward[h][i]);
#pragma unroll
  for (int i = 0; i < 2; i++) dot[i] = quad_sum(dot[i]);
  send_row_sums(b.row_sums() + 4 * ROWS, dot, unused, p);
  store_pairs(rounded, b.d_tile(), p.first_row + (p.lane & 15), 0, 0, 0, p);
  sync_warp_pair(p.pair);
  if (p.half == 0 && (p.lane & 3) == 0)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int row = p.row + 8 * i;
      b.row_stats()[row] = make_float2(b.row_values()[4 * ROWS + row],
                  dot[i] + receive_row_sums(b.row_sums() + 4 * ROWS, i, p).x);
    }
}

// dk and dv: the other warp's part is added, and both go to tiles and to global memory; partial sums of dv.
DEVICE void store_key_value_gradients(float (&dk)[4][4], float (&dv)[4][4], const char* dk_buffer, const char* dv_buffer,
                                      char* dk_tile, char* dv_tile, char* d_qkv, float* partial_sums, float scale,
                                      int length, const Position& p) {
  int row = p.first_row + 2 * (p.lane & 7) + ((p.lane >> 3) & 1);  // even keys come first
  u32 pairs[2][4];
  float others[4][4];
  receive_columns(others, dk_buffer, p);
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) dk[n][i] = (dk[n][i] + others[n][i]) * scale;
  pack_rows(pairs, dk);
  store_pairs(pairs, dk_tile, row, d_qkv + WIDTH * 2, 3 * WIDTH * 2, length, p);
  receive_columns(others, dv_buffer, p);
  add(dv, others);
  column_sums(dv, partial_sums + p.pair * 128 + 64 + p.own * 8, p.lane);
  pack_rows(pairs, dv);
  store_pairs(pairs, dv_tile, row, d_qkv + WIDTH * 4, 3 * WIDTH * 2, length, p);
}

// Backward of attention and of the projection to q, k and v: `own` becomes the gradient of the layer's input, of which
// `residual` is a part. Waits in shared memory meanwhile: products need all registers.
DEVICE void attention_backward(float (&own)[4][4], float (&all_k)[8][4], float (&all_v)[8][4], float (&dv)[4][4],
                               u32 (&residual)[2][4], const Buffers& b, const Dropout& dropout, int valid_length,
                               float scale, char* d_qkv, float* sums, long at, int length, u32 thread, Position& p) {
  auto offset = [&](int half) { return (half * WARP_PAIRS + p.pair) * 2048; };
  auto aside = [&](int h) { return (uint4*)(b.staging() + offset(p.half) + h * 512 + p.lane * 16); };
#pragma unroll
  for (int h = 0; h < 2; h++) *aside(h) = make_uint4(residual[h][0], residual[h][1], residual[h][2], residual[h][3]);
  key_value_gradients(all_k, all_v, b.q_tile(), b.k_tile(), b.v_tile(), b.d_tile(), b.down_tiles(), b.row_stats(),
                      b.attention_row_bits(), dropout, valid_length, scale, p);
  p = position_of(opaque(threadIdx.x));
#pragma unroll
  for (int h = 0; h < 2; h++) {
    uint4 x = *aside(h);
    residual[h][0] = x.x, residual[h][1] = x.y, residual[h][2] = x.z, residual[h][3] = x.w;
  }
  send_columns(own, all_k, b.up_tiles() + offset(p.half), p);
  send_columns(dv, all_v, b.staging() + offset(p.half), p);
  __syncthreads();  // all of ds is there; q, v and d_context have been read
  store_key_value_gradients(own, dv, b.up_tiles() + offset(1 - p.half), b.staging() + offset(1 - p.half), b.q_tile(),
                            b.d_tile(), d_qkv, b.partial_sums(), scale, length, p);
  query_gradients(own, b.k_tile(), b.down_tiles(), scale, p);
  column_sums(own, b.partial_sums() + p.pair * 128 + p.own * 8, p.lane);
  store_rows(own, b.v_tile(), d_qkv, 3 * WIDTH * 2, length, p);
  __syncthreads();
  if (thread < 192) {
    // A bias added to all keys changes no softmax, so its gradient is zero.
    float total = 0;
    if (thread / 64 != 1)
      for (int i = 0; i < WARP_PAIRS; i++) total += b.partial_sums()[i * 128 + (thread / 128) * 64 + (thread & 63)];
    sums[at * 192 + thread] = total;
  }
  u32 rows[4][4];
  unpack_rows(own, residual);
  load_rows(rows, b.v_tile(), p);
  multiply_columns(own, rows, b.qkv_tiles(), p);
  load_rows(rows, b.q_tile(), p);
  multiply_columns(own, rows, b.qkv_tiles() + WEIGHT_TILE, p);
  load_rows(rows, b.d_tile(), p);
  multiply_columns(own, rows, b.qkv_tiles() + 2 * WEIGHT_TILE, p);
}

// A thread's part of the rows' means, rstds and lse: value `which` of its row, and value 4.
DEVICE void load_row_values(float (&values)[2], const float* const (&from)[5], long first, int row, int which,
                            int length) {
#pragma unroll
  for (int i = 0; i < 5; i++)
    if (i % 4 == which && row < length) values[i / 4] = from[i][first + row];
}

DEVICE void write_row_values(const Buffers& b, const float (&values)[2], float gamma, int row, int which, u32 thread) {
  if (thread < 2 * WIDTH) b.gammas()[thread] = gamma;
  b.row_values()[which * ROWS + row] = values[0];
  if (which == 0) b.row_values()[4 * ROWS + row] = values[1];
}

// cp.async of a layer's weights and preact: the MLP's in a first group, attention's in a second.
DEVICE void load_layer(const Buffers& b, const Layer& layer, const u16* preact, int length, u32 thread) {
  for (int i = 0; i < 4; i++)
    cp_async_rows(b.down_tiles() + i * WEIGHT_TILE, WIDTH, layer.down_w + i * WIDTH, INNER * 2, WIDTH, thread);
  cp_async_rows(b.up_tiles(), INNER, layer.up_w, WIDTH * 2, INNER, thread);
  for (int i = 0; i < 4; i++)
    cp_async_rows(b.preact_tiles() + i * TILE, ROWS, preact + i * WIDTH, INNER * 2, length, thread);
  cp_async_commit();
  cp_async_rows(b.out_tile(), WIDTH, layer.out_w, WIDTH * 2, WIDTH, thread);
  cp_async_rows(b.qkv_tiles(), 3 * WIDTH, layer.qkv_w, WIDTH * 2, 3 * WIDTH, thread);
  cp_async_commit();
}

DEVICE void load_qkv(const Buffers& b, const u16* qkv, int length, u32 thread) {
  cp_async_rows(b.q_tile(), ROWS, qkv, 3 * WIDTH * 2, length, thread);
  cp_async_rows<true>(b.k_tile(), ROWS, qkv + WIDTH, 3 * WIDTH * 2, length, thread);
  cp_async_rows<true>(b.v_tile(), ROWS, qkv + 2 * WIDTH, 3 * WIDTH * 2, length, thread);
}

KERNEL(THREADS, 1)
encoder_width64_backward(GRID_CONSTANT Layers layers,  // K <= 24 of them
                         int count,                    // K
                         const u16* d_z,               // (B, L, 64) bf16: of the last layer's output
                         u16* qkv,                     // in and out (K, B, L, 192) bf16: overwritten by its gradient
                         const u16* context,           // (K, B, L, 64) bf16
                         const float* lse,             // (K, B, L) fp32
                         const u16* residual_sum1,     // (K, B, L, 64) bf16
                         const float* mean1,           // (K, B, L) fp32
                         const float* rstd1,           // (K, B, L) fp32
                         u16* preact,                  // in and out (K, B, L, 256) bf16: overwritten by its GELU
                         const u16* residual_sum2,     // (K, B, L, 64) bf16
                         const float* mean2,           // (K, B, L) fp32
                         const float* rstd2,           // (K, B, L) fp32
                         u16* d_down,                  // out (K, B, L, 64) bf16: of the MLP's output
                         u16* d_preact,                // out (K, B, L, 256) bf16
                         u16* d_out,                   // out (K, B, L, 64) bf16: of the output projection
                         u16* d_x,                     // out (B, L, 64) bf16: of the first layer's input
                         float* norm1_sums,            // out (K, B, 192) fp32: gamma1, beta1, bias of `out`
                         float* norm2_sums,            // out (K, B, 192) fp32: gamma2, beta2, bias of `down`
                         float* up_sums,               // out (K, B, 256) fp32: bias of `up`
                         float* qkv_sums,              // out (K, B, 192) fp32: bias of `qkv`
                         const int* lengths,           // (B,) int32 valid tokens; null: all
                         const int* dropout_keys,      // (B,) int32
                         int sequences,                // B
                         int length,                   // L <= 128
                         float scale,                  // of scores
                         int attention_dropout_threshold,  // drop probability * 65536
                         float attention_dropout_scale,    // 1 / keep probability
                         int dropout_threshold,        // the same for both branches
                         float dropout_scale,          //
                         int use_attention_dropout,    // bool
                         int use_dropout) {            // bool
  SHARED_MEMORY(memory);
  Buffers b = {memory};

  wait_for_previous_kernel();
  int sequence = blockIdx.x, valid_length = lengths ? lengths[sequence] : length;
  u32 key = use_attention_dropout || use_dropout ? (u32)dropout_keys[sequence] : 0;
  Dropout attention_dropout = {use_attention_dropout, key, (u32)attention_dropout_threshold << 16,
                               attention_dropout_scale};
  Dropout dropout = {use_dropout, key, (u32)dropout_threshold << 16, dropout_scale};
  if (threadIdx.x < 64) b.column_bits()[threadIdx.x] = dropout_column_bits(threadIdx.x);
  float own[4][4];
  {
    Position p = position_of(threadIdx.x);
    RowLoads loads;
    u32 rows[2][4];
    start_loads(loads, d_z + (long)sequence * length * WIDTH, length, p);
    finish_loads(rows, loads, b.staging(), p);
    unpack_rows(own, rows);
  }
#pragma unroll 1
  for (int number = count - 1; number >= 0; number--) {
    const Layer& layer = layers.of[number];
    u32 thread = opaque(threadIdx.x);
    Position p = position_of(thread);  // recomputed now and then: what follows from it would fill registers
    auto buffer = [&](int half) { return b.staging() + half * 2 * TILE + p.first_row * 128; };
    long at = (long)number * sequences + sequence, first = at * length;
    RowLoads loads, more_loads;
    start_loads(more_loads, residual_sum2 + first * WIDTH, length, p);
    const float* from[5] = {mean2, rstd2, mean1, rstd1, lse};
    int own_row = thread & (ROWS - 1), which = thread / ROWS;
    float early[2] = {};
    load_row_values(early, from, first, own_row, which, length);
    float gamma = thread < WIDTH ? layer.gamma2[thread] : thread < 2 * WIDTH ? layer.gamma1[thread - WIDTH] : 0;
    __syncthreads();  // all have done with the layer before
    load_layer(b, layer, preact + first * INNER, length, thread);
    if (thread < ROWS) b.attention_row_bits()[thread] = dropout_row_bits(key, (u32)layer.call_sites[0], thread);
    write_row_values(b, early, gamma, own_row, which, thread);
    float all[8][4], du[8][4], branch[4][4];
    u32 rows[2][4], row_bits[2];
    finish_loads(rows, more_loads, b.staging(), p);
    for (int i = 0; i < 2; i++) row_bits[i] = dropout_row_bits(key, (u32)layer.call_sites[2], p.row + 8 * i);
    __syncthreads();
    norm_dropout_backward(own, branch, rows, b.row_values(), b.row_values() + ROWS, b.gammas(), row_bits,
                          b.column_bits(), dropout, b.row_sums(), b.partial_sums2() + p.pair * 192, p);
    store_rows(branch, b.staging(), (char*)(d_down + first * WIDTH), WIDTH * 2, length, p);
    cp_async_wait_group<1>();
    fence_async_proxy();
    __syncthreads();
    p = position_of(opaque(threadIdx.x));
    widen_own(all, own, p);
    mlp_backward_half(all, b, preact + first * INNER, d_preact + first * INNER, length, p);
    sync_warp_pair(p.pair);  // both warps have read the b.staging() tile
    start_loads(loads, residual_sum1 + first * WIDTH, length, p);
    start_loads(more_loads, context + first * WIDTH, length, p);
    send_columns(own, all, buffer(p.half), p);
    cp_async_wait_all();
    __syncthreads();  // all partial sums are there; the MLP's weights and preact have been read
    u16* here = qkv + first * 3 * WIDTH;
    thread = opaque(threadIdx.x);
    load_qkv(b, here, length, thread);
    receive_columns(branch, buffer(1 - p.half), p);
    add(own, branch);
    store_partial_sums(b.partial_sums2(), 192, norm2_sums + at * 192, thread);
    store_partial_sums(b.partial_sums(), INNER, up_sums + at * INNER, THREADS - 1 - thread);  // by threads still free
    sync_warp_pair(p.pair);  // both warps have received
    p = position_of(opaque(threadIdx.x));
    finish_loads(rows, loads, b.staging(), p);
    for (int i = 0; i < 2; i++) row_bits[i] = dropout_row_bits(key, (u32)layer.call_sites[1], p.row + 8 * i);
    norm_dropout_backward(own, branch, rows, b.row_values() + 2 * ROWS, b.row_values() + 3 * ROWS, b.gammas() + WIDTH,
                          row_bits, b.column_bits(), dropout, b.row_sums() + 2 * ROWS,
                          b.partial_sums1() + p.pair * 192, p);
    p = position_of(opaque(threadIdx.x));
    u32 residual[2][4];
    pack_rows(residual, own);
    store_rows(branch, b.staging(), (char*)(d_out + first * WIDTH), WIDTH * 2, length, p);
    sync_warp_pair(p.pair);
    context_gradient(b, more_loads, p);
    cp_async_wait_all();
    fence_async_proxy();
    __syncthreads();
    store_partial_sums(b.partial_sums1(), 192, norm1_sums + at * 192, thread);
    attention_backward(own, all, du, branch, residual, b, attention_dropout, valid_length, scale, (char*)here, qkv_sums, at,
                       length, thread, p);
    if (number == 0) store_rows(own, b.staging(), (char*)(d_x + first * WIDTH), WIDTH * 2, length, p);
  }
}
