// Dropout in one pass: the random words of `rng`, bit for bit, drawn and spent row by row.

#include <cstdint>
#include <cstring>

static inline uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  return x ^ (x >> 16);
}

static inline float times(float x, float factor) { return x * factor; }

// bf16, rounded to the nearest, ties to even; what is not a number stays none.
static inline uint16_t times(uint16_t x, float factor) {
  uint32_t word = (uint32_t)x << 16;
  float y;
  memcpy(&y, &word, 4);
  y *= factor;
  memcpy(&word, &y, 4);
  return y != y ? (uint16_t)0x7fc0 : (uint16_t)((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

constexpr int64_t PAIRS = 128;  // at a time, on the stack

template <class T>
static void drop(const T* __restrict x, T* __restrict y, const uint32_t* keys, const uint32_t* indices, int64_t texts,
                 int64_t rows, int64_t width, int32_t threshold, float grow, int threads) {
#pragma omp parallel for num_threads(threads)
  for (int64_t line = 0; line < texts * rows; line++) {
    const uint32_t word = mix(keys[line / rows] ^ mix((uint32_t)(line % rows)));
    const T* __restrict from = x + line * width;
    T* __restrict to = y + line * width;
    for (int64_t first = 0; first < width; first += 2 * PAIRS) {
      const int64_t count = width - first < 2 * PAIRS ? width - first : 2 * PAIRS;
      uint32_t words[PAIRS];
      uint16_t halves[2 * PAIRS];
      for (int64_t i = 0; i < (count + 1) / 2; i++) words[i] = mix(word ^ indices[first / 2 + i]);
      memcpy(halves, words, sizeof(words));  // the low half first, as on every machine that torch runs on
      // Multiplied by nothing rather than left out: without a branch, and what is not finite is not hidden.
      for (int64_t i = 0; i < count; i++) to[first + i] = times(from[first + i], halves[i] >= threshold ? grow : 0.0f);
    }
  }
}

extern "C" void drop_float32(const float* x, float* y, const uint32_t* keys, const uint32_t* indices, int64_t texts,
                             int64_t rows, int64_t width, int32_t threshold, float grow, int threads) {
  drop(x, y, keys, indices, texts, rows, width, threshold, grow, threads);
}

extern "C" void drop_bfloat16(const uint16_t* x, uint16_t* y, const uint32_t* keys, const uint32_t* indices,
                              int64_t texts, int64_t rows, int64_t width, int32_t threshold, float grow, int threads) {
  drop(x, y, keys, indices, texts, rows, width, threshold, grow, threads);
}
