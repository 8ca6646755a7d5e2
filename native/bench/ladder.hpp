// What the parts of the ladder share.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "edgellm_native.h"

inline std::vector<std::string> rows() {
  std::vector<std::string> names;
  for (size_t i = 0; const char *name = ekv_isa_at(i); ++i) names.emplace_back(name);
  return names;
}

inline std::vector<uint16_t> noise(size_t n) {
  std::vector<uint16_t> x(n);
  uint32_t state = 1;
  for (uint16_t &v : x) v = (uint16_t)((state = state * 1664525u + 1013904223u) >> 16);
  return x;
}

// Elements from the first to the last touched: the last row has no gap behind it.
inline size_t extent(size_t n_rows, size_t n_cols, size_t ld) {
  return n_rows == 0 || n_cols == 0 ? 0 : (n_rows - 1) * ld + n_cols;
}

template <typename Call>
double best_gb_per_s(size_t bytes, Call call) {
  double best_s = 1e9;
  for (int i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best_s = std::min(best_s, took.count());
  }
  return (double)bytes / best_s / 1e9;
}

// Compares every row with the scalar one, or with what is right; gives the number of differences, and
// prints each.
int check_transpose();
int check_codec();
int check_casts();
int check_sums();
int check_fill();

// Compares every row with what numpy made, from a file of cases; one that cannot be read counts too.
int check_golden(const char *path);

void measure_transpose(size_t n_tokens, size_t n_channels);
void measure_codec(size_t n_tokens, size_t n_channels);
void measure_sums(size_t n_bytes);
