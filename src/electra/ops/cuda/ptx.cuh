// PTX instructions of one warp: cp.async, ldmatrix, mma.sync, shuffles, bf16 conversions, and the swizzle of shared
// tiles. Sources include no system header: the runtime compiler (NVRTC) has none.
//
// tests/emulator.h defines EMULATED and gives every function of the guarded sections a meaning on a CPU.

typedef unsigned int u32;
typedef unsigned short u16;  // a bf16 in memory

#ifndef EMULATED
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define DEVICE static __device__ __forceinline__
#define DEVICE_METHOD __device__ __forceinline__
#define SHARED_MEMORY(name) extern __shared__ __align__(1024) char name[]
#define GRID_CONSTANT const __grid_constant__

// Programmatic dependent launch: blocks start while the previous kernel ends. After this call its writes are visible,
// and the next kernel's blocks may start and wait in turn.
DEVICE void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
}
DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// 16 bytes into shared memory; zeros unless `valid`.
DEVICE void cp_async16(u32 to, const void* from, bool valid) {
  int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEVICE void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
template <int PENDING>
DEVICE void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

DEVICE void ldmatrix_x4(u32 r[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
DEVICE void ldmatrix_x4_trans(u32 r[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
DEVICE void stmatrix_x4(u32 to, const u32 r[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(r[0]), "r"(r[1]), "r"(r[2]),
               "r"(r[3])
               : "memory");
}
// A predicated 16-byte store, without a branch.
DEVICE void store16_if(void* to, uint4 x, bool valid) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p st.global.v4.b32 [%0], {%1,%2,%3,%4};\n}\n" ::"l"(to), "r"(x.x),
               "r"(x.y), "r"(x.z), "r"(x.w), "r"((int)valid)
               : "memory");
}
// The same value, opaque to the compiler: what depends on it is recomputed instead of held in registers.
DEVICE int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// c (16 x 8) += a (16 x 16) b (16 x 8).
DEVICE void mma_m16n8k16(float c[4], const u32 a[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE float shuffle_xor(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
template <class T>
DEVICE T shuffle(T x, int lane) {
  return __shfl_sync(0xffffffffu, x, lane);
}
// Lane 0's value, which the compiler then knows to be uniform across the warp.
DEVICE int warp_uniform(int x) { return shuffle(x, 0); }
DEVICE bool any_lane(bool x) { return __any_sync(0xffffffffu, x); }
DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
DEVICE float rsqrt_approx(float x) { return rsqrtf(x); }
// Two numbers rounded to bf16, the first in the low half.
DEVICE u32 pack_bf16(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
DEVICE float bf16_low(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float bf16_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
#endif

// Byte offset of 16-byte chunk `chunk` of a row in a shared tile of 64 bf16 columns: the 128-byte swizzle of TMA and
// wgmma, in which no eight rows share a bank.
DEVICE u32 swizzled(u32 row, u32 chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }
