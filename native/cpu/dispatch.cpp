// Chooses the row once, at first use, and checks what a row may rely on.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checks.hpp"
#include "edgellm_native.h"
#include "table.hpp"

static const Kernels *const kAll[] = {
// Best first: the first one that can run is the default.
#if defined(EKV_AVX512)
    &kAvx512,
#endif
#if defined(EKV_AVX2)
    &kAvx2,
#endif
#if defined(EKV_NEON)
    &kNeon,
#endif
    &kScalar,
};

// Null until the first use. Two threads may both choose: they choose the same.
static const Kernels *g_active = nullptr;

static const Kernels *find(const char *name) {
  for (const Kernels *row : kAll) {
    if (strcmp(row->name, name) == 0) return row->supported() ? row : nullptr;
  }
  return nullptr;
}

static const Kernels *choose() {
  const char *name = getenv("EDGELLM_ISA");
  if (name != nullptr && *name != '\0') {
    const Kernels *row = find(name);
    return row != nullptr ? row : &kScalar;
  }
  for (const Kernels *row : kAll) {
    if (row->supported()) return row;
  }
  return &kScalar;
}

const Kernels *active() {
  const Kernels *row = __atomic_load_n(&g_active, __ATOMIC_ACQUIRE);
  if (row == nullptr) {
    row = choose();
    __atomic_store_n(&g_active, row, __ATOMIC_RELEASE);
  }
  return row;
}

int ekv_abi_version(void) { return EKV_ABI_VERSION; }

const char *ekv_isa(void) { return active()->name; }

const char *ekv_isa_at(size_t i) {
  for (const Kernels *row : kAll) {
    if (!row->supported()) continue;
    if (i == 0) return row->name;
    --i;
  }
  return nullptr;
}

int ekv_force_isa(const char *name) {
  const Kernels *row = name == nullptr || *name == '\0' ? choose() : find(name);
  if (row == nullptr) return -EINVAL;
  __atomic_store_n(&g_active, row, __ATOMIC_RELEASE);
  return 0;
}

int ekv_transpose_f16(const uint16_t *x, size_t n_tokens, size_t n_channels, uint16_t *y,
                      ptrdiff_t ldx, ptrdiff_t ldy) {
  constexpr size_t kItem = sizeof(uint16_t);
  if (!fits(n_tokens, n_channels, ldx, kItem) || !fits(n_channels, n_tokens, ldy, kItem)) {
    return -EINVAL;
  }
  if (n_tokens == 0 || n_channels == 0) return 0;
  if (!aligned(x, kItem) || !aligned(y, kItem)) return -EINVAL;
  active()->transpose_f16(x, n_tokens, n_channels, y, (size_t)ldx, (size_t)ldy);
  return 0;
}
