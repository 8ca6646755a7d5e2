// Packing in terms of a row's vectors: see codec_row.hpp, which includes this.
#pragma once

#include <string.h>

#include "codec_row.hpp"

// Tokens that are read twice stay in the first-level cache between the two.
static constexpr size_t kBytesTwice = 16384;

// What quantising needs of `kCapacity` groups: their ends in int16 order, then their steps.
template <class V, size_t kCapacity>
struct Steps {
  static constexpr size_t kPadded = kCapacity + V::kLanes;
  uint16_t least[kPadded], most[kPadded], scale[kPadded];
  float low[kPadded], inverse[kPadded];
};

// Whether all of the group's values were finite, from its ends; of 8 bits `most` is a magnitude.
template <int kBits>
static inline bool are_finite(const uint16_t *least, const uint16_t *most, size_t n) {
  bool finite = true;
  for (size_t i = 0; i < n; ++i) {
    finite &= (int16_t)most[i] < 0x7C00;
    if (kBits != 8) finite &= (int16_t)least[i] > (int16_t)0x83FF;
  }
  return finite;
}

// From the ends of `n` groups to their steps; the minimum, as float16, takes the place of `least`.
template <class V, int kBits, size_t kCapacity>
static inline void find_steps(Steps<V, kCapacity> *s, size_t n) {
  const typename V::F n_steps = V::set1(kBits == 8 ? 127.0f : (float)((1 << kBits) - 1));
  const typename V::F zero = V::set1(0.0f);
  for (size_t i = 0; i < n; i += V::kLanes) {
    typename V::F low = zero, reach;
    if (kBits == 8) {
      reach = V::load_f16(s->most + i);
    } else {
      low = V::add(V::load_f16_ordered(s->least + i), zero);  // -0 becomes 0
      reach = V::add(V::sub(V::load_f16_ordered(s->most + i), low), zero);
      V::store_f16(s->least + i, low);
    }
    const typename V::F scale = V::scale(V::div(reach, n_steps), low, n_steps, s->scale + i);
    V::store(s->low + i, low);
    V::store(s->inverse + i, V::inverse(scale));
  }
}

template <class V, int kBits>
static inline typename V::I code_of(const uint16_t *x, typename V::F low, typename V::F inverse) {
  typename V::F v = V::load_f16(x);
  if (kBits != 8) v = V::sub(v, low);
  return V::round(V::mul(v, inverse));
}

// The ends of `n` columns of one token, or of one column block over the tokens.
template <class V, int kBits>
static inline void stretch(const uint16_t *x, typename V::K *least, typename V::K *most) {
  const typename V::K x_keys = V::load_keys(x);
  if (kBits == 8) {
    *most = V::most(*most, V::magnitude(x_keys));
  } else {
    const typename V::K k = V::order(x_keys);
    *least = V::least(*least, k);
    *most = V::most(*most, k);
  }
}

template <class V, int kBits>
static void pack_chan_as(Matrix x, size_t n_tokens, size_t n_channels, MutableCodes to) {
  constexpr size_t kN = kBlock / V::kLanes, kNKeys = kBlock / V::kKeys;
  const size_t whole = n_channels - n_channels % kBlock;
  Steps<V, kBlock> s = {};
  for (size_t c = 0; c < whole; c += kBlock) {
    typename V::K least[kNKeys], most[kNKeys];
    for (size_t i = 0; i < kNKeys; ++i) {
      least[i] = V::set1_key(0x7FFF);
      most[i] = V::set1_key(kBits == 8 ? 0 : (int16_t)0x8000);
    }
    for (size_t t = 0; t < n_tokens; ++t) {
      for (size_t i = 0; i < kNKeys; ++i) {
        stretch<V, kBits>(x.at + t * x.ld + c + i * V::kKeys, &least[i], &most[i]);
      }
    }
    for (size_t i = 0; i < kNKeys; ++i) {
      V::store_keys(s.least + i * V::kKeys, least[i]);
      V::store_keys(s.most + i * V::kKeys, most[i]);
    }
    if (!are_finite<kBits>(s.least, s.most, kBlock)) {
      kScalarCodec.pack_chan({x.at + c, x.ld}, n_tokens, kBlock, kBits,
                             behind(to, c, c, kBits));
      continue;
    }
    find_steps<V, kBits>(&s, kBlock);
    memcpy(to.scale + c, s.scale, kBlock * sizeof(uint16_t));
    if (kBits != 8) memcpy(to.minimum + c, s.least, kBlock * sizeof(uint16_t));
    typename V::F low[kN], inverse[kN];
    for (size_t i = 0; i < kN; ++i) {
      low[i] = V::load(s.low + i * V::kLanes);
      inverse[i] = V::load(s.inverse + i * V::kLanes);
    }
    for (size_t t = 0; t < n_tokens; ++t) {
      typename V::I codes[kN];
      for (size_t i = 0; i < kN; ++i) {
        codes[i] = code_of<V, kBits>(x.at + t * x.ld + c + i * V::kLanes, low[i], inverse[i]);
      }
      V::template encode<kBits>(codes, to.codes + t * to.ld_codes + c / 8 * kBits);
    }
  }
  if (whole == n_channels) return;
  kScalarCodec.pack_chan({x.at + whole, x.ld}, n_tokens, n_channels - whole, kBits,
                         behind(to, whole, whole, kBits));
}

// The ends of `n` columns of one token.
template <class V, int kBits>
static inline void ends_of(const uint16_t *x, size_t n, uint16_t *least, uint16_t *most) {
  typename V::K low = V::set1_key(0x7FFF), high = V::set1_key(kBits == 8 ? 0 : (int16_t)0x8000);
  for (size_t c = 0; c < n; c += V::kKeys) stretch<V, kBits>(x + c, &low, &high);
  if (kBits != 8) *least = (uint16_t)V::least_of(low);
  *most = (uint16_t)V::most_of(high);
}

// Rows beside each other, as they are but for a group behind the last whole block, are one copy.
static inline void copy_rows(const uint16_t *x, size_t n_rows, size_t n, uint16_t *y, size_t ldy) {
  if (n == ldy) {
    memcpy(y, x, n_rows * n * sizeof *y);
    return;
  }
  for (size_t t = 0; t < n_rows; ++t) memcpy(y + t * ldy, x + t * n, n * sizeof *y);
}

// One token, whole blocks: the groups' steps are those from `at` on.
template <class V, int kBits>
static inline void quantise_token(const uint16_t *x, size_t whole, size_t group, const float *low,
                                  const float *inverse, uint8_t *codes) {
  constexpr size_t kN = kBlock / V::kLanes;
  size_t left = group;
  for (size_t c = 0; c < whole; c += kBlock, codes += 8 * kBits) {
    typename V::I v[kN];
    for (size_t half = 0; half < 2; ++half) {
      const typename V::F m = V::set1(*low), r = V::set1(*inverse);
      for (size_t i = half * kN / 2; i < (half + 1) * kN / 2; ++i) {
        v[i] = code_of<V, kBits>(x + c + i * V::kLanes, m, r);
      }
      left -= kHalf;
      if (left == 0) {
        left = group;
        ++low;
        ++inverse;
      }
    }
    V::template encode<kBits>(v, codes);
  }
}

template <class V, int kBits>
static void pack_tok_as(Matrix x, size_t n_tokens, size_t n_channels, size_t group,
                        MutableCodes to) {
  size_t whole = n_channels - n_channels % kBlock;
  if (whole != n_channels && group > kBlock) whole -= whole % group;
  const size_t n_groups = whole / group + (whole % group != 0);
  if ((group != kHalf && group % kBlock != 0) || whole == 0 || n_groups > kScales) {
    kScalarCodec.pack_tok(x, n_tokens, n_channels, kBits, group, to);
    return;
  }
  Steps<V, kScales> s = {};
  const size_t fit = at_most(kScales / n_groups, kBytesTwice / sizeof(uint16_t) / whole);
  for (size_t t0 = 0, n; t0 < n_tokens; t0 += n) {
    n = at_most(fit == 0 ? 1 : fit, n_tokens - t0);
    const Matrix at = {x.at + t0 * x.ld, x.ld};
    MutableCodes rows = behind(to, 0, t0 * to.ld_scale, kBits);
    rows.codes += t0 * to.ld_codes;
    for (size_t t = 0, g = 0; t < n; ++t) {
      for (size_t c = 0; c < whole; c += group, ++g) {
        ends_of<V, kBits>(at.at + t * x.ld + c, at_most(group, whole - c), s.least + g,
                          s.most + g);
      }
    }
    if (!are_finite<kBits>(s.least, s.most, n * n_groups)) {
      kScalarCodec.pack_tok(at, n, whole, kBits, group, rows);
      continue;
    }
    find_steps<V, kBits>(&s, n * n_groups);
    copy_rows(s.scale, n, n_groups, rows.scale, to.ld_scale);
    if (kBits != 8) copy_rows(s.least, n, n_groups, rows.minimum, to.ld_scale);
    for (size_t t = 0; t < n; ++t) {
      const size_t g = t * n_groups;
      quantise_token<V, kBits>(at.at + t * x.ld, whole, group, s.low + g, s.inverse + g,
                               rows.codes + t * to.ld_codes);
    }
  }
  if (whole == n_channels) return;
  kScalarCodec.pack_tok({x.at + whole, x.ld}, n_tokens, n_channels - whole, kBits, group,
                        behind(to, whole, whole / group, kBits));
}
