// Attention of few rows over slots of a paged cache, each row along its own path of a tree.
#pragma once
#include <algorithm>

#include "buffer.h"
#include "pointwise.h"
#include "pool.h"

extern "C" {

struct OutriderAttend {
  float* q;                  // [rows, q_heads, dim], rotated in place
  int64_t q_stride;          // floats from row to row
  const float* k;            // [rows, kv_heads, dim]
  const float* v;            // [rows, kv_heads, dim]
  int64_t kv_stride;         // floats from row to row of k and v
  float* keys;               // this layer's keys [slots, kv_heads, dim]
  float* values;             // this layer's values, same shape
  const float* cos;          // [rows, rotary / 2] or null: no rotation
  const float* sin;
  const float* q_norm;       // [dim] or null: RMS norm per head before the rotation
  const float* k_norm;
  const int32_t* slots;      // [rows] where a row's key and value go
  const int32_t* const* context;  // [rows] slots of the row's sequence in position order
  const int32_t* context_len;     // [rows] how many of them the row sees
  const int32_t* path;       // slots of the ancestors in the tree, the row itself last, all rows one after the other
  const int32_t* path_start; // [rows + 1]
  float* out;                // [rows, q_heads, dim]
  int64_t rows, q_heads, kv_heads, dim, rotary, window;  // window 0: unlimited
  float scale, softcap, eps; // softcap 0: none
  int32_t threads, write;    // write 0: keys and values are in place already
};

}  // extern "C"

namespace outrider {

inline void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

void write_row(const OutriderAttend& a, int64_t r) {
  const int64_t half = a.rotary / 2;
  for (int64_t h = 0; h < a.q_heads; h++) {
    float* q = a.q + r * a.q_stride + h * a.dim;
    if (a.q_norm) norm_row(q, a.q_norm, q, a.dim, a.eps);
    if (a.cos) rotate(q, a.cos + r * half, a.sin + r * half, half);
  }
  for (int64_t h = 0; h < a.kv_heads; h++) {
    const int64_t to = (static_cast<int64_t>(a.slots[r]) * a.kv_heads + h) * a.dim;
    float* key = a.keys + to;
    std::memcpy(key, a.k + r * a.kv_stride + h * a.dim, a.dim * sizeof(float));
    if (a.k_norm) norm_row(key, a.k_norm, key, a.dim, a.eps);
    if (a.cos) rotate(key, a.cos + r * half, a.sin + r * half, half);
    std::memcpy(a.values + to, a.v + r * a.kv_stride + h * a.dim, a.dim * sizeof(float));
  }
}

// One stage of the transposition of 16 vectors of 16: swaps the blocks of S x S beside the diagonal.
template <int S>
inline void swap_blocks(v16 v[16]) {
  typedef int32_t lanes __attribute__((vector_size(64)));
  lanes low, high;
  for (int l = 0; l < 16; l++) {
    low[l] = l & S ? 16 + l - S : l;
    high[l] = l & S ? 16 + l : l + S;
  }
  for (int i = 0; i < 16; i++) {
    if (i & S) continue;
    const v16 a = v[i], b = v[i + S];
    v[i] = __builtin_shuffle(a, b, low);
    v[i + S] = __builtin_shuffle(a, b, high);
  }
}

// out [dim][16]: 16 keys side by side.
template <int NB>
inline void turn16(const float* const* keys, float* out, int64_t dim) {
  if (NB == 0) {
    for (int j = 0; j < 16; j++)
      for (int64_t i = 0; i < dim; i++) out[16 * i + j] = keys[j][i];
    return;
  }
  for (int i = 0; i < NB; i++) {
    v16 v[16];
    for (int j = 0; j < 16; j++) v[j] = load(keys[j] + 16 * i);
    swap_blocks<8>(v);
    swap_blocks<4>(v);
    swap_blocks<2>(v);
    swap_blocks<1>(v);
    for (int j = 0; j < 16; j++) store(out + 16 * (16 * i + j), v[j]);
  }
}

// scores [G][16 * C], `stride` apart: q [G, dim] . C times 16 turned keys * scale, summed over the dimensions in order.
template <int G, int C>
inline void score(const float* q, const float* turned, float scale, int64_t dim, float* scores, int64_t stride) {
  v16 acc[G][C];
  for (int g = 0; g < G; g++)
    for (int c = 0; c < C; c++) acc[g][c] = splat(0.0f);
  for (int64_t i = 0; i < dim; i++) {
    v16 key[C];
    for (int c = 0; c < C; c++) key[c] = load(turned + (c * dim + i) * 16);
    for (int g = 0; g < G; g++) {
      const v16 one = splat(q[g * dim + i]);
      for (int c = 0; c < C; c++) acc[g][c] += key[c] * one;
    }
  }
  for (int g = 0; g < G; g++)
    for (int c = 0; c < C; c++) store(scores + g * stride + 16 * c, acc[g][c] * scale);
}

// out [G, dim] += sum of weights[g][j] * values[j] over 16 values, in order; weights are `stride` apart.
template <int NB, int G>
inline void weigh16(const float* weights, int64_t stride, const float* const* values, float* out, int64_t dim) {
  if (NB == 0) {
    for (int g = 0; g < G; g++)
      for (int j = 0; j < 16; j++)
        for (int64_t i = 0; i < dim; i++) out[g * dim + i] += weights[g * stride + j] * values[j][i];
    return;
  }
  constexpr int N = NB > 0 ? NB : 1;
  v16 acc[G][N];
  for (int g = 0; g < G; g++)
    for (int i = 0; i < N; i++) acc[g][i] = load(out + g * dim + 16 * i);
  for (int j = 0; j < 16; j++) {
    v16 weight[G];
    for (int g = 0; g < G; g++) weight[g] = splat(weights[g * stride + j]);
    for (int i = 0; i < N; i++) {
      const v16 value = load(values[j] + 16 * i);
      for (int g = 0; g < G; g++) acc[g][i] += value * weight[g];
    }
  }
  for (int g = 0; g < G; g++)
    for (int i = 0; i < N; i++) store(out + g * dim + 16 * i, acc[g][i]);
}

constexpr int64_t kAhead = 64;  // keys and values are fetched so many places before their use
constexpr int64_t kTurned = 4;  // blocks of 16 keys that are turned and used together

struct Scratch {
  Buffer<const float*> keys;
  Buffer<float> scores, turned;

  void fit(int64_t places, int64_t count, int64_t dim) {
    keys.fit(places + kAhead);
    scores.fit(count);
    turned.fit(kTurned * 16 * dim);
  }
};

// Softmax of the first n scores in place; the rest become 0.
inline void softmax(float* s, int64_t n, int64_t padded, float softcap) {
  if (softcap > 0.0f)
    for (int64_t j = 0; j < n; j++) s[j] = softcap * std::tanh(s[j] / softcap);
  for (int64_t j = n; j < padded; j++) s[j] = s[0];
  v16 tops = load(s);
  for (int64_t j = 16; j < padded; j += 16) tops = load(s + j) > tops ? load(s + j) : tops;
  float top = tops[0];
  for (int i = 1; i < 16; i++) top = tops[i] > top ? tops[i] : top;
  for (int64_t j = n; j < padded; j++) s[j] = top - 200.0f;
  v16 lanes = splat(0.0f);
  for (int64_t j = 0; j < padded; j += 16) {
    const v16 e = exp16(load(s + j) - top);
    lanes += e;
    store(s + j, e);
  }
  const float inverse = 1.0f / sum(lanes);
  for (int64_t j = 0; j < padded; j += 16) store(s + j, load(s + j) * inverse);
}

// Some rows that see the same places, each only the first `places` - `count` + 1 + its index of them.
struct RowGroup {
  int64_t first, count;
  int64_t start, places;  // of the last row: the first place in its window, and the number of places from there
  int64_t seen(int64_t index) const { return places - (count - 1 - index); }
};

inline int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

// The rows from `first` on that continue one another's context, `most` at most: their keys are read together.
inline RowGroup group_at(const OutriderAttend& a, int64_t first, int64_t most) {
  const auto path_len = [&](int64_t r) { return a.path_start[r + 1] - a.path_start[r]; };
  int64_t count = 1;
  if (path_len(first) == 0)
    while (count < most && first + count < a.rows && a.context[first + count] == a.context[first] &&
           a.context_len[first + count] == a.context_len[first] + count && path_len(first + count) == 0 &&
           (a.window == 0 || a.context_len[first + count] <= a.window))
      count++;
  const int64_t last = first + count - 1, length = a.context_len[last] + path_len(last);
  const int64_t start = a.window > 0 && length > a.window ? length - a.window : 0;
  return {first, count, start, length - start};
}

// Addresses of the head's keys at all places of the group; behind them the last one again, whose weight will be 0, and
// which may be fetched ahead.
inline void find_keys(const OutriderAttend& a, const RowGroup& rows, int64_t head, const float** keys) {
  const int64_t stride = a.kv_heads * a.dim, offset = head * a.dim, r = rows.first + rows.count - 1;
  const int64_t from_context = a.context_len[r] - rows.start;
  const int32_t *slots = a.context[r], *path = a.path + a.path_start[r];
  for (int64_t j = 0; j < from_context; j++) keys[j] = a.keys + slots[rows.start + j] * stride + offset;
  for (int64_t j = from_context > 0 ? from_context : 0; j < rows.places; j++)
    keys[j] = a.keys + path[rows.start + j - a.context_len[r]] * stride + offset;
  for (int64_t j = rows.places; j < padded(rows.places) + kAhead; j++) keys[j] = keys[rows.places - 1];
}

// Fetch 16 keys, or what lies `away` from them.
template <int NB>
inline void fetch(const float* const* keys, int64_t away) {
  for (int j = 0; j < 16; j++)
    for (int i = 0; i < NB; i++) __builtin_prefetch(keys[j] + away + 16 * i);
}

template <int C>
inline void score_group(const float* q, int64_t group, const float* turned, const OutriderAttend& a, float* scores,
                        int64_t stride) {
  int64_t g = 0;
  for (; g + 3 <= group; g += 3) score<3, C>(q + g * a.dim, turned, a.scale, a.dim, scores + g * stride, stride);
  for (; g + 2 <= group; g += 2) score<2, C>(q + g * a.dim, turned, a.scale, a.dim, scores + g * stride, stride);
  for (; g < group; g++) score<1, C>(q + g * a.dim, turned, a.scale, a.dim, scores + g * stride, stride);
}

template <int NB>
inline void weigh_group(const float* weights, int64_t stride, const float* const* values, float* out, int64_t group,
                        int64_t dim) {
  int64_t g = 0;
  for (; NB <= 4 && g + 3 <= group; g += 3)
    weigh16<NB, 3>(weights + g * stride, stride, values, out + g * dim, dim);
  for (; NB <= 8 && g + 2 <= group; g += 2)
    weigh16<NB, 2>(weights + g * stride, stride, values, out + g * dim, dim);
  for (; g < group; g++) weigh16<NB, 1>(weights + g * stride, stride, values, out + g * dim, dim);
}

// Query heads `from` to `to` of the group of key head `head`, for some rows. Every sum of a row runs over its places in
// order, 16 at a time, whichever rows share the reading.
template <int NB>
void attend_rows(const OutriderAttend& a, const RowGroup& rows, int64_t head, int64_t from, int64_t to,
                 Scratch& scratch) {
  const int64_t width = padded(rows.places), group = to - from, first = head * (a.q_heads / a.kv_heads) + from;
  scratch.fit(width, rows.count * group * width, a.dim);
  const float** keys = scratch.keys.data();
  const int64_t to_value = a.values - a.keys;
  find_keys(a, rows, head, keys);
  const auto scores = [&](int64_t i) { return scratch.scores.data() + i * group * width; };
  const auto out = [&](int64_t i) { return a.out + ((rows.first + i) * a.q_heads + first) * a.dim; };
  float* turned = scratch.turned.data();
  for (int64_t j = 0; j < width; j += 16 * kTurned) {
    const int64_t blocks = std::min(kTurned, (width - j) / 16);
    for (int64_t c = 0; c < blocks; c++) {
      fetch<NB>(keys + j + 16 * c + kAhead, 0);
      turn16<NB>(keys + j + 16 * c, turned + c * 16 * a.dim, a.dim);
      fetch<NB>(keys + j + 16 * c, to_value);
    }
    for (int64_t i = 0; i < rows.count; i++) {
      const float* q = a.q + (rows.first + i) * a.q_stride + first * a.dim;
      if (blocks == kTurned) score_group<kTurned>(q, group, turned, a, scores(i) + j, width);
      else
        for (int64_t c = 0; c < blocks; c++)
          score_group<1>(q, group, turned + c * 16 * a.dim, a, scores(i) + j + 16 * c, width);
    }
  }
  for (int64_t i = 0; i < rows.count; i++) {
    const int64_t n = rows.seen(i);
    for (int64_t g = 0; g < group; g++) softmax(scores(i) + g * width, n, padded(n), a.softcap);
    std::memset(out(i), 0, group * a.dim * sizeof(float));
  }
  for (int64_t j = 0; j < width; j++) keys[j] += to_value;
  for (int64_t j = 0; j < width; j += 16)
    for (int64_t i = 0; i < rows.count; i++)
      if (j < rows.seen(i)) weigh_group<NB>(scores(i) + j, width, keys + j, out(i), group, a.dim);
}

constexpr int64_t kSharedRows = 8;  // rows that read keys together: more of them would not fit the nearest cache

// This thread's share of the work, in (rows, key head) or, where those are few, (row, query head) pieces. Neighbours take
// about as long as one another, so they are dealt out in turn.
template <int NB>
void attend_share(const OutriderAttend& a, const Worker& worker) {
  static thread_local Scratch scratch;
  const int64_t group = a.q_heads / a.kv_heads, pieces = 4 * worker.count;
  const int64_t parts = a.rows * a.kv_heads < worker.count ? group : 1, heads = group / parts;
  const int64_t most = std::min(kSharedRows, std::max(int64_t{1}, a.rows * a.kv_heads / pieces));
  int64_t number = 0;
  for (int64_t head = 0; head < a.kv_heads; head++)
    for (int64_t r = 0; r < a.rows;) {
      const RowGroup rows = group_at(a, r, most);
      for (int64_t part = 0; part < parts; part++)
        if (number++ % worker.count == worker.index)
          attend_rows<NB>(a, rows, head, part * heads, (part + 1) * heads, scratch);
      r += rows.count;
    }
}

inline void attend(const OutriderAttend& a, const Worker& worker) {
  switch (a.dim % 16 ? 0 : a.dim / 16) {
    case 1: attend_share<1>(a, worker); break;
    case 2: attend_share<2>(a, worker); break;
    case 4: attend_share<4>(a, worker); break;
    case 5: attend_share<5>(a, worker); break;
    case 6: attend_share<6>(a, worker); break;
    case 8: attend_share<8>(a, worker); break;
    case 16: attend_share<16>(a, worker); break;
    default: attend_share<0>(a, worker);
  }
}

}  // namespace outrider
