// One row of kernels per instruction set. Every row gives the same bits as `kScalar`.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Columns of a block of codes; a block takes `kBlock * bits / 8` bytes.
constexpr size_t kBlock = 64;

// A matrix of 16-bit floats, rows `ld` elements apart.
struct Matrix {
  const uint16_t *at;
  size_t ld;
};

struct MutableMatrix {
  uint16_t *at;
  size_t ld;
};

// Packed tokens, rows `ld_codes` bytes and `ld_scale` elements apart; `minimum` is null at 8 bits.
struct Codes {
  const uint8_t *codes;
  const uint16_t *scale, *minimum;
  size_t ld_codes, ld_scale;
};

struct MutableCodes {
  uint8_t *codes;
  uint16_t *scale, *minimum;
  size_t ld_codes, ld_scale;
};

// Sizes, strides and bits were checked by the caller; `n_channels` columns begin at a block's start.
struct Codec {
  // One group of tokens: one row of scales.
  void (*pack_chan)(Matrix x, size_t n_tokens, size_t n_channels, int bits, MutableCodes to);
  void (*unpack_chan)(Codes from, size_t n_tokens, size_t n_channels, int bits, MutableMatrix y);
  // Column `c` of x, y and the codes belongs to group `(first + c) / group` of a row of scales.
  void (*pack_tok)(Matrix x, size_t n_tokens, size_t n_channels, int bits, size_t group,
                   MutableCodes to);
  void (*unpack_tok)(Codes from, size_t n_tokens, size_t first, size_t n_channels, int bits,
                     size_t group, MutableMatrix y);
  void (*f32_to_f16)(const float *x, size_t n, uint16_t *y);
  void (*f16_to_f32)(const uint16_t *x, size_t n, float *y);
  void (*f32_to_bf16)(const float *x, size_t n, uint16_t *y);
  void (*bf16_to_f32)(const uint16_t *x, size_t n, float *y);
  void (*bf16_to_f16)(const uint16_t *x, size_t n, uint16_t *y);
};

struct Kernels {
  const char *name;
  bool (*supported)();
  // Sizes and strides were checked by the dispatcher.
  void (*transpose_f16)(const uint16_t *x, size_t n_tokens, size_t n_channels, uint16_t *y,
                        size_t ldx, size_t ldy);
  // XXH3's lanes after so many stripes of 64 bytes, each with a secret 8 bytes further on.
  void (*sum_stripes)(const uint8_t *x, size_t n, const uint8_t *secret, uint64_t *lanes);
  const Codec *codec;
};

// The row in use: dispatch.cpp.
const Kernels *active();

extern const Kernels kScalar;
extern const Codec kScalarCodec;
#if defined(EKV_AVX2)
extern const Kernels kAvx2;
extern const Codec kAvx2Codec;
#endif
#if defined(EKV_AVX512)
extern const Kernels kAvx512;
extern const Codec kAvx512Codec;
#endif
#if defined(EKV_NEON)
extern const Kernels kNeon;
extern const Codec kNeonCodec;
#endif
