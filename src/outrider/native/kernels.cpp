// Few-row kernels of the exact path: normalisation, activation, rotary + cache write, attention over slots.
// Every row is computed by the same code from its own data in an order fixed by its own positions, so a row's bits
// depend on nothing but its tokens and positions: not on the other rows, the tree, the slots, or the thread count.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

typedef float v16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float v4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint16_t u16v __attribute__((vector_size(32), aligned(2), may_alias));
typedef int32_t i16v __attribute__((vector_size(64), aligned(4), may_alias));

inline v16 load(const float* p) { return *reinterpret_cast<const v16*>(p); }
inline void store(float* p, v16 v) { *reinterpret_cast<v16*>(p) = v; }
inline v16 splat(float x) { return v16{} + x; }

inline float sum(v16 v) {  // a fixed tree of additions
  v8 a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  v4 b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
  return (b[0] + b[2]) + (b[1] + b[3]);
}

// Sums of four vectors at once, each by the same tree.
inline v4 sum4(v16 p, v16 q, v16 r, v16 s) {
  v16 pq = __builtin_shufflevector(p, q, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(p, q, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  v16 rs = __builtin_shufflevector(r, s, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(r, s, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  v16 x = __builtin_shufflevector(pq, rs, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
          __builtin_shufflevector(pq, rs, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  v8 y = __builtin_shufflevector(x, x, 0, 1, 4, 5, 8, 9, 12, 13) + __builtin_shufflevector(x, x, 2, 3, 6, 7, 10, 11, 14, 15);
  return __builtin_shufflevector(y, y, 0, 2, 4, 6) + __builtin_shufflevector(y, y, 1, 3, 5, 7);
}

// e^x for x <= 88, relative error below 2e-7; 0 below -87.
inline v16 exp16(v16 x) {
  v16 t = x * 1.44269504088896341f + 12582912.0f;  // round to nearest through the mantissa
  v16 n = t - 12582912.0f;
  v16 r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  v16 p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  i16v bits = reinterpret_cast<i16v>(p) + (__builtin_convertvector(n, i16v) << 23);
  return x < -87.0f ? splat(0.0f) : reinterpret_cast<v16>(bits);
}

inline float exp1(float x) {
  v16 v = splat(x);
  return exp16(v)[0];
}

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

}  // namespace

extern "C" {

// x [rows, dim] += delta (may be null); out = rms_norm(x) * weight.
void outrider_add_rms_norm(float* x, const float* delta, const float* weight, float* out, int64_t rows, int64_t dim,
                           float eps) {
  for (int64_t r = 0; r < rows; r++) {
    float* row = x + r * dim;
    if (delta)
      for (int64_t i = 0; i < dim; i++) row[i] += delta[r * dim + i];
    norm_row(row, weight, out + r * dim, dim, eps);
  }
}

// out [rows, dim] = silu(gate) * up, with gate_up [rows, 2 * dim].
void outrider_silu_mul(const float* gate_up, float* out, int64_t rows, int64_t dim, int32_t threads) {
#pragma omp parallel for if (threads > 1 && rows * dim > 65536) num_threads(threads)
  for (int64_t r = 0; r < rows; r++) {
    const float* gate = gate_up + r * 2 * dim;
    const float* up = gate + dim;
    float* y = out + r * dim;
    int64_t i = 0;
    for (; i + 16 <= dim; i += 16) {
      v16 g = load(gate + i);
      const v16 x = -g > 87.0f ? splat(87.0f) : -g;
      store(y + i, g / (exp16(x) + 1.0f) * load(up + i));
    }
    for (; i < dim; i++) y[i] = gate[i] / (exp1(-gate[i] > 87.0f ? 87.0f : -gate[i]) + 1.0f) * up[i];
  }
}

struct Attend {
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

namespace {

inline void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

void write_row(const Attend& a, int64_t r) {
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

// out [dim] += sum of weights[j] * values[j] over 16 values, in order.
template <int NB>
inline void weigh16(const float* weights, const float* const* values, float* out, int64_t dim) {
  if (NB == 0) {
    for (int j = 0; j < 16; j++)
      for (int64_t i = 0; i < dim; i++) out[i] += weights[j] * values[j][i];
    return;
  }
  v16 acc[NB > 0 ? NB : 1];
  for (int i = 0; i < NB; i++) acc[i] = load(out + 16 * i);
  for (int j = 0; j < 16; j++) {
    const v16 w = splat(weights[j]);
    for (int i = 0; i < NB; i++) acc[i] += w * load(values[j] + 16 * i);
  }
  for (int i = 0; i < NB; i++) store(out + 16 * i, acc[i]);
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

template <int NB>
void attend_row(const Attend& a, int64_t r, int64_t head, Scratch& scratch) {
  const int64_t context = a.context_len[r];
  const int32_t* path = a.path + a.path_start[r];
  const int64_t path_len = a.path_start[r + 1] - a.path_start[r];
  const int64_t length = context + path_len;
  const int64_t start = a.window > 0 && length > a.window ? length - a.window : 0;
  const int64_t n = length - start, padded = (n + 15) / 16 * 16, group = a.q_heads / a.kv_heads;
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
  const float* q = a.q + r * a.q_stride + head * group * a.dim;
  float* out = a.out + (r * a.q_heads + head * group) * a.dim;
  for (int64_t j = 0; j < padded; j += 16)
    for (int64_t g = 0; g < group; g++)
      store(scratch.scores.data() + g * padded + j, score16<NB>(q + g * a.dim, rows + j, a.scale, a.dim));
  for (int64_t g = 0; g < group; g++) softmax(scratch.scores.data() + g * padded, n, padded, a.softcap);
  for (int64_t i = 0; i < group * a.dim; i++) out[i] = 0.0f;
  const int64_t to_value = a.values - a.keys;
  for (int64_t j = 0; j < padded; j++) rows[j] += to_value;
  for (int64_t j = 0; j < padded; j += 16)
    for (int64_t g = 0; g < group; g++)
      weigh16<NB>(scratch.scores.data() + g * padded + j, rows + j, out + g * a.dim, a.dim);
}

template <int NB>
void attend_all(const Attend& a) {
  int64_t work = 0;
  for (int64_t r = 0; r < a.rows; r++) work += a.context_len[r] + 1;
  work *= a.q_heads * a.dim;
#pragma omp parallel if (a.threads > 1 && work > 200000) num_threads(a.threads)
  {
    Scratch scratch;
#pragma omp for collapse(2) schedule(dynamic, 4)
    for (int64_t head = 0; head < a.kv_heads; head++)
      for (int64_t r = 0; r < a.rows; r++) attend_row<NB>(a, r, head, scratch);
  }
}

}  // namespace

extern "C" {

// Normalise and rotate q and k, write k and v to their slots, then attend along each row's own path.
void outrider_attend(const Attend* args) {
  const Attend& a = *args;
  if (a.write)
    for (int64_t r = 0; r < a.rows; r++) write_row(a, r);
  switch (a.dim % 16 ? 0 : a.dim / 16) {
    case 1: attend_all<1>(a); break;
    case 2: attend_all<2>(a); break;
    case 4: attend_all<4>(a); break;
    case 5: attend_all<5>(a); break;
    case 6: attend_all<6>(a); break;
    case 8: attend_all<8>(a); break;
    case 16: attend_all<16>(a); break;
    default: attend_all<0>(a);
  }
}

}  // extern "C"

namespace {

// 16 weights as float32. Shorter weights are widened in registers, which is exact.
struct bfloat16 { uint16_t bits; };

inline v16 weights16(const float* p) { return load(p); }

inline v16 weights16(const bfloat16* p) {
  u16v bits;
  std::memcpy(&bits, p, 32);
  return reinterpret_cast<v16>(__builtin_convertvector(bits, i16v) << 16);
}

inline v16 weights16(const uint16_t* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<v16>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__F16C__)
  float out[16];
  for (int i = 0; i < 16; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i))));
  return load(out);
#else
  float out[16];
  for (int i = 0; i < 16; i++) {
    const uint32_t sign = (p[i] & 0x8000u) << 16, rest = p[i] & 0x7fffu;
    const float scaled = static_cast<float>(rest & 0x3ffu) * 0x1p-24f;  // a subnormal, or the fraction
    uint32_t bits = (rest << 13) + (112u << 23);
    if (rest < 0x400u) std::memcpy(&bits, &scaled, 4);
    bits |= sign;
    std::memcpy(out + i, &bits, 4);
  }
  return load(out);
#endif
}

constexpr int kBlock = 32;  // columns that lie side by side in a packed weight
#ifdef __AVX512F__
constexpr int kColumns = 2, kRows = 12;  // vectors of columns and rows at once: what registers hold
#else
constexpr int kColumns = 1, kRows = 6;
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

template <typename W>
void some_rows(int64_t rows, const float* x, const W* packed, const float* bias, float* out, int64_t n, int64_t k,
               int64_t left) {
  constexpr int C = kColumns;
  switch (rows) {
    case 1: columns<1, C>(x, packed, bias, out, n, k, left); break;
    case 2: columns<2, C>(x, packed, bias, out, n, k, left); break;
    case 3: columns<3, C>(x, packed, bias, out, n, k, left); break;
    case 4: columns<4, C>(x, packed, bias, out, n, k, left); break;
    case 5: columns<5, C>(x, packed, bias, out, n, k, left); break;
    case 6: columns<6, C>(x, packed, bias, out, n, k, left); break;
    case 7: columns<7, C>(x, packed, bias, out, n, k, left); break;
    case 8: columns<8, C>(x, packed, bias, out, n, k, left); break;
    case 9: columns<9, C>(x, packed, bias, out, n, k, left); break;
    case 10: columns<10, C>(x, packed, bias, out, n, k, left); break;
    case 11: columns<11, C>(x, packed, bias, out, n, k, left); break;
    case 12: columns<12, C>(x, packed, bias, out, n, k, left); break;
  }
}

template <typename W>
void linear(const float* x, const W* packed, const float* bias, float* out, int64_t rows, int64_t n, int64_t k,
            int32_t threads) {
  const int64_t passes = (rows + kRows - 1) / kRows;
#pragma omp parallel for schedule(static) if (threads > 1 && rows * n * k > 200000) num_threads(threads)
  for (int64_t from = 0; from < n; from += kBlock) {
    for (int64_t pass = 0, r = 0; pass < passes; pass++) {
      const int64_t count = (rows - r + passes - pass - 1) / (passes - pass);
      for (int64_t at = from; at < from + kBlock && at < n; at += 16 * kColumns)
        some_rows(count, x + r * k, packed + from * k + (at - from), bias + at, out + r * n + at, n, k, n - at);
      r += count;
    }
  }
}

}  // namespace

extern "C" {

// out [rows, n] = x [rows, k] * weight + bias [n, padded to 32], with packed weight [n / 32, padded][k][32].
void outrider_linear(const float* x, const float* packed, const float* bias, float* out, int64_t rows, int64_t n,
                     int64_t k, int32_t threads) {
  linear(x, packed, bias, out, rows, n, k, threads);
}

// The same with half-precision weights.
void outrider_linear_half(const float* x, const uint16_t* packed, const float* bias, float* out, int64_t rows,
                          int64_t n, int64_t k, int32_t threads) {
  linear(x, packed, bias, out, rows, n, k, threads);
}

// The same with bfloat16 weights.
void outrider_linear_bfloat16(const float* x, const uint16_t* packed, const float* bias, float* out, int64_t rows,
                              int64_t n, int64_t k, int32_t threads) {
  linear(x, reinterpret_cast<const bfloat16*>(packed), bias, out, rows, n, k, threads);
}

}  // extern "C"
