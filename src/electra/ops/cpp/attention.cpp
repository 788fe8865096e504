// Attention of whole heads in bf16 on AMX: from queries, keys and values of a product to the context, and back, a head
// at a time, with its scores in the cache. Head sizes are multiples of 32; lengths are filled up to one with zeros.

#include <algorithm>
#include <vector>

#include "amx.h"
#include "softmax.h"

#ifdef __AMX_BF16__
static thread_local Workspace workspace;

static inline int64_t whole_blocks(int64_t length) { return (length + BLOCK - 1) / BLOCK * BLOCK; }

// One head's rows of a matrix of tokens, with a bias where there is one, then zeros.
static inline void gather(const uint16_t* x, int64_t stride, const uint16_t* bias, int64_t length, int64_t filled,
                          int64_t size, uint16_t* to) {
  constexpr int64_t AHEAD = 8;  // the processor does not foresee rows that lie this far apart
  for (int64_t row = 0; row < length; row++) {
    const uint16_t* __restrict from = x + row * stride;
    const uint16_t* __restrict added = bias;
    uint16_t* __restrict filling = to + row * size;
    for (int64_t i = 0; i < size; i += STEP) __builtin_prefetch(from + AHEAD * stride + i);
    if (bias)
      for (int64_t i = 0; i < size; i++) filling[i] = round_to<uint16_t>(to_float(from[i]) + to_float(added[i]));
    else
      memcpy(filling, from, size * 2);
  }
  memset(to + length * size, 0, (filled - length) * size * 2);
}

// (rows, size) as the right side of a product: `rows` becomes its depth, or its columns.
static inline void pack_as_depth(const uint16_t* x, int64_t rows, int64_t size, uint16_t* tiles) {
  for (int64_t column = 0; column < size; column += TILE)
    for (int64_t row = 0; row < rows; row += STEP, tiles += PACKED) pack_rows(x + column, size, row, rows, tiles);
}
static inline void pack_as_columns(const uint16_t* x, int64_t rows, int64_t size, uint16_t* tiles) {
  for (int64_t row = 0; row < rows; row += TILE)
    for (int64_t column = 0; column < size; column += STEP, tiles += PACKED)
      pack_columns(x + row * size + column, size, tiles);
}

static inline void transpose(const uint16_t* x, int64_t size, uint16_t* to) {
  for (int64_t row = 0; row < size; row += STEP)
    for (int64_t column = 0; column < size; column += TILE)
      transpose_tile(x + column, size, row, size, to + column * size + row, size);
}

// Rows of sums as rows of a matrix of tokens; adds them up in `totals` where there are any.
static inline void scatter(const float* sums, int64_t length, int64_t size, uint16_t* to, int64_t stride, float* totals) {
  for (int64_t row = 0; row < length; row++)
    for (int64_t i = 0; i < size; i++) {
      const uint16_t rounded = round_to<uint16_t>(sums[row * size + i]);
      to[row * stride + i] = rounded;
      if (totals) totals[i] += to_float(rounded);
    }
}

extern "C" void attention_bfloat16(const uint16_t* qkv,      // (B, L, 3, N, size), without the bias
                                   const uint16_t* bias,     // (3, N, size)
                                   uint16_t* probabilities,  // out (B, N, L, L): before dropout, negative where dropped
                                   uint16_t* context,        // out (B, L, N, size)
                                   const uint16_t* mask,     // of a sequence and row, L of them; or null
                                   int64_t sequence_stride, int64_t row_stride,  // of the mask
                                   const uint32_t* keys, const uint32_t* column_bits, int64_t threshold,
                                   float dropout_scale, float scale, int64_t sequences, int64_t heads, int64_t length,
                                   int64_t size, int64_t threads) {
  const Dropout dropout{keys, column_bits, threshold, dropout_scale};
  const int64_t filled = whole_blocks(length), width = heads * size, stride = 3 * width;
#pragma omp parallel num_threads((int)threads)
  {
    const Tiles tiles;
    workspace.begin(5 * filled * size * 2 + BLOCK * size * 4 + BLOCK * filled * 4 + BLOCK * filled * 2 +
                        (ROWS_TOGETHER + 1) * length * 4,
                    9);
    const auto take_head = [&] { return workspace.take<uint16_t>(filled * size); };
    uint16_t *const q = take_head(), *const k = take_head(), *const v = take_head();
    uint16_t *const k_tiles = take_head(), *const v_tiles = take_head();
    float *const sums = workspace.take<float>(BLOCK * size), *const scores = workspace.take<float>(BLOCK * filled);
    uint16_t* const weights = workspace.take<uint16_t>(BLOCK * filled);
    float* const buffer = workspace.take<float>((ROWS_TOGETHER + 1) * length);
#pragma omp for schedule(static)
    for (int64_t head = 0; head < sequences * heads; head++) {
      const int64_t sequence = head / heads, column = head % heads * size;
      const uint16_t *const own = qkv + sequence * length * stride + column, *const own_bias = bias + column;
      gather(own, stride, own_bias, length, filled, size, q);
      gather(own + width, stride, own_bias + width, length, filled, size, k);
      gather(own + 2 * width, stride, own_bias + 2 * width, length, filled, size, v);
      pack_as_columns(k, filled, size, k_tiles);
      pack_as_depth(v, filled, size, v_tiles);
      for (int64_t first = 0; first < length; first += BLOCK) {
        const int64_t rows = std::min(BLOCK, length - first);
        multiply(q + first * size, size, k_tiles, size / STEP, scores, BLOCK, filled);
        for (int64_t row = 0; row < BLOCK; row++) {
          const int64_t real = row < rows ? length : 0;
          memset(weights + row * filled + real, 0, (filled - real) * 2);
        }
        const uint16_t* added = mask ? mask + sequence * sequence_stride + first * row_stride : nullptr;
        with_width(length, [&](auto known) {
          for (int64_t row = 0; row < rows; row += ROWS_TOGETHER)
            softmax_rows(scores + row * filled, filled, weights + row * filled, filled,
                         probabilities + (head * length + first + row) * length,
                         added ? added + row * row_stride : nullptr, row_stride, dropout, scale, sequence,
                         head % heads * length + first + row, std::min(ROWS_TOGETHER, rows - row), known, buffer);
        });
        multiply(weights, filled, v_tiles, filled / STEP, sums, BLOCK, size);
        scatter(sums, rows, size, context + (sequence * length + first) * width + column, width, nullptr);
      }
    }
  }
}

extern "C" void attention_backward_bfloat16(const uint16_t* d_context,      // (B, L, N, size)
                                            const uint16_t* qkv,            // (B, L, 3, N, size), without the bias
                                            const uint16_t* bias,           // (3, N, size)
                                            const uint16_t* probabilities,  // (B, N, L, L)
                                            uint16_t* d_qkv,                // out (B, L, 3, N, size)
                                            uint16_t* d_bias,               // out (3, N, size)
                                            float dropout_scale, float scale, int64_t sequences, int64_t heads,
                                            int64_t length, int64_t size, int64_t threads) {
  const int64_t filled = whole_blocks(length), width = heads * size, stride = 3 * width;
  std::vector<float> bias_sums(sequences * stride);
#pragma omp parallel num_threads((int)threads)
  {
    const Tiles tiles;
    workspace.begin(8 * filled * size * 2 + 4 * filled * filled * 2 + filled * size * 4 + BLOCK * filled * 4 +
                        2 * ROWS_TOGETHER * length * 4,
                    15);
    const auto take_head = [&] { return workspace.take<uint16_t>(filled * size); };
    const auto take_square = [&] { return workspace.take<uint16_t>(filled * filled); };
    uint16_t *const q = take_head(), *const k = take_head(), *const v = take_head(), *const dc = take_head();
    uint16_t *const q_tiles = take_head(), *const k_tiles = take_head(), *const v_tiles = take_head();
    uint16_t* const dc_tiles = take_head();
    uint16_t *const d_scores = take_square(), *const weights = take_square();      // (queries, keys)
    uint16_t *const d_scores_t = take_square(), *const weights_t = take_square();  // (keys, queries)
    float *const sums = workspace.take<float>(filled * size), *const d_weights = workspace.take<float>(BLOCK * filled);
    float* const buffer = workspace.take<float>(2 * ROWS_TOGETHER * length);
#pragma omp for schedule(static)
    for (int64_t head = 0; head < sequences * heads; head++) {
      const int64_t sequence = head / heads, column = head % heads * size, at = sequence * length;
      const uint16_t *const own = qkv + at * stride + column, *const own_bias = bias + column;
      gather(own, stride, own_bias, length, filled, size, q);
      gather(own + width, stride, own_bias + width, length, filled, size, k);
      gather(own + 2 * width, stride, own_bias + 2 * width, length, filled, size, v);
      gather(d_context + at * width + column, width, nullptr, length, filled, size, dc);
      pack_as_columns(v, filled, size, v_tiles);
      pack_as_depth(q, filled, size, q_tiles);
      pack_as_depth(k, filled, size, k_tiles);
      pack_as_depth(dc, filled, size, dc_tiles);
      if (filled != length) {
        memset(d_scores, 0, filled * filled * 2);
        memset(weights, 0, filled * filled * 2);
      }
      for (int64_t first = 0; first < length; first += BLOCK) {
        const int64_t rows = std::min(BLOCK, length - first);
        multiply(dc + first * size, size, v_tiles, size / STEP, d_weights, BLOCK, filled);
        with_width(length, [&](auto known) {
          for (int64_t row = 0; row < rows; row += ROWS_TOGETHER)
            softmax_rows_backward(d_weights + row * filled, filled, probabilities + (head * length + first + row) * length,
                                  d_scores + (first + row) * filled, weights + (first + row) * filled, filled, dropout_scale,
                                  scale, std::min(ROWS_TOGETHER, rows - row), known, buffer);
        });
      }
      transpose(d_scores, filled, d_scores_t);
      transpose(weights, filled, weights_t);
      uint16_t* const d_own = d_qkv + at * stride + column;
      float* const own_sums = bias_sums.data() + sequence * stride + column;
      multiply(d_scores, filled, k_tiles, filled / STEP, sums, filled, size);
      scatter(sums, length, size, d_own, stride, own_sums);
      multiply(d_scores_t, filled, q_tiles, filled / STEP, sums, filled, size);
      scatter(sums, length, size, d_own + width, stride, own_sums + width);
      multiply(weights_t, filled, dc_tiles, filled / STEP, sums, filled, size);
      scatter(sums, length, size, d_own + 2 * width, stride, own_sums + 2 * width);
    }
  }
  sum_partials(bias_sums.data(), sequences, stride, stride, d_bias);
}
#endif
