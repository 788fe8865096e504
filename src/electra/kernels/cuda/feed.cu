// The products into and out of a feed-forward half's inner width, with the GELU beside them, for width 256, on Hopper.
//
// A block is four warps that keep 128 rows of a weight on the chip, the outputs, and have 64 tokens at a time come past;
// two blocks share a multiprocessor, so that one multiplies while the other has its GELU to do. Weight and tokens lie in
// tiles of 64 columns, as `at` turns them about, which is how the product of a warp group wants them.

#define DEEP 256
#define TOKENS 64
#define OUTPUTS 128
#define STRIPE (TOKENS * 128)  // bytes of 64 columns of the tokens
#define WEIGHT (OUTPUTS * 128)

// 64 tokens, zeros past the end.
INLINE void fetch_tokens(char* tiles, const u16* from, int first, int count, int thread) {
#pragma unroll
  for (int i = 0; i < 16; i++) {
    int row = i * 4 + thread / 32, chunk = thread & 31;
    bool there = first + row < count;
    const u16* here = from + (long)(there ? first + row : 0) * DEEP + chunk * 8;
    fetch(place_of(tiles) + chunk / 8 * STRIPE + at(row, chunk & 7), here, there);
  }
}

// c (64 x 128) = tokens times the weight's rows.
INLINE void product(float c[16][4], const char* tokens, const char* weight) {
  Tile a = tile_at(tokens), b = tile_at(weight);
#pragma unroll
  for (int n = 0; n < 16; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
  begin_group(c);
#pragma unroll
  for (int k = 0; k < DEEP / 16; k++)
    multiply_group(c, a + (k / 4 * STRIPE + (k & 3) * 32) / 16, b + (k / 4 * WEIGHT + (k & 3) * 32) / 16, k > 0);
  end_group(c);
}

// A warp's 16 rows of two stripes, 128 columns, to memory; and from there, zeros past the end.
INLINE void put_stripes(const char* stripes, u16* to, int inner, int first, int count, int warp, int lane) {
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 8; i++) {
    int row = warp * 16 + i * 2 + lane / 16, chunk = lane & 15;
    const char* from = stripes + chunk / 8 * STRIPE + at(row, chunk & 7);
    if (first + row < count) *(uint4*)(to + (long)(first + row) * inner + chunk * 8) = *(uint4*)from;
  }
  __syncwarp();
}
INLINE void fetch_stripes(char* stripes, const u16* from, int inner, int first, int count, int warp, int lane) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    int row = warp * 16 + i * 2 + lane / 16, chunk = lane & 15;
    bool there = first + row < count;
    const u16* here = from + (long)(there ? first + row : 0) * inner + chunk * 8;
    fetch(place_of(stripes) + chunk / 8 * STRIPE + at(row, chunk & 7), here, there);
  }
}
// Where a thread's pair of columns lies in them, of eight columns and one of its two rows.
INLINE u32 pair_at(const char* stripes, int n, int i, int warp, int lane) {
  return place_of(stripes) + n / 8 * STRIPE + at(warp * 16 + lane / 4 + 8 * i, n & 7) + (lane & 3) * 4;
}

KERNEL(128, 2)
up_gelu(const u16* given, const u16* weight, const u16* bias, u16* inner, u16* active, int count, int columns,
        int tiles) {
  SHARED(memory);
  char* weights = memory;
  char* tokens = memory + 4 * WEIGHT;
  char* stripes = tokens + 4 * STRIPE;
  int thread = threadIdx.x, lane = thread & 31, warp = thread / 32, n0 = blockIdx.x % tiles * OUTPUTS;
  int line = blockIdx.x / tiles, step = gridDim.x / tiles * TOKENS;
  for (int i = 0; i < 32; i++) {
    int row = i * 4 + thread / 32, chunk = thread & 31;
    fetch(place_of(weights) + chunk / 8 * WEIGHT + at(row, chunk & 7), weight + (long)(n0 + row) * DEEP + chunk * 8, true);
  }
  int first = line * TOKENS;
  u32 biases[16];
#pragma unroll
  for (int n = 0; n < 16; n++) {
    const u16* here = bias + n0 + n * 8 + (lane & 3) * 2;  // at any multiple of two bytes
    biases[n] = here[0] | (u32)here[1] << 16;
  }
  if (first < count) fetch_tokens(tokens, given, first, count, thread);
  for (; first < count; first += step) {
    fetched();
    seen_by_group();
    __syncthreads();
    float c[16][4];
    product(c, tokens, weights);
    __syncthreads();  // all have multiplied
    fetch_tokens(tokens, given, first + step, count, thread);
    u32 pairs[16][2];
#pragma unroll
    for (int n = 0; n < 16; n++) {
      float b0 = low_of(biases[n]), b1 = high_of(biases[n]);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        pairs[n][i] = pack(c[n][2 * i] + b0, c[n][2 * i + 1] + b1);
        write_word(pair_at(stripes, n, i, warp, lane), pairs[n][i]);
      }
    }
    put_stripes(stripes, inner + n0, columns, first, count, warp, lane);
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float low = low_of(pairs[n][i]), high = high_of(pairs[n][i]);
        write_word(pair_at(stripes, n, i, warp, lane), pack(low * phi(low), high * phi(high)));
      }
    put_stripes(stripes, active + n0, columns, first, count, warp, lane);
  }
  fetched();
}

// The weight is (256, columns) here: its columns are turned into rows on the way in, 64 rows of 128 columns at a time,
// by way of two stripes, while the next are on their way into two others.
INLINE void fetch_part(char* stripes, const u16* weight, int k0, int columns, int thread) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    int row = i * 8 + thread / 16, chunk = thread & 15;
    const u16* here = weight + (long)(k0 + row) * columns + chunk * 8;
    fetch(place_of(stripes) + chunk / 8 * STRIPE + at(row, chunk & 7), here, true);
  }
  mark();
}
INLINE void fetch_turned(char* weights, char* stripes, const u16* weight, int columns, int thread) {
  int lane = thread & 31, warp = thread / 32;
  fetch_part(stripes, weight, 0, columns, thread);
#pragma unroll 1
  for (int part = 0; part < DEEP / 64; part++) {
    char* here = stripes + (part & 1) * 2 * STRIPE;
    if (part + 1 < DEEP / 64) {
      fetch_part(stripes + (~part & 1) * 2 * STRIPE, weight, (part + 1) * 64, columns, thread);
      fetched_but_last();
    } else {
      fetched();
    }
    __syncthreads();
    // A warp: 32 of the columns, eight by eight numbers at a time.
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
      for (int n = 0; n < 2; n++) {
        u32 r[4];
        int column = warp * 32 + n * 16;
        read4_turned(r, place_of(here) + column / 64 * STRIPE + at(k * 16 + (lane & 15), (column & 63) / 8 + (lane >> 4)));
        u32 to = place_of(weights) + part * WEIGHT + (lane & 3) * 4;
#pragma unroll
        for (int i = 0; i < 4; i++) write_word(to + at(column + i / 2 * 8 + lane / 4, k * 2 + (i & 1)), r[i]);
      }
    __syncthreads();
  }
}

KERNEL(128, 2)
down_backward(const u16* given, const u16* weight, const u16* inner, u16* d_inner, float* lines, int count, int columns,
              int tiles) {
  SHARED(memory);
  char* weights = memory;
  char* tokens = memory + 4 * WEIGHT;
  char* stripes = tokens + 4 * STRIPE;
  int thread = threadIdx.x, lane = thread & 31, warp = thread / 32, n0 = blockIdx.x % tiles * OUTPUTS;
  int line = blockIdx.x / tiles, step = gridDim.x / tiles * TOKENS;
  fetch_turned(weights, tokens, weight + n0, columns, thread);
  int first = line * TOKENS;
  fetch_tokens(tokens, given, first, count, thread);
  fetch_stripes(stripes, inner + n0, columns, first, count, warp, lane);
  float sums[16][2] = {};
  for (; first < count; first += step) {
    fetched();
    seen_by_group();
    __syncthreads();
    float c[16][4];
    product(c, tokens, weights);
    __syncthreads();  // all have multiplied
    if (first + step < count) fetch_tokens(tokens, given, first + step, count, thread);
    // Tokens past the end have no gradient. What the GELU was given makes room for its gradient.
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        u32 place = pair_at(stripes, n, i, warp, lane), x = read_word(place);
        float low = c[n][2 * i] * gelu_slope(low_of(x)), high = c[n][2 * i + 1] * gelu_slope(high_of(x));
        sums[n][0] += low;
        sums[n][1] += high;
        write_word(place, pack(low, high));
      }
    put_stripes(stripes, d_inner + n0, columns, first, count, warp, lane);
    if (first + step < count) fetch_stripes(stripes, inner + n0, columns, first + step, count, warp, lane);
  }
  __syncthreads();
  float* parts = (float*)stripes;  // of each warp a line
#pragma unroll
  for (int n = 0; n < 16; n++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float total = sums[n][i];
      total += swap(total, 4);
      total += swap(total, 8);
      total += swap(total, 16);
      if (lane < 4) parts[warp * OUTPUTS + n * 8 + lane * 2 + i] = total;
    }
  __syncthreads();
  float total = 0;
  for (int i = 0; i < 4; i++) total += parts[i * OUTPUTS + thread];
  lines[(long)line * columns + n0 + thread] = total;
}
