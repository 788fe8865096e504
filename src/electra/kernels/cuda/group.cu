// What four warps do together on Hopper: products straight from shared memory.

#ifndef EMULATED
// What was written into shared memory is seen by the products' own engine.
INLINE void seen_by_group() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Nothing of `c` is moved across: the engine writes it, and the compiler does not see when.
INLINE void hold(float c[16][4]) {
#pragma unroll
  for (int n = 0; n < 16; n++)
    asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
}
INLINE void begin_group(float c[16][4]) {
  hold(c);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
INLINE void end_group(float c[16][4]) {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  hold(c);
}
// Where a product finds a tile: rows of 128 bytes, eight of them 1024 bytes from the next, turned about in units of 16
// bytes. Sixteen bytes further is one more.
typedef unsigned long long Tile;
INLINE Tile tile_at(const char* p) { return (Tile)(place_of(p) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62; }

// c (64 x 128), sixteen rows a warp, = or += 16 columns of 64 rows times 16 columns of 128 rows.
INLINE void multiply_group(float c[16][4], Tile a, Tile b, int more) {
  float* d = &c[0][0];
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,"
      "%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,"
      "%59,%60,%61,%62,%63}, %64, %65, p, 1, 1, 0, 0;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "l"(a), "l"(b), "r"(more));
}
#endif
