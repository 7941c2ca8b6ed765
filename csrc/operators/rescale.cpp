// rescale_: exact sums into values, in place.
#include <utility>
#include <vector>

#include "../isa.h"
#include "../torch/tensor.h"
#include "blocks.h"
#include "operators.h"
#include "parallel.h"
#include "require.h"
#include "tensor_argument.h"

namespace subbyte {
namespace {

using Sizes = std::vector<std::int64_t>;

constexpr std::int64_t kGrain = 1 << 15;  // values that one thread takes at least

Tensor checked(Tensor tensor, const char* what) {
  require_tensor(tensor, what, {torch_api().dtype_float32()});
  return std::move(tensor).contiguous();
}

// Sizes with so many axes: leading ones of 1 are added.
Sizes padded(Sizes sizes, std::size_t axes) {
  require(sizes.size() <= axes, "the scale and the bias have at most as many axes as the sums");
  sizes.insert(sizes.begin(), axes - sizes.size(), 1);
  return sizes;
}

void rescale_in_place(StackValue* stack, std::uint64_t, std::uint64_t) {
  Tensor sums = Tensor::from_stack(stack[0]), first = Tensor::from_stack(stack[1]);
  Tensor second = Tensor::from_stack(stack[2]), third = Tensor::from_stack(stack[3]);
  require_tensor(sums, "the sums", {torch_api().dtype_float32()});
  const Tensor x_scale = checked(std::move(first), "the scale of x"), scale = checked(std::move(second), "the scale");
  const Tensor bias = checked(std::move(third), "the bias");
  const Sizes sizes = sums.sizes();
  require(x_scale.count() == 1, "the scale of x is one");
  const bool has_gaps = !is_dense(sizes, sums.strides());
  Tensor dense = Tensor::empty(has_gaps ? sizes : Sizes{0}, torch_api().dtype_float32());
  if (has_gaps) {
    dense.copy_from(sums);
    std::swap(dense, sums);  // from here on `dense` is what is to be written
  }
  const std::int64_t count = sums.count(), scales = scale.count(), biases = bias.count();
  if (count == 0) {
    return;
  }
  const Sizes of_scale = padded(scale.sizes(), sizes.size());
  const Sizes of_bias = biases == 0 ? of_scale : padded(bias.sizes(), sizes.size());
  require(scales > 0 && (scales == 1 || biases <= 1 || of_scale == of_bias), "the bias does not fit the scale");
  const Blocks blocks(sizes, sums.strides(), scales == 1 ? of_bias : of_scale, 0);
  // Adding -0 changes nothing, adding 0 does change -0.
  std::vector<float> factors, terms;
  for (const std::int64_t source : blocks.sources()) {
    factors.push_back(x_scale.data<float>()[0] * scale.data<float>()[scales == 1 ? 0 : source]);
    terms.push_back(biases == 0 ? -0.0f : bias.data<float>()[biases == 1 ? 0 : source]);
  }
  auto* values = sums.data<float>();
  const RescaleKernels& kernels = *chosen_isa().kernels.rescale;
  in_parallel(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    blocks.each_run(begin, end, [&](std::int64_t from, std::int64_t length, std::int64_t parameter, std::int64_t stride) {
      kernels.rescale(values + from, length, factors.data() + parameter, terms.data() + parameter, stride);
    });
  });
  if (has_gaps) {
    dense.copy_from(sums);
  }
}

}  // namespace

std::vector<Operator> rescale_operators() {
  return {operator_of<rescale_in_place>(
      "rescale_(Tensor(a!) sums, Tensor x_scale, Tensor scale, Tensor bias) -> ()")};
}

}  // namespace subbyte
