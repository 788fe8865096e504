// What the loops share: numbers of two kinds, an exponential, and the random words of `rng`, bit for bit.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

static inline uint32_t bits_of(float x) {
  uint32_t word;
  memcpy(&word, &x, 4);
  return word;
}

static inline float with_bits(uint32_t word) {
  float x;
  memcpy(&x, &word, 4);
  return x;
}

static inline float wide(float x) { return x; }
static inline float wide(uint16_t x) { return with_bits((uint32_t)x << 16); }  // bf16

template <class T>
static inline T narrow(float x);

template <>
inline float narrow<float>(float x) {
  return x;
}

// Rounded to the nearest, ties to even; what is not a number stays none.
template <>
inline uint16_t narrow<uint16_t>(float x) {
  const uint32_t word = bits_of(x);
  return x != x ? (uint16_t)0x7fc0 : (uint16_t)((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

static inline float minus(float x) { return -x; }
static inline uint16_t minus(uint16_t x) { return x ^ 0x8000; }

// e to the power of a number that is not positive, to 2 units in the last place; 0 below e^-87, where the smallest
// normal numbers end. A polynomial on one side of half a power of two (Cephes).
static inline float exp_below(float x) {
  const float c = x < -87.0f ? -87.0f : x;
  const float shifted = c * 1.44269504f + 12582912.0f;  // its last bits are the whole power of two
  const float power = shifted - 12582912.0f;
  const float r = c - power * 0.693359375f + power * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  p *= with_bits((bits_of(shifted) << 23) + 0x3f800000u);
  return x < -87.0f ? 0.0f : p;
}

static inline uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  return x ^ (x >> 16);
}

// How one place in the network drops: a key a text, the mixed indices of the pairs of a row. No keys: nothing is dropped.
struct Chance {
  const uint32_t* keys;
  const uint32_t* indices;
  int64_t threshold;
  float grow;

  // What the elements of a row are multiplied by: `grow` or 0. Multiplied rather than left out: without a branch, and
  // what is not finite is not hidden.
  template <class Width>
  __attribute__((always_inline)) void factors(int64_t text, int64_t row, Width width, float* __restrict to) const {
    if (!keys) {
      for (int64_t i = 0; i < width; i++) to[i] = 1.0f;
      return;
    }
    constexpr int64_t PAIRS = 128;  // at a time, on the stack
    const uint32_t word = mix(keys[text] ^ mix((uint32_t)row));
    const int32_t least = (int32_t)threshold;
    const float factor = grow;  // of its own, lest it be thought to change with `to`
    for (int64_t first = 0; first < width; first += 2 * PAIRS) {
      const int64_t count = width - first < 2 * PAIRS ? width - first : 2 * PAIRS;
      uint32_t words[PAIRS];
      uint16_t halves[2 * PAIRS];
      for (int64_t i = 0; i < (count + 1) / 2; i++) words[i] = mix(word ^ indices[first / 2 + i]);
      memcpy(halves, words, sizeof(words));  // the low half first, as on every machine that torch runs on
      for (int64_t i = 0; i < count; i++) to[first + i] = halves[i] >= least ? factor : 0.0f;
    }
  }
};

// Rows that a loop takes through its stages side by side: the next stage of a row needs the sum that the last one ends
// with, and while it is added up the processor is at work on the others.
constexpr int64_t TOGETHER = 4;

// Two sums over a row, of what `add` adds to them at each place. Left to itself g++ ends a sum of sixteen lanes with
// sixteen additions one after another, which takes as long as a short row: here they are folded in halves.
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

// Sums over rows are taken block by block and then over blocks, so that the number of threads does not move them.
constexpr int64_t MOST_BLOCKS = 64;

static inline int64_t rows_of_block(int64_t rows) {
  const int64_t even = (rows + MOST_BLOCKS - 1) / MOST_BLOCKS;
  return even < 16 ? 16 : even;
}

// The sum of `count` lines of `width` numbers, in order.
template <class T>
static void sum_lines(const float* __restrict lines, int64_t count, int64_t stride, int64_t width, T* __restrict to) {
  constexpr int64_t COLUMNS = 256;
  for (int64_t first = 0; first < width; first += COLUMNS) {
    const int64_t columns = width - first < COLUMNS ? width - first : COLUMNS;
    float total[COLUMNS] = {};
    for (int64_t line = 0; line < count; line++)
      for (int64_t i = 0; i < columns; i++) total[i] += lines[line * stride + first + i];
    for (int64_t i = 0; i < columns; i++) to[first + i] = narrow<T>(total[i]);
  }
}

// Calls `work` with the width, as a constant where it is one of the usual: short rows then have no loops' ends to tidy.
template <class Work>
static inline void with_width(int64_t width, Work work) {
  switch (width) {
    case 64: return work(std::integral_constant<int64_t, 64>());
    case 128: return work(std::integral_constant<int64_t, 128>());
    case 256: return work(std::integral_constant<int64_t, 256>());
    default: return work(width);
  }
}
