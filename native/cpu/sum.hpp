// XXH3-128 of bytes that come piece by piece (xxHash's doc/xxhash_spec.md): no seed, the default
// secret, more than 240 bytes. A row sums the stripes.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "edgellm_native.h"

constexpr size_t kMinSummedBytes = EKV_MIN_SUMMED;  // shorter ones are summed in another way

// The sum of `n_bytes` at `at`, of which ever more are there.
class Sum {
 public:
  Sum(const uint8_t *at, size_t n_bytes);

  // Sums what is whole of the first `n_bytes`.
  void up_to(size_t n_bytes);

  // Sums the rest and writes the sum as its 16 canonical bytes.
  void finish(uint8_t *digest);

 private:
  const uint8_t *at_;
  size_t n_bytes_, n_summed_ = 0;
  alignas(64) uint64_t lanes_[8];
};
