// A distribution over the vocabulary: the loss of the right entry and a sample, row by row, and the way back.

#include <cmath>
#include <limits>
#include <vector>

#include "numbers.h"

constexpr int64_t BLOCK = 128;  // entries that sampling sums up together
typedef std::integral_constant<int64_t, BLOCK> Block;

// The index that a uniform draw falls on when the weights are laid end to end: the last with any weight at the most.
static int64_t pick(const float* weights, int64_t count, float draw) {
  float total = 0.0f, end = 0.0f;
  int64_t last = 0, below = 0;
  for (int64_t i = 0; i < count; i++) {
    total += weights[i];
    last = weights[i] > 0.0f ? i : last;
  }
  const float place = draw * total;
  for (; below < last; below++) {
    end += weights[below];
    if (end > place) break;
  }
  return below;
}

// A number strictly inside (0, 1) from a random word, as `rng.uniform`.
static float uniform(uint32_t word) { return ((float)(word >> 9) + 0.5f) * (1.0f / (1 << 23)); }

// `level` gets the logarithm of each row's sum of exponentials, for the way back. No keys: nothing is drawn.
template <class T>
static void judge(const T* logits, const int64_t* gold, const uint32_t* keys, float* loss, float* level,
                  int64_t* sampled, int64_t rows, int64_t size, int threads) {
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> totals(size / BLOCK);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
      const T* __restrict x = logits + row * size;
      float top = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : top)
      for (int64_t i = 0; i < size; i++) top = wide(x[i]) > top ? wide(x[i]) : top;
      float total = 0.0f;
      for (int64_t block = 0; block < size / BLOCK; block++) {
        const T* __restrict some = x + block * BLOCK;
        totals[block] = sum_row(Block(), [=](int64_t i) { return exp_below(wide(some[i]) - top); });
        total += totals[block];
      }
      level[row] = top + std::log(total);
      loss[row] = level[row] - wide(x[gold[row]]);
      if (keys) {
        const int64_t block = pick(totals.data(), size / BLOCK, uniform(mix(keys[row] ^ mix(0))));
        float weights[BLOCK];
        for (int64_t i = 0; i < BLOCK; i++) weights[i] = exp_below(wide(x[block * BLOCK + i]) - top);
        sampled[row] = block * BLOCK + pick(weights, BLOCK, uniform(mix(keys[row] ^ mix(1))));
      }
    }
  }
}

template <class T>
static void judge_back(const T* logits, const int64_t* gold, const float* level, const float* gradient, T* found,
                       int64_t rows, int64_t size, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; row++) {
    const T* __restrict x = logits + row * size;
    T* __restrict to = found + row * size;
    const float middle = level[row], back = gradient[row];
    for (int64_t i = 0; i < size; i++) to[i] = narrow<T>(exp_below(wide(x[i]) - middle) * back);
    to[gold[row]] = narrow<T>(std::expm1(wide(x[gold[row]]) - middle) * back);
  }
}

#define VOCABULARY(KIND, T)                                                                                       \
  extern "C" void judge_##KIND(const T* logits, const int64_t* gold, const uint32_t* keys, float* loss,          \
                               float* level, int64_t* sampled, int64_t rows, int64_t size, int64_t threads) {     \
    judge(logits, gold, keys, loss, level, sampled, rows, size, (int)threads);                                    \
  }                                                                                                               \
  extern "C" void judge_back_##KIND(const T* logits, const int64_t* gold, const float* level,                    \
                                    const float* gradient, T* found, int64_t rows, int64_t size,                 \
                                    int64_t threads) {                                                            \
    judge_back(logits, gold, level, gradient, found, rows, size, (int)threads);                                   \
  }
VOCABULARY(float32, float)
VOCABULARY(bfloat16, uint16_t)
