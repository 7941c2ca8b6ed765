// What the operators share that multiply floats with a packed weight.
#pragma once

#include <cstdint>
#include <utility>

#include "../isa.h"
#include "../kernels/float_linear.h"
#include "product.h"
#include "require.h"

namespace subbyte {

// The tensors (weight, weight_scale, weight_zero_point, values, bias) of an operator.
class FloatArguments {
 public:
  FloatArguments(Tensor* first, std::int64_t bits);

  // Checks them against `panels` panels and `segments`, and fills in the pointers.
  template <typename Number>
  void describe(FloatProduct<Number>& call, const Segments& segments, std::int64_t panels) const {
    call.bits = bits_, call.segments = segments.segments.data();
    call.segment_count = static_cast<std::int64_t>(segments.segments.size());
    call.groups = static_cast<std::int64_t>(segments.group_sizes.size());
    call.panel_bytes = product_of({segments.blocks, block_bytes(bits_)}, "the weight");
    check(panels, call.groups, call.panel_bytes);
    call.panels = weight_.data<std::uint8_t>(), call.values = values_.count() == 0 ? nullptr : values_.data<float>();
    call.w_scales = scale_.data<float>(), call.w_zeros = zero_point_.count() == 0 ? nullptr : zero_point_.data<float>();
    call.bias = bias_.count() == 0 ? nullptr : bias_.data<float>();
  }

  // Whether all that x is multiplied with is what kernels/bf16_linear.h takes.
  bool is_exact_in_bf16() const;

  const Tensor& scale() const { return scale_; }
  const Tensor& weight() const { return weight_; }

 private:
  void check(std::int64_t panels, std::int64_t groups, std::int64_t panel_bytes) const;

  Tensor weight_, scale_, zero_point_, values_, bias_;
  int bits_;
};

// Where x may be of fp32 or bf16.
Tensor checked_float_layout(Tensor&& x);

// y = run(x, kernels), of the dtype of x: by the kernels for it, else those for fp32.
template <typename Run>
Tensor by_dtype(const Tensor& x, const FloatArguments& weight, const Run& run) {
  const TorchApi& api = torch_api();
  const Kernels& kernels = chosen_isa().kernels;
  if (x.dtype() == api.dtype_float32()) {
    return run(x, *kernels.float_linear);
  }
  if (kernels.bf16_linear != nullptr && weight.is_exact_in_bf16()) {
    return run(x, *kernels.bf16_linear);
  }
  return run(x.to(api.dtype_float32()), *kernels.float_linear).to(api.dtype_bfloat16());
}

}  // namespace subbyte
