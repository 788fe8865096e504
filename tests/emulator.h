// A block of a CUDA kernel on the host: its threads are threads, and what a warp does together goes through a barrier.
// Stands in for what `kernels/cuda/warp.cu` takes from the GPU, and runs a kernel from an array of pointers to arguments.
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

typedef unsigned int u32;
typedef unsigned short u16;
#define EMULATED
#define INLINE static inline
#define INLINE_IN inline
#define KERNEL(threads, blocks) static void
#define SHARED(name) char* name = block->memory

struct uint4 { u32 x, y, z, w; };
struct uint2 { u32 x, y; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct Dimensions { int x, y, z; };
struct Block {
  char* memory;
  std::barrier<>* all;
  std::unique_ptr<std::barrier<>> both, turns[2];  // of two groups
  std::vector<std::unique_ptr<std::barrier<>>> warps, pairs, groups;
  struct Gate {
    std::atomic<int> opened;
    int expected;  // its one user's
    int count;     // how many have to come
    std::atomic<int> missing;
    std::mutex alone;
    std::vector<std::function<void()>> coming;  // copies that somebody has yet to wait for
  } gates[32];  // by the place in shared memory
  u32 box[32][32][8];  // of each warp: what each lane shows the others
};
static thread_local Dimensions threadIdx, blockIdx, gridDim;
static thread_local Block* block;

// What the chip does by itself it may do as late as may be. Products and copies out of shared memory are always made
// late, when somebody waits for them: then what they read must still be there. Copies into it are made late or at once,
// as a coin decides: what somebody reads must have come, and nobody may still need what it overwrites.
static thread_local u32 coins;
static inline bool later() {
  coins ^= coins << 13;
  coins ^= coins >> 17;
  coins ^= coins << 5;
  return coins & 1;
}
typedef std::vector<std::function<void()>> Pending;
// A copy out of shared memory: first it is read, then it arrives.
struct Leaving {
  std::function<void(std::vector<u16>&)> read;
  std::function<void(const std::vector<u16>&)> arrive;
  std::vector<u16> data;
};
static thread_local std::vector<Leaving> leaving;
static thread_local std::vector<Pending> fetching;  // by the group that ends with `mark`; the last is open
static thread_local std::vector<Pending> products;  // by the group that ends with `end_product`; the last is open
static inline void do_all(Pending& pending) {
  for (auto& one : pending) one();
  pending.clear();
}

static inline int own_lane() { return threadIdx.x & 31; }
static inline u32 (*own_box())[8] { return block->box[threadIdx.x / 32]; }
static inline void __syncthreads() { block->all->arrive_and_wait(); }
static inline void __syncwarp() { block->warps[threadIdx.x / 32]->arrive_and_wait(); }
static inline void after_others() {}
static inline u32 place_of(const void* p) { return (u32)((const char*)p - block->memory); }
static inline void fetch(u32 to, const void* from, bool there) {
  auto copy = [=] {
    if (there) memcpy(block->memory + to, from, 16);
    else memset(block->memory + to, 0, 16);
  };
  if (later()) fetching.back().push_back(copy);
  else copy();
}
static inline void fetched() {
  for (auto& group : fetching) do_all(group);
  fetching.assign(1, {});
}
static inline void mark() { fetching.emplace_back(); }
template <int LATE>
static inline void fetched_but() {
  for (size_t i = 0; i + 1 + LATE < fetching.size(); i++) do_all(fetching[i]);
}
static inline void put16(void* to, uint4 x, bool there) {
  if (there) memcpy(to, &x, 16);
}
static inline void write_word(u32 to, u32 word) { memcpy(block->memory + to, &word, 4); }

static inline float low_of(u32 word) {
  word <<= 16;
  float x;
  memcpy(&x, &word, 4);
  return x;
}
static inline float high_of(u32 word) { return low_of(word >> 16); }
static inline u32 rounded(float x) {  // to the nearest, ties to even
  u32 word;
  memcpy(&word, &x, 4);
  return (word + 0x7fff + ((word >> 16) & 1)) >> 16;
}
static inline u32 pack(float low, float high) { return rounded(low) | rounded(high) << 16; }
static inline float power2(float x) { return exp2f(x); }
static inline float __saturatef(float x) { return fminf(fmaxf(x, 0), 1); }
static inline float inverse_root(float x) { return 1 / sqrtf(x); }

// Four 8 x 8 matrices, whose rows the lanes name eight by eight; a lane gets two neighbours of a row, or of a column.
static inline void read_any(u32 r[4], u32 from, bool turned) {
  u32(*box)[8] = own_box();
  int lane = own_lane();
  box[lane][0] = from;
  __syncwarp();
  for (int m = 0; m < 4; m++) {
    u16 pair[2];
    for (int j = 0; j < 2; j++) {
      int row = turned ? 2 * (lane & 3) + j : lane / 4, column = turned ? lane / 4 : 2 * (lane & 3) + j;
      memcpy(&pair[j], block->memory + box[m * 8 + row][0] + column * 2, 2);
    }
    r[m] = pair[0] | (u32)pair[1] << 16;
  }
  __syncwarp();
}
static inline void read4(u32 r[4], u32 from) { read_any(r, from, false); }
static inline void read4_turned(u32 r[4], u32 from) { read_any(r, from, true); }

// m16n8k16 as the PTX manual lays its fragments out.
static inline void multiply(float c[4], const u32 a[4], u32 b0, u32 b1) {
  u32(*box)[8] = own_box();
  int lane = own_lane();
  for (int i = 0; i < 4; i++) box[lane][i] = a[i];
  box[lane][4] = b0;
  box[lane][5] = b1;
  __syncwarp();
  for (int i = 0; i < 4; i++) {
    int row = lane / 4 + (i >= 2) * 8, column = 2 * (lane & 3) + (i & 1);
    double total = c[i];
    for (int k = 0; k < 16; k++) {
      u32 x = box[(row & 7) * 4 + (k & 7) / 2][(row >= 8) + 2 * (k >= 8)], y = box[column * 4 + (k & 7) / 2][4 + (k >= 8)];
      total += (double)((k & 1) ? high_of(x) : low_of(x)) * ((k & 1) ? high_of(y) : low_of(y));
    }
    c[i] = (float)total;
  }
  __syncwarp();
}
static inline float swap(float x, int lanes) {
  u32(*box)[8] = own_box();
  memcpy(&box[own_lane()][0], &x, 4);
  __syncwarp();
  float other;
  memcpy(&other, &box[own_lane() ^ lanes][0], 4);
  __syncwarp();
  return other;
}

static inline void write4(u32 to, const u32 r[4]) {
  u32(*box)[8] = own_box();
  int lane = own_lane();
  box[lane][0] = to;
  __syncwarp();
  for (int m = 0; m < 4; m++) memcpy(block->memory + box[m * 8 + lane / 4][0] + (lane & 3) * 4, &r[m], 4);
  __syncwarp();
}
static inline int anew(int x) { return x; }
template <class Seat>
static inline void sync_pair(const Seat& s) { block->pairs[s.band]->arrive_and_wait(); }
static inline void sync_group(int group) { block->groups[group]->arrive_and_wait(); }

struct Map {
  char* base;
  long texts, rows, columns, stride, box;  // a text's rows; the stride in bytes; how many rows a box has
};
#define MAP Map
static inline Block::Gate& gate_at(void* gate) { return block->gates[place_of(gate) / 8 % 32]; }
static inline void make_gate(void* gate, int count = 1) {
  gate_at(gate).opened = 0;
  gate_at(gate).expected = 0;
  gate_at(gate).count = gate_at(gate).missing = count;
}
static inline void come(void* gate) {
  Block::Gate& own = gate_at(gate);
  if (--own.missing == 0) {
    own.missing = own.count;
    own.opened++;
  }
}
template <class T>
static inline T shown(T x, int lane) {
  u32(*box)[8] = own_box();
  memcpy(&box[own_lane()][0], &x, 4);
  __syncwarp();
  T other;
  memcpy(&other, &box[lane][0], 4);
  __syncwarp();
  return other;
}
static inline bool any_lane(bool x) {
  u32(*box)[8] = own_box();
  box[own_lane()][0] = x;
  __syncwarp();
  bool found = false;
  for (int lane = 0; lane < 32; lane++) found = found || box[lane][0];
  __syncwarp();
  return found;
}
static inline int uniform(int x) { return x; }
template <int COUNT>
static inline void give_registers() {}
template <int COUNT>
static inline void get_registers() {}
static inline void sync_both() { block->both->arrive_and_wait(); }
static inline void wait_turn(int group) { block->turns[group]->arrive_and_wait(); }
static inline void pass_turn(int group) { (void)block->turns[1 - group]->arrive(); }
static inline void expect(void* gate, int bytes) { gate_at(gate).expected = bytes; }
static inline void wait_at(void* gate, int turn) {
  Block::Gate& own = gate_at(gate);
  while ((own.opened & 1) == turn) {
    {
      std::lock_guard<std::mutex> held(own.alone);
      do_all(own.coming);
    }
    std::this_thread::yield();
  }
}
// An element of a box in memory, if there is one, and in shared memory.
static inline char* outside(const Map& map, int text, int row, int column) {
  bool there = text < map.texts && row < map.rows && column < map.columns;
  return there ? map.base + (text * map.rows + row) * map.stride + column * 2 : nullptr;
}
static inline char* inside(const char* tile, int row, int column) {
  u32 here = place_of(tile) + row * 128 + column * 2;
  return block->memory + (here ^ ((here >> 7 & 7) << 4));
}
static inline void bring(char* to, const Map& map, int text, int row, int column, void* gate) {
  Block::Gate& own = gate_at(gate);
  auto copy = [=, &own] {
    const u16 nothing = 0;
    for (int r = 0; r < map.box; r++)
      for (int c = 0; c < 64; c++) {
        const char* from = outside(map, text, row + r, column + c);
        memcpy(inside(to, r, c), from ? from : (const char*)&nothing, 2);
      }
    own.expected -= map.box * 128;
    if (own.expected == 0) own.opened++;
  };
  std::lock_guard<std::mutex> held(own.alone);
  if (later()) own.coming.push_back(copy);
  else copy();
}
static inline void expect_box(const Map&, int, int) {}
static inline void expect_line(const void*) {}
static inline void take(const char* from, const Map& map, int text, int row, int column) {
  auto each = [=](auto work) {
    for (int r = 0; r < map.box; r++)
      for (int c = 0; c < 64; c++) work(r * 64 + c, r, c);
  };
  leaving.push_back({[=](std::vector<u16>& data) {
                       data.resize(map.box * 64);
                       each([&](int i, int r, int c) { memcpy(&data[i], inside(from, r, c), 2); });
                     },
                     [=](const std::vector<u16>& data) {
                       each([&](int i, int r, int c) {
                         if (char* to = outside(map, text, row + r, column + c)) memcpy(to, &data[i], 2);
                       });
                     },
                     {}});
}
static inline void taken() {
  for (auto& one : leaving)
    if (one.data.empty()) one.read(one.data);
}
static inline void arrived() {
  taken();
  for (auto& one : leaving) one.arrive(one.data);
  leaving.clear();
}

// A warp group's product reads tiles itself. Eight rows of 128 bytes lie together, the next eight 1024 bytes further, and
// units of 16 bytes are turned about by the bits above a row's.
static inline void seen_by_engines() {}
template <int N>
static inline void hold(float (&c)[N][4]) {}
template <int N>
static inline void begin_product(float (&c)[N][4]) {}
static inline void begin_products() {}
// All groups of products but the last ones are made.
static inline void make_products(size_t but) {
  size_t made = products.size() > but + 1 ? products.size() - 1 - but : 0;
  for (size_t i = 0; i < made; i++) do_all(products[i]);
  products.erase(products.begin(), products.begin() + made);
}
static inline void end_product() { products.emplace_back(); }
template <int LATER, int N>
static inline void have(float (&c)[N][4]) {
  make_products(LATER);
}
template <int LATER>
static inline void done() {
  make_products(LATER);
}
typedef unsigned long long Tile;
static inline Tile tile_of(u32 place, int stripe) { return place >> 4 | (Tile)stripe << 32; }
static inline Tile tile_at(const char* p, int stripe) { return tile_of(place_of(p), stripe); }
static inline float of_tile(Tile tile, int row, int column) {
  u32 here = (u32)tile * 16 + (u32)(tile >> 32) * (column / 64) + row * 128 + column % 64 * 2;
  u16 x;
  memcpy(&x, block->memory + (here ^ ((here >> 7 & 7) << 4)), 2);
  return low_of(x);
}
template <class A, class B>
static inline void add_all(float (*c)[4], int outputs, A a, B b) {
  products.back().push_back([=] {
    int warp = threadIdx.x / 32 % 4, lane = own_lane();
    for (int n = 0; n < outputs / 8; n++)
      for (int i = 0; i < 4; i++) {
        double total = c[n][i];
        int row = lane / 4 + i / 2 * 8, column = n * 8 + (lane & 3) * 2 + i % 2;
        for (int k = 0; k < 16; k++) total += (double)a(warp * 16, row, k) * b(column, k);
        c[n][i] = (float)total;
      }
  });
}
template <int TURNED, int FRESH = 0>
static inline void multiply_wide(float c[16][4], Tile a, Tile b) {
  if (FRESH) products.back().push_back([=] { std::fill(c[0], c[0] + 64, 0.0f); });
  add_all(
      c, 128, [=](int first, int row, int k) { return of_tile(a, first + row, k); },
      [=](int column, int k) { return TURNED ? of_tile(b, k, column) : of_tile(b, column, k); });
}
template <int TURNED>
static inline void multiply_own(float c[8][4], const u32 a[4], Tile b) {
  u32(*box)[8] = own_box();
  for (int i = 0; i < 4; i++) box[own_lane()][i] = a[i];
  __syncwarp();
  struct {
    u32 of[32][4];
  } seen;
  for (int lane = 0; lane < 32; lane++) memcpy(seen.of[lane], box[lane], 16);
  add_all(
      c, 64,
      [=](int first, int row, int k) {
        u32 x = seen.of[(row & 7) * 4 + (k & 7) / 2][(row >= 8) + 2 * (k >= 8)];
        return (k & 1) ? high_of(x) : low_of(x);
      },
      [=](int column, int k) { return TURNED ? of_tile(b, k, column) : of_tile(b, column, k); });
  __syncwarp();
}
template <int TURNED>
static inline void multiply_widest(float (&c)[2][16][4], Tile a, Tile b) {
  add_all(
      c[0], 256, [=](int first, int row, int k) { return of_tile(a, first + row, k); },
      [=](int column, int k) { return TURNED ? of_tile(b, k, column) : of_tile(b, column, k); });
}
static inline void multiply_few(float c[4][4], Tile a, Tile b) {
  add_all(
      c, 32, [=](int first, int row, int k) { return of_tile(a, first + row, k); },
      [=](int column, int k) { return of_tile(b, column, k); });
}
static inline void multiply_turned(float c[8][4], Tile a, Tile b) {
  add_all(
      c, 64, [=](int first, int row, int k) { return of_tile(a, k, first + row); },
      [=](int column, int k) { return of_tile(b, k, column); });
}

template <class... A, size_t... I>
static void call(void (*kernel)(A...), void** given, std::index_sequence<I...>) {
  kernel(*(A*)given[I]...);
}
template <class... A>
static void launch(void (*kernel)(A...), int blocks, int threads, int bytes, void** given) {
  for (int number = 0; number < blocks; number++) {
    std::vector<char> memory(bytes + 1024, (char)0xff);  // what nobody wrote is not a number
    std::barrier<> all(threads);
    auto one = std::make_unique<Block>();
    one->memory = (char*)(((uintptr_t)memory.data() + 1023) & ~(uintptr_t)1023);
    one->all = &all;
    for (int warp = 0; warp < threads / 32; warp++) one->warps.push_back(std::make_unique<std::barrier<>>(32));
    for (int pair = 0; pair < threads / 64; pair++) one->pairs.push_back(std::make_unique<std::barrier<>>(64));
    for (int group = 0; group < threads / 128; group++) one->groups.push_back(std::make_unique<std::barrier<>>(128));
    one->both = std::make_unique<std::barrier<>>(256);
    for (auto& turn : one->turns) turn = std::make_unique<std::barrier<>>(256);
    std::vector<std::thread> pool;
    for (int thread = 0; thread < threads; thread++)
      pool.emplace_back([&, thread] {
        threadIdx = {thread, 0, 0};
        blockIdx = {number, 0, 0};
        gridDim = {blocks, 1, 1};
        block = one.get();
        coins = 0x9E3779B9u ^ (u32)(number * threads + thread + 1) * 0x85EBCA6Bu;
        leaving.clear();
        fetching.assign(1, {});
        products.assign(1, {});
        call(kernel, given, std::index_sequence_for<A...>());
      });
    for (auto& thread : pool) thread.join();
  }
}
