// Parts of encoder_width256_forward: layers and buffers, the producer of weights, the norm and the GELU.

#include "weight_pipeline.cuh"

#define HEADS 4
#define MOST_LAYERS 12

struct Layer {
  TensorMap qkv, out, up, down;              // (768, 256), (256, 256), (1024, 256), (256, 1024) bf16; tiles of 64 rows
  const u16 *qkv_b, *out_b, *up_b, *down_b;  // (768,), (256,), (1024,), (256,) bf16
  const float *gamma1, *beta1, *gamma2, *beta2;  // (256,) fp32
  int call_sites[3], unused[13];             // of dropout: probabilities, attention's output, the MLP's output
};
struct Layers {
  Layer of[MOST_LAYERS];
};
// Saved activations, of all layers of a launch.
struct Saved {
  const TensorMap &qkv, &context;
  u16 *residual_sum1, *y, *preact, *act, *residual_sum2, *z;
  float *lse, *mean1, *rstd1, *mean2, *rstd2;
};
// Shared memory, laid out as encoder_width256_forward.cu says.
struct Buffers {
  char* memory;

  DEVICE_METHOD char* x_tiles() const { return memory; }
  DEVICE_METHOD char* context_tiles() const { return memory + 4 * TILE; }
  DEVICE_METHOD char* k_tile() const { return memory + 8 * TILE; }
  DEVICE_METHOD char* v_tile() const { return memory + 9 * TILE; }
  DEVICE_METHOD char* barriers() const { return memory + 14 * TILE; }
  DEVICE_METHOD char* x_barrier() const { return barriers() + 128; }
  DEVICE_METHOD u32* column_bits() const { return (u32*)(barriers() + 192); }  // of pairs of keys or columns
  DEVICE_METHOD u16* up_bias() const { return (u16*)(column_bits() + WIDTH / 2); }
  DEVICE_METHOD WeightPipeline weights() const { return {memory + 10 * TILE, barriers()}; }
  DEVICE_METHOD WeightPipeline down_weights() const { return {context_tiles() + 2 * TILE, barriers() + 64}; }
};
// One sequence in one layer.
struct Position {
  int sequence;     // among those of all layers
  long first_token;
  int length, valid_length;
};

// One block's part of prefetching a layer's weights and vectors into L2.
#define PREFETCHING_BLOCKS 128
DEVICE void prefetch_layer(const Layer& layer) {
  int part = blockIdx.x % PREFETCHING_BLOCKS, tiles = part;
  for (; tiles < 48; tiles += PREFETCHING_BLOCKS) tma_prefetch(layer.qkv, tiles / 4 * 64, tiles % 4 * 64);
  for (tiles -= 48; tiles < 16; tiles += PREFETCHING_BLOCKS) tma_prefetch(layer.out, tiles / 4 * 64, tiles % 4 * 64);
  for (tiles -= 16; tiles < 64; tiles += PREFETCHING_BLOCKS) tma_prefetch(layer.up, tiles / 4 * 64, tiles % 4 * 64);
  for (tiles -= 64; tiles < 64; tiles += PREFETCHING_BLOCKS) tma_prefetch(layer.down, tiles / 16 * 64, tiles % 16 * 64);
  if (part < 12) prefetch_l2(layer.qkv_b + part * 64);
  else if (part < 28) prefetch_l2(layer.up_b + (part - 12) * 64);
  else if (part < 32) prefetch_l2(layer.out_b + (part - 28) * 64);
  else if (part < 36) prefetch_l2(layer.down_b + (part - 32) * 64);
  else if (part < 44) prefetch_l2(layer.gamma1 + (part - 36) * 32);
  else if (part < 52) prefetch_l2(layer.beta1 + (part - 44) * 32);
  else if (part < 60) prefetch_l2(layer.gamma2 + (part - 52) * 32);
  else if (part < 68) prefetch_l2(layer.beta2 + (part - 60) * 32);
}

// The producer: all weights in the order of their use. `down`'s stages lie in attention's buffers, so they count as full
// until consumers release them, half a layer later.
DEVICE void produce(const Layers& layers, int count, const WeightPipeline& weights, const WeightPipeline& down_weights) {
  int loaded = 0, down_loaded = 0;
#pragma unroll 1
  for (int number = 0; number < count; number++) {
    const Layer& layer = layers.of[number];
    if (number + 1 < count) prefetch_layer(layers.of[number + 1]);
    auto load = [&](const TensorMap& map, int row0, int row1, int column) {
      load_stage(weights, loaded, loaded / STAGES & 1 ^ 1, map, row0, row1, column);
    };
    // Of two heads the queries, then of each the keys and values.
#pragma unroll 1
    for (int i = 0; i < 6 * 4; i++) {
      int head_pair = i / 12 * 128, head = i / 4 % 3 * 64 + head_pair - 64;
      bool queries = i % 12 < 4;
      load(layer.qkv, queries ? head_pair : WIDTH + head, queries ? head_pair + 64 : 2 * WIDTH + head, i % 4 * 64);
    }
#pragma unroll 1
    for (int i = 0; i < 8; i++) load(layer.out, (i & 1) * 128, (i & 1) * 128 + 64, i / 2 * 64);
#pragma unroll 1
    for (int part = 0; part < INNER; part += 128) {
#pragma unroll 1
      for (int i = 0; i < 4; i++) load(layer.up, part, part + 64, i * 64);
#pragma unroll 1
      for (int i = 0; i < 4; i++) {
        int row = (i & 1) * 128, column = part + i / 2 * 64;
        load_stage(down_weights, down_loaded, down_loaded / STAGES & 1, layer.down, row, row + 64, column);
      }
    }
  }
}

// The warpgroup's rows of `count` tiles to global memory.
DEVICE void store_tiles(const char* tiles, int count, const TensorMap& to, int sequence, int column, const Consumer& t) {
  for (int i = 0; i < count; i++)
    tma_store(tiles + i * TILE + t.warpgroup * HALF_TILE, to, sequence, t.warpgroup * 64, column + i * 64);
}

struct Norm {
  float gamma[4][8], beta[4][8];  // of the lane's columns, eight in each tile
};
DEVICE void load_norm(Norm& norm, const float* gamma, const float* beta, int lane) {
#pragma unroll
  for (int tile = 0; tile < 4; tile++)
#pragma unroll
    for (int i = 0; i < 8; i++) {
      int column = tile * 64 + (lane & 7) * 8 + i;
      norm.gamma[tile][i] = gamma[column], norm.beta[tile][i] = beta[column];
    }
}
// The sum over the eight lanes that share a row.
DEVICE float row_sum(const float (&parts)[4]) {
  float x = parts[0] + parts[1] + (parts[2] + parts[3]);
  x += shuffle_xor(x, 1);
  x += shuffle_xor(x, 2);
  return x + shuffle_xor(x, 4);
}
// norm(residual + dropout(branch)) of a warp's 16 rows, which replaces the residual in `tiles`; the sum, the output, mean
// and rstd go to global memory. Four rows at a time, eight lanes each, in a loop that is not unrolled: a layer's
// instructions must fit the instruction cache.
DEVICE void add_dropout_norm(const char* branch, char* tiles, const Norm& norm, const u32* column_bits,
                             const Dropout& dropout, int call_site, float eps, u16* residual_sum, u16* out, float* mean,
                             float* rstd, int rows, const Consumer& t) {
  int chunk = t.lane & 7;
  uint4 tile_bits[4];
#pragma unroll
  for (int tile = 0; tile < 4; tile++) tile_bits[tile] = *(const uint4*)(column_bits + tile * 32 + chunk * 4);
#pragma unroll 1
  for (int row = t.first_row + t.lane / 8; row < t.first_row + 16; row += 4) {
    float z[4][8], parts[4];
    u32 row_bits = dropout_row_bits(dropout.key, (u32)call_site, row);
    int here = row * WIDTH + chunk * 8;
#pragma unroll
    for (int tile = 0; tile < 4; tile++) {
      uint4 x = *(const uint4*)(branch + tile * TILE + swizzled(row, chunk));
      uint4 y = *(uint4*)(tiles + tile * TILE + swizzled(row, chunk));
      u32 added[4] = {x.x, x.y, x.z, x.w}, residual[4] = {y.x, y.y, y.z, y.w};
      u32 columns[4] = {tile_bits[tile].x, tile_bits[tile].y, tile_bits[tile].z, tile_bits[tile].w};
      parts[tile] = 0;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 bits = random_bits(row_bits, columns[i]);
        bool keep0 = keeps_low(bits, dropout.threshold), keep1 = keeps_high(bits, dropout.threshold);
        z[tile][2 * i] = (keep0 ? bf16_low(added[i]) : 0) * dropout.scale + bf16_low(residual[i]);
        z[tile][2 * i + 1] = (keep1 ? bf16_high(added[i]) : 0) * dropout.scale + bf16_high(residual[i]);
        parts[tile] += z[tile][2 * i] + z[tile][2 * i + 1];
      }
      store16_if(residual_sum + here + tile * 64, pack_bf16x8(z[tile]), row < rows);
    }
    float row_mean = row_sum(parts) * (1.0f / WIDTH);
#pragma unroll
    for (int tile = 0; tile < 4; tile++) {
      parts[tile] = 0;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        z[tile][i] -= row_mean;
        parts[tile] += z[tile][i] * z[tile][i];
      }
    }
    float row_rstd = rsqrt_approx(row_sum(parts) * (1.0f / WIDTH) + eps);
    if (chunk == 0 && row < rows) mean[row] = row_mean, rstd[row] = row_rstd;
#pragma unroll
    for (int tile = 0; tile < 4; tile++) {
#pragma unroll
      for (int i = 0; i < 8; i++) z[tile][i] = z[tile][i] * row_rstd * norm.gamma[tile][i] + norm.beta[tile][i];
      uint4 y = pack_bf16x8(z[tile]);
      *(uint4*)(tiles + tile * TILE + swizzled(row, chunk)) = y;
      store16_if(out + here + tile * 64, y, row < rows);
    }
  }
}

// 128 inner columns of the warpgroup's rows: through two tiles to `preact`, then the GELU in place, and to `act`. Each
// warp has its own rows, and reads the next four while it works on four.
DEVICE void apply_gelu(const u32 (&pairs)[16][2], char* tiles, u16* preact, u16* act, int rows, const Consumer& t) {
  sync_warpgroup(t.warpgroup);  // the last product has read the tiles
  write_pairs(pairs, tiles, t.first_row, t.lane);
  __syncwarp();
  char* here = tiles + t.lane / 8 % 2 * TILE + t.first_row * 128;
  int chunk = t.lane & 7;
  long offset = (long)(t.first_row + t.lane / 16) * INNER + t.lane % 16 * 8;
  rows -= t.first_row;
  uint4 next[2];
#pragma unroll
  for (int r = 0; r < 2; r++) next[r] = *(const uint4*)(here + swizzled(t.lane / 16 + 2 * r, chunk));
#pragma unroll 1
  for (int row = t.lane / 16; row < 16; row += 4, offset += 4 * INNER) {
    u32 x[8];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      store16_if(preact + offset + 2 * r * INNER, next[r], row + 2 * r < rows);
      x[4 * r] = next[r].x, x[4 * r + 1] = next[r].y, x[4 * r + 2] = next[r].z, x[4 * r + 3] = next[r].w;
      next[r] = *(const uint4*)(here + swizzled((row + 4 + 2 * r) & 15, chunk));
    }
    gelu_forward<8>(x);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      uint4 y = make_uint4(x[4 * r], x[4 * r + 1], x[4 * r + 2], x[4 * r + 3]);
      *(uint4*)(here + swizzled(row + 2 * r, chunk)) = y;
      store16_if(act + offset + 2 * r * INNER, y, row + 2 * r < rows);
    }
  }
  fence_async_proxy();
  sync_warpgroup(t.warpgroup);
}
