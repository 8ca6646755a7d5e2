// The ladder's part that holds every row against numpy: cases from a file, written by
// tests/unit/kernels/golden_cases.py. This way rows are checked on machines where Python does not run.
//
// The file is a row of cases without gaps, little-endian. Each is six uint32, (kind, tokens,
// channels, bits, group, 0), and its arrays:
//   0, 1  codec by channel, by token: x, codes, scale, minimum (not at 8 bits), y
//   2     codec by channel, 3 by token, unpacked only: codes, scale, minimum (not at 8 bits), y
//   4     transpose_f16: x, y
//   5..9  casts f32_f16, f16_f32, f32_bf16, bf16_f32, bf16_f16 of tokens x channels: x, y
#include <cstdio>
#include <cstring>
#include <utility>

#include "ladder.hpp"

namespace {

struct Head {
  uint32_t kind, n_tokens, n_channels, bits, group, zero;
};

// The rest of the file; what lies behind its end is an error and not read.
class Reader {
 public:
  explicit Reader(std::vector<uint8_t> bytes) : bytes_(std::move(bytes)) {}

  template <typename T>
  std::vector<T> take(size_t n) {
    std::vector<T> x;
    if (n > (bytes_.size() - at_) / sizeof(T)) {
      is_short_ = true;
      return x;
    }
    x.resize(n);
    if (n != 0) std::memcpy(x.data(), bytes_.data() + at_, n * sizeof(T));
    at_ += n * sizeof(T);
    return x;
  }

  bool is_short() const { return is_short_; }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  std::vector<uint8_t> bytes_;
  size_t at_ = 0;
  bool is_short_ = false;
};

using Halves = std::vector<uint16_t>;

bool codec_differs(const Head &h, Reader *file, const std::vector<std::string> &names) {
  const size_t n = (size_t)h.n_tokens * h.n_channels;
  const bool by_channel = h.kind % 2 == 0, packs = h.kind < 2;
  const size_t n_scales = by_channel
                              ? (size_t)(h.n_tokens + h.group - 1) / h.group * h.n_channels
                              : (size_t)h.n_tokens * ((h.n_channels + h.group - 1) / h.group);
  const size_t n_minima = h.bits == 8 ? 0 : n_scales;
  const Halves x = file->take<uint16_t>(packs ? n : 0);
  const auto codes =
      file->take<uint8_t>((size_t)h.n_tokens * ((h.n_channels + 63) / 64) * 8 * h.bits);
  const Halves scale = file->take<uint16_t>(n_scales), minimum = file->take<uint16_t>(n_minima);
  const Halves y = file->take<uint16_t>(n);
  if (file->is_short()) return true;
  const auto pack = by_channel ? ekv_pack_chan : ekv_pack_tok;
  const auto unpack = by_channel ? ekv_unpack_chan : ekv_unpack_tok;
  bool differs = false;
  for (const std::string &name : names) {
    std::vector<uint8_t> codes_made(codes.size());
    Halves scale_made(n_scales), minimum_made(n_minima), y_made(n);
    bool same = ekv_force_isa(name.c_str()) == 0;
    if (packs) {
      same &= pack(x.data(), (ptrdiff_t)h.n_channels, h.n_tokens, h.n_channels, (int)h.bits,
                   h.group, codes_made.data(), scale_made.data(), minimum_made.data()) == 0;
      same &= codes_made == codes && scale_made == scale && minimum_made == minimum;
    }
    same &= unpack(codes.data(), scale.data(), minimum.data(), h.n_tokens, h.n_channels,
                   (int)h.bits, h.group, y_made.data(), (ptrdiff_t)h.n_channels, 1) == 0;
    if (same && y_made == y) continue;
    std::printf("%s differs from numpy by %s: %u x %u, %u bits, group %u\n", name.c_str(),
                by_channel ? "channel" : "token", h.n_tokens, h.n_channels, h.bits, h.group);
    differs = true;
  }
  return differs;
}

bool transpose_differs(const Head &h, Reader *file, const std::vector<std::string> &names) {
  const size_t n = (size_t)h.n_tokens * h.n_channels;
  const Halves x = file->take<uint16_t>(n), y = file->take<uint16_t>(n);
  if (file->is_short()) return true;
  bool differs = false;
  for (const std::string &name : names) {
    Halves made(n);
    const bool done = ekv_force_isa(name.c_str()) == 0 &&
                      ekv_transpose_f16(x.data(), h.n_tokens, h.n_channels, made.data(),
                                        (ptrdiff_t)h.n_channels, (ptrdiff_t)h.n_tokens) == 0;
    if (done && made == y) continue;
    std::printf("%s differs from numpy: transpose %u x %u\n", name.c_str(), h.n_tokens,
                h.n_channels);
    differs = true;
  }
  return differs;
}

template <typename In, typename Out>
bool cast_differs(int (*call)(const In *, size_t, Out *), const Head &h, Reader *file,
                  const std::vector<std::string> &names) {
  const size_t n = (size_t)h.n_tokens * h.n_channels;
  const std::vector<In> x = file->take<In>(n);
  const std::vector<Out> y = file->take<Out>(n);
  if (file->is_short()) return true;
  bool differs = false;
  for (const std::string &name : names) {
    std::vector<Out> made(n);
    const bool done = ekv_force_isa(name.c_str()) == 0 && call(x.data(), n, made.data()) == 0;
    if (done && std::memcmp(made.data(), y.data(), n * sizeof(Out)) == 0) continue;
    std::printf("%s differs from numpy: cast %u\n", name.c_str(), h.kind);
    differs = true;
  }
  return differs;
}

bool case_differs(const Head &h, Reader *file, const std::vector<std::string> &names) {
  if (h.kind < 4) return codec_differs(h, file, names);
  if (h.kind == 4) return transpose_differs(h, file, names);
  if (h.kind == 5) return cast_differs(ekv_cast_f32_f16, h, file, names);
  if (h.kind == 6) return cast_differs(ekv_cast_f16_f32, h, file, names);
  if (h.kind == 7) return cast_differs(ekv_cast_f32_bf16, h, file, names);
  if (h.kind == 8) return cast_differs(ekv_cast_bf16_f32, h, file, names);
  if (h.kind == 9) return cast_differs(ekv_cast_bf16_f16, h, file, names);
  return true;
}

std::vector<uint8_t> content(const char *path) {
  std::vector<uint8_t> bytes;
  FILE *file = std::fopen(path, "rb");
  if (file == nullptr) return bytes;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) bytes.push_back((uint8_t)c);
  std::fclose(file);
  return bytes;
}

}  // namespace

int check_golden(const char *path) {
  Reader file(content(path));
  const std::vector<std::string> names = rows();
  int n_cases = 0, n_wrong = 0;
  while (!file.at_end() && !file.is_short()) {
    const std::vector<Head> head = file.take<Head>(1);
    const bool is_case = !head.empty() && head[0].zero == 0 && head[0].group != 0;
    if (!is_case) break;
    n_wrong += case_differs(head[0], &file, names);
    ++n_cases;
  }
  const bool is_whole = file.at_end() && n_cases != 0;
  if (!is_whole) std::printf("%s: not a file of cases\n", path);
  std::printf("cases of numpy's: %d\n", n_cases);
  return n_wrong + !is_whole;
}
