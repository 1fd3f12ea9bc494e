// 16 dot products of four bytes each: the one integer instruction that the tile kernels need. Integers are exact, so
// every version gives the same bits.
#pragma once
#include "vec.h"

namespace outrider {

#if defined(__AVX512BW__)
typedef __m512i Bytes;

inline Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Bytes low_nibbles(Bytes b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
inline Bytes high_nibbles(Bytes b) { return _mm512_and_si512(_mm512_srli_epi16(b, 4), _mm512_set1_epi8(15)); }
#else
typedef uint8_t Bytes __attribute__((vector_size(64), aligned(1), may_alias));

inline Bytes load_bytes(const uint8_t* p) { return *reinterpret_cast<const Bytes*>(p); }
inline Bytes low_nibbles(Bytes b) { return b & 15; }
inline Bytes high_nibbles(Bytes b) { return b >> 4; }
#endif

#if defined(__AVX512VNNI__)
struct Four {  // four signed bytes, for all 16 lanes
  __m512i all;
  explicit Four(const int8_t* p) {
    int32_t bits;
    std::memcpy(&bits, p, 4);
    all = _mm512_set1_epi32(bits);
  }
};

// acc[i] += the sum over j < 4 of w[4 i + j] (unsigned) * x[j] (signed).
inline i16v dot(i16v acc, Bytes w, const Four& x) {
  return reinterpret_cast<i16v>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(acc), w, x.all));
}
#elif defined(__AVX512BW__)
struct Four {
  __m512i even, odd;
  explicit Four(const int8_t* p) {
    int32_t bits;
    std::memcpy(&bits, p, 4);
    const __m512i all = _mm512_set1_epi32(bits);
    even = _mm512_srai_epi16(_mm512_slli_epi16(all, 8), 8);
    odd = _mm512_srai_epi16(all, 8);
  }
};

inline i16v dot(i16v acc, Bytes w, const Four& x) {
  const __m512i even = _mm512_madd_epi16(_mm512_and_si512(w, _mm512_set1_epi16(255)), x.even);
  const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(w, 8), x.odd);
  return acc + reinterpret_cast<i16v>(_mm512_add_epi32(even, odd));
}
#elif defined(__AVX2__)
struct Four {
  __m256i even, odd;
  explicit Four(const int8_t* p) {
    int32_t bits;
    std::memcpy(&bits, p, 4);
    const __m256i all = _mm256_set1_epi32(bits);
    even = _mm256_srai_epi16(_mm256_slli_epi16(all, 8), 8);
    odd = _mm256_srai_epi16(all, 8);
  }
};

inline i16v dot(i16v acc, Bytes w, const Four& x) {
  __m256i halves[2];
  std::memcpy(halves, &w, 64);
  for (__m256i& half : halves) {
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(half, _mm256_set1_epi16(255)), x.even);
    half = _mm256_add_epi32(even, _mm256_madd_epi16(_mm256_srli_epi16(half, 8), x.odd));
  }
  i16v products;
  std::memcpy(&products, halves, 64);
  return acc + products;
}
#else
struct Four {
  int32_t x[4];
  explicit Four(const int8_t* p) {
    for (int j = 0; j < 4; j++) x[j] = p[j];
  }
};

inline i16v dot(i16v acc, Bytes w, const Four& x) {
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 4; j++) acc[i] += static_cast<int32_t>(w[4 * i + j]) * x.x[j];
  return acc;
}
#endif

}  // namespace outrider
