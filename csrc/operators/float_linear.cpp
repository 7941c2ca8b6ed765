// linear_float: rows of floats multiplied with packed codes.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "../isa.h"
#include "../kernels/float_linear.h"
#include "epilogue.h"
#include "operators.h"
#include "product.h"
#include "require.h"

namespace subbyte {
namespace {

// Rows of floats in which each group is filled up to whole steps; the rows themselves where nothing is missing.
class FilledRows {
 public:
  FilledRows(const float* x, std::int64_t rows, std::int64_t inputs, const Segments& groups) : x_(x), stride_(inputs) {
    const Segment& last = groups.segments.back();
    if (last.x_offset + last.steps * kStep == inputs) {
      return;
    }
    stride_ = last.x_offset + last.steps * kStep;
    copy_.resize(static_cast<std::size_t>(rows * stride_));
    for (std::int64_t m = 0; m < rows; ++m) {
      for (std::size_t group = 0; group < groups.segments.size(); ++group) {
        const std::int64_t size = groups.group_sizes[group];
        std::memcpy(copy_.data() + m * stride_ + groups.segments[group].x_offset, x, static_cast<std::size_t>(size) * 4);
        x += size;
      }
    }
    x_ = copy_.data();
  }

  const float* data() const { return x_; }
  std::int64_t stride() const { return stride_; }

 private:
  std::vector<float> copy_;
  const float* x_;
  std::int64_t stride_;
};

// These rows and panels in `values`, row after row.
FloatLinear part_of(const FloatLinear& call, std::int64_t row, std::int64_t panel, std::int64_t end_panel,
                    float* values) {
  FloatLinear part = call;
  const std::int64_t first = panel * kPanel, parameters = panel * call.groups * kPanel;
  part.outputs = (end_panel * kPanel < call.outputs ? end_panel * kPanel : call.outputs) - first;
  part.x += row * call.x_stride, part.panels += panel * call.panel_bytes, part.w_scales += parameters;
  part.w_zeros = call.w_zeros == nullptr ? nullptr : call.w_zeros + parameters;
  part.bias = call.bias == nullptr ? nullptr : call.bias + first;
  part.y = values;
  return part;
}

void multiply_floats(StackValue* stack, EpilogueArguments* fused) {
  const TorchApi& api = torch_api();
  const std::int32_t float32 = api.dtype_float32();
  std::vector<Tensor> tensors = tensors_of(stack, 6);
  const Tensor x = checked(std::move(tensors[0]), "x", float32);
  const Tensor weight = checked(std::move(tensors[1]), "the packed weight", api.dtype_uint8());
  const Tensor scale = checked(std::move(tensors[2]), "the weight's scale", float32);
  const Tensor zero_point = checked(std::move(tensors[3]), "the weight's zero point", float32);
  const Tensor values = checked(std::move(tensors[4]), "the table of values", float32);
  const Tensor bias = checked(std::move(tensors[5]), "the bias", float32);
  const auto bits = static_cast<std::int64_t>(stack[6]), outputs = static_cast<std::int64_t>(stack[7]);
  const auto inputs = static_cast<std::int64_t>(stack[8]), group_size = static_cast<std::int64_t>(stack[9]);
  const std::vector<std::int64_t> sizes = x.sizes();
  require(bits >= 1 && bits <= 8, "codes take 1..8 bits, not " + std::to_string(bits));
  require(inputs > 0 && outputs > 0, "a layer has inputs and outputs");
  require(sizes.size() == 2 && sizes[1] == inputs, "x has rows, each of as many columns as the layer has inputs");
  require(group_size > 0, "a group holds something");
  const Segments groups = groups_of(inputs, group_size, weight);
  const std::int64_t panels = divided_up(outputs, kPanel);
  FloatLinear call{};
  call.rows = sizes[0], call.outputs = outputs, call.bits = static_cast<int>(bits);
  call.groups = static_cast<std::int64_t>(groups.segments.size()), call.segments = groups.segments.data();
  call.panel_bytes = product_of({groups.blocks, block_bytes(call.bits)}, "the weight");
  const std::int64_t parameters = product_of({panels, call.groups, kPanel}, "the weight");
  const bool has_zeros = zero_point.count() != 0, has_bias = bias.count() != 0;
  require_count(weight, "the packed weight", product_of({panels, call.panel_bytes}, "the weight"));
  require_count(scale, "the weight's scale", parameters);
  require_count(zero_point, "the weight's zero point", has_zeros ? parameters : 0);
  require_count(values, "the table of values", bits <= 4 ? 16 : 0);
  require_count(bias, "the bias", has_bias ? panels * kPanel : 0);
  Results results(fused, {call.rows, outputs}, false);
  const FilledRows rows(x.data<float>(), call.rows, inputs, groups);
  call.x = rows.data(), call.x_stride = rows.stride(), call.panels = weight.data<std::uint8_t>();
  call.w_scales = scale.data<float>(), call.values = values.data<float>();
  call.w_zeros = has_zeros ? zero_point.data<float>() : nullptr;
  call.bias = has_bias ? bias.data<float>() : nullptr, call.y = results.floats();
  const FloatLinearKernels& kernels = *chosen_isa().kernels.float_linear;
  Epilogue* const epilogue = results.epilogue();
  in_pieces(call.rows, outputs, 4 * inputs, [&](std::int64_t row, std::int64_t end_row, std::int64_t panel, std::int64_t end) {
    if (epilogue == nullptr) {
      return kernels.linear(call, row, end_row, panel, end);
    }
    float values[kRowsOfPiece * kPanelsOfPiece * kPanel];
    const FloatLinear part = part_of(call, row, panel, end, values);
    kernels.linear(part, 0, end_row - row, 0, end - panel);
    epilogue->write({values, end_row - row, part.outputs, part.outputs, row, panel * kPanel});
  });
  results.refuse_bad_scales(scale);
  stack[0] = std::move(results).to_stack();
}

constexpr int kArguments = 10;

void linear_float(StackValue* stack, std::uint64_t, std::uint64_t) { multiply_floats(stack, nullptr); }

void linear_float_fused(StackValue* stack, std::uint64_t, std::uint64_t) {
  EpilogueArguments epilogue(stack + kArguments);
  multiply_floats(stack, &epilogue);
}

#define SUBBYTE_ARGUMENTS                                                                                    \
  "Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_zero_point, Tensor values, Tensor bias, int " \
  "bits, int outputs, int inputs, int group_size"

}  // namespace

std::vector<Operator> float_linear_operators() {
  return {{"linear_float", "linear_float(" SUBBYTE_ARGUMENTS ") -> Tensor", linear_float},
          {"linear_float_fused", "linear_float_fused(" SUBBYTE_ARGUMENTS ", " SUBBYTE_EPILOGUE ") -> Tensor",
           linear_float_fused}};
}

}  // namespace subbyte
