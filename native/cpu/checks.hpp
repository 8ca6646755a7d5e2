// What the entry points ask of sizes and pointers before a row runs.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Whether `n_rows` rows of `n_cols` elements, `ld` apart, have offsets that a ptrdiff_t can hold.
static inline bool fits(size_t n_rows, size_t n_cols, ptrdiff_t ld, size_t item_bytes) {
  if (ld < 0 || (size_t)ld < n_cols || (size_t)ld > PTRDIFF_MAX / item_bytes) return false;
  size_t bytes;
  return !__builtin_mul_overflow(n_rows, (size_t)ld * item_bytes, &bytes) && bytes <= PTRDIFF_MAX;
}

// Whether `at` is the address of an element; a row may read and write two or four bytes at once.
static inline bool aligned(const void *at, size_t item_bytes) {
  return at != nullptr && (uintptr_t)at % item_bytes == 0;
}
