// act = gelu(product + bias) in one pass; backward gives d_product and its sums over rows, d_bias. T is float or uint16_t
// (bf16).

#include <vector>

#include "vector.h"

// Φ(x), and density = exp(-x²/2), to 2e-7 (Abramowitz and Stegun 7.1.26). The exponential need not be exact where it is
// small: a power of two times a polynomial of the remainder.
static inline float normal_cdf(float x, float& density) {
  const float size = x < 0.0f ? -x : x, near = size > 13.0f ? 13.0f : size;
  const float power = near * near * -0.72134752f, shifted = power + 12582912.0f;
  const float rest = power - (shifted - 12582912.0f);
  density = 0.00134004f;
  density = density * rest + 0.00967604f;
  density = density * rest + 0.05550327f;
  density = density * rest + 0.24022107f;
  density = density * rest + 0.69314721f;
  density = density * rest + 1.00000008f;
  density *= float_of((bits_of(shifted) << 23) + 0x3f800000u);
  const float t = 1.0f / (1.0f + 0.2316418882663604f * near);
  float tail = 0.5307027145f;
  tail = tail * t - 0.7265760135f;
  tail = tail * t + 0.7107068705f;
  tail = tail * t - 0.142248368f;
  tail = tail * t + 0.127414796f;
  tail *= t * density;
  return x < 0.0f ? tail : 1.0f - tail;
}

// To where the polynomials below hold: further out both functions are flat to bf16.
static inline float clamped(float x) {
  const float least = x < -4.25f ? -4.25f : x;
  return least > 4.25f ? 4.25f : least;
}

template <class T>
struct Gelu;

template <>
struct Gelu<float> {
  static inline float of(float x) {
    float density;
    return x * normal_cdf(x, density);
  }
  static inline float derivative(float x) {
    float density;
    const float share = normal_cdf(x, density);
    return share + x * density * 0.3989422804014327f;
  }
};

// For bf16, the polynomials of the Triton op gelu_mlp: Φ to 2e-5, the derivative to 2e-4.
template <>
struct Gelu<uint16_t> {
  static inline float of(float x) {
    const float c = clamped(x), s = c * c;
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
  static inline float derivative(float x) {
    const float c = clamped(x), s = c * c;
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
static void bias_gelu(const T* product,  // (rows, width)
                      const T* bias,     // (width,)
                      T* act,            // out (rows, width)
                      int64_t rows, int64_t width, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t row = 0; row < rows; row++) {
    const T* __restrict from = product + row * width;
    const T* __restrict added = bias;
    T* __restrict to = act + row * width;
    for (int64_t i = 0; i < width; i++) to[i] = round_to<T>(Gelu<T>::of(to_float(from[i]) + to_float(added[i])));
  }
}

template <class T>
static void bias_gelu_backward(const T* d_act,    // (rows, width)
                               const T* product,  // (rows, width)
                               const T* bias,     // (width,)
                               T* d_product,      // out (rows, width)
                               T* d_bias,         // out (width,)
                               int64_t rows, int64_t width, int threads) {
  const int64_t block = rows_per_block(rows), blocks = (rows + block - 1) / block;
  std::vector<float> partial_sums(blocks * width);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t part = 0; part < blocks; part++) {
    float* __restrict sums = partial_sums.data() + part * width;
    for (int64_t row = part * block; row < rows && row < (part + 1) * block; row++) {
      const T* __restrict g = d_act + row * width;
      const T* __restrict from = product + row * width;
      const T* __restrict added = bias;
      T* __restrict to = d_product + row * width;
      for (int64_t i = 0; i < width; i++) {
        const float gradient = to_float(g[i]) * Gelu<T>::derivative(to_float(from[i]) + to_float(added[i]));
        to[i] = round_to<T>(gradient);
        sums[i] += gradient;
      }
    }
  }
  sum_partials(partial_sums.data(), blocks, width, width, d_bias);
}

#define BIAS_GELU(DTYPE, T)                                                                                            \
  extern "C" void bias_gelu_##DTYPE(const T* product, const T* bias, T* act, int64_t rows, int64_t width,              \
                                    int64_t threads) {                                                                 \
    bias_gelu(product, bias, act, rows, width, (int)threads);                                                          \
  }                                                                                                                    \
  extern "C" void bias_gelu_backward_##DTYPE(const T* d_act, const T* product, const T* bias, T* d_product, T* d_bias, \
                                             int64_t rows, int64_t width, int64_t threads) {                           \
    bias_gelu_backward(d_act, product, bias, d_product, d_bias, rows, width, (int)threads);                            \
  }
BIAS_GELU(float32, float)
BIAS_GELU(bfloat16, uint16_t)
