// One row of kernels per instruction set. Every row gives the same bits as `kScalar`.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct Kernels {
  const char *name;
  bool (*supported)();
  // Sizes and strides were checked by the dispatcher.
  void (*transpose_f16)(const uint16_t *x, size_t n_tokens, size_t n_channels, uint16_t *y,
                        size_t ldx, size_t ldy);
};

extern const Kernels kScalar;
#if defined(EKV_AVX2)
extern const Kernels kAvx2;
#endif
#if defined(EKV_AVX512)
extern const Kernels kAvx512;
#endif
#if defined(EKV_NEON)
extern const Kernels kNeon;
#endif
