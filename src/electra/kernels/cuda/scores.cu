// Attention over at most 128 tokens, heads of 64, bf16, for a block that holds all of one head's.
//
// On the way there a warp takes 16 queries. On the way back it holds 16 keys and values and goes over the queries; the
// gradient of the scores goes through shared memory once, for the gradient of the queries. A tile's upper eight rows are
// the even keys then and its lower ones the odd, so that the two scores that share a random word are one thread's.

#define ROWS 128
#define TILE (ROWS * 128)

// What a warp's queries mix of the values, with dropout if it `drops`, and the log-sums to base two of their softmax.
// `line` is the place of the head's first row among the text's; `columns` are the mixed indices of pairs.
INLINE void attend_rows(float c[8][4], const u32 q_part[4][4], char* k_tile, char* v_tile, float* level, bool drops,
                        int key, int site, int line, const u32* columns, int visible, int length, float scale,
                        int threshold, float grow, int first, int lane) {
  int row = first + lane / 4;
  float s[16][4], binary = scale * 1.4426950408889634f, top[2] = {-1e28f, -1e28f}, total[2] = {};
#pragma unroll
  for (int n = 0; n < 16; n++) {
    s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      u32 b[4];
      read4(b, place_of(k_tile) + at(n * 8 + (lane & 7), h * 4 + (lane >> 3)));
      multiply(s[n], q_part[2 * h], b[0], b[1]);
      multiply(s[n], q_part[2 * h + 1], b[2], b[3]);
    }
    int other = n * 8 + (lane & 3) * 2;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (other + (i & 1) >= visible) s[n][i] = -1e30f;
      top[i / 2] = fmaxf(top[i / 2], s[n][i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    top[i] = fmaxf(top[i], swap(top[i], 1));
    top[i] = fmaxf(top[i], swap(top[i], 2)) * binary;
  }
  u32 word[2];
  for (int i = 0; i < 2; i++) word[i] = row_word((u32)key, (u32)site, line + row + 8 * i);
  float share[2];
#pragma unroll
  for (int n = 0; n < 8; n++) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
#pragma unroll
  for (int k = 0; k < 8; k++) {
    u32 a[4];
#pragma unroll
    for (int j = 0; j < 2; j++) {
      float* e = s[2 * k + j];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        e[i] = power2(e[i] * binary - top[i / 2]);
        total[i / 2] += e[i];
      }
      if (drops) {
        u32 column = columns[(2 * k + j) * 4 + (lane & 3)];
#pragma unroll
        for (int i = 0; i < 2; i++) {
          u32 w = mix(word[i] ^ column);
          if ((int)(w & 0xffff) < threshold) e[2 * i] = 0;
          if ((int)(w >> 16) < threshold) e[2 * i + 1] = 0;
        }
      }
      a[2 * j] = pack(e[0], e[1]);
      a[2 * j + 1] = pack(e[2], e[3]);
    }
#pragma unroll
    for (int h = 0; h < 4; h++) {
      u32 b[4];
      read4_turned(b, place_of(v_tile) + at(k * 16 + (lane & 15), 2 * h + (lane >> 4)));
      multiply(c[2 * h], a, b[0], b[1]);
      multiply(c[2 * h + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    total[i] = fmaxf(sum_quad(total[i]), 1e-30f);
    share[i] = (drops ? grow : 1.0f) / total[i];
    if ((lane & 3) == 0 && row + 8 * i < length) level[row + 8 * i] = top[i] + log2f(total[i]);
  }
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) c[n][i] *= share[i / 2];
}

// As `at`, for the gradient of the scores: 128 columns; neither neighbours nor every second row meet in a bank.
INLINE u32 at_scores(u32 key, u32 chunk) {
  u32 turn = ((key >> 1) ^ ((key & 1) << 2)) & 7;
  return key * 256 + ((chunk & 8) << 4) + (((chunk ^ turn) & 7) << 4);
}

// The gradients of a warp's keys and values, and in `scores` that of its scores. `facts` are of a query the log-sum and
// what its gradients share, `words` its dropout's, if it `drops`.
INLINE void back_to_keys(float dk[8][4], float dv[8][4], char* q_tile, char* k_tile, char* v_tile, char* d_tile,
                         char* scores, const float2* facts, const u32* words, bool drops, int visible, float scale,
                         int threshold, float grow, int warp, int lane) {
  u32 q_place = place_of(q_tile), d_place = place_of(d_tile), s_place = place_of(scores);
  int key0 = warp * 16 + 2 * (lane / 4);  // this thread's keys: key0 and key0 + 1
  u32 column = mix(warp * 8 + lane / 4);
  bool seen0 = key0 < visible, seen1 = key0 + 1 < visible;
  float binary = scale * 1.4426950408889634f;
  u32 k_part[4][4], v_part[4][4];
#pragma unroll
  for (int h = 0; h < 4; h++) {
    u32 from = at(warp * 16 + 2 * (lane & 7) + ((lane >> 3) & 1), 2 * h + (lane >> 4));
    read4(k_part[h], place_of(k_tile) + from);
    read4(v_part[h], place_of(v_tile) + from);
  }
  for (int n = 0; n < 8; n++)
    for (int i = 0; i < 4; i++) dk[n][i] = dv[n][i] = 0;
#pragma unroll 1
  for (int q0 = 0; q0 < ROWS; q0 += 16) {
    u32 share[4], slope[4];
#pragma unroll
    for (int n = 0; n < 2; n++) {
      float s[4] = {}, d[4] = {};
      u32 row = q0 + n * 8 + (lane & 7);
#pragma unroll
      for (int h = 0; h < 2; h++) {
        u32 b[4];
        read4(b, q_place + at(row, h * 4 + (lane >> 3)));
        multiply(s, k_part[2 * h], b[0], b[1]);
        multiply(s, k_part[2 * h + 1], b[2], b[3]);
        read4(b, d_place + at(row, h * 4 + (lane >> 3)));
        multiply(d, v_part[2 * h], b[0], b[1]);
        multiply(d, v_part[2 * h + 1], b[2], b[3]);
      }
      int query = q0 + n * 8 + (lane & 3) * 2;
      float4 fact = *(float4*)&facts[query];
      float p0 = seen0 ? power2(s[0] * binary - fact.x) : 0, p1 = seen0 ? power2(s[1] * binary - fact.z) : 0;
      float p2 = seen1 ? power2(s[2] * binary - fact.x) : 0, p3 = seen1 ? power2(s[3] * binary - fact.z) : 0;
      float m0 = p0, m1 = p1, m2 = p2, m3 = p3;
      if (drops) {
        uint2 word = *(uint2*)&words[query];
        u32 w0 = mix(word.x ^ column), w1 = mix(word.y ^ column);
        m0 = (int)(w0 & 0xffff) >= threshold ? p0 * grow : 0;
        m1 = (int)(w1 & 0xffff) >= threshold ? p1 * grow : 0;
        m2 = (int)(w0 >> 16) >= threshold ? p2 * grow : 0;
        m3 = (int)(w1 >> 16) >= threshold ? p3 * grow : 0;
      }
      share[2 * n] = pack(m0, m1);
      share[2 * n + 1] = pack(m2, m3);
      slope[2 * n] = pack(d[0] * m0 - p0 * fact.y, d[1] * m1 - p1 * fact.w);
      slope[2 * n + 1] = pack(d[2] * m2 - p2 * fact.y, d[3] * m3 - p3 * fact.w);
      u32 chunk = q0 / 8 + n;
      write_word(s_place + at_scores(key0, chunk) + (lane & 3) * 4, slope[2 * n]);
      write_word(s_place + at_scores(key0 + 1, chunk) + (lane & 3) * 4, slope[2 * n + 1]);
    }
    u32 row = q0 + (lane & 15);
#pragma unroll
    for (int h = 0; h < 4; h++) {
      u32 b[4];
      read4_turned(b, d_place + at(row, 2 * h + (lane >> 4)));
      multiply(dv[2 * h], share, b[0], b[1]);
      multiply(dv[2 * h + 1], share, b[2], b[3]);
      read4_turned(b, q_place + at(row, 2 * h + (lane >> 4)));
      multiply(dk[2 * h], slope, b[0], b[1]);
      multiply(dk[2 * h + 1], slope, b[2], b[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < 8; n++)
    for (int i = 0; i < 4; i++) dk[n][i] *= scale;
}

// The gradient of a warp's queries, once all of `scores` is there.
INLINE void back_to_queries(float dq[8][4], char* k_tile, char* scores, float scale, int warp, int lane) {
#pragma unroll
  for (int n = 0; n < 8; n++)
    for (int i = 0; i < 4; i++) dq[n][i] = 0;
#pragma unroll
  for (int k0 = 0; k0 < ROWS; k0 += 16) {
    u32 a[4];
    read4_turned(a, place_of(scores) + at_scores(k0 + (lane >> 4) * 8 + (lane & 7), 2 * warp + ((lane >> 3) & 1)));
#pragma unroll
    for (int h = 0; h < 4; h++) {
      u32 b[4];
      read4_turned(b, place_of(k_tile) + at(k0 + (lane & 15), 2 * h + (lane >> 4)));
      multiply(dq[2 * h], a, b[0], b[1]);
      multiply(dq[2 * h + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < 8; n++)
    for (int i = 0; i < 4; i++) dq[n][i] *= scale;
}
