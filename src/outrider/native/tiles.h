// int8 and int4 weights times int8 rows, in tiles of 16 columns x 32 inputs: eight (16 nibble) integer products, exact,
// then one conversion and one scale. Source of the block format: ggml's Q8_0, Q4_0 and Q4_1.
#pragma once
#include "dot.h"
#include "linear.h"
#include "vec.h"

namespace outrider {

// What a group of rows brings to the tiles; strides are those of `Rows`.
struct TileRows {
  const int8_t* codes;
  const float* scales;
  const int32_t* offsets;
  const float* sums;
  int64_t inputs, tiles;  // tiles = inputs / 32
};

// acc += tile * x, for int8: w + 128 is stored, and acc starts at -128 * sum(x).
template <int R, int C>
inline void int8_tile(const uint8_t* const* codes, const TileRows& x, int64_t tile, i16v acc[R][C]) {
#pragma GCC unroll 8
  for (int t = 0; t < 8; t++) {
    Bytes w[C];
    for (int c = 0; c < C; c++) {
      const uint8_t* from = codes[c] + tile * 512 + t * 64;
      w[c] = load_bytes(from);
      __builtin_prefetch(from + 4096);
    }
    for (int r = 0; r < R; r++) {
      const Four four(x.codes + r * x.inputs + tile * 32 + t * 4);
      for (int c = 0; c < C; c++) acc[r][c] = dot(acc[r][c], w[c], four);
    }
  }
}

// The same for int4: inputs 0..15 of the tile lie in the low halves of the bytes, 16..31 in the high ones.
template <int R, int C>
inline void int4_tile(const uint8_t* const* codes, const TileRows& x, int64_t tile, i16v acc[R][C]) {
#pragma GCC unroll 4
  for (int t = 0; t < 4; t++) {
    Bytes low[C], high[C];
    for (int c = 0; c < C; c++) {
      const uint8_t* from = codes[c] + tile * 256 + t * 64;
      const Bytes both = load_bytes(from);
      __builtin_prefetch(from + 2048);
      low[c] = low_nibbles(both);
      high[c] = high_nibbles(both);
    }
    for (int r = 0; r < R; r++) {
      const int8_t* at = x.codes + r * x.inputs + tile * 32 + t * 4;
      const Four first(at), second(at + 16);
      for (int c = 0; c < C; c++) acc[r][c] = dot(dot(acc[r][c], low[c], first), high[c], second);
    }
  }
}

// out [R, 16 * C] of the columns from 16 * group on, `left` of which exist.
template <int R, int C, bool Nibbles>
inline void tile_columns(const OutriderLinear& layer, int64_t group, const TileRows& x, float* out, int64_t left) {
  const uint8_t* codes[C];
  const uint16_t* scales[C];
  constexpr int kBytes = Nibbles ? 256 : 512, kScales = Nibbles ? 32 : 16;
  for (int c = 0; c < C; c++) {
    codes[c] = static_cast<const uint8_t*>(layer.weight) + (group + c) * x.tiles * kBytes;
    scales[c] = layer.scales + (group + c) * x.tiles * kScales;
  }
  v16 total[R][C];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) total[r][c] = load(layer.bias + 16 * (group + c));
  for (int64_t tile = 0; tile < x.tiles; tile++) {
    i16v acc[R][C];
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++) acc[r][c] = i16v{} + (Nibbles ? 0 : x.offsets[r * x.tiles + tile]);
    if (Nibbles) int4_tile<R, C>(codes, x, tile, acc);
    else int8_tile<R, C>(codes, x, tile, acc);
    for (int c = 0; c < C; c++) {
      const v16 scale = weights16(scales[c] + tile * kScales);
      const v16 minimum = Nibbles ? weights16(scales[c] + tile * kScales + kScales - 16) : splat(0.0f);
      for (int r = 0; r < R; r++) {
        total[r][c] += __builtin_convertvector(acc[r][c], v16) * (scale * x.scales[r * x.tiles + tile]);
        if (Nibbles) total[r][c] += minimum * x.sums[r * x.tiles + tile];
      }
    }
  }
  for (int r = 0; r < R; r++)
    for (int c = 0; c < C; c++) {
      const int64_t count = left - 16 * c < 16 ? left - 16 * c : 16;
      if (count == 16) store(out + r * layer.n + 16 * c, total[r][c]);
      else if (count > 0) std::memcpy(out + r * layer.n + 16 * c, &total[r][c], count * sizeof(float));
    }
}

#ifdef __AVX512F__
constexpr int kTileRows = 12;
constexpr int tile_vectors(int rows) { return rows <= 3 ? 4 : rows <= 6 ? 2 : 1; }
#else
constexpr int kTileRows = 4;
constexpr int tile_vectors(int rows) { return 1; }
#endif

// R rows of 64 columns.
template <int R, bool Nibbles>
void tile_rows(const OutriderLinear& layer, int64_t column, const TileRows& x, float* out) {
  constexpr int C = tile_vectors(R);
  for (int64_t at = column; at < column + kColumns && at < layer.n; at += 16 * C)
    tile_columns<R, C, Nibbles>(layer, at / 16, x, out + at, layer.n - at);
}

}  // namespace outrider
