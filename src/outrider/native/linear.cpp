#include "linear.h"

#include "buffer.h"
#include "columns.h"
#include "passes.h"
#include "tiles.h"

namespace outrider {

namespace {

bool quantises(const OutriderLinear& layer) { return layer.format == kInt8 || layer.format == kInt4; }

typedef int32_t i8lanes __attribute__((vector_size(32)));
typedef int32_t i4v __attribute__((vector_size(16)));
typedef int8_t i8v __attribute__((vector_size(16)));

inline int32_t total_of(i16v v) {
  const i8lanes a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  const i4v b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
  return b[0] + b[1] + b[2] + b[3];
}

inline int32_t largest(i16v v) {
  const i8lanes a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
            b = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15), c = a > b ? a : b;
  const i4v d = __builtin_shufflevector(c, c, 0, 1, 2, 3), e = __builtin_shufflevector(c, c, 4, 5, 6, 7),
            f = d > e ? d : e;
  const int32_t g = f[0] > f[1] ? f[0] : f[1], h = f[2] > f[3] ? f[2] : f[3];
  return g > h ? g : h;
}

// 32 inputs, of which `left` exist: codes, scale, offset and sum of one tile.
void quantise_tile(const float* x, int64_t left, int8_t* codes, float& scale, int32_t& offset, float& sums) {
  float padded[32];
  if (left < 32) {
    std::memset(padded, 0, sizeof padded);
    std::memcpy(padded, x, left * sizeof(float));
    x = padded;
  }
  const v16 a = load(x), b = load(x + 16);
  // Sizes compared as integers: a value that is not finite is the largest of all.
  const i16v size_a = reinterpret_cast<i16v>(a) & 0x7fffffff, size_b = reinterpret_cast<i16v>(b) & 0x7fffffff;
  const int32_t bits = largest(size_a > size_b ? size_a : size_b);
  float top;
  std::memcpy(&top, &bits, sizeof top);
  const float inverse = top > 0.0f ? 127.0f / top : 0.0f;
  scale = bits < 0x7f800000 ? top * (1.0f / 127.0f) : NAN;
  i16v total = {};
  for (int half = 0; half < 2; half++) {
    const v16 rounded = (half ? b : a) * inverse + 12582912.0f;  // to nearest, through the mantissa
    const i16v code = reinterpret_cast<i16v>(rounded) - 0x4b400000;
    const i8v narrow = __builtin_convertvector(code, i8v);
    std::memcpy(codes + 16 * half, &narrow, 16);
    total += code;
  }
  const int32_t count = total_of(total);
  offset = -128 * count;
  sums = scale * static_cast<float>(count);
}

template <bool Nibbles>
void all_tiles(const OutriderLinear& layer, const Rows& rows, float* out, int64_t from, int64_t to) {
  const int64_t tiles = layer.inputs / kInputs;
  for (int64_t column = from; column < to && column < layer.n; column += kColumns)
    in_passes<kTileRows>(rows.count, [&](auto count, int64_t r) {
      const TileRows some = {rows.codes + r * layer.inputs, rows.scales + r * tiles, rows.offsets + r * tiles,
                             rows.sums + r * tiles, layer.inputs, tiles};
      tile_rows<decltype(count)::value, Nibbles>(layer, column, some, out + r * layer.n);
    });
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
  const auto floats = [&](const auto* weight) {
    float_columns(rows.x, weight, layer.bias, out, rows.count, layer.n, layer.k, from, to);
  };
  switch (layer.format) {
    case kFloat32: floats(static_cast<const float*>(layer.weight)); break;
    case kFloat16: floats(static_cast<const uint16_t*>(layer.weight)); break;
    case kBfloat16: floats(static_cast<const bfloat16*>(layer.weight)); break;
    case kInt8: all_tiles<false>(layer, rows, out, from, to); break;
    case kInt4: all_tiles<true>(layer, rows, out, from, to); break;
  }
}

}  // namespace outrider

extern "C" {

// out [rows, n] = x [rows, k] * weight + bias.
void outrider_linear(const OutriderLinear* layer, const float* x, float* out, int64_t rows, int32_t threads) {
  using namespace outrider;
  static thread_local Buffer<char> buffer;
  Rows input = {rows, x, nullptr, nullptr, nullptr, nullptr};
  if (quantises(*layer)) {
    buffer.fit(quantised_bytes(rows, layer->inputs));
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
