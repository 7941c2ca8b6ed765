// What an operator requires of a tensor that it is given.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "../torch/tensor.h"

namespace subbyte {

// Refuses a tensor of another dtype than these, or on another device than the CPU; `what`: what it is called.
void require_tensor(const Tensor& tensor, const std::string& what, std::initializer_list<std::int32_t> dtypes);

}  // namespace subbyte
