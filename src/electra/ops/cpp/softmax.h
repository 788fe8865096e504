// The softmax of attention with dropout, some rows at a time. T is float or uint16_t (bf16), S what scores come in.

#pragma once

#include <limits>

#include "vector.h"

// to = dropout(softmax(scores * scale + mask)) of at most ROWS_TOGETHER rows; the scores may be in the place of `to`.
template <class S, class T, class Length>
__attribute__((always_inline)) static inline void softmax_rows(
    const S* scores, int64_t scores_stride,
    T* to, int64_t to_stride,
    T* probabilities,                // out (some, L): before dropout, negative where dropped
    const T* mask, int64_t mask_stride,  // of the first row, to add to the scores; or null
    const Dropout& dropout, float scale, int64_t sequence, int64_t row,  // the first row's in its sequence
    int64_t some, Length length,
    float* buffer) {                 // (ROWS_TOGETHER + 1, L)
  float* const __restrict factor = buffer + ROWS_TOGETHER * length;
  float maxima[ROWS_TOGETHER], totals[ROWS_TOGETHER];
  for (int64_t one = 0; one < some; one++) {
    const S* __restrict from = scores + one * scores_stride;
    float* __restrict score = buffer + one * length;
    float max = -std::numeric_limits<float>::infinity();
    if (mask) {
      const T* __restrict added = mask + one * mask_stride;
#pragma omp simd reduction(max : max)
      for (int64_t i = 0; i < length; i++) {
        score[i] = to_float(from[i]) * scale + to_float(added[i]);
        max = score[i] > max ? score[i] : max;
      }
    } else {
#pragma omp simd reduction(max : max)
      for (int64_t i = 0; i < length; i++) {
        score[i] = to_float(from[i]) * scale;
        max = score[i] > max ? score[i] : max;
      }
    }
    maxima[one] = max;
  }
  for (int64_t one = 0; one < some; one++) {
    float* __restrict score = buffer + one * length;
    const float max = maxima[one];
    totals[one] = sum_row(length, [=](int64_t i) { return score[i] = exp_nonpositive(score[i] - max); });
  }
  for (int64_t one = 0; one < some; one++) {
    const float* __restrict score = buffer + one * length;
    const float inverse = 1.0f / totals[one];
    dropout.factors(sequence, row + one, length, factor);
    T* __restrict dropped = to + one * to_stride;
    T* __restrict saved = probabilities + one * length;
#pragma omp simd
    for (int64_t i = 0; i < length; i++) {
      const T p = round_to<T>(score[i] * inverse);
      saved[i] = factor[i] > 0.0f ? p : negated(p);
      dropped[i] = round_to<T>(to_float(p) * factor[i]);
    }
  }
}

// From the gradient of `dropped` that of the scores, which may take its place, and `dropped` itself again.
template <class S, class T, class Length>
__attribute__((always_inline)) static inline void softmax_rows_backward(
    const S* gradient, int64_t gradient_stride,
    const T* probabilities,          // (some, L): before dropout, negative where dropped
    T* d_scores, T* dropped, int64_t to_stride,
    float dropout_scale, float scale, int64_t some, Length length,
    float* buffer) {                 // (2 ROWS_TOGETHER, L)
  float dots[ROWS_TOGETHER];
  for (int64_t one = 0; one < some; one++) {
    const S* __restrict g = gradient + one * gradient_stride;
    const T* __restrict from = probabilities + one * length;
    T* __restrict to = dropped + one * to_stride;
    float* __restrict p = buffer + 2 * one * length;
    float* __restrict dp = p + length;
    dots[one] = sum_row(length, [=](int64_t i) {
      const float saved = to_float(from[i]), factor = saved < 0.0f ? 0.0f : dropout_scale;
      p[i] = saved < 0.0f ? -saved : saved;
      dp[i] = to_float(g[i]) * factor;
      to[i] = round_to<T>(p[i] * factor);
      return p[i] * dp[i];
    });
  }
  for (int64_t one = 0; one < some; one++) {
    T* __restrict to = d_scores + one * to_stride;
    const float* __restrict p = buffer + 2 * one * length;
    const float* __restrict dp = p + length;
    const float dot = dots[one];
    for (int64_t i = 0; i < length; i++) to[i] = round_to<T>(p[i] * (dp[i] - dot) * scale);
  }
}
