// Dropout in one pass: random words drawn and spent row by row.

#include <vector>

#include "numbers.h"

template <class T>
static void drop(const T* x, T* y, Chance chance, int64_t texts, int64_t rows, int64_t width, int threads) {
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> factors(width);
    float* const __restrict factor = factors.data();
#pragma omp for schedule(static)
    for (int64_t line = 0; line < texts * rows; line++) {
      const T* __restrict from = x + line * width;
      T* __restrict to = y + line * width;
      chance.factors(line / rows, line % rows, width, factor);
      for (int64_t i = 0; i < width; i++) to[i] = narrow<T>(wide(from[i]) * factor[i]);
    }
  }
}

#define DROP(NAME, T)                                                                                        \
  extern "C" void NAME(const T* x, T* y, const uint32_t* keys, const uint32_t* indices, int64_t threshold, \
                       float grow, int64_t texts, int64_t rows, int64_t width, int64_t threads) {           \
    drop(x, y, Chance{keys, indices, threshold, grow}, texts, rows, width, (int)threads);                   \
  }
DROP(drop_float32, float)
DROP(drop_bfloat16, uint16_t)
