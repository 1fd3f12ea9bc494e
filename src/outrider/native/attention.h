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
  float* k;                  // [rows, kv_heads, dim], normalised and rotated in place
  const float* v;            // [rows, kv_heads, dim]
  int64_t kv_stride;         // floats from row to row of k and v
  void* keys;                // this layer's keys [slots / 16, kv_heads, dim, 16], float16 or float32
  void* values;              // this layer's values [slots, kv_heads, dim], likewise
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
  int32_t threads, half;     // half 1: keys and values are cached as float16
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

constexpr int64_t kTile = 16;  // slots whose keys lie side by side: those of a vector

// Where a slot's key of a head begins; its dimensions are kTile apart.
template <typename T>
inline T* key_at(const OutriderAttend& a, int64_t slot, int64_t head) {
  return static_cast<T*>(a.keys) + (slot / kTile * a.kv_heads + head) * a.dim * kTile + slot % kTile;
}

template <typename T>
inline T* value_at(const OutriderAttend& a, int64_t slot, int64_t head) {
  return static_cast<T*>(a.values) + (slot * a.kv_heads + head) * a.dim;
}

template <typename T>
inline void cache_row(const OutriderAttend& a, const float* key, const float* value, int64_t slot) {
  for (int64_t head = 0; head < a.kv_heads; head++, key += a.dim, value += a.dim) {
    T *key_to = key_at<T>(a, slot, head), *value_to = value_at<T>(a, slot, head);
    for (int64_t i = 0; i < a.dim; i++) key_to[i * kTile] = narrow_to<T>(key[i]);
    for (int64_t i = 0; i < a.dim; i++) value_to[i] = narrow_to<T>(value[i]);
  }
}

// Normalise and rotate a row's queries and keys, and cache its keys and values.
inline void write_row(const OutriderAttend& a, int64_t r) {
  const int64_t half = a.rotary / 2;
  const auto turn = [&](float* x, int64_t heads, const float* norm) {
    for (; heads > 0; heads--, x += a.dim) {
      if (norm) norm_row(x, norm, x, a.dim, a.eps);
      if (a.cos) rotate(x, a.cos + r * half, a.sin + r * half, half);
    }
  };
  float* key = a.k + r * a.kv_stride;
  turn(a.q + r * a.q_stride, a.q_heads, a.q_norm);
  turn(key, a.kv_heads, a.k_norm);
  if (a.half) cache_row<uint16_t>(a, key, a.v + r * a.kv_stride, a.slots[r]);
  else cache_row<float>(a, key, a.v + r * a.kv_stride, a.slots[r]);
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
template <int NB, int G, typename T>
inline void weigh16(const float* weights, int64_t stride, const T* const* values, float* out, int64_t dim) {
  if (NB == 0) {
    for (int g = 0; g < G; g++)
      for (int j = 0; j < 16; j++)
        for (int64_t i = 0; i < dim; i++) out[g * dim + i] += weights[g * stride + j] * widen(values[j][i]);
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
      const v16 value = weights16(values[j] + 16 * i);
      for (int g = 0; g < G; g++) acc[g][i] += value * weight[g];
    }
  }
  for (int g = 0; g < G; g++)
    for (int i = 0; i < N; i++) store(out + g * dim + 16 * i, acc[g][i]);
}

constexpr int64_t kAhead = 64;  // keys and values are fetched so many places before their use
constexpr int64_t kTogether = 4;  // tiles that are scored together

template <typename T>
struct Scratch {
  Buffer<int32_t> slots;
  Buffer<const T*> values;
  Buffer<float> scores, tiles;

  void fit(int64_t places, int64_t count, int64_t dim) {
    slots.fit(places + kAhead);
    values.fit(places);
    scores.fit(count);
    tiles.fit(kTogether * kTile * dim);
  }
};

inline int64_t padded(int64_t n) { return (n + kTile - 1) / kTile * kTile; }

// Softmax of the scores from `skip` to n in place; the rest become 0.
inline void softmax(float* s, int64_t skip, int64_t n, float softcap) {
  const int64_t width = padded(n);
  if (softcap > 0.0f)
    for (int64_t j = skip; j < n; j++) s[j] = softcap * std::tanh(s[j] / softcap);
  const auto fill = [&](float value) {
    for (int64_t j = 0; j < skip; j++) s[j] = value;
    for (int64_t j = n; j < width; j++) s[j] = value;
  };
  fill(s[skip]);
  v16 tops = load(s);
  for (int64_t j = 16; j < width; j += 16) tops = load(s + j) > tops ? load(s + j) : tops;
  float top = tops[0];
  for (int i = 1; i < 16; i++) top = tops[i] > top ? tops[i] : top;
  fill(top - 200.0f);
  v16 lanes = splat(0.0f);
  for (int64_t j = 0; j < width; j += 16) {
    const v16 e = exp16(load(s + j) - top);
    lanes += e;
    store(s + j, e);
  }
  const float inverse = 1.0f / sum(lanes);
  for (int64_t j = 0; j < width; j += 16) store(s + j, load(s + j) * inverse);
}

// Rows whose first places are the same: `common` of them (a multiple of kTile) from `start` on, where a tile begins. A window
// has passed the first `skip` of these; rows that it has reached stand alone.
struct RowGroup {
  int64_t first, count, start, skip, common;
};

// Places that a row sees, before its window.
inline int64_t length(const OutriderAttend& a, int64_t r) {
  return a.context_len[r] + a.path_start[r + 1] - a.path_start[r];
}

// The rows from `first` on that share a context, `most` at most: what they share is read once for all.
inline RowGroup group_at(const OutriderAttend& a, int64_t first, int64_t most) {
  const auto passed = [&](int64_t r) { return a.window > 0 ? std::max(length(a, r) - a.window, int64_t{0}) : 0; };
  const int64_t skip = passed(first), start = skip / kTile * kTile;
  int64_t count = 1, shared = a.context_len[first];
  for (; skip == 0 && count < most && first + count < a.rows; count++) {
    const int64_t r = first + count;
    if (a.context[r] != a.context[first] || passed(r) > 0) break;
    shared = std::min(shared, int64_t{a.context_len[r]});
  }
  return {first, count, start, skip - start, std::max(shared - start, int64_t{0}) / kTile * kTile};
}

// The slots of a row's places from `from` to `to`; behind the last place its slot is repeated.
inline void find_slots(const OutriderAttend& a, int64_t r, int64_t from, int64_t to, int32_t* slots) {
  const int64_t in_context = a.context_len[r], last = length(a, r) - 1;
  for (int64_t j = from; j < to; j++) {
    const int64_t place = std::min(j, last);
    *slots++ = place < in_context ? a.context[r][place] : a.path[a.path_start[r] + place - in_context];
  }
}

template <typename T>
inline void widen_row(const T* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(to + i, weights16(from + i));
  for (; i < count; i++) to[i] = widen(from[i]);
}

// out [dim][16]: the keys of 16 places, `seen` of which count, as float32.
template <typename T>
inline void gather_keys(const OutriderAttend& a, const int32_t* slots, int64_t seen, int64_t head, float* out) {
  bool whole = slots[0] % kTile == 0;
  for (int64_t j = 1; j < std::min(seen, kTile); j++) whole = whole && slots[j] == slots[0] + j;
  if (whole) {
    const T* tile = key_at<T>(a, slots[0], head);
    widen_row(tile, out, kTile * a.dim);
    return;
  }
  for (int64_t j = 0; j < kTile; j++) {
    const T* key = key_at<T>(a, slots[j], head);
    for (int64_t i = 0; i < a.dim; i++) out[kTile * i + j] = widen(key[kTile * i]);
  }
}

template <typename T>
inline void fetch(const T* from, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / sizeof(T)) __builtin_prefetch(from + i);
}

template <int C>
inline void score_group(const float* q, int64_t group, const float* turned, const OutriderAttend& a, float* scores,
                        int64_t stride) {
  int64_t g = 0;
  for (; g + 3 <= group; g += 3) score<3, C>(q + g * a.dim, turned, a.scale, a.dim, scores + g * stride, stride);
  for (; g + 2 <= group; g += 2) score<2, C>(q + g * a.dim, turned, a.scale, a.dim, scores + g * stride, stride);
  for (; g < group; g++) score<1, C>(q + g * a.dim, turned, a.scale, a.dim, scores + g * stride, stride);
}

template <int NB, typename T>
inline void weigh_group(const float* weights, int64_t stride, const T* const* values, float* out, int64_t group,
                        int64_t dim) {
  int64_t g = 0;
  for (; NB <= 4 && g + 3 <= group; g += 3)
    weigh16<NB, 3, T>(weights + g * stride, stride, values, out + g * dim, dim);
  for (; NB <= 8 && g + 2 <= group; g += 2)
    weigh16<NB, 2, T>(weights + g * stride, stride, values, out + g * dim, dim);
  for (; g < group; g++) weigh16<NB, 1, T>(weights + g * stride, stride, values, out + g * dim, dim);
}

// Query heads `from` to `to` of the group of key head `head`, for some rows: first their common places, then each row's own.
// Every sum of a row runs over its places in order, a tile at a time, whichever rows share the reading.
template <int NB, typename T>
class AttendRows {
 public:
  AttendRows(const OutriderAttend& a, const RowGroup& rows, int64_t head, int64_t from, int64_t to, Scratch<T>& scratch)
      : a_(a), rows_(rows), head_(head), group_(to - from), first_(head * (a.q_heads / a.kv_heads) + from) {
    for (int64_t i = 0; i < rows.count; i++) own_ = std::max(own_, padded(seen(i) - rows.common));
    width_ = rows.common + own_;
    scratch.fit(rows.common + rows.count * own_, rows.count * group_ * width_, a.dim);
    slots_ = scratch.slots.data();
    values_ = scratch.values.data();
    tiles_ = scratch.tiles.data();
    scores_ = scratch.scores.data();
    find_places();
  }

  void run() {
    for (int64_t j = 0; j < rows_.common; j += kTile * kTogether) score_tiles(j, j, rows_.common, 0, rows_.count);
    for (int64_t i = 0; i < rows_.count; i++)
      for (int64_t j = rows_.common; j < padded(seen(i)); j += kTile * kTogether)
        score_tiles(j + i * own_, j, seen(i), i, i + 1);
    for (int64_t i = 0; i < rows_.count; i++) {
      for (int64_t g = 0; g < group_; g++) softmax(scores(i) + g * width_, rows_.skip, seen(i), a_.softcap);
      std::memset(out(i), 0, group_ * a_.dim * sizeof(float));
    }
    for (int64_t j = 0; j < rows_.common; j += kTile)
      for (int64_t i = 0; i < rows_.count; i++) weigh(j, j, i);
    for (int64_t i = 0; i < rows_.count; i++)
      for (int64_t j = rows_.common; j < seen(i); j += kTile) weigh(j + i * own_, j, i);
  }

 private:
  int64_t seen(int64_t i) const { return length(a_, rows_.first + i) - rows_.start; }
  float* scores(int64_t i) const { return scores_ + i * group_ * width_; }
  float* out(int64_t i) const { return a_.out + ((rows_.first + i) * a_.q_heads + first_) * a_.dim; }

  // Slots and values of the common places, then of each row's own. What the window has passed and what lies behind a row's
  // last place gets weight 0, and the slot of a place that is seen: any other may hold anything.
  void find_places() {
    const int64_t start = rows_.start, count = rows_.common + rows_.count * own_;
    find_slots(a_, rows_.first, start, start + rows_.common, slots_);
    for (int64_t i = 0; i < rows_.count; i++)
      find_slots(a_, rows_.first + i, start + rows_.common, start + width_, slots_ + rows_.common + i * own_);
    for (int64_t j = 0; j < rows_.skip; j++) slots_[j] = slots_[rows_.skip];
    for (int64_t j = count; j < count + kAhead; j++) slots_[j] = slots_[count - 1];
    for (int64_t j = 0; j < count; j++) values_[j] = value_at<T>(a_, slots_[j], head_);
  }

  // Scores of rows `from` to `to` for the places from j on, up to kTogether tiles before `end`, which stand `at` in the list.
  void score_tiles(int64_t at, int64_t j, int64_t end, int64_t from, int64_t to) {
    const int64_t tiles = std::min(kTogether, padded(end - j) / kTile);
    for (int64_t c = 0; c < tiles; c++) {
      const int32_t* slots = slots_ + at + c * kTile;
      fetch(key_at<T>(a_, slots[kAhead] / kTile * kTile, head_), a_.dim * kTile);
      gather_keys<T>(a_, slots, end - j - c * kTile, head_, tiles_ + c * kTile * a_.dim);
      for (int64_t i = 0; i < kTile; i++) fetch(values_[at + c * kTile + i], a_.dim);
    }
    for (int64_t i = from; i < to; i++) {
      const float* q = a_.q + (rows_.first + i) * a_.q_stride + first_ * a_.dim;
      if (tiles == kTogether) score_group<kTogether>(q, group_, tiles_, a_, scores(i) + j, width_);
      else
        for (int64_t c = 0; c < tiles; c++)
          score_group<1>(q, group_, tiles_ + c * kTile * a_.dim, a_, scores(i) + j + kTile * c, width_);
    }
  }

  void weigh(int64_t at, int64_t j, int64_t i) {
    weigh_group<NB, T>(scores(i) + j, width_, values_ + at, out(i), group_, a_.dim);
  }

  const OutriderAttend& a_;
  const RowGroup rows_;
  const int64_t head_, group_, first_;
  int64_t own_ = 0, width_;  // places that a row has beside the common ones, at most; all places of a row
  int32_t* slots_;
  const T** values_;
  float *tiles_, *scores_;
};

constexpr int64_t kSharedRows = 8;  // rows that read keys together: more of them would not fit the nearest cache

// How many rows shall read keys together, so that the thread with most to do is done soonest: reading costs about as much as
// a row's arithmetic.
inline int64_t rows_together(const OutriderAttend& a, int64_t threads) {
  int64_t best = 1, least = INT64_MAX;
  for (int64_t rows = 1; rows <= kSharedRows; rows++) {
    const int64_t pieces = (a.rows + rows - 1) / rows * a.kv_heads, cost = (pieces + threads - 1) / threads * (rows + 1);
    if (cost < least) best = rows, least = cost;
  }
  return best;
}

// This thread's share of the work, in (rows, key head) or, where those are few, (row, query head) pieces. Neighbours take
// about as long as one another, so they are dealt out in turn.
template <int NB, typename T>
void attend_share(const OutriderAttend& a, const Worker& worker) {
  static thread_local Scratch<T> scratch;
  const int64_t group = a.q_heads / a.kv_heads, most = rows_together(a, worker.count);
  const int64_t parts = a.rows * a.kv_heads < worker.count ? group : 1, heads = group / parts;
  int64_t number = 0;
  for (int64_t head = 0; head < a.kv_heads; head++)
    for (int64_t r = 0; r < a.rows;) {
      const RowGroup rows = group_at(a, r, most);
      for (int64_t part = 0; part < parts; part++)
        if (number++ % worker.count == worker.index)
          AttendRows<NB, T>(a, rows, head, part * heads, (part + 1) * heads, scratch).run();
      r += rows.count;
    }
}

template <typename T>
inline void attend_to(const OutriderAttend& a, const Worker& worker) {
  switch (a.dim % 16 ? 0 : a.dim / 16) {
    case 1: attend_share<1, T>(a, worker); break;
    case 2: attend_share<2, T>(a, worker); break;
    case 4: attend_share<4, T>(a, worker); break;
    case 5: attend_share<5, T>(a, worker); break;
    case 6: attend_share<6, T>(a, worker); break;
    case 8: attend_share<8, T>(a, worker); break;
    case 16: attend_share<16, T>(a, worker); break;
    default: attend_share<0, T>(a, worker);
  }
}

inline void attend(const OutriderAttend& a, const Worker& worker) {
  if (a.half) attend_to<uint16_t>(a, worker);
  else attend_to<float>(a, worker);
}

}  // namespace outrider
