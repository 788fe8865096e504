// A product's bias and the GELU after it, in one pass each way.

#include <vector>

#include "numbers.h"

// exp(-x²/2) and the normal distribution's cumulative function, to 2e-7 (Abramowitz and Stegun 7.1.26). The exponential
// need not be exact far out, where it is small: a power of two, and a polynomial for the rest of its logarithm.
static inline float phi(float x, float& bell) {
  const float size = x < 0.0f ? -x : x, near = size > 13.0f ? 13.0f : size;
  const float power = near * near * -0.72134752f, shifted = power + 12582912.0f;
  const float rest = power - (shifted - 12582912.0f);
  bell = 0.00134004f;
  bell = bell * rest + 0.00967604f;
  bell = bell * rest + 0.05550327f;
  bell = bell * rest + 0.24022107f;
  bell = bell * rest + 0.69314721f;
  bell = bell * rest + 1.00000008f;
  bell *= with_bits((bits_of(shifted) << 23) + 0x3f800000u);
  const float t = 1.0f / (1.0f + 0.2316418882663604f * near);
  float tail = 0.5307027145f;
  tail = tail * t - 0.7265760135f;
  tail = tail * t + 0.7107068705f;
  tail = tail * t - 0.142248368f;
  tail = tail * t + 0.127414796f;
  tail *= t * bell;
  return x < 0.0f ? tail : 1.0f - tail;
}

// Where the polynomials below hold: further out both functions are as good as flat.
static inline float between(float x) {
  const float least = x < -4.25f ? -4.25f : x;
  return least > 4.25f ? 4.25f : least;
}

template <class T>
struct Gelu;

template <>
struct Gelu<float> {
  static inline float of(float x) {
    float bell;
    return x * phi(x, bell);
  }
  static inline float slope(float x) {
    float bell;
    const float share = phi(x, bell);
    return share + x * bell * 0.3989422804014327f;
  }
};

// For what is rounded to 16 bits anyway, the polynomials of `kernels.gelu`: to 2e-5, the slope to 2e-4.
template <>
struct Gelu<uint16_t> {
  static inline float of(float x) {
    const float c = between(x), s = c * c;
    float a = 4.76076019e-11f * s - 4.69411265e-09f;
    a = a * s + 2.04881886e-07f;
    a = a * s - 5.26668873e-06f;
    a = a * s + 8.98211219e-05f;
    a = a * s - 0.00108791597f;
    a = a * s + 0.00975214504f;
    a = a * s - 0.0662540495f;
    a = a * s + 0.398864508f;
    return x * (c * a + 0.5f);
  }
  static inline float slope(float x) {
    const float c = between(x), s = c * c;
    float a = 3.55245433e-09f - 3.42676061e-11f * s;
    a = a * s - 1.6349081e-07f;
    a = a * s + 4.43265799e-06f;
    a = a * s - 7.93626823e-05f;
    a = a * s + 0.000996547053f;
    a = a * s - 0.0090404544f;
    a = a * s + 0.0590925328f;
    a = a * s - 0.265392601f;
    a = a * s + 0.797756433f;
    return c * a + 0.5f;
  }
};

template <class T>
static void gelu(const T* product, const T* bias, T* y, int64_t rows, int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; row++) {
    const T* __restrict from = product + row * width;
    const T* __restrict added = bias;
    T* __restrict to = y + row * width;
    for (int64_t i = 0; i < width; i++) to[i] = narrow<T>(Gelu<T>::of(wide(from[i]) + wide(added[i])));
  }
}

template <class T>
static void gelu_back(const T* gradient, const T* product, const T* bias, T* found, T* d_bias, int64_t rows,
                      int64_t width, int threads) {
  const int64_t block = rows_of_block(rows), blocks = (rows + block - 1) / block;
  std::vector<float> sums(blocks * width);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t part = 0; part < blocks; part++) {
    float* __restrict line = sums.data() + part * width;
    for (int64_t row = part * block; row < rows && row < (part + 1) * block; row++) {
      const T* __restrict g = gradient + row * width;
      const T* __restrict from = product + row * width;
      const T* __restrict added = bias;
      T* __restrict to = found + row * width;
      for (int64_t i = 0; i < width; i++) {
        const float back = wide(g[i]) * Gelu<T>::slope(wide(from[i]) + wide(added[i]));
        to[i] = narrow<T>(back);
        line[i] += back;
      }
    }
  }
  sum_lines(sums.data(), blocks, width, width, d_bias);
}

#define GELU(KIND, T)                                                                                                 \
  extern "C" void gelu_##KIND(const T* product, const T* bias, T* y, int64_t rows, int64_t width, int64_t threads) { \
    gelu(product, bias, y, rows, width, (int)threads);                                                                \
  }                                                                                                                   \
  extern "C" void gelu_back_##KIND(const T* gradient, const T* product, const T* bias, T* found, T* d_bias,          \
                                   int64_t rows, int64_t width, int64_t threads) {                                    \
    gelu_back(gradient, product, bias, found, d_bias, rows, width, (int)threads);                                     \
  }
GELU(float32, float)
GELU(bfloat16, uint16_t)
