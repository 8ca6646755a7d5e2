// The reference row: plain loops at the ABI's floor. What it gives is what every other row must give.
#include <string.h>

#include "table.hpp"

static bool supported() { return true; }

static void transpose_f16(const uint16_t *x, size_t n_tokens, size_t n_channels, uint16_t *y,
                          size_t ldx, size_t ldy) {
  // Blocks of 32 x 32 keep both sides in the first-level cache; the order changes no bit.
  constexpr size_t kBlock = 32;
  for (size_t t0 = 0; t0 < n_tokens; t0 += kBlock) {
    const size_t t1 = n_tokens - t0 < kBlock ? n_tokens : t0 + kBlock;
    for (size_t c0 = 0; c0 < n_channels; c0 += kBlock) {
      const size_t c1 = n_channels - c0 < kBlock ? n_channels : c0 + kBlock;
      for (size_t c = c0; c < c1; ++c) {
        for (size_t t = t0; t < t1; ++t) y[c * ldy + t] = x[t * ldx + c];
      }
    }
  }
}

static uint64_t load(const uint8_t *x) {
  uint64_t v;
  memcpy(&v, x, sizeof v);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  v = __builtin_bswap64(v);
#endif
  return v;
}

static void sum_stripes(const uint8_t *x, size_t n, const uint8_t *secret, uint64_t *lanes) {
  for (; n > 0; --n, x += 64, secret += 8) {
    for (size_t i = 0; i < 8; ++i) {
      const uint64_t item = load(x + 8 * i), key = item ^ load(secret + 8 * i);
      lanes[i ^ 1] += item;
      lanes[i] += (key & 0xFFFFFFFF) * (key >> 32);
    }
  }
}

const Kernels kScalar = {"scalar", supported, transpose_f16, sum_stripes, &kScalarCodec};
