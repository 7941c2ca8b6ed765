// What an operator refuses, as the exception that reaches Python as a RuntimeError.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace subbyte {

inline void require(bool holds, const std::string& message) {
  if (!holds) {
    throw std::runtime_error(message);
  }
}

// The same without a string made of the message, where it holds.
inline void require(bool holds, const char* message) {
  if (!holds) {
    throw std::runtime_error(message);
  }
}

// What is past it is refused: memory has less, and sums and products of a few such sizes do not overflow.
constexpr std::int64_t kLargest = std::int64_t{1} << 48;

// The product of sizes that are not negative.
inline std::int64_t product_of(std::initializer_list<std::int64_t> sizes, const char* name) {
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) {
    if (size != 0 && product > kLargest / size) {
      throw std::runtime_error(std::string(name) + " is too large");
    }
    product *= size;
  }
  return product;
}

}  // namespace subbyte
