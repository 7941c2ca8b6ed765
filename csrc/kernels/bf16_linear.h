// Numbers in bf16 times packed integer codes.
#pragma once

#include <stdint.h>

#include "float_linear.h"

namespace subbyte {

// x and y are the bits of bf16. What x meets, w - w_zero, must be exact in bf16, and 0 or at least 2^-126 in size.
//
// The sum of a group is one of fp32, to which the CPU adds two products at a time in its own way: rounded to nearest twice,
// or once, and less than 2^-126 taken for 0, in x, in a product, in a sum. So is each group added by a fused multiply-add,
// and then the bias, before y is rounded. With u = 2^-24, K inputs and G groups, before it is rounded y is off by at most
//
//   (K + G + 2) u * sum |x w|  +  2^-125 * sum max(|w_k|, |w_scale_k|) + 2^-126,   w = (w - w_zero) * w_scale,
//
// |bias| being one of the |x w|: each of the K + G + 2 roundings is of a part of that sum; each of the K values of x moves
// by less than 2^-126, which |w_k| multiplies, and so does each sum, which the scale multiplies.
//
// An instruction set whose sums are those of fp32 (float_linear.h) has none of these kernels. A row's result does not
// depend on the rows beside it.
using Bf16Linear = FloatProduct<uint16_t>;
using Bf16LinearKernels = FloatProductKernels<uint16_t>;

extern const Bf16LinearKernels avx512_bf16_linear;

}  // namespace subbyte
