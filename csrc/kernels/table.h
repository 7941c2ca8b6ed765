// The table of kernels: for each family of them the one that is used.
//
// What a family computes stands in its header and, in plain C++, in reference/. The files of an instruction set include
// nothing but <stdint.h> and intrinsics: a function of the standard library that the compiler emits there, with their
// flags, could be the copy that the linker keeps for every CPU.
#pragma once

#include "bf16_linear.h"
#include "binary.h"
#include "depthwise.h"
#include "epilogue.h"
#include "float_linear.h"
#include "linear.h"
#include "packing.h"
#include "quantize.h"
#include "rescale.h"

namespace subbyte {

struct Kernels {
  const PackingKernels* packing;
  const QuantizeKernels* quantize;
  const RescaleKernels* rescale;
  const LinearKernels* linear;
  const FloatLinearKernels* float_linear;
  const Bf16LinearKernels* bf16_linear;  // null: those of fp32 serve
  const DepthwiseKernels* depthwise;
  const BinaryKernels* binary;
  const EpilogueKernels* epilogue;
};

}  // namespace subbyte
