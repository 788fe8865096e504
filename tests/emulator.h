// Runs a CUDA kernel of src/electra/ops/cuda on a CPU: a block's threads are threads, and warp-wide instructions go
// through a barrier. Gives a meaning to the functions that ptx.cuh, tma.cuh and wgmma.cuh write in PTX, and calls a
// kernel with an array of pointers to its arguments.
//
// Asynchronous work runs as late as the kernel allows. wgmma and TMA stores always run when a thread waits for them, so
// what they read must still be there. cp.async and TMA loads run at once or late, as a pseudo-random bit decides: what a
// thread reads must have arrived, and nobody may still need what a load overwrites.
#include <array>
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
#define DEVICE static inline
#define DEVICE_METHOD inline
#define KERNEL(threads, blocks) static void
#define SHARED_MEMORY(name) char* name = block->memory
#define GRID_CONSTANT
#define TENSOR_MAP TensorMap

struct uint4 { u32 x, y, z, w; };
struct uint2 { u32 x, y; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
DEVICE uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
DEVICE float2 make_float2(float x, float y) { return {x, y}; }
DEVICE float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

typedef std::vector<std::function<void()>> Pending;
struct Mbarrier {
  std::atomic<int> phase;
  int expected_bytes;  // written by its one producer
  int count;           // arrivals that end a phase
  std::atomic<int> missing;
  std::mutex mutex;
  Pending loads;
};
struct Dimensions { int x, y, z; };
struct Block {
  char* memory;
  std::barrier<>* threads;
  std::unique_ptr<std::barrier<>> consumers, pingpong[2];
  std::vector<std::unique_ptr<std::barrier<>>> warps, warp_pairs, warpgroups;
  Mbarrier mbarriers[32];    // by their address in shared memory
  u32 exchange[32][32][8];  // by warp and lane: operands of warp-wide instructions
};
static thread_local Dimensions threadIdx, blockIdx, gridDim;
static thread_local Block* block;

static thread_local u32 random_state;
DEVICE bool runs_late() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 17;
  random_state ^= random_state << 5;
  return random_state & 1;
}
// A TMA store first reads shared memory, then writes global memory.
struct Store {
  std::function<void(std::vector<u16>&)> read;
  std::function<void(const std::vector<u16>&)> write;
  std::vector<u16> data;
};
static thread_local std::vector<Store> stores;
static thread_local std::vector<Pending> cp_async_groups, wgmma_groups;  // the last one is open
DEVICE void run_all(Pending& pending) {
  for (auto& one : pending) one();
  pending.clear();
}

DEVICE int own_lane() { return threadIdx.x & 31; }
DEVICE u32 (*own_exchange())[8] { return block->exchange[threadIdx.x / 32]; }
DEVICE void __syncthreads() { block->threads->arrive_and_wait(); }
DEVICE void __syncwarp() { block->warps[threadIdx.x / 32]->arrive_and_wait(); }
DEVICE void wait_for_previous_kernel() {}
DEVICE u32 shared_address(const void* p) { return (u32)((const char*)p - block->memory); }
DEVICE void cp_async16(u32 to, const void* from, bool valid) {
  auto copy = [=] {
    if (valid) memcpy(block->memory + to, from, 16);
    else memset(block->memory + to, 0, 16);
  };
  if (runs_late()) cp_async_groups.back().push_back(copy);
  else copy();
}
DEVICE void cp_async_wait_all() {
  for (auto& group : cp_async_groups) run_all(group);
  cp_async_groups.assign(1, {});
}
DEVICE void cp_async_commit() { cp_async_groups.emplace_back(); }
template <int PENDING>
DEVICE void cp_async_wait_group() {
  for (size_t i = 0; i + 1 + PENDING < cp_async_groups.size(); i++) run_all(cp_async_groups[i]);
}
DEVICE void store16_if(void* to, uint4 x, bool valid) {
  if (valid) memcpy(to, &x, 16);
}

DEVICE float bf16_low(u32 pair) {
  pair <<= 16;
  float x;
  memcpy(&x, &pair, 4);
  return x;
}
DEVICE float bf16_high(u32 pair) { return bf16_low(pair >> 16); }
DEVICE u32 to_bf16(float x) {  // to the nearest, ties to even
  u32 bits;
  memcpy(&bits, &x, 4);
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
DEVICE u32 pack_bf16(float low, float high) { return to_bf16(low) | to_bf16(high) << 16; }
DEVICE float exp2_approx(float x) { return exp2f(x); }
DEVICE float __saturatef(float x) { return fminf(fmaxf(x, 0), 1); }
DEVICE float rsqrt_approx(float x) { return 1 / sqrtf(x); }
DEVICE int opaque(int x) { return x; }
DEVICE int warp_uniform(int x) { return x; }

// Four 8 x 8 matrices, whose rows the lanes address eight by eight; a lane gets two neighbours of a row, or of a column.
DEVICE void ldmatrix(u32 r[4], u32 from, bool transposed) {
  u32(*exchange)[8] = own_exchange();
  int lane = own_lane();
  exchange[lane][0] = from;
  __syncwarp();
  for (int m = 0; m < 4; m++) {
    u16 pair[2];
    for (int j = 0; j < 2; j++) {
      int row = transposed ? 2 * (lane & 3) + j : lane / 4, column = transposed ? lane / 4 : 2 * (lane & 3) + j;
      memcpy(&pair[j], block->memory + exchange[m * 8 + row][0] + column * 2, 2);
    }
    r[m] = pair[0] | (u32)pair[1] << 16;
  }
  __syncwarp();
}
DEVICE void ldmatrix_x4(u32 r[4], u32 from) { ldmatrix(r, from, false); }
DEVICE void ldmatrix_x4_trans(u32 r[4], u32 from) { ldmatrix(r, from, true); }
DEVICE void stmatrix_x4(u32 to, const u32 r[4]) {
  u32(*exchange)[8] = own_exchange();
  int lane = own_lane();
  exchange[lane][0] = to;
  __syncwarp();
  for (int m = 0; m < 4; m++) memcpy(block->memory + exchange[m * 8 + lane / 4][0] + (lane & 3) * 4, &r[m], 4);
  __syncwarp();
}

// Element (row, k) of the 16 x 16 operand in registers `a` of a warp's lanes, as the PTX manual lays it out.
template <class Lanes>
DEVICE float a_fragment(const Lanes& a, int row, int k) {
  u32 x = a[(row & 7) * 4 + (k & 7) / 2][(row >= 8) + 2 * (k >= 8)];
  return (k & 1) ? bf16_high(x) : bf16_low(x);
}
DEVICE void mma_m16n8k16(float c[4], const u32 a[4], u32 b0, u32 b1) {
  u32(*exchange)[8] = own_exchange();
  int lane = own_lane();
  for (int i = 0; i < 4; i++) exchange[lane][i] = a[i];
  exchange[lane][4] = b0;
  exchange[lane][5] = b1;
  __syncwarp();
  for (int i = 0; i < 4; i++) {
    int row = lane / 4 + (i >= 2) * 8, column = 2 * (lane & 3) + (i & 1);
    double total = c[i];
    for (int k = 0; k < 16; k++) {
      u32 y = exchange[column * 4 + (k & 7) / 2][4 + (k >= 8)];
      total += (double)a_fragment(exchange, row, k) * ((k & 1) ? bf16_high(y) : bf16_low(y));
    }
    c[i] = (float)total;
  }
  __syncwarp();
}
template <class T>
DEVICE T shuffle(T x, int lane) {
  u32(*exchange)[8] = own_exchange();
  memcpy(&exchange[own_lane()][0], &x, 4);
  __syncwarp();
  T other;
  memcpy(&other, &exchange[lane][0], 4);
  __syncwarp();
  return other;
}
DEVICE float shuffle_xor(float x, int lanes) { return shuffle(x, own_lane() ^ lanes); }
DEVICE bool any_lane(bool x) {
  u32(*exchange)[8] = own_exchange();
  exchange[own_lane()][0] = x;
  __syncwarp();
  bool found = false;
  for (int lane = 0; lane < 32; lane++) found = found || exchange[lane][0];
  __syncwarp();
  return found;
}
DEVICE void sync_warp_pair(int pair) { block->warp_pairs[pair]->arrive_and_wait(); }
DEVICE void sync_warpgroup(int warpgroup) { block->warpgroups[warpgroup]->arrive_and_wait(); }
DEVICE void sync_consumers() { block->consumers->arrive_and_wait(); }
DEVICE void pingpong_wait(int warpgroup) { block->pingpong[warpgroup]->arrive_and_wait(); }
DEVICE void pingpong_pass(int warpgroup) { (void)block->pingpong[1 - warpgroup]->arrive(); }
template <int COUNT>
DEVICE void setmaxnreg_dec() {}
template <int COUNT>
DEVICE void setmaxnreg_inc() {}

struct TensorMap {
  char* base;
  long sequences, rows, columns, stride, tile_rows;  // rows of a sequence; the stride in bytes
};
DEVICE Mbarrier& mbarrier_at(void* barrier) { return block->mbarriers[shared_address(barrier) / 8 % 32]; }
DEVICE void mbarrier_init(void* barrier, int count = 1) {
  Mbarrier& own = mbarrier_at(barrier);
  own.phase = 0;
  own.expected_bytes = 0;
  own.count = own.missing = count;
}
DEVICE void mbarrier_arrive(void* barrier) {
  Mbarrier& own = mbarrier_at(barrier);
  if (--own.missing == 0) {
    own.missing = own.count;
    own.phase++;
  }
}
DEVICE void mbarrier_expect_tx(void* barrier, int bytes) { mbarrier_at(barrier).expected_bytes = bytes; }
DEVICE void mbarrier_wait(void* barrier, int parity) {
  Mbarrier& own = mbarrier_at(barrier);
  while ((own.phase & 1) == parity) {
    {
      std::lock_guard<std::mutex> lock(own.mutex);
      run_all(own.loads);
    }
    std::this_thread::yield();
  }
}
// An element of a TMA tile in global memory, if there is one, and in shared memory.
DEVICE char* in_global(const TensorMap& map, int sequence, int row, int column) {
  bool valid = sequence < map.sequences && row < map.rows && column < map.columns;
  return valid ? map.base + (sequence * map.rows + row) * map.stride + column * 2 : nullptr;
}
DEVICE char* in_shared(u32 offset) { return block->memory + (offset ^ ((offset >> 7 & 7) << 4)); }
DEVICE char* in_shared(const char* tile, int row, int column) {
  return in_shared(shared_address(tile) + row * 128 + column * 2);
}
DEVICE void tma_load(char* to, const TensorMap& map, int sequence, int row, int column, void* barrier) {
  Mbarrier& own = mbarrier_at(barrier);
  auto copy = [=, &own] {
    const u16 zero = 0;
    for (int r = 0; r < map.tile_rows; r++)
      for (int c = 0; c < 64; c++) {
        const char* from = in_global(map, sequence, row + r, column + c);
        memcpy(in_shared(to, r, c), from ? from : (const char*)&zero, 2);
      }
    own.expected_bytes -= map.tile_rows * 128;
    if (own.expected_bytes == 0) own.phase++;
  };
  std::lock_guard<std::mutex> lock(own.mutex);
  if (runs_late()) own.loads.push_back(copy);
  else copy();
}
DEVICE void tma_prefetch(const TensorMap&, int, int, int = 0) {}
DEVICE void prefetch_l2(const void*) {}
DEVICE void tma_store(const char* from, const TensorMap& map, int sequence, int row, int column) {
  auto each = [=](auto work) {
    for (int r = 0; r < map.tile_rows; r++)
      for (int c = 0; c < 64; c++) work(r * 64 + c, r, c);
  };
  stores.push_back({[=](std::vector<u16>& data) {
                      data.resize(map.tile_rows * 64);
                      each([&](int i, int r, int c) { memcpy(&data[i], in_shared(from, r, c), 2); });
                    },
                    [=](const std::vector<u16>& data) {
                      each([&](int i, int r, int c) {
                        if (char* to = in_global(map, sequence, row + r, column + c)) memcpy(to, &data[i], 2);
                      });
                    },
                    {}});
}
template <int PENDING = 0>
DEVICE void tma_store_wait_read() {
  for (size_t i = 0; i + PENDING < stores.size(); i++)
    if (stores[i].data.empty()) stores[i].read(stores[i].data);
}
DEVICE void tma_store_wait_all() {
  tma_store_wait_read();
  for (auto& one : stores) one.write(one.data);
  stores.clear();
}

DEVICE void fence_async_proxy() {}
template <int N>
DEVICE void fence_accumulators(float (&c)[N][4]) {}
DEVICE void wgmma_fence() {}
template <int N>
DEVICE void wgmma_fence(float (&c)[N][4]) {}
DEVICE void wgmma_commit() { wgmma_groups.emplace_back(); }
template <int PENDING>
DEVICE void wgmma_wait() {
  size_t finished = wgmma_groups.size() > PENDING + 1 ? wgmma_groups.size() - 1 - PENDING : 0;
  for (size_t i = 0; i < finished; i++) run_all(wgmma_groups[i]);
  wgmma_groups.erase(wgmma_groups.begin(), wgmma_groups.begin() + finished);
}
template <int PENDING, int N>
DEVICE void wgmma_wait(float (&c)[N][4]) {
  wgmma_wait<PENDING>();
}
typedef unsigned long long Descriptor;
DEVICE Descriptor descriptor_at(u32 address, int stride) { return address >> 4 | (Descriptor)stride << 32; }
DEVICE float element(Descriptor tile, int row, int column) {
  u16 x;
  memcpy(&x, in_shared((u32)tile * 16 + (u32)(tile >> 32) * (column / 64) + row * 128 + column % 64 * 2), 2);
  return bf16_low(x);
}
// a(first row of the warp, row, k) and b(column, k) give the operands' elements.
template <class A, class B>
DEVICE void wgmma(float (*c)[4], int columns, A a, B b) {
  wgmma_groups.back().push_back([=] {
    int warp = threadIdx.x / 32 % 4, lane = own_lane();
    for (int n = 0; n < columns / 8; n++)
      for (int i = 0; i < 4; i++) {
        double total = c[n][i];
        int row = lane / 4 + i / 2 * 8, column = n * 8 + (lane & 3) * 2 + i % 2;
        for (int k = 0; k < 16; k++) total += (double)a(warp * 16, row, k) * b(column, k);
        c[n][i] = (float)total;
      }
  });
}
DEVICE auto a_rows(Descriptor a) {
  return [=](int first, int row, int k) { return element(a, first + row, k); };
}
template <int TRANSPOSE_B>
DEVICE auto b_columns(Descriptor b) {
  return [=](int column, int k) { return TRANSPOSE_B ? element(b, k, column) : element(b, column, k); };
}
template <int TRANSPOSE_B, int ZERO_INIT = 0>
DEVICE void wgmma_m64n128(float c[16][4], Descriptor a, Descriptor b) {
  if (ZERO_INIT) wgmma_groups.back().push_back([=] { std::fill(c[0], c[0] + 64, 0.0f); });
  wgmma(c, 128, a_rows(a), b_columns<TRANSPOSE_B>(b));
}
template <int TRANSPOSE_B>
DEVICE void wgmma_m64n256(float (&c)[2][16][4], Descriptor a, Descriptor b) {
  wgmma(c[0], 256, a_rows(a), b_columns<TRANSPOSE_B>(b));
}
DEVICE void wgmma_m64n32(float c[4][4], Descriptor a, Descriptor b) { wgmma(c, 32, a_rows(a), b_columns<0>(b)); }
DEVICE void wgmma_m64n64_transposed(float c[8][4], Descriptor a, Descriptor b) {
  wgmma(c, 64, [=](int first, int row, int k) { return element(a, k, first + row); }, b_columns<1>(b));
}
template <int TRANSPOSE_B>
DEVICE void wgmma_m64n64_rs(float c[8][4], const u32 a[4], Descriptor b) {
  u32(*exchange)[8] = own_exchange();
  for (int i = 0; i < 4; i++) exchange[own_lane()][i] = a[i];
  __syncwarp();
  std::array<std::array<u32, 4>, 32> lanes;
  for (int lane = 0; lane < 32; lane++) memcpy(&lanes[lane], exchange[lane], 16);
  wgmma(c, 64, [=](int, int row, int k) { return a_fragment(lanes, row, k); }, b_columns<TRANSPOSE_B>(b));
  __syncwarp();
}

template <class... A, size_t... I>
static void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*(A*)arguments[I]...);
}
template <class... A>
static void launch(void (*kernel)(A...), int blocks, int threads, int bytes, void** arguments) {
  for (int number = 0; number < blocks; number++) {
    std::vector<char> memory(bytes + 1024, (char)0xff);  // what nobody wrote is NaN
    std::barrier<> all(threads);
    auto one = std::make_unique<Block>();
    one->memory = (char*)(((uintptr_t)memory.data() + 1023) & ~(uintptr_t)1023);
    one->threads = &all;
    for (int i = 0; i < threads / 32; i++) one->warps.push_back(std::make_unique<std::barrier<>>(32));
    for (int i = 0; i < threads / 64; i++) one->warp_pairs.push_back(std::make_unique<std::barrier<>>(64));
    for (int i = 0; i < threads / 128; i++) one->warpgroups.push_back(std::make_unique<std::barrier<>>(128));
    one->consumers = std::make_unique<std::barrier<>>(256);
    for (auto& barrier : one->pingpong) barrier = std::make_unique<std::barrier<>>(256);
    std::vector<std::thread> pool;
    for (int thread = 0; thread < threads; thread++)
      pool.emplace_back([&, thread] {
        threadIdx = {thread, 0, 0};
        blockIdx = {number, 0, 0};
        gridDim = {blocks, 1, 1};
        block = one.get();
        random_state = 0x9E3779B9u ^ (u32)(number * threads + thread + 1) * 0x85EBCA6Bu;
        stores.clear();
        cp_async_groups.assign(1, {});
        wgmma_groups.assign(1, {});
        call(kernel, arguments, std::index_sequence_for<A...>());
      });
    for (auto& thread : pool) thread.join();
  }
}
