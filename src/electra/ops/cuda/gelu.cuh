// gelu(x) = x Φ(x) and its derivative by polynomials in min(x², 4.25²): Φ to 2e-5, the derivative to 2e-4, which bf16
// does not resolve. Coefficients as in the Triton op gelu_mlp. Several elements at a time: one alone is a dependent
// chain of multiply-adds.

#include "reduce.cuh"

template <int N>
DEVICE void normal_cdf(float (&y)[N], const float (&x)[N], const float (&squares)[N]) {
  const float coefficients[] = {-4.69411265e-09f, 2.04881886e-07f, -5.26668873e-06f, 8.98211219e-05f,
                                -0.00108791597f,  0.00975214504f,  -0.0662540495f,   0.398864508f};
#pragma unroll
  for (int i = 0; i < N; i++) y[i] = 4.76076019e-11f;
#pragma unroll
  for (int k = 0; k < 8; k++)
#pragma unroll
    for (int i = 0; i < N; i++) y[i] = y[i] * squares[i] + coefficients[k];
#pragma unroll
  for (int i = 0; i < N; i++) y[i] = __saturatef(x[i] * y[i] + 0.5f);
}
template <int N>
DEVICE void normal_cdf(float (&y)[N], const float (&x)[N]) {
  float squares[N];
#pragma unroll
  for (int i = 0; i < N; i++) squares[i] = fminf(x[i] * x[i], 18.0625f);
  normal_cdf(y, x, squares);
}
// `squares` is left for `normal_cdf`.
template <int N>
DEVICE void gelu_derivative(float (&y)[N], float (&squares)[N], const float (&x)[N]) {
  const float coefficients[] = {3.55245433e-09f, -1.6349081e-07f, 4.43265799e-06f, -7.93626823e-05f, 0.000996547053f,
                                -0.0090404544f,  0.0590925328f,   -0.265392601f,   0.797756433f};
  float clamped[N];
#pragma unroll
  for (int i = 0; i < N; i++) {
    clamped[i] = fminf(fmaxf(x[i], -4.25f), 4.25f);
    squares[i] = clamped[i] * clamped[i];
    y[i] = -3.42676061e-11f;
  }
#pragma unroll
  for (int k = 0; k < 9; k++)
#pragma unroll
    for (int i = 0; i < N; i++) y[i] = y[i] * squares[i] + coefficients[k];
#pragma unroll
  for (int i = 0; i < N; i++) y[i] = clamped[i] * y[i] + 0.5f;
}

// N pairs of bf16, in place.
template <int N>
DEVICE void gelu_forward(u32* pairs) {
  float x[2 * N], y[2 * N];
  unpack_bf16<N>(x, pairs);
  normal_cdf(y, x);
#pragma unroll
  for (int i = 0; i < N; i++) pairs[i] = pack_bf16(x[2 * i] * y[2 * i], x[2 * i + 1] * y[2 * i + 1]);
}
// Multiplies 2 N gradients by the derivative at `pairs`.
template <int N>
DEVICE void gelu_backward(float* gradients, const u32* pairs) {
  float x[2 * N], y[2 * N], squares[2 * N];
  unpack_bf16<N>(x, pairs);
  gelu_derivative(y, squares, x);
#pragma unroll
  for (int i = 0; i < 2 * N; i++) gradients[i] *= y[i];
}
// Both, sharing the squares.
template <int N>
DEVICE void gelu_forward_backward(float* gradients, u32* pairs) {
  float x[2 * N], y[2 * N], squares[2 * N];
  unpack_bf16<N>(x, pairs);
  gelu_derivative(y, squares, x);
#pragma unroll
  for (int i = 0; i < 2 * N; i++) gradients[i] *= y[i];
  normal_cdf(y, x, squares);
#pragma unroll
  for (int i = 0; i < N; i++) pairs[i] = pack_bf16(x[2 * i] * y[2 * i], x[2 * i + 1] * y[2 * i + 1]);
}
