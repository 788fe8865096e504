// Attention's way there.

KERNEL(256, 2)
attention_forward(MAP qkv, MAP mixed, float* level, const int* lengths, const int* keys, int site, int items, int length,
                  int heads, float scale, int threshold, float grow) {
  SHARED(memory);
  u32* columns = (u32*)(memory + 6 * TILE);  // the mixed indices of pairs of keys, folded
  Walk walk = begin_walk(memory, memory + 6 * TILE + 256, 3, items, heads);
  int thread = threadIdx.x, lane = thread & 31, group = thread / GROUP, first = thread / 32 * 16, row = first + lane / 4;
  float binary = scale * LOG2_E;
  if (thread < 64) columns[thread] = column_word(thread);
  after_others();
  if (thread == 0 && walk.more()) {
    expect(walk.gate(), 3 * TILE);
    bring_three(walk, qkv);
  }
  for (; walk.more(); walk.go_on()) {
    if (thread % GROUP == 0) taken();
    __syncthreads();  // the other set has been read
    if (thread == 0 && walk.next() < items) {
      Walk later = walk;
      later.go_on();
      expect(later.gate(), 3 * TILE);
      bring_three(later, qkv);
    }
    int text = walk.text(), head = walk.head(), visible = lengths ? lengths[text] : length;
    u32 word[2];
    for (int i = 0; i < 2; i++)
      word[i] = keys ? row_word((u32)keys[text], (u32)site, head * length + row + 8 * i) : 0;
    char* q_tile = walk.tile(0);
    walk.wait();
    float s[16][4];
    begin_scores(s, q_tile + group * 64 * 128, walk.tile(1));
    have<0>(s);
    if (visible < ROWS) hide(s, visible, lane);
    float top[2], total[2];
    u32 pairs[16][2];
    share_out(pairs, s, top, total, word, columns, binary, keys ? threshold : 0, lane);
    float c[8][4];
    begin_mixture(c, pairs, walk.tile(2));
    float share[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      total[i] = fmaxf(sum_quad(total[i]), 1e-30f);
      share[i] = (keys ? grow : 1.0f) / total[i];
      if ((lane & 3) == 0 && row + 8 * i < length) level[(long)walk.item * length + row + 8 * i] = top[i] + log2f(total[i]);
    }
    have<0>(c);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) c[n][i] *= share[i / 2];
    sync_group(group);  // its queries make room
    write_rows(c, q_tile, first, lane);
    seen_by_engines();
    sync_group(group);
    if (thread % GROUP == 0) take(q_tile + group * 64 * 128, mixed, text, group * 64, head * 64);
  }
  if (thread % GROUP == 0) arrived();
}
