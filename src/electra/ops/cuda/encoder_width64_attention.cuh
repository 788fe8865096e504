// Attention of one head over a sequence in shared memory, for the encoder of width 64. Forward, a warp pair has 16
// queries, and each warp half of the keys. Backward, it has 16 keys and values, and each warp half of the queries; the
// gradient of the scores goes through shared memory once, for the gradient of the queries. Backward keeps of each sixteen
// keys the even ones first, so that both scores that share random bits belong to one thread.

#include "encoder_width64.cuh"

// c = Σ over the warp's keys of dropout(exp2(score - max)) v, unnormalised; `max` and `sum` of each row are over its keys.
DEVICE void attend_half(float (&c)[8][4], float max[2], float sum[2], const u32 (&q)[4][4], const char* k_tile,
                        const char* v_tile, const Dropout& dropout, int call_site, const u32* column_bits,
                        int valid_length, float scale, const Position& p) {
  float e[ROWS / 16][4], scale_log2 = scale * LOG2_E;
  zero(e);
#if WARP_PAIRS == 8
  multiply_tile<0>(e, q, k_tile + p.half * (TILE / 2));
#else
  multiply_rows(e, q, k_tile + p.half * (TILE / 2), p.lane);
#endif
  max[0] = max[1] = -1e28f;
  sum[0] = sum[1] = 0;
#pragma unroll
  for (int n = 0; n < ROWS / 16; n++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (p.half * (ROWS / 2) + n * 8 + (p.lane & 3) * 2 + (i & 1) >= valid_length) e[n][i] = -1e30f;
  row_max(max, e);
  u32 row_bits[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    max[i] *= scale_log2;
    row_bits[i] = dropout_row_bits(dropout.key, (u32)call_site, p.row + 8 * i);
  }
  u32 a[ROWS / 32][4];
#pragma unroll
  for (int n = 0; n < ROWS / 16; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      e[n][i] = exp2_approx(e[n][i] * scale_log2 - max[i / 2]);
      sum[i / 2] += e[n][i];
    }
    if (dropout.enabled) {
      u32 column = column_bits[p.half * (ROWS / 4) + n * 4 + (p.lane & 3)];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        u32 bits = random_bits(row_bits[i], column);
        if (!keeps_low(bits, dropout.threshold)) e[n][2 * i] = 0;
        if (!keeps_high(bits, dropout.threshold)) e[n][2 * i + 1] = 0;
      }
    }
  }
  pack_rows(a, e);
  zero(c);
  Descriptor b = descriptor_of(v_tile + p.half * (TILE / 2), 16);
  wgmma_fence(c);
#pragma unroll
  for (int k = 0; k < ROWS / 32; k++) wgmma_m64n64_rs<1>(c, a[k], b + k * 128);
  wgmma_commit();
  wgmma_wait<0>(c);
#pragma unroll
  for (int i = 0; i < 2; i++) sum[i] = quad_sum(sum[i]);
}

// Byte offset of a 16-byte chunk of the gradient of the scores (keys x queries): as `swizzled`, for 128 columns.
DEVICE u32 scores_offset(u32 key, u32 chunk) {
  return key * 256 + ((chunk & 8) << 4) + (((chunk ^ key) & 7) << 4);
}

// m = dropout(p) and ds = m dm - p dot of a thread's two keys and 32 queries from query0 on, as operand fragments.
// `row_stats` are of each query its lse and dot = Σ_keys m dm.
DEVICE void score_gradients(u32 (&m)[2][4], u32 (&ds)[2][4], const float (&s)[4][4], const float (&dm)[4][4], int query0,
                            const float2* row_stats, const u32* row_bits, u32 column, bool valid0, bool valid1,
                            float scale_log2, const Dropout& dropout, int lane) {
#pragma unroll
  for (int n = 0; n < 4; n++) {
    int query = query0 + n * 8 + (lane & 3) * 2;
    float4 stats = *(float4*)&row_stats[query];
    float p0 = valid0 ? exp2_approx(s[n][0] * scale_log2 - stats.x) : 0;
    float p1 = valid0 ? exp2_approx(s[n][1] * scale_log2 - stats.z) : 0;
    float p2 = valid1 ? exp2_approx(s[n][2] * scale_log2 - stats.x) : 0;
    float p3 = valid1 ? exp2_approx(s[n][3] * scale_log2 - stats.z) : 0;
    float m0 = p0, m1 = p1, m2 = p2, m3 = p3;
    if (dropout.enabled) {
      uint2 rows = *(uint2*)&row_bits[query];
      u32 bits0 = random_bits(rows.x, column), bits1 = random_bits(rows.y, column);
      m0 = keeps_low(bits0, dropout.threshold) ? p0 * dropout.scale : 0;
      m1 = keeps_low(bits1, dropout.threshold) ? p1 * dropout.scale : 0;
      m2 = keeps_high(bits0, dropout.threshold) ? p2 * dropout.scale : 0;
      m3 = keeps_high(bits1, dropout.threshold) ? p3 * dropout.scale : 0;
    }
    int i = (n & 1) * 2;
    m[n / 2][i] = pack_bf16(m0, m1);
    m[n / 2][i + 1] = pack_bf16(m2, m3);
    ds[n / 2][i] = pack_bf16(dm[n][0] * m0 - p0 * stats.y, dm[n][1] * m1 - p1 * stats.w);
    ds[n / 2][i + 1] = pack_bf16(dm[n][2] * m2 - p2 * stats.y, dm[n][3] * m3 - p3 * stats.w);
  }
}

// The warp's queries' part of dk = dsᵀ q and dv = mᵀ d_context of the pair's keys and values; `ds_tile` gets ds.
DEVICE void key_value_gradients(float (&dk)[8][4], float (&dv)[8][4], const char* q_tile, const char* k_tile,
                                const char* v_tile, const char* d_tile, char* ds_tile, const float2* row_stats,
                                const u32* row_bits, const Dropout& dropout, int valid_length, float scale,
                                const Position& p) {
  int lane = p.lane, key0 = p.first_row + 2 * (lane / 4);  // this thread's keys: key0 and key0 + 1
  u32 column = dropout_column_bits(p.pair * 8 + lane / 4);
  bool valid0 = key0 < valid_length, valid1 = key0 + 1 < valid_length;
  float scale_log2 = scale * LOG2_E;
  zero(dk);
  zero(dv);
#pragma unroll 1
  for (int part = 0; part < ROWS / 2; part += 32) {
    int query0 = p.half * (ROWS / 2) + part;
    int warpgroup = position_of(opaque(threadIdx.x)).pair / 4 * 64 * 128;  // where its four warps' keys begin
    Descriptor k_rows = descriptor_of(k_tile + warpgroup, 16), v_rows = descriptor_of(v_tile + warpgroup, 16);
    Descriptor q_rows = descriptor_of(q_tile + query0 * 128, 16), d_rows = descriptor_of(d_tile + query0 * 128, 16);
    float s[4][4], dm[4][4];
    zero(s);
    zero(dm);
    fence_accumulators(dm);
    wgmma_fence(s);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      wgmma_m64n32(s, k_rows + k * 2, q_rows + k * 2);
      wgmma_m64n32(dm, v_rows + k * 2, d_rows + k * 2);
    }
    wgmma_commit();
    wgmma_wait<0>(s);
    fence_accumulators(dm);
    u32 m[2][4], ds[2][4];
    score_gradients(m, ds, s, dm, query0, row_stats, row_bits, column, valid0, valid1, scale_log2, dropout, lane);
    Position again = position_of(opaque(threadIdx.x));  // recomputed: nothing is held in registers meanwhile
    u32 to = scores_offset(again.first_row + (again.lane & 15), (query0 >> 3) + (again.lane >> 4));
#pragma unroll
    for (int k = 0; k < 2; k++) stmatrix_x4(shared_address(ds_tile) + (to ^ k << 5), ds[k]);
    fence_accumulators(dk);
    wgmma_fence(dv);
#pragma unroll
    for (int k = 0; k < 2; k++) {
      wgmma_m64n64_rs<1>(dv, m[k], d_rows + k * 128);
      wgmma_m64n64_rs<1>(dk, ds[k], q_rows + k * 128);
    }
    wgmma_commit();
    wgmma_wait<0>(dv);
    fence_accumulators(dk);
  }
}

// The own columns of dq = ds k * scale of the pair's queries, once all of `ds_tile` is there.
DEVICE void query_gradients(float (&dq)[4][4], const char* k_tile, const char* ds_tile, float scale, const Position& p) {
  zero(dq);
#pragma unroll
  for (int k0 = 0; k0 < ROWS; k0 += 16) {
    u32 a[4], from = scores_offset(k0 + (p.lane >> 4) * 8 + (p.lane & 7), 2 * p.pair + ((p.lane >> 3) & 1));
    ldmatrix_x4_trans(a, shared_address(ds_tile) + from);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      u32 b[4];
      ldmatrix_x4_trans(b, shared_address(k_tile) + swizzled(k0 + (p.lane & 15), (2 * h + (p.lane >> 4)) ^ p.own));
      mma_m16n8k16(dq[2 * h], a, b[0], b[1]);
      mma_m16n8k16(dq[2 * h + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < 4; n++)
    for (int i = 0; i < 4; i++) dq[n][i] *= scale;
}
