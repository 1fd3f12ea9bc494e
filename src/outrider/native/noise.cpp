// Gumbel-max sampling over one row of scores, bit-equal to core/noise.py (which defines the noise).
//
// Per block, an upper bound of every perturbed score is computed in float32 with vector code; only tokens whose bound
// reaches the value to beat are computed exactly. The bound: -log(-log u) <= -log(1 - u), and log2 of a float is at
// least its bit pattern * 2^-23 - 127. Compile without contraction (-ffp-contract=off): a fused multiply-add in the
// logarithm would change bits.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t kBlock = 512;
constexpr int64_t kNotFinite = -2;
constexpr int32_t kNegativeInfinityKey = INT32_MIN + 0x007fffff;  // order_key(-infinity)

inline uint32_t mix32(uint32_t x) {
  x ^= x >> 16;
  x *= 0x21f0aaadu;
  x ^= x >> 15;
  x *= 0x735a2d97u;
  return x ^ (x >> 15);
}

inline uint32_t noise_bits(uint32_t token, uint32_t word0, uint32_t word1) {
  return mix32(mix32(token ^ word0) ^ word1);
}

inline int32_t float_bits(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Signed integers in the order of the floats, so that a maximum vectorises without fast-math.
inline int32_t order_key(float value) {
  const int32_t bits = float_bits(value);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

inline double exact_log(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const int64_t exponent = (bits - 0x3fe6a09e667f3bcdLL) >> 52;
  const int64_t mantissa_bits = bits - exponent * (int64_t{1} << 52);
  double mantissa;
  std::memcpy(&mantissa, &mantissa_bits, sizeof mantissa);
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double z = s * s;
  double series = 1.0 / 15.0;
  series = series * z + 1.0 / 13.0;
  series = series * z + 1.0 / 11.0;
  series = series * z + 1.0 / 9.0;
  series = series * z + 1.0 / 7.0;
  series = series * z + 1.0 / 5.0;
  series = series * z + 1.0 / 3.0;
  series = series * z + 1.0;
  return static_cast<double>(exponent) * 0.6931471805599453 + (s + s) * series;
}

inline double exact_gumbel(uint32_t bits) {
  return -exact_log(-exact_log((static_cast<double>(bits) + 0.5) * 0x1p-32));
}

// At least the noise of `bits`, up to 1e-4 of rounding. Half of y = 2^32 - 1 - bits keeps the conversion signed.
inline float gumbel_bound(uint32_t bits) {
  const float half = static_cast<float>(static_cast<int32_t>(~bits >> 1)) + 0.25f;
  constexpr float kLn2 = 0.69314718f;
  return 158.0f * kLn2 - static_cast<float>(float_bits(half)) * (kLn2 * 0x1p-23f);
}

// Order keys of the bounds of one block; returns the largest, and sets `bad` on NaN or +infinity.
inline int32_t block_keys(const float* scores, int64_t first, int64_t count, uint32_t word0, uint32_t word1,
                          int32_t* keys, int32_t* bad) {
  int32_t highest = INT32_MIN;
  int32_t any_bad = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float score = scores[first + i];
    const uint32_t pattern = static_cast<uint32_t>(float_bits(score));
    any_bad |= ((pattern & 0x7fffffffu) > 0x7f800000u) | (pattern == 0x7f800000u);
    const int32_t key = order_key(score + gumbel_bound(noise_bits(static_cast<uint32_t>(first + i), word0, word1)));
    keys[i] = key;
    highest = key > highest ? key : highest;
  }
  *bad = any_bad;
  return highest;
}

// A bound below this key cannot belong to a token whose exact value reaches `value`.
inline int32_t key_to_reach(double value) {
  return order_key(static_cast<float>(value - 1e-3 - std::fabs(value) * 1e-6));
}

}  // namespace

extern "C" {

// The noise of the tokens 0 .. n - 1, into out [n].
void outrider_gumbel(int64_t n, uint32_t word0, uint32_t word1, double* out) {
  for (int64_t token = 0; token < n; ++token) {
    out[token] = exact_gumbel(noise_bits(static_cast<uint32_t>(token), word0, word1));
  }
}

// The k best ids of scores [n] + noise, best first, ties to the lowest id, into ids [k].
// Returns how many were found (masked tokens, -infinity, never are), or -2 when scores hold NaN or +infinity.
int64_t outrider_gumbel_topk(const float* scores, int64_t n, uint32_t word0, uint32_t word1, int64_t k, int64_t* ids) {
  std::vector<double> values(static_cast<size_t>(k > 0 ? k : 0));
  int32_t keys[kBlock];
  int32_t threshold = kNegativeInfinityKey + 1;
  int64_t found = 0;
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t count = n - first < kBlock ? n - first : kBlock;
    int32_t bad = 0;
    const int32_t highest = block_keys(scores, first, count, word0, word1, keys, &bad);
    if (bad) return kNotFinite;
    if (highest < threshold || k <= 0) continue;
    for (int64_t i = 0; i < count; ++i) {
      if (keys[i] < threshold) continue;
      const int64_t token = first + i;
      const uint32_t bits = noise_bits(static_cast<uint32_t>(token), word0, word1);
      const double value = static_cast<double>(scores[token]) + exact_gumbel(bits);
      if (found == k && !(value > values[k - 1])) continue;
      int64_t slot = found < k ? found++ : k - 1;
      for (; slot > 0 && value > values[slot - 1]; --slot) {
        values[slot] = values[slot - 1];
        ids[slot] = ids[slot - 1];
      }
      values[slot] = value;
      ids[slot] = token;
      if (found == k) threshold = key_to_reach(values[k - 1]);
    }
  }
  return found;
}

// The best id of scores [n] + noise; -1 when every token is masked, -2 when scores hold NaN or +infinity.
int64_t outrider_gumbel_argmax(const float* scores, int64_t n, uint32_t word0, uint32_t word1) {
  int64_t best = -1;
  const int64_t found = outrider_gumbel_topk(scores, n, word0, word1, 1, &best);
  return found == 1 ? best : (found == kNotFinite ? kNotFinite : -1);
}

}  // extern "C"
