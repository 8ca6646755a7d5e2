// The codec's entry points: checks, one call of a row for each group of tokens, and tiles where the
// output is transposed.
#include <errno.h>

#include "checks.hpp"
#include "edgellm_native.h"
#include "plan.hpp"
#include "table.hpp"

static bool buffers(const Plan &plan, const void *codes, const void *scale, const void *minimum) {
  return codes != nullptr && aligned(scale, kItem) && (plan.bits == 8 || aligned(minimum, kItem));
}

static bool is_empty(const Plan &plan) { return plan.n_tokens == 0 || plan.n_channels == 0; }

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

// The codes and scales from a token, a row of scales and a column on; null stays null.
static Codes from(const Plan &plan, const uint8_t *codes, const uint16_t *scale,
                  const uint16_t *minimum, size_t token, size_t scale_at, size_t channel) {
  const size_t code_at = token * plan.ld_codes + channel / kBlock * 8 * (size_t)plan.bits;
  return {codes + code_at, scale + scale_at, plan.bits == 8 ? nullptr : minimum + scale_at,
          plan.ld_codes, plan.n_scales};
}

// Unpacks tile by tile through a buffer that the first-level cache holds, and transposes each tile.
// Tiles are long in tokens: that is what lies side by side in the output. Slabs of tokens bound how
// many pages are in use at once.
template <typename Unpack>
static void transposed(const Plan &plan, uint16_t *y, size_t ldc, Unpack unpack) {
  constexpr size_t kTokens = 256, kChannels = kBlock, kSlab = 1024;
  alignas(64) uint16_t tile[kTokens * kChannels];
  for (size_t slab = 0; slab < plan.n_tokens; slab += kSlab) {
    const size_t slab_end = slab + smaller(kSlab, plan.n_tokens - slab);
    for (size_t c = 0; c < plan.n_channels; c += kChannels) {
      const size_t n_c = smaller(kChannels, plan.n_channels - c);
      for (size_t t = slab; t < slab_end; t += kTokens) {
        const size_t n_t = smaller(kTokens, slab_end - t);
        unpack(t, n_t, c, n_c, MutableMatrix{tile, kChannels});
        active()->transpose_f16(tile, n_t, n_c, y + c * ldc + t, kChannels, ldc);
      }
    }
  }
}

int ekv_pack_chan(const uint16_t *x, ptrdiff_t ldx, size_t n_tokens, size_t n_channels, int bits,
                  size_t group, uint8_t *codes, uint16_t *scale, uint16_t *minimum) {
  Plan plan;
  if (!make_plan(n_tokens, n_channels, bits, group, true, &plan)) return -EINVAL;
  if (!fits(n_tokens, n_channels, ldx, kItem)) return -EINVAL;
  if (is_empty(plan)) return 0;
  if (!aligned(x, kItem) || !buffers(plan, codes, scale, minimum)) return -EINVAL;
  const Codec *codec = active()->codec;
  for (size_t t = 0, n; t < n_tokens; t += n) {
    n = smaller(group, n_tokens - t);
    codec->pack_chan({x + t * (size_t)ldx, (size_t)ldx}, n, n_channels, bits,
                     {codes, scale, minimum, plan.ld_codes, n_channels});
    codes += n * plan.ld_codes;
    scale += n_channels;
    if (bits != 8) minimum += n_channels;
  }
  return 0;
}

int ekv_pack_tok(const uint16_t *x, ptrdiff_t ldx, size_t n_tokens, size_t n_channels, int bits,
                 size_t group, uint8_t *codes, uint16_t *scale, uint16_t *minimum) {
  Plan plan;
  if (!make_plan(n_tokens, n_channels, bits, group, false, &plan)) return -EINVAL;
  if (!fits(n_tokens, n_channels, ldx, kItem)) return -EINVAL;
  if (is_empty(plan)) return 0;
  if (!aligned(x, kItem) || !buffers(plan, codes, scale, minimum)) return -EINVAL;
  active()->codec->pack_tok({x, (size_t)ldx}, n_tokens, n_channels, bits, group,
                            {codes, scale, minimum, plan.ld_codes, plan.n_scales});
  return 0;
}

int ekv_unpack_chan(const uint8_t *codes, const uint16_t *scale, const uint16_t *minimum,
                    size_t n_tokens, size_t n_channels, int bits, size_t group, uint16_t *y,
                    ptrdiff_t ldt, ptrdiff_t ldc) {
  Plan plan;
  if (!make_plan(n_tokens, n_channels, bits, group, true, &plan)) return -EINVAL;
  if (!fits_either(plan, ldt, ldc)) return -EINVAL;
  if (is_empty(plan)) return 0;
  if (!buffers(plan, codes, scale, minimum) || !aligned(y, kItem)) return -EINVAL;
  const Codec *codec = active()->codec;
  const auto unpack = [&](size_t t0, size_t n_t, size_t c, size_t n_c, MutableMatrix to) {
    for (size_t t = t0, n; t < t0 + n_t; t += n) {
      n = smaller(group - t % group, t0 + n_t - t);
      codec->unpack_chan(from(plan, codes, scale, minimum, t, t / group * n_channels + c, c), n,
                         n_c, bits, {to.at + (t - t0) * to.ld, to.ld});
    }
  };
  if (ldc == 1) {
    unpack(0, n_tokens, 0, n_channels, {y, (size_t)ldt});
  } else {
    transposed(plan, y, (size_t)ldc, unpack);
  }
  return 0;
}

int ekv_unpack_tok(const uint8_t *codes, const uint16_t *scale, const uint16_t *minimum,
                   size_t n_tokens, size_t n_channels, int bits, size_t group, uint16_t *y,
                   ptrdiff_t ldt, ptrdiff_t ldc) {
  Plan plan;
  if (!make_plan(n_tokens, n_channels, bits, group, false, &plan)) return -EINVAL;
  if (!fits_either(plan, ldt, ldc)) return -EINVAL;
  if (is_empty(plan)) return 0;
  if (!buffers(plan, codes, scale, minimum) || !aligned(y, kItem)) return -EINVAL;
  const Codec *codec = active()->codec;
  const auto unpack = [&](size_t t, size_t n_t, size_t c, size_t n_c, MutableMatrix to) {
    codec->unpack_tok(from(plan, codes, scale, minimum, t, t * plan.n_scales, c), n_t, c, n_c,
                      bits, group, to);
  };
  if (ldc == 1) {
    unpack(0, n_tokens, 0, n_channels, {y, (size_t)ldt});
  } else {
    transposed(plan, y, (size_t)ldc, unpack);
  }
  return 0;
}

// Casts: n elements, both buffers aligned to their elements.
template <typename In, typename Out>
static int cast(void (*row)(const In *, size_t, Out *), const In *x, size_t n, Out *y) {
  if (n > PTRDIFF_MAX / sizeof(float)) return -EINVAL;
  if (n == 0) return 0;
  if (!aligned(x, sizeof(In)) || !aligned(y, sizeof(Out))) return -EINVAL;
  row(x, n, y);
  return 0;
}

int ekv_cast_f32_f16(const float *x, size_t n, uint16_t *y) {
  return cast(active()->codec->f32_to_f16, x, n, y);
}

int ekv_cast_f16_f32(const uint16_t *x, size_t n, float *y) {
  return cast(active()->codec->f16_to_f32, x, n, y);
}

int ekv_cast_f32_bf16(const float *x, size_t n, uint16_t *y) {
  return cast(active()->codec->f32_to_bf16, x, n, y);
}

int ekv_cast_bf16_f32(const uint16_t *x, size_t n, float *y) {
  return cast(active()->codec->bf16_to_f32, x, n, y);
}

int ekv_cast_bf16_f16(const uint16_t *x, size_t n, uint16_t *y) {
  return cast(active()->codec->bf16_to_f16, x, n, y);
}
