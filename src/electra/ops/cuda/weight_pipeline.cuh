// Weights streamed through shared memory, for blocks of two consumer warpgroups, each with 64 rows of a sequence, and
// one producer thread. The producer loads TMA tiles into four stages in turn, as soon as both consumers have released
// one; consumers multiply out of the stages with wgmma.

#include "attention.cuh"
#include "gelu.cuh"
#include "wgmma.cuh"

#define STAGE_BYTES 16384  // two tiles of 64 rows
#define STAGES 4
#define CONSUMERS (2 * WARPGROUP)
#define THREADS (CONSUMERS + WARPGROUP)
#define WIDTH 256
#define INNER 1024

// Every product uses all four stages once, so a stage's index is a constant where the product is written, and the
// caller knows the mbarriers' parity.
struct WeightPipeline {
  char *stages, *barriers;

  DEVICE_METHOD char* stage(int i) const { return stages + i * STAGE_BYTES; }
  DEVICE_METHOD void* full(int i) const { return barriers + i * 8; }
  DEVICE_METHOD void* empty(int i) const { return barriers + (STAGES + i) * 8; }
};
DEVICE void init_pipeline(const WeightPipeline& pipeline) {
  for (int i = 0; i < STAGES; i++) {
    mbarrier_init(pipeline.full(i));
    mbarrier_init(pipeline.empty(i), CONSUMERS / 32);
  }
}
// Loads two tiles of 64 rows into the next stage once it is empty; `loaded` stages were filled before.
DEVICE void load_stage(const WeightPipeline& pipeline, int& loaded, int parity, const TensorMap& map, int sequence,
                       int row0, int column0, int row1, int column1) {
  int i = loaded++ % STAGES;
  mbarrier_wait(pipeline.empty(i), parity);
  mbarrier_expect_tx(pipeline.full(i), STAGE_BYTES);
  tma_load(pipeline.stage(i), map, sequence, row0, column0, pipeline.full(i));
  tma_load(pipeline.stage(i) + HALF_TILE, map, sequence, row1, column1, pipeline.full(i));
}
// The same of a weight whose rows are outputs.
DEVICE void load_stage(const WeightPipeline& pipeline, int& loaded, int parity, const TensorMap& weight, int row0, int row1,
                       int column) {
  load_stage(pipeline, loaded, parity, weight, 0, row0, column, row1, column);
}
DEVICE void release_stage(const WeightPipeline& pipeline, int i, int lane) {
  mbarrier_arrive_warp(pipeline.empty(i), lane);
}
DEVICE void release_stages(const WeightPipeline& pipeline, int first, int count, int lane) {
#pragma unroll
  for (int i = first; i < first + count; i++) release_stage(pipeline, i, lane);
}

// A consumer thread.
struct Consumer {
  int warpgroup, lane, first_row, row;  // the first row of its warp, and its own first
  bool leader;                          // of its warpgroup: issues TMA stores
};
DEVICE Consumer make_consumer() {
  Consumer t;
  t.warpgroup = threadIdx.x / WARPGROUP;
  t.lane = opaque(threadIdx.x & 31);
  t.first_row = opaque(threadIdx.x / 32 * 16);
  t.row = t.first_row + t.lane / 4;
  t.leader = threadIdx.x % WARPGROUP == 0;
  return t;
}

// Recomputed at each use: there are more descriptors than registers to hold them.
DEVICE Descriptor recomputed_descriptor(const char* p, int stride = 16) {
  return descriptor_at(opaque(shared_address(p)), stride);
}
// Of a stage, or of two neighbours, whose rows, or with TRANSPOSE_B columns, are outputs; and its advance by 16 inputs.
template <int TRANSPOSE_B>
DEVICE Descriptor weight_descriptor(const char* p) {
  return recomputed_descriptor(p, TRANSPOSE_B ? HALF_TILE : 16);
}
#define WEIGHT_ADVANCE(transpose_b) ((transpose_b) ? 128 : 2)
// Starts c (64 x 128) = 64 rows of four tiles times four stages. Two stages' products are in flight before the first
// wait; `on_commit` is called after each of these two.
template <int TRANSPOSE_B = 0, class OnCommit>
DEVICE void start_product(float (&c)[16][4], const char* tiles, const WeightPipeline& pipeline, int parity, int lane,
                          OnCommit on_commit) {
  fence_accumulators(c);
#pragma unroll
  for (int i = 0; i < STAGES; i++) {
    mbarrier_wait(pipeline.full(i), parity);
    wgmma_fence();
    Descriptor a = recomputed_descriptor(tiles + i * TILE), b = weight_descriptor<TRANSPOSE_B>(pipeline.stage(i));
#pragma unroll
    for (int k = 0; k < 4; k++)
      i + k ? wgmma_m64n128<TRANSPOSE_B>(c, a + k * 2, b + k * WEIGHT_ADVANCE(TRANSPOSE_B))
            : wgmma_m64n128<TRANSPOSE_B, 1>(c, a, b);
    wgmma_commit();
    if (i < 2) on_commit(i);
    if (i == 2) {
      wgmma_wait<2>();
      release_stage(pipeline, 0, lane);
    }
  }
}
DEVICE void finish_product(float (&c)[16][4], const WeightPipeline& pipeline, int lane) {
  wgmma_wait<2>();
  release_stage(pipeline, 1, lane);
  wgmma_wait<1>();
  release_stage(pipeline, 2, lane);
  wgmma_wait<0>(c);
  release_stage(pipeline, 3, lane);
}
DEVICE void multiply_tiles(float (&c)[16][4], const char* tiles, const WeightPipeline& pipeline, int parity, int lane) {
  start_product(c, tiles, pipeline, parity, lane, [](int) {});
  finish_product(c, pipeline, lane);
}
// Starts c (64 x 256) += 64 rows of two tiles times four stages, two a tile.
template <int TRANSPOSE_B = 0>
DEVICE void start_product(float (&c)[2][16][4], const char* tiles, const WeightPipeline& pipeline, int parity) {
  fence_accumulators(c[0]);
  fence_accumulators(c[1]);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    mbarrier_wait(pipeline.full(2 * i), parity);
    mbarrier_wait(pipeline.full(2 * i + 1), parity);
    wgmma_fence();
    Descriptor a = recomputed_descriptor(tiles + i * TILE), b = weight_descriptor<TRANSPOSE_B>(pipeline.stage(2 * i));
#pragma unroll
    for (int k = 0; k < 4; k++) wgmma_m64n256<TRANSPOSE_B>(c, a + k * 2, b + k * WEIGHT_ADVANCE(TRANSPOSE_B));
    wgmma_commit();
  }
}
DEVICE void finish_product(float (&c)[2][16][4]) {
  wgmma_wait<0>(c[0]);
  fence_accumulators(c[1]);
}

// Biases of 128 columns, aligned to 2 bytes only: four a lane, loaded early, shuffled to whoever adds them.
struct Biases {
  u16 of[4];
};
DEVICE void load_biases(Biases& biases, const u16* lower, const u16* upper, int lane) {
  biases.of[0] = lower[2 * lane];
  biases.of[1] = lower[2 * lane + 1];
  biases.of[2] = upper[2 * lane];
  biases.of[3] = upper[2 * lane + 1];
}
// c + bias as bf16 pairs; `bias_at(n)` gives this thread's two columns of fragment n.
template <class BiasAt>
DEVICE void add_biases(u32 (&pairs)[16][2], const float (&c)[16][4], BiasAt bias_at) {
#pragma unroll
  for (int n = 0; n < 16; n++) {
    u32 bias = bias_at(n);
#pragma unroll
    for (int i = 0; i < 2; i++) pairs[n][i] = pack_bf16(c[n][2 * i] + bf16_low(bias), c[n][2 * i + 1] + bf16_high(bias));
  }
}
// A warp's 16 rows of 128 columns into two tiles.
DEVICE void write_pairs(const u32 (&pairs)[16][2], char* tiles, int first_row, int lane) {
  u32 to = opaque(shared_address(tiles) + swizzled(first_row + (lane & 15), lane >> 4));
#pragma unroll
  for (int n = 0; n < 16; n += 2) stmatrix_x4((to ^ (n & 7) << 4) + n / 8 * TILE, pairs[n]);
}
DEVICE void write_biased(const float (&c)[16][4], const Biases& biases, char* tiles, int first_row, int lane) {
  u32 lower = biases.of[0] | (u32)biases.of[1] << 16, upper = biases.of[2] | (u32)biases.of[3] << 16, pairs[16][2];
  add_biases(pairs, c, [&](int n) { return shuffle(n < 8 ? lower : upper, n % 8 * 4 + (lane & 3)); });
  write_pairs(pairs, tiles, first_row, lane);
}
