// Random bits: y = hash(x ^ before) + after, the hash of `rng` bit for bit.

#include "vector.h"

extern "C" void hash_int32(const uint32_t* x,  // (count,) int32
                           uint32_t* y,        // out (count,) int32
                           int64_t before, int64_t after, int64_t count, int64_t threads) {
  const uint32_t first = (uint32_t)before, last = (uint32_t)after;
#pragma omp parallel for simd num_threads((int)threads) if (parallel : count > 65536)
  for (int64_t i = 0; i < count; i++) y[i] = hash(x[i] ^ first) + last;
}
