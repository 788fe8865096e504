// Attention around its batched products q kᵀ and p v: the layout of heads, and scaling, bias, softmax and dropout of the
// scores, each in one pass. T is float or uint16_t (bf16).

#include <limits>
#include <vector>

#include "vector.h"

template <class T, class Size>
static void split_heads(const T* x,     // (B, L, parts, N, size)
                        const T* bias,  // (parts, N, size), or null
                        T* y,           // out (parts, B, N, L, size): x + bias
                        int64_t parts, int64_t sequences, int64_t heads, int64_t length, Size size, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) collapse(2)
  for (int64_t sequence = 0; sequence < sequences; sequence++)
    for (int64_t token = 0; token < length; token++) {
      const T* __restrict from = x + (sequence * length + token) * parts * heads * size;
      const T* __restrict added = bias;
      for (int64_t part = 0; part < parts; part++)
        for (int64_t head = 0; head < heads; head++) {
          T* __restrict to = y + (((part * sequences + sequence) * heads + head) * length + token) * size;
          if (!added) {
            memcpy(to, from, size * sizeof(T));
          } else {
            for (int64_t i = 0; i < size; i++) to[i] = round_to<T>(to_float(from[i]) + to_float(added[i]));
            added += size;
          }
          from += size;
        }
    }
}

// The inverse of `split_heads`, without the bias.
template <class T, class Size>
static void merge_heads(const T* x,  // (parts, B, N, L, size)
                        T* y,        // out (B, L, parts, N, size)
                        T* sums,     // out (parts, N, size): over all tokens; or null
                        int64_t parts, int64_t sequences, int64_t heads, int64_t length, Size size, int threads) {
  const int64_t width = parts * heads * size, count = sequences * length, block = rows_per_block(count);
  const int64_t blocks = (count + block - 1) / block;
  std::vector<float> partial_sums(sums ? blocks * width : 0);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t number = 0; number < blocks; number++) {
    for (int64_t row = number * block; row < count && row < (number + 1) * block; row++) {
      const int64_t sequence = row / length, token = row % length;
      for (int64_t chunk = 0; chunk < parts * heads; chunk++) {
        const int64_t part = chunk / heads, head = chunk % heads;
        const T* __restrict from = x + (((part * sequences + sequence) * heads + head) * length + token) * size;
        T* __restrict to = y + row * width + chunk * size;
        memcpy(to, from, size * sizeof(T));
        if (sums) {
          float* __restrict sum = partial_sums.data() + number * width + chunk * size;
          for (int64_t i = 0; i < size; i++) sum[i] += to_float(from[i]);
        }
      }
    }
  }
  if (sums) sum_partials(partial_sums.data(), blocks, width, width, sums);
}

// scores = dropout(softmax(scores * scale + bias)), in place.
template <class T, class Length>
static void softmax_dropout(T* scores,             // in and out (B, N, L, L)
                            T* probabilities,      // out (B, N, L, L): before dropout, negative where dropped
                            const T* bias,         // of a sequence and row, L of them; or null
                            int64_t sequence_stride, int64_t row_stride,  // of the bias
                            Dropout dropout, float scale, int64_t sequences, int64_t heads, Length length, int threads) {
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> buffer((ROWS_TOGETHER + 1) * length);
    float* const __restrict scored = buffer.data();
    float* const __restrict factor = buffer.data() + ROWS_TOGETHER * length;
    float maxima[ROWS_TOGETHER], totals[ROWS_TOGETHER];
#pragma omp for schedule(static) collapse(2)
    for (int64_t matrix = 0; matrix < sequences * heads; matrix++)
      for (int64_t first = 0; first < length; first += ROWS_TOGETHER) {
        const int64_t sequence = matrix / heads, some = length - first < ROWS_TOGETHER ? length - first : ROWS_TOGETHER;
        for (int64_t one = 0; one < some; one++) {
          const T* __restrict from = scores + (matrix * length + first + one) * length;
          float* __restrict score = scored + one * length;
          float max = -std::numeric_limits<float>::infinity();
          if (bias) {
            const T* __restrict added = bias + sequence * sequence_stride + (first + one) * row_stride;
#pragma omp simd reduction(max : max)
            for (int64_t i = 0; i < length; i++) {
              score[i] = to_float(from[i]) * scale + to_float(added[i]);
              max = score[i] > max ? score[i] : max;
            }
          } else {
#pragma omp simd reduction(max : max)
            for (int64_t i = 0; i < length; i++) {
              score[i] = to_float(from[i]) * scale;
              max = score[i] > max ? score[i] : max;
            }
          }
          maxima[one] = max;
        }
        for (int64_t one = 0; one < some; one++) {
          float* __restrict score = scored + one * length;
          const float max = maxima[one];
          totals[one] = sum_row(length, [=](int64_t i) { return score[i] = exp_nonpositive(score[i] - max); });
        }
        for (int64_t one = 0; one < some; one++) {
          const int64_t row = matrix * length + first + one;
          const float* __restrict score = scored + one * length;
          const float inverse = 1.0f / totals[one];
          dropout.factors(sequence, row - sequence * heads * length, length, factor);
          T* __restrict to = scores + row * length;
          T* __restrict saved = probabilities + row * length;
#pragma omp simd
          for (int64_t i = 0; i < length; i++) {
            const T p = round_to<T>(score[i] * inverse);
            saved[i] = factor[i] > 0.0f ? p : negated(p);
            to[i] = round_to<T>(to_float(p) * factor[i]);
          }
        }
      }
  }
}

template <class T, class Length>
static void softmax_dropout_backward(T* gradient,             // in and out (rows, L): of dropout's output; of the scores
                                     const T* probabilities,  // (rows, L): before dropout, negative where dropped
                                     T* dropped,              // out (rows, L): after dropout, again
                                     float dropout_scale, float scale, int64_t rows, Length length, int threads) {
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> buffer(2 * ROWS_TOGETHER * length);
    float dots[ROWS_TOGETHER];
#pragma omp for schedule(static)
    for (int64_t first = 0; first < rows; first += ROWS_TOGETHER) {
      const int64_t some = rows - first < ROWS_TOGETHER ? rows - first : ROWS_TOGETHER;
      for (int64_t one = 0; one < some; one++) {
        const T* __restrict g = gradient + (first + one) * length;
        const T* __restrict from = probabilities + (first + one) * length;
        T* __restrict to = dropped + (first + one) * length;
        float* __restrict p = buffer.data() + 2 * one * length;
        float* __restrict dp = p + length;
        dots[one] = sum_row(length, [=](int64_t i) {
          const float saved = to_float(from[i]), factor = saved < 0.0f ? 0.0f : dropout_scale;
          p[i] = saved < 0.0f ? -saved : saved;
          dp[i] = to_float(g[i]) * factor;
          to[i] = round_to<T>(p[i] * factor);
          return p[i] * dp[i];
        });
      }
      for (int64_t one = 0; one < some; one++) {
        T* __restrict g = gradient + (first + one) * length;
        const float* __restrict p = buffer.data() + 2 * one * length;
        const float* __restrict dp = p + length;
        const float dot = dots[one];
        for (int64_t i = 0; i < length; i++) g[i] = round_to<T>(p[i] * (dp[i] - dot) * scale);
      }
    }
  }
}

#define ATTENTION(DTYPE, T)                                                                                            \
  extern "C" void split_heads_##DTYPE(const T* x, const T* bias, T* y, int64_t parts, int64_t sequences,               \
                                      int64_t heads, int64_t length, int64_t size, int64_t threads) {                  \
    with_width(size, [=](auto known) {                                                                                 \
      split_heads(x, bias, y, parts, sequences, heads, length, known, (int)threads);                                   \
    });                                                                                                                \
  }                                                                                                                    \
  extern "C" void merge_heads_##DTYPE(const T* x, T* y, T* sums, int64_t parts, int64_t sequences, int64_t heads,      \
                                      int64_t length, int64_t size, int64_t threads) {                                 \
    with_width(size, [=](auto known) {                                                                                 \
      merge_heads(x, y, sums, parts, sequences, heads, length, known, (int)threads);                                   \
    });                                                                                                                \
  }                                                                                                                    \
  extern "C" void softmax_dropout_##DTYPE(                                                                             \
      T* scores, T* probabilities, const T* bias, int64_t sequence_stride, int64_t row_stride, const uint32_t* keys,   \
      const uint32_t* column_bits, int64_t threshold, float dropout_scale, float scale, int64_t sequences,             \
      int64_t heads, int64_t length, int64_t threads) {                                                                \
    with_width(length, [=](auto known) {                                                                               \
      softmax_dropout(scores, probabilities, bias, sequence_stride, row_stride,                                        \
                      Dropout{keys, column_bits, threshold, dropout_scale}, scale, sequences, heads, known,            \
                      (int)threads);                                                                                   \
    });                                                                                                                \
  }                                                                                                                    \
  extern "C" void softmax_dropout_backward_##DTYPE(T* gradient, const T* probabilities, T* dropped,                    \
                                                   float dropout_scale, float scale, int64_t rows, int64_t length,     \
                                                   int64_t threads) {                                                  \
    with_width(length, [=](auto known) {                                                                               \
      softmax_dropout_backward(gradient, probabilities, dropped, dropout_scale, scale, rows, known, (int)threads);     \
    });                                                                                                                \
  }
ATTENTION(float32, float)
ATTENTION(bfloat16, uint16_t)
