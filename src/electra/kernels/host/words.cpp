// Random words: the permutation of `rng.mix`, bit for bit.

#include "numbers.h"

extern "C" void mix_int32(const uint32_t* x, uint32_t* y, int64_t count, int64_t threads) {
#pragma omp parallel for simd num_threads((int)threads) if (count > 65536)
  for (int64_t i = 0; i < count; i++) y[i] = mix(x[i]);
}
