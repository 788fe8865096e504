// A distribution over the vocabulary without its logits in memory, there and back: embeddings of 128, bf16, on Hopper.
//
// The work is a rectangle of some rows times 128 entries each; a block takes a stretch of it, row by row, so that it has
// seldom other rows. Each of its groups of warps has 64 of them; one thread has the table's entries come past.

#define SIZE 128
#define HALF (64 * 128)  // bytes of 64 rows of 64 columns
#define STAGE (2 * TILE + 2048)  // entries, then their biases, 64 in each kilobyte
#define LN_2 0.6931471805599453f

// A block's way through its stretch, and the places that things come to in turn.
template <int GROUPS, int STAGES>
struct Stretch {
  char *x_tiles, *stages, *gates;
  int row, entry, left, blocks;  // the tile of rows and the block of entries at hand, and how many are left to do
  int number, others;            // blocks of entries, and other rows, that there were before

  INLINE_IN char* stage() const { return stages + number % STAGES * STAGE; }
  INLINE_IN void* full() const { return gates + number % STAGES * 8; }
  INLINE_IN void* empty() const { return gates + (STAGES + number % STAGES) * 8; }
  INLINE_IN void* x_full() const { return gates + 2 * STAGES * 8; }
  INLINE_IN void* x_empty() const { return gates + 2 * STAGES * 8 + 8; }
  INLINE_IN int turn() const { return number / STAGES & 1; }
  // Whether there are other rows now.
  INLINE_IN bool go_on() {
    number++, left--;
    if (++entry < blocks) return false;
    entry = 0, row++;
    return true;
  }
};
template <int GROUPS, int STAGES>
INLINE Stretch<GROUPS, STAGES> stretch_of(char* memory, int items, int each, int blocks) {
  int first = blockIdx.x * each;
  char* stages = memory + 2 * GROUPS * HALF;
  Stretch<GROUPS, STAGES> s = {memory, stages, stages + STAGES * STAGE, first / blocks, first % blocks};
  s.left = each < items - first ? each : items - first, s.blocks = blocks;
  s.number = s.others = 0;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      make_gate(s.gates + i * 8);
      make_gate(s.gates + (STAGES + i) * 8, GROUPS * 4);
    }
    make_gate(s.x_full());
    make_gate(s.x_empty(), GROUPS * 4);
  }
  __syncthreads();
  after_others();
  return s;
}
// All that comes past, as fast as all groups have done with what was there.
template <int GROUPS, int STAGES>
INLINE void stream(Stretch<GROUPS, STAGES> s, const Map& x, const Map& table, const Map& bias) {
  bool other = true;
  for (; s.left > 0; other = s.go_on()) {
    if (other) {
      wait_at(s.x_empty(), s.others++ & 1 ^ 1);
      expect(s.x_full(), 2 * GROUPS * HALF);
      for (int i = 0; i < 2; i++) bring(s.x_tiles + i * GROUPS * HALF, x, 0, s.row * GROUPS * 64, i * 64, s.x_full());
    }
    wait_at(s.empty(), s.turn() ^ 1);
    expect(s.full(), 2 * TILE + SIZE * 2);
    for (int i = 0; i < 2; i++) {
      bring(s.stage() + i * TILE, table, 0, s.entry * SIZE, i * 64, s.full());
      bring(s.stage() + 2 * TILE + i * 1024, bias, 0, 0, s.entry * SIZE + i * 64, s.full());
    }
  }
}
// c (64 x 128): the group's rows times the entries of a stage.
template <int GROUPS>
INLINE void compare(float (&c)[16][4], const char* own, const char* stage) {
  begin_product(c);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    Tile a = tile_at(own + i * GROUPS * HALF, 16), b = tile_at(stage + i * TILE, 16);
#pragma unroll
    for (int k = 0; k < 4; k++) i + k ? multiply_wide<0>(c, a + k * 2, b + k * 2) : multiply_wide<0, 1>(c, a, b);
  }
  end_product();
  have<0>(c);
}
// The biases of a thread's eight columns' two neighbours, times the logarithm that makes powers of two of them.
INLINE void biases_of(float (&b)[2], const char* stage, int n, int lane) {
  u32 pair = *(const u32*)(stage + 2 * TILE + n / 8 * 1024 + (n & 7) * 16 + (lane & 3) * 4);
  b[0] = low_of(pair) * LOG2_E, b[1] = high_of(pair) * LOG2_E;
}

// Of each of a thread's two rows the sum over its four threads of two to the power of what is in c, less `top`.
INLINE void add_powers(float total[2], const float (&c)[16][4], const float top[2]) {
  float sums[8] = {};
#pragma unroll
  for (int n = 0; n < 16; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) sums[n % 2 * 4 + i] += power2(c[n][i] - top[i / 2]);
#pragma unroll
  for (int i = 0; i < 2; i++) total[i] = sum_quad(sums[2 * i] + sums[2 * i + 1] + (sums[2 * i + 4] + sums[2 * i + 5]));
}

#ifndef THERE
#define THERE 4  // groups, of which some may be left out
#define BACK 3
#endif
KERNEL(THERE * GROUP + 32, 1)
judge_forward(MAP x, MAP table, MAP bias, float* totals, int rows, int items, int each, int blocks) {
  SHARED(memory);
  Stretch<THERE, 4> s = stretch_of<THERE, 4>(memory, items, each, blocks);
  int thread = threadIdx.x, lane = thread & 31, first = thread / 32 * 16 + lane / 4;
  if (thread >= THERE * GROUP) {
    if (thread == THERE * GROUP) stream(s, x, table, bias);
    return;
  }
  const char* own = s.x_tiles + thread / GROUP * HALF;
  bool other = true;
  for (; s.left > 0; other = s.go_on()) {
    if (other) {
      if (s.others > 0) leave(s.x_empty(), lane);
      wait_at(s.x_full(), s.others++ & 1);
    }
    wait_at(s.full(), s.turn());
    float c[16][4], total[2];
    compare<THERE>(c, own, s.stage());
#pragma unroll
    for (int n = 0; n < 16; n++) {
      float b[2];
      biases_of(b, s.stage(), n, lane);
#pragma unroll
      for (int i = 0; i < 4; i++) c[n][i] = c[n][i] * LOG2_E + b[i & 1];
    }
    leave(s.empty(), lane);
    // Most often no power is too large or too small, so that nothing has to be taken off first.
    float top[2] = {};
    add_powers(total, c, top);
    if (any_lane(!(total[0] > 1e-30f && total[0] < 1e30f && total[1] > 1e-30f && total[1] < 1e30f))) {
      top[0] = top[1] = -1e30f;
      raise(top, c);
      add_powers(total, c, top);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int row = s.row * THERE * 64 + first + 8 * i;
      if ((lane & 3) == 0 && row < rows) totals[(long)row * blocks + s.entry] = (top[i] + log2f(total[i])) * LN_2;
    }
  }
}

// The way back: `out` gets the gradient of the logits, `parts` what adds up to that of `x`, of each block a stretch of
// rows one after another, `lines` the sums over 64 rows each, which add up to that of the bias.
KERNEL((BACK + 1) * GROUP, 1)
judge_backward(MAP x, MAP table, MAP bias, MAP out, const long long* gold, const float* level, const float* gradient,
               float* parts, float* lines, int rows, int items, int each, int blocks, int most) {
  SHARED(memory);
  Stretch<BACK, 3> s = stretch_of<BACK, 3>(memory, items, each, blocks);
  int thread = threadIdx.x, lane = thread & 31, group = thread / GROUP, warp = thread / 32;
  int first = warp * 16 + lane / 4;
  if (group == BACK) {
    give_registers<24>();
    if (thread == BACK * GROUP) stream(s, x, table, bias);
    return;
  }
  get_registers<160>();
  char* slopes = s.gates + 1024 + group * 2 * HALF;  // of the group's rows
  float* sums = (float*)(s.gates + 1024 + BACK * 2 * HALF) + group * 8 * SIZE;  // in two sets
  const char* own = s.x_tiles + group * HALF;
  bool leads = thread % GROUP == 0, other = true;
  float d[16][4], grows[2], height[2];
  int right[2];
  auto flush = [&](int row) {  // what this block has of the rows' gradient
    float* to = parts + ((long)(blockIdx.x - row * blocks / each) * most + row * BACK * 64 + first) * SIZE + (lane & 3) * 2;
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) *(float2*)(to + i * 8 * SIZE + n * 8) = make_float2(d[n][2 * i], d[n][2 * i + 1]);
  };
  for (; s.left > 0; other = s.go_on()) {
    if (other) {
      if (s.others > 0) {
        flush(s.row - 1);
        leave(s.x_empty(), lane);
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
        int row = s.row * BACK * 64 + first + 8 * i;
        bool there = row < rows;
        grows[i] = there ? gradient[row] : 0;
        height[i] = there ? level[row] * LOG2_E : 1e30f;  // past the end all powers are nothing
        right[i] = there ? (int)gold[row] : -1;
      }
      clear(d);
      wait_at(s.x_full(), s.others++ & 1);
    }
    wait_at(s.full(), s.turn());
    float c[16][4];
    compare<BACK>(c, own, s.stage());
    if (leads) taken();
    sync_group(group);  // the last ones have been read
    float* set = sums + (s.number & 1) * 4 * SIZE;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float p[8][4];
#pragma unroll
      for (int n = 0; n < 8; n++) {
        float b[2];
        biases_of(b, s.stage(), half * 8 + n, lane);
#pragma unroll
        for (int i = 0; i < 4; i++) p[n][i] = power2(c[half * 8 + n][i] * LOG2_E + (b[i & 1] - height[i / 2]));
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
        // Of the right entry, from the thread's first one on.
        int column = right[i] - s.entry * SIZE - half * 64 - (lane & 3) * 2;
        if (column >= 0 && column < 64 && (column & 6) == 0)
#pragma unroll
          for (int n = 0; n < 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++)
              if (column == n * 8 + j) p[n][2 * i + j] -= 1;
      }
#pragma unroll
      for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) p[n][i] *= grows[i / 2];
      put_sums(p, set + warp % 4 * SIZE + half * 64, lane);
      write_rows(p, slopes + half * HALF, warp % 4 * 16, lane);
    }
    seen_by_engines();
    sync_group(group);
    begin_product(d);
    Tile a = tile_at(slopes, 16), b = tile_at(s.stage(), TILE);
#pragma unroll
    for (int k = 0; k < 8; k++) multiply_wide<1>(d, a + (k / 4 * HALF + (k & 3) * 32) / 16, b + k * 128);
    end_product();
    if (leads)
      for (int i = 0; i < 2; i++) take(slopes + i * HALF, out, 0, s.row * BACK * 64 + group * 64, s.entry * SIZE + i * 64);
    int column = thread % GROUP;
    float sum = set[column] + set[SIZE + column] + (set[2 * SIZE + column] + set[3 * SIZE + column]);
    lines[(long)(s.row * BACK + group) * blocks * SIZE + s.entry * SIZE + column] = sum;
    have<0>(d);
    leave(s.empty(), lane);
  }
  flush(s.row - (s.entry == 0));
  if (leads) arrived();
}
