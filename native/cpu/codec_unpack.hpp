// Unpacking in terms of a row's vectors: see codec_row.hpp, which includes this.
#pragma once

#include "codec_row.hpp"

// Stores two vectors at `y`, in one go where the row can, and gives the place behind them, which the
// compiler is told depends on the store. Where `y` is not aligned to cache lines, halves of lines or
// stores out of order cost a third of the speed.
template <class V>
static inline uint16_t *store_next(uint16_t *y, typename V::F a, typename V::F b) {
  V::store_f16(y, a, b);
  __asm__("" : "+r"(y) : "m"(*(const uint16_t(*)[2 * V::kLanes])y));
  return y + 2 * V::kLanes;
}

// `n` float16 to floats; `to` has room for a vector more.
template <class V>
static inline void widen(const uint16_t *x, size_t n, float *to) {
  size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store(to + i, V::load_finite(x + i));
  if (i == n) return;
  uint16_t rest[V::kLanes] = {};
  for (size_t j = i; j < n; ++j) rest[j - i] = x[j];
  V::store(to + i, V::load_finite(rest));
}

// Token by token along the row, with the group's scales widened once: a block at a time would walk
// down the tokens, which costs a third where rows are a multiple of the page.
template <class V, int kBits>
static void unpack_chan_as(Codes from, size_t n_tokens, size_t n_channels, MutableMatrix y) {
  constexpr size_t kN = kBlock / V::kLanes;
  const size_t whole = n_channels - n_channels % kBlock;
  alignas(64) float scale[kScales + V::kLanes], low[kScales + V::kLanes];
  for (size_t c0 = 0; c0 < whole; c0 += kScales) {
    const size_t n = at_most(kScales, whole - c0);
    widen<V>(from.scale + c0, n, scale);
    if (kBits != 8) widen<V>(from.minimum + c0, n, low);
    for (size_t t = 0; t < n_tokens; ++t) {
      const uint8_t *codes = from.codes + t * from.ld_codes + c0 / 8 * kBits;
      uint16_t *row = y.at + t * y.ld + c0;
      for (size_t c = 0; c < n; c += kBlock, codes += 8 * kBits) {
        typename V::F v[kN];
        V::template decode<kBits>(codes, v);
        for (size_t i = 0; i < kN; ++i) {
          const typename V::F s = V::load(scale + c + i * V::kLanes);
          v[i] = kBits == 8 ? V::mul(v[i], s)
                            : V::mul_add(v[i], s, V::load(low + c + i * V::kLanes));
        }
        for (size_t i = 0; i < kN; i += 2) row = store_next<V>(row, v[i], v[i + 1]);
      }
    }
  }
  if (whole == n_channels) return;
  kScalarCodec.unpack_chan(behind(from, whole, whole, kBits), n_tokens, n_channels - whole, kBits,
                           {y.at + whole, y.ld});
}

// The same of rows `ld` apart, to dense floats. Of a tile's few columns only their own groups.
template <class V>
static inline void widen_rows(const uint16_t *x, size_t ld, size_t n_rows, size_t n, float *to) {
  if (n == ld) return widen<V>(x, n_rows * n, to);
  uint16_t dense[kScales];
  for (size_t t = 0; t < n_rows; ++t) {
    for (size_t g = 0; g < n; ++g) dense[t * n + g] = x[t * ld + g];
  }
  widen<V>(dense, n_rows * n, to);
}

// One token, whole blocks; `left` columns of the first group are still to come.
template <class V, int kBits>
static inline void unpack_token(const uint8_t *codes, const float *scale, const float *low,
                                size_t left, size_t group, size_t whole, uint16_t *y) {
  constexpr size_t kN = kBlock / V::kLanes;
  for (size_t c = 0; c < whole; c += kBlock, codes += 8 * kBits) {
    typename V::F v[kN];
    V::template decode<kBits>(codes, v);
    for (size_t half = 0; half < 2; ++half) {
      const typename V::F s = V::set1(*scale), m = V::set1(*low);
      for (size_t i = half * kN / 2; i < (half + 1) * kN / 2; ++i) {
        v[i] = kBits == 8 ? V::mul(v[i], s) : V::mul_add(v[i], s, m);
      }
      left -= kHalf;
      if (left == 0) {
        left = group;
        ++scale;
        if (kBits != 8) ++low;
      }
    }
    for (size_t i = 0; i < kN; i += 2) y = store_next<V>(y, v[i], v[i + 1]);
  }
}

template <class V, int kBits>
static void unpack_tok_as(Codes from, size_t n_tokens, size_t first, size_t n_channels,
                          size_t group, MutableMatrix y) {
  const size_t whole = n_channels - n_channels % kBlock;
  const size_t group0 = first / group, n_groups = (first + n_channels - 1) / group - group0 + 1;
  if (group % kHalf != 0 || n_groups > kScales || whole == 0) {
    kScalarCodec.unpack_tok(from, n_tokens, first, n_channels, kBits, group, y);
    return;
  }
  float scale[kScales + V::kLanes], low[kScales + V::kLanes] = {};
  const size_t n_rows = kScales / n_groups;
  for (size_t t0 = 0; t0 < n_tokens; t0 += n_rows) {
    const size_t n = at_most(n_rows, n_tokens - t0), at = t0 * from.ld_scale + group0;
    widen_rows<V>(from.scale + at, from.ld_scale, n, n_groups, scale);
    if (kBits != 8) widen_rows<V>(from.minimum + at, from.ld_scale, n, n_groups, low);
    for (size_t t = 0; t < n; ++t) {
      const size_t g = t * n_groups;
      unpack_token<V, kBits>(from.codes + (t0 + t) * from.ld_codes, scale + g,
                             low + (kBits == 8 ? 0 : g), group - first % group, group, whole,
                             y.at + (t0 + t) * y.ld);
    }
  }
  if (whole == n_channels) return;
  kScalarCodec.unpack_tok(behind(from, whole, 0, kBits), n_tokens, first + whole, n_channels - whole,
                          kBits, group, {y.at + whole, y.ld});
}
