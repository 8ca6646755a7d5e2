// XXH3-128: see sum.hpp.
#include <errno.h>

#include "sum.hpp"

#include "table.hpp"

static constexpr size_t kStripeBytes = 64, kBlockStripes = 16;
static constexpr size_t kBlockBytes = kStripeBytes * kBlockStripes;
static constexpr uint64_t kPrime32[] = {0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D};
static constexpr uint64_t kPrime64[] = {0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9,
                                        0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5};

// Used from eight bytes further on for each stripe of a block, and from fixed places at the end.
alignas(64) static const uint8_t kSecret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
static constexpr size_t kAfterBlock = 128, kLastStripe = 121, kLowHalf = 11, kHighHalf = 117;

static uint64_t load(const uint8_t *at) {
  uint64_t v = 0;
  for (size_t i = 0; i < 8; ++i) v |= (uint64_t)at[i] << (8 * i);
  return v;
}

static void store_big_endian(uint64_t v, uint8_t *to) {
  for (size_t i = 0; i < 8; ++i) to[i] = (uint8_t)(v >> (56 - 8 * i));
}

// The halves of a product of 128 bits, xored. In 32-bit steps: not every target has such integers.
static uint64_t fold(uint64_t a, uint64_t b) {
  const uint64_t a0 = a & 0xFFFFFFFF, a1 = a >> 32, b0 = b & 0xFFFFFFFF, b1 = b >> 32;
  const uint64_t low = a0 * b0, cross = a1 * b0 + (low >> 32);
  const uint64_t other = a0 * b1 + (cross & 0xFFFFFFFF);
  return (other << 32 | (low & 0xFFFFFFFF)) ^ (a1 * b1 + (cross >> 32) + (other >> 32));
}

static uint64_t merged(const uint64_t *lanes, const uint8_t *secret, uint64_t begin) {
  for (size_t i = 0; i < 8; i += 2) {
    begin += fold(lanes[i] ^ load(secret + 8 * i), lanes[i + 1] ^ load(secret + 8 * i + 8));
  }
  begin = (begin ^ begin >> 37) * 0x165667919E3779F9;
  return begin ^ begin >> 32;
}

Sum::Sum(const uint8_t *at, size_t n_bytes)
    : at_(at), n_bytes_(n_bytes),
      lanes_{kPrime32[2], kPrime64[0], kPrime64[1], kPrime64[2],
             kPrime64[3], kPrime32[1], kPrime64[4], kPrime32[0]} {}

void Sum::up_to(size_t n_bytes) {
  if (n_bytes > n_bytes_ - 1) n_bytes = n_bytes_ - 1;  // the last block is never a whole one
  for (; n_summed_ + kBlockBytes <= n_bytes; n_summed_ += kBlockBytes) {
    active()->sum_stripes(at_ + n_summed_, kBlockStripes, kSecret, lanes_);
    for (size_t i = 0; i < 8; ++i) {
      const uint64_t lane = lanes_[i] ^ lanes_[i] >> 47 ^ load(kSecret + kAfterBlock + 8 * i);
      lanes_[i] = lane * kPrime32[0];
    }
  }
}

void Sum::finish(uint8_t *digest) {
  up_to(n_bytes_);
  const size_t n_stripes = (n_bytes_ - 1 - n_summed_) / kStripeBytes;
  active()->sum_stripes(at_ + n_summed_, n_stripes, kSecret, lanes_);
  active()->sum_stripes(at_ + n_bytes_ - kStripeBytes, 1, kSecret + kLastStripe, lanes_);
  store_big_endian(merged(lanes_, kSecret + kHighHalf, ~((uint64_t)n_bytes_ * kPrime64[1])), digest);
  store_big_endian(merged(lanes_, kSecret + kLowHalf, (uint64_t)n_bytes_ * kPrime64[0]), digest + 8);
}

int ekv_xxh3_128(const uint8_t *x, size_t n, uint8_t *digest) {
  if (n < kMinSummedBytes || n > PTRDIFF_MAX || x == nullptr || digest == nullptr) return -EINVAL;
  Sum(x, n).finish(digest);
  return 0;
}
