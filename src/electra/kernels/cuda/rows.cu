// What single rows and columns are made of, whoever holds them.

INLINE float sum_quad(float x) {
  x += swap(x, 1);
  return x + swap(x, 2);
}

// The normal distribution's cumulative function to 2e-5, and the GELU's derivative to 2e-4; see kernels/gelu.py.
INLINE float phi(float x) {
  float s = fminf(x * x, 18.0625f), a = 4.76076019e-11f * s - 4.69411265e-09f;
  a = a * s + 2.04881886e-07f;
  a = a * s - 5.26668873e-06f;
  a = a * s + 8.98211219e-05f;
  a = a * s - 0.00108791597f;
  a = a * s + 0.00975214504f;
  a = a * s - 0.0662540495f;
  a = a * s + 0.398864508f;
  return __saturatef(x * a + 0.5f);
}
INLINE float gelu_slope(float x) {
  float c = fminf(fmaxf(x, -4.25f), 4.25f), s = c * c, a = 3.55245433e-09f - 3.42676061e-11f * s;
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

// The sums over 16 rows of 8 N columns, into a line of shared memory.
template <int N>
INLINE void put_sums(const float (&c)[N][4], float* line, int lane) {
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
      if (i >= half) continue;  // so that everything unrolls, and stays in registers
      float sent = upper ? v[i] : v[i + half];
      float stays = upper ? v[i + half] : v[i];
      v[i] = stays + swap(sent, lanes);
    }
  }
  // Each step has decided one bit of which of the 2 N a thread is left with.
  int first = 0;
#pragma unroll
  for (int step = 0; step < 3; step++) first += (lane & (16 >> step)) ? N >> step : 0;
#pragma unroll
  for (int i = 0; i < N / 4; i++) line[(first + i) / 2 * 8 + (lane & 3) * 2 + (first + i) % 2] = v[i];
}
