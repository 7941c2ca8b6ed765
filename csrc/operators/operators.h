// The operators' implementations for the CPU, as boxed kernels, and their schemas.
#pragma once

#include <vector>

#include "../torch/torch_api.h"

namespace subbyte {

struct Operator {
  const char* name;
  const char* schema;
  BoxedKernel kernel;
};

// One list for each file of operators.
std::vector<Operator> packing_operators();
std::vector<Operator> panel_operators();
std::vector<Operator> linear_operators();
std::vector<Operator> float_linear_operators();
std::vector<Operator> float_convolution_operators();
std::vector<Operator> convolution_operators();
std::vector<Operator> depthwise_operators();
std::vector<Operator> embedding_operators();
std::vector<Operator> quantize_operators();
std::vector<Operator> range_operators();
std::vector<Operator> rescale_operators();
std::vector<Operator> binary_linear_operators();
std::vector<Operator> binary_conv2d_operators();

}  // namespace subbyte
