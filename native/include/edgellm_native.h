/* The C ABI of edgellm's kernels. The caller owns every buffer, the library keeps none and allocates
 * none; it never prints, never aborts and never throws. 16-bit floats travel as uint16_t, strides
 * are counted in elements. Functions returning int give 0, or -EINVAL and leave the output alone.
 */
#ifndef EDGELLM_NATIVE_H
#define EDGELLM_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#define EKV_ABI_VERSION 3
#define EKV_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* The version this library was built with; anything but EKV_ABI_VERSION must not be called. */
EKV_API int ekv_abi_version(void);

/* Name of the row in use: "scalar", "avx2", "avx512" or "neon". The first use of the library picks
 * the best one this CPU and OS can run, or the one EDGELLM_ISA names; a name that is unknown or
 * cannot run here means "scalar". */
EKV_API const char *ekv_isa(void);

/* Name of the i-th row that can run here, best first; NULL behind the last, which is "scalar". */
EKV_API const char *ekv_isa_at(size_t i);

/* Use the named row from now on, in every thread; NULL or "" goes back to the choice of first use.
 * -EINVAL where the name is unknown or the row cannot run here. */
EKV_API int ekv_force_isa(const char *name);

/* y[c * ldy + t] = x[t * ldx + c] for t < n_tokens, c < n_channels: [token][channel] to
 * [channel][token] and back. Any sizes; needs ldx >= n_channels, ldy >= n_tokens, and
 * buffers that do not overlap. Gaps between rows of y keep their content. */
EKV_API int ekv_transpose_f16(const uint16_t *x, size_t n_tokens, size_t n_channels, uint16_t *y,
                              ptrdiff_t ldx, ptrdiff_t ldy);

/* The KV codec: x is float16 of n_tokens x n_channels, bits are 8, 6, 5 or 4, group >= 1. Any sizes.
 * edgellm/kernels/README.md is the format and the arithmetic; every row gives the same bits.
 *
 *   codes    n_tokens rows of ceil(n_channels / 64) * 8 * bits bytes, dense
 *   scale    float16, dense; _chan: ceil(n_tokens / group) rows of n_channels,
 *            _tok: n_tokens rows of ceil(n_channels / group)
 *   minimum  like scale; not touched at 8 bits, where it may be NULL
 *
 * Packing counts infinities and NaNs as zero; unpacking does so with scale and minimum. Buffers do
 * not overlap, and pointers to 16-bit elements are even, here and above. */
EKV_API int ekv_pack_chan(const uint16_t *x, ptrdiff_t ldx, size_t n_tokens, size_t n_channels,
                          int bits, size_t group, uint8_t *codes, uint16_t *scale,
                          uint16_t *minimum);
EKV_API int ekv_pack_tok(const uint16_t *x, ptrdiff_t ldx, size_t n_tokens, size_t n_channels,
                         int bits, size_t group, uint8_t *codes, uint16_t *scale,
                         uint16_t *minimum);

/* Writes y[t * ldt + c * ldc]; one of the two is 1: ldc for rows of channels (ldt >= n_channels),
 * ldt for rows of tokens (ldc >= n_tokens). Gaps keep their content. */
EKV_API int ekv_unpack_chan(const uint8_t *codes, const uint16_t *scale, const uint16_t *minimum,
                            size_t n_tokens, size_t n_channels, int bits, size_t group,
                            uint16_t *y, ptrdiff_t ldt, ptrdiff_t ldc);
EKV_API int ekv_unpack_tok(const uint8_t *codes, const uint16_t *scale, const uint16_t *minimum,
                           size_t n_tokens, size_t n_channels, int bits, size_t group, uint16_t *y,
                           ptrdiff_t ldt, ptrdiff_t ldc);

/* The same of n packed matrices of one shape: the arrays of each lie step bytes (an even number)
 * behind those of the one before, and the i-th is written to ys[i]. */
EKV_API int ekv_unpack_chan_each(size_t n, size_t step, const uint8_t *codes,
                                 const uint16_t *scale, const uint16_t *minimum, size_t n_tokens,
                                 size_t n_channels, int bits, size_t group, uint16_t *const *ys,
                                 ptrdiff_t ldt, ptrdiff_t ldc);
EKV_API int ekv_unpack_tok_each(size_t n, size_t step, const uint8_t *codes, const uint16_t *scale,
                                const uint16_t *minimum, size_t n_tokens, size_t n_channels,
                                int bits, size_t group, uint16_t *const *ys, ptrdiff_t ldt,
                                ptrdiff_t ldc);

/* Casts of n elements, rounding to nearest, ties to even. NaNs stay NaNs with their sign and first
 * payload bits and become quiet, except that bf16_f32 moves bits. float pointers are aligned to 4. */
EKV_API int ekv_cast_f32_f16(const float *x, size_t n, uint16_t *y);
EKV_API int ekv_cast_f16_f32(const uint16_t *x, size_t n, float *y);
EKV_API int ekv_cast_f32_bf16(const float *x, size_t n, uint16_t *y);
EKV_API int ekv_cast_bf16_f32(const uint16_t *x, size_t n, float *y);
EKV_API int ekv_cast_bf16_f16(const uint16_t *x, size_t n, uint16_t *y);

#ifdef __cplusplus
}
#endif

#endif
