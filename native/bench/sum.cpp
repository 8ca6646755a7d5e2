// The ladder's part for sums: what every row makes of bytes, beside the scalar one.
#include <array>
#include <cstdio>
#include <cstring>

#include "ladder.hpp"

namespace {

using Digest = std::array<uint8_t, 16>;

Digest sum(const std::string &row, const std::vector<uint8_t> &x) {
  Digest digest{};
  if (ekv_force_isa(row.c_str()) != 0 || ekv_xxh3_128(x.data(), x.size(), digest.data()) != 0) {
    digest.fill(0xA5);
  }
  return digest;
}

std::vector<uint8_t> bytes(size_t n) {
  const std::vector<uint16_t> halves = noise(n / 2 + 1);
  std::vector<uint8_t> x(n);
  std::memcpy(x.data(), halves.data(), n);
  return x;
}

}  // namespace

// Around a stripe of 64 and a block of 1,024 bytes every remainder counts.
int check_sums() {
  int n_wrong = 0;
  for (size_t n = EKV_MIN_SUMMED; n < 2600; ++n) {
    const std::vector<uint8_t> x = bytes(n);
    const Digest expected = sum("scalar", x);
    for (const std::string &row : rows()) {
      if (sum(row, x) == expected) continue;
      std::printf("%s sums %zu bytes to something else\n", row.c_str(), n);
      ++n_wrong;
    }
  }
  return n_wrong;
}

void measure_sums(size_t n_bytes) {
  const std::vector<uint8_t> x = bytes(n_bytes);
  std::vector<uint8_t> y(n_bytes);
  const double copy = best_gb_per_s(n_bytes, [&] { std::memcpy(y.data(), x.data(), n_bytes); });
  std::printf("xxh3_128 of %zu bytes, best of 20\n", n_bytes);
  std::printf("  %-8s %7.2f GB/s\n", "memcpy", copy);
  for (const std::string &row : rows()) {
    const double rate = best_gb_per_s(n_bytes, [&] { sum(row, x); });
    std::printf("  %-8s %7.2f GB/s  %.2f x memcpy\n", row.c_str(), rate, rate / copy);
  }
}
