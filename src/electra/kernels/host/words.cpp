// Random words: the permutation of `rng.mix`, bit for bit.

#include "numbers.h"

extern "C" void fold_int32(const uint32_t* x, uint32_t* y, int64_t before, int64_t after, int64_t count,
                           int64_t threads) {
  const uint32_t first = (uint32_t)before, last = (uint32_t)after;
#pragma omp parallel for simd num_threads((int)threads) if (parallel : count > 65536)
  for (int64_t i = 0; i < count; i++) y[i] = mix(x[i] ^ first) + last;
}
