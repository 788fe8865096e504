// Narrow layers' way back, all but the products that are gradients of weights: a block takes a text through all layers, a
// pair of warps 16 of its rows. What those products need is written out; of what adds up to gradients of vectors each
// block leaves a line a layer.

#define INNER 256

// The way back through dropout, residual and norm, of the own columns: `dy` becomes the gradient of the residual,
// `branch` that of the branch; its sums over the pair's rows go into `line`, 192 a pair.
INLINE void norm_drop_back(float (&dy)[4][4], float (&branch)[4][4], const u32 (&summed)[2][4], const float* mean,
                           const float* rstd, const float* gamma, bool drops, const u32 word[2], const u32* columns,
                           u32 least, float grow, float2* place, float* line, const Seat& s) {
  float m[2] = {mean[s.row], mean[s.row + 8]}, r[2] = {rstd[s.row], rstd[s.row + 8]}, level[2] = {}, slope[2] = {};
  line += s.own * 8;
  put_sums(dy, line + 64, s.lane);
  widen(branch, summed);
  {
    float product[4][4];
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        branch[n][i] = (branch[n][i] - m[i / 2]) * r[i / 2];
        product[n][i] = dy[n][i] * branch[n][i];
      }
    put_sums(product, line, s.lane);
  }
#pragma unroll
  for (int n = 0; n < 4; n++) {
    float2 g = *(const float2*)(gamma + (s.own + n) * 8 + (s.lane & 3) * 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      dy[n][i] *= i & 1 ? g.y : g.x;
      level[i / 2] += dy[n][i];
      slope[i / 2] += dy[n][i] * branch[n][i];
    }
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    level[i] = sum_quad(level[i]);
    slope[i] = sum_quad(slope[i]);
  }
  tell(place, level, slope, s);
  sync_pair(s);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float2 other = told(place, i, s);
    level[i] = (level[i] + other.x) * (1.0f / WIDTH);
    slope[i] = (slope[i] + other.y) * (1.0f / WIDTH);
  }
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      dy[n][i] = (dy[n][i] - level[i / 2] - branch[n][i] * slope[i / 2]) * r[i / 2];
      branch[n][i] = dy[n][i];
    }
  if (drops) drop_rows(branch, word, columns, least, grow, s);
  put_sums(branch, line + 128, s.lane);
}

// Sums of a block's pairs, to memory.
INLINE void add_lines(const float* parts, int count, float* line, int thread) {
  for (int column = thread; column < count; column += THREADS) {
    float total = 0;
    for (int i = 0; i < BANDS; i++) total += parts[i * count + column];
    line[column] = total;
  }
}

KERNEL(THREADS, 1)
narrow_backward(LAYERS layers, int count, const u16* gradient, u16* qkv, const u16* mixed, const float* level,
                const u16* sum1, const float* mean1, const float* rstd1, u16* inner, const u16* sum2,
                const float* mean2, const float* rstd2, u16* d_down, u16* d_inner, u16* d_out, u16* d_x, float* lines1,
                float* lines2, float* up_lines, float* qkv_lines, const int* lengths, const int* keys, int texts,
                int length, float scale, int attention_threshold, float attention_grow, int threshold, float grow,
                int attention_drops, int drops) {
  SHARED(memory);
  char* first_stage = memory;  // rows on their way; with the tile that follows, gradients of values given
  char* second_stage = memory + 2 * TILE;
  char* inner_tiles = second_stage;  // what the GELU was given, before anything else needs the room
  char* d_tile = second_stage;  // in the end, the gradient of attention's output
  char* q_tile = memory + 3 * TILE;
  char* k_tile = memory + 4 * TILE;
  char* v_tile = memory + 5 * TILE;
  char* down_boxes = memory + 6 * TILE;
  char* scores = down_boxes;  // once the feed-forward half is done
  char* up_boxes = down_boxes + 4 * BOX;  // then, gradients of keys given
  char* qkv_boxes = down_boxes + 8 * BOX;
  char* out_box = down_boxes + 11 * BOX;
  float2* facts = (float2*)(down_boxes + 12 * BOX);
  float2* places = facts + ROWS;
  u32* words = (u32*)(places + 3 * ROWS * 2);
  u32* columns = words + ROWS;
  float* parts = (float*)(columns + 64);
  float* parts1 = parts + BANDS * INNER;
  float* parts2 = parts1 + BANDS * 192;
  float* held = parts2 + BANDS * 192;  // of each row: the norms' means and inverse deviations, attention's log-sum
  float* gammas = held + 5 * ROWS;

  after_others();
  int text = blockIdx.x, visible = lengths ? lengths[text] : length;
  u32 key = attention_drops || drops ? (u32)keys[text] : 0, least = (u32)threshold << 16;
  if (threadIdx.x < 64) columns[threadIdx.x] = column_word(threadIdx.x);
  float own[4][4];
  {
    Seat s = seat_of(threadIdx.x);
    Rows rows;
    u32 given[2][4];
    begin_rows(rows, gradient + (long)text * length * WIDTH, length, s);
    end_rows(given, rows, first_stage, s);
    widen(own, given);
  }
#pragma unroll 1
  for (int number = count - 1; number >= 0; number--) {
    const Layer& layer = layers.of[number];
    u32 thread = anew(threadIdx.x);
    Seat s = seat_of(thread);  // found anew now and then: what follows from it would fill registers
    auto room = [&](int half) { return first_stage + half * 2 * TILE + s.first * 128; };
    long line = (long)number * texts + text, begin = line * length;
    Rows rows, more;
    begin_rows(more, sum2 + begin * WIDTH, length, s);
    const float* from[5] = {mean2, rstd2, mean1, rstd1, level};
    int own_row = thread & (ROWS - 1), which = thread / ROWS;
    float early[2] = {};
#pragma unroll
    for (int i = 0; i < 5; i++)
      if (i % 4 == which && own_row < length) early[i / 4] = from[i][begin + own_row];
    float gamma = thread < WIDTH ? layer.gamma2[thread] : thread < 2 * WIDTH ? layer.gamma1[thread - WIDTH] : 0;
    __syncthreads();  // all have done with the layer before
    for (int i = 0; i < 4; i++)
      fetch_rows(down_boxes + i * BOX, WIDTH, layer.down_w + i * WIDTH, INNER * 2, WIDTH, thread);
    fetch_rows(up_boxes, INNER, layer.up_w, WIDTH * 2, INNER, thread);
    for (int i = 0; i < 4; i++)
      fetch_rows(inner_tiles + i * TILE, ROWS, inner + begin * INNER + i * WIDTH, INNER * 2, length, thread);
    mark();
    fetch_rows(out_box, WIDTH, layer.out_w, WIDTH * 2, WIDTH, thread);
    fetch_rows(qkv_boxes, 3 * WIDTH, layer.qkv_w, WIDTH * 2, 3 * WIDTH, thread);
    mark();
    if (thread < ROWS) words[thread] = row_word(key, (u32)layer.sites[0], thread);
    if (thread < 2 * WIDTH) gammas[thread] = gamma;
    held[which * ROWS + own_row] = early[0];
    if (which == 0) held[4 * ROWS + own_row] = early[1];

    float all[8][4], du[8][4], branch[4][4];
    u32 part[4][4], given[2][4], word[2];
    end_rows(given, more, first_stage, s);
    for (int i = 0; i < 2; i++) word[i] = row_word(key, (u32)layer.sites[2], s.row + 8 * i);
    __syncthreads();
    norm_drop_back(own, branch, given, held, held + ROWS, gammas, drops, word, columns, least, grow, places,
                   parts2 + s.band * 192, s);
    put_rows(branch, first_stage, (char*)(d_down + begin * WIDTH), WIDTH * 2, length, s);
    fetched_but<1>();
    seen_by_engines();
    __syncthreads();
    s = seat_of(anew(threadIdx.x));
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) all[n][i] = n / 4 == s.half ? own[n & 3][i] : 0;
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
      int j = 2 * s.half + i;
      char* tile = inner_tiles + j * TILE;
      u32 pairs[4][4];
      take_rows(part, first_stage, s);
      clear(du);
      add_box<1>(du, part, down_boxes + j * BOX);
      // The GELU's output takes the place of what it was given.
      u32 place = place_of(tile) + at(s.first + (s.lane & 15), s.lane >> 4);
      read4(pairs[0], place);
#pragma unroll
      for (int h = 0; h < 4; h++) {
        if (h < 3) read4(pairs[h + 1], place ^ (h + 1) << 5);
        gelu_pairs_both<4>(du[2 * h], pairs[h]);
        write4(place ^ h << 5, pairs[h]);
      }
      copy_rows<4>(tile, (char*)(inner + begin * INNER + j * WIDTH), INNER * 2, length, s);
      put_sums(du, parts + s.band * INNER + j * WIDTH, s.lane);
      round_rows(pairs, du);
      put_pairs(pairs, tile, s.first + (s.lane & 15), (char*)(d_inner + begin * INNER + j * WIDTH), INNER * 2, length, s);
      add_box<1>(all, pairs, up_boxes + j * BOX);
    }
    sync_pair(s);  // both have read what the stage held
    begin_rows(rows, sum1 + begin * WIDTH, length, s);
    begin_rows(more, mixed + begin * WIDTH, length, s);
    give(own, all, room(s.half), s);
    fetched();
    __syncthreads();  // all of the sums is there; the feed-forward half's weights and what it was given are read
    u16* here = qkv + begin * 3 * WIDTH;
    thread = anew(threadIdx.x);
    fetch_rows(q_tile, ROWS, here, 3 * WIDTH * 2, length, thread);
    fetch_rows<true>(k_tile, ROWS, here + WIDTH, 3 * WIDTH * 2, length, thread);
    fetch_rows<true>(v_tile, ROWS, here + 2 * WIDTH, 3 * WIDTH * 2, length, thread);
    get(branch, room(1 - s.half), s);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) own[n][i] += branch[n][i];
    add_lines(parts2, 192, lines2 + line * 192, thread);
    add_lines(parts, INNER, up_lines + line * INNER, THREADS - 1 - thread);  // whom the others leave free
    sync_pair(s);  // both have what they were given
    s = seat_of(anew(threadIdx.x));
    end_rows(given, rows, first_stage, s);
    for (int i = 0; i < 2; i++) word[i] = row_word(key, (u32)layer.sites[1], s.row + 8 * i);
    norm_drop_back(own, branch, given, held + 2 * ROWS, held + 3 * ROWS, gammas + WIDTH, drops, word, columns, least,
                   grow, places + 2 * ROWS, parts1 + s.band * 192, s);
    s = seat_of(anew(threadIdx.x));
    u32 residual[2][4];
    round_rows(residual, own);
    put_rows(branch, first_stage, (char*)(d_out + begin * WIDTH), WIDTH * 2, length, s);
    sync_pair(s);
    take_rows(part, first_stage, s);
    clear(own);
    add_columns(own, part, out_box, s);
    u32 rounded[2][4];
    round_rows(rounded, own);
    end_rows(given, more, d_tile, s);
    float shared[2] = {}, nothing[2] = {};
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int i = 0; i < 4; i++)
        shared[i & 1] += low_of(rounded[h][i]) * low_of(given[h][i]) + high_of(rounded[h][i]) * high_of(given[h][i]);
#pragma unroll
    for (int i = 0; i < 2; i++) shared[i] = sum_quad(shared[i]);
    tell(places + 4 * ROWS, shared, nothing, s);
    put_pairs(rounded, d_tile, s.first + (s.lane & 15), 0, 0, 0, s);
    sync_pair(s);
    if (s.half == 0 && (s.lane & 3) == 0)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        int row = s.row + 8 * i;
        facts[row] = make_float2(held[4 * ROWS + row], shared[i] + told(places + 4 * ROWS, i, s).x);
      }
    fetched();
    seen_by_engines();
    __syncthreads();
    add_lines(parts1, 192, lines1 + line * 192, thread);
    // Where a warp gives, a thread's residual waits: what follows needs all registers.
    auto given_at = [&](int half) { return (half * BANDS + s.band) * 2048; };
    auto aside = [&](int h) { return (uint4*)(first_stage + given_at(s.half) + h * 512 + s.lane * 16); };
#pragma unroll
    for (int h = 0; h < 2; h++) *aside(h) = make_uint4(residual[h][0], residual[h][1], residual[h][2], residual[h][3]);
    back_to_keys(all, du, q_tile, k_tile, v_tile, d_tile, scores, facts, words, attention_drops, visible, scale,
                 (u32)attention_threshold << 16, attention_grow, s);
    s = seat_of(anew(threadIdx.x));
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint4 x = *aside(h);
      residual[h][0] = x.x, residual[h][1] = x.y, residual[h][2] = x.z, residual[h][3] = x.w;
    }
    give(own, all, up_boxes + given_at(s.half), s);
    give(branch, du, first_stage + given_at(s.half), s);
    __syncthreads();  // all gradients of scores are there, and nobody reads queries, values and gradients any more
    int pair_row = s.first + 2 * (s.lane & 7) + ((s.lane >> 3) & 1);
    char* to = (char*)here;
    {
      u32 pairs[2][4];
      float others[4][4];
      get(others, up_boxes + given_at(1 - s.half), s);
#pragma unroll
      for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) own[n][i] = (own[n][i] + others[n][i]) * scale;
      round_rows(pairs, own);
      put_pairs(pairs, q_tile, pair_row, to + WIDTH * 2, 3 * WIDTH * 2, length, s);
      get(others, first_stage + given_at(1 - s.half), s);
#pragma unroll
      for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) branch[n][i] += others[n][i];
      put_sums(branch, parts + s.band * 128 + 64 + s.own * 8, s.lane);
      round_rows(pairs, branch);
      put_pairs(pairs, d_tile, pair_row, to + WIDTH * 4, 3 * WIDTH * 2, length, s);
    }
    back_to_queries(own, k_tile, scores, scale, s);
    put_sums(own, parts + s.band * 128 + s.own * 8, s.lane);
    put_rows(own, v_tile, to, 3 * WIDTH * 2, length, s);
    __syncthreads();
    if (thread < 192) {
      // What is added to all keys changes no softmax, so their sum is zero.
      float total = 0;
      if (thread / 64 != 1)
        for (int i = 0; i < BANDS; i++) total += parts[i * 128 + (thread / 128) * 64 + (thread & 63)];
      qkv_lines[line * 192 + thread] = total;
    }
    widen(own, residual);
    take_rows(part, v_tile, s);
    add_columns(own, part, qkv_boxes, s);
    take_rows(part, q_tile, s);
    add_columns(own, part, qkv_boxes + BOX, s);
    take_rows(part, d_tile, s);
    add_columns(own, part, qkv_boxes + 2 * BOX, s);
    if (number == 0) put_rows(own, first_stage, (char*)(d_x + begin * WIDTH), WIDTH * 2, length, s);
  }
}
