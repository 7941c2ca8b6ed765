// linear_float: rows of floats multiplied with packed codes.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "epilogue.h"
#include "float_product.h"
#include "operators.h"
#include "require.h"

namespace subbyte {
namespace {

// Rows of numbers in which each group is filled up to whole steps; the rows themselves where nothing is missing.
template <typename Number>
class FilledRows {
 public:
  FilledRows(const Number* x, std::int64_t rows, std::int64_t inputs, const Segments& groups) : x_(x), offsets_(rows) {
    const Segment& last = groups.segments.back();
    const std::int64_t stride = last.x_offset + last.steps * kStep;
    for (std::int64_t m = 0; m < rows; ++m) {
      offsets_[static_cast<std::size_t>(m)] = m * stride;
    }
    if (stride == inputs) {
      return;
    }
    copy_.resize(static_cast<std::size_t>(rows * stride));
    for (std::int64_t m = 0; m < rows; ++m) {
      for (std::size_t group = 0; group < groups.segments.size(); ++group) {
        const auto size = static_cast<std::size_t>(groups.group_sizes[group]);
        std::memcpy(copy_.data() + m * stride + groups.segments[group].x_offset, x, size * sizeof(Number));
        x += size;
      }
    }
    x_ = copy_.data();
  }

  void describe(FloatProduct<Number>& call) const { call.x = x_, call.row_offsets = offsets_.data(); }

 private:
  std::vector<Number> copy_;
  const Number* x_;
  std::vector<std::int64_t> offsets_;
};

struct Layer {
  std::int64_t rows, outputs, inputs;
  const Segments& groups;
  const FloatArguments& weight;

  template <typename Number>
  Tensor multiply(const Tensor& x, const FloatProductKernels<Number>& kernels) const {
    Tensor y = Tensor::empty({rows, outputs}, x.dtype());
    each_piece<Number>(x, [&](FloatProduct<Number> call, PieceOfRows piece) {
      call.y = y.data<Number>(), call.y_stride = outputs;
      kernels.linear(call, piece.row, piece.end_row, piece.panel, piece.end_panel);
    });
    return y;
  }

  // In fp32.
  void multiply_into(Epilogue& epilogue, const Tensor& x, const FloatLinearKernels& kernels) const {
    each_piece<float>(x, [&](FloatLinear call, PieceOfRows piece) {
      float values[kFloatRows<float> * kFloatPanels * kPanel];
      const std::int64_t count = piece.end_row - piece.row, first = piece.panel * kPanel;
      call.row_offsets += piece.row;
      call.y = values, call.y_stride = kFloatPanels * kPanel, call.y_origin = first;
      kernels.linear(call, 0, count, piece.panel, piece.end_panel);
      epilogue.write({values, count, std::min(outputs, piece.end_panel * kPanel) - first, call.y_stride, piece.row, first});
    });
  }

 private:
  struct PieceOfRows {
    std::int64_t row, end_row, panel, end_panel;
  };

  template <typename Number, typename Work>
  void each_piece(const Tensor& x, const Work& work) const {
    FloatProduct<Number> call{};
    call.outputs = outputs;
    weight.describe(call, groups, divided_up(outputs, kPanel));
    const FilledRows<Number> filled(x.data<Number>(), rows, inputs, groups);
    filled.describe(call);
    const std::int64_t bytes = static_cast<std::int64_t>(sizeof(Number)) * inputs;
    const auto run = [&](std::int64_t row, std::int64_t end_row, std::int64_t panel, std::int64_t end_panel) {
      work(call, PieceOfRows{row, end_row, panel, end_panel});
    };
    in_pieces(rows, outputs, bytes, {kFloatRows<Number>, kFloatPanels}, run);
  }
};

void multiply_floats(StackValue* stack, EpilogueArguments* fused) {
  std::vector<Tensor> tensors = tensors_of(stack, 6);
  const Tensor x = checked_float_layout(std::move(tensors[0])).contiguous();
  const FloatArguments weight(&tensors[1], static_cast<std::int64_t>(stack[6]));
  const auto outputs = static_cast<std::int64_t>(stack[7]), inputs = static_cast<std::int64_t>(stack[8]);
  const auto group_size = static_cast<std::int64_t>(stack[9]);
  const std::vector<std::int64_t> sizes = x.sizes();
  require(inputs > 0 && outputs > 0, "a layer has inputs and outputs");
  require(sizes.size() == 2 && sizes[1] == inputs, "x has rows, each of as many columns as the layer has inputs");
  require(group_size > 0, "a group holds something");
  const Segments groups = groups_of(inputs, group_size, weight.weight());
  const Layer layer = {sizes[0], outputs, inputs, groups, weight};
  if (fused != nullptr && x.dtype() == torch_api().dtype_float32()) {
    Epilogue epilogue(std::move(*fused), {sizes[0], outputs}, false);
    layer.multiply_into(epilogue, x, *chosen_isa().kernels.float_linear);
    refuse_bad_scales(weight.scale());
    stack[0] = std::move(epilogue).result().to_stack();
    return;
  }
  Tensor y = by_dtype(x, weight, [&](const Tensor& real, const auto& kernels) { return layer.multiply(real, kernels); });
  refuse_bad_scales(y, weight.scale());
  stack[0] = (fused == nullptr ? std::move(y) : finished(std::move(*fused), y, false)).to_stack();
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
  return {operator_of<linear_float>("linear_float(" SUBBYTE_ARGUMENTS ") -> Tensor"),
          operator_of<linear_float_fused>("linear_float_fused(" SUBBYTE_ARGUMENTS ", " SUBBYTE_EPILOGUE ") -> Tensor")};
}

}  // namespace subbyte
