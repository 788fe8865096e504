// Attention's way back: one head of one text a block, 16 keys a warp.

KERNEL(256, 2)
attention_backward(u16* qkv, const u16* gradient, const u16* mixed, const float* level, float* sums, const int* lengths,
                   const int* keys, int site, int length, int heads, float scale, int threshold, float grow) {
  SHARED(memory);
  char* q_tile = memory;
  char* k_tile = memory + TILE;
  char* v_tile = memory + 2 * TILE;
  char* d_tile = memory + 3 * TILE;
  char* scores = memory + 4 * TILE;
  float2* facts = (float2*)(memory + 6 * TILE);  // of a query: the log-sum, and what its gradients share
  u32* words = (u32*)(memory + 6 * TILE + ROWS * 8);
  float* parts = (float*)(memory + 6 * TILE + ROWS * 12);

  int text = blockIdx.x / heads, head = blockIdx.x % heads, thread = threadIdx.x, lane = thread & 31, warp = thread / 32;
  long width = heads * 64, stride = 3 * width * 2;
  char* base = (char*)(qkv + (long)text * length * 3 * width + head * 64);
  long place = ((long)text * length * width + head * 64) * 2;
  int visible = lengths ? lengths[text] : length;

  fetch_rows(q_tile, ROWS, base, stride, length, thread, 256);
  fetch_rows(k_tile, ROWS, base + width * 2, stride, length, thread, 256);
  fetch_rows(v_tile, ROWS, base + width * 4, stride, length, thread, 256);
  fetch_rows(d_tile, ROWS, (const char*)gradient + place, width * 2, length, thread, 256);
  {
    // Two threads a row: half of what it says of its own gradient each.
    int row = thread / 2, half = thread & 1;
    bool there = row < length;
    const uint4* from = (const uint4*)((const char*)mixed + place + (there ? row * width * 2 : 0) + half * 64);
    uint4 out[4];
    for (int i = 0; i < 4; i++) out[i] = there ? from[i] : make_uint4(0, 0, 0, 0);
    fetched();
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint4 d = *(uint4*)(d_tile + at(row, half * 4 + i));
      total += low_of(out[i].x) * low_of(d.x) + high_of(out[i].x) * high_of(d.x);
      total += low_of(out[i].y) * low_of(d.y) + high_of(out[i].y) * high_of(d.y);
      total += low_of(out[i].z) * low_of(d.z) + high_of(out[i].z) * high_of(d.z);
      total += low_of(out[i].w) * low_of(d.w) + high_of(out[i].w) * high_of(d.w);
    }
    total += swap(total, 1);
    if (half == 0) {
      facts[row] = make_float2(there ? level[(long)blockIdx.x * length + row] : 0, total);
      if (keys) words[row] = row_word((u32)keys[text], (u32)site, head * length + row);
    }
  }
  __syncthreads();

  float dk[8][4], dv[8][4];
  back_to_keys(dk, dv, q_tile, k_tile, v_tile, d_tile, scores, facts, words, keys, visible, scale, threshold, grow, warp,
               lane);
  put_sums(dv, parts + 512 + warp * 64, lane);
  __syncthreads();  // all gradients of scores are there, and nobody reads queries, values and gradients any more

  int key = warp * 16 + 2 * (lane / 4);
  put_rows(dk, q_tile, key, key + 1, warp * 16, base + width * 2, stride, length, lane);
  put_rows(dv, d_tile, key, key + 1, warp * 16, base + width * 4, stride, length, lane);
  back_to_queries(dk, k_tile, scores, scale, warp, lane);
  put_sums(dk, parts + warp * 64, lane);
  int row = warp * 16 + lane / 4;
  put_rows(dk, v_tile, row, row + 8, warp * 16, base, stride, length, lane);
  __syncthreads();
  // What is added to all keys changes no softmax, so their sum is zero.
  if (thread < 192) {
    float total = 0;
    int column = thread & 63;
    if (thread / 64 != 1)
      for (int i = 0; i < 8; i++) total += parts[(thread / 64) * 256 + i * 64 + column];
    sums[text * 3 * width + thread / 64 * width + head * 64 + column] = total;
  }
}
