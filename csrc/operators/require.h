// What an operator refuses, as the exception that reaches Python as a RuntimeError.
#pragma once

#include <stdexcept>
#include <string>

namespace subbyte {

inline void require(bool holds, const std::string& message) {
  if (!holds) {
    throw std::runtime_error(message);
  }
}

}  // namespace subbyte
