#include "linear.h"

#include <vector>

#include "columns.h"
#include "tiles.h"

namespace outrider {

namespace {

bool quantises(const OutriderLinear& layer) { return layer.format == kInt8 || layer.format == kInt4; }

// 32 inputs, of which `left` exist: codes, scale, offset and sum of one tile.
void quantise_tile(const float* x, int64_t left, int8_t* codes, float& scale, int32_t& offset, float& sums) {
  float padded[32] = {};
  if (left < 32) {
    std::memcpy(padded, x, left * sizeof(float));
    x = padded;
  }
  const v16 a = load(x), b = load(x + 16);
  const v16 size_a = a < 0.0f ? -a : a, size_b = b < 0.0f ? -b : b;
  const v16 larger = size_a > size_b ? size_a : size_b;
  float top = larger[0];
  for (int i = 1; i < 16; i++) top = larger[i] > top ? larger[i] : top;
  const float poison = sum(a * 0.0f + b * 0.0f);  // 0, or NaN when an input is not finite
  scale = top * (1.0f / 127.0f) + poison;
  const float inverse = top > 0.0f ? 127.0f / top : 0.0f;
  i16v total = {};
  for (int half = 0; half < 2; half++) {
    const v16 rounded = (half ? b : a) * inverse + 12582912.0f;  // to nearest, through the mantissa
    const i16v code = reinterpret_cast<i16v>(rounded) - 0x4b400000;
    for (int i = 0; i < 16; i++) codes[16 * half + i] = static_cast<int8_t>(code[i]);
    total += code;
  }
  int32_t count = 0;
  for (int i = 0; i < 16; i++) count += total[i];
  offset = -128 * count;
  sums = scale * static_cast<float>(count);
}

template <bool Nibbles>
void all_tiles(const OutriderLinear& layer, const Rows& rows, float* out, int64_t from, int64_t to) {
  const int64_t tiles = layer.inputs / kInputs, passes = (rows.count + kTileRows - 1) / kTileRows;
  for (int64_t column = from; column < to && column < layer.n; column += kColumns)
    for (int64_t pass = 0, r = 0; pass < passes; pass++) {
      const int64_t count = (rows.count - r + passes - pass - 1) / (passes - pass);
      const TileRows some = {rows.codes + r * layer.inputs, rows.scales + r * tiles, rows.offsets + r * tiles,
                             rows.sums + r * tiles, layer.inputs, tiles};
      tile_switch<Nibbles>(count, layer, column, some, out + r * layer.n);
      r += count;
    }
}

}  // namespace

int64_t quantised_bytes(int64_t count, int64_t inputs) { return count * inputs + 3 * count * (inputs / kInputs) * 4; }

void place(Rows& rows, int64_t inputs, char* buffer) {
  const int64_t tiles = rows.count * (inputs / kInputs);
  rows.codes = reinterpret_cast<int8_t*>(buffer);
  rows.scales = reinterpret_cast<float*>(buffer + rows.count * inputs);
  rows.offsets = reinterpret_cast<int32_t*>(rows.scales + tiles);
  rows.sums = rows.scales + 2 * tiles;
}

void quantise(const OutriderLinear& layer, const Rows& rows, int64_t first, int64_t last) {
  if (!quantises(layer)) return;
  const int64_t tiles = layer.inputs / kInputs;
  for (int64_t r = first; r < last; r++)
    for (int64_t tile = 0; tile < tiles; tile++) {
      const int64_t at = r * tiles + tile, left = layer.k - tile * kInputs;
      quantise_tile(rows.x + r * layer.k + tile * kInputs, left, rows.codes + r * layer.inputs + tile * kInputs,
                    rows.scales[at], rows.offsets[at], rows.sums[at]);
    }
}

void multiply(const OutriderLinear& layer, const Rows& rows, float* out, const Worker& worker) {
  const int64_t units = (layer.n + kColumns - 1) / kColumns;
  const int64_t from = worker.first(units) * kColumns, to = worker.last(units) * kColumns;
  switch (layer.format) {
    case kFloat32:
      float_columns(rows.x, static_cast<const float*>(layer.weight), layer.bias, out, rows.count, layer.n, layer.k,
                    from, to);
      break;
    case kFloat16:
      float_columns(rows.x, static_cast<const uint16_t*>(layer.weight), layer.bias, out, rows.count, layer.n, layer.k,
                    from, to);
      break;
    case kBfloat16:
      float_columns(rows.x, static_cast<const bfloat16*>(layer.weight), layer.bias, out, rows.count, layer.n, layer.k,
                    from, to);
      break;
    case kInt8: all_tiles<false>(layer, rows, out, from, to); break;
    case kInt4: all_tiles<true>(layer, rows, out, from, to); break;
  }
}

}  // namespace outrider

extern "C" {

// out [rows, n] = x [rows, k] * weight + bias.
void outrider_linear(const OutriderLinear* layer, const float* x, float* out, int64_t rows, int32_t threads) {
  using namespace outrider;
  static thread_local std::vector<char> buffer;
  Rows input = {rows, x, nullptr, nullptr, nullptr, nullptr};
  if (quantises(*layer)) {
    const size_t bytes = quantised_bytes(rows, layer->inputs);
    if (buffer.size() < bytes) buffer.resize(bytes);
    place(input, layer->inputs, buffer.data());
  }
  const bool small = rows * layer->n * layer->k < 200000;
  Pool::run(small ? 1 : threads, [&](const Worker& worker) {
    if (quantises(*layer)) {
      quantise(*layer, input, worker.first(rows), worker.last(rows));
      worker.barrier();
    }
    multiply(*layer, input, out, worker);
  });
}

}  // extern "C"
