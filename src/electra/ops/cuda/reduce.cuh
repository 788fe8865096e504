// Reductions over accumulator fragments of mma.sync and wgmma. Thread `lane` of a warp holds c[n][0..1] = columns
// 8 n + 2 (lane % 4) + (0..1) of row lane / 4, and c[n][2..3] = the same columns of the row 8 further.

#include "ptx.cuh"

#define LOG2_E 1.4426950408889634f  // exp(x) = exp2(x * LOG2_E)

template <int N>
DEVICE void zero(float (&c)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
}
// The sum over the four threads that share a row.
DEVICE float quad_sum(float x) {
  x += shuffle_xor(x, 1);
  return x + shuffle_xor(x, 2);
}
// The larger of `max` and the row's elements, for each of a thread's two rows.
template <int N>
DEVICE void row_max(float max[2], const float (&c)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) max[i / 2] = fmaxf(max[i / 2], c[n][i]);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    max[i] = fmaxf(max[i], shuffle_xor(max[i], 1));
    max[i] = fmaxf(max[i], shuffle_xor(max[i], 2));
  }
}
DEVICE uint4 pack_bf16x8(const float (&x)[8]) {
  return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}
template <int N>
DEVICE void unpack_bf16(float (&x)[2 * N], const u32* pairs) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    x[2 * i] = bf16_low(pairs[i]);
    x[2 * i + 1] = bf16_high(pairs[i]);
  }
}

// Sums over a warp's 16 rows of 8 N columns; thread `lane` gets those of the columns `reduced_column<N>(0 .. N / 4 - 1)`.
// In each of three steps a thread sends half of its columns to another and adds what it receives of the half it keeps.
template <int N>
DEVICE void reduce_columns(float (&totals)[N / 4], const float (&c)[N][4], int lane) {
  float v[2 * N];
#pragma unroll
  for (int n = 0; n < N; n++) {
    v[2 * n] = c[n][0] + c[n][2];
    v[2 * n + 1] = c[n][1] + c[n][3];
  }
#pragma unroll
  for (int step = 0; step < 3; step++) {
    const int half = N >> step, lanes = 16 >> step;
    bool upper = lane & lanes;
#pragma unroll
    for (int i = 0; i < N; i++) {
      if (i >= half) continue;  // a constant bound unrolls, and v stays in registers
      float sent = upper ? v[i] : v[i + half];
      float own = upper ? v[i + half] : v[i];
      v[i] = own + shuffle_xor(sent, lanes);
    }
  }
#pragma unroll
  for (int i = 0; i < N / 4; i++) totals[i] = v[i];
}
template <int N>
DEVICE int reduced_column(int i, int lane) {
#pragma unroll
  for (int step = 0; step < 3; step++) i += (lane & (16 >> step)) ? N >> step : 0;  // each step has decided one bit
  return i / 2 * 8 + (lane & 3) * 2 + i % 2;
}
// The same into `sums` (8 N,) in shared memory.
template <int N>
DEVICE void column_sums(const float (&c)[N][4], float* sums, int lane) {
  float totals[N / 4];
  reduce_columns(totals, c, lane);
#pragma unroll
  for (int i = 0; i < N / 4; i++) sums[reduced_column<N>(i, lane)] = totals[i];
}
