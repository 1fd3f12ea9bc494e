// Linear layers for few rows over packed weights. A row's sums run in an order fixed by the weight alone, so its bits do
// not depend on the other rows or on the threads, which share out the columns.
//
// | format | weight | activations |
// |---|---|---|
// | float32, float16, bfloat16 | [n / 32][k][32], widened in registers | float32 |
// | int8 | tiles of 16 columns x 32 inputs, one scale a column and tile | int8, one scale for 32 inputs |
// | int4 | the same with 4 bits: scale * code + minimum | int8, one scale for 32 inputs |
#pragma once
#include <cstdint>

#include "pool.h"

namespace outrider {

constexpr int64_t kColumns = 64;  // columns of a packed weight are padded to a multiple of this
constexpr int64_t kInputs = 32;   // inputs of a tile; int8 and int4 pad k to a multiple of this

enum Format : int32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2, kInt8 = 3, kInt4 = 4 };

}  // namespace outrider

extern "C" {

// weight, scales: as the format lays them out; bias: [n, padded to 64]. `inputs` is k with its padding.
struct OutriderLinear {
  const void* weight;
  const uint16_t* scales;  // int8: [n / 16][k / 32][16] float16; int4: scale and minimum, [n / 16][k / 32][32]
  const float* bias;
  int64_t n, k, inputs;
  int32_t format, unused;
};

}  // extern "C"

namespace outrider {

// The rows of one linear layer's input. Float formats read `x`; the others the quantised copy.
struct Rows {
  int64_t count;
  const float* x;    // [rows, k]
  int8_t* codes;     // [rows, inputs]
  float* scales;     // [rows, inputs / 32]
  int32_t* offsets;  // [rows, inputs / 32]: -128 * sum of the codes
  float* sums;       // [rows, inputs / 32]: scale * sum of the codes
};

// Bytes of the quantised copy of `count` rows of `inputs` values; `place` puts its parts into a buffer of that size.
int64_t quantised_bytes(int64_t count, int64_t inputs);
void place(Rows& rows, int64_t inputs, char* buffer);

// Quantise rows first to last (not included); nothing for float formats.
void quantise(const OutriderLinear& layer, const Rows& rows, int64_t first, int64_t last);

// out [rows, n] = rows * weight + bias, this thread's share of the columns.
void multiply(const OutriderLinear& layer, const Rows& rows, float* out, const Worker& worker);

}  // namespace outrider
