// Shared by the C++ ops: bf16 and fp32 numbers, an exponential, the random bits of `rng` bit for bit, and row sums that
// g++ vectorises. OpenMP runs rows in parallel; results do not depend on the number of threads.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

static inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

static inline float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

static inline float to_float(float x) { return x; }
static inline float to_float(uint16_t x) { return float_of((uint32_t)x << 16); }  // bf16

template <class T>
static inline T round_to(float x);

template <>
inline float round_to<float>(float x) {
  return x;
}

// To the nearest bf16, ties to even; NaN stays NaN.
template <>
inline uint16_t round_to<uint16_t>(float x) {
  const uint32_t bits = bits_of(x);
  return x != x ? (uint16_t)0x7fc0 : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline float negated(float x) { return -x; }
static inline uint16_t negated(uint16_t x) { return x ^ 0x8000; }

// exp(x) for x <= 0, to 2 units in the last place; 0 below -87, where normal numbers end. Cephes: a power of two times a
// polynomial of the remainder.
static inline float exp_nonpositive(float x) {
  const float c = x < -87.0f ? -87.0f : x;
  const float shifted = c * 1.44269504f + 12582912.0f;  // its last bits are the integer power of two
  const float power = shifted - 12582912.0f;
  const float r = c - power * 0.693359375f + power * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  p *= float_of((bits_of(shifted) << 23) + 0x3f800000u);
  return x < -87.0f ? 0.0f : p;
}

static inline uint32_t hash(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  return x ^ (x >> 16);
}

// Dropout at one call site. Null keys: nothing is dropped.
struct Dropout {
  const uint32_t* keys;         // (B,)
  const uint32_t* column_bits;  // (width / 2,) hashed indices of the pairs of a row
  int64_t threshold;            // drop probability * 65536
  float scale;                  // 1 / keep probability

  // Fills `to` (width,) with the factors of a row: `scale` or 0. Factors rather than a mask: without a branch, and NaN and
  // infinity are not hidden.
  template <class Width>
  __attribute__((always_inline)) void factors(int64_t sequence, int64_t row, Width width, float* __restrict to) const {
    if (!keys) {
      for (int64_t i = 0; i < width; i++) to[i] = 1.0f;
      return;
    }
    constexpr int64_t PAIRS = 128;  // at a time, on the stack
    const uint32_t row_bits = hash(keys[sequence] ^ hash((uint32_t)row));
    const int32_t least = (int32_t)threshold;
    const float factor = scale;  // a copy, which `to` cannot alias
    for (int64_t first = 0; first < width; first += 2 * PAIRS) {
      const int64_t count = width - first < 2 * PAIRS ? width - first : 2 * PAIRS;
      uint32_t bits[PAIRS];
      uint16_t halves[2 * PAIRS];
      for (int64_t i = 0; i < (count + 1) / 2; i++) bits[i] = hash(row_bits ^ column_bits[first / 2 + i]);
      memcpy(halves, bits, sizeof(bits));  // the low half first, as on every machine that torch runs on
      for (int64_t i = 0; i < count; i++) to[first + i] = halves[i] >= least ? factor : 0.0f;
    }
  }
};

// Rows that a loop takes through its stages together: a row's next stage needs the sum that its last one ends with, and
// while that is reduced the processor works on the other rows.
constexpr int64_t ROWS_TOGETHER = 4;

// Two sums over a row, of what `add` adds at each column. g++ alone ends a sum of sixteen lanes with sixteen dependent
// additions, which take as long as a short row; here they are reduced in halves.
template <class Width, class Add>
static inline void sum_row(Width width, float& one, float& other, Add add) {
#ifdef __AVX512F__
  constexpr int64_t LANES = 32;  // of 16 bits, in one register
  float ones[LANES] = {}, others[LANES] = {};
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES)
#pragma omp simd
    for (int64_t lane = 0; lane < LANES; lane++) add(i + lane, ones[lane], others[lane]);
#pragma omp simd
  for (int64_t lane = 0; lane < width - i; lane++) add(i + lane, ones[lane], others[lane]);
  one = _mm512_reduce_add_ps(_mm512_loadu_ps(ones) + _mm512_loadu_ps(ones + LANES / 2));
  other = _mm512_reduce_add_ps(_mm512_loadu_ps(others) + _mm512_loadu_ps(others + LANES / 2));
#else
  float first = 0.0f, second = 0.0f;
#pragma omp simd reduction(+ : first, second)
  for (int64_t i = 0; i < width; i++) add(i, first, second);
  one = first;
  other = second;
#endif
}

// One sum over a row of what `term` gives.
template <class Width, class Term>
static inline float sum_row(Width width, Term term) {
  float total, none;
  sum_row(width, total, none, [=](int64_t i, float& sum, float&) { sum += term(i); });
  return total;
}

// Sums over rows are taken block by block and then over blocks, so that the number of threads does not change them.
constexpr int64_t MOST_BLOCKS = 64;

static inline int64_t rows_per_block(int64_t rows) {
  const int64_t even = (rows + MOST_BLOCKS - 1) / MOST_BLOCKS;
  return even < 16 ? 16 : even;
}

// The sum of `count` rows of partial sums, in order.
template <class T>
static void sum_partials(const float* __restrict partials, int64_t count, int64_t stride, int64_t width, T* __restrict to) {
  constexpr int64_t COLUMNS = 256;
  for (int64_t first = 0; first < width; first += COLUMNS) {
    const int64_t columns = width - first < COLUMNS ? width - first : COLUMNS;
    float total[COLUMNS] = {};
    for (int64_t row = 0; row < count; row++)
      for (int64_t i = 0; i < columns; i++) total[i] += partials[row * stride + first + i];
    for (int64_t i = 0; i < columns; i++) to[first + i] = round_to<T>(total[i]);
  }
}

// Calls `work` with the width, as a constant where it is a usual one: short rows then have no remainder loops.
template <class Work>
static inline void with_width(int64_t width, Work work) {
  switch (width) {
    case 64: return work(std::integral_constant<int64_t, 64>());
    case 128: return work(std::integral_constant<int64_t, 128>());
    case 256: return work(std::integral_constant<int64_t, 256>());
    default: return work(width);
  }
}
