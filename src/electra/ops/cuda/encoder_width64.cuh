// Encoder layers of width 64, one head, MLP of 256: a warp pair shares 16 rows of a sequence. Each warp takes half of the
// work, which is 32 columns of a result or half of a summed dimension; then they exchange partial sums of each other's
// columns. Fragments as in reduce.cuh. Products of all 64 columns use wgmma, those of a warp's own columns mma.sync.

#include "dropout.cuh"
#include "gelu.cuh"
#include "wgmma.cuh"

#define WIDTH 64
#define INNER 256
#ifndef WARP_PAIRS
#define WARP_PAIRS 8  // tests compile with fewer
#endif
#define ROWS (WARP_PAIRS * 16)
#define TILE (ROWS * 128)          // bytes of a sequence's rows of 64 columns
#define WEIGHT_TILE (WIDTH * 128)  // bytes of 64 x 64
#define THREADS (WARP_PAIRS * 64)

#define MOST_LAYERS 24
struct Layer {
  const u16 *qkv_w, *qkv_b, *out_w, *out_b;    // (192, 64), (192,), (64, 64), (64,) bf16
  const float *gamma1, *beta1;                 // (64,) fp32
  const u16 *up_w, *up_b, *down_w, *down_b;    // (256, 64), (256,), (64, 256), (64,) bf16
  const float *gamma2, *beta2;                 // (64,) fp32
  int call_sites[3], unused;                   // of dropout: probabilities, attention's output, the MLP's output
};
struct Layers {
  Layer of[MOST_LAYERS];
};

// A thread's position: its warp's half of the pair's work, its pair, the pair's first row, its own first row, and its
// warp's first columns, in eights.
struct Position {
  int lane, half, pair, first_row, row, own;
};
// Opaque: where sums become unions of bits, addresses need registers of their own.
DEVICE Position position_of(u32 thread) {
  Position p;
  p.lane = thread & 31;
  p.half = opaque(thread / (WARP_PAIRS * 32));
  p.pair = opaque(thread / 32 % WARP_PAIRS);
  p.first_row = p.pair * 16;
  p.row = p.first_row + p.lane / 4;
  p.own = p.half * 4;
  return p;
}

#ifndef EMULATED
DEVICE void sync_warp_pair(int pair) { asm volatile("bar.sync %0, 64;" ::"r"(pair + 1) : "memory"); }
#endif

// cp.async of a tile of rows, zeros past `length`. EVEN_FIRST: of each sixteen rows the even ones first.
template <bool EVEN_FIRST = false>
DEVICE void cp_async_rows(char* tile, int rows, const void* from, long stride, int length, int thread) {
  int row = thread / 8, chunk = thread & 7;
  u32 to = shared_address(tile) + swizzled(EVEN_FIRST ? (row & ~15) | (row & 1) << 3 | (row & 15) >> 1 : row, chunk);
  const char* here = (const char*)from + row * stride + chunk * 16;
#pragma unroll
  for (int i = 0; i < (rows * 8 + THREADS - 1) / THREADS; i++) {
    bool valid = row + i * (THREADS / 8) < length;
    cp_async16(to + i * THREADS * 16, valid ? here + i * (THREADS / 8) * stride : (const char*)from, valid);
  }
}

// The pair's rows as operand fragments: all columns, or the warp's own. Addresses are recomputed each time: there are
// more of them than registers.
DEVICE void load_rows(u32 (&a)[4][4], const char* tile, const Position& p) {
  u32 from = opaque(swizzled(p.first_row + (p.lane & 15), p.lane >> 4));
#pragma unroll
  for (int h = 0; h < 4; h++) ldmatrix_x4(a[h], shared_address(tile) + (from ^ h << 5));
}
DEVICE void load_own_columns(u32 (&a)[2][4], const char* tile, const Position& p) {
  u32 from = opaque(swizzled(p.first_row + (p.lane & 15), p.own + (p.lane >> 4)));
#pragma unroll
  for (int h = 0; h < 2; h++) ldmatrix_x4(a[h], shared_address(tile) + (from ^ h << 5));
}

// Accumulators to operand fragments in bf16, and back.
template <int N>
DEVICE void pack_rows(u32 (&a)[N / 2][4], const float (&c)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 2; i++) a[n / 2][(n & 1) * 2 + i] = pack_bf16(c[n][2 * i], c[n][2 * i + 1]);
}
DEVICE void unpack_rows(float (&c)[4][4], const u32 (&a)[2][4]) {
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u32 pair = a[n / 2][(n & 1) * 2 + i];
      c[n][2 * i] = bf16_low(pair);
      c[n][2 * i + 1] = bf16_high(pair);
    }
}

// c (16 x 64) += rows (16 x 64) times a weight tile by wgmma: its rows are outputs, or with TRANSPOSE_B its columns. Needs
// fence_async_proxy after the tile was written.
template <int TRANSPOSE_B>
DEVICE void multiply_tile(float (&c)[8][4], const u32 (&a)[4][4], const char* tile) {
  Descriptor b = descriptor_of(tile, 16);
  wgmma_fence(c);
#pragma unroll
  for (int k = 0; k < 4; k++) wgmma_m64n64_rs<TRANSPOSE_B>(c, a[k], b + k * (TRANSPOSE_B ? 128 : 2));
  wgmma_commit();
  wgmma_wait<0>(c);
}

// The same by mma.sync, for 8 N of the tile's rows, or for the warp's own columns.
template <int N>
DEVICE void multiply_rows(float (&c)[N][4], const u32 (&a)[4][4], const char* rows, int lane) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    u32 b[N][4];
#pragma unroll
    for (int n = 0; n < N; n++)
      ldmatrix_x4(b[n], shared_address(rows) + swizzled(n * 8 + (lane & 7), h * 4 + (lane >> 3)));
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
      for (int n = 0; n < N; n++) mma_m16n8k16(c[n], a[2 * h + k], b[n][2 * k], b[n][2 * k + 1]);
  }
}
DEVICE void multiply_columns(float (&c)[4][4], const u32 (&a)[4][4], const char* tile, const Position& p) {
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      u32 b[4];
      ldmatrix_x4_trans(b, shared_address(tile) + swizzled(k * 16 + (p.lane & 15), (2 * h + (p.lane >> 4)) ^ p.own));
      mma_m16n8k16(c[2 * h], a[k], b[0], b[1]);
      mma_m16n8k16(c[2 * h + 1], a[k], b[2], b[3]);
    }
}

// c = bias (8 N,) in shared memory, in every row.
template <int N>
DEVICE void set_bias(float (&c)[N][4], const float* bias, int lane) {
#pragma unroll
  for (int n = 0; n < N; n++) {
    float2 here = *(const float2*)(bias + n * 8 + (lane & 3) * 2);
    c[n][0] = c[n][2] = here.x;
    c[n][1] = c[n][3] = here.y;
  }
}

// Dropout of the warp's own columns; `column_bits` (32,) in shared memory.
DEVICE void apply_dropout(float (&c)[4][4], const u32 row_bits[2], const u32* column_bits, const Dropout& dropout,
                          const Position& p) {
#pragma unroll
  for (int n = 0; n < 4; n++) {
    u32 column = column_bits[(p.own + n) * 4 + (p.lane & 3)];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u32 bits = random_bits(row_bits[i], column);
      c[n][2 * i] = keeps_low(bits, dropout.threshold) ? c[n][2 * i] * dropout.scale : 0;
      c[n][2 * i + 1] = keeps_high(bits, dropout.threshold) ? c[n][2 * i + 1] * dropout.scale : 0;
    }
  }
}

// Rows from a tile to global memory, up to `length`: N sixteens of columns, the warp's own two or all four.
template <int N>
DEVICE void store_tile(const char* tile, char* to, long stride, int length, const Position& p) {
  const int chunks = 2 * N, rows = 32 / chunks;  // of a row; that a warp writes at once
  int chunk = (N == 2 ? p.own : 0) + p.lane % chunks;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16 / rows; i++) {
    int row = p.first_row + i * rows + p.lane / chunks;
    if (row < length) *(uint4*)(to + row * stride + chunk * 16) = *(uint4*)(tile + swizzled(row, chunk));
  }
}
// Fragments into a tile and from there to global memory. `row` is the row whose address this lane gives stmatrix.
template <int N>
DEVICE void store_pairs(const u32 (&a)[N][4], char* tile, int row, char* to, long stride, int length, const Position& p) {
  u32 offset = opaque(swizzled(row, (N == 2 ? p.own : 0) + (p.lane >> 4)));
  __syncwarp();  // all lanes have read what lay there
#pragma unroll
  for (int h = 0; h < N; h++) stmatrix_x4(shared_address(tile) + (offset ^ h << 5), a[h]);
  store_tile<N>(tile, to, stride, length, p);
}
template <int N>
DEVICE void store_rows(const float (&c)[N][4], char* tile, char* to, long stride, int length, const Position& p) {
  u32 a[N / 2][4];
  pack_rows(a, c);
  store_pairs(a, tile, p.first_row + (p.lane & 15), to, stride, length, p);
}

// The warp's own columns from global memory to operand fragments, by way of a tile: loads start early, finish later.
struct RowLoads {
  uint4 chunk[2];
};
DEVICE void start_loads(RowLoads& loads, const void* from, int length, const Position& p) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    int row = p.first_row + i * 8 + p.lane / 4;
    loads.chunk[i] = row < length ? *(const uint4*)((const char*)from + row * (WIDTH * 2) + (p.own + p.lane % 4) * 16)
                                  : make_uint4(0, 0, 0, 0);
  }
}
DEVICE void finish_loads(u32 (&a)[2][4], const RowLoads& loads, char* tile, const Position& p) {
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2; i++)
    *(uint4*)(tile + swizzled(p.first_row + i * 8 + p.lane / 4, p.own + p.lane % 4)) = loads.chunk[i];
  __syncwarp();
  load_own_columns(a, tile, p);
}

// Exchange within the pair: `own` gets the warp's own columns of c, the buffer (2 KiB a warp) the other warp's.
DEVICE void send_columns(float (&own)[4][4], const float (&c)[8][4], char* buffer, const Position& p) {
#pragma unroll
  for (int n = 0; n < 4; n++) {
    float sent[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      own[n][i] = p.half ? c[4 + n][i] : c[n][i];
      sent[i] = p.half ? c[n][i] : c[4 + n][i];
    }
    *(float4*)(buffer + n * 512 + p.lane * 16) = make_float4(sent[0], sent[1], sent[2], sent[3]);
  }
}
DEVICE void receive_columns(float (&c)[4][4], const char* buffer, const Position& p) {
#pragma unroll
  for (int n = 0; n < 4; n++) {
    float4 here = *(const float4*)(buffer + n * 512 + p.lane * 16);
    c[n][0] = here.x;
    c[n][1] = here.y;
    c[n][2] = here.z;
    c[n][3] = here.w;
  }
}
// Two numbers a row, likewise: (WARP_PAIRS, 2 warps, 16 rows) float2.
DEVICE void send_row_sums(float2* buffer, const float x[2], const float y[2], const Position& p) {
  if ((p.lane & 3) == 0)
#pragma unroll
    for (int i = 0; i < 2; i++) buffer[p.pair * 32 + p.half * 16 + p.lane / 4 + 8 * i] = make_float2(x[i], y[i]);
}
DEVICE float2 receive_row_sums(const float2* buffer, int i, const Position& p) {
  return buffer[p.pair * 32 + (1 - p.half) * 16 + p.lane / 4 + 8 * i];
}
