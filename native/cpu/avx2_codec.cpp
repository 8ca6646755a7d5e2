// The codec with AVX2 and F16C. No C++ headers here, for the reason given in avx2.cpp.
#include <immintrin.h>

#include "codec_row.hpp"

namespace {

constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

struct V {
  using F = __m256;
  using I = __m256i;
  using K = __m256i;
  static constexpr size_t kLanes = 8, kKeys = 16;

  static __m128i load_halves(const uint16_t *x) { return _mm_loadu_si128((const __m128i *)x); }
  static F load_f16(const uint16_t *x) { return _mm256_cvtph_ps(load_halves(x)); }
  static F load_finite(const uint16_t *x) {
    const __m128i h = load_halves(x), exponent = _mm_set1_epi16(0x7C00);
    const __m128i odd = _mm_cmpeq_epi16(_mm_and_si128(h, exponent), exponent);
    return _mm256_cvtph_ps(_mm_andnot_si128(odd, h));
  }
  static F load_f16_ordered(const uint16_t *x) {
    const __m128i k = load_halves(x), sign = _mm_srai_epi16(k, 15);
    return _mm256_cvtph_ps(_mm_xor_si128(k, _mm_and_si128(sign, _mm_set1_epi16(0x7FFF))));
  }
  static void store_f16(uint16_t *y, F v) {
    _mm_storeu_si128((__m128i *)y, _mm256_cvtps_ph(v, kNearest));
  }
  static void store_f16(uint16_t *y, F a, F b) {
    const I low = _mm256_castsi128_si256(_mm256_cvtps_ph(a, kNearest));
    _mm256_storeu_si256((__m256i *)y,
                        _mm256_inserti128_si256(low, _mm256_cvtps_ph(b, kNearest), 1));
  }
  static F load(const float *x) { return _mm256_loadu_ps(x); }
  static void store(float *y, F v) { _mm256_storeu_ps(y, v); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F mul_add(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static I round(F v) { return _mm256_cvtps_epi32(v); }

  static F load_bf16(const uint16_t *x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(x)), 16));
  }
  static I load_bits(const float *x) { return _mm256_loadu_si256((const __m256i *)x); }
  static void store_bf16(uint16_t *y, I u) {
    const I odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const I even = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7FFF)), odd);
    const I quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const I rest = _mm256_and_si256(u, _mm256_set1_epi32(0x7FFFFFFF));
    const I is_nan = _mm256_cmpgt_epi32(rest, _mm256_set1_epi32(0x7F800000));
    const I bits = _mm256_srli_epi32(_mm256_blendv_epi8(even, quiet, is_nan), 16);
    const I packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
    _mm_storeu_si128((__m128i *)y, _mm256_castsi256_si128(packed));
  }

  static K load_keys(const uint16_t *x) { return _mm256_loadu_si256((const __m256i *)x); }
  static void store_keys(uint16_t *y, K k) { _mm256_storeu_si256((__m256i *)y, k); }
  static K set1_key(int16_t x) { return _mm256_set1_epi16(x); }
  static K magnitude(K k) { return _mm256_and_si256(k, _mm256_set1_epi16(0x7FFF)); }
  static K order(K k) {
    const K sign = _mm256_srai_epi16(k, 15);
    return _mm256_xor_si256(k, _mm256_and_si256(sign, _mm256_set1_epi16(0x7FFF)));
  }
  static K least(K a, K b) { return _mm256_min_epi16(a, b); }
  static K most(K a, K b) { return _mm256_max_epi16(a, b); }
  // One instruction finds the least of eight unsigned: the keys are turned into what it orders.
  static int16_t least_of(K k) {
    const __m128i b = _mm_min_epi16(_mm256_castsi256_si128(k), _mm256_extracti128_si256(k, 1));
    const __m128i turn = _mm_set1_epi16((int16_t)0x8000);
    return (int16_t)_mm_cvtsi128_si32(
        _mm_xor_si128(_mm_minpos_epu16(_mm_xor_si128(b, turn)), turn));
  }
  static int16_t most_of(K k) {
    const __m128i b = _mm_max_epi16(_mm256_castsi256_si128(k), _mm256_extracti128_si256(k, 1));
    const __m128i turn = _mm_set1_epi16(0x7FFF);
    return (int16_t)_mm_cvtsi128_si32(
        _mm_xor_si128(_mm_minpos_epu16(_mm_xor_si128(b, turn)), turn));
  }

  static F scale(F ideal, F low, F n_steps, uint16_t *to) {
    __m128i h = _mm256_cvtps_ph(ideal, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    const F last = add(mul(n_steps, _mm256_cvtph_ps(h)), low);
    const I over = _mm256_castps_si256(_mm256_cmp_ps(last, set1(65504.0f), _CMP_GT_OQ));
    const __m128i over16 =
        _mm_packs_epi32(_mm256_castsi256_si128(over), _mm256_extracti128_si256(over, 1));
    h = _mm_add_epi16(h, over16);  // true is -1
    _mm_storeu_si128((__m128i *)to, h);
    return _mm256_cvtph_ps(h);
  }
  static F inverse(F scale) {
    const F some = _mm256_cmp_ps(scale, _mm256_setzero_ps(), _CMP_GT_OQ);
    return _mm256_and_ps(some, _mm256_div_ps(set1(1.0f), scale));
  }

  static I bytes(const uint8_t *x) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)x));
  }
  // `u` shifted to the left by `n`, or to the right by -n; `n` is a constant after unrolling.
  static I shift(I u, int n) {
    return n >= 0 ? _mm256_slli_epi32(u, n) : _mm256_srli_epi32(u, -n);
  }
  static I keep(I u, int mask) { return _mm256_and_si256(u, _mm256_set1_epi32(mask)); }
  // 4 x 8 values below 256 to 32 bytes.
  static I narrow(I a, I b, I c, I d) {
    const I words = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    return _mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }

  template <int kBits>
  static void decode(const uint8_t *block, F *v) {
    I c[8];
    if (kBits == 8) {
      for (int i = 0; i < 8; ++i) {
        c[i] = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(block + 8 * i)));
      }
    } else {
      for (int i = 0; i < 4; ++i) {
        const I d = bytes(block + 8 * i);
        c[i] = keep(d, 15);
        c[i + 4] = shift(d, -4);
      }
    }
    if (kBits == 5) {
      const I d = bytes(block + 32);
      for (int i = 0; i < 8; ++i) c[i] = _mm256_or_si256(c[i], keep(shift(d, 4 - i), 16));
    }
    if (kBits == 6) {
      const I d[2] = {bytes(block + 32), bytes(block + 40)};
      for (int i = 0; i < 8; ++i) {
        c[i] = _mm256_or_si256(c[i], keep(shift(d[i % 2], 4 - i / 2 * 2), 48));
      }
    }
    for (int i = 0; i < 8; ++i) v[i] = _mm256_cvtepi32_ps(c[i]);
  }

  template <int kBits>
  static void encode(const I *c, uint8_t *block) {
    if (kBits == 8) {
      for (int i = 0; i < 8; i += 4) {
        const I a = _mm256_packs_epi32(c[i], c[i + 1]);
        const I b = _mm256_packs_epi32(c[i + 2], c[i + 3]);
        const I order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        const I packed = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
        _mm256_storeu_si256((__m256i *)(block + 8 * i), packed);
      }
      return;
    }
    I d[4];
    for (int i = 0; i < 4; ++i) {
      d[i] = _mm256_or_si256(keep(c[i], 15), shift(keep(c[i + 4], 15), 4));
    }
    _mm256_storeu_si256((__m256i *)block, narrow(d[0], d[1], d[2], d[3]));
    if (kBits == 4) return;
    I plane[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int i = 0; i < 8; ++i) {
      const int half = kBits == 5 ? 0 : i % 2, at = kBits == 5 ? i : i / 2 * 2;
      plane[half] = _mm256_or_si256(plane[half], shift(keep(c[i], 48), at - 4));
    }
    const I packed = narrow(plane[0], plane[1], plane[0], plane[1]);
    if (kBits == 5) {
      _mm_storel_epi64((__m128i *)(block + 32), _mm256_castsi256_si128(packed));
    } else {
      _mm_storeu_si128((__m128i *)(block + 32), _mm256_castsi256_si128(packed));
    }
  }
};

}  // namespace

const Codec kAvx2Codec = EKV_CODEC(V);
