// Attention of few rows over slots of a paged cache, each row along its own path of a tree.
#pragma once
#include <vector>

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

// scores[0..15] = q . keys[0..15] * scale. NB = dim / 16; NB = 0: any dim.
template <int NB>
inline v16 score16(const float* q, const float* const* keys, float scale, int64_t dim) {
  float out[16];
  if (NB == 0) {
    for (int j = 0; j < 16; j++) {
      out[j] = 0.0f;
      for (int64_t i = 0; i < dim; i++) out[j] += q[i] * keys[j][i];
    }
    return load(out) * scale;
  }
  for (int j = 0; j < 16; j += 4) {
    v16 acc[4];
    for (int k = 0; k < 4; k++) acc[k] = load(q) * load(keys[j + k]);
    for (int i = 1; i < NB; i++)
      for (int k = 0; k < 4; k++) acc[k] += load(q + 16 * i) * load(keys[j + k] + 16 * i);
    const v4 four = sum4(acc[0], acc[1], acc[2], acc[3]);
    std::memcpy(out + j, &four, 16);
  }
  return load(out) * scale;
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
  for (int j = 0; j < 16; j++)
    for (int i = 0; i < N; i++) {
      const v16 value = load(values[j] + 16 * i);
      for (int g = 0; g < G; g++) acc[g][i] += value * weights[g * stride + j];
    }
  for (int g = 0; g < G; g++)
    for (int i = 0; i < N; i++) store(out + g * dim + 16 * i, acc[g][i]);
}

struct Scratch {
  std::vector<const float*> rows;
  std::vector<float> scores;
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

// Query heads `from` to `to` of the group of key head `head`, for row r.
template <int NB>
void attend_row(const OutriderAttend& a, int64_t r, int64_t head, int64_t from, int64_t to, Scratch& scratch) {
  const int64_t context = a.context_len[r];
  const int32_t* path = a.path + a.path_start[r];
  const int64_t path_len = a.path_start[r + 1] - a.path_start[r];
  const int64_t length = context + path_len;
  const int64_t start = a.window > 0 && length > a.window ? length - a.window : 0;
  const int64_t n = length - start, padded = (n + 15) / 16 * 16, group = to - from;
  const int64_t stride = a.kv_heads * a.dim, offset = head * a.dim;
  if (static_cast<int64_t>(scratch.rows.size()) < padded) scratch.rows.resize(padded);
  if (static_cast<int64_t>(scratch.scores.size()) < group * padded) scratch.scores.resize(group * padded);
  const int32_t* slots = a.context[r];
  const float** rows = scratch.rows.data();
  const int64_t in_context = (length < context ? length : context) - start;
  for (int64_t j = 0; j < in_context; j++) rows[j] = a.keys + slots[start + j] * stride + offset;
  for (int64_t j = in_context > 0 ? in_context : 0; j < n; j++)
    rows[j] = a.keys + path[start + j - context] * stride + offset;
  for (int64_t j = n; j < padded; j++) rows[j] = rows[n - 1];  // weight 0
  const int64_t first = head * (a.q_heads / a.kv_heads) + from;
  const float* q = a.q + r * a.q_stride + first * a.dim;
  float* out = a.out + (r * a.q_heads + first) * a.dim;
  for (int64_t j = 0; j < padded; j += 16)
    for (int64_t g = 0; g < group; g++)
      store(scratch.scores.data() + g * padded + j, score16<NB>(q + g * a.dim, rows + j, a.scale, a.dim));
  for (int64_t g = 0; g < group; g++) softmax(scratch.scores.data() + g * padded, n, padded, a.softcap);
  for (int64_t i = 0; i < group * a.dim; i++) out[i] = 0.0f;
  const int64_t to_value = a.values - a.keys;
  for (int64_t j = 0; j < padded; j++) rows[j] += to_value;
  const float* weights = scratch.scores.data();
  for (int64_t j = 0; j < padded; j += 16) {
    int64_t g = 0;
    for (; NB <= 4 && g + 4 <= group; g += 4)
      weigh16<NB, 4>(weights + g * padded + j, padded, rows + j, out + g * a.dim, a.dim);
    for (; NB <= 8 && g + 3 <= group; g += 3)
      weigh16<NB, 3>(weights + g * padded + j, padded, rows + j, out + g * a.dim, a.dim);
    for (; g < group; g++) weigh16<NB, 1>(weights + g * padded + j, padded, rows + j, out + g * a.dim, a.dim);
  }
}

// This thread's share of the work: of (row, key head) pairs, or with few of them of (row, query head) pairs. Neighbours
// take about as long as one another, so they are dealt out in turn.
template <int NB>
void attend_share(const OutriderAttend& a, const Worker& worker) {
  static thread_local Scratch scratch;
  const int64_t group = a.q_heads / a.kv_heads, pairs = a.rows * a.kv_heads;
  const int64_t parts = worker.count > 1 && pairs < 4 * worker.count ? group : 1, heads = group / parts;
  for (int64_t i = worker.index; i < pairs * parts; i += worker.count) {
    const int64_t pair = i / parts, part = i % parts;
    attend_row<NB>(a, pair % a.rows, pair / a.rows, part * heads, (part + 1) * heads, scratch);
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
