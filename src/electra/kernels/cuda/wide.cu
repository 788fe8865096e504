// Layers' way there: width 256, four heads, inner width 1024, at most 128 tokens, bf16, on Hopper. A block takes a text
// through all layers, each of two groups of warps 64 of its rows, which never leave the chip but to be kept for the way
// back; only keys and values go from group to group. Weights stream past. While the feed-forward half lasts the groups
// multiply in turn, so that one has its GELU to do meanwhile.

#define HEADS 4

#define MOST_LAYERS 12
struct Layer {
  Map qkv, out, up, down;
  const u16 *qkv_b, *out_b, *up_b, *down_b;
  const float *gamma1, *beta1, *gamma2, *beta2;
  int sites[3], unused[13];
};
struct Layers {
  Layer of[MOST_LAYERS];
};
#ifndef EMULATED
#define LAYERS const __grid_constant__ Layers
#else
#define LAYERS Layers
#endif

// One block's part of asking for a layer's weights and vectors, so that they are near by when all need them.
#define ASKING 128
INLINE void expect_layer(const Layer& layer) {
  int part = blockIdx.x % ASKING, boxes = part;
  for (; boxes < 48; boxes += ASKING) expect_box(layer.qkv, boxes / 4 * 64, boxes % 4 * 64);
  for (boxes -= 48; boxes < 16; boxes += ASKING) expect_box(layer.out, boxes / 4 * 64, boxes % 4 * 64);
  for (boxes -= 16; boxes < 64; boxes += ASKING) expect_box(layer.up, boxes / 4 * 64, boxes % 4 * 64);
  for (boxes -= 64; boxes < 64; boxes += ASKING) expect_box(layer.down, boxes / 16 * 64, boxes % 16 * 64);
  if (part < 12) expect_line(layer.qkv_b + part * 64);
  else if (part < 28) expect_line(layer.up_b + (part - 12) * 64);
  else if (part < 32) expect_line(layer.out_b + (part - 28) * 64);
  else if (part < 36) expect_line(layer.down_b + (part - 32) * 64);
  else if (part < 44) expect_line(layer.gamma1 + (part - 36) * 32);
  else if (part < 52) expect_line(layer.beta1 + (part - 44) * 32);
  else if (part < 60) expect_line(layer.gamma2 + (part - 52) * 32);
  else if (part < 68) expect_line(layer.beta2 + (part - 60) * 32);
}

// All weights in the order in which both groups use them; `later` are slots that are lent to other things for half of a
// layer, until the groups release them.
INLINE void stream(const Layers& layers, int count, Ring ring, Ring later) {
#pragma unroll 1
  for (int number = 0; number < count; number++) {
    const Layer& layer = layers.of[number];
    if (number + 1 < count) expect_layer(layers.of[number + 1]);
    auto next = [&](const Map& map, int row0, int row1, int column) {
      fill(ring, ring.turn() ^ 1, map, row0, column, row1, column);
    };
    // Of two heads the queries, then of each the keys and values.
#pragma unroll 1
    for (int i = 0; i < 6 * 4; i++) {
      int two = i / 12 * 128, own = i / 4 % 3 * 64 + two - 64;
      bool queries = i % 12 < 4;
      next(layer.qkv, queries ? two : WIDTH + own, queries ? two + 64 : 2 * WIDTH + own, i % 4 * 64);
    }
#pragma unroll 1
    for (int i = 0; i < 8; i++) next(layer.out, (i & 1) * 128, (i & 1) * 128 + 64, i / 2 * 64);
#pragma unroll 1
    for (int part = 0; part < INNER; part += 128) {
#pragma unroll 1
      for (int i = 0; i < 4; i++) next(layer.up, part, part + 64, i * 64);
#pragma unroll 1
      for (int i = 0; i < 4; i++) {
        int row = (i & 1) * 128, column = part + i / 2 * 64;
        fill(later, later.turn(), layer.down, row, column, row + 64, column);
      }
    }
  }
}

// The group's rows of so many tiles to memory.
INLINE void take_tiles(const char* tiles, int count, const Map& to, int text, int column, const Place& p) {
  for (int i = 0; i < count; i++) take(tiles + i * TILE + p.group * HALF, to, text, p.group * 64, column + i * 64);
}

// A warp's sixteen rows of 256 columns, eight a lane: dropout of what lies in `branch`, the residual in `tiles`, and a
// norm, whose output takes its place. Everything goes on its way to memory from here. Written as a loop over few rows: all
// of a layer's instructions have to stay on the chip.
#define AT_ONCE 2
struct Norm {
  float gamma[8], beta[8];
};
INLINE void ask(Norm& norm, const float* gamma, const float* beta, int lane) {
#pragma unroll
  for (int i = 0; i < 8; i++) norm.gamma[i] = gamma[lane * 8 + i], norm.beta[i] = beta[lane * 8 + i];
}
INLINE void drop_add_norm(const char* branch, char* tiles, const Norm& norm, u32 key, int site, int threshold, float grow,
                          float eps, u16* summed, u16* out, float* mean, float* rstd, int rows, const Place& p) {
  int tile = p.lane / 8 * TILE, chunk = p.lane & 7, column = p.lane * 8;
  u32 mixed[4];
#pragma unroll
  for (int i = 0; i < 4; i++) mixed[i] = mix(column / 2 + i);
#pragma unroll 1
  for (int first = p.first; first < p.first + 16; first += AT_ONCE) {
    float z[AT_ONCE][8], level[AT_ONCE], square[AT_ONCE];
#pragma unroll
    for (int r = 0; r < AT_ONCE; r++) {
      int row = first + r, here = tile + at(row, chunk);
      uint4 x = *(const uint4*)(branch + here), y = *(uint4*)(tiles + here);
      u32 given[4] = {x.x, x.y, x.z, x.w}, residual[4] = {y.x, y.y, y.z, y.w};
      u32 word = row_word(key, (u32)site, row);
      level[r] = 0;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 w = mix(word ^ mixed[i]);
        float low = (int)(w & 0xffff) >= threshold ? low_of(given[i]) * grow : 0;
        float high = (int)(w >> 16) >= threshold ? high_of(given[i]) * grow : 0;
        z[r][2 * i] = low + low_of(residual[i]);
        z[r][2 * i + 1] = high + high_of(residual[i]);
        level[r] += z[r][2 * i] + z[r][2 * i + 1];
      }
      put16(summed + row * WIDTH + column, round_eight(z[r]), row < rows);
    }
    sum_warp(level);
#pragma unroll
    for (int r = 0; r < AT_ONCE; r++) {
      level[r] *= 1.0f / WIDTH;
      square[r] = 0;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        z[r][i] -= level[r];
        square[r] += z[r][i] * z[r][i];
      }
    }
    sum_warp(square);
#pragma unroll
    for (int r = 0; r < AT_ONCE; r++) {
      int row = first + r;
      square[r] = inverse_root(square[r] * (1.0f / WIDTH) + eps);
#pragma unroll
      for (int i = 0; i < 8; i++) z[r][i] = z[r][i] * square[r] * norm.gamma[i] + norm.beta[i];
      uint4 y = round_eight(z[r]);
      *(uint4*)(tiles + tile + at(row, chunk)) = y;
      put16(out + row * WIDTH + column, y, row < rows);
      if (p.lane == 0 && row < rows) mean[row] = level[r], rstd[row] = square[r];
    }
  }
}

// A warp's sixteen rows of 128 columns in two tiles, through the GELU in their place; what was there and what is there
// now goes to memory.
INLINE void activate(char* tiles, u16* inner, u16* active, int rows, const Place& p) {
  char* here = tiles + p.lane / 8 % 2 * TILE;
  int chunk = p.lane & 7, column = p.lane % 16 * 8;
#pragma unroll 1
  for (int row0 = p.first + p.lane / 16; row0 < p.first + 16; row0 += 4) {
    u32 pairs[8];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = row0 + 2 * r;
      uint4 x = *(const uint4*)(here + at(row, chunk));
      put16(inner + row * INNER + column, x, row < rows);
      pairs[4 * r] = x.x, pairs[4 * r + 1] = x.y, pairs[4 * r + 2] = x.z, pairs[4 * r + 3] = x.w;
    }
    gelu_pairs<8>(pairs);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = row0 + 2 * r;
      uint4 y = make_uint4(pairs[4 * r], pairs[4 * r + 1], pairs[4 * r + 2], pairs[4 * r + 3]);
      *(uint4*)(here + at(row, chunk)) = y;
      put16(active + row * INNER + column, y, row < rows);
    }
  }
}

KERNEL_OF_NEIGHBOURS(THREADS)
wide_forward(LAYERS layers, int count, MAP x, MAP qkv, MAP mixed, u16* sum1, u16* y, u16* inner, u16* active, u16* sum2,
             u16* z, float* level, float* mean1, float* rstd1, float* mean2, float* rstd2, const int* lengths,
             const int* keys, int texts, int length, float scale, int attention_threshold, float attention_grow,
             int threshold, float grow, float eps, int attention_drops, int drops) {
  SHARED(memory);
  char* x_tiles = memory;
  char* mixed_tiles = memory + 4 * TILE;  // a head's queries, then what they mix; then what a product makes of it
  char *k_tile = memory + 8 * TILE, *v_tile = memory + 9 * TILE;
  char* stages = mixed_tiles;  // of 128 inner columns, while in the other two, and keys and values, there are weights
  char* gates = memory + 14 * TILE;
  Ring ring = {memory + 10 * TILE, gates, 0}, later = {mixed_tiles + 2 * TILE, gates + 64, 0};
  char* x_gate = gates + 128;
  u32* columns = (u32*)(gates + 192);  // the mixed indices of pairs of keys

  int thread = threadIdx.x, group = uniform(thread / GROUP), text = blockIdx.x;
  bool there = text < texts;
  if (thread == 0) {
    make_ring(ring);
    make_ring(later);
    make_gate(x_gate);
  }
  if (thread < 64) columns[thread] = mix(thread);
  __syncthreads();
  sync_neighbours();

  if (group == 2) {
    give_registers<24>();
    if (thread == WORKERS) {
      expect(x_gate, 4 * TILE);
      for (int i = 0; i < 8; i++)
        bring(x_tiles + i / 2 * TILE + (i & 1) * HALF, x, there ? text : 0, (i & 1) * 64, i / 2 * 64, x_gate);
      stream(layers, count, ring, later);
    }
    __syncwarp();
  } else {
    get_registers<240>();
    Place p = place_in(group, there);
    int visible = lengths && there ? lengths[text] : length, rows = there ? length : 0;
    u32 key = (attention_drops || drops) && there ? (u32)keys[text] : 0;
    if (!attention_drops) attention_threshold = 0, attention_grow = 1;
    if (!drops) threshold = 0, grow = 1;
    int own = p.group * HALF;
    float binary = scale * 1.4426950408889634f;
    if (p.group == 1) pass_turn(1);  // the first is the other's
    wait_at(x_gate, 0);
#pragma unroll 1
    for (int number = 0; number < count; number++) {
      const Layer& layer = layers.of[number];
      int whole = number * texts + text;  // the text among those of all layers
      long begin = (long)whole * length;
      Biases biases, other;
      ask(biases, layer.qkv_b, layer.qkv_b + 64, p.lane);
#pragma unroll 1
      for (int two = 0; two < HEADS; two += 2) {
        float c[16][4];
        clear_all(c);
        add_tiles<0>(c, x_tiles + own, ring, p.lane);
        if (p.leads) taken();
        sync_group(p.group);
        write_biased(c, biases, mixed_tiles + two * TILE, p.first, p.lane);
#pragma unroll 1
        for (int head = two; head < two + 2; head++) {
          const u16* bias = layer.qkv_b + head * 64;
          ask(biases, bias + WIDTH, bias + 2 * WIDTH, p.lane);
          clear_all(c);
          add_tiles<0>(c, x_tiles + own, ring, p.lane);
          if (p.leads) taken();
          sync_both();  // nobody reads the last keys and values any more
          write_biased(c, biases, k_tile, p.first, p.lane);
          seen_by_engines();
          sync_both();
          if (p.leads) {
            if (head == two) take_tiles(mixed_tiles + head * TILE, 2, qkv, whole, head * 64, p);
            take_tiles(k_tile, 1, qkv, whole, WIDTH + head * 64, p);
            take_tiles(v_tile, 1, qkv, whole, 2 * WIDTH + head * 64, p);
          }
          u32 word[2], pairs[16][2];
#pragma unroll
          for (int i = 0; i < 2; i++) word[i] = row_word(key, (u32)layer.sites[0], head * length + p.row + 8 * i);
          float top[2], total[2];
          begin_scores(c, mixed_tiles + head * TILE + own, k_tile);
          have<0>(c);
          if (visible < ROWS) hide(c, visible, p.lane);
          share_out(pairs, c, top, total, word, columns, binary, attention_threshold, p.lane);
          float m[8][4];
          begin_mixture(m, pairs, v_tile);
          ask(biases, layer.qkv_b + 128, layer.qkv_b + 192, p.lane);  // for the next two heads' queries
          float share[2];
#pragma unroll
          for (int i = 0; i < 2; i++) {
            total[i] = fmaxf(sum_quad(total[i]), 1e-30f);
            share[i] = attention_grow / total[i];
            int row = p.row + 8 * i;
            if ((p.lane & 3) == 0 && row < rows)
              level[((long)whole * HEADS + head) * length + row] = top[i] + log2f(total[i]);
          }
          if (p.leads) taken();
          have<0>(m);
#pragma unroll
          for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) m[n][i] *= share[i / 2];
          sync_group(p.group);  // its queries make room
          write_rows(m, mixed_tiles + head * TILE, p.first, p.lane);
          seen_by_engines();
          sync_group(p.group);
          if (p.leads) take_tiles(mixed_tiles + head * TILE, 1, mixed, whole, head * 64, p);
        }
      }
      float c[2][16][4];
      ask(biases, layer.out_b, layer.out_b + 64, p.lane);
      ask(other, layer.out_b + 128, layer.out_b + 192, p.lane);
      Norm norm;
      ask(norm, layer.gamma1, layer.beta1, p.lane);
      clear_all(c[0]);
      clear_all(c[1]);
      add_tiles<0, 4>(c, mixed_tiles + own, ring, false, p.lane);
      if (p.leads) taken();
      sync_group(p.group);
      write_biased(c[0], biases, mixed_tiles, p.first, p.lane);
      write_biased(c[1], other, mixed_tiles + 2 * TILE, p.first, p.lane);
      __syncwarp();
      drop_add_norm(mixed_tiles, x_tiles, norm, key, layer.sites[1], threshold, grow, eps,
                    sum1 + begin * WIDTH, y + begin * WIDTH, mean1 + begin, rstd1 + begin, rows, p);
      for (int i = 0; i < SLOTS; i++) release(later, -i, p.lane);  // their places are free for weights
      seen_by_engines();
      sync_group(p.group);
      clear_all(c[0]);
      clear_all(c[1]);
      wait_turn(p.group);
#pragma unroll 1
      for (int part = 0; part < INNER / 128; part++) {
        float u[16][4];
        ask(biases, layer.up_b + part * 128, layer.up_b + part * 128 + 64, p.lane);
        clear_all(u);
        begin_tiles<0>(u, x_tiles + own, ring, p.lane);
        pass_turn(p.group);
        end_tiles(u, ring, p.lane);
        sync_group(p.group);  // all have done with what lay there
        write_biased(u, biases, stages, p.first, p.lane);
        __syncwarp();
        activate(stages, inner + begin * INNER + part * 128, active + begin * INNER + part * 128, rows, p);
        seen_by_engines();
        sync_group(p.group);
        wait_turn(p.group);
        add_tiles<0, 2>(c, stages + own, later, part == INNER / 128 - 1, p.lane);
      }
      pass_turn(p.group);
      ask(biases, layer.down_b, layer.down_b + 64, p.lane);
      ask(other, layer.down_b + 128, layer.down_b + 192, p.lane);
      ask(norm, layer.gamma2, layer.beta2, p.lane);
      sync_both();  // the other group has done with the last weights, too
      write_biased(c[0], biases, mixed_tiles, p.first, p.lane);
      write_biased(c[1], other, mixed_tiles + 2 * TILE, p.first, p.lane);
      __syncwarp();
      drop_add_norm(mixed_tiles, x_tiles, norm, key, layer.sites[2], threshold, grow, eps,
                    sum2 + begin * WIDTH, z + begin * WIDTH, mean2 + begin, rstd2 + begin, rows, p);
      seen_by_engines();
      sync_group(p.group);
    }
    if (p.leads) arrived();
  }
  __syncthreads();
  sync_neighbours();
}
