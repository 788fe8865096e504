// A layer's way back but for attention's: width 256, inner width 1024, at most 128 tokens, bf16, on Hopper. A block has a
// text, each of two groups of warps 64 of its rows, which stay on the chip from the gradient of the layer's output to that
// of what the heads mixed. Weights stream past.

// A block's part of asking for the weights, so that they are near by when all need them.
#define ASKING 128
INLINE void expect_weights(const Map& down, const Map& up, const Map& out) {
  int boxes = blockIdx.x % ASKING;
  for (; boxes < 64; boxes += ASKING) expect_box(down, boxes / 16 * 64, boxes % 16 * 64);
  for (boxes -= 64; boxes < 64; boxes += ASKING) expect_box(up, boxes / 4 * 64, boxes % 4 * 64);
  for (boxes -= 64; boxes < 16; boxes += ASKING) expect_box(out, boxes / 4 * 64, boxes % 4 * 64);
}
// All of them in the order in which both groups use them; `later` are slots that are lent to other things at first.
INLINE void stream(const Map& down, const Map& up, const Map& out, Ring ring, Ring later) {
  expect_weights(down, up, out);
#pragma unroll 1
  for (int part = 0; part < INNER; part += 128) {
#pragma unroll 1
    for (int i = 0; i < 4; i++) fill(ring, ring.turn() ^ 1, down, i * 64, part, i * 64, part + 64);
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
      int row = part + i / 2 * 64, column = (i & 1) * 128;
      fill(later, later.turn(), up, row, column, row, column + 64);
    }
  }
#pragma unroll 1
  for (int i = 0; i < 8; i++) {
    int row = i / 2 * 64, column = (i & 1) * 128;
    fill(ring, ring.turn() ^ 1, out, row, column, row, column + 64);
  }
}

// A norm's way back and that of the dropout before it, for a warp's sixteen rows, eight columns a lane. The gradient is in
// memory, or, without `given`, in `branch`, which gets that of the dropout's input, as `to` does; the residual's goes into
// `tiles` or, without them, to where the norm's input was. `sums` are three lines for the warp: of gamma, beta, and bias.
INLINE void norm_drop_back(const u16* given, char* branch, char* tiles, u16* summed, const float* mean, const float* rstd,
                           const float* gamma, u32 key, int site, int threshold, float grow, u16* to, float* sums,
                           int rows, const Place& p) {
  int tile = p.lane / 8 * TILE, chunk = p.lane & 7, column = p.lane * 8;
  float scale[8], all[3][8] = {};
  u32 mixed[4];
#pragma unroll
  for (int i = 0; i < 8; i++) scale[i] = gamma[column + i];
#pragma unroll
  for (int i = 0; i < 4; i++) mixed[i] = mix(column / 2 + i);
  struct {
    uint4 gradient, sum;
    float mean, rstd;
  } next[2];
  auto ask = [&](int first) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = first + r, place = row * WIDTH + column;
      bool there = row < rows;
      if (given) next[r].gradient = get16(given + place, there);
      next[r].sum = get16(summed + place, there);
      next[r].mean = there ? mean[row] : 0;
      next[r].rstd = there ? rstd[row] : 0;
    }
  };
  ask(p.first);
#pragma unroll 1
  for (int first = p.first; first < p.first + 16; first += 2) {
    float dy[2][8], x[2][8], level[2], slope[2], deviation[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      widen_eight(dy[r], given ? next[r].gradient : *(const uint4*)(branch + tile + at(first + r, chunk)));
      widen_eight(x[r], next[r].sum);
      level[r] = slope[r] = 0;
      deviation[r] = next[r].rstd;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        x[r][i] = (x[r][i] - next[r].mean) * deviation[r];
        all[0][i] += dy[r][i] * x[r][i];
        all[1][i] += dy[r][i];
        dy[r][i] *= scale[i];
        level[r] += dy[r][i];
        slope[r] += dy[r][i] * x[r][i];
      }
    }
    if (first + 2 < p.first + 16) ask(first + 2);
    sum_warp(level);
    sum_warp(slope);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = first + r, here = tile + at(row, chunk), place = row * WIDTH + column;
#pragma unroll
      for (int i = 0; i < 8; i++)
        dy[r][i] = (dy[r][i] - level[r] * (1.0f / WIDTH) - x[r][i] * (slope[r] * (1.0f / WIDTH))) * deviation[r];
      uint4 residual = round_eight(dy[r]);
      if (tiles) *(uint4*)(tiles + here) = residual;
      else put16(summed + place, residual, row < rows);
      u32 word = row_word(key, (u32)site, row);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 w = mix(word ^ mixed[i]);
        dy[r][2 * i] = (int)(w & 0xffff) >= threshold ? dy[r][2 * i] * grow : 0;
        dy[r][2 * i + 1] = (int)(w >> 16) >= threshold ? dy[r][2 * i + 1] * grow : 0;
        all[2][2 * i] += dy[r][2 * i];
        all[2][2 * i + 1] += dy[r][2 * i + 1];
      }
      uint4 dropped = round_eight(dy[r]);
      *(uint4*)(branch + here) = dropped;
      put16(to + place, dropped, row < rows);
    }
  }
#pragma unroll
  for (int i = 0; i < 3; i++)
#pragma unroll
    for (int j = 0; j < 8; j++) sums[i * WIDTH + column + j] = all[i][j];
}
// The sum of the lines of a group's warps, two and two of them `apart` bytes.
INLINE void add_lines(const char* lines, int apart, float* out, bool there) {
  for (int column = threadIdx.x % GROUP; column < 3 * WIDTH; column += GROUP) {
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < 4; warp++)
      total += *(const float*)(lines + warp / 2 * apart + (warp % 2 * 3 * WIDTH + column) * 4);
    if (there) out[column] = total;
  }
}

// A warp's 32 of 128 columns of the group's rows in two tiles, gradients after the GELU, made into those before it;
// `inner` is what it was given. These go to memory, too, and so does their sum over rows.
INLINE void back_through_gelu(char* tiles, const uint4 (&inner)[8], u16* to, float* sums, int rows, bool there,
                              const Place& p) {
  int chunk = p.first / 16 % 4 * 4 + p.lane / 8, begin = p.group * 64 + p.lane % 8;
  char* here = tiles + chunk / 8 * TILE;
  float all[8] = {};
#pragma unroll
  for (int i = 0; i < 8; i++) {
    int row = begin + i * 8;
    float x[8], slope[8], d[8];
    uint4* place = (uint4*)(here + at(row, chunk & 7));
    widen_eight(x, inner[i]);
    widen_eight(d, *place);
    gelu_slope(slope, x);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      d[j] *= slope[j];
      all[j] += d[j];
    }
    uint4 back = round_eight(d);
    *place = back;
    put16(to + row * INNER + chunk * 8, back, row < rows);
  }
#pragma unroll
  for (int lanes = 1; lanes < 8; lanes *= 2)
#pragma unroll
    for (int j = 0; j < 8; j++) all[j] += swap(all[j], lanes);
  if (there && p.lane % 8 == 0)
#pragma unroll
    for (int j = 0; j < 8; j++) sums[chunk * 8 + j] = all[j];
}

KERNEL_OF_NEIGHBOURS(THREADS)
wide_backward(MAP down, MAP up, MAP out, const u16* gradient, u16* sum2, const float* mean2, const float* rstd2,
              const float* gamma2, const u16* inner, u16* d_down, u16* d_inner, u16* sum1, const float* mean1,
              const float* rstd1, const float* gamma1, u16* d_out, u16* d_mixed, float* lines1, float* lines2,
              float* lines_up, const int* keys, int texts, int length, int site1, int site2, int threshold, float grow) {
  SHARED(memory);
  char* d_tiles = memory;                // gradients that products are given
  char* residual = memory + 4 * TILE;    // then two tiles of 128 inner columns, while in the other two, and in what
  char* scratch = memory + 8 * TILE;     // follows them, there are weights
  char* stages = residual;
  char* gates = memory + 14 * TILE;
  Ring ring = {memory + 10 * TILE, gates, 0}, later = {residual + 2 * TILE, gates + 64, 0};

  int thread = threadIdx.x, group = uniform(thread / GROUP), text = blockIdx.x;
  bool there = text < texts;
  if (thread == 0) {
    make_ring(ring);
    make_ring(later);
  }
  __syncthreads();
  sync_neighbours();

  if (group == 2) {
    give_registers<24>();
    if (thread == WORKERS) stream(down, up, out, ring, later);
    __syncwarp();
  } else {
    get_registers<240>();
    Place p = place_in(group, there);
    int rows = there ? length : 0, own = p.group * HALF, warp = p.first / 16 % 4, line = text * 2 + p.group;
    long begin = (long)text * length;
    u32 key = keys && there ? (u32)keys[text] : 0;
    if (!keys) threshold = 0, grow = 1;
    if (p.group == 1) pass_turn(1);  // the first is the other's
    char* own_lines = scratch + p.group * TILE;
    norm_drop_back(gradient + begin * WIDTH, d_tiles, residual, sum2 + begin * WIDTH, mean2 + begin, rstd2 + begin, gamma2,
                   key, site2, threshold, grow, d_down + begin * WIDTH, (float*)own_lines + warp * 3 * WIDTH, rows, p);
    seen_by_engines();
    sync_group(p.group);
    add_lines(own_lines, 2 * 3 * WIDTH * 4, lines2 + (long)line * 3 * WIDTH, there);
    float c[2][16][4];
    read_wide(c[0], residual, p.first, p.lane);
    read_wide(c[1], residual + 2 * TILE, p.first, p.lane);
    sync_group(p.group);
    for (int i = 0; i < SLOTS; i++) release(later, -i, p.lane);  // their places are free for weights
    wait_turn(p.group);
#pragma unroll 1
    for (int part = 0; part < INNER; part += 128) {
      float u[16][4];
      uint4 given[8];
      clear_all(u);
      begin_tiles<1>(u, d_tiles + own, ring, p.lane);
      pass_turn(p.group);
      const u16* from = inner + begin * INNER + part + (warp * 4 + p.lane / 8) * 8;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        int row = p.group * 64 + p.lane % 8 + i * 8;
        given[i] = get16(from + (long)row * INNER, row < rows);
      }
      end_tiles(u, ring, p.lane);
      sync_group(p.group);  // all have done with what lay there
      write_wide(u, stages, p.first, p.lane);
      sync_group(p.group);
      back_through_gelu(stages, given, d_inner + begin * INNER + part, lines_up + (long)line * INNER + part, rows, there, p);
      seen_by_engines();
      sync_group(p.group);
      wait_turn(p.group);
      add_tiles<1, 2>(c, stages + own, later, part == INNER - 128, p.lane);
    }
    pass_turn(p.group);
    sync_group(p.group);
    write_wide(c[0], d_tiles, p.first, p.lane);
    write_wide(c[1], d_tiles + 2 * TILE, p.first, p.lane);
    __syncwarp();
    own_lines = stages + own;
    norm_drop_back(nullptr, d_tiles, nullptr, sum1 + begin * WIDTH, mean1 + begin, rstd1 + begin, gamma1, key, site1,
                   threshold, grow, d_out + begin * WIDTH,
                   (float*)(own_lines + warp / 2 * TILE) + warp % 2 * 3 * WIDTH, rows, p);
    seen_by_engines();
    sync_group(p.group);
    clear_all(c[0]);
    clear_all(c[1]);
    add_tiles<1, 4>(c, d_tiles + own, ring, false, p.lane);
    add_lines(own_lines, TILE, lines1 + (long)line * 3 * WIDTH, there);
    sync_group(p.group);
    write_wide(c[0], d_tiles, p.first, p.lane);
    write_wide(c[1], d_tiles + 2 * TILE, p.first, p.lane);
    __syncwarp();
#pragma unroll 4
    for (int row = p.first; row < p.first + 16; row++)
      put16(d_mixed + (begin + row) * WIDTH + p.lane * 8,
            *(const uint4*)(d_tiles + p.lane / 8 * TILE + at(row, p.lane & 7)), row < rows);
  }
  __syncthreads();
  sync_neighbours();
}
