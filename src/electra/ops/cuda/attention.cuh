// Attention over at most 128 tokens, heads of 64, bf16: one head of one sequence at a time. Two warpgroups take 64
// queries each; backward also 64 keys and values each. wgmma multiplies, softmax stays in registers.

#include "dropout.cuh"
#include "reduce.cuh"
#include "wgmma.cuh"

#define ROWS 128           // of a tile: a sequence's tokens, zero-padded
#define TILE (ROWS * 128)  // bytes of 128 rows of 64 columns
#define HALF_TILE (64 * 128)

// A block's iteration over (sequence, head). Two stages of tiles: TMA loads one while warpgroups work on the other.
struct HeadIterator {
  int count, heads;  // count = sequences * heads
  char *tiles, *barriers;
  int tiles_per_stage;
  int item, iteration;

  DEVICE_METHOD bool valid() const { return item < count; }
  DEVICE_METHOD int next() const { return item + (int)gridDim.x; }
  DEVICE_METHOD void advance() { item = next(), iteration++; }
  DEVICE_METHOD int sequence() const { return item / heads; }
  DEVICE_METHOD int head() const { return item % heads; }
  DEVICE_METHOD char* tile(int i) const { return tiles + ((iteration & 1) * tiles_per_stage + i) * TILE; }
  DEVICE_METHOD void* barrier() const { return barriers + (iteration & 1) * 8; }
  DEVICE_METHOD void wait() const { mbarrier_wait(barrier(), iteration >> 1 & 1); }
};
DEVICE HeadIterator make_head_iterator(char* tiles, char* barriers, int tiles_per_stage, int count, int heads) {
  HeadIterator it = {count, heads, tiles, barriers, tiles_per_stage, (int)blockIdx.x, 0};
  if (threadIdx.x == 0)
    for (int i = 0; i < 2; i++) mbarrier_init(barriers + i * 8);
  __syncthreads();
  return it;
}
// TMA loads of queries, keys and values, which lie side by side: (B, L, 3, N, 64).
DEVICE void load_qkv(const HeadIterator& it, const TensorMap& qkv) {
  for (int i = 0; i < 3; i++)
    tma_load(it.tile(i), qkv, it.sequence(), 0, (i * it.heads + it.head()) * 64, it.barrier());
}

// Starts c (64 x 128) = 64 rows of one tile times the rows of another, transposed: scores, or their gradient.
DEVICE void start_scores(float (&c)[16][4], const char* rows, const char* tile) {
  Descriptor a = descriptor_of(rows, 16), b = descriptor_of(tile, 16);
  wgmma_fence(c);
#pragma unroll
  for (int k = 0; k < 4; k++) k ? wgmma_m64n128<0>(c, a + k * 2, b + k * 2) : wgmma_m64n128<0, 1>(c, a, b);
  wgmma_commit();
}
// Starts c (64 x 64) = probabilities (64 x 128, bf16 pairs in registers) times a tile.
DEVICE void start_weighted_sum(float (&c)[8][4], const u32 (&pairs)[16][2], const char* tile) {
  zero(c);
  Descriptor b = descriptor_of(tile, TILE);
  wgmma_fence(c);
#pragma unroll
  for (int k = 0; k < 8; k++) wgmma_m64n64_rs<1>(c, pairs[2 * k], b + k * 128);
  wgmma_commit();
}
// Starts c (64 x 64) = 64 columns of a tile of 128 rows, transposed, times another tile.
DEVICE void start_transposed(float (&c)[8][4], const char* columns, const char* tile) {
  zero(c);
  Descriptor a = descriptor_of(columns, TILE), b = descriptor_of(tile, TILE);
  wgmma_fence(c);
#pragma unroll
  for (int k = 0; k < 8; k++) wgmma_m64n64_transposed(c, a + k * 128, b + k * 128);
  wgmma_commit();
}
DEVICE void mask_padding(float (&scores)[16][4], int valid_length, int lane) {
#pragma unroll
  for (int n = 0; n < 16; n++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (n * 8 + (lane & 3) * 2 + (i & 1) >= valid_length) scores[n][i] = -1e30f;
}
// exp2(score * scale_log2 - max) with dropout, unnormalised, as bf16 pairs; of each row the maximum, and this thread's
// part of the sum before dropout. `column_bits` (64,) in shared memory.
DEVICE void softmax_dropout(u32 (&pairs)[16][2], float (&scores)[16][4], float max[2], float sum[2],
                            const u32 row_bits[2], const u32* column_bits, float scale_log2, u32 threshold, int lane) {
  max[0] = max[1] = -1e28f;  // above masked scores: a sequence of no tokens has a sum of 0
  sum[0] = sum[1] = 0;
  row_max(max, scores);
  max[0] *= scale_log2, max[1] *= scale_log2;
#pragma unroll
  for (int n = 0; n < 16; n++) {
    float* e = scores[n];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      e[i] = exp2_approx(e[i] * scale_log2 - max[i / 2]);
      sum[i / 2] += e[i];
    }
    u32 column = column_bits[n * 4 + (lane & 3)];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u32 bits = random_bits(row_bits[i], column);
      if (!keeps_low(bits, threshold)) e[2 * i] = 0;
      if (!keeps_high(bits, threshold)) e[2 * i + 1] = 0;
    }
    for (int i = 0; i < 2; i++) pairs[n][i] = pack_bf16(e[2 * i], e[2 * i + 1]);
  }
}
// A warp's 16 rows of 64 columns, rounded, into a tile.
DEVICE void write_rows(const float (&c)[8][4], char* tile, int first_row, int lane) {
#pragma unroll
  for (int n = 0; n < 8; n += 2) {
    u32 r[4];
#pragma unroll
    for (int i = 0; i < 4; i++) r[i] = pack_bf16(c[n + i / 2][(i & 1) * 2], c[n + i / 2][(i & 1) * 2 + 1]);
    stmatrix_x4(shared_address(tile) + swizzled(first_row + (lane & 15), n + (lane >> 4)), r);
  }
}
