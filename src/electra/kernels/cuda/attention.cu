// Attention's way there: one head of one text a block, 16 queries a warp.

KERNEL(256, 2)
attention_forward(const u16* qkv, u16* mixed, float* level, const int* lengths, const int* keys, int site, int length,
                  int heads, float scale, int threshold, float grow) {
  SHARED(memory);
  char* q_tile = memory;
  char* k_tile = memory + TILE;
  char* v_tile = memory + 2 * TILE;
  u32* columns = (u32*)(memory + 3 * TILE);

  int text = blockIdx.x / heads, head = blockIdx.x % heads, thread = threadIdx.x, lane = thread & 31, warp = thread / 32;
  int first = warp * 16, row = first + lane / 4;
  long width = heads * 64, stride = 3 * width * 2;
  const u16* base = qkv + (long)text * length * 3 * width + head * 64;
  fetch_rows(q_tile, ROWS, base, stride, length, thread, 256);
  fetch_rows(k_tile, ROWS, base + width, stride, length, thread, 256);
  fetch_rows(v_tile, ROWS, base + 2 * width, stride, length, thread, 256);
  if (thread < 64) columns[thread] = mix(thread);
  int visible = lengths ? lengths[text] : length;
  fetched();
  __syncthreads();
  u32 q_part[4][4];
  take_rows(q_part, place_of(q_tile), first, lane);
  float c[8][4];
  attend_rows(c, q_part, k_tile, v_tile, level + (long)blockIdx.x * length, keys, keys ? keys[text] : 0, site,
              head * length, columns, visible, length, scale, threshold, grow, first, lane);
  u16* to = mixed + (long)text * length * width + head * 64;
  put_rows(c, q_tile, row, row + 8, first, (char*)to, width * 2, length, lane);
}
