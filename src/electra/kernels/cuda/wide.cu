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
INLINE void stream(const Layers& layers, int count, const Ring& ring, const Ring& later) {
  int filled = 0, lent = 0;  // slots so far
#pragma unroll 1
  for (int number = 0; number < count; number++) {
    const Layer& layer = layers.of[number];
    if (number + 1 < count) expect_layer(layers.of[number + 1]);
    auto next = [&](const Map& map, int row0, int row1, int column) {
      fill(ring, filled, filled / SLOTS & 1 ^ 1, map, row0, row1, column);
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
        fill(later, lent, lent / SLOTS & 1, layer.down, row, row + 64, column);
      }
    }
  }
}

// The group's rows of so many tiles to memory.
INLINE void take_tiles(const char* tiles, int count, const Map& to, int text, int column, const Place& p) {
  for (int i = 0; i < count; i++) take(tiles + i * TILE + p.group * HALF, to, text, p.group * 64, column + i * 64);
}

// A warp's sixteen rows of 256 columns, four at a time, each eight lanes': dropout of what lies in `branch`, the residual
// in `tiles`, and a norm, whose output takes its place. Everything goes on its way to memory from here. Written as a loop
// over few rows: all of a layer's instructions have to stay on the chip.
struct Norm {
  float gamma[4][8], beta[4][8];  // of the lane's columns, eight in each tile
};
INLINE void ask(Norm& norm, const float* gamma, const float* beta, int lane) {
#pragma unroll
  for (int t = 0; t < 4; t++)
#pragma unroll
    for (int i = 0; i < 8; i++) {
      int column = t * 64 + (lane & 7) * 8 + i;
      norm.gamma[t][i] = gamma[column], norm.beta[t][i] = beta[column];
    }
}
INLINE float sum_eight(const float (&parts)[4]) {
  float x = parts[0] + parts[1] + (parts[2] + parts[3]);
  x += swap(x, 1);
  x += swap(x, 2);
  return x + swap(x, 4);
}
INLINE void drop_add_norm(const char* branch, char* tiles, const Norm& norm, const u32* columns, u32 key, int site,
                          int threshold, float grow, float eps, u16* summed, u16* out, float* mean, float* rstd, int rows,
                          const Place& p) {
  int chunk = p.lane & 7;
  u32 least = (u32)threshold << 16;
  uint4 mixed[4];
#pragma unroll
  for (int t = 0; t < 4; t++) mixed[t] = *(const uint4*)(columns + t * 32 + chunk * 4);
#pragma unroll 1
  for (int row = p.first + p.lane / 8; row < p.first + 16; row += 4) {
    float z[4][8], parts[4];
    u32 word = row_word(key, (u32)site, row);
    int here = row * WIDTH + chunk * 8;
#pragma unroll
    for (int t = 0; t < 4; t++) {
      uint4 x = *(const uint4*)(branch + t * TILE + at(row, chunk)), y = *(uint4*)(tiles + t * TILE + at(row, chunk));
      u32 given[4] = {x.x, x.y, x.z, x.w}, residual[4] = {y.x, y.y, y.z, y.w};
      u32 of[4] = {mixed[t].x, mixed[t].y, mixed[t].z, mixed[t].w};
      parts[t] = 0;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 w = stir(word ^ of[i]);
        z[t][2 * i] = (first_stays(w, least) ? low_of(given[i]) : 0) * grow + low_of(residual[i]);
        z[t][2 * i + 1] = (second_stays(w, least) ? high_of(given[i]) : 0) * grow + high_of(residual[i]);
        parts[t] += z[t][2 * i] + z[t][2 * i + 1];
      }
      put16(summed + here + t * 64, round_eight(z[t]), row < rows);
    }
    float level = sum_eight(parts) * (1.0f / WIDTH);
#pragma unroll
    for (int t = 0; t < 4; t++) {
      parts[t] = 0;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        z[t][i] -= level;
        parts[t] += z[t][i] * z[t][i];
      }
    }
    float scale = inverse_root(sum_eight(parts) * (1.0f / WIDTH) + eps);
    if (chunk == 0 && row < rows) mean[row] = level, rstd[row] = scale;
#pragma unroll
    for (int t = 0; t < 4; t++) {
#pragma unroll
      for (int i = 0; i < 8; i++) z[t][i] = z[t][i] * scale * norm.gamma[t][i] + norm.beta[t][i];
      uint4 y = round_eight(z[t]);
      *(uint4*)(tiles + t * TILE + at(row, chunk)) = y;
      put16(out + here + t * 64, y, row < rows);
    }
  }
}

// 128 columns of the group's rows, rounded: through two tiles to memory, then through the GELU, which stays there, and
// again to memory. Each warp has its own rows; the next ones are read while four are worked on.
INLINE void activate(const u32 (&given)[16][2], char* tiles, u16* inner, u16* active, int rows, const Place& p) {
  sync_group(p.group);  // all have done with what lay there
  write_pairs(given, tiles, p.first, p.lane);
  __syncwarp();
  char* here = tiles + p.lane / 8 % 2 * TILE + p.first * 128;
  int chunk = p.lane & 7;
  long place = (long)(p.first + p.lane / 16) * INNER + p.lane % 16 * 8;
  rows -= p.first;
  uint4 next[2];
#pragma unroll
  for (int r = 0; r < 2; r++) next[r] = *(const uint4*)(here + at(p.lane / 16 + 2 * r, chunk));
#pragma unroll 1
  for (int row = p.lane / 16; row < 16; row += 4, place += 4 * INNER) {
    u32 pairs[8];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      put16(inner + place + 2 * r * INNER, next[r], row + 2 * r < rows);
      pairs[4 * r] = next[r].x, pairs[4 * r + 1] = next[r].y, pairs[4 * r + 2] = next[r].z, pairs[4 * r + 3] = next[r].w;
      next[r] = *(const uint4*)(here + at((row + 4 + 2 * r) & 15, chunk));
    }
    gelu_pairs<8>(pairs);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      uint4 y = make_uint4(pairs[4 * r], pairs[4 * r + 1], pairs[4 * r + 2], pairs[4 * r + 3]);
      *(uint4*)(here + at(row + 2 * r, chunk)) = y;
      put16(active + place + 2 * r * INNER, y, row + 2 * r < rows);
    }
  }
  seen_by_engines();
  sync_group(p.group);
}

KERNEL(THREADS, 1)
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
  Ring ring = {memory + 10 * TILE, gates}, later = {mixed_tiles + 2 * TILE, gates + 64};
  char* x_gate = gates + 128;
  u32* columns = (u32*)(gates + 192);  // the mixed indices of pairs, of keys or columns, folded
  u16* up_b = (u16*)(columns + WIDTH / 2);

  int thread = threadIdx.x, group = uniform(thread / GROUP), text = blockIdx.x;
  if (thread == 0) {
    make_ring(ring);
    make_ring(later);
    make_gate(x_gate);
  }
  if (thread < WIDTH / 2) columns[thread] = column_word(thread);
  after_others();
  __syncthreads();

  if (group == 2) {
    give_registers<24>();
    if (thread == WORKERS) {
      expect(x_gate, 4 * TILE);
      for (int i = 0; i < 8; i++)
        bring(x_tiles + i / 2 * TILE + (i & 1) * HALF, x, text, (i & 1) * 64, i / 2 * 64, x_gate);
      stream(layers, count, ring, later);
    }
    __syncwarp();
  } else {
    get_registers<240>();
    Place p = own_place();
    int visible = lengths ? lengths[text] : length;
    u32 key = attention_drops || drops ? (u32)keys[text] : 0;
    if (!attention_drops) attention_threshold = 0, attention_grow = 1;
    if (!drops) threshold = 0, grow = 1;
    int own = p.group * HALF;
    float binary = scale * LOG2_E;
    if (p.group == 1) pass_turn(1);  // the first is the other's
    wait_at(x_gate, 0);
#pragma unroll 1
    for (int number = 0; number < count; number++) {
      const Layer& layer = layers.of[number];
      int whole = number * texts + text;  // the text among those of all layers
      long begin = (long)whole * length;
      Biases biases, other;
      u16 up_bias[INNER / WORKERS];
#pragma unroll
      for (int i = 0; i < INNER / WORKERS; i++) up_bias[i] = layer.up_b[thread + i * WORKERS];
      ask(biases, layer.qkv_b, layer.qkv_b + 64, p.lane);
#pragma unroll 1
      for (int two = 0; two < HEADS; two += 2) {
        float c[16][4];
        int turn = two / 2;  // the ring's, as all numbers of turns here and below
        add_tiles(c, x_tiles + own, ring, turn, p.lane);
        if (p.leads) taken();
        sync_group(p.group);
        write_biased(c, biases, mixed_tiles + two * TILE, p.first, p.lane);
#pragma unroll 1
        for (int head = two; head < two + 2; head++) {
          const u16* bias = layer.qkv_b + head * 64;
          ask(biases, bias + WIDTH, bias + 2 * WIDTH, p.lane);
          turn ^= 1;
          add_tiles(c, x_tiles + own, ring, turn, p.lane);
          if (p.leads) taken();
          if (head == 0)
            for (int i = 0; i < INNER / WORKERS; i++) up_b[thread + i * WORKERS] = up_bias[i];
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
            if ((p.lane & 3) == 0 && row < length)
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
      clear(c[0]);
      clear(c[1]);
      begin_tiles(c, mixed_tiles + own, ring, 0);
      done<1>();
      release_some(ring, 0, 2, p.lane);
      done<0>();
      release_some(ring, 2, 2, p.lane);
      begin_tiles(c, mixed_tiles + 2 * TILE + own, ring, 1);
      end_tiles(c);
      release_some(ring, 0, SLOTS, p.lane);
      if (p.leads) taken();
      sync_group(p.group);
      write_biased(c[0], biases, mixed_tiles, p.first, p.lane);
      Norm norm;
      ask(norm, layer.gamma1, layer.beta1, p.lane);
      write_biased(c[1], other, mixed_tiles + 2 * TILE, p.first, p.lane);
      __syncwarp();
      drop_add_norm(mixed_tiles, x_tiles, norm, columns, key, layer.sites[1], threshold, grow, eps,
                    sum1 + begin * WIDTH, y + begin * WIDTH, mean1 + begin, rstd1 + begin, length, p);
      seen_by_engines();
      release_some(later, 0, SLOTS, p.lane);  // their places are free for weights
      sync_group(p.group);
      clear(c[0]);
      clear(c[1]);
      wait_turn(p.group);
      float u[16][4];
      begin_tiles(u, x_tiles + own, ring, 0, p.lane, [](int) {});
      pass_turn(p.group);
#pragma unroll 1
      for (int part = 0;; part++) {
        u32 pairs[16][2];
        end_tiles(u, ring, p.lane);
        add_biases(pairs, u, [&](int n) { return *(const u32*)(up_b + part * 128 + n * 8 + (p.lane & 3) * 2); });
        activate(pairs, stages, inner + begin * INNER + part * 128, active + begin * INNER + part * 128, length, p);
        wait_turn(p.group);
        begin_tiles(c, stages + own, later, part & 1);
        if (part == INNER / 128 - 1) break;
        // The next columns follow at once.
        begin_tiles(u, x_tiles + own, ring, part & 1 ^ 1, p.lane, [&](int under_way) {
          done<2>();
          release_some(later, 2 * under_way, 2, p.lane);
        });
        pass_turn(p.group);
      }
      end_tiles(c);
      pass_turn(p.group);
      ask(biases, layer.down_b, layer.down_b + 64, p.lane);
      ask(other, layer.down_b + 128, layer.down_b + 192, p.lane);
      sync_both();  // the other group has done with the last weights, too
      write_biased(c[0], biases, mixed_tiles, p.first, p.lane);
      ask(norm, layer.gamma2, layer.beta2, p.lane);
      write_biased(c[1], other, mixed_tiles + 2 * TILE, p.first, p.lane);
      __syncwarp();
      drop_add_norm(mixed_tiles, x_tiles, norm, columns, key, layer.sites[2], threshold, grow, eps,
                    sum2 + begin * WIDTH, z + begin * WIDTH, mean2 + begin, rstd2 + begin, length, p);
      seen_by_engines();
      sync_group(p.group);
    }
    if (p.leads) arrived();
  }
  __syncthreads();
}
