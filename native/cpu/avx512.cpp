// AVX-512 row (F and BW). No C++ headers here, for the reason given in avx2.cpp.
// GCC 12 warns about its own intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "table.hpp"

static bool supported() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
}

// Four rows eight tokens apart share a register, one per lane: the lane steps of the transposition
// are then done by the loads, and three unpack steps remain.
static inline __m512i load4(const uint16_t *x, size_t step) {
  __m512i r = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)x));
  r = _mm512_inserti32x4(r, _mm_loadu_si128((const __m128i *)(x + step)), 1);
  r = _mm512_inserti32x4(r, _mm_loadu_si128((const __m128i *)(x + 2 * step)), 2);
  return _mm512_inserti32x4(r, _mm_loadu_si128((const __m128i *)(x + 3 * step)), 3);
}

// 32 tokens x 8 channels: each of the 8 stores is 64 bytes of one channel.
static inline void tile_32x8(const uint16_t *x, uint16_t *y, size_t ldx, size_t ldy) {
  __m512i r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = load4(x + i * ldx, 8 * ldx);
  for (int i = 0; i < 4; ++i) {
    s[2 * i] = _mm512_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    s[2 * i + 1] = _mm512_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      r[4 * i + 2 * j] = _mm512_unpacklo_epi32(s[4 * i + j], s[4 * i + j + 2]);
      r[4 * i + 2 * j + 1] = _mm512_unpackhi_epi32(s[4 * i + j], s[4 * i + j + 2]);
    }
  }
  for (int j = 0; j < 4; ++j) {
    _mm512_storeu_si512(y + (2 * j) * ldy, _mm512_unpacklo_epi64(r[j], r[j + 4]));
    _mm512_storeu_si512(y + (2 * j + 1) * ldy, _mm512_unpackhi_epi64(r[j], r[j + 4]));
  }
}

static void transpose_f16(const uint16_t *x, size_t n_tokens, size_t n_channels, uint16_t *y,
                          size_t ldx, size_t ldy) {
  const size_t t_end = n_tokens - n_tokens % 32, c_end = n_channels - n_channels % 8;
  for (size_t t = 0; t < t_end; t += 32) {
    for (size_t c = 0; c < c_end; c += 8) {
      tile_32x8(x + t * ldx + c, y + c * ldy + t, ldx, ldy);
    }
  }
  kScalar.transpose_f16(x + c_end, t_end, n_channels - c_end, y + c_end * ldy, ldx, ldy);
  kScalar.transpose_f16(x + t_end * ldx, n_tokens - t_end, n_channels, y + t_end, ldx, ldy);
}

static void sum_stripes(const uint8_t *x, size_t n, const uint8_t *secret, uint64_t *lanes) {
  __m512i sums = _mm512_loadu_si512(lanes);
  for (; n > 0; --n, x += 64, secret += 8) {
    const __m512i items = _mm512_loadu_si512(x);
    const __m512i keys = _mm512_xor_si512(items, _mm512_loadu_si512(secret));
    const __m512i products = _mm512_mul_epu32(keys, _mm512_srli_epi64(keys, 32));
    const __m512i others = _mm512_shuffle_epi32(items, (_MM_PERM_ENUM)_MM_SHUFFLE(1, 0, 3, 2));
    sums = _mm512_add_epi64(sums, _mm512_add_epi64(products, others));
  }
  _mm512_storeu_si512(lanes, sums);
}

const Kernels kAvx512 = {"avx512", supported, transpose_f16, sum_stripes, &kAvx512Codec};
