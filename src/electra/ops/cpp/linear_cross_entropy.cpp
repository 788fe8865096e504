// Cross-entropy of logits and a sample from their softmax, row by row, and the gradient of the logits:
//   lse = log Σ exp(logits),  loss = lse - logits[gold],  d_logits = (softmax(logits) - onehot(gold)) * d_loss
// T is float or uint16_t (bf16).

#include <cmath>
#include <limits>
#include <vector>

#include "vector.h"

constexpr int64_t BLOCK = 128;  // vocabulary entries that sampling sums together
typedef std::integral_constant<int64_t, BLOCK> Block;

// Inverse CDF: the index at `draw` in (0, 1) of the cumulative weights, at most the last index with any weight.
static int64_t pick(const float* weights, int64_t count, float draw) {
  float total = 0.0f, end = 0.0f;
  int64_t last = 0, below = 0;
  for (int64_t i = 0; i < count; i++) {
    total += weights[i];
    last = weights[i] > 0.0f ? i : last;
  }
  const float target = draw * total;
  for (; below < last; below++) {
    end += weights[below];
    if (end > target) break;
  }
  return below;
}

// A number strictly inside (0, 1) from random bits, as `rng.uniform`.
static float uniform(uint32_t bits) { return ((float)(bits >> 9) + 0.5f) * (1.0f / (1 << 23)); }

template <class T>
static void cross_entropy(const T* logits,       // (M, V)
                          const int64_t* gold,   // (M,)
                          const uint32_t* keys,  // (M,) of sampling; null: no samples
                          float* loss,           // out (M,)
                          float* lse,            // out (M,), for backward
                          int64_t* sampled,      // out (M,)
                          int64_t rows, int64_t vocab, int threads) {
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> totals(vocab / BLOCK);
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
      const T* __restrict x = logits + row * vocab;
      float max = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : max)
      for (int64_t i = 0; i < vocab; i++) max = to_float(x[i]) > max ? to_float(x[i]) : max;
      float total = 0.0f;
      for (int64_t block = 0; block < vocab / BLOCK; block++) {
        const T* __restrict some = x + block * BLOCK;
        totals[block] = sum_row(Block(), [=](int64_t i) { return exp_nonpositive(to_float(some[i]) - max); });
        total += totals[block];
      }
      lse[row] = max + std::log(total);
      loss[row] = lse[row] - to_float(x[gold[row]]);
      if (keys) {
        const int64_t block = pick(totals.data(), vocab / BLOCK, uniform(hash(keys[row] ^ hash(0))));
        float weights[BLOCK];
        for (int64_t i = 0; i < BLOCK; i++) weights[i] = exp_nonpositive(to_float(x[block * BLOCK + i]) - max);
        sampled[row] = block * BLOCK + pick(weights, BLOCK, uniform(hash(keys[row] ^ hash(1))));
      }
    }
  }
}

template <class T>
static void cross_entropy_backward(const T* logits,      // (M, V)
                                   const int64_t* gold,  // (M,)
                                   const float* lse,     // (M,)
                                   const float* d_loss,  // (M,)
                                   T* d_logits,          // out (M, V)
                                   int64_t rows, int64_t vocab, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; row++) {
    const T* __restrict x = logits + row * vocab;
    T* __restrict to = d_logits + row * vocab;
    const float row_lse = lse[row], gradient = d_loss[row];
    for (int64_t i = 0; i < vocab; i++) to[i] = round_to<T>(exp_nonpositive(to_float(x[i]) - row_lse) * gradient);
    to[gold[row]] = round_to<T>(std::expm1(to_float(x[gold[row]]) - row_lse) * gradient);
  }
}

#define CROSS_ENTROPY(DTYPE, T)                                                                                        \
  extern "C" void cross_entropy_##DTYPE(const T* logits, const int64_t* gold, const uint32_t* keys, float* loss,       \
                                        float* lse, int64_t* sampled, int64_t rows, int64_t vocab, int64_t threads) {  \
    cross_entropy(logits, gold, keys, loss, lse, sampled, rows, vocab, (int)threads);                                  \
  }                                                                                                                    \
  extern "C" void cross_entropy_backward_##DTYPE(const T* logits, const int64_t* gold, const float* lse,               \
                                                 const float* d_loss, T* d_logits, int64_t rows, int64_t vocab,        \
                                                 int64_t threads) {                                                    \
    cross_entropy_backward(logits, gold, lse, d_loss, d_logits, rows, vocab, (int)threads);                            \
  }
CROSS_ENTROPY(float32, float)
CROSS_ENTROPY(bfloat16, uint16_t)
