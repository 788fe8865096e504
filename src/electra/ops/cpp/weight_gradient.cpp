// out = gradientᵀ x in bf16, summed over tokens, on AMX. Each thread has a part of the columns of the wider one and sums
// over chunks of tokens in one order, so that the number of threads changes no bit.

#include <algorithm>

#include "amx.h"

#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>

constexpr int64_t CHUNK = 256;  // tokens whose tiles are packed together: two rows of tiles of each matrix fit the L1 cache

static thread_local Workspace workspace;

// Columns [i0, i1) of the gradient by columns [j0, j1) of x, multiples of 32.
static void part_of_product(const uint16_t* gradient, const uint16_t* x, uint16_t* out, int64_t tokens, int64_t rows,
                            int64_t columns, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
  constexpr int64_t MOST = CHUNK / STEP, ROW = MOST * PACKED, SUMS = BLOCK * BLOCK;  // of a row of tiles, of a block
  const int64_t height = i1 - i0, width = j1 - j0, across = width / BLOCK;
  workspace.begin((2 + width / TILE) * ROW * 2 + height * width * 4, 3);
  uint16_t *const a = workspace.take<uint16_t>(2 * ROW), *const b = workspace.take<uint16_t>(width / TILE * ROW);
  float* const sums = workspace.take<float>(height * width);  // block by block
  for (int64_t first = 0; first < tokens; first += CHUNK) {
    const int64_t steps = (std::min(CHUNK, tokens - first) + STEP - 1) / STEP;
    for (int64_t step = 0; step < steps; step++)
      for (int64_t j = 0; j < width; j += TILE)
        pack_rows(x + j0 + j, columns, first + step * STEP, tokens, b + j / TILE * ROW + step * PACKED);
    for (int64_t i = 0; i < height; i += BLOCK) {
      for (int64_t step = 0; step < steps; step++)
        for (int64_t half = 0; half < 2; half++)
          transpose_tile(gradient + i0 + i + half * TILE, rows, first + step * STEP, tokens, a + half * ROW + step * PACKED,
                         STEP);
      for (int64_t j = 0; j < across; j++)
        add_block(a, STEP, PACKED, ROW, b + 2 * j * ROW, ROW, steps, sums + (i / BLOCK * across + j) * SUMS, BLOCK,
                  first == 0);
    }
  }
  for (int64_t i = 0; i < height; i++)
    for (int64_t j = 0; j < across; j++) {
      const float* __restrict from = sums + (i / BLOCK * across + j) * SUMS + i % BLOCK * BLOCK;
      uint16_t* __restrict to = out + (i0 + i) * columns + j0 + j * BLOCK;
      for (int64_t c = 0; c < BLOCK; c++) to[c] = round_to<uint16_t>(from[c]);
    }
}
#endif

// Whether the processor has AMX with bf16 and the system lets this process use it.
extern "C" int64_t amx_ready() {
#ifdef __AMX_BF16__
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
  return 0;
#endif
}

#ifdef __AMX_BF16__
extern "C" void weight_gradient_bfloat16(const uint16_t* gradient,  // (tokens, rows)
                                         const uint16_t* x,         // (tokens, columns)
                                         uint16_t* out,             // out (rows, columns), multiples of 32
                                         int64_t tokens, int64_t rows, int64_t columns, int64_t threads) {
  const bool by_rows = rows >= columns;
  const int64_t blocks = std::max(rows, columns) / BLOCK, parts = std::min(blocks, threads);
#pragma omp parallel for num_threads((int)threads) schedule(static)
  for (int64_t part = 0; part < parts; part++) {
    const Tiles tiles;
    const int64_t first = blocks * part / parts * BLOCK, end = blocks * (part + 1) / parts * BLOCK;
    if (by_rows)
      part_of_product(gradient, x, out, tokens, rows, columns, first, end, 0, columns);
    else
      part_of_product(gradient, x, out, tokens, rows, columns, 0, rows, first, end);
  }
}
#endif
