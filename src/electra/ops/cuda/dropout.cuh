// Dropout addressed by (key, call site, row, column): the random bits of `rng`, bit for bit. Backward draws them again.

#include "ptx.cuh"

// `hash` is xor_high, then two multiplications, then xor_high. xor_high(x ^ y) = xor_high(x) ^ xor_high(y), so rows and
// columns take the first step once each, before they are combined.
DEVICE u32 xor_high(u32 x) { return x ^ (x >> 16); }
DEVICE u32 hash_rounds(u32 x) {
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  return x * 0x846CA68Bu;
}
DEVICE u32 hash(u32 x) { return xor_high(hash_rounds(xor_high(x))); }
DEVICE u32 dropout_row_bits(u32 key, u32 call_site, u32 row) {
  return xor_high(hash((hash(key ^ call_site) + 0x9E3779B9u) ^ hash(row)));
}
DEVICE u32 dropout_column_bits(u32 column_pair) { return xor_high(hash(column_pair)); }

// Two neighbouring columns share 32 bits. An element stays if its 16 bits reach the threshold, which lies in the upper
// half of `threshold`; the comparisons take in the last step of the hash.
DEVICE u32 random_bits(u32 row_bits, u32 column_bits) { return hash_rounds(row_bits ^ column_bits); }
DEVICE bool keeps_low(u32 bits, u32 threshold) { return (bits ^ bits << 16) >= threshold; }
DEVICE bool keeps_high(u32 bits, u32 threshold) { return bits >= threshold; }

// Dropout at one place of the network. Without dropout the threshold is 0 and the scale 1.
struct Dropout {
  int enabled;    // bool
  u32 key;        // of the sequence
  u32 threshold;  // drop probability * 65536, in the upper half
  float scale;    // 1 / keep probability
};
DEVICE Dropout make_dropout(int enabled, u32 key, int threshold, float scale) {
  return {enabled, key, (u32)(enabled ? threshold : 0) << 16, enabled ? scale : 1.0f};
}
