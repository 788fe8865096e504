// Many small products in fp32, each on one thread: for machines whose library has the threads share every one of them.

#include <vector>

#include "vector.h"

typedef float Lanes __attribute__((vector_size(16)));
constexpr int64_t ROWS = 6, COLUMNS = 16;  // of what is summed up in registers

// R rows of a product with a panel of COLUMNS columns of its right side, packed row by row.
template <int64_t R>
static inline void matmul_rows(const float* __restrict left, int64_t row_stride, int64_t inner_stride,
                                 const float* __restrict panel, int64_t inner, float* __restrict to, int64_t width,
                                 int64_t columns) {
  Lanes sums[R][COLUMNS / 4] = {};
  for (int64_t k = 0; k < inner; k++) {
    Lanes row[COLUMNS / 4];
    memcpy(row, panel + k * COLUMNS, sizeof(row));
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; r++) {
      const float factor = left[r * row_stride + k * inner_stride];
#pragma GCC unroll 4
      for (int64_t j = 0; j < COLUMNS / 4; j++) sums[r][j] += factor * row[j];
    }
  }
  float totals[R][COLUMNS];
  memcpy(totals, sums, sizeof(totals));
  for (int64_t r = 0; r < R; r++)
    for (int64_t j = 0; j < columns; j++) to[r * width + j] = totals[r][j];
}

// c (count, rows, width) = a (count, rows, inner) · b (count, inner, width); strides inside one matrix are given for both
// sides, and matrices are contiguous.
extern "C" void batched_matmul_float32(const float* a, const float* b, float* c, int64_t count, int64_t rows, int64_t inner,
                                 int64_t width, int64_t a_row, int64_t a_inner, int64_t b_inner, int64_t b_column,
                                 int64_t threads) {
  const int64_t panels = (width + COLUMNS - 1) / COLUMNS;
#pragma omp parallel num_threads((int)threads)
  {
    std::vector<float> packed(panels * inner * COLUMNS);
#pragma omp for schedule(static)
    for (int64_t one = 0; one < count; one++) {
      const float* left = a + one * rows * inner;
      const float* right = b + one * inner * width;
      for (int64_t panel = 0; panel < panels; panel++) {
        const int64_t first = panel * COLUMNS, columns = width - first < COLUMNS ? width - first : COLUMNS;
        float* rows_of_panel = packed.data() + panel * inner * COLUMNS;
        for (int64_t k = 0; k < inner; k++)
          for (int64_t j = 0; j < columns; j++) rows_of_panel[k * COLUMNS + j] = right[k * b_inner + (first + j) * b_column];
        float* to = c + one * rows * width + first;
        int64_t row = 0;
        for (; row + ROWS <= rows; row += ROWS)
          matmul_rows<ROWS>(left + row * a_row, a_row, a_inner, rows_of_panel, inner, to + row * width, width, columns);
        for (; row < rows; row++)
          matmul_rows<1>(left + row * a_row, a_row, a_inner, rows_of_panel, inner, to + row * width, width, columns);
      }
    }
  }
}
