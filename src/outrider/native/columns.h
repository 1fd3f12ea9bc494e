// Float weights times float32 rows.
#pragma once
#include "passes.h"
#include "vec.h"

namespace outrider {

constexpr int kBlock = 32;  // columns that lie side by side in a packed weight
#ifdef __AVX512F__
constexpr int kVectors = 2, kMaxRows = 12;  // vectors of columns and rows at once: what registers hold
#else
constexpr int kVectors = 1, kMaxRows = 6;
#endif

// out [R, 16 * C] = x [R, k] * packed [k][32] + bias; every sum runs over k in order, whatever R is.
template <int R, int C, typename W>
inline void columns(const float* x, const W* packed, const float* bias, float* out, int64_t n, int64_t k,
                    int64_t left) {
  constexpr int64_t ahead = 6144 / sizeof(W);  // a weight is read once: fetch what comes 6 KiB later
  v16 acc[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) acc[r][c] = splat(0.0f);
  for (int64_t i = 0; i < k; i++) {
    v16 w[C];
    __builtin_prefetch(packed + i * kBlock + ahead);
    for (int c = 0; c < C; c++) w[c] = weights16(packed + i * kBlock + 16 * c);
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++) acc[r][c] += w[c] * x[r * k + i];
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) {
      const v16 y = acc[r][c] + load(bias + 16 * c);
      const int64_t count = left - 16 * c < 16 ? left - 16 * c : 16;
      if (count == 16) store(out + r * n + 16 * c, y);
      else if (count > 0) std::memcpy(out + r * n + 16 * c, &y, count * sizeof(float));
    }
}

// All rows times the columns from `from` to `to` (multiples of 32).
template <typename W>
void float_columns(const float* x, const W* packed, const float* bias, float* out, int64_t rows, int64_t n, int64_t k,
                   int64_t from, int64_t to) {
  for (; from < to && from < n; from += kBlock)
    in_passes<kMaxRows>(rows, [&](auto count, int64_t r) {
      for (int64_t at = from; at < from + kBlock && at < n; at += 16 * kVectors)
        columns<decltype(count)::value, kVectors>(x + r * k, packed + from * k + (at - from), bias + at,
                                                  out + r * n + at, n, k, n - at);
    });
}

}  // namespace outrider
