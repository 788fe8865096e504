// A narrow layer's way back, all but the products that are gradients of weights: a block is a text, a warp 16 of its
// rows. What those products need is written out; of what adds up to gradients of vectors each block leaves a line.

#define INNER 256

// The way back through dropout, residual and norm: `dy` becomes the gradient of the residual, `branch` that of the
// branch; 192 sums go into `line`.
INLINE void norm_drop_back(float dy[8][4], float branch[8][4], const u32 summed[4][4], const float* mean,
                           const float* rstd, const float* gamma, bool drops, const u32 word[2], const u32* columns,
                           int threshold, float grow, float* line, int row, int lane) {
  float m[2] = {mean[row], mean[row + 8]}, r[2] = {rstd[row], rstd[row + 8]}, level[2] = {}, slope[2] = {};
  put_sums(dy, line + 64, lane);
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u32 pair = summed[n / 2][(n & 1) * 2 + i / 2];
      branch[n][i] = (((i & 1) ? high_of(pair) : low_of(pair)) - m[i / 2]) * r[i / 2];
    }
  {
    float product[8][4];
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int i = 0; i < 4; i++) product[n][i] = dy[n][i] * branch[n][i];
    put_sums(product, line, lane);
  }
#pragma unroll
  for (int n = 0; n < 8; n++) {
    float2 g = *(const float2*)(gamma + n * 8 + (lane & 3) * 2);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      dy[n][i] *= i & 1 ? g.y : g.x;
      level[i / 2] += dy[n][i];
      slope[i / 2] += dy[n][i] * branch[n][i];
    }
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    level[i] = sum_quad(level[i]) * (1.0f / WIDTH);
    slope[i] = sum_quad(slope[i]) * (1.0f / WIDTH);
  }
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      dy[n][i] = (dy[n][i] - level[i / 2] - branch[n][i] * slope[i / 2]) * r[i / 2];
      branch[n][i] = dy[n][i];
    }
  if (drops) drop_rows(branch, word, columns, threshold, grow, lane);
  put_sums(branch, line + 128, lane);
}

// Sums of a block's warps, to memory.
INLINE void add_lines(const float* parts, int count, float* line, int thread) {
  if (thread < count) {
    float total = 0;
    for (int i = 0; i < 8; i++) total += parts[i * count + thread];
    line[thread] = total;
  }
}

KERNEL(256, 2)
narrow_backward(const u16* gradient, const u16* qkv_w, const u16* out_w, const float* gamma1, const u16* up_w,
                const u16* down_w, const float* gamma2, u16* qkv, const u16* mixed, const float* level, const u16* sum1,
                const float* mean1, const float* rstd1, u16* inner, const u16* sum2, const float* mean2,
                const float* rstd2, u16* d_down, u16* d_inner, u16* d_out, u16* d_x, float* lines1, float* lines2,
                float* up_lines, float* qkv_lines, const int* lengths, const int* keys, int site0, int site1, int site2,
                int length, float scale, int attention_threshold, float attention_grow, int threshold, float grow,
                int attention_drops, int drops) {
  SHARED(memory);
  char* d_tile = memory;  // each warp's rows on their way, and in the end the gradient of attention's output
  char* down_tiles = memory + TILE;
  char* up_tiles = memory + 3 * TILE;
  char* out_tile = memory + 5 * TILE;
  float* parts2 = (float*)(memory + 5 * TILE + 8192);
  char* q_tile = memory + TILE;  // once the feed-forward half is done
  char* k_tile = memory + 2 * TILE;
  char* v_tile = memory + 3 * TILE;
  char* scores = memory + 4 * TILE;
  float* parts1 = (float*)(memory + 4 * TILE);  // in between
  float2* facts = (float2*)(memory + 6 * TILE);
  u32* words = (u32*)(facts + ROWS);
  u32* columns = words + ROWS;
  float* parts = (float*)(columns + 64);
  float* held = parts + 8 * INNER;  // of each row: the norms' means and inverse deviations, attention's log-sum
  float* gammas = held + 5 * ROWS;

  int text = blockIdx.x, thread = threadIdx.x, lane = thread & 31, warp = thread / 32, first = warp * 16;
  int row = first + lane / 4;
  long begin = (long)text * length;
  int visible = lengths ? lengths[text] : length;
  for (int i = 0; i < 4; i++)
    fetch_rows(down_tiles + i * 8192, WIDTH, down_w + i * WIDTH, INNER * 2, WIDTH, thread, 256);
  fetch_rows(up_tiles, INNER, up_w, WIDTH * 2, INNER, thread, 256);
  fetch_rows(out_tile, WIDTH, out_w, WIDTH * 2, WIDTH, thread, 256);
  if (thread < 64) columns[thread] = mix(thread);
  if (attention_drops && thread < ROWS) words[thread] = row_word((u32)keys[text], (u32)site0, thread);

  float dy[8][4], du[8][4];
  u32 part[4][4], given[4][4], word[2];
  Rows rows, more;
  begin_rows(rows, gradient + begin * WIDTH, WIDTH * 2, first, length, lane);
  begin_rows(more, sum2 + begin * WIDTH, WIDTH * 2, first, length, lane);
  if (thread < ROWS) {
    const float* from[5] = {mean2, rstd2, mean1, rstd1, level};
#pragma unroll
    for (int i = 0; i < 5; i++) held[i * ROWS + thread] = thread < length ? from[i][begin + thread] : 0;
  } else {
    int i = thread - ROWS;
    gammas[i] = i < WIDTH ? gamma2[i] : gamma1[i - WIDTH];
  }
  end_rows(given, rows, d_tile, first, lane);
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u32 pair = given[n / 2][(n & 1) * 2 + i / 2];
      dy[n][i] = (i & 1) ? high_of(pair) : low_of(pair);
    }
  end_rows(given, more, d_tile, first, lane);
  for (int i = 0; i < 2; i++) word[i] = drops ? row_word((u32)keys[text], (u32)site2, row + 8 * i) : 0;
  __syncthreads();
  norm_drop_back(dy, du, given, held, held + ROWS, gammas, drops, word, columns, threshold, grow, parts2 + warp * 192,
                 row, lane);
  round_rows(part, du);
  put_rows(du, d_tile, row, row + 8, first, (char*)(d_down + begin * WIDTH), WIDTH * 2, length, lane);
  begin_rows(rows, inner + begin * INNER, INNER * 2, first, length, lane);
  fetched();
  __syncthreads();
#pragma unroll 1
  for (int j = 0; j < 4; j++) {
#pragma unroll
    for (int n = 0; n < 8; n++) du[n][0] = du[n][1] = du[n][2] = du[n][3] = 0;
    add_product_turned(du, part, place_of(down_tiles) + j * 8192, lane);
    end_rows(given, rows, d_tile, first, lane);
    const u16* next = j < 3 ? inner + begin * INNER + (j + 1) * WIDTH : sum1 + begin * WIDTH;
    begin_rows(rows, next, (j < 3 ? INNER : WIDTH) * 2, first, length, lane);
    // The GELU's output takes the place of what it was given.
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        u32* pair = &given[n / 2][(n & 1) * 2 + i];
        float low = low_of(*pair), high = high_of(*pair);
        du[n][2 * i] *= gelu_slope(low);
        du[n][2 * i + 1] *= gelu_slope(high);
        *pair = pack(low * phi(low), high * phi(high));
      }
    put_pairs(given, d_tile, row, row + 8, first, (char*)(inner + begin * INNER + j * WIDTH), INNER * 2, length, lane);
    put_sums(du, parts + warp * INNER + j * WIDTH, lane);
    put_rows(du, d_tile, row, row + 8, first, (char*)(d_inner + begin * INNER + j * WIDTH), INNER * 2, length, lane);
    round_rows(given, du);
    add_product_turned(dy, given, place_of(up_tiles) + j * 8192, lane);
  }
  __syncthreads();  // the feed-forward half's weights are no longer read
  u16* here = qkv + begin * 3 * WIDTH;
  fetch_rows(q_tile, ROWS, here, 3 * WIDTH * 2, length, thread, 256);
  fetch_rows(k_tile, ROWS, here + WIDTH, 3 * WIDTH * 2, length, thread, 256);
  fetch_rows(v_tile, ROWS, here + 2 * WIDTH, 3 * WIDTH * 2, length, thread, 256);
  add_lines(parts2, 192, lines2 + text * 192, thread);
  add_lines(parts, INNER, up_lines + text * INNER, thread);
  end_rows(given, rows, d_tile, first, lane);
  begin_rows(rows, mixed + begin * WIDTH, WIDTH * 2, first, length, lane);
  for (int i = 0; i < 2; i++) word[i] = drops ? row_word((u32)keys[text], (u32)site1, row + 8 * i) : 0;
  norm_drop_back(dy, du, given, held + 2 * ROWS, held + 3 * ROWS, gammas + WIDTH, drops, word, columns, threshold, grow,
                 parts1 + warp * 192, row, lane);
  put_rows(dy, d_tile, row, row + 8, first, (char*)(d_x + begin * WIDTH), WIDTH * 2, length, lane);
  put_rows(du, d_tile, row, row + 8, first, (char*)(d_out + begin * WIDTH), WIDTH * 2, length, lane);
  round_rows(part, du);
#pragma unroll
  for (int n = 0; n < 8; n++) du[n][0] = du[n][1] = du[n][2] = du[n][3] = 0;
  add_product_turned(du, part, place_of(out_tile), lane);
  end_rows(given, rows, d_tile, first, lane);
  round_rows(part, du);
  float shared[2] = {};
#pragma unroll
  for (int h = 0; h < 4; h++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      shared[i & 1] += low_of(part[h][i]) * low_of(given[h][i]) + high_of(part[h][i]) * high_of(given[h][i]);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    shared[i] = sum_quad(shared[i]);
    int here = row + 8 * i;
    if ((lane & 3) == 0) facts[here] = make_float2(held[4 * ROWS + here], shared[i]);
  }
  put_pairs(part, d_tile, row, row + 8, first, 0, 0, 0, lane);
  fetched();
  __syncthreads();
  add_lines(parts1, 192, lines1 + text * 192, thread);
  __syncthreads();
  back_to_keys(dy, du, q_tile, k_tile, v_tile, d_tile, scores, facts, words, attention_drops, visible, scale,
               attention_threshold, attention_grow, warp, lane);
  put_sums(du, parts + warp * 128 + 64, lane);
  __syncthreads();  // all gradients of scores are there, and nobody reads queries, values and gradients any more
  int key = first + 2 * (lane / 4);
  char* to = (char*)here;
  put_rows(dy, q_tile, key, key + 1, first, to + WIDTH * 2, 3 * WIDTH * 2, length, lane);
  put_rows(du, d_tile, key, key + 1, first, to + WIDTH * 4, 3 * WIDTH * 2, length, lane);
  begin_rows(rows, d_x + begin * WIDTH, WIDTH * 2, first, length, lane);
  back_to_queries(dy, k_tile, scores, scale, warp, lane);
  put_sums(dy, parts + warp * 128, lane);
  put_rows(dy, v_tile, row, row + 8, first, to, 3 * WIDTH * 2, length, lane);
  __syncthreads();
  fetch_rows(scores, 3 * WIDTH, qkv_w, WIDTH * 2, 3 * WIDTH, thread, 256);
  if (thread < 192) {
    // What is added to all keys changes no softmax, so their sum is zero.
    float total = 0;
    if (thread / 64 != 1)
      for (int i = 0; i < 8; i++) total += parts[i * 128 + (thread / 128) * 64 + (thread & 63)];
    qkv_lines[text * 192 + thread] = total;
  }
  end_rows(given, rows, k_tile, first, lane);
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u32 pair = given[n / 2][(n & 1) * 2 + i / 2];
      dy[n][i] = (i & 1) ? high_of(pair) : low_of(pair);
    }
  fetched();
  __syncthreads();
  take_rows(part, place_of(v_tile), first, lane);
  add_product_turned(dy, part, place_of(scores), lane);
  take_rows(part, place_of(q_tile), first, lane);
  add_product_turned(dy, part, place_of(scores) + 8192, lane);
  take_rows(part, place_of(d_tile), first, lane);
  add_product_turned(dy, part, place_of(scores) + 2 * 8192, lane);
  put_rows(dy, k_tile, row, row + 8, first, (char*)(d_x + begin * WIDTH), WIDTH * 2, length, lane);
}
