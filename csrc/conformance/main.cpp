// A program of its own, without PyTorch: every instruction set that this CPU has against the reference, on random
// input in buffers of the exact size. Built for other CPUs it runs under an emulator; under AddressSanitizer, with
// more seconds, it is the fuzzer.
//
//   conformance [seconds [seed]]
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "../isa.h"
#include "agreement.h"

namespace {

using conformance::Random;
using Agreement = bool (*)(const subbyte::Kernels&, Random&);
const struct {
  const char* name;
  Agreement agrees;
} kAgreements[] = {{"packing", conformance::packing_agrees},
                   {"signs", conformance::signs_agree},
                   {"quantize", conformance::quantizing_agrees},
                   {"grids", conformance::grids_agree},
                   {"gradients", conformance::gradients_agree},
                   {"ranges", conformance::ranges_agree},
                   {"rescale", conformance::rescaling_agrees},
                   {"linear", conformance::linear_agrees},
                   {"float_linear", conformance::float_linear_agrees},
                   {"bf16_linear", conformance::bf16_linear_agrees},
                   {"depthwise", conformance::depthwise_agrees},
                   {"thresholds", conformance::thresholds_agree},
                   {"joining", conformance::joining_agrees},
                   {"binary", conformance::binary_agrees},
                   {"epilogue", conformance::epilogues_agree}};

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
        if (isa.available && !agreement.agrees(isa.kernels, random)) {
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
