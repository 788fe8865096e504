// Weights that stream past a block of two groups of warps on Hopper, each with 64 rows of a text: one thread has boxes
// come into slots, four of them in turn, as fast as both groups have done with what was there.

#define SLOT 16384  // bytes: two boxes of 64 rows
#define SLOTS 4
#define WORKERS (2 * GROUP)
#define HALF (64 * 128)  // bytes of 64 rows of a tile
#define THREADS (WORKERS + GROUP)
#define WIDTH 256
#define INNER 1024

#ifndef EMULATED
// What is the same in all threads of a warp, and is known to be.
INLINE int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }
// A box that somebody will soon bring, and what lies at an address, on their way into the cache that all share.
INLINE void expect_box(const Map& map, int row, int column) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(&map), "r"(column), "r"(row), "r"(0)
               : "memory");
}
INLINE void expect_line(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p) : "memory"); }
// Both groups wait for each other; a group waits for its turn, and has it pass to the other.
INLINE void sync_both() { asm volatile("bar.sync 3, 256;" ::: "memory"); }
INLINE void wait_turn(int group) { asm volatile("bar.sync %0, 256;" ::"r"(group + 4) : "memory"); }
INLINE void pass_turn(int group) { asm volatile("bar.arrive %0, 256;" ::"r"(5 - group) : "memory"); }
#endif

// A product takes a whole turn of the ring, so a slot's number is known where the product is written, and the caller
// knows which turn it is, even or odd.
struct Ring {
  char *slots, *gates;  // of each slot, one that opens when it is full, and one when it is empty

  INLINE_IN char* slot(int i) const { return slots + i * SLOT; }
  INLINE_IN void* full(int i) const { return gates + i * 8; }
  INLINE_IN void* empty(int i) const { return gates + (SLOTS + i) * 8; }
};
INLINE void make_ring(const Ring& ring) {
  for (int i = 0; i < SLOTS; i++) {
    make_gate(ring.full(i));
    make_gate(ring.empty(i), WORKERS / 32);
  }
}
// The next two boxes of a weight, once the slot has been emptied that `turn`; `number` slots were filled before.
INLINE void fill(const Ring& ring, int& number, int turn, const Map& map, int row0, int row1, int column) {
  int i = number++ % SLOTS;
  wait_at(ring.empty(i), turn);
  expect(ring.full(i), SLOT);
  for (int half = 0; half < 2; half++) bring(ring.slot(i) + half * HALF, map, 0, half ? row1 : row0, column, ring.full(i));
}
INLINE void release(const Ring& ring, int i, int lane) { leave(ring.empty(i), lane); }

// Where a group and a thread of it are.
struct Place {
  int group, lane, first, row;  // the first row of the warp's, and the thread's first
  bool leads;
};
INLINE Place own_place() {
  Place p;
  p.group = threadIdx.x / GROUP;
  p.lane = anew(threadIdx.x & 31);
  p.first = anew(threadIdx.x / 32 * 16);
  p.row = p.first + p.lane / 4;
  p.leads = threadIdx.x % GROUP == 0;
  return p;
}

// Where a product finds a tile, found anew: there are more of them than registers to keep them in.
INLINE Tile tile_anew(const char* p) { return tile_of(anew(place_of(p)), 16); }
// c (64 x 128): the group's rows of four tiles times four slots, whose rows are outputs. Begun, and after `end_tiles`
// done. Two slots' products are under way before anybody waits; `early` is told when one is, and two.
template <class Early>
INLINE void begin_tiles(float (&c)[16][4], const char* tiles, const Ring& ring, int turn, int lane, Early early) {
  hold(c);
#pragma unroll
  for (int i = 0; i < SLOTS; i++) {
    wait_at(ring.full(i), turn);
    begin_products();
    Tile a = tile_anew(tiles + i * TILE), b = tile_anew(ring.slot(i));
#pragma unroll
    for (int k = 0; k < 4; k++)
      i + k ? multiply_wide<0>(c, a + k * 2, b + k * 2) : multiply_wide<0, 1>(c, a, b);
    end_product();
    if (i < 2) early(i);
    if (i == 2) {
      done<2>();
      release(ring, 0, lane);
    }
  }
}
INLINE void end_tiles(float (&c)[16][4], const Ring& ring, int lane) {
  done<2>();
  release(ring, 1, lane);
  done<1>();
  release(ring, 2, lane);
  have<0>(c);
  release(ring, 3, lane);
}
INLINE void add_tiles(float (&c)[16][4], const char* tiles, const Ring& ring, int turn, int lane) {
  begin_tiles(c, tiles, ring, turn, lane, [](int) {});
  end_tiles(c, ring, lane);
}
// c (64 x 256) += the group's rows of two tiles times four slots, two a tile, next to each other. Begun.
INLINE void begin_tiles(float (&c)[2][16][4], const char* tiles, const Ring& ring, int turn) {
  hold(c[0]);
  hold(c[1]);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    wait_at(ring.full(2 * i), turn);
    wait_at(ring.full(2 * i + 1), turn);
    begin_products();
    Tile a = tile_anew(tiles + i * TILE), b = tile_anew(ring.slot(2 * i));
#pragma unroll
    for (int k = 0; k < 4; k++) multiply_widest<0>(c, a + k * 2, b + k * 2);
    end_product();
  }
}
INLINE void end_tiles(float (&c)[2][16][4]) {
  have<0>(c[0]);
  hold(c[1]);
}
// A warp has done with so many slots.
INLINE void release_some(const Ring& ring, int first, int count, int lane) {
#pragma unroll
  for (int i = first; i < first + count; i++) release(ring, i, lane);
}

// Biases of 128 columns, at any multiple of two bytes: each lane holds four, asked for early, and shows them to others.
struct Biases {
  u16 of[4];
};
INLINE void ask(Biases& biases, const u16* lower, const u16* upper, int lane) {
  biases.of[0] = lower[2 * lane];
  biases.of[1] = lower[2 * lane + 1];
  biases.of[2] = upper[2 * lane];
  biases.of[3] = upper[2 * lane + 1];
}
// Rows of 128 columns and biases, two of each eight columns at a time, rounded; and into two tiles.
template <class Of>
INLINE void add_biases(u32 (&pairs)[16][2], const float (&c)[16][4], Of bias_of) {
#pragma unroll
  for (int n = 0; n < 16; n++) {
    u32 bias = bias_of(n);
#pragma unroll
    for (int i = 0; i < 2; i++) pairs[n][i] = pack(c[n][2 * i] + low_of(bias), c[n][2 * i + 1] + high_of(bias));
  }
}
INLINE void write_pairs(const u32 (&pairs)[16][2], char* tiles, int first, int lane) {
  u32 to = anew(place_of(tiles) + at(first + (lane & 15), lane >> 4));
#pragma unroll
  for (int n = 0; n < 16; n += 2) write4((to ^ (n & 7) << 4) + n / 8 * TILE, pairs[n]);
}
INLINE void write_biased(const float (&c)[16][4], const Biases& biases, char* tiles, int first, int lane) {
  u32 lower = biases.of[0] | (u32)biases.of[1] << 16, upper = biases.of[2] | (u32)biases.of[3] << 16, pairs[16][2];
  add_biases(pairs, c, [&](int n) { return shown(n < 8 ? lower : upper, n % 8 * 4 + (lane & 3)); });
  write_pairs(pairs, tiles, first, lane);
}
