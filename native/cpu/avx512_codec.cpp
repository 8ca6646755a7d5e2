// The codec with AVX-512 (F and BW). No C++ headers here, for the reason given in avx2.cpp.
// GCC 12 warns about its own intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "codec_row.hpp"

namespace {

constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

struct V {
  using F = __m512;
  using I = __m512i;
  using K = __m512i;
  static constexpr size_t kLanes = 16, kKeys = 32;

  static __m256i load_halves(const uint16_t *x) { return _mm256_loadu_si256((const __m256i *)x); }
  static F load_f16(const uint16_t *x) { return _mm512_cvtph_ps(load_halves(x)); }
  static F load_finite(const uint16_t *x) {
    const __m256i h = load_halves(x), exponent = _mm256_set1_epi16(0x7C00);
    const __m256i odd = _mm256_cmpeq_epi16(_mm256_and_si256(h, exponent), exponent);
    return _mm512_cvtph_ps(_mm256_andnot_si256(odd, h));
  }
  static F load_f16_ordered(const uint16_t *x) {
    const __m256i k = load_halves(x), sign = _mm256_srai_epi16(k, 15);
    return _mm512_cvtph_ps(
        _mm256_xor_si256(k, _mm256_and_si256(sign, _mm256_set1_epi16(0x7FFF))));
  }
  static void store_f16(uint16_t *y, F v) {
    _mm256_storeu_si256((__m256i *)y, _mm512_cvtps_ph(v, kNearest));
  }
  static void store_f16(uint16_t *y, F a, F b) {
    const I low = _mm512_castsi256_si512(_mm512_cvtps_ph(a, kNearest));
    _mm512_storeu_si512(y, _mm512_inserti64x4(low, _mm512_cvtps_ph(b, kNearest), 1));
  }
  static F load(const float *x) { return _mm512_loadu_ps(x); }
  static void store(float *y, F v) { _mm512_storeu_ps(y, v); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F mul_add(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static I round(F v) { return _mm512_cvtps_epi32(v); }

  static F load_bf16(const uint16_t *x) {
    const I wide = _mm512_cvtepu16_epi32(load_halves(x));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static I load_bits(const float *x) { return _mm512_loadu_si512(x); }
  static void store_bf16(uint16_t *y, I u) {
    const I odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const I even = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7FFF)), odd);
    const I quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    const I rest = _mm512_and_si512(u, _mm512_set1_epi32(0x7FFFFFFF));
    const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(rest, _mm512_set1_epi32(0x7F800000));
    const I bits = _mm512_mask_mov_epi32(even, is_nan, quiet);
    _mm256_storeu_si256((__m256i *)y, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
  }

  static K load_keys(const uint16_t *x) { return _mm512_loadu_si512(x); }
  static void store_keys(uint16_t *y, K k) { _mm512_storeu_si512(y, k); }
  static K set1_key(int16_t x) { return _mm512_set1_epi16(x); }
  static K magnitude(K k) { return _mm512_and_si512(k, _mm512_set1_epi16(0x7FFF)); }
  static K order(K k) {
    // k ^ (sign & 0x7FFF)
    return _mm512_ternarylogic_epi32(k, _mm512_srai_epi16(k, 15), _mm512_set1_epi16(0x7FFF),
                                     0x78);
  }
  static K least(K a, K b) { return _mm512_min_epi16(a, b); }
  static K most(K a, K b) { return _mm512_max_epi16(a, b); }
  // One instruction finds the least of eight unsigned: the keys are turned into what it orders.
  static int16_t least_of(K k) {
    const __m256i a =
        _mm256_min_epi16(_mm512_castsi512_si256(k), _mm512_extracti64x4_epi64(k, 1));
    const __m128i b = _mm_min_epi16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i turn = _mm_set1_epi16((int16_t)0x8000);
    return (int16_t)_mm_cvtsi128_si32(
        _mm_xor_si128(_mm_minpos_epu16(_mm_xor_si128(b, turn)), turn));
  }
  static int16_t most_of(K k) {
    const __m256i a =
        _mm256_max_epi16(_mm512_castsi512_si256(k), _mm512_extracti64x4_epi64(k, 1));
    const __m128i b = _mm_max_epi16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i turn = _mm_set1_epi16(0x7FFF);
    return (int16_t)_mm_cvtsi128_si32(
        _mm_xor_si128(_mm_minpos_epu16(_mm_xor_si128(b, turn)), turn));
  }

  static F scale(F ideal, F low, F n_steps, uint16_t *to) {
    __m256i h = _mm512_cvtps_ph(ideal, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    const F last = add(mul(n_steps, _mm512_cvtph_ps(h)), low);
    const __mmask16 over = _mm512_cmp_ps_mask(last, set1(65504.0f), _CMP_GT_OQ);
    const I one = _mm512_maskz_set1_epi32(over, 1);
    h = _mm256_sub_epi16(h, _mm512_cvtepi32_epi16(one));
    _mm256_storeu_si256((__m256i *)to, h);
    return _mm512_cvtph_ps(h);
  }
  static F inverse(F scale) {
    const __mmask16 some = _mm512_cmp_ps_mask(scale, _mm512_setzero_ps(), _CMP_GT_OQ);
    return _mm512_maskz_div_ps(some, set1(1.0f), scale);
  }

  static I bytes(const uint8_t *x) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)x));
  }
  // a | (b & mask)
  static I with(I a, I b, int mask) {
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi32(mask), 0xF8);
  }

  template <int kBits>
  static void decode(const uint8_t *block, F *v) {
    I c[4];
    if (kBits == 8) {
      for (int i = 0; i < 4; ++i) {
        c[i] = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(block + 16 * i)));
      }
    } else {
      const I a = bytes(block), b = bytes(block + 16), nibble = _mm512_set1_epi32(15);
      c[0] = _mm512_and_si512(a, nibble);
      c[1] = _mm512_and_si512(b, nibble);
      c[2] = _mm512_srli_epi32(a, 4);
      c[3] = _mm512_srli_epi32(b, 4);
    }
    if (kBits == 5) {
      // Lanes 0 to 7 and 8 to 15 hold bits 2 i and 2 i + 1 of the same eight bytes.
      const __m128i plane = _mm_loadl_epi64((const __m128i *)(block + 32));
      const I twice = _mm512_cvtepu8_epi32(_mm_unpacklo_epi64(plane, plane));
      const I shift = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
      const I d = _mm512_srlv_epi32(twice, shift);
      c[0] = with(c[0], _mm512_slli_epi32(d, 4), 16);
      c[1] = with(c[1], _mm512_slli_epi32(d, 2), 16);
      c[2] = with(c[2], d, 16);
      c[3] = with(c[3], _mm512_srli_epi32(d, 2), 16);
    }
    if (kBits == 6) {
      const I d = bytes(block + 32);
      c[0] = with(c[0], _mm512_slli_epi32(d, 4), 48);
      c[1] = with(c[1], _mm512_slli_epi32(d, 2), 48);
      c[2] = with(c[2], d, 48);
      c[3] = with(c[3], _mm512_srli_epi32(d, 2), 48);
    }
    for (int i = 0; i < 4; ++i) v[i] = _mm512_cvtepi32_ps(c[i]);
  }

  template <int kBits>
  static void encode(const I *c, uint8_t *block) {
    if (kBits == 8) {
      const I a = _mm512_packs_epi32(c[0], c[1]), b = _mm512_packs_epi32(c[2], c[3]);
      const I order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
      const I packed = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(a, b));
      _mm512_storeu_si512(block, packed);
      return;
    }
    // Narrowing cuts off what the shift leaves above a byte.
    const I low = with(_mm512_slli_epi32(c[2], 4), c[0], 15);
    const I high = with(_mm512_slli_epi32(c[3], 4), c[1], 15);
    _mm_storeu_si128((__m128i *)block, _mm512_cvtepi32_epi8(low));
    _mm_storeu_si128((__m128i *)(block + 16), _mm512_cvtepi32_epi8(high));
    if (kBits == 4) return;
    const int first = kBits == 5 ? 1 : 3;
    I d = _mm512_srli_epi32(c[0], 4);
    d = with(d, _mm512_srli_epi32(c[1], 2), first << 2);
    d = with(d, c[2], first << 4);
    d = with(d, _mm512_slli_epi32(c[3], 2), first << 6);
    if (kBits == 5) d = _mm512_or_si512(d, _mm512_slli_epi32(_mm512_shuffle_i64x2(d, d, 0x4E), 1));
    const __m128i plane = _mm512_cvtepi32_epi8(d);
    if (kBits == 5) {
      _mm_storel_epi64((__m128i *)(block + 32), plane);
    } else {
      _mm_storeu_si128((__m128i *)(block + 32), plane);
    }
  }
};

}  // namespace

const Codec kAvx512Codec = EKV_CODEC(V);
