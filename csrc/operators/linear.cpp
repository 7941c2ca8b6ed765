// linear_codes: rows of floats quantized, or of codes, multiplied with packed codes, rescaled.
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "../isa.h"
#include "code_source.h"
#include "epilogue.h"
#include "operators.h"
#include "parallel.h"
#include "product.h"
#include "require.h"
#include "tensor_argument.h"

namespace subbyte {
namespace {

constexpr std::int64_t kGrain = 1 << 13;  // floats that one thread quantizes at least

// Rows that lie a multiple of 1 KiB apart would share few places of a cache.
std::int64_t row_stride(std::int64_t bytes) {
  const std::int64_t lines = divided_up(bytes, 64);
  return 64 * (lines % 16 == 0 ? lines + 1 : lines);
}

// The rows as shifted codes, each group filled up to whole steps, and the sum of each group.
struct Rows {
  std::vector<std::int8_t> codes;
  std::vector<std::int64_t> offsets;
  std::vector<std::int32_t> sums;
  std::vector<float> scales;
  std::vector<std::int32_t> zeros;

  Rows(std::int64_t rows, std::int64_t groups, std::int64_t stride)
      : codes(static_cast<std::size_t>(rows * stride)), offsets(static_cast<std::size_t>(rows)),
        sums(static_cast<std::size_t>(rows * groups)), scales(offsets.size()), zeros(offsets.size()) {
    for (std::size_t m = 0; m < offsets.size(); ++m) {
      offsets[m] = static_cast<std::int64_t>(m) * stride;
    }
  }

  // How row m is scaled. A NaN has no code: it makes the whole row NaN, as it would in float.
  void set_parameters(std::size_t m, const Affine& affine, bool any_nan) {
    scales[m] = any_nan ? std::numeric_limits<float>::quiet_NaN() : affine.scale;
    zeros[m] = affine.zero_point - affine.shift;
  }

  void describe(Linear& call) const {
    call.rows = static_cast<std::int64_t>(offsets.size());
    call.x = codes.data(), call.row_offsets = offsets.data(), call.x_sums = sums.data();
    call.x_scales = scales.data(), call.x_zeros = zeros.data(), call.x_step = 1;
  }
};

// The numbers of x from `first` on are row m.
void fill_row(const CodeSource& x, std::int64_t first, const Segments& groups, const Affine& affine, std::size_t m,
              Rows& rows) {
  const LinearKernels& kernels = *chosen_isa().kernels.linear;
  const std::size_t count = groups.group_sizes.size();
  bool any_nan = false;
  for (std::size_t group = 0; group < count; ++group) {
    const std::int64_t size = groups.group_sizes[group];
    std::int8_t* const codes = rows.codes.data() + rows.offsets[m] + groups.segments[group].x_offset;
    any_nan = x.write(first, size, affine, codes) || any_nan;
    rows.sums[m * count + group] = kernels.sum(codes, size);
    first += size;
  }
  rows.set_parameters(m, affine, any_nan);
}

void multiply_codes(StackValue* stack, EpilogueArguments* epilogue) {
  std::vector<Tensor> tensors = tensors_of(stack, 9);
  const TorchApi& api = torch_api();
  require_tensor(tensors[0], "x", {api.dtype_float32(), api.dtype_uint8(), api.dtype_int8()});
  const Tensor x = std::move(tensors[0]).contiguous();
  const PackedArguments weight(&tensors[1]);
  const CodesOfX codes(&tensors[7], stack + 9);
  const auto bits = static_cast<std::int64_t>(stack[11]), outputs = static_cast<std::int64_t>(stack[12]);
  const auto inputs = static_cast<std::int64_t>(stack[13]), group_size = static_cast<std::int64_t>(stack[14]);
  const std::vector<std::int64_t> sizes = x.sizes();
  require(bits >= 1 && bits <= 8, "codes take 1..8 bits, not " + std::to_string(bits));
  require(inputs > 0 && outputs > 0, "a layer has inputs and outputs");
  require(sizes.size() == 2 && sizes[1] == inputs, "x has rows, each of as many columns as the layer has inputs");
  require(group_size > 0, "a group holds something");
  codes.check(sizes[0]);
  const Segments groups = groups_of(inputs, group_size, weight.weight());
  Linear call{};
  call.outputs = outputs, call.bits = static_cast<int>(bits);
  groups.describe(call);
  weight.describe(call, divided_up(outputs, kPanel));
  const Segment& last = groups.segments.back();
  Rows rows(sizes[0], call.groups, row_stride(last.x_offset + last.steps * kStep));
  const CodeSource source(x);
  in_parallel(sizes[0], divided_up(kGrain, inputs), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = begin; m < end; ++m) {
      fill_row(source, m * inputs, groups, codes.of_row(m), static_cast<std::size_t>(m), rows);
    }
  });
  source.refuse_what_is_outside();
  rows.describe(call);
  Results results(epilogue, {sizes[0], outputs}, false);
  call.y = results.floats(), call.y_stride = outputs;
  multiply(call, results.epilogue());
  results.refuse_bad_scales(weight.scale());
  stack[0] = std::move(results).to_stack();
}

constexpr int kArguments = 15;

void linear_codes(StackValue* stack, std::uint64_t, std::uint64_t) { multiply_codes(stack, nullptr); }

void linear_codes_fused(StackValue* stack, std::uint64_t, std::uint64_t) {
  EpilogueArguments epilogue(stack + kArguments);
  multiply_codes(stack, &epilogue);
}

#define SUBBYTE_ARGUMENTS                                                                                        \
  "Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_zero_point, Tensor weight_sums, Tensor values, "  \
  "Tensor bias, Tensor x_scale, Tensor x_zero_point, int x_low, int x_high, int bits, int outputs, int inputs, " \
  "int group_size"

}  // namespace

std::vector<Operator> linear_operators() {
  return {operator_of<linear_codes>("linear_codes(" SUBBYTE_ARGUMENTS ") -> Tensor"),
          operator_of<linear_codes_fused>("linear_codes_fused(" SUBBYTE_ARGUMENTS ", " SUBBYTE_EPILOGUE ") -> Tensor")};
}

}  // namespace subbyte
