// The codec with NEON. No C++ headers here, for the reason given in avx2.cpp.
#include <arm_neon.h>

#include "codec_row.hpp"

namespace {

struct V {
  using F = float32x4_t;
  using I = int32x4_t;
  using K = int16x8_t;
  static constexpr size_t kLanes = 4, kKeys = 8;

  static F widen(uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
  static uint16x4_t narrow(F v) { return vreinterpret_u16_f16(vcvt_f16_f32(v)); }
  static F load_f16(const uint16_t *x) { return widen(vld1_u16(x)); }
  static F load_finite(const uint16_t *x) {
    const uint16x4_t h = vld1_u16(x), exponent = vdup_n_u16(0x7C00);
    return widen(vbic_u16(h, vceq_u16(vand_u16(h, exponent), exponent)));
  }
  static F load_f16_ordered(const uint16_t *x) {
    const int16x4_t k = vreinterpret_s16_u16(vld1_u16(x));
    const int16x4_t flip = vand_s16(vshr_n_s16(k, 15), vdup_n_s16(0x7FFF));
    return widen(vreinterpret_u16_s16(veor_s16(k, flip)));
  }
  static void store_f16(uint16_t *y, F v) { vst1_u16(y, narrow(v)); }
  static void store_f16(uint16_t *y, F a, F b) { vst1q_u16(y, vcombine_u16(narrow(a), narrow(b))); }
  static F load(const float *x) { return vld1q_f32(x); }
  static void store(float *y, F v) { vst1q_f32(y, v); }
  static F set1(float x) { return vdupq_n_f32(x); }
  static F add(F a, F b) { return vaddq_f32(a, b); }
  static F sub(F a, F b) { return vsubq_f32(a, b); }
  static F mul(F a, F b) { return vmulq_f32(a, b); }
  static F mul_add(F a, F b, F c) { return vfmaq_f32(c, a, b); }
  static F div(F a, F b) { return vdivq_f32(a, b); }
  static I round(F v) { return vcvtnq_s32_f32(v); }

  static F load_bf16(const uint16_t *x) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(x), 16));
  }
  static I load_bits(const float *x) { return vreinterpretq_s32_f32(vld1q_f32(x)); }
  static void store_bf16(uint16_t *y, I bits) {
    const uint32x4_t u = vreinterpretq_u32_s32(bits);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint32x4_t even = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7FFF)), odd);
    const uint32x4_t quiet = vorrq_u32(u, vdupq_n_u32(0x400000));
    const uint32x4_t rest = vandq_u32(u, vdupq_n_u32(0x7FFFFFFF));
    const uint32x4_t is_nan = vcgtq_u32(rest, vdupq_n_u32(0x7F800000));
    vst1_u16(y, vshrn_n_u32(vbslq_u32(is_nan, quiet, even), 16));
  }

  static K load_keys(const uint16_t *x) { return vreinterpretq_s16_u16(vld1q_u16(x)); }
  static void store_keys(uint16_t *y, K k) { vst1q_u16(y, vreinterpretq_u16_s16(k)); }
  static K set1_key(int16_t x) { return vdupq_n_s16(x); }
  static K magnitude(K k) { return vandq_s16(k, vdupq_n_s16(0x7FFF)); }
  static K order(K k) {
    return veorq_s16(k, vandq_s16(vshrq_n_s16(k, 15), vdupq_n_s16(0x7FFF)));
  }
  static K least(K a, K b) { return vminq_s16(a, b); }
  static K most(K a, K b) { return vmaxq_s16(a, b); }
  static int16_t least_of(K k) { return vminvq_s16(k); }
  static int16_t most_of(K k) { return vmaxvq_s16(k); }

  static F scale(F ideal, F low, F n_steps, uint16_t *to) {
    uint16x4_t h = narrow(ideal);
    // True is -1: one up where the nearest lies below, one down where the last code is too large.
    h = vsub_u16(h, vmovn_u32(vcltq_f32(widen(h), ideal)));
    const F last = add(mul(n_steps, widen(h)), low);
    h = vadd_u16(h, vmovn_u32(vcgtq_f32(last, set1(65504.0f))));
    vst1_u16(to, h);
    return widen(h);
  }
  static F inverse(F scale) {
    const uint32x4_t some = vcgtq_f32(scale, set1(0.0f));
    return vreinterpretq_f32_u32(
        vandq_u32(some, vreinterpretq_u32_f32(vdivq_f32(set1(1.0f), scale))));
  }

  // Each byte shifted to the left by `n`, or to the right by -n.
  static uint8x16_t shift(uint8x16_t u, int n) { return vshlq_u8(u, vdupq_n_s8((int8_t)n)); }

  template <int kBits>
  static void decode(const uint8_t *block, F *v) {
    uint8x16_t c[4];
    if (kBits == 8) {
      for (int i = 0; i < 4; ++i) c[i] = vld1q_u8(block + 16 * i);
    } else {
      for (int i = 0; i < 2; ++i) {
        const uint8x16_t d = vld1q_u8(block + 16 * i);
        c[i] = vandq_u8(d, vdupq_n_u8(15));
        c[i + 2] = vshrq_n_u8(d, 4);
      }
    }
    if (kBits == 5) {
      const uint8x8_t plane = vld1_u8(block + 32);
      const uint8x16_t d = vcombine_u8(plane, vshr_n_u8(plane, 1));
      for (int i = 0; i < 4; ++i) {
        c[i] = vorrq_u8(c[i], vandq_u8(shift(d, 4 - 2 * i), vdupq_n_u8(16)));
      }
    }
    if (kBits == 6) {
      const uint8x16_t d = vld1q_u8(block + 32);
      for (int i = 0; i < 4; ++i) {
        c[i] = vorrq_u8(c[i], vandq_u8(shift(d, 4 - 2 * i), vdupq_n_u8(48)));
      }
    }
    for (int i = 0; i < 4; ++i) {
      const int8x16_t s = vreinterpretq_s8_u8(c[i]);
      const int16x8_t low = vmovl_s8(vget_low_s8(s)), high = vmovl_s8(vget_high_s8(s));
      v[4 * i] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
      v[4 * i + 1] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(low)));
      v[4 * i + 2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
      v[4 * i + 3] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)));
    }
  }

  template <int kBits>
  static void encode(const I *codes, uint8_t *block) {
    uint8x16_t c[4];
    for (int i = 0; i < 4; ++i) {
      const I *d = codes + 4 * i;
      const int16x8_t low = vcombine_s16(vmovn_s32(d[0]), vmovn_s32(d[1]));
      const int16x8_t high = vcombine_s16(vmovn_s32(d[2]), vmovn_s32(d[3]));
      c[i] = vreinterpretq_u8_s8(vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    }
    if (kBits == 8) {
      for (int i = 0; i < 4; ++i) vst1q_u8(block + 16 * i, c[i]);
      return;
    }
    for (int i = 0; i < 2; ++i) vst1q_u8(block + 16 * i, vsliq_n_u8(c[i], c[i + 2], 4));
    if (kBits == 4) return;
    uint8x16_t d = vdupq_n_u8(0);
    for (int i = 0; i < 4; ++i) {
      d = vorrq_u8(d, shift(vandq_u8(c[i], vdupq_n_u8(48)), 2 * i - 4));
    }
    if (kBits == 5) {
      vst1_u8(block + 32, vorr_u8(vget_low_u8(d), vshl_n_u8(vget_high_u8(d), 1)));
    } else {
      vst1q_u8(block + 32, d);
    }
  }
};

}  // namespace

const Codec kNeonCodec = EKV_CODEC(V);
