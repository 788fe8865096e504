// A warp's 16 rows of 64 columns: what layers are made of. A thread holds of each eight columns two neighbours, in rows
// `lane / 4` and eight further.

#define WIDTH 64

// Sixteen rows as what a product is given, from a tile.
INLINE void take_rows(u32 a[4][4], u32 tile, u32 first, int lane) {
#pragma unroll
  for (int h = 0; h < 4; h++) read4(a[h], tile + at(first + (lane & 15), 2 * h + (lane >> 4)));
}

// Numbers rounded to what a product is given.
INLINE void round_rows(u32 a[4][4], const float c[8][4]) {
#pragma unroll
  for (int h = 0; h < 4; h++) {
    a[h][0] = pack(c[2 * h][0], c[2 * h][1]);
    a[h][1] = pack(c[2 * h][2], c[2 * h][3]);
    a[h][2] = pack(c[2 * h + 1][0], c[2 * h + 1][1]);
    a[h][3] = pack(c[2 * h + 1][2], c[2 * h + 1][3]);
  }
}

// c += rows (16 x 64) times a tile's transpose: its rows are the outputs.
INLINE void add_product(float c[8][4], const u32 a[4][4], u32 tile, int lane) {
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      u32 b[4];
      read4(b, tile + at(n * 8 + (lane & 7), h * 4 + (lane >> 3)));
      multiply(c[n], a[2 * h], b[0], b[1]);
      multiply(c[n], a[2 * h + 1], b[2], b[3]);
    }
}

// c += rows (16 x 64) times a tile: its columns are the outputs.
INLINE void add_product_turned(float c[8][4], const u32 a[4][4], u32 tile, int lane) {
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int h = 0; h < 4; h++) {
      u32 b[4];
      read4_turned(b, tile + at(k * 16 + (lane & 15), 2 * h + (lane >> 4)));
      multiply(c[2 * h], a[k], b[0], b[1]);
      multiply(c[2 * h + 1], a[k], b[2], b[3]);
    }
}

// A bias of 64 columns, in shared memory, into every row.
INLINE void set_bias(float c[8][4], const float* bias, int lane) {
#pragma unroll
  for (int n = 0; n < 8; n++) {
    float2 here = *(const float2*)(bias + n * 8 + (lane & 3) * 2);
    c[n][0] = c[n][2] = here.x;
    c[n][1] = c[n][3] = here.y;
  }
}

INLINE float sum_quad(float x) {
  x += swap(x, 1);
  return x + swap(x, 2);
}

// Dropout of 64 columns; `columns` are the mixed indices of pairs, `word` those of a thread's two rows.
INLINE void drop_rows(float c[8][4], const u32 word[2], const u32* columns, int threshold, float grow, int lane) {
#pragma unroll
  for (int n = 0; n < 8; n++) {
    u32 column = columns[n * 4 + (lane & 3)];
    u32 w0 = mix(word[0] ^ column), w1 = mix(word[1] ^ column);
    c[n][0] = (int)(w0 & 0xffff) >= threshold ? c[n][0] * grow : 0;
    c[n][1] = (int)(w0 >> 16) >= threshold ? c[n][1] * grow : 0;
    c[n][2] = (int)(w1 & 0xffff) >= threshold ? c[n][2] * grow : 0;
    c[n][3] = (int)(w1 >> 16) >= threshold ? c[n][3] * grow : 0;
  }
}

// Rows into a tile, and from there to memory, as far as there are rows; `tile` keeps them.
INLINE void put_pairs(const u32 a[4][4], char* tile, u32 row0, u32 row1, int first, char* to, long stride, int length,
                      int lane) {
  __syncwarp();  // all have read what lay there
#pragma unroll
  for (int n = 0; n < 8; n++) {
    write_word(place_of(tile) + at(row0, n) + (lane & 3) * 4, a[n / 2][(n & 1) * 2]);
    write_word(place_of(tile) + at(row1, n) + (lane & 3) * 4, a[n / 2][(n & 1) * 2 + 1]);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int row = first + i * 4 + lane / 8;
    if (row < length) *(uint4*)(to + row * stride + (lane & 7) * 16) = *(uint4*)(tile + at(row, lane & 7));
  }
}
INLINE void put_rows(const float c[8][4], char* tile, u32 row0, u32 row1, int first, char* to, long stride, int length,
                     int lane) {
  u32 a[4][4];
  round_rows(a, c);
  put_pairs(a, tile, row0, row1, first, to, stride, length, lane);
}

// Rows from memory as what a product is given, by way of a tile: asked for first, taken later.
struct Rows {
  uint4 chunk[4];
};
INLINE void begin_rows(Rows& rows, const void* from, long stride, int first, int length, int lane) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int row = first + i * 4 + lane / 8;
    rows.chunk[i] = row < length ? *(const uint4*)((const char*)from + row * stride + (lane & 7) * 16)
                                 : make_uint4(0, 0, 0, 0);
  }
}
INLINE void end_rows(u32 a[4][4], const Rows& rows, char* tile, int first, int lane) {
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; i++) *(uint4*)(tile + at(first + i * 4 + lane / 8, lane & 7)) = rows.chunk[i];
  __syncwarp();
  take_rows(a, place_of(tile), first, lane);
}

// A tile of rows from memory, zeros past the end.
INLINE void fetch_rows(char* tile, int rows, const void* from, long stride, int length, int thread, int threads) {
  int row = thread / 8, chunk = thread & 7;
  u32 to = place_of(tile) + at(row, chunk);
  const char* here = (const char*)from + row * stride + chunk * 16;
#pragma unroll
  for (int i = 0; i < rows * 8 / threads; i++) {
    bool there = row + i * (threads / 8) < length;
    fetch(to + i * threads * 16, there ? here + i * (threads / 8) * stride : (const char*)from, there);
  }
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

// The sums over 16 rows; a thread is left with two columns of them, from `first` on.
INLINE void sum_rows(const float c[8][4], int lane, float out[2], int* first) {
  float v[16];
#pragma unroll
  for (int n = 0; n < 8; n++) {
    v[2 * n] = c[n][0] + c[n][2];
    v[2 * n + 1] = c[n][1] + c[n][3];
  }
#pragma unroll
  for (int step = 0; step < 3; step++) {
    const int half = 8 >> step;
    bool upper = lane & (2 * half);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (i >= half) continue;  // so that everything unrolls, and stays in registers
      float sent = upper ? v[i] : v[i + half];
      float stays = upper ? v[i + half] : v[i];
      v[i] = stays + swap(sent, 2 * half);
    }
  }
  out[0] = v[0];
  out[1] = v[1];
  *first = ((lane >> 4) & 1) * 32 + ((lane >> 3) & 1) * 16 + ((lane >> 2) & 1) * 8 + (lane & 3) * 2;
}
// The same into a line of shared memory.
INLINE void put_sums(const float c[8][4], float* line, int lane) {
  float part[2];
  int first;
  sum_rows(c, lane, part, &first);
  line[first] = part[0];
  line[first + 1] = part[1];
}
