/* The C ABI of edgellm's kernels. The caller owns every buffer, the library keeps none and allocates
 * none; it never prints, never aborts and never throws. 16-bit floats travel as uint16_t, strides
 * are counted in elements. Functions returning int give 0, or -EINVAL and leave the output alone.
 */
#ifndef EDGELLM_NATIVE_H
#define EDGELLM_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#define EKV_ABI_VERSION 1
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

#ifdef __cplusplus
}
#endif

#endif
