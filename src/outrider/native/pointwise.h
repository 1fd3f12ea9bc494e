// Operations on single rows: RMS normalisation and the gated activation.
#pragma once
#include <algorithm>
#include <limits>

#include "vec.h"

namespace outrider {

inline float square_sum(const float* x, int64_t dim) {
  v16 lanes = splat(0.0f);
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    v16 v = load(x + i);
    lanes += v * v;
  }
  float total = sum(lanes);
  for (; i < dim; i++) total += x[i] * x[i];
  return total;
}

inline void norm_row(const float* x, const float* weight, float* out, int64_t dim, float eps) {
  const float scale = 1.0f / std::sqrt(square_sum(x, dim) / static_cast<float>(dim) + eps);
  for (int64_t i = 0; i < dim; i++) out[i] = x[i] * scale * weight[i];
}

// row += delta (may be null); out = rms_norm(row) * weight, or the row itself without a weight.
inline void add_norm_row(float* row, const float* delta, const float* weight, float* out, int64_t dim, float eps) {
  if (delta)
    for (int64_t i = 0; i < dim; i++) row[i] += delta[i];
  if (weight)
    norm_row(row, weight, out, dim, eps);
  else
    std::copy(row, row + dim, out);
}

// Whether all values are numbers below +infinity.
inline bool below_infinity(const float* x, int64_t n) {
  const v16 top = splat(std::numeric_limits<float>::infinity());
  v16 fine = splat(1.0f);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) fine = load(x + i) < top ? fine : splat(0.0f);
  bool all = sum(fine) == 16.0f;
  for (; i < n; i++) all = all && x[i] < std::numeric_limits<float>::infinity();
  return all;
}

// The first place of the largest value.
inline int64_t argmax(const float* x, int64_t n) {
  v16 tops = splat(x[0]);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) tops = load(x + i) > tops ? load(x + i) : tops;
  float top = tops[0];
  for (int lane = 1; lane < 16; lane++) top = tops[lane] > top ? tops[lane] : top;
  for (; i < n; i++) top = x[i] > top ? x[i] : top;
  int64_t place = 0;
  while (place + 16 <= n && sum(load(x + place) == top ? splat(1.0f) : splat(0.0f)) == 0.0f) place += 16;
  while (place < n && x[place] != top) place++;
  return place < n ? place : 0;
}

// The places of the k largest values, largest first, the first of equals first; k <= n. values [k] is scratch.
inline void topk(const float* x, int64_t n, int64_t k, int64_t* places, float* values) {
  constexpr int64_t kBlock = 64;
  int64_t found = 0;
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t end = first + kBlock < n ? first + kBlock : n;
    if (found == k && end - first == kBlock) {
      v16 above = splat(0.0f);
      for (int64_t i = first; i < end; i += 16) above = load(x + i) > values[k - 1] ? splat(1.0f) : above;
      if (sum(above) == 0.0f) continue;
    }
    for (int64_t i = first; i < end; i++) {
      if (found == k && !(x[i] > values[k - 1])) continue;
      int64_t slot = found < k ? found++ : k - 1;
      for (; slot > 0 && x[i] > values[slot - 1]; slot--) {
        values[slot] = values[slot - 1];
        places[slot] = places[slot - 1];
      }
      values[slot] = x[i];
      places[slot] = i;
    }
  }
}

// out [k]: softmax of x [n] at the k places of its largest values, largest first.
inline void shares(const float* x, int64_t n, int64_t k, const int64_t* places, float* out) {
  const float top = x[places[0]];
  v16 lanes = splat(0.0f);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) lanes += exp16(load(x + i) - top);
  float total = sum(lanes);
  for (; i < n; i++) total += exp1(x[i] - top);
  for (int64_t j = 0; j < k; j++) out[j] = exp1(x[places[j]] - top) / total;
}

// What the gate is multiplied with inside the sigmoid: x itself for SiLU; for GELU in its tanh form, twice the tanh's argument.
template <bool Gelu, typename V>
inline V gate_slope(V x) {
  return Gelu ? 1.5957691216057308f * (x + 0.044715f * x * x * x) : x;
}

// out [dim] = act(gate) * up, with gate_up [2 * dim]; act(x) = x * sigmoid(slope(x)).
template <bool Gelu>
inline void gate_row(const float* gate, float* out, int64_t dim) {
  const float* up = gate + dim;
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    const v16 g = load(gate + i);
    v16 x = -gate_slope<Gelu>(g);
    x = x > 87.0f ? splat(87.0f) : x;
    store(out + i, g / (exp16(x) + 1.0f) * load(up + i));
  }
  for (; i < dim; i++) {
    const float x = -gate_slope<Gelu>(gate[i]);
    out[i] = gate[i] / (exp1(x > 87.0f ? 87.0f : x) + 1.0f) * up[i];
  }
}

}  // namespace outrider
