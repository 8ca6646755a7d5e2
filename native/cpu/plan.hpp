// How large the pieces of a packed matrix are, and what its output may look like.
#pragma once

#include "checks.hpp"
#include "table.hpp"

static constexpr size_t kItem = sizeof(uint16_t);

// Counts of one packed matrix; `n_scales` is the length of a row of scales.
struct Plan {
  size_t n_tokens, n_channels, group, n_scales, ld_codes;
  int bits;
};

static inline bool make_plan(size_t n_tokens, size_t n_channels, int bits, size_t group,
                             bool by_channel, Plan *plan) {
  const bool known = bits == 8 || bits == 6 || bits == 5 || bits == 4;
  if (!known || group == 0 || n_channels > PTRDIFF_MAX / kItem) return false;
  const size_t n_blocks = n_channels / kBlock + (n_channels % kBlock != 0);
  const size_t n_groups = n_channels / group + (n_channels % group != 0);
  *plan = {n_tokens, n_channels, group, by_channel ? n_channels : n_groups,
           n_blocks * 8 * (size_t)bits, bits};
  // By channel there are no more rows of scales than tokens: this bounds both.
  return fits(n_tokens, plan->ld_codes, (ptrdiff_t)plan->ld_codes, 1) &&
         fits(n_tokens, plan->n_scales, (ptrdiff_t)plan->n_scales, kItem);
}

// Whether the output is rows of channels or rows of tokens, without overlap.
static inline bool fits_either(const Plan &plan, ptrdiff_t ldt, ptrdiff_t ldc) {
  return (ldc == 1 && fits(plan.n_tokens, plan.n_channels, ldt, kItem)) ||
         (ldt == 1 && fits(plan.n_channels, plan.n_tokens, ldc, kItem));
}
