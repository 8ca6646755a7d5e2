// NEON row. No C++ headers here, for the reason given in avx2.cpp.
#include <arm_neon.h>

#include "table.hpp"

// Advanced SIMD belongs to the aarch64 base, so there is nothing to ask the machine.
static bool supported() { return true; }

static inline uint16x8_t trn1_u64(uint16x8_t a, uint16x8_t b) {
  return vreinterpretq_u16_u64(vtrn1q_u64(vreinterpretq_u64_u16(a), vreinterpretq_u64_u16(b)));
}

static inline uint16x8_t trn2_u64(uint16x8_t a, uint16x8_t b) {
  return vreinterpretq_u16_u64(vtrn2q_u64(vreinterpretq_u64_u16(a), vreinterpretq_u64_u16(b)));
}

// 8 tokens x 8 channels in three steps of 16, 32 and 64 bits.
static inline void tile_8x8(const uint16_t *x, uint16_t *y, size_t ldx, size_t ldy) {
  uint16x8_t r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = vld1q_u16(x + i * ldx);
  for (int i = 0; i < 8; i += 2) {
    s[i] = vtrn1q_u16(r[i], r[i + 1]);
    s[i + 1] = vtrn2q_u16(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; ++j) {
      const uint32x4_t a = vreinterpretq_u32_u16(s[i + j]);
      const uint32x4_t b = vreinterpretq_u32_u16(s[i + j + 2]);
      r[i + j] = vreinterpretq_u16_u32(vtrn1q_u32(a, b));
      r[i + j + 2] = vreinterpretq_u16_u32(vtrn2q_u32(a, b));
    }
  }
  for (int j = 0; j < 4; ++j) {
    vst1q_u16(y + j * ldy, trn1_u64(r[j], r[j + 4]));
    vst1q_u16(y + (j + 4) * ldy, trn2_u64(r[j], r[j + 4]));
  }
}

static void transpose_f16(const uint16_t *x, size_t n_tokens, size_t n_channels, uint16_t *y,
                          size_t ldx, size_t ldy) {
  const size_t t_end = n_tokens - n_tokens % 32, c_end = n_channels - n_channels % 8;
  // Four tiles beside each other fill the cache lines they write.
  for (size_t t = 0; t < t_end; t += 32) {
    for (size_t c = 0; c < c_end; c += 8) {
      for (size_t i = 0; i < 32; i += 8) {
        tile_8x8(x + (t + i) * ldx + c, y + c * ldy + t + i, ldx, ldy);
      }
    }
  }
  kScalar.transpose_f16(x + c_end, t_end, n_channels - c_end, y + c_end * ldy, ldx, ldy);
  kScalar.transpose_f16(x + t_end * ldx, n_tokens - t_end, n_channels, y + t_end, ldx, ldy);
}

static void sum_stripes(const uint8_t *x, size_t n, const uint8_t *secret, uint64_t *lanes) {
  uint64x2_t sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = vld1q_u64(lanes + 2 * i);
  for (; n > 0; --n, x += 64, secret += 8) {
    for (int i = 0; i < 4; ++i) {
      const uint64x2_t items = vreinterpretq_u64_u8(vld1q_u8(x + 16 * i));
      const uint64x2_t keys = veorq_u64(items, vreinterpretq_u64_u8(vld1q_u8(secret + 16 * i)));
      sums[i] = vaddq_u64(sums[i], vextq_u64(items, items, 1));
      sums[i] = vmlal_u32(sums[i], vmovn_u64(keys), vshrn_n_u64(keys, 32));
    }
  }
  for (int i = 0; i < 4; ++i) vst1q_u64(lanes + 2 * i, sums[i]);
}

const Kernels kNeon = {"neon", supported, transpose_f16, sum_stripes, &kNeonCodec};
