// Attention over at most 128 tokens, heads of 64, bf16, on Hopper: one head of one text at a time, the next on its way
// while a block works. Each of two groups takes 64 queries; on the way back also 64 keys and values.

#define ROWS 128
#define TILE (ROWS * 128)

// A block's way through the heads of all texts.
struct Walk {
  int items, heads;
  char *memory, *gates;  // two sets of tiles, used in turn
  int tiles;             // of a set
  int item, number;      // the one at hand, and how many there were before

  INLINE_IN bool more() const { return item < items; }
  INLINE_IN int next() const { return item + (int)gridDim.x; }
  INLINE_IN void go_on() { item = next(), number++; }
  INLINE_IN int text() const { return item / heads; }
  INLINE_IN int head() const { return item % heads; }
  INLINE_IN char* tile(int i) const { return memory + ((number & 1) * tiles + i) * TILE; }
  INLINE_IN void* gate() const { return gates + (number & 1) * 8; }
  INLINE_IN void wait() const { wait_at(gate(), number >> 1 & 1); }
};
INLINE Walk begin_walk(char* memory, char* gates, int tiles, int items, int heads) {
  Walk walk = {items, heads, memory, gates, tiles, (int)blockIdx.x, 0};
  if (threadIdx.x == 0)
    for (int i = 0; i < 2; i++) make_gate(gates + i * 8);
  __syncthreads();
  return walk;
}
// Queries, keys and values of one head lie side by side with those of the others.
INLINE void bring_three(const Walk& walk, const Map& qkv) {
  for (int i = 0; i < 3; i++)
    bring(walk.tile(i), qkv, walk.text(), 0, (i * walk.heads + walk.head()) * 64, walk.gate());
}

// A group's scores (64 x 128), or what is made like them: its rows of one tile times all rows of another. They are begun.
INLINE void begin_scores(float (&c)[16][4], const char* own, const char* all) {
  Tile a = tile_at(own, 16), b = tile_at(all, 16);
  begin_product(c);
#pragma unroll
  for (int k = 0; k < 4; k++) k ? multiply_wide<0>(c, a + k * 2, b + k * 2) : multiply_wide<0, 1>(c, a, b);
  end_product();
}
// c (64 x 64): a thread's pairs of its rows' 128 columns times the rows of a tile. Begun.
INLINE void begin_mixture(float (&c)[8][4], const u32 (&pairs)[16][2], const char* tile) {
  clear(c);
  Tile b = tile_at(tile, TILE);
  begin_product(c);
#pragma unroll
  for (int k = 0; k < 8; k++) multiply_own<1>(c, pairs[2 * k], b + k * 128);
  end_product();
}
// c (64 x 64): 64 columns of 128 rows, turned, times the rows of a tile. Begun.
INLINE void begin_turned(float (&c)[8][4], const char* columns, const char* tile) {
  clear(c);
  Tile a = tile_at(columns, TILE), b = tile_at(tile, TILE);
  begin_product(c);
#pragma unroll
  for (int k = 0; k < 8; k++) multiply_turned(c, a + k * 128, b + k * 128);
  end_product();
}
// Keys that are not seen have scores of nearly nothing.
INLINE void hide(float (&s)[16][4], int visible, int lane) {
#pragma unroll
  for (int n = 0; n < 16; n++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (n * 8 + (lane & 3) * 2 + (i & 1) >= visible) s[n][i] = -1e30f;
}
// What rows share out among keys, before division: rounded, and with dropout, unless `threshold` is zero. Of each row the
// total, and what all exponents are less. `columns` are the mixed indices of pairs of keys, folded, and so are the words.
INLINE void share_out(u32 (&pairs)[16][2], float (&s)[16][4], float top[2], float total[2], const u32 word[2],
                      const u32* columns, float binary, int threshold, int lane) {
  u32 least = (u32)threshold << 16;
  top[0] = top[1] = -1e28f;
  total[0] = total[1] = 0;
  raise(top, s);
  top[0] *= binary, top[1] *= binary;
#pragma unroll
  for (int n = 0; n < 16; n++) {
    float* e = s[n];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      e[i] = power2(e[i] * binary - top[i / 2]);
      total[i / 2] += e[i];
    }
    u32 column = columns[n * 4 + (lane & 3)];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u32 w = stir(word[i] ^ column);
      if (!first_stays(w, least)) e[2 * i] = 0;
      if (!second_stays(w, least)) e[2 * i + 1] = 0;
    }
    for (int i = 0; i < 2; i++) pairs[n][i] = pack(e[2 * i], e[2 * i + 1]);
  }
}
// Rows of 64 columns, rounded, into a tile.
INLINE void write_rows(const float (&c)[8][4], char* tile, int first, int lane) {
#pragma unroll
  for (int n = 0; n < 8; n += 2) {
    u32 r[4];
#pragma unroll
    for (int i = 0; i < 4; i++) r[i] = pack(c[n + i / 2][(i & 1) * 2], c[n + i / 2][(i & 1) * 2 + 1]);
    write4(place_of(tile) + at(first + (lane & 15), n + (lane >> 4)), r);
  }
}
