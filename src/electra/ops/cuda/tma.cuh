// Hopper's TMA (copies of whole tiles between global and shared memory, without threads), mbarriers, and
// synchronisation of warpgroups. A TMA tile is 64 bf16 columns wide and laid out as `swizzled` says.

#include "ptx.cuh"

#define WARPGROUP 128  // threads

#ifndef EMULATED
struct __align__(64) TensorMap {
  char bytes[128];
};
#define TENSOR_MAP GRID_CONSTANT TensorMap

// A phase of an mbarrier ends when `count` arrivals and all announced bytes have come; `parity` names the phase a
// thread waits for, in turn 0 and 1.
DEVICE void mbarrier_init(void* barrier, int count = 1) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DEVICE void mbarrier_expect_tx(void* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
DEVICE void mbarrier_arrive(void* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
DEVICE void mbarrier_wait(void* barrier, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}\n" ::"r"(
          shared_address(barrier)),
      "r"(parity)
      : "memory");
}
// The tile whose first element is at (sequence, row, column). Loads fill rows past the sequence's end with zeros, stores
// leave them out.
DEVICE void tma_load(char* to, const TensorMap& map, int sequence, int row, int column, void* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(sequence), "r"(shared_address(barrier))
      : "memory");
}
DEVICE void tma_store(const char* from, const TensorMap& map, int sequence, int row, int column) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
               "r"(column), "r"(row), "r"(sequence), "r"(shared_address(from))
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// This thread's stores but for the last PENDING have read shared memory; all have reached global memory.
template <int PENDING = 0>
DEVICE void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
DEVICE void tma_store_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// A tile, or 128 bytes at an address, into the L2 cache.
DEVICE void tma_prefetch(const TensorMap& map, int row, int column, int sequence = 0) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(&map), "r"(column), "r"(row),
               "r"(sequence)
               : "memory");
}
DEVICE void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p) : "memory"); }
// Makes this thread's writes to shared memory visible to TMA and wgmma.
DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Named barriers: one a warpgroup; one of the first two warpgroups; and one each to let these two alternate.
DEVICE void sync_warpgroup(int warpgroup) { asm volatile("bar.sync %0, 128;" ::"r"(warpgroup + 1) : "memory"); }
DEVICE void sync_consumers() { asm volatile("bar.sync 3, 256;" ::: "memory"); }
DEVICE void pingpong_wait(int warpgroup) { asm volatile("bar.sync %0, 256;" ::"r"(warpgroup + 4) : "memory"); }
DEVICE void pingpong_pass(int warpgroup) { asm volatile("bar.arrive %0, 256;" ::"r"(5 - warpgroup) : "memory"); }
// Registers move from the warpgroup of the producer to those of the consumers.
template <int COUNT>
DEVICE void setmaxnreg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT>
DEVICE void setmaxnreg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
#endif

// One arrival a warp, after all its lanes.
DEVICE void mbarrier_arrive_warp(void* barrier, int lane) {
  __syncwarp();
  if (lane == 0) mbarrier_arrive(barrier);
}
