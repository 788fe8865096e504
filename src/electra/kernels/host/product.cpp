// Many small products in fp32, each on one thread: for machines whose library has the threads share every one of them.

#include <vector>

#include "numbers.h"

typedef float Lanes __attribute__((vector_size(16)));
constexpr int64_t ROWS = 6, COLUMNS = 16;  // of what is summed up in registers

// Rows of a product, by a panel of columns of its right side that lies line by line.
template <int64_t R>
static inline void multiply_rows(const float* __restrict left, int64_t of_row, int64_t of_inner,
                                 const float* __restrict panel, int64_t inner, float* __restrict to, int64_t width,
                                 int64_t columns) {
  Lanes sums[R][COLUMNS / 4] = {};
  for (int64_t k = 0; k < inner; k++) {
    Lanes line[COLUMNS / 4];
    memcpy(line, panel + k * COLUMNS, sizeof(line));
#pragma GCC unroll 8
    for (int64_t r = 0; r < R; r++) {
      const float factor = left[r * of_row + k * of_inner];
#pragma GCC unroll 4
      for (int64_t j = 0; j < COLUMNS / 4; j++) sums[r][j] += factor * line[j];
    }
  }
  float found[R][COLUMNS];
  memcpy(found, sums, sizeof(found));
  for (int64_t r = 0; r < R; r++)
    for (int64_t j = 0; j < columns; j++) to[r * width + j] = found[r][j];
}

// (count, rows, width) from (count, rows, inner) and (count, inner, width); how far apart the numbers of one matrix lie
// is given for both sides, and matrices lie end to end.
extern "C" void multiply_float32(const float* a, const float* b, float* c, int64_t count, int64_t rows, int64_t inner,
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
        float* lines = packed.data() + panel * inner * COLUMNS;
        for (int64_t k = 0; k < inner; k++)
          for (int64_t j = 0; j < columns; j++) lines[k * COLUMNS + j] = right[k * b_inner + (first + j) * b_column];
        float* to = c + one * rows * width + first;
        int64_t row = 0;
        for (; row + ROWS <= rows; row += ROWS)
          multiply_rows<ROWS>(left + row * a_row, a_row, a_inner, lines, inner, to + row * width, width, columns);
        for (; row < rows; row++)
          multiply_rows<1>(left + row * a_row, a_row, a_inner, lines, inner, to + row * width, width, columns);
      }
    }
  }
}
