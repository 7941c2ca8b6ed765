// The operators' implementations for the CPU, as boxed kernels, and their schemas.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "../torch/torch_api.h"

namespace subbyte {

struct Operator {
  const char* name;
  const char* schema;
  BoxedKernel kernel;
};

// A kernel, of which what it refuses begins with the operator's name.
template <BoxedKernel kernel>
struct Named {
  static inline std::string name;

  static void run(StackValue* stack, std::uint64_t argument_count, std::uint64_t result_count) {
    try {
      kernel(stack, argument_count, result_count);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(name + ": " + error.what());
    }
  }
};

// The operator of a schema, which begins with its name.
template <BoxedKernel kernel>
Operator operator_of(const char* schema) {
  std::string& name = Named<kernel>::name;
  name = schema;
  name.resize(name.find('('));
  return {name.c_str(), schema, Named<kernel>::run};
}

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
