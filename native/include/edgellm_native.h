/* The C ABI of edgellm's kernels. The caller owns every buffer, the library keeps none and allocates
 * none; it never prints, never aborts and never throws. 16-bit floats travel as uint16_t, strides
 * are counted in elements. Functions returning int give 0, or -EINVAL and leave the output alone.
 */
#ifndef EDGELLM_NATIVE_H
#define EDGELLM_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#define EKV_ABI_VERSION 4
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

/* XXH3-128 of n >= EKV_MIN_SUMMED bytes, no seed, default secret, as its 16 canonical bytes. */
#define EKV_MIN_SUMMED 241
EKV_API int ekv_xxh3_128(const uint8_t *x, size_t n, uint8_t *digest);

#if !defined(_WIN32)
/* What a run of a file holds: bytes as they belong to y; a float16 matrix that is to be transposed;
 * or some exact rows of a float16 matrix and the rest of them packed, by channel or by token. */
enum { EKV_PLAIN, EKV_TURNED, EKV_CHANNELS, EKV_TOKENS };

/* A run, and where what it holds is written. Zeros follow it up to a multiple of 64. A plain run has
 * no fields from `bits` on, a turned one only n_tokens, n_channels and ldc. */
typedef struct {
  int64_t offset;   /* of its first byte in the file */
  uint64_t n_bytes; /* EKV_MIN_SUMMED or more */
  uint8_t sum[16];  /* its ekv_xxh3_128 */
  uint64_t y;       /* the address: n_bytes, or a matrix as ekv_unpack_* writes it */
  int32_t kind;
  int32_t bits;
  uint64_t n_exact; /* rows that are not packed, before the n_tokens that are */
  uint64_t n_tokens, n_channels, group;
  uint64_t scale, minimum, codes; /* offsets in the run, multiples of 64; zeros fill the gaps */
  int64_t ldt, ldc;
} EkvRun;

/* Takes runs, reads each, and writes it once all of it was checked: its sum, the zeros, that nothing
 * which is exact, or which a code of its group could mean, is infinite or a NaN. Threads that share
 * the work call it with the same `next`, which begins as 0, and each with room for the longest run
 * that is not plain; plain ones are read to where they belong. Every call takes a run at least.
 *
 * 0: none is left to take. 1: more than max_ms have passed; call again. -EBADMSG: a run is not what
 * it should be, or cannot be read. -EINVAL: it says what cannot be. After these none is left. */
EKV_API int ekv_fill(int fd, const EkvRun *runs, size_t n, size_t *next, uint8_t *room,
                     size_t room_bytes, int max_ms);
#endif

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
