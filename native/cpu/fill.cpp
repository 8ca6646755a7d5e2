// Filling memory from runs of a file: each is read, summed, checked and unpacked while it is in a cache.
// Here alone the library reads a file: what needs a processor and what needs a disk take turns too
// quickly for a caller to come between.
#define _FILE_OFFSET_BITS 64  // of 32-bit systems
#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "checks.hpp"
#include "edgellm_native.h"
#include "plan.hpp"
#include "sum.hpp"
#include "table.hpp"

static_assert(sizeof(EkvRun) == 120, "callers pack it without gaps");

static constexpr size_t kAlign = 64;
// Read with one call. Half of a small second-level cache; with larger pieces the system reads ahead in
// steps so long that the disk has pauses between them.
static constexpr size_t kPieceBytes = 512 * 1024;
// The largest float16, and the largest scale whose 128 steps stay below it.
static constexpr float kMax = 65504.0f;
static constexpr uint16_t kMaxScale = 0x5FFF, kExponent = 0x7C00, kWithoutSign = 0x7FFF;

static bool read_all(int fd, uint8_t *to, size_t n, int64_t at) {
  while (n > 0) {
    const ssize_t n_read = pread(fd, to, n, (off_t)at);
    if (n_read < 0 && errno == EINTR) continue;
    if (n_read <= 0) return false;
    to += n_read, at += n_read, n -= (size_t)n_read;
  }
  return true;
}

static bool is_zero(const uint8_t *from, const uint8_t *to) {
  uint8_t any = 0;
  for (; from < to; ++from) any |= *from;
  return any == 0;
}

// Reads a run and the padding after it, and holds both against what they should be.
static bool take(int fd, const EkvRun &run, uint8_t *to) {
  Sum sum(to, run.n_bytes);
  for (size_t at = 0, n; at < run.n_bytes; at += n) {
    n = run.n_bytes - at < kPieceBytes ? run.n_bytes - at : kPieceBytes;
    if (!read_all(fd, to + at, n, run.offset + (int64_t)at)) return false;
    sum.up_to(at + n);
  }
  uint8_t digest[sizeof run.sum], padding[kAlign];
  sum.finish(digest);
  const size_t n_padding = (kAlign - run.n_bytes % kAlign) % kAlign;
  if (!read_all(fd, padding, n_padding, run.offset + (int64_t)run.n_bytes)) return false;
  return memcmp(digest, run.sum, sizeof digest) == 0 && is_zero(padding, padding + n_padding);
}

static bool are_finite(const uint16_t *halves, size_t n) {
  bool fine = true;
  for (size_t i = 0; i < n; ++i) fine &= (halves[i] & kExponent) != kExponent;
  return fine;
}

// Whether every code means a finite float16: they run along a line, so its two ends bound all of them.
static bool codes_are_finite(const uint16_t *scale, const uint16_t *minimum, size_t n, int bits) {
  bool fine = true;
  if (minimum == nullptr) {
    for (size_t i = 0; i < n; ++i) fine &= (scale[i] & kWithoutSign) <= kMaxScale;
    return fine;
  }
  constexpr size_t kAtOnce = 256;
  float steps[kAtOnce], lows[kAtOnce];
  const float n_steps = (float)((1 << bits) - 1);
  for (size_t at = 0, n_here; at < n; at += n_here) {
    n_here = n - at < kAtOnce ? n - at : kAtOnce;
    active()->codec->f16_to_f32(scale + at, n_here, steps);
    active()->codec->f16_to_f32(minimum + at, n_here, lows);
    for (size_t i = 0; i < n_here; ++i) {
      const float high = lows[i] + steps[i] * n_steps;  // false for NaNs
      fine &= __builtin_fabsf(lows[i]) <= kMax && __builtin_fabsf(high) <= kMax;
    }
  }
  return fine;
}

// A packed run: pieces that follow each other, each at a multiple of 64.
struct Pieces {
  Plan plan;
  size_t exact_end, scale_bytes, minimum_bytes;
};

static bool make_pieces(const EkvRun &run, Pieces *pieces) {
  Plan *plan = &pieces->plan;
  const bool by_channel = run.kind == EKV_CHANNELS;
  if (!make_plan(run.n_tokens, run.n_channels, run.bits, run.group, by_channel, plan)) return false;
  if (run.n_exact > PTRDIFF_MAX - run.n_tokens) return false;
  Plan whole = *plan;
  whole.n_tokens += run.n_exact;
  if (!fits_either(whole, run.ldt, run.ldc)) return false;
  const size_t n_rows = by_channel ? run.n_tokens / run.group + (run.n_tokens % run.group != 0)
                                   : run.n_tokens;
  pieces->exact_end = run.n_exact * run.n_channels * kItem;
  pieces->scale_bytes = n_rows * plan->n_scales * kItem;
  pieces->minimum_bytes = run.bits == 8 ? 0 : pieces->scale_bytes;
  const bool even = (run.scale | run.minimum | run.codes) % kAlign == 0;
  return even && run.codes <= run.n_bytes && pieces->exact_end <= run.scale &&
         run.scale <= run.minimum && pieces->scale_bytes <= run.minimum - run.scale &&
         run.minimum <= run.codes && pieces->minimum_bytes <= run.codes - run.minimum &&
         run.n_tokens * plan->ld_codes == run.n_bytes - run.codes;
}

static void copy_exact(const EkvRun &run, const uint16_t *exact, uint16_t *y) {
  for (size_t t = 0; t < run.n_exact; ++t) {
    for (size_t c = 0; c < run.n_channels; ++c) {
      y[(ptrdiff_t)t * run.ldt + (ptrdiff_t)c * run.ldc] = exact[t * run.n_channels + c];
    }
  }
}

static int unpack(const EkvRun &run, const Pieces &pieces, const uint8_t *from) {
  const uint16_t *exact = (const uint16_t *)from;
  const uint16_t *scale = (const uint16_t *)(from + run.scale);
  const uint16_t *minimum = run.bits == 8 ? nullptr : (const uint16_t *)(from + run.minimum);
  if (!is_zero(from + pieces.exact_end, from + run.scale) ||
      !is_zero(from + run.scale + pieces.scale_bytes, from + run.minimum) ||
      !is_zero(from + run.minimum + pieces.minimum_bytes, from + run.codes) ||
      !are_finite(exact, pieces.exact_end / kItem) ||
      !codes_are_finite(scale, minimum, pieces.scale_bytes / kItem, run.bits)) {
    return -EBADMSG;
  }
  uint16_t *y = (uint16_t *)(uintptr_t)run.y;
  copy_exact(run, exact, y);
  const auto rest = run.kind == EKV_CHANNELS ? ekv_unpack_chan : ekv_unpack_tok;
  return rest(from + run.codes, scale, minimum, run.n_tokens, run.n_channels, run.bits, run.group,
              y + (ptrdiff_t)run.n_exact * run.ldt, run.ldt, run.ldc);
}

static bool is_matrix(const EkvRun &run) {
  return fits(run.n_tokens, run.n_channels, (ptrdiff_t)run.n_channels, kItem) &&
         run.n_tokens * run.n_channels * kItem == run.n_bytes &&
         fits(run.n_channels, run.n_tokens, run.ldc, kItem);
}

static int fill(int fd, const EkvRun &run, uint8_t *room, size_t room_bytes) {
  uint8_t *y = (uint8_t *)(uintptr_t)run.y;
  if (run.n_bytes < kMinSummedBytes || run.n_bytes > PTRDIFF_MAX || y == nullptr) return -EINVAL;
  const uint64_t counts = run.n_exact | run.n_tokens | run.n_channels | run.group;
  if (counts > PTRDIFF_MAX) return -EINVAL;  // longer than a size on 32-bit systems
  if (run.offset < 0 || run.offset > INT64_MAX - (int64_t)run.n_bytes - (int64_t)kAlign) return -EINVAL;
  if (run.kind == EKV_PLAIN) return take(fd, run, y) ? 0 : -EBADMSG;
  if (!aligned(y, kItem) || !aligned(room, kItem) || run.n_bytes > room_bytes) return -EINVAL;
  if (run.kind == EKV_TURNED) {
    if (!is_matrix(run)) return -EINVAL;
    if (!take(fd, run, room)) return -EBADMSG;
    active()->transpose_f16((const uint16_t *)room, run.n_tokens, run.n_channels, (uint16_t *)y,
                            run.n_channels, (size_t)run.ldc);
    return 0;
  }
  Pieces pieces;
  const bool is_packed = run.kind == EKV_CHANNELS || run.kind == EKV_TOKENS;
  if (!is_packed || !make_pieces(run, &pieces)) return -EINVAL;
  return take(fd, run, room) ? unpack(run, pieces, room) : -EBADMSG;
}

static int64_t now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int ekv_fill(int fd, const EkvRun *runs, size_t n, size_t *next, uint8_t *room, size_t room_bytes,
             int max_ms) {
  const int64_t end_ms = now_ms() + max_ms;
  for (;;) {
    const size_t i = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
    if (i >= n) return 0;
    const int status = fill(fd, runs[i], room, room_bytes);
    if (status != 0) {
      __atomic_store_n(next, n, __ATOMIC_RELAXED);
      return status;
    }
    if (now_ms() >= end_ms) return 1;
  }
}
