// A narrow layer's way there: width 64, one head, inner width 256, at most 128 tokens, bf16. A block is a text, a warp
// 16 of its rows; only keys and values go from warp to warp.

#define INNER 256

// Dropout, residual and norm; `c` becomes the norm's output. `residual` as products are given it.
INLINE void drop_add_norm(float c[8][4], const u32 residual[4][4], const u32 word[2], const u32* columns, bool drops,
                          int threshold, float grow, float eps, const float* gamma, const float* beta, char* tile,
                          char* summed, char* out, float* mean, float* rstd, int first, int length, int lane) {
  if (drops) drop_rows(c, word, columns, threshold, grow, lane);
  float total[2] = {}, square[2] = {};
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u32 x = residual[n / 2][(n & 1) * 2 + i];
      c[n][2 * i] += low_of(x);
      c[n][2 * i + 1] += high_of(x);
      total[i] += c[n][2 * i] + c[n][2 * i + 1];
    }
  int row = first + lane / 4;
  put_rows(c, tile, row, row + 8, first, summed, WIDTH * 2, length, lane);
#pragma unroll
  for (int i = 0; i < 2; i++) total[i] = sum_quad(total[i]) * (1.0f / WIDTH);
#pragma unroll
  for (int n = 0; n < 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      c[n][i] -= total[i / 2];
      square[i / 2] += c[n][i] * c[n][i];
    }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    square[i] = inverse_root(sum_quad(square[i]) * (1.0f / WIDTH) + eps);
    if ((lane & 3) == 0 && row + 8 * i < length) {
      mean[row + 8 * i] = total[i];
      rstd[row + 8 * i] = square[i];
    }
  }
#pragma unroll
  for (int n = 0; n < 8; n++) {
    float2 g = *(const float2*)(gamma + n * 8 + (lane & 3) * 2), b = *(const float2*)(beta + n * 8 + (lane & 3) * 2);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      c[n][2 * i] = c[n][2 * i] * square[i] * g.x + b.x;
      c[n][2 * i + 1] = c[n][2 * i + 1] * square[i] * g.y + b.y;
    }
  }
  put_rows(c, tile, row, row + 8, first, out, WIDTH * 2, length, lane);
}

KERNEL(256, 2)
narrow_forward(const u16* x, const u16* qkv_w, const u16* qkv_b, const u16* out_w, const u16* out_b,
               const float* gamma1, const float* beta1, const u16* up_w, const u16* up_b, const u16* down_w,
               const u16* down_b, const float* gamma2, const float* beta2, u16* qkv, u16* mixed, float* level,
               u16* sum1, float* mean1, float* rstd1, u16* y, u16* inner, u16* sum2, float* mean2, float* rstd2, u16* z,
               const int* lengths, const int* keys, int site0, int site1, int site2, int length, float scale,
               int attention_threshold, float attention_grow, int threshold, float grow, float eps,
               int attention_drops, int drops) {
  SHARED(memory);
  char* x_tile = memory;
  char* k_tile = memory + TILE;  // with what follows, the second product's weights later
  char* v_tile = memory + 2 * TILE;
  char* qkv_tiles = memory + 3 * TILE;
  char* out_tile = qkv_tiles + 3 * 8192;
  char* up_tiles = memory + 5 * TILE;
  u32* columns = (u32*)(memory + 7 * TILE);
  float* first_bias = (float*)(columns + 64);
  float* held = (float*)qkv_tiles;  // once these are used: the other biases, and the norms' vectors

  int text = blockIdx.x, thread = threadIdx.x, lane = thread & 31, warp = thread / 32, first = warp * 16;
  int row = first + lane / 4;
  long begin = (long)text * length;
  int visible = lengths ? lengths[text] : length;
  fetch_rows(x_tile, ROWS, x + begin * WIDTH, WIDTH * 2, length, thread, 256);
  fetch_rows(qkv_tiles, 3 * WIDTH, qkv_w, WIDTH * 2, 3 * WIDTH, thread, 256);
  mark();
  fetch_rows(out_tile, WIDTH, out_w, WIDTH * 2, WIDTH, thread, 256);
  fetch_rows(up_tiles, INNER, up_w, WIDTH * 2, INNER, thread, 256);
  mark();
  if (thread < 64) columns[thread] = mix(thread);
  if (thread < 192) first_bias[thread] = low_of(qkv_b[thread]);
  // Asked for now: each would be waited for by itself later.
  float hold0 = low_of(up_b[thread]), hold1, hold2;
  {
    int i = thread & 63, which = thread / 64;
    hold1 = which == 0 ? low_of(out_b[i]) : which == 1 ? low_of(down_b[i]) : which == 2 ? gamma1[i] : beta1[i];
    hold2 = which & 1 ? beta2[i] : gamma2[i];
  }
  fetched_but_last();
  __syncthreads();

  u32 x_part[4][4], q_part[4][4];
  take_rows(x_part, place_of(x_tile), first, lane);
  char* qkv_rows = (char*)(qkv + begin * 3 * WIDTH);
  float c[8][4];
#pragma unroll 1
  for (int i = 1; i < 3; i++) {
    set_bias(c, first_bias + i * WIDTH, lane);
    add_product(c, x_part, place_of(qkv_tiles) + i * 8192, lane);
    put_rows(c, i == 1 ? k_tile : v_tile, row, row + 8, first, qkv_rows + i * WIDTH * 2, 3 * WIDTH * 2, length, lane);
  }
  set_bias(c, first_bias, lane);
  add_product(c, x_part, place_of(qkv_tiles), lane);
  round_rows(q_part, c);
  put_rows(c, x_tile, row, row + 8, first, qkv_rows, 3 * WIDTH * 2, length, lane);
  __syncthreads();
  held[thread] = hold0;
  held[256 + thread] = hold1;
  if (thread < 128) held[512 + thread] = hold2;

  // Rows past the end are the bias alone, and nobody sees them.
  attend_rows(c, q_part, k_tile, v_tile, level + begin, attention_drops, attention_drops ? keys[text] : 0, site0, 0,
              columns, visible, length, scale, attention_threshold, attention_grow, first, lane);
  put_rows(c, x_tile, row, row + 8, first, (char*)(mixed + begin * WIDTH), WIDTH * 2, length, lane);
  fetched();
  __syncthreads();  // nobody reads keys and values any more, and the other weights are there
  for (int i = 0; i < 4; i++)
    fetch_rows(k_tile + i * 8192, WIDTH, down_w + i * WIDTH, INNER * 2, WIDTH, thread, 256);

  u32 part[4][4], word[2];
  round_rows(part, c);
  set_bias(c, held + 256, lane);
  add_product(c, part, place_of(out_tile), lane);
  for (int i = 0; i < 2; i++) word[i] = drops ? row_word((u32)keys[text], (u32)site1, row + 8 * i) : 0;
  drop_add_norm(c, x_part, word, columns, drops, threshold, grow, eps, held + 384, held + 448, x_tile,
                (char*)(sum1 + begin * WIDTH), (char*)(y + begin * WIDTH), mean1 + begin, rstd1 + begin, first, length,
                lane);
  round_rows(x_part, c);
  fetched();
  __syncthreads();
  set_bias(c, held + 320, lane);
#pragma unroll 1
  for (int i = 0; i < 4; i++) {
    float u[8][4];
    set_bias(u, held + i * WIDTH, lane);
    add_product(u, x_part, place_of(up_tiles) + i * 8192, lane);
    put_rows(u, x_tile, row, row + 8, first, (char*)(inner + begin * INNER + i * WIDTH), INNER * 2, length, lane);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
      for (int j = 0; j < 4; j++) u[n][j] *= phi(u[n][j]);
    round_rows(part, u);
    add_product(c, part, place_of(k_tile) + i * 8192, lane);
  }
  for (int i = 0; i < 2; i++) word[i] = drops ? row_word((u32)keys[text], (u32)site2, row + 8 * i) : 0;
  drop_add_norm(c, x_part, word, columns, drops, threshold, grow, eps, held + 512, held + 576, x_tile,
                (char*)(sum2 + begin * WIDTH), (char*)(z + begin * WIDTH), mean2 + begin, rstd2 + begin, first, length,
                lane);
}
