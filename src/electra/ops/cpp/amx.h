// AMX: products of bf16 matrices by tiles of 16 x 32 numbers, with sums in fp32.
//
// TDPBF16PS adds a · b to sums, where a is (16 rows, 32) and b (16 pairs of rows, 16 columns, 2). A tile is 1 KB and fills
// a register. Where a matrix is a b, its tiles are packed first, all steps of 32 of a column of tiles one after another.

#pragma once

#include <cstdio>
#include <cstdlib>

#include "vector.h"

#ifdef __AMX_BF16__

constexpr int64_t TILE = 16, STEP = 32, BLOCK = 2 * TILE;  // rows or columns of a tile, its depth, a register block's side
constexpr int64_t PACKED = TILE * STEP;                    // numbers in a tile

alignas(64) static const struct {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE};
} TILE_CONFIG;

// The thread's tile registers, from here to the end of the block.
struct Tiles {
  Tiles() { _tile_loadconfig(&TILE_CONFIG); }
  ~Tiles() { _tile_release(); }
};

// Memory that a thread keeps: fetching pages anew takes as long as a product. Parts begin at cache lines.
struct Workspace {
  ~Workspace() { std::free(start); }
  static int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }
  // Room for so many bytes in so many parts; what was there is gone.
  void begin(int64_t bytes, int64_t parts) {
    const int64_t needed = whole_lines(bytes) + 64 * parts;
    used = 0;
    if (needed <= size) return;
    std::free(start);
    start = (char*)std::aligned_alloc(64, size = needed);
    if (!start) {
      std::fprintf(stderr, "electra: no memory for %lld bytes\n", (long long)needed);
      std::abort();
    }
  }
  template <class T>
  T* take(int64_t count) {
    T* part = (T*)(start + used);
    used += whole_lines(count * (int64_t)sizeof(T));
    return part;
  }
  char* start = nullptr;
  int64_t size = 0, used = 0;
};

// 16 columns of rows `row` and `row + 1` as pairs; rows from `end` on are 0.
static inline __m512i pairs(const uint16_t* x, int64_t stride, int64_t row, int64_t end) {
  const uint16_t* at = x + row * stride;
  const __m512i none = _mm512_setzero_si512();
  const __m512i low = row < end ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)at)) : none;
  const __m512i high = row + 1 < end ? _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(at + stride))) : none;
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

// 16 x 16 pairs, transposed.
static inline void store_transposed(__m512i* r, uint16_t* to, int64_t stride) {
  __m512i s[TILE];
#pragma GCC unroll 8
  for (int64_t p = 0; p < TILE; p += 2) {
    s[p] = _mm512_unpacklo_epi32(r[p], r[p + 1]);
    s[p + 1] = _mm512_unpackhi_epi32(r[p], r[p + 1]);
  }
#pragma GCC unroll 4
  for (int64_t p = 0; p < TILE; p += 4) {
    r[p] = _mm512_unpacklo_epi64(s[p], s[p + 2]);
    r[p + 1] = _mm512_unpackhi_epi64(s[p], s[p + 2]);
    r[p + 2] = _mm512_unpacklo_epi64(s[p + 1], s[p + 3]);
    r[p + 3] = _mm512_unpackhi_epi64(s[p + 1], s[p + 3]);
  }
#pragma GCC unroll 4
  for (int64_t p = 0; p < 4; p++) {
    const __m512i even = _mm512_shuffle_i32x4(r[p], r[p + 4], 0x88), odd = _mm512_shuffle_i32x4(r[p], r[p + 4], 0xdd);
    const __m512i even2 = _mm512_shuffle_i32x4(r[p + 8], r[p + 12], 0x88);
    const __m512i odd2 = _mm512_shuffle_i32x4(r[p + 8], r[p + 12], 0xdd);
    _mm512_storeu_si512(to + p * stride, _mm512_shuffle_i32x4(even, even2, 0x88));
    _mm512_storeu_si512(to + (p + 4) * stride, _mm512_shuffle_i32x4(odd, odd2, 0x88));
    _mm512_storeu_si512(to + (p + 8) * stride, _mm512_shuffle_i32x4(even, even2, 0xdd));
    _mm512_storeu_si512(to + (p + 12) * stride, _mm512_shuffle_i32x4(odd, odd2, 0xdd));
  }
}

// A tile of b from 32 rows of x and 16 of its columns.
static inline void pack_rows(const uint16_t* x, int64_t stride, int64_t row, int64_t end, uint16_t* tile) {
#pragma GCC unroll 16
  for (int64_t p = 0; p < TILE; p++) _mm512_storeu_si512(tile + p * STEP, pairs(x, stride, row + 2 * p, end));
}

// A tile of b from 16 rows of x, which become its columns, and 32 columns.
static inline void pack_columns(const uint16_t* x, int64_t stride, uint16_t* tile) {
  __m512i r[TILE];
#pragma GCC unroll 16
  for (int64_t p = 0; p < TILE; p++) r[p] = _mm512_loadu_si512(x + p * stride);
  store_transposed(r, tile, STEP);
}

// A tile of a from 32 rows of x and 16 of its columns, which become its rows.
static inline void transpose_tile(const uint16_t* x, int64_t stride, int64_t row, int64_t end, uint16_t* to, int64_t to_stride) {
  __m512i r[TILE];
#pragma GCC unroll 16
  for (int64_t p = 0; p < TILE; p++) r[p] = pairs(x, stride, row + 2 * p, end);
  store_transposed(r, to, to_stride);
}

// sums (32 x 32, rows `sums_stride` apart) = or += two rows of tiles of a by two columns of tiles of b. Tiles of one row
// of a are `a_step` apart, its rows `a_stride`, its rows of tiles `a_next`; columns of tiles of b `b_next`.
static inline void add_block(const uint16_t* a, int64_t a_stride, int64_t a_step, int64_t a_next, const uint16_t* b,
                             int64_t b_next, int64_t steps, float* sums, int64_t sums_stride, bool begins) {
  float* const lower = sums + TILE * sums_stride;
  asm volatile("" ::: "memory");  // g++ does not know that tiles are read from memory
  if (begins) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, sums_stride * 4);
    _tile_loadd(1, sums + TILE, sums_stride * 4);
    _tile_loadd(2, lower, sums_stride * 4);
    _tile_loadd(3, lower + TILE, sums_stride * 4);
  }
  for (int64_t step = 0; step < steps; step++) {
    _tile_loadd(4, a + step * a_step, a_stride * 2);
    _tile_loadd(5, a + a_next + step * a_step, a_stride * 2);
    _tile_loadd(6, b + step * PACKED, 64);
    _tile_loadd(7, b + b_next + step * PACKED, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, sums_stride * 4);
  _tile_stored(1, sums + TILE, sums_stride * 4);
  _tile_stored(2, lower, sums_stride * 4);
  _tile_stored(3, lower + TILE, sums_stride * 4);
}

// c (rows, columns) = a (rows, 32 · steps), in rows `a_stride` apart, times packed b; rows and columns are multiples of 32.
static inline void multiply(const uint16_t* a, int64_t a_stride, const uint16_t* b, int64_t steps, float* c, int64_t rows,
                            int64_t columns) {
  for (int64_t i = 0; i < rows; i += BLOCK)
    for (int64_t j = 0; j < columns; j += BLOCK)
      add_block(a + i * a_stride, a_stride, STEP, TILE * a_stride, b + j / TILE * steps * PACKED, steps * PACKED, steps,
                c + i * columns + j, columns, true);
}
#endif
