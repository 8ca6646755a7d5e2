// The ladder's part for the codec and the casts.
#include <cstdio>
#include <cstring>

#include "ladder.hpp"

namespace {

constexpr uint16_t kUntouched = 0xA5A5;

struct Case {
  size_t n_tokens, n_channels, group;
  int bits;
  bool by_channel;
  const char *values;
};

// What one row makes of a case: two rows agree when all of it is equal.
struct Made {
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scale, minimum, y, transposed;

  bool operator==(const Made &b) const {
    return codes == b.codes && scale == b.scale && minimum == b.minimum && y == b.y &&
           transposed == b.transposed;
  }
};

size_t n_codes(const Case &c) { return c.n_tokens * ((c.n_channels + 63) / 64 * 8 * c.bits); }

size_t n_scales(const Case &c) {
  if (c.by_channel) return (c.n_tokens + c.group - 1) / c.group * c.n_channels;
  return c.n_tokens * ((c.n_channels + c.group - 1) / c.group);
}

// Halves around one, the ends of the range and zeros, or any bits at all.
std::vector<uint16_t> values(const Case &c, size_t n) {
  std::vector<uint16_t> x = noise(n);
  const uint16_t ends[] = {0x7BFF, 0xFBFF, 0, 0x8000, 1, 0x8001, 0x7BFE, 0x3C00};
  for (uint16_t &v : x) {
    if (std::strcmp(c.values, "ones") == 0) v = (uint16_t)((v & 0x83FF) | 0x3800 | (v & 0x0C00) >> 1);
    if (std::strcmp(c.values, "ends") == 0) v = ends[v >> 7 & 7];
  }
  return x;
}

bool unpack(const Case &c, Made *m) {
  const size_t ldt = c.n_channels + 3, ldc = c.n_tokens + 5;
  m->y.assign(extent(c.n_tokens, c.n_channels, ldt), kUntouched);
  m->transposed.assign(extent(c.n_channels, c.n_tokens, ldc), kUntouched);
  const auto call = c.by_channel ? ekv_unpack_chan : ekv_unpack_tok;
  return call(m->codes.data(), m->scale.data(), m->minimum.data(), c.n_tokens, c.n_channels,
              c.bits, c.group, m->y.data(), (ptrdiff_t)ldt, 1) == 0 &&
         call(m->codes.data(), m->scale.data(), m->minimum.data(), c.n_tokens, c.n_channels,
              c.bits, c.group, m->transposed.data(), 1, (ptrdiff_t)ldc) == 0;
}

Made round_trip(const std::string &row, const Case &c) {
  const size_t ldx = c.n_channels + 7;
  const std::vector<uint16_t> x = values(c, extent(c.n_tokens, c.n_channels, ldx));
  Made m;
  m.codes.assign(n_codes(c), 0xA5);
  m.scale.assign(n_scales(c), kUntouched);
  if (c.bits != 8) m.minimum.assign(n_scales(c), kUntouched);
  const auto pack = c.by_channel ? ekv_pack_chan : ekv_pack_tok;
  const bool done = ekv_force_isa(row.c_str()) == 0 &&
                    pack(x.data(), (ptrdiff_t)ldx, c.n_tokens, c.n_channels, c.bits, c.group,
                         m.codes.data(), m.scale.data(), m.minimum.data()) == 0 &&
                    unpack(c, &m);
  if (!done) m.codes.push_back((uint8_t)row[0]);  // no two rows refuse alike
  return m;
}

// What a broken file may hold: any codes, any scales.
Made hostile(const std::string &row, const Case &c) {
  Made m;
  for (uint16_t v : noise(n_codes(c))) m.codes.push_back((uint8_t)v);
  m.scale = noise(n_scales(c));
  if (c.bits != 8) m.minimum.assign(m.scale.rbegin(), m.scale.rend());
  if (ekv_force_isa(row.c_str()) != 0 || !unpack(c, &m)) m.codes.push_back((uint8_t)row[0]);
  return m;
}

// Few, because emulated machines run them too: each remainder of blocks, groups and tiles once.
std::vector<Case> cases() {
  const size_t shapes[][2] = {{1, 1},  {1, 64},  {3, 128}, {33, 80},  {7, 63}, {9, 208},
                              {65, 72}, {2, 1088}, {5, 0},  {257, 64}, {0, 64}, {70, 320}};
  std::vector<Case> all;
  for (const auto &[n_tokens, n_channels] : shapes) {
    const bool small = n_tokens * n_channels < 4096;
    for (int bits : {8, 6, 5, 4}) {
      for (const char *kind : {"ones", "ends", "bits"}) {
        if (!small && std::strcmp(kind, "ends") == 0) continue;
        for (size_t group : {1u, 32u, 48u, 64u, 96u, 128u, 1000000u}) {
          if (!small && group % 64 != 0) continue;
          if (small || group == 64) {
            all.push_back({n_tokens, n_channels, group, bits, true, kind});
          }
          all.push_back({n_tokens, n_channels, group, bits, false, kind});
        }
      }
    }
  }
  // A token of more groups than a row widens at once.
  all.push_back({1, 33000, 32, 4, false, "ones"});
  all.push_back({2, 2048, 1, 8, false, "ones"});
  return all;
}

template <typename In, typename Out>
bool cast_differs(int (*call)(const In *, size_t, Out *), const std::vector<In> &x,
                  const std::string &row) {
  std::vector<Out> expected(x.size()), actual(x.size());
  bool wrong = ekv_force_isa("scalar") != 0 || call(x.data(), x.size(), expected.data()) != 0;
  wrong |= ekv_force_isa(row.c_str()) != 0 || call(x.data(), x.size(), actual.data()) != 0;
  return wrong || std::memcmp(expected.data(), actual.data(), x.size() * sizeof(Out)) != 0;
}

}  // namespace

int check_codec() {
  int n_wrong = 0;
  for (const Case &c : cases()) {
    const Made expected = round_trip("scalar", c), broken = hostile("scalar", c);
    for (const std::string &row : rows()) {
      if (round_trip(row, c) == expected && hostile(row, c) == broken) continue;
      std::printf("%s differs by %s: %zu x %zu, %d bits, group %zu, %s\n", row.c_str(),
                  c.by_channel ? "channel" : "token", c.n_tokens, c.n_channels, c.bits, c.group,
                  c.values);
      ++n_wrong;
    }
  }
  return n_wrong;
}

int check_casts() {
  std::vector<uint16_t> halves(65536 + 5);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = (uint16_t)i;
  // All that 16 bits begin, and around the points where rounding turns.
  std::vector<float> floats;
  for (uint32_t high = 0; high < 65536; ++high) {
    for (uint32_t low : {0u, 1u, 0x0FFFu, 0x1000u, 0x1001u, 0x7FFFu, 0x8000u, 0x8001u}) {
      const uint32_t bits = high << 16 | low;
      float f;
      std::memcpy(&f, &bits, sizeof f);
      floats.push_back(f);
    }
  }
  int n_wrong = 0;
  for (const std::string &row : rows()) {
    const bool wrong = cast_differs(ekv_cast_f32_f16, floats, row) ||
                       cast_differs(ekv_cast_f16_f32, halves, row) ||
                       cast_differs(ekv_cast_f32_bf16, floats, row) ||
                       cast_differs(ekv_cast_bf16_f32, halves, row) ||
                       cast_differs(ekv_cast_bf16_f16, halves, row);
    if (wrong) std::printf("%s differs in a cast\n", row.c_str());
    n_wrong += wrong;
  }
  return n_wrong;
}

void measure_codec(size_t n_tokens, size_t n_channels) {
  const size_t n = n_tokens * n_channels, bytes = n * sizeof(uint16_t);
  std::vector<uint16_t> x(n), y(n);
  std::vector<float> even(n);
  for (size_t i = 0; i < n; ++i) even[i] = (float)(i * 2654435761u % 4096) / 1024.0f - 2.0f;
  ekv_cast_f32_f16(even.data(), n, x.data());
  const double copy = best_gb_per_s(bytes, [&] { std::memcpy(y.data(), x.data(), bytes); });
  std::printf("codec %zu x %zu, %zu bytes, best of 20; x memcpy of %.2f GB/s\n", n_tokens,
              n_channels, bytes, copy);
  for (bool by_channel : {true, false}) {
    for (int bits : {8, 6, 5, 4}) {
      const size_t group = bits == 4 ? 32 : bits == 8 && by_channel ? 128 : 64;
      const Case c = {n_tokens, n_channels, group, bits, by_channel, "ones"};
      std::vector<uint8_t> codes(n_codes(c));
      std::vector<uint16_t> scale(n_scales(c)), minimum(n_scales(c));
      for (const std::string &row : rows()) {
        ekv_force_isa(row.c_str());
        const double packed = best_gb_per_s(bytes, [&] {
          (by_channel ? ekv_pack_chan : ekv_pack_tok)(x.data(), (ptrdiff_t)n_channels, n_tokens,
                                                      n_channels, bits, group, codes.data(),
                                                      scale.data(), minimum.data());
        });
        const double unpacked = best_gb_per_s(bytes, [&] {
          (by_channel ? ekv_unpack_chan : ekv_unpack_tok)(
              codes.data(), scale.data(), minimum.data(), n_tokens, n_channels, bits, group,
              y.data(), (ptrdiff_t)n_channels, 1);
        });
        std::printf("  %c %d bits %-8s pack %.2f  unpack %.2f\n", by_channel ? 'K' : 'V', bits,
                    row.c_str(), packed / copy, unpacked / copy);
      }
    }
  }
}
