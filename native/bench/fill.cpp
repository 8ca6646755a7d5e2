// The ladder's part for filling from a file: what is taken, what is refused, and no byte beyond.
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <unistd.h>

#include "ladder.hpp"

namespace {

constexpr uint16_t kUntouched = 0xA5A5;
constexpr size_t kAlign = 64, kExact = 3;

size_t aligned(size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

// A packed matrix as a file has it, and what it stands for.
struct Packed {
  EkvRun run;
  std::vector<uint8_t> bytes;  // the run and the zeros after it
  std::vector<uint16_t> rows;
};

uint16_t *halves(std::vector<uint8_t> &bytes, size_t at) {
  return reinterpret_cast<uint16_t *>(bytes.data() + at);
}

void seal(Packed *packed) {
  packed->bytes.resize(aligned(packed->run.n_bytes));
  ekv_xxh3_128(packed->bytes.data(), packed->run.n_bytes, packed->run.sum);
}

Packed pack(size_t n_tokens, size_t n_channels, int bits, size_t group, bool by_channel) {
  Packed p{};
  const size_t n_scales = by_channel ? (n_tokens + group - 1) / group * n_channels
                                     : n_tokens * ((n_channels + group - 1) / group);
  EkvRun &run = p.run;
  run.kind = by_channel ? EKV_CHANNELS : EKV_TOKENS;
  run.bits = bits, run.group = group;
  run.n_exact = kExact, run.n_tokens = n_tokens, run.n_channels = n_channels;
  run.scale = aligned(kExact * n_channels * 2);
  run.minimum = aligned(run.scale + n_scales * 2);
  run.codes = bits == 8 ? run.minimum : aligned(run.minimum + n_scales * 2);
  run.n_bytes = run.codes + n_tokens * ((n_channels + 63) / 64 * 8 * (size_t)bits);
  p.bytes.resize(aligned(run.n_bytes));
  p.rows = noise((kExact + n_tokens) * n_channels);
  for (uint16_t &v : p.rows) v &= 0xBFFF;  // below two
  std::memcpy(p.bytes.data(), p.rows.data(), kExact * n_channels * 2);
  const auto packing = by_channel ? ekv_pack_chan : ekv_pack_tok;
  uint16_t *packed_rows = p.rows.data() + kExact * n_channels;
  packing(packed_rows, (ptrdiff_t)n_channels, n_tokens, n_channels, bits, group,
          p.bytes.data() + run.codes, halves(p.bytes, run.scale), halves(p.bytes, run.minimum));
  const auto unpacking = by_channel ? ekv_unpack_chan : ekv_unpack_tok;
  unpacking(p.bytes.data() + run.codes, halves(p.bytes, run.scale), halves(p.bytes, run.minimum),
            n_tokens, n_channels, bits, group, packed_rows, (ptrdiff_t)n_channels, 1);
  seal(&p);
  return p;
}

// Fills exactly as much memory as the call may touch, from a file that holds nothing else.
int fill(const Packed &packed, size_t n_in_file, std::vector<uint16_t> *y) {
  std::FILE *file = std::tmpfile();
  if (file == nullptr) return -EIO;
  const int fd = fileno(file);
  int status = -EIO;
  if (write(fd, packed.bytes.data(), n_in_file) == (ssize_t)n_in_file) {
    EkvRun run = packed.run;
    y->assign(packed.rows.size(), kUntouched);
    run.y = (uint64_t)(uintptr_t)y->data();
    run.ldt = (ptrdiff_t)run.n_channels, run.ldc = 1;
    std::vector<uint8_t> room(run.n_bytes);
    size_t next = 0;
    status = ekv_fill(fd, &run, 1, &next, room.data(), room.size(), 1 << 20);
  }
  std::fclose(file);
  return status;
}

int expect(const char *what, const Packed &packed, size_t n_in_file, int wanted) {
  std::vector<uint16_t> y;
  const int status = fill(packed, n_in_file, &y);
  const bool is_written = std::any_of(y.begin(), y.end(), [](uint16_t v) { return v != kUntouched; });
  if (status == wanted && (wanted == 0 ? y == packed.rows : !is_written)) return 0;
  std::printf("fill: %s of %zu x %zu, %d bits: %d, expected %d\n", what,
              (size_t)packed.run.n_tokens, (size_t)packed.run.n_channels, packed.run.bits, status,
              wanted);
  return 1;
}

int check_one(const Packed &packed) {
  const size_t n = packed.bytes.size();
  int n_wrong = expect("a run", packed, n, 0) + expect("a short file", packed, n - 1, -EBADMSG);
  Packed bad = packed;
  bad.bytes[n / 2] ^= 1;
  n_wrong += expect("a changed byte", bad, n, -EBADMSG);
  bad = packed;
  *halves(bad.bytes, bad.run.scale) = 0x7C00;
  seal(&bad);
  n_wrong += expect("an infinite scale", bad, n, -EBADMSG);
  uint64_t EkvRun::*const counts[] = {&EkvRun::n_exact, &EkvRun::n_tokens, &EkvRun::n_channels,
                                      &EkvRun::scale,   &EkvRun::minimum,  &EkvRun::codes};
  for (auto count : counts) {
    const uint64_t again = packed.run.*count + ((uint64_t)1 << 32);  // to a size of 32 bits, the same
    for (uint64_t value : {again, (uint64_t)1 << 40, (uint64_t)1 << 63, ~(uint64_t)0, ~(uint64_t)63}) {
      bad = packed;
      bad.run.*count = value;
      n_wrong += expect("a count", bad, n, -EINVAL);
    }
  }
  return n_wrong;
}

}  // namespace

int check_fill() {
  int n_wrong = 0;
  for (const std::string &row : rows()) {
    ekv_force_isa(row.c_str());
    for (int bits : {8, 6, 5, 4}) {
      for (bool by_channel : {true, false}) {
        for (size_t n_channels : {64u, 100u, 257u}) {
          for (size_t n_tokens : {9u, 64u, 130u}) {
            n_wrong += check_one(pack(n_tokens, n_channels, bits, 32, by_channel));
          }
        }
      }
    }
  }
  return n_wrong;
}
