// What a warp does together, on bf16 tiles of 64 columns in shared memory. Written without any header: the runtime
// compiler has none.

typedef unsigned int u32;
typedef unsigned short u16;

#ifndef EMULATED
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define INLINE static __device__ __forceinline__
#define INLINE_IN __device__ __forceinline__
#define SHARED(name) extern __shared__ __align__(1024) char name[]

// From here on what earlier kernels wrote may be read, and written over; the next one may come and wait in its turn.
INLINE void after_others() { asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory"); }
INLINE u32 place_of(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// 16 bytes into shared memory, zeros where there is nothing to copy.
INLINE void fetch(u32 to, const void* from, bool there) {
  int bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
INLINE void fetched() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// What is fetched after a mark need not be there for what was fetched before the mark to be: of what lies between marks,
// the last ones may be late.
INLINE void mark() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATE>
INLINE void fetched_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LATE) : "memory");
}

INLINE void read4(u32 r[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
INLINE void read4_turned(u32 r[4], u32 from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}
INLINE void write_word(u32 to, u32 word) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory"); }

// Sixteen bytes to memory at once, if they are `there`.
INLINE void put16(void* to, uint4 x, bool there) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p st.global.v4.b32 [%0], {%1,%2,%3,%4};\n}\n" ::"l"(to), "r"(x.x),
               "r"(x.y), "r"(x.z), "r"(x.w), "r"((int)there)
               : "memory");
}
// The same number; what follows from it is made once, or anew, and not wherever it is needed.
INLINE int anew(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// c (16 x 8) += a (16 x 16) b (16 x 8).
INLINE void multiply(float c[4], const u32 a[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
INLINE float swap(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
// What another lane of the warp has.
template <class T>
INLINE T shown(T x, int lane) {
  return __shfl_sync(0xffffffffu, x, lane);
}
// Whether it is so for any lane of the warp.
INLINE bool any_lane(bool x) { return __any_sync(0xffffffffu, x); }
INLINE float power2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Two numbers rounded to bf16, the first in the low half.
INLINE u32 pack(float low, float high) {
  u32 word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
INLINE float inverse_root(float x) { return rsqrtf(x); }
INLINE float low_of(u32 word) { return __uint_as_float(word << 16); }
INLINE float high_of(u32 word) { return __uint_as_float(word & 0xffff0000u); }
#endif

// `mix` in three steps: the first of x ^ y is that of x ^ that of y.
INLINE u32 fold(u32 x) { return x ^ (x >> 16); }
INLINE u32 stir(u32 x) {
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  return x * 0x846CA68Bu;
}
INLINE u32 mix(u32 x) { return fold(stir(fold(x))); }
// Random words of dropout: `stir(row_word ^ column_word)`, each already folded, which the hash would do first. Two
// neighbours share one. With `least` in the upper half, what each has to reach to stay; that is seen before the last
// step.
INLINE bool first_stays(u32 stirred, u32 least) { return (stirred ^ stirred << 16) >= least; }
INLINE bool second_stays(u32 stirred, u32 least) { return stirred >= least; }
INLINE u32 row_word(u32 key, u32 site, u32 row) { return fold(mix((mix(key ^ site) + 0x9E3779B9u) ^ mix(row))); }
INLINE u32 column_word(u32 pair) { return fold(mix(pair)); }

// Where 16 bytes of a row lie in a tile of 64 columns: turned about by the row, so that no eight rows meet in a bank.
INLINE u32 at(u32 row, u32 chunk) { return row * 128 + ((chunk ^ (row & 7)) << 4); }
