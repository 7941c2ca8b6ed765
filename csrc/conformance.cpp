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

}  // namespace

int main(int argument_count, char** arguments) {
  const double seconds = argument_count > 1 ? std::atof(arguments[1]) : 1;
  const std::uint64_t seed = argument_count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 0;
  Random random(seed);
  const auto start = std::chrono::steady_clock::now();
  long rounds = 0;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds) {
    for (const subbyte::Isa& isa : subbyte::isas()) {
      if (isa.available && !(packing_agrees(*isa.kernels, random) && signs_agree(*isa.kernels, random))) {
        std::printf("%s differs from the reference in round %ld of seed %llu\n", isa.name.c_str(), rounds,
                    static_cast<unsigned long long>(seed));
        return 1;
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
