// A program of its own, without PyTorch: every instruction set that this CPU has against the reference, on random
// input in buffers of the exact size. Built for other CPUs it runs under an emulator; under AddressSanitizer, with
// more seconds, it is the fuzzer.
//
//   conformance [seconds [seed]]
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "isa.h"

namespace {

using Bytes = std::vector<std::uint8_t>;
using Random = std::mt19937_64;

std::int64_t between(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

Bytes random_bytes(Random& random, std::int64_t count) {
  Bytes bytes(static_cast<std::size_t>(count));
  for (std::uint8_t& byte : bytes) {
    byte = static_cast<std::uint8_t>(random());
  }
  return bytes;
}

bool packing_agrees(const subbyte::Kernels& kernels, Random& random) {
  const std::int64_t count = between(random, 0, 300);
  const int bits = static_cast<int>(between(random, 1, 8));
  const Bytes codes = random_bytes(random, count);
  const std::size_t packed_size = static_cast<std::size_t>((count * bits + 7) / 8);
  Bytes want(packed_size), got(packed_size);
  subbyte::reference_kernels.pack(codes.data(), count, bits, want.data());
  kernels.pack(codes.data(), count, bits, got.data());
  if (got != want) {
    return false;
  }
  for (const bool is_signed : {false, true}) {
    Bytes back(codes.size()), again(codes.size());
    subbyte::reference_kernels.unpack(want.data(), count, bits, is_signed, back.data());
    kernels.unpack(want.data(), count, bits, is_signed, again.data());
    if (back != again) {
      return false;
    }
  }
  return true;
}

bool signs_agree(const subbyte::Kernels& kernels, Random& random) {
  const float special[] = {0.0f, -0.0f, 1e-45f, -1e-45f, NAN, INFINITY, -INFINITY};
  std::vector<float> x(static_cast<std::size_t>(between(random, 0, 100)));
  for (float& value : x) {
    value = random() % 2 == 0 ? special[random() % 7] : static_cast<float>(between(random, -9, 9));
  }
  Bytes want((x.size() + 7) / 8), got(want.size());
  subbyte::reference_kernels.sign_pack(x.data(), static_cast<std::int64_t>(x.size()), want.data());
  kernels.sign_pack(x.data(), static_cast<std::int64_t>(x.size()), got.data());
  return got == want;
}

bool quantizing_agrees(const subbyte::Kernels& kernels, Random& random) {
  const bool is_signed = random() % 2 == 0;
  const int bits = static_cast<int>(between(random, 1, 8));
  const std::int32_t low = is_signed ? -(1 << (bits - 1)) : 0, high = low + (1 << bits) - 1;
  const subbyte::Affine affine = {0.25f * static_cast<float>(between(random, 1, 9)),
                                  static_cast<std::int32_t>(between(random, low, high)), low, high, is_signed ? 0 : 128};
  std::vector<float> x(static_cast<std::size_t>(between(random, 0, 100)));
  for (float& value : x) {  // halves of the scale among them: ties
    value = 0.125f * static_cast<float>(between(random, -4000, 4000));
  }
  if (!x.empty() && random() % 3 == 0) {
    const float special[] = {NAN, INFINITY, -INFINITY, 3e38f, -0.0f};
    x[random() % x.size()] = special[random() % 5];
  }
  std::vector<std::int8_t> want(x.size()), got(x.size());
  const auto count = static_cast<std::int64_t>(x.size());
  const bool want_nan = subbyte::reference_kernels.quantize(x.data(), count, affine, want.data());
  return kernels.quantize(x.data(), count, affine, got.data()) == want_nan && got == want;
}

// Bytes drawn evenly, or all at one end: the largest sums there are.
std::uint8_t extreme_or_any(Random& random, int kind, int high) {
  return static_cast<std::uint8_t>(kind == 0 ? 0 : kind == 1 ? high : static_cast<int>(random() % (high + 1u)));
}

bool linear_agrees(const subbyte::Kernels& kernels, Random& random) {
  subbyte::Linear call{};
  call.rows = between(random, 1, 30);
  call.outputs = between(random, 1, 40);
  call.groups = between(random, 1, 3);
  call.bits = static_cast<int>(between(random, 1, 8));
  std::vector<std::int64_t> steps, sizes;
  for (std::int64_t group = 0; group < call.groups; ++group) {
    sizes.push_back(between(random, 1, random() % 20 == 0 ? 3000 : 60));
    steps.push_back((sizes.back() + 3) / 4);
    call.steps += steps.back();
  }
  const std::int64_t panels = (call.outputs + 15) / 16;
  const int x_kind = static_cast<int>(random() % 3), w_kind = static_cast<int>(random() % 3);
  std::vector<std::int8_t> x(static_cast<std::size_t>(call.rows * call.steps * 4));
  for (std::int8_t& value : x) {
    value = static_cast<std::int8_t>(extreme_or_any(random, x_kind, 255) - 128);
  }
  Bytes codes(static_cast<std::size_t>(panels * call.steps * 64));
  for (std::uint8_t& code : codes) {
    code = extreme_or_any(random, w_kind, (1 << call.bits) - 1);
  }
  Bytes packed(static_cast<std::size_t>(panels * call.steps * 8 * call.bits));
  subbyte::reference_kernels.pack(codes.data(), static_cast<std::int64_t>(codes.size()), call.bits, packed.data());
  const auto integers = [&](std::int64_t count, std::int64_t most) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(count));
    for (std::int32_t& value : values) {
      value = static_cast<std::int32_t>(between(random, -most, most));
    }
    return values;
  };
  const auto floats = [&](std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) {
      value = std::uniform_real_distribution<float>(0.001f, 2.0f)(random);
    }
    return values;
  };
  const std::int64_t parameters = panels * call.groups * 16;
  const auto x_sums = integers(call.rows * call.groups, 1 << 20), x_zeros = integers(call.rows, 255);
  const auto w_zeros = integers(parameters, 255), w_sums = integers(parameters, 1 << 20);
  const auto x_scales = floats(call.rows), w_scales = floats(parameters), bias = floats(panels * 16);
  call.group_steps = steps.data(), call.group_sizes = sizes.data();
  call.x = x.data(), call.x_sums = x_sums.data(), call.x_scales = x_scales.data(), call.x_zeros = x_zeros.data();
  call.panels = packed.data(), call.w_scales = w_scales.data(), call.w_zeros = w_zeros.data();
  call.w_sums = w_sums.data(), call.bias = random() % 2 == 0 ? bias.data() : nullptr;
  std::vector<float> want(static_cast<std::size_t>(call.rows * call.outputs)), got(want.size());
  call.y = want.data();
  subbyte::reference_kernels.linear(call, 0, call.rows, 0, panels);
  call.y = got.data();
  const std::int64_t row = between(random, 0, call.rows), panel = between(random, 0, panels);
  kernels.linear(call, 0, row, 0, panels);  // in pieces, as threads take it
  kernels.linear(call, row, call.rows, 0, panel);
  kernels.linear(call, row, call.rows, panel, panels);
  return std::memcmp(want.data(), got.data(), want.size() * sizeof(float)) == 0;
}

using Agreement = bool (*)(const subbyte::Kernels&, Random&);
const struct {
  const char* name;
  Agreement agrees;
} kAgreements[] = {{"packing", packing_agrees}, {"signs", signs_agree}, {"quantize", quantizing_agrees},
                   {"linear", linear_agrees}};

}  // namespace

int main(int argument_count, char** arguments) {
  const double seconds = argument_count > 1 ? std::atof(arguments[1]) : 1;
  const std::uint64_t seed = argument_count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 0;
  Random random(seed);
  const auto start = std::chrono::steady_clock::now();
  long rounds = 0;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds) {
    for (const subbyte::Isa& isa : subbyte::isas()) {
      for (const auto& agreement : kAgreements) {
        if (isa.available && !agreement.agrees(*isa.kernels, random)) {
          std::printf("%s of %s differs from the reference in round %ld of seed %llu\n", agreement.name,
                      isa.name.c_str(), rounds, static_cast<unsigned long long>(seed));
          return 1;
        }
      }
    }
    ++rounds;
  }
  for (const subbyte::Isa& isa : subbyte::isas()) {
    std::printf("%s: %s\n", isa.name.c_str(), isa.available ? "agrees" : "not on this CPU");
  }
  std::printf("%ld rounds of seed %llu\n", rounds, static_cast<unsigned long long>(seed));
  return 0;
}
