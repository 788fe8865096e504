// Attention around its batched products q kᵀ and p v: the layout of heads, and scaling, bias, softmax and dropout of the
// scores, each in one pass. T is float or uint16_t (bf16).

#include <vector>

#include "softmax.h"

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

// scores = dropout(softmax(scores * scale + mask)), in place.
template <class T, class Length>
static void softmax_dropout(T* scores,             // in and out (B, N, L, L)
                            T* probabilities,      // out (B, N, L, L): before dropout, negative where dropped
                            const T* mask,         // of a sequence and row, L of them; or null
                            int64_t sequence_stride, int64_t row_stride,  // of the mask
                            Dropout dropout, float scale, int64_t sequences, int64_t heads, Length length, int threads) {
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> buffer((ROWS_TOGETHER + 1) * length);
#pragma omp for schedule(static) collapse(2)
    for (int64_t matrix = 0; matrix < sequences * heads; matrix++)
      for (int64_t first = 0; first < length; first += ROWS_TOGETHER) {
        const int64_t sequence = matrix / heads, some = length - first < ROWS_TOGETHER ? length - first : ROWS_TOGETHER;
        const T* added = mask ? mask + sequence * sequence_stride + first * row_stride : nullptr;
        const int64_t row = matrix * length + first;
        softmax_rows(scores + row * length, length, scores + row * length, length, probabilities + row * length, added,
                     row_stride, dropout, scale, sequence, row - sequence * heads * length, some, length, buffer.data());
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
#pragma omp for schedule(static)
    for (int64_t first = 0; first < rows; first += ROWS_TOGETHER) {
      const int64_t some = rows - first < ROWS_TOGETHER ? rows - first : ROWS_TOGETHER, at = first * length;
      softmax_rows_backward(gradient + at, length, probabilities + at, gradient + at, dropped + at, length, dropout_scale,
                            scale, some, length, buffer.data());
    }
  }
}

#define SOFTMAX_DROPOUT(DTYPE, T)                                                                                            \
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
      T* scores, T* probabilities, const T* mask, int64_t sequence_stride, int64_t row_stride, const uint32_t* keys,   \
      const uint32_t* column_bits, int64_t threshold, float dropout_scale, float scale, int64_t sequences,             \
      int64_t heads, int64_t length, int64_t threads) {                                                                \
    with_width(length, [=](auto known) {                                                                               \
      softmax_dropout(scores, probabilities, mask, sequence_stride, row_stride,                                        \
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
SOFTMAX_DROPOUT(float32, float)
SOFTMAX_DROPOUT(bfloat16, uint16_t)
