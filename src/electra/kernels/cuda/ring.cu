// Weights that stream past a block of two groups of warps on Hopper, each with 64 rows of a text: one thread has boxes
// come into slots, four of them in turn, as fast as both groups have done with what was there. Blocks next to each other
// need the same, so each brings half of a slot for all of them.

#define SLOT 16384  // bytes: two boxes of 64 rows
#define SLOTS 4
#define WORKERS (2 * GROUP)
#define HALF (64 * 128)  // bytes of 64 rows of a tile
#define THREADS (WORKERS + GROUP)
#define WIDTH 256
#define INNER 1024

#ifndef EMULATED
#define NEIGHBOURS 2
#define KERNEL_OF_NEIGHBOURS(threads) \
  extern "C" __global__ void __cluster_dims__(NEIGHBOURS, 1, 1) __launch_bounds__(threads, 1)

// What is the same in all threads of a warp, and is known to be.
INLINE int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }
// So many registers for each thread of a group, out of those that it gives back, or gets from those that did.
template <int COUNT>
INLINE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT>
INLINE void get_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
INLINE int own_number() {
  int number;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(number));
  return number;
}
INLINE void sync_neighbours() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Come to a gate of the neighbour of that number, which may be this block.
INLINE void come_to(void* gate, int neighbour) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(place_of(gate)),
      "r"(neighbour)
      : "memory");
}
// A box for all neighbours, at the same place in each.
INLINE void bring_all(char* to, const Map& map, int row, int column, void* gate) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(place_of(to)),
      "l"(&map), "r"(column), "r"(row), "r"(0), "r"(place_of(gate)), "h"((u16)((1 << NEIGHBOURS) - 1))
      : "memory");
}
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

struct Ring {
  char *slots, *gates;  // of each slot, one that opens when it is full, and one when it is empty
  int number;           // of slots that were used before

  INLINE_IN char* slot() const { return slots + number % SLOTS * SLOT; }
  INLINE_IN void* full() const { return gates + number % SLOTS * 8; }
  INLINE_IN void* empty() const { return gates + (SLOTS + number % SLOTS) * 8; }
  INLINE_IN int turn() const { return number / SLOTS & 1; }
};
INLINE void make_ring(const Ring& ring) {
  for (int i = 0; i < SLOTS; i++) {
    make_gate(ring.gates + i * 8);
    make_gate(ring.gates + (SLOTS + i) * 8, WORKERS / 32 * NEIGHBOURS);
  }
}
// The next two boxes of a weight, once the slot has been emptied that `turn`.
INLINE void fill(Ring& ring, int turn, const Map& map, int row0, int column0, int row1, int column1) {
  wait_at(ring.empty(), turn);
  expect(ring.full(), SLOT);
  for (int i = 0; i < 2; i++)
    if (NEIGHBOURS == 1 || own_number() == i)
      bring_all(ring.slot() + i * HALF, map, i ? row1 : row0, i ? column1 : column0, ring.full());
  ring.number++;
}
// A warp has done with the slot that was used `before` so many.
INLINE void release(const Ring& ring, int before, int lane) {
  Ring one = ring;
  one.number -= before;
  __syncwarp();
  if (lane < NEIGHBOURS) come_to(one.empty(), lane);
}

// Where a group and a thread of it are.
struct Place {
  int group, lane, first, row;  // the first row of the warp's, and the thread's first
  bool leads;                   // and the text is there
};
INLINE Place place_in(int group, bool there) {
  Place p;
  p.group = group;
  p.lane = anew(threadIdx.x & 31);
  p.first = anew(threadIdx.x / 32 * 16);
  p.row = p.first + p.lane / 4;
  p.leads = threadIdx.x % GROUP == 0 && there;
  return p;
}

// c (64 x 128) += the group's rows of four tiles times four slots, whose rows are outputs, or `TURNED` their columns.
// Begun, and after `end_tiles` done.
template <int TURNED>
INLINE void begin_tiles(float (&c)[16][4], const char* tiles, Ring& ring, int lane) {
  begin_product(c);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    wait_at(ring.full(), ring.turn());
    Tile a = tile_at(tiles + i * TILE, 16), b = tile_at(ring.slot(), TURNED ? HALF : 16);
#pragma unroll
    for (int k = 0; k < 4; k++) multiply_wide<TURNED>(c, a + k * 2, b + k * (TURNED ? 128 : 2));
    end_product();
    ring.number++;
    if (i > 0) {
      done<1>();
      release(ring, 2, lane);
    }
  }
}
INLINE void end_tiles(float (&c)[16][4], const Ring& ring, int lane) {
  have<0>(c);
  release(ring, 1, lane);
}
template <int TURNED>
INLINE void add_tiles(float (&c)[16][4], const char* tiles, Ring& ring, int lane) {
  begin_tiles<TURNED>(c, tiles, ring, lane);
  end_tiles(c, ring, lane);
}
// The same for 256 outputs, in two slots a tile, next to each other. These stay for the time being if `kept`.
template <int TURNED, int TILES>
INLINE void add_tiles(float (&c)[2][16][4], const char* tiles, Ring& ring, bool kept, int lane) {
  begin_product(c[0]);
  hold(c[1]);
#pragma unroll
  for (int i = 0; i < TILES; i++) {
    Tile a = tile_at(tiles + i * TILE, 16), b = tile_at(ring.slot(), TURNED ? HALF : 16);
    for (int half = 0; half < 2; half++) {
      wait_at(ring.full(), ring.turn());
      ring.number++;
    }
#pragma unroll
    for (int k = 0; k < 4; k++) multiply_widest<TURNED>(c, a + k * 2, b + k * (TURNED ? 128 : 2));
    end_product();
    if (i > 0 && !kept) {
      done<1>();
      release(ring, 4, lane);
      release(ring, 3, lane);
    }
  }
  have<0>(c[0]);
  hold(c[1]);
  if (!kept) {
    release(ring, 2, lane);
    release(ring, 1, lane);
  }
}

INLINE void clear_all(float (&c)[16][4]) {
#pragma unroll
  for (int n = 0; n < 16; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
}
// Where the matrices of sixteen columns lie in a tile that a thread names: `read4` and `write4` of them.
INLINE u32 square_at(const char* tiles, int n, int first, int lane) {
  return place_of(tiles) + n / 8 * TILE + at(first + (lane & 15), (n & 7) + (lane >> 4));
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
// Rows of 128 columns and biases, rounded, into two tiles.
INLINE void write_biased(const float (&c)[16][4], const Biases& biases, char* tiles, int first, int lane) {
  u32 lower = biases.of[0] | (u32)biases.of[1] << 16, upper = biases.of[2] | (u32)biases.of[3] << 16;
#pragma unroll
  for (int n = 0; n < 16; n += 2) {
    u32 r[4];
#pragma unroll
    for (int j = 0; j < 2; j++) {
      u32 bias = shown(n < 8 ? lower : upper, (n + j) % 8 * 4 + (lane & 3));
#pragma unroll
      for (int i = 0; i < 2; i++)
        r[2 * j + i] = pack(c[n + j][2 * i] + low_of(bias), c[n + j][2 * i + 1] + high_of(bias));
    }
    write4(square_at(tiles, n, first, lane), r);
  }
}
