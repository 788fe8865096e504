// The way back through a norm, the sum under it and a branch's dropout, for width 256.
//
// A warp takes two rows at a time, eight columns a lane. Many more are on their way to the chip meanwhile, and a lane reads
// just what it fetched itself: no warp waits for another. It adds up its rows' gradients in registers; at the end a block
// adds up its warps', in an order that never changes.

#define WIDTH 256
#define ROWS 2   // of a warp at a time
#define AHEAD 4  // times as many are fetched ahead
#define BYTES (WIDTH * 2)
#define PLACE (ROWS * 2 * BYTES)  // for rows of gradients and of what was normed
#define KNOWN (32 / ROWS)
#ifndef WARPS
#define WARPS 16
#endif

// Of four numbers the sums over a warp's lanes: in two steps lanes part, by two bits of their number, with all but one.
INLINE void sum_four(float (&x)[4], int lane) {
#pragma unroll
  for (int step = 0; step < 2; step++) {
    const int half = 2 >> step, lanes = 16 >> step;
    bool upper = lane & lanes;
#pragma unroll
    for (int i = 0; i < half; i++) {
      float sent = upper ? x[i] : x[i + half];
      x[i] = (upper ? x[i + half] : x[i]) + swap(sent, lanes);
    }
  }
#pragma unroll
  for (int lanes = 4; lanes > 0; lanes /= 2) x[0] += swap(x[0], lanes);
#pragma unroll
  for (int i = 3; i >= 0; i--) x[i] = shown(x[0], i * 8);
}

KERNEL(WARPS * 32, 1)
norm_backward(const u16* gradient, u16* summed, u16* branch, float* lines, const float* mean, const float* rstd,
              const float* gamma, const int* keys, int site, int tokens, int length, int threshold, float grow) {
  SHARED(memory);
  int lane = threadIdx.x & 31, warp = shown((int)threadIdx.x / 32, 0);
  int first = (warp * gridDim.x + blockIdx.x) * ROWS, step = gridDim.x * WARPS * ROWS;
  char* own = memory + warp * AHEAD * PLACE;
  long here = (long)first * WIDTH + lane * 8, further = (long)step * WIDTH;
  auto ask = [&](int row, int turn, long from) {
    u32 to = place_of(own) + turn % AHEAD * PLACE + lane * 16;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      fetch(to + r * 2 * BYTES, gradient + from + r * WIDTH, row + r < tokens);
      fetch(to + r * 2 * BYTES + BYTES, summed + from + r * WIDTH, row + r < tokens);
    }
    mark();
  };
  after_others();
#pragma unroll
  for (int i = 0; i < AHEAD; i++) ask(first + i * step, i, here + i * further);

  u32 mixed[4];
  float scale[8], d_gamma[8] = {}, d_beta[8] = {}, d_bias[8] = {};
#pragma unroll
  for (int i = 0; i < 8; i++) scale[i] = gamma[lane * 8 + i];
#pragma unroll
  for (int i = 0; i < 4; i++) mixed[i] = anew(column_word(lane * 4 + i));
  u32 least = anew(keys ? threshold << 16 : 0);
  if (!keys) grow = 1;
  float own_mean = 0, own_rstd = 0;
  u32 own_word = 0;
#pragma unroll 1
  for (int row = first, turn = 0; row < tokens; row += step, here += further, turn++) {
    if (turn % KNOWN == 0) {  // each lane gets to know one of the warp's next rows
      int one = row + lane / ROWS * step + lane % ROWS;
      u32 text = (u32)one / (u32)length, key = keys && one < tokens ? (u32)keys[text] : 0;
      own_mean = one < tokens ? mean[one] : 0;
      own_rstd = one < tokens ? rstd[one] : 0;
      own_word = row_word(key, (u32)site, one - text * length);
    }
    fetched_but<AHEAD - 1>();
    float c[ROWS][8], h[ROWS][8], sums[2 * ROWS], inverse[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const char* read = own + turn % AHEAD * PLACE + r * 2 * BYTES + lane * 16;
      uint4 x = *(const uint4*)read, y = *(const uint4*)(read + BYTES);
      u32 given[4] = {x.x, x.y, x.z, x.w}, normed[4] = {y.x, y.y, y.z, y.w};
      float level = shown(own_mean, turn % KNOWN * ROWS + r);
      inverse[r] = shown(own_rstd, turn % KNOWN * ROWS + r);
      widen<4>(h[r], given);
      widen<4>(c[r], normed);
      sums[2 * r] = sums[2 * r + 1] = 0;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        c[r][i] -= level;
        d_beta[i] += h[r][i];
        h[r][i] *= inverse[r];
        d_gamma[i] += h[r][i] * c[r][i];
        h[r][i] *= scale[i];
        sums[2 * r] += h[r][i];
        sums[2 * r + 1] += h[r][i] * c[r][i];
      }
    }
    __syncwarp();  // all is read
    ask(row + AHEAD * step, turn, here + AHEAD * further);
    sum_four(sums, lane);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float level = sums[2 * r] * (-1.0f / WIDTH), slope = sums[2 * r + 1] * (-1.0f / WIDTH) * inverse[r] * inverse[r];
#pragma unroll
      for (int i = 0; i < 8; i++) h[r][i] = c[r][i] * slope + (h[r][i] + level);
      put16(summed + here + r * WIDTH, round_eight(h[r]), row + r < tokens);
      u32 word = shown(own_word, turn % KNOWN * ROWS + r);
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        u32 w = stir(word ^ mixed[i / 2]);
        h[r][i] *= first_stays(w, least) ? grow : 0;
        h[r][i + 1] *= second_stays(w, least) ? grow : 0;
        d_bias[i] += h[r][i];
        d_bias[i + 1] += h[r][i + 1];
      }
      put16(branch + here + r * WIDTH, round_eight(h[r]), row + r < tokens);
    }
  }

  fetched();  // the zeros past the end, where sums are put now
  __syncwarp();
  auto leave = [&](const float(&x)[8], int line) {
    float4* to = (float4*)own + line * WIDTH / 4 + lane;  // a lane's halves apart, so that no eight lanes meet in a bank
    to[0] = make_float4(x[0], x[1], x[2], x[3]);
    to[32] = make_float4(x[4], x[5], x[6], x[7]);
  };
  leave(d_gamma, 0);
  leave(d_beta, 1);
  leave(d_bias, 2);
  __syncthreads();
  for (int i = threadIdx.x; i < 3 * WIDTH / 2; i += WARPS * 32) {
    float2 total = make_float2(0, 0);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      float2 x = ((const float2*)(memory + w * AHEAD * PLACE))[i];
      total.x += x.x;
      total.y += x.y;
    }
    int column = i % 64 / 2 * 8 + i / 64 % 2 * 4 + i % 2 * 2;
    *(float2*)(lines + (long)blockIdx.x * 3 * WIDTH + i / 128 * WIDTH + column) = total;
  }
}
