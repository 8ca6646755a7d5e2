// Ladder: checks every row that can run here against the scalar row, then prints GB/s beside memcpy.
//
//   ladder [--check [CASES]]     --check stops after the comparison; exit 1 when a bit differs
//
// CASES is a file of inputs with what numpy, the definition, makes of them (golden.cpp says how).
// Buffers are exactly as large as the call may touch, so an AddressSanitizer build of this program
// proves the bounds of every row.
#include <cstdio>
#include <cstring>

#include "ladder.hpp"

namespace {

constexpr uint16_t kUntouched = 0xA5A5;

struct Shape {
  size_t n_tokens, n_channels, gap_x, gap_y;
};

std::vector<uint16_t> transpose(const std::string &row, const Shape &s) {
  const size_t ldx = s.n_channels + s.gap_x, ldy = s.n_tokens + s.gap_y;
  const std::vector<uint16_t> x = noise(extent(s.n_tokens, s.n_channels, ldx));
  std::vector<uint16_t> y(extent(s.n_channels, s.n_tokens, ldy), kUntouched);
  if (ekv_force_isa(row.c_str()) != 0 ||
      ekv_transpose_f16(x.data(), s.n_tokens, s.n_channels, y.data(), (ptrdiff_t)ldx,
                        (ptrdiff_t)ldy) != 0) {
    y.assign(1, 0);  // no right answer has this length and content: reported as a difference
  }
  return y;
}

}  // namespace

// The rows differ in their tiles, so every remainder of the largest tile (32 x 8) is tried.
int check_transpose() {
  std::vector<Shape> shapes;
  for (size_t t : {0u, 1u, 7u, 31u, 32u, 33u, 63u, 64u, 65u, 96u, 100u}) {
    for (size_t c = 0; c <= 17; ++c) shapes.push_back({t, c, t % 3, c % 5});
  }
  for (size_t t = 0; t <= 66; ++t) shapes.push_back({t, 24, 0, 3});
  for (size_t c : {64u, 80u, 192u, 256u, 1024u}) shapes.push_back({257, c, 8, 7});
  int n_wrong = 0;
  for (const Shape &s : shapes) {
    const std::vector<uint16_t> expected = transpose("scalar", s);
    for (const std::string &row : rows()) {
      if (transpose(row, s) == expected) continue;
      std::printf("%s differs at %zu x %zu\n", row.c_str(), s.n_tokens, s.n_channels);
      ++n_wrong;
    }
  }
  return n_wrong;
}

void measure_transpose(size_t n_tokens, size_t n_channels) {
  const size_t n = n_tokens * n_channels, bytes = n * sizeof(uint16_t);
  const std::vector<uint16_t> x = noise(n);
  std::vector<uint16_t> y(n);
  const double copy = best_gb_per_s(bytes, [&] { std::memcpy(y.data(), x.data(), bytes); });
  std::printf("transpose_f16 %zu x %zu, %zu bytes, best of 20\n", n_tokens, n_channels, bytes);
  std::printf("  %-8s %7.2f GB/s\n", "memcpy", copy);
  for (const std::string &row : rows()) {
    ekv_force_isa(row.c_str());
    const double rate = best_gb_per_s(bytes, [&] {
      ekv_transpose_f16(x.data(), n_tokens, n_channels, y.data(), (ptrdiff_t)n_channels,
                        (ptrdiff_t)n_tokens);
    });
    std::printf("  %-8s %7.2f GB/s  %.2f x memcpy\n", row.c_str(), rate, rate / copy);
  }
}

int main(int argc, char **argv) {
  if (ekv_abi_version() != EKV_ABI_VERSION) return 2;
  const bool is_check = argc > 1 && std::strcmp(argv[1], "--check") == 0;
  int n_wrong = check_transpose() + check_codec() + check_casts() + check_sums() + check_fill();
  if (is_check && argc > 2) n_wrong += check_golden(argv[2]);
  std::printf("rows:");
  for (const std::string &row : rows()) std::printf(" %s", row.c_str());
  std::printf(n_wrong == 0 ? " equal\n" : " DIFFER\n");
  if (n_wrong != 0) return 1;
  if (is_check) return 0;
  for (size_t n_channels : {192u, 1024u}) {
    measure_transpose(1024, n_channels);
    measure_codec(1024, n_channels);
  }
  measure_transpose(3072, 1024);
  measure_sums(512 * 1024);
  return 0;
}
