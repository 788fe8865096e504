// Attention's way back.

KERNEL(256, 1)
attention_backward(MAP qkv, MAP gradient, const float* level, float* sums, const int* lengths, const int* keys, int site,
                   int items, int length, int heads, float scale, int threshold, float grow) {
  SHARED(memory);
  char *shares = memory + 8 * TILE, *slopes = shares + 2 * TILE;  // of 64 keys each: all queries'
  float* parts = (float*)(slopes + 2 * TILE);
  Walk walk = begin_walk(memory, (char*)parts + 4096, 4, items, heads);
  int thread = threadIdx.x, lane = thread & 31, warp = thread / 32, group = thread / GROUP, first = warp * 16;
  float binary = scale * LOG2_E;
  u32 least = keys ? (u32)threshold << 16 : 0;
  float more = keys ? grow : 1.0f;
  u32 columns[16];
#pragma unroll
  for (int n = 0; n < 16; n++) columns[n] = column_word(n * 4 + (lane & 3));
  auto bring_four = [&](const Walk& one) {
    expect(one.gate(), 4 * TILE);
    bring_three(one, qkv);
    bring(one.tile(3), gradient, one.text(), 0, one.head() * 64, one.gate());
  };
  after_others();
  // What comes from memory by itself is asked for one head ahead.
  float height[2], later_height[2];
  int visible = length, later_visible = length;
  u32 key = 0, later_key = 0;
  auto ask = [&](const Walk& one) {
    if (lengths) later_visible = lengths[one.text()];
    if (keys) later_key = (u32)keys[one.text()];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int row = first + lane / 4 + 8 * i;
      later_height[i] = row < length ? level[(long)one.item * length + row] : 0;
    }
  };
  if (walk.more()) {
    if (thread == 0) bring_four(walk);
    ask(walk);
  }
  for (; walk.more(); walk.go_on()) {
    Walk later = walk;
    later.go_on();
    if (thread == 0 && later.more()) {
      taken();  // out of the other set
      bring_four(later);
    }
    visible = later_visible, key = later_key, height[0] = later_height[0], height[1] = later_height[1];
    if (later.more()) ask(later);
    int text = walk.text(), head = walk.head();
    char *q_tile = walk.tile(0), *k_tile = walk.tile(1), *v_tile = walk.tile(2), *d_tile = walk.tile(3);
    u32 word[2];
#pragma unroll
    for (int i = 0; i < 2; i++) word[i] = row_word(key, (u32)site, head * length + first + lane / 4 + 8 * i);
    walk.wait();
    float s[16][4], d[16][4], shared[2] = {};
    begin_scores(s, q_tile + group * 64 * 128, k_tile);
    begin_scores(d, d_tile + group * 64 * 128, v_tile);
    have<1>(s);
    if (visible < ROWS) hide(s, visible, lane);
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) s[n][i] = power2(s[n][i] * binary - height[i / 2]);
    have<0>(d);
    u32 pairs[16][2];
#pragma unroll
    for (int n = 0; n < 16; n++) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        u32 w = stir(word[i] ^ columns[n]);
        bool kept0 = first_stays(w, least), kept1 = second_stays(w, least);
        d[n][2 * i] = kept0 ? d[n][2 * i] : 0;
        d[n][2 * i + 1] = kept1 ? d[n][2 * i + 1] : 0;
        shared[i] += s[n][2 * i] * d[n][2 * i];
        shared[i] += s[n][2 * i + 1] * d[n][2 * i + 1];
        pairs[n][i] = pack(kept0 ? s[n][2 * i] : 0, kept1 ? s[n][2 * i + 1] : 0);
      }
      if (n & 1) write4(place_of(shares) + n / 8 * TILE + at(first + (lane & 15), (n & 6) + (lane >> 4)), pairs[n - 1]);
    }
    for (int i = 0; i < 2; i++) shared[i] = sum_quad(shared[i]) * more;
#pragma unroll
    for (int n = 0; n < 16; n++) {
#pragma unroll
      for (int i = 0; i < 2; i++)
        pairs[n][i] = pack(s[n][2 * i] * (d[n][2 * i] * more - shared[i]),
                           s[n][2 * i + 1] * (d[n][2 * i + 1] * more - shared[i]));
      if (n & 1) write4(place_of(slopes) + n / 8 * TILE + at(first + (lane & 15), (n & 6) + (lane >> 4)), pairs[n - 1]);
    }
    seen_by_engines();
    float dq[8][4], dk[8][4], dv[8][4];
    begin_mixture(dq, pairs, k_tile);
    __syncthreads();  // the other group's queries are there too
    begin_turned(dv, shares + group * TILE, d_tile);
    begin_turned(dk, slopes + group * TILE, q_tile);
    have<2>(dq);
    have<1>(dv);
    have<0>(dk);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) dq[n][i] *= scale, dk[n][i] *= scale, dv[n][i] *= more;
    put_sums(dq, parts + warp * 64, lane);
    put_sums(dv, parts + 512 + warp * 64, lane);
    __syncthreads();  // nobody multiplies any more
    write_rows(dq, q_tile, first, lane);
    write_rows(dk, k_tile, first, lane);
    write_rows(dv, v_tile, first, lane);
    seen_by_engines();
    __syncthreads();
    if (thread == 0)
      for (int i = 0; i < 3; i++) take(walk.tile(i), qkv, text, 0, (i * heads + head) * 64);
    // What is added to all keys changes no softmax, so their sum is zero.
    if (thread < 192) {
      float total = 0;
      int column = thread & 63;
      if (thread / 64 != 1)
        for (int i = 0; i < 8; i++) total += parts[(thread / 64) * 256 + i * 64 + column];
      sums[(text * 3 + thread / 64) * heads * 64 + head * 64 + column] = total;
    }
  }
  if (thread == 0) arrived();
}
