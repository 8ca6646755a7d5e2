// The codec and the casts in terms of a row's vectors, for the rows' *_codec.cpp. `V` comes from an
// anonymous namespace, so every row has code of its own, made with its own flags:
//
//   F, I, K          kLanes floats, kLanes int32, kKeys int16
//   load_f16         widen kLanes float16; load_finite: with zero for infinities and NaNs
//   store_f16        narrow kLanes floats, or twice as many
//   mul_add          fused or not: a code times a scale is exact
//   round            to int32, ties to even
//   order            float16 to int16 that compare as the floats do, and back: its own inverse
//   scale            float16 by README.md's rule into `to`, and as floats
//   decode, encode   a block's codes: kLanes floats or int32 at a time, in the order of columns
//
// What a vector cannot do whole (columns behind the last block, groups that are no multiple of half
// a block, blocks with infinities and NaNs) the scalar row does.
#pragma once

#include "table.hpp"

static constexpr size_t kHalf = kBlock / 2;
// Scales in hand at once: two arrays of them stay in the first-level cache.
static constexpr size_t kScales = 1024;

static inline size_t at_most(size_t a, size_t b) { return a < b ? a : b; }

// The columns from `c` on, whose scales begin `scale_at` elements further on.
static inline Codes behind(Codes from, size_t c, size_t scale_at, int bits) {
  from.codes += c / 8 * (size_t)bits;
  from.scale += scale_at;
  if (bits != 8) from.minimum += scale_at;
  return from;
}

static inline MutableCodes behind(MutableCodes to, size_t c, size_t scale_at, int bits) {
  to.codes += c / 8 * (size_t)bits;
  to.scale += scale_at;
  if (bits != 8) to.minimum += scale_at;
  return to;
}

#include "codec_pack.hpp"
#include "codec_unpack.hpp"

template <class V>
static void pack_chan(Matrix x, size_t n_tokens, size_t n_channels, int bits, MutableCodes to) {
  if (bits == 8) return pack_chan_as<V, 8>(x, n_tokens, n_channels, to);
  if (bits == 6) return pack_chan_as<V, 6>(x, n_tokens, n_channels, to);
  if (bits == 5) return pack_chan_as<V, 5>(x, n_tokens, n_channels, to);
  pack_chan_as<V, 4>(x, n_tokens, n_channels, to);
}

template <class V>
static void unpack_chan(Codes from, size_t n_tokens, size_t n_channels, int bits,
                        MutableMatrix y) {
  if (bits == 8) return unpack_chan_as<V, 8>(from, n_tokens, n_channels, y);
  if (bits == 6) return unpack_chan_as<V, 6>(from, n_tokens, n_channels, y);
  if (bits == 5) return unpack_chan_as<V, 5>(from, n_tokens, n_channels, y);
  unpack_chan_as<V, 4>(from, n_tokens, n_channels, y);
}

template <class V>
static void pack_tok(Matrix x, size_t n_tokens, size_t n_channels, int bits, size_t group,
                     MutableCodes to) {
  if (bits == 8) return pack_tok_as<V, 8>(x, n_tokens, n_channels, group, to);
  if (bits == 6) return pack_tok_as<V, 6>(x, n_tokens, n_channels, group, to);
  if (bits == 5) return pack_tok_as<V, 5>(x, n_tokens, n_channels, group, to);
  pack_tok_as<V, 4>(x, n_tokens, n_channels, group, to);
}

template <class V>
static void unpack_tok(Codes from, size_t n_tokens, size_t first, size_t n_channels, int bits,
                       size_t group, MutableMatrix y) {
  if (bits == 8) return unpack_tok_as<V, 8>(from, n_tokens, first, n_channels, group, y);
  if (bits == 6) return unpack_tok_as<V, 6>(from, n_tokens, first, n_channels, group, y);
  if (bits == 5) return unpack_tok_as<V, 5>(from, n_tokens, first, n_channels, group, y);
  unpack_tok_as<V, 4>(from, n_tokens, first, n_channels, group, y);
}

template <class V>
static void f32_to_f16(const float *x, size_t n, uint16_t *y) {
  size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store_f16(y + i, V::load(x + i));
  kScalarCodec.f32_to_f16(x + i, n - i, y + i);
}

template <class V>
static void f16_to_f32(const uint16_t *x, size_t n, float *y) {
  size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store(y + i, V::load_f16(x + i));
  kScalarCodec.f16_to_f32(x + i, n - i, y + i);
}

template <class V>
static void f32_to_bf16(const float *x, size_t n, uint16_t *y) {
  size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store_bf16(y + i, V::load_bits(x + i));
  kScalarCodec.f32_to_bf16(x + i, n - i, y + i);
}

template <class V>
static void bf16_to_f32(const uint16_t *x, size_t n, float *y) {
  size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store(y + i, V::load_bf16(x + i));
  kScalarCodec.bf16_to_f32(x + i, n - i, y + i);
}

template <class V>
static void bf16_to_f16(const uint16_t *x, size_t n, uint16_t *y) {
  size_t i = 0;
  for (; i + V::kLanes <= n; i += V::kLanes) V::store_f16(y + i, V::load_bf16(x + i));
  kScalarCodec.bf16_to_f16(x + i, n - i, y + i);
}

#define EKV_CODEC(V)                                                                          \
  {pack_chan<V>,  unpack_chan<V>, pack_tok<V>,    unpack_tok<V>, f32_to_f16<V>, f16_to_f32<V>, \
   f32_to_bf16<V>, bf16_to_f32<V>, bf16_to_f16<V>}
