// Attention over at most 128 tokens, one head of 64, bf16, for a block that holds all of it: a pair of warps has 16
// queries on the way there, and each takes half of the keys. On the way back it has 16 keys and values, and each takes
// half of the queries; the gradient of the scores goes through shared memory once, for the gradient of the queries. Of
// each sixteen keys the even ones come first then, so that the two scores that share a random word are one thread's.

// What the queries mix of the warp's keys' values, with dropout if it `drops`, before it is divided by `total`; `top` is
// what all exponents are less. `columns` are the mixed indices of pairs, folded.
INLINE void attend_half(float (&c)[8][4], float top[2], float total[2], const u32 (&q_part)[4][4], const char* k_tile,
                        const char* v_tile, bool drops, int key, int site, const u32* columns, int visible, float scale,
                        u32 least, const Seat& s) {
  float e[ROWS / 16][4], binary = scale * LOG2_E;
  clear(e);
#if BANDS == 8
  add_box<0>(e, q_part, k_tile + s.half * (TILE / 2));
#else
  add_rows(e, q_part, k_tile + s.half * (TILE / 2), s.lane);
#endif
  top[0] = top[1] = -1e28f;
  total[0] = total[1] = 0;
#pragma unroll
  for (int n = 0; n < ROWS / 16; n++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (s.half * (ROWS / 2) + n * 8 + (s.lane & 3) * 2 + (i & 1) >= visible) e[n][i] = -1e30f;
  raise(top, e);
  u32 word[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    top[i] *= binary;
    word[i] = row_word((u32)key, (u32)site, s.row + 8 * i);
  }
  u32 a[ROWS / 32][4];
#pragma unroll
  for (int n = 0; n < ROWS / 16; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      e[n][i] = power2(e[n][i] * binary - top[i / 2]);
      total[i / 2] += e[n][i];
    }
    if (drops) {
      u32 column = columns[s.half * (ROWS / 4) + n * 4 + (s.lane & 3)];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        u32 w = stir(word[i] ^ column);
        if (!first_stays(w, least)) e[n][2 * i] = 0;
        if (!second_stays(w, least)) e[n][2 * i + 1] = 0;
      }
    }
  }
  round_rows(a, e);
  clear(c);
  Tile b = tile_at(v_tile + s.half * (TILE / 2), 16);
  begin_product(c);
#pragma unroll
  for (int k = 0; k < ROWS / 32; k++) multiply_own<1>(c, a[k], b + k * 128);
  end_product();
  have<0>(c);
#pragma unroll
  for (int i = 0; i < 2; i++) total[i] = sum_quad(total[i]);
}

// As `at`, for the gradient of the scores: 128 columns.
INLINE u32 at_scores(u32 key, u32 chunk) { return key * 256 + ((chunk & 8) << 4) + (((chunk ^ key) & 7) << 4); }

// What the warp's queries add to the gradients of the pair's keys and values, and in `scores` the gradient of their
// scores. `facts` are of a query the log-sum and what its gradients share, `words` its dropout's, folded, if it `drops`.
INLINE void back_to_keys(float (&dk)[8][4], float (&dv)[8][4], const char* q_tile, const char* k_tile,
                         const char* v_tile, const char* d_tile, char* scores, const float2* facts, const u32* words,
                         bool drops, int visible, float scale, u32 least, float grow, const Seat& s) {
  int lane = s.lane, key0 = s.first + 2 * (lane / 4);  // this thread's keys: key0 and key0 + 1
  u32 column = column_word(s.band * 8 + lane / 4);
  bool seen0 = key0 < visible, seen1 = key0 + 1 < visible;
  float binary = scale * LOG2_E;
  clear(dk);
  clear(dv);
#pragma unroll 1
  for (int part = 0; part < ROWS / 2; part += 32) {
    int q0 = s.half * (ROWS / 2) + part;
    int group = seat_of(anew(threadIdx.x)).band / 4 * 64 * 128;  // where the four warps' keys begin
    Tile k_rows = tile_at(k_tile + group, 16), v_rows = tile_at(v_tile + group, 16);
    Tile q_rows = tile_at(q_tile + q0 * 128, 16), d_rows = tile_at(d_tile + q0 * 128, 16);
    float p[4][4], d[4][4];
    clear(p);
    clear(d);
    hold(d);
    begin_product(p);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      multiply_few(p, k_rows + k * 2, q_rows + k * 2);
      multiply_few(d, v_rows + k * 2, d_rows + k * 2);
    }
    end_product();
    have<0>(p);
    hold(d);
    u32 share[2][4], slope[2][4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
      int query = q0 + n * 8 + (lane & 3) * 2;
      float4 fact = *(float4*)&facts[query];
      float p0 = seen0 ? power2(p[n][0] * binary - fact.x) : 0, p1 = seen0 ? power2(p[n][1] * binary - fact.z) : 0;
      float p2 = seen1 ? power2(p[n][2] * binary - fact.x) : 0, p3 = seen1 ? power2(p[n][3] * binary - fact.z) : 0;
      float m0 = p0, m1 = p1, m2 = p2, m3 = p3;
      if (drops) {
        uint2 word = *(uint2*)&words[query];
        u32 w0 = stir(word.x ^ column), w1 = stir(word.y ^ column);
        m0 = first_stays(w0, least) ? p0 * grow : 0;
        m1 = first_stays(w1, least) ? p1 * grow : 0;
        m2 = second_stays(w0, least) ? p2 * grow : 0;
        m3 = second_stays(w1, least) ? p3 * grow : 0;
      }
      int i = (n & 1) * 2;
      share[n / 2][i] = pack(m0, m1);
      share[n / 2][i + 1] = pack(m2, m3);
      slope[n / 2][i] = pack(d[n][0] * m0 - p0 * fact.y, d[n][1] * m1 - p1 * fact.w);
      slope[n / 2][i + 1] = pack(d[n][2] * m2 - p2 * fact.y, d[n][3] * m3 - p3 * fact.w);
    }
    Seat again = seat_of(anew(threadIdx.x));  // as above, so that nothing is kept
    u32 to = at_scores(again.first + (again.lane & 15), (q0 >> 3) + (again.lane >> 4));
#pragma unroll
    for (int k = 0; k < 2; k++) write4(place_of(scores) + (to ^ k << 5), slope[k]);
    hold(dk);
    begin_product(dv);
#pragma unroll
    for (int k = 0; k < 2; k++) {
      multiply_own<1>(dv, share[k], d_rows + k * 128);
      multiply_own<1>(dk, slope[k], q_rows + k * 128);
    }
    end_product();
    have<0>(dv);
    hold(dk);
  }
}

// The own columns of the gradient of the pair's queries, once all of `scores` is there.
INLINE void back_to_queries(float (&dq)[4][4], const char* k_tile, const char* scores, float scale, const Seat& s) {
  clear(dq);
#pragma unroll
  for (int k0 = 0; k0 < ROWS; k0 += 16) {
    u32 a[4];
    read4_turned(a, place_of(scores) + at_scores(k0 + (s.lane >> 4) * 8 + (s.lane & 7), 2 * s.band + ((s.lane >> 3) & 1)));
#pragma unroll
    for (int h = 0; h < 2; h++) {
      u32 b[4];
      read4_turned(b, place_of(k_tile) + at(k0 + (s.lane & 15), (2 * h + (s.lane >> 4)) ^ s.own));
      multiply(dq[2 * h], a, b[0], b[1]);
      multiply(dq[2 * h + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < 4; n++)
    for (int i = 0; i < 4; i++) dq[n][i] *= scale;
}
