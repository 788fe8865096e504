// Cross-entropy of logits = x tableᵀ + bias without logits in memory; embeddings of 128, bf16:
//   forward   lse of each row over each block of 128 vocabulary entries
//   backward  d_logits = (softmax(logits) - onehot(gold)) * d_loss,  d_x = d_logits table,  d_bias = Σ_rows d_logits
//
// The work is a grid of row tiles (64 rows a warpgroup) x vocabulary blocks. A thread block takes a contiguous range of
// it, row tile by row tile, so that it seldom changes rows.
//
// Hardware: TMA loads by one producer thread into a pipeline of stages with full and empty mbarriers, wgmma by consumer
// warpgroups, TMA stores, setmaxnreg, programmatic dependent launch.
// Shared memory: row tiles (2 x warpgroups x 8 KiB) | stages (table block, 2 tiles; its biases, 64 in each of 2 KiB) |
// mbarriers | backward: d_logits (2 x 8 KiB a warpgroup) | column sums, two buffers (8, 128) fp32 a warpgroup.

#include "attention.cuh"

#define EMBEDDING 128
#define VOCAB_BLOCK 128
#define STAGE_BYTES (2 * TILE + 2048)
#define LN_2 0.6931471805599453f
#ifndef FORWARD_WARPGROUPS  // tests compile with fewer
#define FORWARD_WARPGROUPS 4
#define BACKWARD_WARPGROUPS 3
#endif

// A thread block's range of the grid, and its pipeline.
template <int WARPGROUPS, int STAGES>
struct WorkRange {
  char *x_tiles, *stages, *barriers;
  int row_tile, vocab_block, remaining, vocab_blocks;
  int iteration, row_tiles_done;

  DEVICE_METHOD char* stage() const { return stages + iteration % STAGES * STAGE_BYTES; }
  DEVICE_METHOD void* full() const { return barriers + iteration % STAGES * 8; }
  DEVICE_METHOD void* empty() const { return barriers + (STAGES + iteration % STAGES) * 8; }
  DEVICE_METHOD void* x_full() const { return barriers + 2 * STAGES * 8; }
  DEVICE_METHOD void* x_empty() const { return barriers + 2 * STAGES * 8 + 8; }
  DEVICE_METHOD int parity() const { return iteration / STAGES & 1; }
  // Whether a new row tile begins.
  DEVICE_METHOD bool advance() {
    iteration++, remaining--;
    if (++vocab_block < vocab_blocks) return false;
    vocab_block = 0, row_tile++;
    return true;
  }
};
template <int WARPGROUPS, int STAGES>
DEVICE WorkRange<WARPGROUPS, STAGES> make_range(char* memory, int count, int per_block, int vocab_blocks) {
  int first = blockIdx.x * per_block;
  char* stages = memory + 2 * WARPGROUPS * HALF_TILE;
  WorkRange<WARPGROUPS, STAGES> s = {memory, stages, stages + STAGES * STAGE_BYTES, first / vocab_blocks,
                                     first % vocab_blocks};
  s.remaining = per_block < count - first ? per_block : count - first, s.vocab_blocks = vocab_blocks;
  s.iteration = s.row_tiles_done = 0;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      mbarrier_init(s.barriers + i * 8);
      mbarrier_init(s.barriers + (STAGES + i) * 8, WARPGROUPS * 4);
    }
    mbarrier_init(s.x_full());
    mbarrier_init(s.x_empty(), WARPGROUPS * 4);
  }
  __syncthreads();
  wait_for_previous_kernel();
  return s;
}
// The producer: loads row tiles and vocabulary blocks as soon as all consumers have released a buffer.
template <int WARPGROUPS, int STAGES>
DEVICE void produce(WorkRange<WARPGROUPS, STAGES> s, const TensorMap& x, const TensorMap& table, const TensorMap& bias) {
  bool new_rows = true;
  for (; s.remaining > 0; new_rows = s.advance()) {
    if (new_rows) {
      mbarrier_wait(s.x_empty(), s.row_tiles_done++ & 1 ^ 1);
      mbarrier_expect_tx(s.x_full(), 2 * WARPGROUPS * HALF_TILE);
      for (int i = 0; i < 2; i++)
        tma_load(s.x_tiles + i * WARPGROUPS * HALF_TILE, x, 0, s.row_tile * WARPGROUPS * 64, i * 64, s.x_full());
    }
    mbarrier_wait(s.empty(), s.parity() ^ 1);
    mbarrier_expect_tx(s.full(), 2 * TILE + VOCAB_BLOCK * 2);
    for (int i = 0; i < 2; i++) {
      tma_load(s.stage() + i * TILE, table, 0, s.vocab_block * VOCAB_BLOCK, i * 64, s.full());
      tma_load(s.stage() + 2 * TILE + i * 1024, bias, 0, 0, s.vocab_block * VOCAB_BLOCK + i * 64, s.full());
    }
  }
}
// c (64 x 128): the warpgroup's rows times a vocabulary block, transposed.
template <int WARPGROUPS>
DEVICE void multiply_block(float (&c)[16][4], const char* rows, const char* stage) {
  wgmma_fence(c);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    Descriptor a = descriptor_of(rows + i * WARPGROUPS * HALF_TILE, 16), b = descriptor_of(stage + i * TILE, 16);
#pragma unroll
    for (int k = 0; k < 4; k++) i + k ? wgmma_m64n128<0>(c, a + k * 2, b + k * 2) : wgmma_m64n128<0, 1>(c, a, b);
  }
  wgmma_commit();
  wgmma_wait<0>(c);
}
// The biases of a thread's two columns of fragment n, in powers of two.
DEVICE void load_biases(float (&b)[2], const char* stage, int n, int lane) {
  u32 pair = *(const u32*)(stage + 2 * TILE + n / 8 * 1024 + (n & 7) * 16 + (lane & 3) * 4);
  b[0] = bf16_low(pair) * LOG2_E, b[1] = bf16_high(pair) * LOG2_E;
}
// Σ exp2(c - max) of each of a thread's two rows.
DEVICE void sum_exp2(float sum[2], const float (&c)[16][4], const float max[2]) {
  float sums[8] = {};
#pragma unroll
  for (int n = 0; n < 16; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) sums[n % 2 * 4 + i] += exp2_approx(c[n][i] - max[i / 2]);
#pragma unroll
  for (int i = 0; i < 2; i++) sum[i] = quad_sum(sums[2 * i] + sums[2 * i + 1] + (sums[2 * i + 4] + sums[2 * i + 5]));
}

KERNEL(FORWARD_WARPGROUPS * WARPGROUP + 32, 1)
linear_cross_entropy_forward(TENSOR_MAP x,        // (M, 128) bf16, tiles of 64 * warpgroups rows
                             TENSOR_MAP table,    // (V, 128) bf16, tiles of 128 rows
                             TENSOR_MAP bias,     // (1, V) bf16, tiles of 1 row
                             float* block_lse,    // out (M, V / 128) fp32
                             int rows,            // M
                             int count,           // row tiles * vocabulary blocks
                             int per_block,       // of `count`, a thread block
                             int vocab_blocks) {  // V / 128
  SHARED_MEMORY(memory);
  auto s = make_range<FORWARD_WARPGROUPS, 4>(memory, count, per_block, vocab_blocks);
  int thread = threadIdx.x, lane = thread & 31, first_row = thread / 32 * 16 + lane / 4;
  if (thread >= FORWARD_WARPGROUPS * WARPGROUP) {
    if (thread == FORWARD_WARPGROUPS * WARPGROUP) produce(s, x, table, bias);
    return;
  }
  const char* own_rows = s.x_tiles + thread / WARPGROUP * HALF_TILE;
  bool new_rows = true;
  for (; s.remaining > 0; new_rows = s.advance()) {
    if (new_rows) {
      if (s.row_tiles_done > 0) mbarrier_arrive_warp(s.x_empty(), lane);
      mbarrier_wait(s.x_full(), s.row_tiles_done++ & 1);
    }
    mbarrier_wait(s.full(), s.parity());
    float c[16][4], sum[2];
    multiply_block<FORWARD_WARPGROUPS>(c, own_rows, s.stage());
#pragma unroll
    for (int n = 0; n < 16; n++) {
      float b[2];
      load_biases(b, s.stage(), n, lane);
#pragma unroll
      for (int i = 0; i < 4; i++) c[n][i] = c[n][i] * LOG2_E + b[i & 1];
    }
    mbarrier_arrive_warp(s.empty(), lane);
    // Most often no exponential over- or underflows, and the maximum need not be subtracted first.
    float max[2] = {};
    sum_exp2(sum, c, max);
    if (any_lane(!(sum[0] > 1e-30f && sum[0] < 1e30f && sum[1] > 1e-30f && sum[1] < 1e30f))) {
      max[0] = max[1] = -1e30f;
      row_max(max, c);
      sum_exp2(sum, c, max);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int row = s.row_tile * FORWARD_WARPGROUPS * 64 + first_row + 8 * i;
      if ((lane & 3) == 0 && row < rows)
        block_lse[(long)row * vocab_blocks + s.vocab_block] = (max[i] + log2f(sum[i])) * LN_2;
    }
  }
}

// p = softmax(logits) - onehot(gold), times d_loss, of one half (64 columns) of a vocabulary block.
DEVICE void half_gradient(float (&p)[8][4], const float (&c)[16][4], int half, const char* stage, const float lse[2],
                          const int gold[2], const float d_loss[2], int first_entry, int lane) {
#pragma unroll
  for (int n = 0; n < 8; n++) {
    float b[2];
    load_biases(b, stage, half * 8 + n, lane);
#pragma unroll
    for (int i = 0; i < 4; i++) p[n][i] = exp2_approx(c[half * 8 + n][i] * LOG2_E + (b[i & 1] - lse[i / 2]));
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    int column = gold[i] - first_entry - half * 64 - (lane & 3) * 2;  // from this thread's first column on
    if (column >= 0 && column < 64 && (column & 6) == 0)
#pragma unroll
      for (int n = 0; n < 8; n++)
#pragma unroll
        for (int j = 0; j < 2; j++)
          if (column == n * 8 + j) p[n][2 * i + j] -= 1;
  }
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) p[n][i] *= d_loss[i / 2];
}

KERNEL((BACKWARD_WARPGROUPS + 1) * WARPGROUP, 1)
linear_cross_entropy_backward(TENSOR_MAP x,            // (M, 128) bf16, tiles of 64 * warpgroups rows
                              TENSOR_MAP table,        // (V, 128) bf16, tiles of 128 rows
                              TENSOR_MAP bias,         // (1, V) bf16, tiles of 1 row
                              TENSOR_MAP d_logits,     // out (M, V) bf16, tiles of 64 rows
                              const long long* gold,   // (M,) int64
                              const float* lse,        // (M,) fp32
                              const float* d_loss,     // (M,) fp32
                              float* d_x_parts,        // out (J, padded_rows, 128) fp32: add up to d_x
                              float* d_bias_parts,     // out (padded_rows / 64, V) fp32: add up to d_bias
                              int rows,                // M
                              int count,               // row tiles * vocabulary blocks
                              int per_block,           // of `count`, a thread block
                              int vocab_blocks,        // V / 128
                              int padded_rows) {       // M in whole row tiles
  SHARED_MEMORY(memory);
  auto s = make_range<BACKWARD_WARPGROUPS, 3>(memory, count, per_block, vocab_blocks);
  int thread = threadIdx.x, lane = thread & 31, warpgroup = thread / WARPGROUP, warp = thread / 32;
  int first_row = warp * 16 + lane / 4;
  if (warpgroup == BACKWARD_WARPGROUPS) {
    setmaxnreg_dec<24>();
    if (thread == BACKWARD_WARPGROUPS * WARPGROUP) produce(s, x, table, bias);
    return;
  }
  setmaxnreg_inc<160>();
  char* d_tiles = s.barriers + 1024 + warpgroup * 2 * HALF_TILE;
  float* warp_sums = (float*)(s.barriers + 1024 + BACKWARD_WARPGROUPS * 2 * HALF_TILE) + warpgroup * 8 * VOCAB_BLOCK;
  const char* own_rows = s.x_tiles + warpgroup * HALF_TILE;
  bool leader = thread % WARPGROUP == 0, new_rows = true;
  float d_x[16][4], row_d_loss[2], row_lse[2];
  int row_gold[2];
  auto store_d_x = [&](int row_tile) {
    long part = blockIdx.x - row_tile * vocab_blocks / per_block;
    long row = part * padded_rows + row_tile * BACKWARD_WARPGROUPS * 64 + first_row;
    float* to = d_x_parts + row * EMBEDDING + (lane & 3) * 2;
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
      for (int i = 0; i < 2; i++)
        *(float2*)(to + i * 8 * EMBEDDING + n * 8) = make_float2(d_x[n][2 * i], d_x[n][2 * i + 1]);
  };
  for (; s.remaining > 0; new_rows = s.advance()) {
    if (new_rows) {
      if (s.row_tiles_done > 0) {
        store_d_x(s.row_tile - 1);
        mbarrier_arrive_warp(s.x_empty(), lane);
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
        int row = s.row_tile * BACKWARD_WARPGROUPS * 64 + first_row + 8 * i;
        bool valid = row < rows;
        row_d_loss[i] = valid ? d_loss[row] : 0;
        row_lse[i] = valid ? lse[row] * LOG2_E : 1e30f;  // past the end all exponentials are zero
        row_gold[i] = valid ? (int)gold[row] : -1;
      }
      zero(d_x);
      mbarrier_wait(s.x_full(), s.row_tiles_done++ & 1);
    }
    mbarrier_wait(s.full(), s.parity());
    float c[16][4];
    multiply_block<BACKWARD_WARPGROUPS>(c, own_rows, s.stage());
    if (leader) tma_store_wait_read();
    sync_warpgroup(warpgroup);  // the last d_logits have been read
    float* sums = warp_sums + (s.iteration & 1) * 4 * VOCAB_BLOCK;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float p[8][4];
      half_gradient(p, c, half, s.stage(), row_lse, row_gold, row_d_loss, s.vocab_block * VOCAB_BLOCK, lane);
      column_sums(p, sums + warp % 4 * VOCAB_BLOCK + half * 64, lane);
      write_rows(p, d_tiles + half * HALF_TILE, warp % 4 * 16, lane);
    }
    fence_async_proxy();
    sync_warpgroup(warpgroup);
    wgmma_fence(d_x);
    Descriptor a = descriptor_of(d_tiles, 16), b = descriptor_of(s.stage(), TILE);
#pragma unroll
    for (int k = 0; k < 8; k++) wgmma_m64n128<1>(d_x, a + (k / 4 * HALF_TILE + (k & 3) * 32) / 16, b + k * 128);
    wgmma_commit();
    if (leader)
      for (int i = 0; i < 2; i++)
        tma_store(d_tiles + i * HALF_TILE, d_logits, 0, s.row_tile * BACKWARD_WARPGROUPS * 64 + warpgroup * 64,
                  s.vocab_block * VOCAB_BLOCK + i * 64);
    int column = thread % WARPGROUP;
    float sum = sums[column] + sums[VOCAB_BLOCK + column];
    sum += sums[2 * VOCAB_BLOCK + column] + sums[3 * VOCAB_BLOCK + column];
    long row64 = s.row_tile * BACKWARD_WARPGROUPS + warpgroup;
    d_bias_parts[row64 * vocab_blocks * VOCAB_BLOCK + s.vocab_block * VOCAB_BLOCK + column] = sum;
    wgmma_wait<0>(d_x);
    mbarrier_arrive_warp(s.empty(), lane);
  }
  store_d_x(s.row_tile - (s.vocab_block == 0));
  if (leader) tma_store_wait_all();
}
