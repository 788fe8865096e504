// Parts of encoder_width256_backward: shared memory, the producers, the norm and the GELU.

#include "weight_pipeline.cuh"

#define PARTS (INNER / 128)  // of the MLP's inner columns
#define NORM_SUMS (3 * WIDTH)

// What a block reads and writes by TMA, as the kernel's arguments say.
struct Maps {
  const TensorMap &qkv_weight, &down, &up, &out, &gradient, &d_qkv, &residual_sum2, &residual_sum1, &preact;
  const TensorMap &d_down, &d_preact, &d_out, &d_context;
};
// Shared memory, laid out as encoder_width256_backward.cu says.
struct Buffers {
  char* memory;

  DEVICE_METHOD char* gradient_tiles() const { return memory; }
  DEVICE_METHOD char* inner_tiles() const { return memory + 8 * TILE; }
  DEVICE_METHOD char* barriers() const { return memory + 14 * TILE; }
  DEVICE_METHOD WeightPipeline first() const { return {memory + 10 * TILE, barriers()}; }
  DEVICE_METHOD WeightPipeline second() const { return {memory + 4 * TILE, barriers() + 64}; }
  DEVICE_METHOD void* gradient_full() const { return barriers() + 128; }
  // Of a warpgroup's rows of one inner tile.
  DEVICE_METHOD void* inner_full(int warpgroup, int tile) const { return barriers() + 136 + (warpgroup * 2 + tile) * 8; }
  DEVICE_METHOD void* inner_empty(int warpgroup, int tile) const { return inner_full(warpgroup + 2, tile); }
  DEVICE_METHOD u32* column_bits() const { return (u32*)(barriers() + 256); }  // of pairs of columns
  // A warpgroup's 256 partial sums of `up`'s bias.
  DEVICE_METHOD float* up_sums(int warpgroup) const { return (float*)(barriers() + 768) + warpgroup * 256; }
  // A warp's partial sums of a norm: in rows of the inner tiles that only its own warpgroup reads or writes.
  DEVICE_METHOD float* norm_sums(int warpgroup, int warp) const {
    return (float*)(inner_tiles() + warp / 2 * TILE + warpgroup * HALF_TILE) + warp % 2 * NORM_SUMS;
  }
};
DEVICE void init_barriers(const Buffers& b) {
  init_pipeline(b.first());
  init_pipeline(b.second());
  mbarrier_init(b.gradient_full());
  for (int i = 0; i < 4; i++) {
    mbarrier_init(b.inner_full(i / 2, i % 2));
    mbarrier_init(b.inner_empty(i / 2, i % 2), WARPGROUP / 32);
  }
}

// One block's part of prefetching the weights into L2.
#define PREFETCHING_BLOCKS 128
DEVICE void prefetch_weights(const Maps& maps, bool has_above) {
  int tiles = blockIdx.x % PREFETCHING_BLOCKS;
  for (; tiles < 64; tiles += PREFETCHING_BLOCKS) tma_prefetch(maps.down, tiles / 16 * 64, tiles % 16 * 64);
  for (tiles -= 64; tiles < 64; tiles += PREFETCHING_BLOCKS) tma_prefetch(maps.up, tiles / 4 * 64, tiles % 4 * 64);
  for (tiles -= 64; tiles < 16; tiles += PREFETCHING_BLOCKS) tma_prefetch(maps.out, tiles / 4 * 64, tiles % 4 * 64);
  if (has_above)
    for (tiles -= 16; tiles < 48; tiles += PREFETCHING_BLOCKS)
      tma_prefetch(maps.qkv_weight, tiles / 4 * 64, tiles % 4 * 64);
}
// The producer of both pipelines, in the order of use. A stage is 64 rows of 128 columns of a weight, or 128 rows of 64
// columns of the sequence.
DEVICE void produce(const Maps& maps, const Buffers& b, int sequence, bool has_above) {
  int first_loaded = 0, second_loaded = 0;
  auto load = [&](const WeightPipeline& pipeline, int& loaded, const TensorMap& weight, int row, int column) {
    load_stage(pipeline, loaded, loaded / STAGES & 1 ^ 1, weight, 0, row, column, row, column + 64);
  };
  auto load_rows = [&](const WeightPipeline& pipeline, int& loaded, const TensorMap& map, int column) {
    load_stage(pipeline, loaded, loaded / STAGES & 1 ^ 1, map, sequence, 0, column, 64, column);
  };
  mbarrier_expect_tx(b.gradient_full(), 4 * TILE);
#pragma unroll 1
  for (int i = 0; i < 8; i++)
    tma_load(b.gradient_tiles() + i * HALF_TILE, maps.gradient, sequence, (i & 1) * 64, i / 2 * 64, b.gradient_full());
#pragma unroll 1
  for (int tile = 0; has_above && tile < 12; tile++) {
    load_rows(b.second(), second_loaded, maps.d_qkv, tile * 64);
    for (int i = 0; i < 2; i++) load(b.first(), first_loaded, maps.qkv_weight, tile * 64, i * 128);
  }
#pragma unroll 1
  for (int i = 0; i < 4; i++) load_rows(b.second(), second_loaded, maps.residual_sum2, i * 64);
#pragma unroll 1
  for (int part = 0; part < INNER; part += 128) {
#pragma unroll 1
    for (int i = 0; i < 4; i++) load(b.first(), first_loaded, maps.down, i * 64, part);
#pragma unroll 1
    for (int i = 0; i < 4; i++) load(b.second(), second_loaded, maps.up, part + i / 2 * 64, (i & 1) * 128);
  }
#pragma unroll 1
  for (int i = 0; i < 4; i++) load_rows(b.first(), first_loaded, maps.residual_sum1, i * 64);
#pragma unroll 1
  for (int i = 0; i < 4; i++) load(b.second(), second_loaded, maps.out, i / 2 * 64, (i & 1) * 128);
#pragma unroll 1
  for (int i = 0; i < 4; i++) load(b.first(), first_loaded, maps.out, 128 + i / 2 * 64, (i & 1) * 128);
}
// The producer of the GELU's input, for the rows of one warpgroup. Only one part has space on the chip, so the next two
// wait in L2, and so does what the first norm reads.
DEVICE void produce_inner(const Maps& maps, const Buffers& b, int sequence, int warpgroup) {
  auto prefetch = [&](int part) {
    for (int tile = 0; tile < 2; tile++)
      tma_prefetch(maps.preact, warpgroup * 64, part * 128 + tile * 64, sequence);
  };
  prefetch(0);
  prefetch(1);
#pragma unroll 1
  for (int part = 0; part < PARTS; part++) {
    if (part + 2 < PARTS) prefetch(part + 2);
    if (part >= PARTS - 4) tma_prefetch(maps.residual_sum1, warpgroup * 64, (part - PARTS + 4) * 64, sequence);
    for (int tile = 0; tile < 2; tile++) {
      mbarrier_wait(b.inner_empty(warpgroup, tile), part & 1);  // not empty at first: a norm's partial sums lie there
      mbarrier_expect_tx(b.inner_full(warpgroup, tile), HALF_TILE);
      tma_load(b.inner_tiles() + tile * TILE + warpgroup * HALF_TILE, maps.preact, sequence, warpgroup * 64,
               part * 128 + tile * 64, b.inner_full(warpgroup, tile));
    }
  }
}

// The warpgroup's rows of `count` tiles to global memory.
DEVICE void store_tiles(const char* tiles, int count, const TensorMap& to, int sequence, int column, const Consumer& t) {
  for (int i = 0; i < count; i++)
    tma_store(tiles + i * TILE + t.warpgroup * HALF_TILE, to, sequence, t.warpgroup * 64, column + i * 64);
}
// A warp's 16 rows of 128 columns out of two tiles, and into them.
DEVICE void read_rows(float (&c)[16][4], const char* tiles, int first_row, int lane) {
  u32 from = opaque(shared_address(tiles) + swizzled(first_row + (lane & 15), lane >> 4));
#pragma unroll
  for (int n = 0; n < 16; n += 2) {
    u32 pairs[4];
    ldmatrix_x4(pairs, (from ^ (n & 7) << 4) + n / 8 * TILE);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      c[n + i / 2][(i & 1) * 2] = bf16_low(pairs[i]);
      c[n + i / 2][(i & 1) * 2 + 1] = bf16_high(pairs[i]);
    }
  }
  fence_accumulators(c);  // else the compiler converts them while another product runs, and serialises both
}
DEVICE void write_rows(const float (&c)[16][4], char* tiles, int first_row, int lane) {
  u32 pairs[16][2];
#pragma unroll
  for (int n = 0; n < 16; n++)
#pragma unroll
    for (int i = 0; i < 2; i++) pairs[n][i] = pack_bf16(c[n][2 * i], c[n][2 * i + 1]);
  write_pairs(pairs, tiles, first_row, lane);
}

// Sums of eight values over the warp, for all lanes. In the first three steps a lane sends half of its values.
DEVICE void warp_sums(float (&v)[8], int lane) {
#pragma unroll
  for (int step = 0; step < 3; step++) {
    const int half = 4 >> step, lanes = 16 >> step;
    bool upper = lane & lanes;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i >= half) continue;
      float sent = upper ? v[i] : v[i + half];
      float own = upper ? v[i + half] : v[i];
      v[i] = own + shuffle_xor(sent, lanes);
    }
  }
  float total = v[0] + shuffle_xor(v[0], 2);
  total += shuffle_xor(total, 1);
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = shuffle(total, i * 4);
}
// What a lane has of a norm's inputs beside the tiles: gamma of its eight columns, and of the warp's 16 rows the mean in
// the lower lanes and the rstd in the upper ones.
struct Norm {
  float gamma[8], statistic;
};
DEVICE void load_norm(Norm& norm, const float* gamma, const float* mean, const float* rstd, int rows, const Consumer& t) {
  int row = t.first_row + (t.lane & 15);
#pragma unroll
  for (int i = 0; i < 8; i++) norm.gamma[i] = gamma[t.lane * 8 + i];
  norm.statistic = row < rows ? (t.lane < 16 ? mean : rstd)[row] : 0;
}
// Backward of norm(x + dropout(branch)) for a warp's 16 rows, four at a time, eight columns a lane, in a loop that is not
// unrolled: the instructions must fit the instruction cache. The branch's gradient replaces the norm's in `gradients`;
// x's goes to `residual` or, without it, replaces the sums in `summed`. `sums` (3, 256) get the warp's partial sums of
// the gradients of gamma, beta and the branch's bias.
DEVICE void norm_dropout_backward(char* gradients, char* summed, const Norm& norm, const u32* column_bits,
                                  const Dropout& dropout, int call_site, u16* residual, float* sums, int rows,
                                  const Consumer& t) {
  int tile = t.lane / 8 * TILE, chunk = t.lane & 7;
  uint4 bits = *(const uint4*)(column_bits + t.lane * 4);
  const u32 columns[4] = {bits.x, bits.y, bits.z, bits.w};
  float totals[3][8] = {};
#pragma unroll 1
  for (int row = 0; row < 16; row += 4) {
    float dy[4][8], x[4][8], rstd[4], row_sums[8];
#pragma unroll
    for (int r = 0; r < 4; r++) {
      u32 here = tile + swizzled(t.first_row + row + r, chunk);
      uint4 gradient = *(const uint4*)(gradients + here), sum = *(const uint4*)(summed + here);
      const u32 gradient_pairs[4] = {gradient.x, gradient.y, gradient.z, gradient.w};
      const u32 sum_pairs[4] = {sum.x, sum.y, sum.z, sum.w};
      unpack_bf16<4>(dy[r], gradient_pairs);
      unpack_bf16<4>(x[r], sum_pairs);
      float mean = shuffle(norm.statistic, row + r);
      rstd[r] = shuffle(norm.statistic, 16 + row + r);
      row_sums[r] = row_sums[4 + r] = 0;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        x[r][i] = (x[r][i] - mean) * rstd[r];
        totals[0][i] += dy[r][i] * x[r][i];
        totals[1][i] += dy[r][i];
        dy[r][i] *= norm.gamma[i];
        row_sums[r] += dy[r][i];
        row_sums[4 + r] += dy[r][i] * x[r][i];
      }
    }
    warp_sums(row_sums, t.lane);
#pragma unroll
    for (int r = 0; r < 4; r++) {
      int own_row = t.first_row + row + r;
      u32 here = tile + swizzled(own_row, chunk);
      u32 row_bits = dropout_row_bits(dropout.key, (u32)call_site, own_row);
#pragma unroll
      for (int i = 0; i < 8; i++)
        dy[r][i] = (dy[r][i] - (row_sums[r] + x[r][i] * row_sums[4 + r]) * (1.0f / WIDTH)) * rstd[r];
      if (residual) store16_if(residual + own_row * WIDTH + t.lane * 8, pack_bf16x8(dy[r]), own_row < rows);
      else *(uint4*)(summed + here) = pack_bf16x8(dy[r]);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        u32 random = random_bits(row_bits, columns[i / 2]);
        bool keeps = i & 1 ? keeps_high(random, dropout.threshold) : keeps_low(random, dropout.threshold);
        dy[r][i] = keeps ? dy[r][i] * dropout.scale : 0;
        totals[2][i] += dy[r][i];
      }
      *(uint4*)(gradients + here) = pack_bf16x8(dy[r]);
    }
  }
#pragma unroll
  for (int i = 0; i < 3; i++)
#pragma unroll
    for (int j = 0; j < 8; j += 4)
      *(float4*)(sums + i * WIDTH + t.lane * 8 + j) =
          make_float4(totals[i][j], totals[i][j + 1], totals[i][j + 2], totals[i][j + 3]);
}
// A norm's partial sums of the warpgroup: those of its four warps, in order.
DEVICE void add_norm_sums(const Buffers& b, float* to, const Consumer& t) {
  for (int column = threadIdx.x % WARPGROUP; column < NORM_SUMS; column += WARPGROUP) {
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < WARPGROUP / 32; warp++) total += b.norm_sums(t.warpgroup, warp)[column];
    to[column] = total;
  }
}

// Multiplies gradients of the GELU's output by its derivative: a warp's 16 rows of 128 inner columns. They replace the
// GELU's input in the inner tiles, rounded.
DEVICE void gelu_backward_rows(float (&d)[16][4], const Buffers& b, int part, const Consumer& t) {
  u32 here = opaque(shared_address(b.inner_tiles()) + swizzled(t.first_row + (t.lane & 15), t.lane >> 4));
#pragma unroll
  for (int n = 0; n < 16; n += 2) {
    if (n % 8 == 0) mbarrier_wait(b.inner_full(t.warpgroup, n / 8), part & 1);
    u32 pairs[4], address = (here ^ (n & 7) << 4) + n / 8 * TILE;
    ldmatrix_x4(pairs, address);
    gelu_backward<4>(d[n], pairs);
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = pack_bf16(d[n + i / 2][(i & 1) * 2], d[n + i / 2][(i & 1) * 2 + 1]);
    stmatrix_x4(address, pairs);
  }
}
