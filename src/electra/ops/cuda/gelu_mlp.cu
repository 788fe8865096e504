// The MLP's two products next to its GELU, width 256:
//   forward   preact = x upᵀ + bias,  act = gelu(preact)
//   backward  d_preact = (d_out down) * gelu'(preact), and partial sums of it over tokens (bias gradient)
//
// A block keeps a weight's share of 128 inner columns in shared memory. Each of its three warpgroups streams its own
// tokens past it, 64 at a time, at its own pace: one multiplies while others compute GELUs.
//
// Hardware: TMA loads and stores (one thread a warpgroup issues them), mbarriers, wgmma, programmatic dependent launch.
// Shared memory: weight (64 KiB) | 3 x (4 token tiles, 2 output tiles of 64 x 64) | 3 x 32 bytes of mbarriers.

#include "gelu.cuh"
#include "wgmma.cuh"

#define WIDTH 256
#define TOKENS 64
#define COLUMNS 128
#define WARPGROUPS 3
#define TOKEN_TILE (TOKENS * 128)  // bytes
#define WEIGHT_BYTES (WIDTH * COLUMNS * 2)
#define WARPGROUP_BYTES (6 * TOKEN_TILE)

// A warpgroup's part of the work, and where it lies in shared memory.
struct Worker {
  char *weight, *tokens, *outputs;
  char* barriers;  // of the tokens, the outputs, the weight (block 0's is used)
  int warpgroup, warp, lane, column, first_token, token_step;
  bool leader;
};
DEVICE Worker make_worker(char* memory, int column_tiles) {
  Worker w;
  w.warpgroup = threadIdx.x / WARPGROUP;
  w.warp = threadIdx.x / 32 & 3;
  w.lane = threadIdx.x & 31;
  w.leader = threadIdx.x % WARPGROUP == 0;
  w.weight = memory;
  w.tokens = memory + WEIGHT_BYTES + w.warpgroup * WARPGROUP_BYTES;
  w.outputs = w.tokens + 4 * TOKEN_TILE;
  w.barriers = memory + WEIGHT_BYTES + WARPGROUPS * WARPGROUP_BYTES + w.warpgroup * 32;
  w.column = blockIdx.x % column_tiles * COLUMNS;
  w.first_token = (blockIdx.x / column_tiles * WARPGROUPS + w.warpgroup) * TOKENS;
  w.token_step = gridDim.x / column_tiles * WARPGROUPS * TOKENS;
  if (w.leader)
    for (int i = 0; i < 3; i++) mbarrier_init(w.barriers + i * 8);
  __syncthreads();
  wait_for_previous_kernel();
  return w;
}
DEVICE char* weight_barrier(char* memory) { return memory + WEIGHT_BYTES + WARPGROUPS * WARPGROUP_BYTES + 16; }

DEVICE void load_tokens(const Worker& w, const TensorMap& x, int token) {
  mbarrier_expect_tx(w.barriers, 4 * TOKEN_TILE);
  for (int i = 0; i < 4; i++) tma_load(w.tokens + i * TOKEN_TILE, x, 0, token, i * 64, w.barriers);
}
DEVICE void store_outputs(const Worker& w, const TensorMap& to, int token) {
  tma_store(w.outputs, to, 0, token, w.column);
  tma_store(w.outputs + TOKEN_TILE, to, 0, token, w.column + 64);
}

// c (64 x 128) += tokens times the weight, whose rows, or with TRANSPOSE_B columns, are outputs. The tokens' buffer is
// free afterwards.
template <int TRANSPOSE_B>
DEVICE void multiply_tokens(float (&c)[16][4], const Worker& w) {
  Descriptor a = descriptor_of(w.tokens, 16), b = descriptor_of(w.weight, TRANSPOSE_B ? WIDTH * 128 : 16);
  wgmma_fence(c);
#pragma unroll
  for (int k = 0; k < WIDTH / 16; k++) {
    int offset = TRANSPOSE_B ? k * 16 * 128 : k / 4 * COLUMNS * 128 + (k & 3) * 32;
    wgmma_m64n128<TRANSPOSE_B>(c, a + (k / 4 * TOKEN_TILE + (k & 3) * 32) / 16, b + offset / 16);
  }
  wgmma_commit();
  wgmma_wait<0>(c);
  sync_warpgroup(w.warpgroup);
}

// The address that this lane gives ldmatrix and stmatrix for 16 columns of the outputs.
DEVICE u32 output_address(const Worker& w, int n) {
  return shared_address(w.outputs) + n / 8 * TOKEN_TILE + swizzled(w.warp * 16 + (w.lane & 15), (n & 7) + (w.lane >> 4));
}
DEVICE void write_and_store(const u32 (&pairs)[16][2], const Worker& w, const TensorMap& to, int token) {
  sync_warpgroup(w.warpgroup);
#pragma unroll
  for (int n = 0; n < 16; n += 2) stmatrix_x4(output_address(w, n), pairs[n]);
  fence_async_proxy();
  sync_warpgroup(w.warpgroup);
  if (w.leader) store_outputs(w, to, token);
}

KERNEL(WARPGROUPS * WARPGROUP, 1)
gelu_mlp_up_forward(TENSOR_MAP x,       // (T, 256) bf16, tiles of 64 rows
                    TENSOR_MAP up,      // (F, 256) bf16, tiles of 128 rows
                    const u16* bias,    // (F,) bf16, aligned to 2 bytes only
                    TENSOR_MAP preact,  // out (T, F) bf16, tiles of 64 rows
                    TENSOR_MAP act,     // out (T, F) bf16, tiles of 64 rows
                    int tokens,         // T
                    int column_tiles) { // F / 128
  SHARED_MEMORY(memory);
  Worker w = make_worker(memory, column_tiles);
  char* barrier = weight_barrier(memory);
  if (threadIdx.x == 0) {
    mbarrier_expect_tx(barrier, WEIGHT_BYTES);
    for (int i = 0; i < 4; i++) tma_load(w.weight + i * COLUMNS * 128, up, 0, w.column, i * 64, barrier);
  }
  if (w.leader && w.first_token < tokens) load_tokens(w, x, w.first_token);
  u32 biases[16];
#pragma unroll
  for (int n = 0; n < 16; n++) {
    const u16* here = bias + w.column + n * 8 + (w.lane & 3) * 2;
    biases[n] = here[0] | (u32)here[1] << 16;
  }
  mbarrier_wait(barrier, 0);
  int parity = 0;
  for (int token = w.first_token; token < tokens; token += w.token_step, parity ^= 1) {
    float c[16][4];
#pragma unroll
    for (int n = 0; n < 16; n++) {
      c[n][0] = c[n][2] = bf16_low(biases[n]);
      c[n][1] = c[n][3] = bf16_high(biases[n]);
    }
    mbarrier_wait(w.barriers, parity);
    multiply_tokens<0>(c, w);
    if (w.leader) {
      if (token + w.token_step < tokens) load_tokens(w, x, token + w.token_step);
      tma_store_wait_read();
    }
    u32 pairs[16][2];
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) pairs[n][i] = pack_bf16(c[n][2 * i], c[n][2 * i + 1]);
    write_and_store(pairs, w, preact, token);
#pragma unroll
    for (int n = 0; n < 16; n += 2) gelu_forward<4>(pairs[n]);
    if (w.leader) tma_store_wait_read();
    write_and_store(pairs, w, act, token);
  }
  if (w.leader) tma_store_wait_all();
}

// Sums over the block's tokens: lanes, then the twelve warps in a fixed order.
DEVICE void store_partial_sums(const float (&sums)[16][2], char* memory, float* to, int columns, int column_tiles,
                               const Worker& w) {
  float* warp_sums = (float*)(memory + WEIGHT_BYTES);  // (12, 128)
#pragma unroll
  for (int n = 0; n < 16; n++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float total = sums[n][i];
      total += shuffle_xor(total, 4);
      total += shuffle_xor(total, 8);
      total += shuffle_xor(total, 16);
      if (w.lane < 4) warp_sums[(w.warpgroup * 4 + w.warp) * COLUMNS + n * 8 + w.lane * 2 + i] = total;
    }
  __syncthreads();
  if (threadIdx.x < COLUMNS) {
    float total = 0;
    for (int i = 0; i < WARPGROUPS * 4; i++) total += warp_sums[i * COLUMNS + threadIdx.x];
    to[(long)(blockIdx.x / column_tiles) * columns + w.column + threadIdx.x] = total;
  }
}

KERNEL(WARPGROUPS * WARPGROUP, 1)
gelu_mlp_down_backward(TENSOR_MAP d_out,     // (T, 256) bf16, tiles of 64 rows
                       TENSOR_MAP down,      // (256, F) bf16, tiles of 256 rows
                       TENSOR_MAP preact,    // (T, F) bf16, tiles of 64 rows
                       TENSOR_MAP d_preact,  // out (T, F) bf16, tiles of 64 rows
                       float* partial_sums,  // out (blocks / column_tiles, F) fp32
                       int tokens,           // T
                       int columns,          // F
                       int column_tiles) {   // F / 128
  SHARED_MEMORY(memory);
  Worker w = make_worker(memory, column_tiles);
  char *barrier = weight_barrier(memory), *output_barrier = w.barriers + 8;
  if (threadIdx.x == 0) {
    mbarrier_expect_tx(barrier, WEIGHT_BYTES);
    for (int i = 0; i < 2; i++) tma_load(w.weight + i * WIDTH * 128, down, 0, 0, w.column + i * 64, barrier);
  }
  auto load_preact = [&](int token) {
    mbarrier_expect_tx(output_barrier, 2 * TOKEN_TILE);
    for (int i = 0; i < 2; i++)
      tma_load(w.outputs + i * TOKEN_TILE, preact, 0, token, w.column + i * 64, output_barrier);
  };
  if (w.leader && w.first_token < tokens) {
    load_tokens(w, d_out, w.first_token);
    load_preact(w.first_token);
  }
  mbarrier_wait(barrier, 0);
  float sums[16][2] = {};
  int parity = 0;
  for (int token = w.first_token; token < tokens; token += w.token_step, parity ^= 1) {
    float c[16][4];
    zero(c);
    mbarrier_wait(w.barriers, parity);
    multiply_tokens<1>(c, w);
    bool more = token + w.token_step < tokens;
    if (w.leader && more) load_tokens(w, d_out, token + w.token_step);
    mbarrier_wait(output_barrier, parity);
    // d_preact replaces preact in shared memory. Tokens past the end have no gradient.
#pragma unroll
    for (int n = 0; n < 16; n += 2) {
      u32 x[4];
      ldmatrix_x4(x, output_address(w, n));
      gelu_backward<4>(c[n], x);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float* here = &c[n + i / 2][(i & 1) * 2];
        sums[n + i / 2][0] += here[0];
        sums[n + i / 2][1] += here[1];
        x[i] = pack_bf16(here[0], here[1]);
      }
      stmatrix_x4(output_address(w, n), x);
    }
    fence_async_proxy();
    sync_warpgroup(w.warpgroup);
    if (w.leader) {
      store_outputs(w, d_preact, token);
      tma_store_wait_read();
      if (more) load_preact(token + w.token_step);
    }
  }
  if (w.leader) tma_store_wait_all();
  __syncthreads();
  store_partial_sums(sums, memory, partial_sums, columns, column_tiles, w);
}
