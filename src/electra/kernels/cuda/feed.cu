// The products into and out of a feed-forward half's inner width, with the GELU beside them, for width 256, on Hopper.
//
// A block keeps 128 columns' share of a weight on the chip. Each of its groups has tokens of its own come past, 64 at a
// time, and goes at its own pace, so that one multiplies while the others have their GELU to do. One thread of a group
// has all copies made.

#define DEEP 256
#define TOKENS 64
#define OUTPUTS 128
#define GROUPS 3
#define STRIPE (TOKENS * 128)  // bytes of 64 columns of the tokens
#define SHARE (DEEP * OUTPUTS * 2)
#define OWN (6 * STRIPE)  // a group's: four stripes of tokens, and two of outputs

// What a block and a group know of their part in it.
struct Part {
  char *weights, *tokens, *stripes;
  char* gates;  // the tokens', the outputs', the weight's
  int group, warp, lane, column, first, step;
  bool leads;
};
INLINE Part part_of(char* memory, int tiles) {
  Part p;
  p.group = threadIdx.x / GROUP;
  p.warp = threadIdx.x / 32 & 3;
  p.lane = threadIdx.x & 31;
  p.leads = threadIdx.x % GROUP == 0;
  p.weights = memory;
  p.tokens = memory + SHARE + p.group * OWN;
  p.stripes = p.tokens + 4 * STRIPE;
  p.gates = memory + SHARE + GROUPS * OWN + p.group * 32;
  p.column = blockIdx.x % tiles * OUTPUTS;
  p.first = (blockIdx.x / tiles * GROUPS + p.group) * TOKENS;
  p.step = gridDim.x / tiles * GROUPS * TOKENS;
  if (p.leads)
    for (int i = 0; i < 3; i++) make_gate(p.gates + i * 8);
  __syncthreads();
  after_others();
  return p;
}
INLINE char* weight_gate(char* memory) { return memory + SHARE + GROUPS * OWN + 16; }

INLINE void bring_tokens(const Part& p, const Map& given, int first) {
  expect(p.gates, 4 * STRIPE);
  for (int i = 0; i < 4; i++) bring(p.tokens + i * STRIPE, given, 0, first, i * 64, p.gates);
}
INLINE void take_stripes(const Part& p, const Map& to, int first) {
  take(p.stripes, to, 0, first, p.column);
  take(p.stripes + STRIPE, to, 0, first, p.column + 64);
}

// c (64 x 128) += tokens times the weight: its rows, or `TURNED` its columns. Then the next tokens may come.
template <int TURNED>
INLINE void add_tokens(float (&c)[16][4], const Part& p) {
  Tile a = tile_at(p.tokens, 16), b = tile_at(p.weights, TURNED ? DEEP * 128 : 16);
  begin_product(c);
#pragma unroll
  for (int k = 0; k < DEEP / 16; k++) {
    int further = TURNED ? k * 16 * 128 : k / 4 * OUTPUTS * 128 + (k & 3) * 32;
    multiply_wide<TURNED>(c, a + (k / 4 * STRIPE + (k & 3) * 32) / 16, b + further / 16);
  }
  end_product();
  have<0>(c);
  sync_group(p.group);
}

// Where the matrices of sixteen columns lie in a group's stripes that a thread names: `read4` and `write4` of them.
INLINE u32 square_at(const Part& p, int n) {
  return place_of(p.stripes) + n / 8 * STRIPE + at(p.warp * 16 + (p.lane & 15), (n & 7) + (p.lane >> 4));
}

KERNEL(GROUPS * GROUP, 1)
up_gelu(MAP given, MAP weight, const u16* bias, MAP inner, MAP active, int count, int tiles) {
  SHARED(memory);
  Part p = part_of(memory, tiles);
  char* gate = weight_gate(memory);
  if (threadIdx.x == 0) {
    expect(gate, SHARE);
    for (int i = 0; i < 4; i++) bring(p.weights + i * OUTPUTS * 128, weight, 0, p.column, i * 64, gate);
  }
  if (p.leads && p.first < count) bring_tokens(p, given, p.first);
  u32 biases[16];
#pragma unroll
  for (int n = 0; n < 16; n++) {
    const u16* here = bias + p.column + n * 8 + (p.lane & 3) * 2;  // at any multiple of two bytes
    biases[n] = here[0] | (u32)here[1] << 16;
  }
  wait_at(gate, 0);
  int turn = 0;
  for (int first = p.first; first < count; first += p.step, turn ^= 1) {
    float c[16][4];
#pragma unroll
    for (int n = 0; n < 16; n++) {
      c[n][0] = c[n][2] = low_of(biases[n]);
      c[n][1] = c[n][3] = high_of(biases[n]);
    }
    wait_at(p.gates, turn);
    add_tokens<0>(c, p);
    if (p.leads) {
      if (first + p.step < count) bring_tokens(p, given, first + p.step);
      taken();
    }
    u32 pairs[16][2];
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
      for (int i = 0; i < 2; i++) pairs[n][i] = pack(c[n][2 * i], c[n][2 * i + 1]);
    sync_group(p.group);
#pragma unroll
    for (int n = 0; n < 16; n += 2) write4(square_at(p, n), pairs[n]);
    seen_by_engines();
    sync_group(p.group);
    if (p.leads) take_stripes(p, inner, first);
#pragma unroll
    for (int n = 0; n < 16; n += 2) gelu_pairs<4>(pairs[n]);
    if (p.leads) taken();
    sync_group(p.group);
#pragma unroll
    for (int n = 0; n < 16; n += 2) write4(square_at(p, n), pairs[n]);
    seen_by_engines();
    sync_group(p.group);
    if (p.leads) take_stripes(p, active, first);
  }
  if (p.leads) arrived();
}

KERNEL(GROUPS * GROUP, 1)
down_backward(MAP given, MAP weight, MAP inner, MAP d_inner, float* lines, int count, int columns, int tiles) {
  SHARED(memory);
  Part p = part_of(memory, tiles);
  char *gate = weight_gate(memory), *outputs = p.gates + 8;
  if (threadIdx.x == 0) {
    expect(gate, SHARE);
    for (int i = 0; i < 2; i++) bring(p.weights + i * DEEP * 128, weight, 0, 0, p.column + i * 64, gate);
  }
  auto bring_inner = [&](int first) {
    expect(outputs, 2 * STRIPE);
    for (int i = 0; i < 2; i++) bring(p.stripes + i * STRIPE, inner, 0, first, p.column + i * 64, outputs);
  };
  if (p.leads && p.first < count) {
    bring_tokens(p, given, p.first);
    bring_inner(p.first);
  }
  wait_at(gate, 0);
  float sums[16][2] = {};
  int turn = 0;
  for (int first = p.first; first < count; first += p.step, turn ^= 1) {
    float c[16][4];
    clear(c);
    wait_at(p.gates, turn);
    add_tokens<1>(c, p);
    bool more = first + p.step < count;
    if (p.leads && more) bring_tokens(p, given, first + p.step);
    wait_at(outputs, turn);
    // Tokens past the end have no gradient. What the GELU was given makes room for its gradient.
#pragma unroll
    for (int n = 0; n < 16; n += 2) {
      u32 x[4];
      read4(x, square_at(p, n));
      gelu_pairs_back<4>(c[n], x);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float* here = &c[n + i / 2][(i & 1) * 2];
        sums[n + i / 2][0] += here[0];
        sums[n + i / 2][1] += here[1];
        x[i] = pack(here[0], here[1]);
      }
      write4(square_at(p, n), x);
    }
    seen_by_engines();
    sync_group(p.group);
    if (p.leads) {
      take_stripes(p, d_inner, first);
      taken();
      if (more) bring_inner(first + p.step);
    }
  }
  if (p.leads) arrived();
  __syncthreads();
  float* parts = (float*)(memory + SHARE);  // of each warp a line
#pragma unroll
  for (int n = 0; n < 16; n++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float total = sums[n][i];
      total += swap(total, 4);
      total += swap(total, 8);
      total += swap(total, 16);
      if (p.lane < 4) parts[(p.group * 4 + p.warp) * OUTPUTS + n * 8 + p.lane * 2 + i] = total;
    }
  __syncthreads();
  if (threadIdx.x < OUTPUTS) {
    float total = 0;
    for (int i = 0; i < GROUPS * 4; i++) total += parts[i * OUTPUTS + threadIdx.x];
    lines[(long)(blockIdx.x / tiles) * columns + p.column + threadIdx.x] = total;
  }
}
