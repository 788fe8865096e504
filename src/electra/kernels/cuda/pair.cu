// What two warps do together on 16 rows of 64 columns: narrow layers are made of it. Each takes half of the work, which
// is 32 columns of a result, or half of what is summed up; then each gives the other what it has of the other's columns.
//
// A thread holds of each eight columns two neighbours, in rows `lane / 4` and eight further. Products of all 64 columns
// are made by four warps together.

#define WIDTH 64
#ifndef BANDS
#define BANDS 8  // pairs; fewer for shorter texts
#endif
#define ROWS (BANDS * 16)
#define TILE (ROWS * 128)  // bytes of a text's rows of 64 columns
#define BOX (WIDTH * 128)  // of as many rows of a weight
#define THREADS (BANDS * 64)

// What layers differ in, those of a stack one after another.
#define MOST_LAYERS 24
struct Layer {
  const u16 *qkv_w, *qkv_b, *out_w, *out_b;
  const float *gamma1, *beta1;
  const u16 *up_w, *up_b, *down_w, *down_b;
  const float *gamma2, *beta2;
  int sites[3], unused;
};
struct Layers {
  Layer of[MOST_LAYERS];
};
#ifndef EMULATED
#define LAYERS const __grid_constant__ Layers
#else
#define LAYERS Layers
#endif

// A thread's place: the first row of its pair, its own, and where its warp's columns begin, in eights.
struct Seat {
  int lane, half, band, first, row, own;
};
// How large they are is hidden: where sums become unions of bits, addresses need registers of their own.
INLINE Seat seat_of(u32 thread) {
  Seat s;
  s.lane = thread & 31;
  s.half = anew(thread / (BANDS * 32));
  s.band = anew(thread / 32 % BANDS);
  s.first = s.band * 16;
  s.row = s.first + s.lane / 4;
  s.own = s.half * 4;
  return s;
}

#ifndef EMULATED
INLINE void sync_pair(const Seat& s) { asm volatile("bar.sync %0, 64;" ::"r"(s.band + 1) : "memory"); }
#endif

// A tile of rows from memory, zeros past the end; `PAIRED`, of each sixteen the even ones first.
template <bool PAIRED = false>
INLINE void fetch_rows(char* tile, int rows, const void* from, long stride, int length, int thread) {
  int row = thread / 8, chunk = thread & 7;
  u32 to = place_of(tile) + at(PAIRED ? (row & ~15) | (row & 1) << 3 | (row & 15) >> 1 : row, chunk);
  const char* here = (const char*)from + row * stride + chunk * 16;
#pragma unroll
  for (int i = 0; i < (rows * 8 + THREADS - 1) / THREADS; i++) {
    bool there = row + i * (THREADS / 8) < length;
    fetch(to + i * THREADS * 16, there ? here + i * (THREADS / 8) * stride : (const char*)from, there);
  }
}

// The pair's rows as what a product is given, from a tile: all columns, or the warp's own. Places are found anew each
// time: there are more of them than registers to keep them in.
INLINE void take_rows(u32 (&a)[4][4], const char* tile, const Seat& s) {
  u32 from = anew(at(s.first + (s.lane & 15), s.lane >> 4));
#pragma unroll
  for (int h = 0; h < 4; h++) read4(a[h], place_of(tile) + (from ^ h << 5));
}
INLINE void take_own(u32 (&a)[2][4], const char* tile, const Seat& s) {
  u32 from = anew(at(s.first + (s.lane & 15), s.own + (s.lane >> 4)));
#pragma unroll
  for (int h = 0; h < 2; h++) read4(a[h], place_of(tile) + (from ^ h << 5));
}

// Numbers rounded to what a product is given, and back.
template <int N>
INLINE void round_rows(u32 (&a)[N / 2][4], const float (&c)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; n++)
#pragma unroll
    for (int i = 0; i < 2; i++) a[n / 2][(n & 1) * 2 + i] = pack(c[n][2 * i], c[n][2 * i + 1]);
}
INLINE void widen(float (&c)[4][4], const u32 (&a)[2][4]) {
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u32 pair = a[n / 2][(n & 1) * 2 + i];
      c[n][2 * i] = low_of(pair);
      c[n][2 * i + 1] = high_of(pair);
    }
}

// c += rows (16 x 64) times a box: its rows are the outputs, or `TURNED` its columns. What was written there must be
// seen by engines.
template <int TURNED>
INLINE void add_box(float (&c)[8][4], const u32 (&a)[4][4], const char* box) {
  Tile b = tile_at(box, 16);
  begin_product(c);
#pragma unroll
  for (int k = 0; k < 4; k++) multiply_own<TURNED>(c, a[k], b + k * (TURNED ? 128 : 2));
  end_product();
  have<0>(c);
}

// The same for 8 N of its rows, or for the own columns, by each warp alone.
template <int N>
INLINE void add_rows(float (&c)[N][4], const u32 (&a)[4][4], const char* rows, int lane) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    u32 b[N][4];
#pragma unroll
    for (int n = 0; n < N; n++) read4(b[n], place_of(rows) + at(n * 8 + (lane & 7), h * 4 + (lane >> 3)));
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
      for (int n = 0; n < N; n++) multiply(c[n], a[2 * h + k], b[n][2 * k], b[n][2 * k + 1]);
  }
}
INLINE void add_columns(float (&c)[4][4], const u32 (&a)[4][4], const char* box, const Seat& s) {
#pragma unroll
  for (int k = 0; k < 4; k++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      u32 b[4];
      read4_turned(b, place_of(box) + at(k * 16 + (s.lane & 15), (2 * h + (s.lane >> 4)) ^ s.own));
      multiply(c[2 * h], a[k], b[0], b[1]);
      multiply(c[2 * h + 1], a[k], b[2], b[3]);
    }
}

// A bias, in shared memory, into every row.
template <int N>
INLINE void set_bias(float (&c)[N][4], const float* bias, int lane) {
#pragma unroll
  for (int n = 0; n < N; n++) {
    float2 here = *(const float2*)(bias + n * 8 + (lane & 3) * 2);
    c[n][0] = c[n][2] = here.x;
    c[n][1] = c[n][3] = here.y;
  }
}

// Dropout of the own columns; `columns` are the mixed indices of pairs, `word` those of a thread's two rows, all folded.
INLINE void drop_rows(float (&c)[4][4], const u32 word[2], const u32* columns, u32 least, float grow,
                      const Seat& s) {
#pragma unroll
  for (int n = 0; n < 4; n++) {
    u32 column = columns[(s.own + n) * 4 + (s.lane & 3)];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u32 w = stir(word[i] ^ column);
      c[n][2 * i] = first_stays(w, least) ? c[n][2 * i] * grow : 0;
      c[n][2 * i + 1] = second_stays(w, least) ? c[n][2 * i + 1] * grow : 0;
    }
  }
}

// Rows from a tile to memory, as far as there are rows: two sixteens of columns are the warp's own, four are all.
template <int N>
INLINE void copy_rows(const char* tile, char* to, long stride, int length, const Seat& s) {
  const int chunks = 2 * N, lanes = 32 / chunks;  // of a row; and how many rows a warp writes at once
  int chunk = (N == 2 ? s.own : 0) + s.lane % chunks;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16 / lanes; i++) {
    int here = s.first + i * lanes + s.lane / chunks;
    if (here < length) *(uint4*)(to + here * stride + chunk * 16) = *(uint4*)(tile + at(here, chunk));
  }
}
// Rows into a tile, which keeps them, and to memory. `row` is where the row goes that this lane names.
template <int N>
INLINE void put_pairs(const u32 (&a)[N][4], char* tile, int row, char* to, long stride, int length, const Seat& s) {
  u32 place = anew(at(row, (N == 2 ? s.own : 0) + (s.lane >> 4)));
  __syncwarp();  // all have read what lay there
#pragma unroll
  for (int h = 0; h < N; h++) write4(place_of(tile) + (place ^ h << 5), a[h]);
  copy_rows<N>(tile, to, stride, length, s);
}
template <int N>
INLINE void put_rows(const float (&c)[N][4], char* tile, char* to, long stride, int length, const Seat& s) {
  u32 a[N / 2][4];
  round_rows(a, c);
  put_pairs(a, tile, s.first + (s.lane & 15), to, stride, length, s);
}

// The own columns from memory as what a product is given, by way of a tile: asked for first, taken later.
struct Rows {
  uint4 chunk[2];
};
INLINE void begin_rows(Rows& rows, const void* from, int length, const Seat& s) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    int row = s.first + i * 8 + s.lane / 4;
    rows.chunk[i] = row < length ? *(const uint4*)((const char*)from + row * (WIDTH * 2) + (s.own + s.lane % 4) * 16)
                                 : make_uint4(0, 0, 0, 0);
  }
}
INLINE void end_rows(u32 (&a)[2][4], const Rows& rows, char* tile, const Seat& s) {
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2; i++)
    *(uint4*)(tile + at(s.first + i * 8 + s.lane / 4, s.own + s.lane % 4)) = rows.chunk[i];
  __syncwarp();
  take_own(a, tile, s);
}

// What a warp has of the other's columns, for it to get; a warp has 2 KB for that. `own` is what it has of its own.
INLINE void give(float (&own)[4][4], const float (&c)[8][4], char* room, const Seat& s) {
#pragma unroll
  for (int n = 0; n < 4; n++) {
    float given[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      own[n][i] = s.half ? c[4 + n][i] : c[n][i];
      given[i] = s.half ? c[n][i] : c[4 + n][i];
    }
    *(float4*)(room + n * 512 + s.lane * 16) = make_float4(given[0], given[1], given[2], given[3]);
  }
}
INLINE void get(float (&c)[4][4], const char* room, const Seat& s) {
#pragma unroll
  for (int n = 0; n < 4; n++) {
    float4 here = *(const float4*)(room + n * 512 + s.lane * 16);
    c[n][0] = here.x;
    c[n][1] = here.y;
    c[n][2] = here.z;
    c[n][3] = here.w;
  }
}
// Two numbers a row, for the other warp: 32 places a pair, the warps' one after the other.
INLINE void tell(float2* place, const float x[2], const float y[2], const Seat& s) {
  if ((s.lane & 3) == 0)
#pragma unroll
    for (int i = 0; i < 2; i++) place[s.band * 32 + s.half * 16 + s.lane / 4 + 8 * i] = make_float2(x[i], y[i]);
}
INLINE float2 told(const float2* place, int i, const Seat& s) {
  return place[s.band * 32 + (1 - s.half) * 16 + s.lane / 4 + 8 * i];
}
