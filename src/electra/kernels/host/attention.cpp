// Attention around its two batched products: heads laid apart and together, and everything that happens to scores.

#include <limits>
#include <vector>

#include "numbers.h"

// (texts, length, parts, heads, size), with a bias for what one token has or none, as (parts, texts, heads, length, size).
template <class T, class Size>
static void split(const T* x, const T* bias, T* y, int64_t parts, int64_t texts, int64_t heads, int64_t length,
                  Size size, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) collapse(2)
  for (int64_t text = 0; text < texts; text++)
    for (int64_t place = 0; place < length; place++) {
      const T* __restrict from = x + (text * length + place) * parts * heads * size;
      const T* __restrict added = bias;
      for (int64_t part = 0; part < parts; part++)
        for (int64_t head = 0; head < heads; head++) {
          T* __restrict to = y + (((part * texts + text) * heads + head) * length + place) * size;
          if (!added) {
            memcpy(to, from, size * sizeof(T));
          } else {
            for (int64_t i = 0; i < size; i++) to[i] = narrow<T>(wide(from[i]) + wide(added[i]));
            added += size;
          }
          from += size;
        }
    }
}

// The way back of `split`; `sums` gets the sums over all tokens, where it is wanted.
template <class T, class Size>
static void join(const T* x, T* y, T* sums, int64_t parts, int64_t texts, int64_t heads, int64_t length, Size size,
                 int threads) {
  const int64_t width = parts * heads * size, count = texts * length, block = rows_of_block(count);
  const int64_t blocks = (count + block - 1) / block;
  std::vector<float> lines(sums ? blocks * width : 0);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t number = 0; number < blocks; number++) {
    for (int64_t row = number * block; row < count && row < (number + 1) * block; row++) {
      const int64_t text = row / length, place = row % length;
      for (int64_t chunk = 0; chunk < parts * heads; chunk++) {
        const int64_t part = chunk / heads, head = chunk % heads;
        const T* __restrict from = x + (((part * texts + text) * heads + head) * length + place) * size;
        T* __restrict to = y + row * width + chunk * size;
        memcpy(to, from, size * sizeof(T));
        if (sums) {
          float* __restrict line = lines.data() + number * width + chunk * size;
          for (int64_t i = 0; i < size; i++) line[i] += wide(from[i]);
        }
      }
    }
  }
  if (sums) sum_lines(lines.data(), blocks, width, width, sums);
}

// Scores become shares: scaled, biased, through the softmax, dropped. `kept` gets them before dropout, with a minus
// sign where they were dropped. The bias of a text lies `of_text` after that before it, that of a row `of_row`.
template <class T, class Length>
static void share(T* scores, T* kept, const T* bias, int64_t of_text, int64_t of_row, Chance chance, float scale,
                  int64_t texts, int64_t heads, Length length, int threads) {
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> lines((TOGETHER + 1) * length);
    float* const __restrict scored = lines.data();
    float* const __restrict factor = lines.data() + TOGETHER * length;
    float tops[TOGETHER], totals[TOGETHER];
#pragma omp for schedule(static) collapse(2)
    for (int64_t matrix = 0; matrix < texts * heads; matrix++)
      for (int64_t first = 0; first < length; first += TOGETHER) {
        const int64_t text = matrix / heads, some = length - first < TOGETHER ? length - first : TOGETHER;
        for (int64_t one = 0; one < some; one++) {
          const T* __restrict from = scores + (matrix * length + first + one) * length;
          float* __restrict score = scored + one * length;
          float top = -std::numeric_limits<float>::infinity();
          if (bias) {
            const T* __restrict added = bias + text * of_text + (first + one) * of_row;
#pragma omp simd reduction(max : top)
            for (int64_t i = 0; i < length; i++) {
              score[i] = wide(from[i]) * scale + wide(added[i]);
              top = score[i] > top ? score[i] : top;
            }
          } else {
#pragma omp simd reduction(max : top)
            for (int64_t i = 0; i < length; i++) {
              score[i] = wide(from[i]) * scale;
              top = score[i] > top ? score[i] : top;
            }
          }
          tops[one] = top;
        }
        for (int64_t one = 0; one < some; one++) {
          float* __restrict score = scored + one * length;
          const float top = tops[one];
          totals[one] = sum_row(length, [=](int64_t i) { return score[i] = exp_below(score[i] - top); });
        }
        for (int64_t one = 0; one < some; one++) {
          const int64_t line = matrix * length + first + one;
          const float* __restrict score = scored + one * length;
          const float inverse = 1.0f / totals[one];
          chance.factors(text, line - text * heads * length, length, factor);
          T* __restrict to = scores + line * length;
          T* __restrict keep = kept + line * length;
#pragma omp simd
          for (int64_t i = 0; i < length; i++) {
            const T share = narrow<T>(score[i] * inverse);
            keep[i] = factor[i] > 0.0f ? share : minus(share);
            to[i] = narrow<T>(wide(share) * factor[i]);
          }
        }
      }
  }
}

// The gradient of the dropped shares becomes that of the scores, in place; `shares` gets the dropped shares again.
template <class T, class Length>
static void share_back(T* gradient, const T* kept, T* shares, float grow, float scale, int64_t lines, Length length,
                       int threads) {
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> numbers(2 * TOGETHER * length);
    float along[TOGETHER];
#pragma omp for schedule(static)
    for (int64_t first = 0; first < lines; first += TOGETHER) {
      const int64_t some = lines - first < TOGETHER ? lines - first : TOGETHER;
      for (int64_t one = 0; one < some; one++) {
        const T* __restrict g = gradient + (first + one) * length;
        const T* __restrict from = kept + (first + one) * length;
        T* __restrict to = shares + (first + one) * length;
        float* __restrict plain = numbers.data() + 2 * one * length;
        float* __restrict back = plain + length;
        along[one] = sum_row(length, [=](int64_t i) {
          const float share = wide(from[i]), factor = share < 0.0f ? 0.0f : grow;
          plain[i] = share < 0.0f ? -share : share;
          back[i] = wide(g[i]) * factor;
          to[i] = narrow<T>(plain[i] * factor);
          return plain[i] * back[i];
        });
      }
      for (int64_t one = 0; one < some; one++) {
        T* __restrict g = gradient + (first + one) * length;
        const float* __restrict plain = numbers.data() + 2 * one * length;
        const float* __restrict back = plain + length;
        const float middle = along[one];
        for (int64_t i = 0; i < length; i++) g[i] = narrow<T>(plain[i] * (back[i] - middle) * scale);
      }
    }
  }
}

#define ATTENTION(KIND, T)                                                                                          \
  extern "C" void split_##KIND(const T* x, const T* bias, T* y, int64_t parts, int64_t texts, int64_t heads,       \
                               int64_t length, int64_t size, int64_t threads) {                                     \
    with_width(size, [=](auto known) { split(x, bias, y, parts, texts, heads, length, known, (int)threads); });     \
  }                                                                                                                 \
  extern "C" void join_##KIND(const T* x, T* y, T* sums, int64_t parts, int64_t texts, int64_t heads,              \
                              int64_t length, int64_t size, int64_t threads) {                                      \
    with_width(size, [=](auto known) { join(x, y, sums, parts, texts, heads, length, known, (int)threads); });      \
  }                                                                                                                 \
  extern "C" void share_##KIND(T* scores, T* kept, const T* bias, int64_t of_text, int64_t of_row,                 \
                               const uint32_t* keys, const uint32_t* indices, int64_t threshold, float grow,       \
                               float scale, int64_t texts, int64_t heads, int64_t length, int64_t threads) {        \
    with_width(length, [=](auto known) {                                                                            \
      share(scores, kept, bias, of_text, of_row, Chance{keys, indices, threshold, grow}, scale, texts, heads, known, \
            (int)threads);                                                                                          \
    });                                                                                                             \
  }                                                                                                                 \
  extern "C" void share_back_##KIND(T* gradient, const T* kept, T* shares, float grow, float scale, int64_t lines, \
                                    int64_t length, int64_t threads) {                                              \
    with_width(length, [=](auto known) {                                                                            \
      share_back(gradient, kept, shares, grow, scale, lines, known, (int)threads);                                  \
    });                                                                                                             \
  }
ATTENTION(float32, float)
ATTENTION(bfloat16, uint16_t)
