// y = dropout(x) in one pass: random bits are drawn and used row by row. T is float or uint16_t (bf16).

#include <vector>

#include "vector.h"

template <class T>
static void drop(const T* x,  // (B, rows, width)
                 T* y,        // out, same shape
                 Dropout dropout, int64_t sequences, int64_t rows, int64_t width, int threads) {
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> factors(width);
    float* const __restrict factor = factors.data();
#pragma omp for schedule(static)
    for (int64_t row = 0; row < sequences * rows; row++) {
      const T* __restrict from = x + row * width;
      T* __restrict to = y + row * width;
      dropout.factors(row / rows, row % rows, width, factor);
      for (int64_t i = 0; i < width; i++) to[i] = round_to<T>(to_float(from[i]) * factor[i]);
    }
  }
}

#define DROPOUT(DTYPE, T)                                                                                              \
  extern "C" void dropout_##DTYPE(const T* x, T* y, const uint32_t* keys, const uint32_t* column_bits,                 \
                                  int64_t threshold, float scale, int64_t sequences, int64_t rows, int64_t width,      \
                                  int64_t threads) {                                                                   \
    drop(x, y, Dropout{keys, column_bits, threshold, scale}, sequences, rows, width, (int)threads);                    \
  }
DROPOUT(float32, float)
DROPOUT(bfloat16, uint16_t)
