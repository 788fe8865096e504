// What ends half a layer, in one pass each way: a product's bias, dropout, the residual sum and its norm.

#include <cmath>
#include <vector>

#include "numbers.h"

// `kept` gets the sum and `facts` its mean and inverse deviation, row by row, for the way back; both or none.
template <class T, class Width>
static void norm(const T* x, const T* product, const T* bias, const float* scale, const float* shift, T* y, T* kept,
                 float* facts, Chance chance, float eps, int64_t texts, int64_t rows, Width width, int threads) {
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> lines((TOGETHER + 1) * width);
    float* const __restrict factor = lines.data() + TOGETHER * width;
    std::vector<T> spare(width);
    float means[TOGETHER], inverses[TOGETHER];
#pragma omp for schedule(static) collapse(2)
    for (int64_t text = 0; text < texts; text++)
      for (int64_t first = 0; first < rows; first += TOGETHER) {
        const int64_t some = rows - first < TOGETHER ? rows - first : TOGETHER;
        for (int64_t one = 0; one < some; one++) {
          const int64_t line = text * rows + first + one;
          const T* __restrict from = x + line * width;
          const T* __restrict branch = product + line * width;
          const T* __restrict added = bias;
          T* __restrict keep = kept ? kept + line * width : spare.data();
          float* __restrict sum = lines.data() + one * width;
          chance.factors(text, first + one, width, factor);
          // Rounded once, to what the way back will read; mean and deviation are of the rounded numbers.
          means[one] = sum_row(width, [=](int64_t i) {
            keep[i] = narrow<T>(wide(from[i]) + (wide(branch[i]) + wide(added[i])) * factor[i]);
            return sum[i] = wide(keep[i]);
          }) / (float)width;
        }
        for (int64_t one = 0; one < some; one++) {
          const float* __restrict sum = lines.data() + one * width;
          const float mean = means[one];
          const float squares = sum_row(width, [=](int64_t i) { return (sum[i] - mean) * (sum[i] - mean); });
          inverses[one] = 1.0f / std::sqrt(squares / (float)width + eps);
        }
        for (int64_t one = 0; one < some; one++) {
          const int64_t line = text * rows + first + one;
          const float* __restrict sum = lines.data() + one * width;
          const float mean = means[one], inverse = inverses[one];
          T* __restrict to = y + line * width;
          for (int64_t i = 0; i < width; i++) to[i] = narrow<T>((sum[i] - mean) * inverse * scale[i] + shift[i]);
          if (kept) {
            facts[2 * line] = mean;
            facts[2 * line + 1] = inverse;
          }
        }
      }
  }
}

// `dx` and `d_product` may be the same array where nothing is dropped.
template <class T, class Width>
static void norm_back(const T* gradient, const T* kept, const float* facts, const float* scale, T* dx, T* d_product,
                      T* d_bias, float* d_scale, float* d_shift, Chance chance, int64_t texts, int64_t rows,
                      Width width, int threads) {
  const int64_t count = texts * rows, block = rows_of_block(count), blocks = (count + block - 1) / block;
  std::vector<float> sums(blocks * 3 * width);
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> lines(3 * width);
    float* const __restrict factor = lines.data();
    float* const __restrict grown = lines.data() + width;
    float* const __restrict normal = lines.data() + 2 * width;
#pragma omp for schedule(static)
    for (int64_t part = 0; part < blocks; part++) {
      float* const __restrict of_bias = sums.data() + part * 3 * width;
      float* const __restrict of_scale = of_bias + width;
      float* const __restrict of_shift = of_scale + width;
      for (int64_t line = part * block; line < count && line < (part + 1) * block; line++) {
        const T* __restrict g = gradient + line * width;
        const T* __restrict s = kept + line * width;
        const float mean = facts[2 * line], inverse = facts[2 * line + 1];
        float total, along;
        sum_row(width, total, along, [=](int64_t i, float& sum, float& product) {
          const float back = wide(g[i]), even = (wide(s[i]) - mean) * inverse, large = back * scale[i];
          sum += large;
          product += large * even;
          normal[i] = even;
          grown[i] = large;
          of_scale[i] += back * even;
          of_shift[i] += back;
        });
        total /= (float)width;
        along /= (float)width;
        chance.factors(line / rows, line % rows, width, factor);
        T* const to = dx + line * width;
        T* const to_product = d_product + line * width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
          const float back = (grown[i] - total - normal[i] * along) * inverse, branch = back * factor[i];
          to[i] = narrow<T>(back);
          to_product[i] = narrow<T>(branch);
          of_bias[i] += branch;
        }
      }
    }
  }
  sum_lines(sums.data(), blocks, 3 * width, width, d_bias);
  sum_lines(sums.data() + width, blocks, 3 * width, width, d_scale);
  sum_lines(sums.data() + 2 * width, blocks, 3 * width, width, d_shift);
}

#define NORM(KIND, T)                                                                                                 \
  extern "C" void norm_##KIND(const T* x, const T* product, const T* bias, const float* scale, const float* shift,   \
                              T* y, T* kept, float* facts, const uint32_t* keys, const uint32_t* indices,            \
                              int64_t threshold, float grow, float eps, int64_t texts, int64_t rows, int64_t width,  \
                              int64_t threads) {                                                                      \
    with_width(width, [=](auto known) {                                                                               \
      norm(x, product, bias, scale, shift, y, kept, facts, Chance{keys, indices, threshold, grow}, eps, texts, rows,  \
           known, (int)threads);                                                                                      \
    });                                                                                                               \
  }                                                                                                                   \
  extern "C" void norm_back_##KIND(const T* gradient, const T* kept, const float* facts, const float* scale, T* dx,  \
                                   T* d_product, T* d_bias, float* d_scale, float* d_shift, const uint32_t* keys,    \
                                   const uint32_t* indices, int64_t threshold, float grow, int64_t texts,            \
                                   int64_t rows, int64_t width, int64_t threads) {                                    \
    with_width(width, [=](auto known) {                                                                               \
      norm_back(gradient, kept, facts, scale, dx, d_product, d_bias, d_scale, d_shift,                                \
                Chance{keys, indices, threshold, grow}, texts, rows, known, (int)threads);                            \
    });                                                                                                               \
  }
NORM(float32, float)
NORM(bfloat16, uint16_t)
