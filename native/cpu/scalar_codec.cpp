// The reference of the codec and the casts: plain loops and integer arithmetic on the floats' bits.
#include <string.h>

#include "table.hpp"

static float from_bits(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

static uint32_t to_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}

static float half_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7FFF;
  if (rest > 0x7C00) return from_bits(sign | 0x7FC00000 | rest << 13);
  if (rest == 0x7C00) return from_bits(sign | 0x7F800000);
  if (rest >= 0x0400) return from_bits(sign | ((rest << 13) + (112u << 23)));
  return from_bits(sign | to_bits((float)rest * 0x1p-24f));
}

// `v / 2^shift`, to nearest, ties to even; shift > 0.
static uint32_t shift_even(uint32_t v, uint32_t shift) {
  return (v + ((1u << (shift - 1)) - 1) + (v >> shift & 1)) >> shift;
}

static uint16_t float_to_half(float f) {
  const uint32_t u = to_bits(f), rest = u & 0x7FFFFFFF, sign = u >> 16 & 0x8000;
  if (rest > 0x7F800000) return (uint16_t)(sign | 0x7E00 | (rest >> 13 & 0x3FF));
  if (rest >= 0x47800000) return (uint16_t)(sign | 0x7C00);
  // A carry out of the mantissa goes on into the exponent, up to infinity.
  if (rest >= 0x38800000) return (uint16_t)(sign | (shift_even(rest, 13) - (112u << 10)));
  const uint32_t exponent = rest >> 23;
  if (exponent < 102) return (uint16_t)sign;  // below half of the smallest
  return (uint16_t)(sign | shift_even((rest & 0x7FFFFF) | 0x800000, 126 - exponent));
}

static float finite(uint16_t h) { return (h & 0x7C00) == 0x7C00 ? 0.0f : half_to_float(h); }

// To the nearest integer, ties to even, for values of the codec's size.
static int32_t round_even(float f) { return (int32_t)(f + 0x1.8p23f - 0x1.8p23f); }

struct Range {
  float low, high;  // of 8 bits: zero, and the largest magnitude
};

static void widen(Range *range, float value, int bits) {
  if (bits == 8) value = value < 0 ? -value : value;
  if (bits != 8 && value < range->low) range->low = value;
  if (value > range->high) range->high = value;
}

struct Step {
  uint16_t scale;
  float low, inverse;
};

// The smallest float16 that spans the range in its steps, or the one below it where the last code
// would leave float16's range. Adding zero turns -0 into 0.
static Step step_of(Range range, int bits) {
  const float n_steps = bits == 8 ? 127.0f : (float)((1 << bits) - 1);
  const float low = range.low + 0.0f, ideal = ((range.high - low) + 0.0f) / n_steps;
  uint16_t scale = float_to_half(ideal);
  if (half_to_float(scale) < ideal) ++scale;
  if (n_steps * half_to_float(scale) + low > 65504.0f) --scale;
  return {scale, low, scale == 0 ? 0.0f : 1.0f / half_to_float(scale)};
}

static uint8_t code_of(float value, float low, float inverse) {
  return (uint8_t)round_even((value - low) * inverse);
}

// Where the codes of a token's column lie: OR-ing keeps what is there, so blocks begin as zero.
static void put(uint8_t *row, size_t c, int bits, uint8_t code) {
  uint8_t *block = row + c / kBlock * 8 * (size_t)bits;
  const size_t e = c % kBlock;
  if (bits == 8) {
    block[e] = code;
    return;
  }
  block[e % 32] |= (uint8_t)((code & 15) << (e / 32 * 4));
  if (bits == 5) block[32 + e % 8] |= (uint8_t)((code >> 4) << (e / 8));
  if (bits == 6) block[32 + e % 16] |= (uint8_t)((code >> 4) << (e / 16 * 2));
}

static float get(const uint8_t *row, size_t c, int bits) {
  const uint8_t *block = row + c / kBlock * 8 * (size_t)bits;
  const size_t e = c % kBlock;
  if (bits == 8) return (float)(int8_t)block[e];
  int code = block[e % 32] >> (e / 32 * 4) & 15;
  if (bits == 5) code |= (block[32 + e % 8] >> (e / 8) & 1) << 4;
  if (bits == 6) code |= (block[32 + e % 16] >> (e / 16 * 2) & 3) << 4;
  return (float)code;
}

static size_t code_bytes(size_t n_channels, int bits) {
  return (n_channels + kBlock - 1) / kBlock * 8 * (size_t)bits;
}

static void pack_chan(Matrix x, size_t n_tokens, size_t n_channels, int bits, MutableCodes to) {
  for (size_t t = 0; t < n_tokens; ++t) {
    memset(to.codes + t * to.ld_codes, 0, code_bytes(n_channels, bits));
  }
  for (size_t c = 0; c < n_channels; ++c) {
    const float first = finite(x.at[c]);
    Range range = {bits == 8 ? 0.0f : first, bits == 8 ? 0.0f : first};
    for (size_t t = 0; t < n_tokens; ++t) widen(&range, finite(x.at[t * x.ld + c]), bits);
    const Step step = step_of(range, bits);
    to.scale[c] = step.scale;
    if (bits != 8) to.minimum[c] = float_to_half(step.low);
    for (size_t t = 0; t < n_tokens; ++t) {
      const uint8_t code = code_of(finite(x.at[t * x.ld + c]), step.low, step.inverse);
      put(to.codes + t * to.ld_codes, c, bits, code);
    }
  }
}

static void pack_tok(Matrix x, size_t n_tokens, size_t n_channels, int bits, size_t group,
                     MutableCodes to) {
  for (size_t t = 0; t < n_tokens; ++t) {
    const uint16_t *row = x.at + t * x.ld;
    uint8_t *codes = to.codes + t * to.ld_codes;
    memset(codes, 0, code_bytes(n_channels, bits));
    for (size_t c0 = 0, g = 0; c0 < n_channels; c0 += group, ++g) {
      const size_t c1 = n_channels - c0 < group ? n_channels : c0 + group;
      const float first = finite(row[c0]);
      Range range = {bits == 8 ? 0.0f : first, bits == 8 ? 0.0f : first};
      for (size_t c = c0; c < c1; ++c) widen(&range, finite(row[c]), bits);
      const Step step = step_of(range, bits);
      to.scale[t * to.ld_scale + g] = step.scale;
      if (bits != 8) to.minimum[t * to.ld_scale + g] = float_to_half(step.low);
      for (size_t c = c0; c < c1; ++c) {
        put(codes, c, bits, code_of(finite(row[c]), step.low, step.inverse));
      }
      if (n_channels - c0 <= group) break;  // c0 + group may not fit a size_t
    }
  }
}

static void unpack_chan(Codes from, size_t n_tokens, size_t n_channels, int bits,
                        MutableMatrix y) {
  for (size_t t = 0; t < n_tokens; ++t) {
    for (size_t c = 0; c < n_channels; ++c) {
      const float low = bits == 8 ? 0.0f : finite(from.minimum[c]);
      const float product = finite(from.scale[c]) * get(from.codes + t * from.ld_codes, c, bits);
      y.at[t * y.ld + c] = float_to_half(bits == 8 ? product : product + low);
    }
  }
}

static void unpack_tok(Codes from, size_t n_tokens, size_t first, size_t n_channels, int bits,
                       size_t group, MutableMatrix y) {
  for (size_t t = 0; t < n_tokens; ++t) {
    for (size_t c = 0; c < n_channels; ++c) {
      const size_t g = t * from.ld_scale + (first + c) / group;
      const float low = bits == 8 ? 0.0f : finite(from.minimum[g]);
      const float product = finite(from.scale[g]) * get(from.codes + t * from.ld_codes, c, bits);
      y.at[t * y.ld + c] = float_to_half(bits == 8 ? product : product + low);
    }
  }
}

static void f32_to_f16(const float *x, size_t n, uint16_t *y) {
  for (size_t i = 0; i < n; ++i) y[i] = float_to_half(x[i]);
}

static void f16_to_f32(const uint16_t *x, size_t n, float *y) {
  for (size_t i = 0; i < n; ++i) y[i] = half_to_float(x[i]);
}

static void f32_to_bf16(const float *x, size_t n, uint16_t *y) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t u = to_bits(x[i]);
    y[i] = (uint16_t)((u & 0x7FFFFFFF) > 0x7F800000 ? u >> 16 | 0x40 : shift_even(u, 16));
  }
}

static void bf16_to_f32(const uint16_t *x, size_t n, float *y) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t u = (uint32_t)x[i] << 16;  // by its bits: a float in a register may be quieted
    memcpy(y + i, &u, sizeof u);
  }
}

static void bf16_to_f16(const uint16_t *x, size_t n, uint16_t *y) {
  for (size_t i = 0; i < n; ++i) y[i] = float_to_half(from_bits((uint32_t)x[i] << 16));
}

const Codec kScalarCodec = {pack_chan,  unpack_chan, pack_tok,    unpack_tok, f32_to_f16,
                            f16_to_f32, f32_to_bf16, bf16_to_f32, bf16_to_f16};
