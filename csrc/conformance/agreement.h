// What the agreements share: one function for each family of kernels, true where they equal the reference on one
// random input in buffers of the exact size.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "../kernels/table.h"

namespace conformance {

using Bytes = std::vector<std::uint8_t>;
using Random = std::mt19937_64;

inline std::int64_t between(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

inline Bytes random_bytes(Random& random, std::int64_t count) {
  Bytes bytes(static_cast<std::size_t>(count));
  for (std::uint8_t& byte : bytes) {
    byte = static_cast<std::uint8_t>(random());
  }
  return bytes;
}

bool packing_agrees(const subbyte::Kernels& kernels, Random& random);
bool signs_agree(const subbyte::Kernels& kernels, Random& random);
bool quantizing_agrees(const subbyte::Kernels& kernels, Random& random);
bool grids_agree(const subbyte::Kernels& kernels, Random& random);
bool gradients_agree(const subbyte::Kernels& kernels, Random& random);
bool ranges_agree(const subbyte::Kernels& kernels, Random& random);
bool rescaling_agrees(const subbyte::Kernels& kernels, Random& random);
bool linear_agrees(const subbyte::Kernels& kernels, Random& random);
bool float_linear_agrees(const subbyte::Kernels& kernels, Random& random);
bool bf16_linear_agrees(const subbyte::Kernels& kernels, Random& random);
bool depthwise_agrees(const subbyte::Kernels& kernels, Random& random);
bool thresholds_agree(const subbyte::Kernels& kernels, Random& random);
bool joining_agrees(const subbyte::Kernels& kernels, Random& random);
bool binary_agrees(const subbyte::Kernels& kernels, Random& random);
bool epilogues_agree(const subbyte::Kernels& kernels, Random& random);

}  // namespace conformance
