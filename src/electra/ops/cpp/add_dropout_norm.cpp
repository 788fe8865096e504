// y = (s - mean) * rstd * gamma + beta with s = x + dropout(product + bias), in one pass; backward in one pass, too.
// T is float or uint16_t (bf16).

#include <cmath>
#include <vector>

#include "vector.h"

template <class T, class Width>
static void add_dropout_norm(const T* x,          // (B, rows, width)
                             const T* product,    // (B, rows, width)
                             const T* bias,       // (width,)
                             const float* gamma,  // (width,)
                             const float* beta,   // (width,)
                             T* y,                // out (B, rows, width)
                             T* residual_sum,     // out (B, rows, width): s, for backward; or null
                             float* stats,        // out (B, rows, 2): mean and rstd; or null
                             Dropout dropout, float eps, int64_t sequences, int64_t rows, Width width, int threads) {
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> buffer((ROWS_TOGETHER + 1) * width);
    float* const __restrict factor = buffer.data() + ROWS_TOGETHER * width;
    std::vector<T> spare(width);
    float means[ROWS_TOGETHER], rstds[ROWS_TOGETHER];
#pragma omp for schedule(static) collapse(2)
    for (int64_t sequence = 0; sequence < sequences; sequence++)
      for (int64_t first = 0; first < rows; first += ROWS_TOGETHER) {
        const int64_t some = rows - first < ROWS_TOGETHER ? rows - first : ROWS_TOGETHER;
        for (int64_t one = 0; one < some; one++) {
          const int64_t row = sequence * rows + first + one;
          const T* __restrict from = x + row * width;
          const T* __restrict branch = product + row * width;
          const T* __restrict added = bias;
          T* __restrict rounded = residual_sum ? residual_sum + row * width : spare.data();
          float* __restrict sum = buffer.data() + one * width;
          dropout.factors(sequence, first + one, width, factor);
          // Rounded once, to what backward reads; mean and rstd are of the rounded sum.
          means[one] = sum_row(width, [=](int64_t i) {
            rounded[i] = round_to<T>(to_float(from[i]) + (to_float(branch[i]) + to_float(added[i])) * factor[i]);
            return sum[i] = to_float(rounded[i]);
          }) / (float)width;
        }
        for (int64_t one = 0; one < some; one++) {
          const float* __restrict sum = buffer.data() + one * width;
          const float mean = means[one];
          const float squares = sum_row(width, [=](int64_t i) { return (sum[i] - mean) * (sum[i] - mean); });
          rstds[one] = 1.0f / std::sqrt(squares / (float)width + eps);
        }
        for (int64_t one = 0; one < some; one++) {
          const int64_t row = sequence * rows + first + one;
          const float* __restrict sum = buffer.data() + one * width;
          const float mean = means[one], rstd = rstds[one];
          T* __restrict to = y + row * width;
          for (int64_t i = 0; i < width; i++) to[i] = round_to<T>((sum[i] - mean) * rstd * gamma[i] + beta[i]);
          if (residual_sum) {
            stats[2 * row] = mean;
            stats[2 * row + 1] = rstd;
          }
        }
      }
  }
}

template <class T, class Width>
static void add_dropout_norm_backward(const T* dy,            // (B, rows, width)
                                      const T* residual_sum,  // (B, rows, width)
                                      const float* stats,     // (B, rows, 2): mean and rstd
                                      const float* gamma,     // (width,)
                                      T* dx,                  // out (B, rows, width)
                                      T* d_product,           // out (B, rows, width); dx itself without dropout
                                      T* d_bias,              // out (width,)
                                      float* d_gamma,         // out (width,)
                                      float* d_beta,          // out (width,)
                                      Dropout dropout, int64_t sequences, int64_t rows, Width width, int threads) {
  const int64_t count = sequences * rows, block = rows_per_block(count), blocks = (count + block - 1) / block;
  std::vector<float> partial_sums(blocks * 3 * width);
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> buffer(3 * width);
    float* const __restrict factor = buffer.data();
    float* const __restrict scaled = buffer.data() + width;  // dy * gamma
    float* const __restrict normed = buffer.data() + 2 * width;
#pragma omp for schedule(static)
    for (int64_t part = 0; part < blocks; part++) {
      float* const __restrict bias_sums = partial_sums.data() + part * 3 * width;
      float* const __restrict gamma_sums = bias_sums + width;
      float* const __restrict beta_sums = gamma_sums + width;
      for (int64_t row = part * block; row < count && row < (part + 1) * block; row++) {
        const T* __restrict g = dy + row * width;
        const T* __restrict s = residual_sum + row * width;
        const float mean = stats[2 * row], rstd = stats[2 * row + 1];
        float total, dot;
        sum_row(width, total, dot, [=](int64_t i, float& sum, float& product) {
          const float gradient = to_float(g[i]), value = (to_float(s[i]) - mean) * rstd, large = gradient * gamma[i];
          sum += large;
          product += large * value;
          normed[i] = value;
          scaled[i] = large;
          gamma_sums[i] += gradient * value;
          beta_sums[i] += gradient;
        });
        total /= (float)width;
        dot /= (float)width;
        dropout.factors(row / rows, row % rows, width, factor);
        T* const to = dx + row * width;
        T* const to_product = d_product + row * width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
          const float gradient = (scaled[i] - total - normed[i] * dot) * rstd, branch = gradient * factor[i];
          to[i] = round_to<T>(gradient);
          to_product[i] = round_to<T>(branch);
          bias_sums[i] += branch;
        }
      }
    }
  }
  sum_partials(partial_sums.data(), blocks, 3 * width, width, d_bias);
  sum_partials(partial_sums.data() + width, blocks, 3 * width, width, d_gamma);
  sum_partials(partial_sums.data() + 2 * width, blocks, 3 * width, width, d_beta);
}

#define ADD_DROPOUT_NORM(DTYPE, T)                                                                                     \
  extern "C" void add_dropout_norm_##DTYPE(                                                                            \
      const T* x, const T* product, const T* bias, const float* gamma, const float* beta, T* y, T* residual_sum,       \
      float* stats, const uint32_t* keys, const uint32_t* column_bits, int64_t threshold, float scale, float eps,      \
      int64_t sequences, int64_t rows, int64_t width, int64_t threads) {                                               \
    with_width(width, [=](auto known) {                                                                                \
      add_dropout_norm(x, product, bias, gamma, beta, y, residual_sum, stats,                                          \
                       Dropout{keys, column_bits, threshold, scale}, eps, sequences, rows, known, (int)threads);       \
    });                                                                                                                \
  }                                                                                                                    \
  extern "C" void add_dropout_norm_backward_##DTYPE(                                                                   \
      const T* dy, const T* residual_sum, const float* stats, const float* gamma, T* dx, T* d_product, T* d_bias,      \
      float* d_gamma, float* d_beta, const uint32_t* keys, const uint32_t* column_bits, int64_t threshold,             \
      float scale, int64_t sequences, int64_t rows, int64_t width, int64_t threads) {                                  \
    with_width(width, [=](auto known) {                                                                                \
      add_dropout_norm_backward(dy, residual_sum, stats, gamma, dx, d_product, d_bias, d_gamma, d_beta,                \
                                Dropout{keys, column_bits, threshold, scale}, sequences, rows, known, (int)threads);   \
    });                                                                                                                \
  }
ADD_DROPOUT_NORM(float32, float)
ADD_DROPOUT_NORM(bfloat16, uint16_t)
