// The library's entry points, called by Python or by a C++ program once libtorch is loaded.
#include <cstddef>
#include <exception>
#include <string>

#include "isa.h"
#include "operators/operators.h"
#include "torch/huge_pages.h"
#include "torch/torch_api.h"

namespace {

void register_all() {
  using namespace subbyte;
  const TorchApi& api = torch_api();
  chosen_isa();
  LibraryHandle definitions = nullptr, implementations = nullptr;  // kept for as long as the process lives
  check(api.library_init_fragment("subbyte", __FILE__, __LINE__, &definitions), "library_init_fragment");
  check(api.library_init_impl("subbyte", "CPU", __FILE__, __LINE__, &implementations), "library_init_impl");
  for (const std::vector<Operator>& operators :
       {packing_operators(), panel_operators(), linear_operators(), float_linear_operators(), convolution_operators(),
        float_convolution_operators(), binary_linear_operators(), binary_conv2d_operators(), depthwise_operators(),
        embedding_operators(), quantize_operators(), range_operators(), rescale_operators()}) {
    for (const Operator& each : operators) {
      check(api.library_def(definitions, each.schema), "library_def");
      check(api.library_impl(implementations, each.name, each.kernel), "library_impl");
    }
  }
}

std::string described() {
  std::string lines;
  for (const subbyte::Isa& isa : subbyte::isas()) {
    const bool chosen = &isa == &subbyte::chosen_isa();
    lines += isa.name + "\t" + isa.needs + "\t" + (isa.available ? "yes" : "no") + "\t" + (chosen ? "yes" : "no") + "\t" + isa.families + "\n";
  }
  return lines;
}

template <typename Work>
const char* problem_of(const Work& work) {
  static thread_local std::string problem;
  try {
    work();
    return nullptr;
  } catch (const std::exception& error) {
    problem = error.what();
    return problem.c_str();
  }
}

}  // namespace

#define SUBBYTE_EXPORT extern "C" __attribute__((visibility("default")))

// Defines the operators of `subbyte` and registers them for the CPU; nullptr, or what went wrong.
SUBBYTE_EXPORT const char* subbyte_register() { return problem_of(register_all); }

// Uses the kernels of this instruction set from now on ("": the widest); nullptr, or what went wrong.
SUBBYTE_EXPORT const char* subbyte_use_isa(const char* name) {
  return problem_of([name] { subbyte::use_isa(name); });
}

// For each instruction set of this build a line: name, what it needs, whether the CPU has it, whether it is used,
// whose each family of its kernels is.
// To be asked after subbyte_register; until the next call of it from the same thread.
SUBBYTE_EXPORT const char* subbyte_isas() {
  static thread_local std::string lines;
  lines = described();
  return lines.c_str();
}

// See huge_pages.h.
SUBBYTE_EXPORT void subbyte_advise_huge_pages(void* memory, std::size_t size) {
  subbyte::advise_huge_pages(memory, size);
}
