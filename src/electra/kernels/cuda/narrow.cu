// Narrow layers' way there: width 64, one head, inner width 256, at most 128 tokens, bf16. A block takes a text through
// all layers, a pair of warps 16 of its rows; only keys and values go from pair to pair. A layer's weights come while the
// one before, or its own attention, is under way.

#define INNER 256

// Places of vectors in shared memory.
#define QKV_BIAS 0
#define UP_BIAS 192
#define OUT_BIAS 448
#define DOWN_BIAS 512
#define NORM1 576
#define NORM2 704
#define VECTORS 832

// Dropout, residual and norm of the own columns; the residual lies in `tile`, where the norm's output takes its place.
INLINE void drop_add_norm(float (&c)[4][4], char* tile, char* stage, const u32 word[2], const u32* columns, bool drops,
                          u32 least, float grow, float eps, const float* norm, float2* place, char* summed,
                          char* out, float* mean, float* rstd, int length, const Seat& s) {
  if (drops) drop_rows(c, word, columns, least, grow, s);
  float level[2] = {}, square[2] = {};
  u32 residual[2][4];
  take_own(residual, tile, s);
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u32 x = residual[n / 2][(n & 1) * 2 + i];
      c[n][2 * i] += low_of(x);
      c[n][2 * i + 1] += high_of(x);
      level[i] += c[n][2 * i] + c[n][2 * i + 1];
    }
#pragma unroll
  for (int i = 0; i < 2; i++) level[i] = sum_quad(level[i]) * (2.0f / WIDTH);
#pragma unroll
  for (int n = 0; n < 4; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float away = c[n][i] - level[i / 2];
      square[i / 2] += away * away;
    }
#pragma unroll
  for (int i = 0; i < 2; i++) square[i] = sum_quad(square[i]);
  tell(place, level, square, s);
  put_rows(c, stage, summed, WIDTH * 2, length, s);
  sync_pair(s);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float2 other = told(place, i, s);
    float apart = level[i] - other.x;
    level[i] = (level[i] + other.x) * 0.5f;
    square[i] = inverse_root((square[i] + other.y + apart * apart * (WIDTH / 4)) * (1.0f / WIDTH) + eps);
    if (s.half == 0 && (s.lane & 3) == 0 && s.row + 8 * i < length) {
      mean[s.row + 8 * i] = level[i];
      rstd[s.row + 8 * i] = square[i];
    }
  }
#pragma unroll
  for (int n = 0; n < 4; n++) {
    const float* here = norm + (s.own + n) * 8 + (s.lane & 3) * 2;
    float2 g = *(const float2*)here, b = *(const float2*)(here + WIDTH);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      c[n][2 * i] = (c[n][2 * i] - level[i]) * square[i] * g.x + b.x;
      c[n][2 * i + 1] = (c[n][2 * i + 1] - level[i]) * square[i] * g.y + b.y;
    }
  }
  put_rows(c, tile, out, WIDTH * 2, length, s);
}

// A thread's part of a layer's vectors, asked for early, and into shared memory.
struct Vectors {
  float part[(VECTORS + THREADS - 1) / THREADS];
};
INLINE void ask(Vectors& v, const Layer& layer, int thread) {
#pragma unroll
  for (int n = 0; n < (VECTORS + THREADS - 1) / THREADS; n++) {
    int i = n * THREADS + thread, c = i & 63;
    const u16* bias = i < UP_BIAS     ? layer.qkv_b + i
                      : i < OUT_BIAS  ? layer.up_b + (i - UP_BIAS)
                      : i < DOWN_BIAS ? layer.out_b + c
                                      : layer.down_b + c;
    const float* norm = i < NORM1 + 64   ? layer.gamma1
                        : i < NORM2      ? layer.beta1
                        : i < NORM2 + 64 ? layer.gamma2
                                         : layer.beta2;
    v.part[n] = i < NORM1 ? low_of(*bias) : i < VECTORS ? norm[c] : 0;
  }
}
INLINE void keep(const Vectors& v, float* vectors, int thread) {
#pragma unroll
  for (int n = 0; n < (VECTORS + THREADS - 1) / THREADS; n++)
    if (n * THREADS + thread < VECTORS) vectors[n * THREADS + thread] = v.part[n];
}

KERNEL(THREADS, 1)
narrow_forward(LAYERS layers, int count, const u16* x, u16* qkv, u16* mixed, float* level, u16* sum1, float* mean1,
               float* rstd1, u16* y, u16* inner, u16* sum2, float* mean2, float* rstd2, u16* z, const int* lengths,
               const int* keys, int texts, int length, float scale, int attention_threshold, float attention_grow,
               int threshold, float grow, float eps, int attention_drops, int drops) {
  SHARED(memory);
  char* x_tile = memory;
  char* q_tile = memory + TILE;
  char* k_tile = memory + 2 * TILE;
  char* v_tile = memory + 3 * TILE;
  char* stages = memory + 4 * TILE;  // one of each half's warps
  char* qkv_boxes = memory + 6 * TILE;
  char* out_box = qkv_boxes + 3 * BOX;
  char* up_boxes = qkv_boxes + 4 * BOX;
  char* down_boxes = qkv_boxes + 8 * BOX;
  u32* columns = (u32*)(qkv_boxes + 12 * BOX);
  float2* places = (float2*)(columns + 64);
  float* both_vectors = (float*)(places + 6 * ROWS);

  after_others();
  int text = blockIdx.x, thread = threadIdx.x;
  int visible = lengths ? lengths[text] : length;
  u32 key = attention_drops || drops ? (u32)keys[text] : 0, least = (u32)threshold << 16;
  fetch_rows(x_tile, ROWS, x + (long)text * length * WIDTH, WIDTH * 2, length, thread);
  fetch_rows(qkv_boxes, 3 * WIDTH, layers.of[0].qkv_w, WIDTH * 2, 3 * WIDTH, thread);
  if (thread < 64) columns[thread] = column_word(thread);
  Vectors early;
  ask(early, layers.of[0], thread);
  keep(early, both_vectors, thread);
#pragma unroll 1
  for (int number = 0; number < count; number++) {
    const Layer& layer = layers.of[number];
    thread = anew(thread);
    Seat s = seat_of(thread);
    auto room = [&](int half) { return stages + half * TILE + s.first * 128; };
    float* vectors = both_vectors + (number & 1) * VECTORS;
    long begin = ((long)number * texts + text) * length;
    fetched();
    seen_by_engines();
    __syncthreads();  // all have done with the layer before
    fetch_rows(out_box, WIDTH, layer.out_w, WIDTH * 2, WIDTH, thread);
    fetch_rows(up_boxes, INNER, layer.up_w, WIDTH * 2, INNER, thread);
    for (int i = 0; i < 4; i++)
      fetch_rows(down_boxes + i * BOX, WIDTH, layer.down_w + i * WIDTH, INNER * 2, WIDTH, thread);
    mark();

    u32 part[4][4];
    float c[8][4], own[4][4], other_own[4][4];
    char* qkv_rows = (char*)(qkv + begin * 3 * WIDTH);
    take_rows(part, x_tile, s);
    {
      int which = 1 + s.half;  // keys, or values
      set_bias(c, vectors + QKV_BIAS + which * WIDTH, s.lane);
      add_box<0>(c, part, qkv_boxes + which * BOX);
      put_rows(c, s.half ? v_tile : k_tile, qkv_rows + which * WIDTH * 2, 3 * WIDTH * 2, length, s);
      set_bias(own, vectors + QKV_BIAS + s.own * 8, s.lane);
      add_rows(own, part, qkv_boxes + s.own * 1024, s.lane);
      put_rows(own, q_tile, qkv_rows, 3 * WIDTH * 2, length, s);
    }
    seen_by_engines();
    __syncthreads();
    if (number + 1 < count) {
      fetch_rows(qkv_boxes, 3 * WIDTH, layers.of[number + 1].qkv_w, WIDTH * 2, 3 * WIDTH, thread);
      ask(early, layers.of[number + 1], thread);
    }
    mark();

    // Rows past the end are the bias alone, and nobody sees them.
    take_rows(part, q_tile, s);
    float top[2], total[2];
    attend_half(c, top, total, part, k_tile, v_tile, attention_drops, key, layer.sites[0], columns, visible, scale,
                (u32)attention_threshold << 16, s);
    give(own, c, room(s.half), s);
    tell(places, top, total, s);
    sync_pair(s);
    get(other_own, room(1 - s.half), s);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float2 other = told(places, i, s);
      float higher = fmaxf(top[i], other.x), shrink = power2(top[i] - higher), shrink_other = power2(other.x - higher);
      float all = fmaxf(total[i] * shrink + other.y * shrink_other, 1e-30f);
      float share = (attention_drops ? attention_grow : 1.0f) / all;
#pragma unroll
      for (int n = 0; n < 4; n++)
#pragma unroll
        for (int j = 2 * i; j < 2 * i + 2; j++)
          own[n][j] = (own[n][j] * shrink + other_own[n][j] * shrink_other) * share;
      if (s.half == 0 && (s.lane & 3) == 0 && s.row + 8 * i < length) level[begin + s.row + 8 * i] = higher + log2f(all);
    }
    put_rows(own, q_tile, (char*)(mixed + begin * WIDTH), WIDTH * 2, length, s);
    if (number + 1 < count) keep(early, both_vectors + (~number & 1) * VECTORS, thread);
    fetched_but<1>();
    seen_by_engines();
    __syncthreads();  // the other weights are there
    take_rows(part, q_tile, s);
    set_bias(own, vectors + OUT_BIAS + s.own * 8, s.lane);
    add_rows(own, part, out_box + s.own * 1024, s.lane);
    u32 word[2];
    for (int i = 0; i < 2; i++) word[i] = row_word(key, (u32)layer.sites[1], s.row + 8 * i);
    drop_add_norm(own, x_tile, stages, word, columns, drops, least, grow, eps, vectors + NORM1, places + 2 * ROWS,
                  (char*)(sum1 + begin * WIDTH), (char*)(y + begin * WIDTH), mean1 + begin, rstd1 + begin, length, s);
    sync_pair(s);
    take_rows(part, x_tile, s);
    clear(c);
#pragma unroll 1
    for (int i = 2 * s.half; i < 2 * s.half + 2; i++) {
      float u[8][4];
      u32 active[4][4];
      set_bias(u, vectors + UP_BIAS + i * WIDTH, s.lane);
      add_box<0>(u, part, up_boxes + i * BOX);
      put_rows(u, stages + s.half * TILE, (char*)(inner + begin * INNER + i * WIDTH), INNER * 2, length, s);
#pragma unroll
      for (int n = 0; n < 8; n++) {
        float y[4];
        phi(y, u[n]);
#pragma unroll
        for (int j = 0; j < 4; j++) u[n][j] *= y[j];
      }
      round_rows(active, u);
      add_box<0>(c, active, down_boxes + i * BOX);
    }
    __syncwarp();
    s = seat_of(anew(threadIdx.x));  // what follows from it is not kept meanwhile
    give(own, c, room(s.half), s);
    sync_pair(s);
    get(other_own, room(1 - s.half), s);
    {
      float bias[4][4];
      set_bias(bias, vectors + DOWN_BIAS + s.own * 8, s.lane);
#pragma unroll
      for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) own[n][i] += other_own[n][i] + bias[n][i];
    }
    for (int i = 0; i < 2; i++) word[i] = row_word(key, (u32)layer.sites[2], s.row + 8 * i);
    drop_add_norm(own, x_tile, q_tile, word, columns, drops, least, grow, eps, vectors + NORM2, places + 4 * ROWS,
                  (char*)(sum2 + begin * WIDTH), (char*)(z + begin * WIDTH), mean2 + begin, rstd2 + begin, length, s);
  }
}
