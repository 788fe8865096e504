// Hopper's wgmma: asynchronous matrix products of a warpgroup, operands read from shared memory in TMA's layout. Each of
// the four warps holds 16 rows of the 64 x N accumulator, as `reduce.cuh` says.

#include "tma.cuh"

#ifndef EMULATED
// Keeps the compiler from moving accesses to `c` across: it does not see when wgmma writes it.
template <int N>
DEVICE void fence_accumulators(float (&c)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; n++)
    asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
}
// Orders register accesses before the wgmma that follows.
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
template <int N>
DEVICE void wgmma_fence(float (&c)[N][4]) {
  fence_accumulators(c);
  wgmma_fence();
}
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most PENDING committed groups are unfinished; `c` belongs to a finished one.
template <int PENDING>
DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
template <int PENDING, int N>
DEVICE void wgmma_wait(float (&c)[N][4]) {
  wgmma_wait<PENDING>();
  fence_accumulators(c);
}
// Matrix descriptor: 128-byte swizzle, eight rows every 1024 bytes. `stride` is the byte distance to the next 64 columns
// of an operand whose columns are outputs. Adding 1 advances by 16 bytes.
typedef unsigned long long Descriptor;
DEVICE Descriptor descriptor_at(u32 address, int stride) {
  return (Descriptor)(address >> 4) | (Descriptor)(stride >> 4) << 16 | 64ull << 32 | 1ull << 62;
}

#define ACC4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ACC16(d, i) ACC4(d, i), ACC4(d, i + 4), ACC4(d, i + 8), ACC4(d, i + 12)
#define ACC32(d) ACC16(d, 0), ACC16(d, 16)
#define ACC64(d) ACC32(d), ACC16(d, 32), ACC16(d, 48)
#define REG16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define REG32 REG16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REG64                                                                        \
  REG32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49," \
        "%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define REG128                                                                                    \
  REG64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,"  \
        "%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,"   \
        "%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,"   \
        "%122,%123,%124,%125,%126,%127"
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 "

// c (64 x 128) += a (64 x 16) bᵀ (16 x 128), or a b with TRANSPOSE_B; with ZERO_INIT, c = a bᵀ.
template <int TRANSPOSE_B, int ZERO_INIT = 0>
DEVICE void wgmma_m64n128(float c[16][4], Descriptor a, Descriptor b) {
  float* d = &c[0][0];
  asm volatile(WGMMA(128) "{" REG64 "}, %64, %65, %67, 1, 1, 0, %66;"
               : ACC64(d) : "l"(a), "l"(b), "n"(TRANSPOSE_B), "n"(!ZERO_INIT));
}
// The same for 256 columns; c holds halves of 128.
template <int TRANSPOSE_B>
DEVICE void wgmma_m64n256(float (&c)[2][16][4], Descriptor a, Descriptor b) {
  float *d = &c[0][0][0], *e = &c[1][0][0];
  asm volatile(WGMMA(256) "{" REG128 "}, %128, %129, 1, 1, 1, 0, %130;"
               : ACC64(d), ACC64(e) : "l"(a), "l"(b), "n"(TRANSPOSE_B));
}
// c (64 x 64) += a bᵀ or a b, with a (64 x 16) in registers, each warp's own rows.
template <int TRANSPOSE_B>
DEVICE void wgmma_m64n64_rs(float c[8][4], const u32 a[4], Descriptor b) {
  float* d = &c[0][0];
  asm volatile(WGMMA(64) "{" REG32 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, %37;"
               : ACC32(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TRANSPOSE_B));
}
// c (64 x 32) += a (64 x 16) bᵀ (16 x 32).
DEVICE void wgmma_m64n32(float c[4][4], Descriptor a, Descriptor b) {
  float* d = &c[0][0];
  asm volatile(WGMMA(32) "{" REG16 "}, %16, %17, 1, 1, 1, 0, 0;" : ACC16(d, 0) : "l"(a), "l"(b));
}
// c (64 x 64) += aᵀ b, with a and b (16 x 64).
DEVICE void wgmma_m64n64_transposed(float c[8][4], Descriptor a, Descriptor b) {
  float* d = &c[0][0];
  asm volatile(WGMMA(64) "{" REG32 "}, %32, %33, 1, 1, 1, 1, 1;" : ACC32(d) : "l"(a), "l"(b));
}
#endif

DEVICE Descriptor descriptor_of(const char* p, int stride) { return descriptor_at(shared_address(p), stride); }
