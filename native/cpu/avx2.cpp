// AVX2 row. No C++ headers here: an inline function compiled with these flags could be the copy the
// linker keeps for everybody (numpy/numpy#25274).
#include <cpuid.h>
#include <immintrin.h>

#include "table.hpp"

// The codec wants F16C and FMA too, which came with AVX2 and have bits of their own.
static bool supported() {
  unsigned a, b, c, d;
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) && (c & bit_FMA);
}

// Two rows eight tokens apart share a register, one per lane: the lane step of the transposition is
// then done by the load, and three unpack steps remain.
static inline __m256i load2(const uint16_t *low, const uint16_t *high) {
  const __m256i a = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low));
  return _mm256_inserti128_si256(a, _mm_loadu_si128((const __m128i *)high), 1);
}

// 16 tokens x 8 channels: writes 16 whole tokens of each of the 8 channels.
static inline void tile_16x8(const uint16_t *x, uint16_t *y, size_t ldx, size_t ldy) {
  __m256i r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = load2(x + i * ldx, x + (i + 8) * ldx);
  for (int i = 0; i < 4; ++i) {
    s[2 * i] = _mm256_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    s[2 * i + 1] = _mm256_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      r[4 * i + 2 * j] = _mm256_unpacklo_epi32(s[4 * i + j], s[4 * i + j + 2]);
      r[4 * i + 2 * j + 1] = _mm256_unpackhi_epi32(s[4 * i + j], s[4 * i + j + 2]);
    }
  }
  for (int j = 0; j < 4; ++j) {
    const __m256i lo = _mm256_unpacklo_epi64(r[j], r[j + 4]);
    const __m256i hi = _mm256_unpackhi_epi64(r[j], r[j + 4]);
    _mm256_storeu_si256((__m256i *)(y + (2 * j) * ldy), lo);
    _mm256_storeu_si256((__m256i *)(y + (2 * j + 1) * ldy), hi);
  }
}

static void transpose_f16(const uint16_t *x, size_t n_tokens, size_t n_channels, uint16_t *y,
                          size_t ldx, size_t ldy) {
  const size_t t_end = n_tokens - n_tokens % 32, c_end = n_channels - n_channels % 8;
  // Two tiles beside each other fill the cache lines they write.
  for (size_t t = 0; t < t_end; t += 32) {
    for (size_t c = 0; c < c_end; c += 8) {
      tile_16x8(x + t * ldx + c, y + c * ldy + t, ldx, ldy);
      tile_16x8(x + (t + 16) * ldx + c, y + c * ldy + t + 16, ldx, ldy);
    }
  }
  kScalar.transpose_f16(x + c_end, t_end, n_channels - c_end, y + c_end * ldy, ldx, ldy);
  kScalar.transpose_f16(x + t_end * ldx, n_tokens - t_end, n_channels, y + t_end, ldx, ldy);
}

static inline __m256i summed(__m256i sums, const uint8_t *x, const uint8_t *secret) {
  const __m256i items = _mm256_loadu_si256((const __m256i *)x);
  const __m256i keys = _mm256_xor_si256(items, _mm256_loadu_si256((const __m256i *)secret));
  const __m256i products = _mm256_mul_epu32(keys, _mm256_srli_epi64(keys, 32));
  const __m256i others = _mm256_shuffle_epi32(items, _MM_SHUFFLE(1, 0, 3, 2));
  return _mm256_add_epi64(sums, _mm256_add_epi64(products, others));
}

static void sum_stripes(const uint8_t *x, size_t n, const uint8_t *secret, uint64_t *lanes) {
  __m256i low = _mm256_loadu_si256((const __m256i *)lanes);
  __m256i high = _mm256_loadu_si256((const __m256i *)(lanes + 4));
  for (; n > 0; --n, x += 64, secret += 8) {
    low = summed(low, x, secret);
    high = summed(high, x + 32, secret + 32);
  }
  _mm256_storeu_si256((__m256i *)lanes, low);
  _mm256_storeu_si256((__m256i *)(lanes + 4), high);
}

const Kernels kAvx2 = {"avx2", supported, transpose_f16, sum_stripes, &kAvx2Codec};
