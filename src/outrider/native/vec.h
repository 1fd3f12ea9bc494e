// Vectors of 16 floats in the compiler's own vector types: one source for AVX-512, AVX2, NEON and plain machines.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

namespace outrider {

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

// 16 weights as float32. Shorter weights are widened in registers, which is exact.
struct bfloat16 { uint16_t bits; };

inline v16 weights16(const float* p) { return load(p); }

inline v16 weights16(const bfloat16* p) {
  u16v bits;
  std::memcpy(&bits, p, 32);
  return reinterpret_cast<v16>(__builtin_convertvector(bits, i16v) << 16);
}

// A float16 and a float32 into one another, rounded to nearest even.
inline float widen(uint16_t half) {
#if defined(__F16C__)
  return _cvtsh_ss(half);
#else
  const uint32_t sign = (half & 0x8000u) << 16, rest = half & 0x7fffu;
  const float scaled = static_cast<float>(rest & 0x3ffu) * 0x1p-24f;  // a subnormal, or the fraction
  uint32_t bits = (rest << 13) + (rest < 0x7c00u ? 112u << 23 : 224u << 23);
  if (rest < 0x400u) std::memcpy(&bits, &scaled, 4);
  bits |= sign;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
#endif
}

inline uint16_t narrow(float value) {
#if defined(__F16C__)
  return _cvtss_sh(value, 0);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (rest >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (rest < 0x38800000u) {  // the sum with 1/2 is rounded to a multiple of the smallest subnormal
    const float sum = std::fabs(value) + 0.5f;
    std::memcpy(&bits, &sum, 4);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((rest + 0xfffu + (rest >> 13 & 1u) - (112u << 23)) >> 13));
#endif
}

inline float widen(float value) { return value; }

template <typename T>
inline T narrow_to(float value);
template <>
inline float narrow_to<float>(float value) { return value; }
template <>
inline uint16_t narrow_to<uint16_t>(float value) { return narrow(value); }

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
  for (int i = 0; i < 16; i++) out[i] = widen(p[i]);
  return load(out);
#endif
}

}  // namespace outrider
