// What single rows and columns are made of, whoever holds them.

#define LOG2_E 1.4426950408889634f  // makes powers of two of those of e

template <int N>
INLINE void clear(float (&c)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
}
INLINE float sum_quad(float x) {
  x += swap(x, 1);
  return x + swap(x, 2);
}

// Each of a thread's two rows' `top`, or what is higher in c, with the row's other three threads.
template <int N>
INLINE void raise(float top[2], const float (&c)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) top[i / 2] = fmaxf(top[i / 2], c[n][i]);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    top[i] = fmaxf(top[i], swap(top[i], 1));
    top[i] = fmaxf(top[i], swap(top[i], 2));
  }
}

// Of each number the sum over a warp's lanes.
template <int N>
INLINE void sum_warp(float (&x)[N]) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2)
#pragma unroll
    for (int i = 0; i < N; i++) x[i] += swap(x[i], lanes);
}
INLINE uint4 round_eight(const float (&x)[8]) {
  return make_uint4(pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7]));
}

// The normal distribution's cumulative function to 2e-5, and the GELU's derivative to 2e-4, of several numbers side by
// side: each is a chain, in which one step waits for the one before. Both are made of squares, no further than 4.25, and
// those are the same. See kernels/gelu.py.
template <int N>
INLINE void phi(float (&y)[N], const float (&x)[N], const float (&s)[N]) {
  const float of[] = {-4.69411265e-09f, 2.04881886e-07f, -5.26668873e-06f, 8.98211219e-05f,
                      -0.00108791597f,  0.00975214504f,  -0.0662540495f,   0.398864508f};
#pragma unroll
  for (int i = 0; i < N; i++) y[i] = 4.76076019e-11f;
#pragma unroll
  for (int k = 0; k < 8; k++)
#pragma unroll
    for (int i = 0; i < N; i++) y[i] = y[i] * s[i] + of[k];
#pragma unroll
  for (int i = 0; i < N; i++) y[i] = __saturatef(x[i] * y[i] + 0.5f);
}
template <int N>
INLINE void phi(float (&y)[N], const float (&x)[N]) {
  float s[N];
#pragma unroll
  for (int i = 0; i < N; i++) s[i] = fminf(x[i] * x[i], 18.0625f);
  phi(y, x, s);
}
template <int N>
INLINE void gelu_slope(float (&y)[N], float (&s)[N], const float (&x)[N]) {
  const float of[] = {3.55245433e-09f, -1.6349081e-07f, 4.43265799e-06f, -7.93626823e-05f, 0.000996547053f,
                      -0.0090404544f,  0.0590925328f,   -0.265392601f,   0.797756433f};
  float c[N];
#pragma unroll
  for (int i = 0; i < N; i++) {
    c[i] = fminf(fmaxf(x[i], -4.25f), 4.25f);
    s[i] = c[i] * c[i];
    y[i] = -3.42676061e-11f;
  }
#pragma unroll
  for (int k = 0; k < 9; k++)
#pragma unroll
    for (int i = 0; i < N; i++) y[i] = y[i] * s[i] + of[k];
#pragma unroll
  for (int i = 0; i < N; i++) y[i] = c[i] * y[i] + 0.5f;
}
template <int N>
INLINE void widen(float (&x)[2 * N], const u32* pairs) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    x[2 * i] = low_of(pairs[i]);
    x[2 * i + 1] = high_of(pairs[i]);
  }
}
// What the GELU makes of N pairs, in their place; and as many gradients on their way back through it.
template <int N>
INLINE void gelu_pairs(u32* pairs) {
  float x[2 * N], y[2 * N];
  widen<N>(x, pairs);
  phi(y, x);
#pragma unroll
  for (int i = 0; i < N; i++) pairs[i] = pack(x[2 * i] * y[2 * i], x[2 * i + 1] * y[2 * i + 1]);
}
template <int N>
INLINE void gelu_pairs_back(float* gradients, const u32* pairs) {
  float x[2 * N], y[2 * N], s[2 * N];
  widen<N>(x, pairs);
  gelu_slope(y, s, x);
#pragma unroll
  for (int i = 0; i < 2 * N; i++) gradients[i] *= y[i];
}
// Both at once, for the gradients that belong to the pairs.
template <int N>
INLINE void gelu_pairs_both(float* gradients, u32* pairs) {
  float x[2 * N], y[2 * N], s[2 * N];
  widen<N>(x, pairs);
  gelu_slope(y, s, x);
#pragma unroll
  for (int i = 0; i < 2 * N; i++) gradients[i] *= y[i];
  phi(y, x, s);
#pragma unroll
  for (int i = 0; i < N; i++) pairs[i] = pack(x[2 * i] * y[2 * i], x[2 * i + 1] * y[2 * i + 1]);
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
