#include "product.h"

#include <cmath>
#include <utility>

#include "../isa.h"
#include "parallel.h"
#include "require.h"
#include "tensor_argument.h"

namespace subbyte {
std::vector<Tensor> tensors_of(const StackValue* stack, int count) {
  std::vector<Tensor> tensors;
  tensors.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    tensors.push_back(Tensor::from_stack(stack[i]));
  }
  return tensors;
}

Tensor checked_layout(Tensor&& tensor, const std::string& name, std::int32_t dtype) {
  require_tensor(tensor, name, {dtype});
  return std::move(tensor);
}

Tensor checked(Tensor&& tensor, const std::string& name, std::int32_t dtype) {
  return checked_layout(std::move(tensor), name, dtype).contiguous();
}

void require_count(const Tensor& tensor, const std::string& name, std::int64_t count) {
  require(tensor.count() == count,
          name + " has " + std::to_string(tensor.count()) + " elements; it takes " + std::to_string(count));
}

namespace {

bool all_finite_in_fp32(const float* values, std::int64_t count) {
  std::int32_t any_bad = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    any_bad |= values[i] - values[i] != 0;  // of a NaN and of an infinity: NaN
  }
  return any_bad == 0;
}

bool all_finite_in_bf16(const std::uint16_t* values, std::int64_t count) {
  std::int32_t any_bad = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    any_bad |= (values[i] & 0x7f80) == 0x7f80;  // the highest exponent
  }
  return any_bad == 0;
}

bool all_finite(const Tensor& floats) {
  return floats.dtype() == torch_api().dtype_bfloat16()
             ? all_finite_in_bf16(floats.data<std::uint16_t>(), floats.count())
             : all_finite_in_fp32(floats.data<float>(), floats.count());
}

}  // namespace

void refuse_bad_scales(const Tensor& scales) { require(all_finite(scales), "a scale of the weight is not finite"); }

void refuse_bad_scales(const Tensor& y, const Tensor& scales) {
  if (scales.count() <= y.count() || !all_finite(y)) {
    refuse_bad_scales(scales);
  }
}

void Segments::add(const Segment& segment) {
  segments.push_back(segment);
  blocks += blocks_of(segment.steps);
}

void Segments::describe(Linear& call) const {
  call.segments = segments.data();
  call.segment_count = static_cast<std::int64_t>(segments.size());
  call.group_sizes = group_sizes.data();
  call.groups = static_cast<std::int64_t>(group_sizes.size());
  call.panel_bytes = product_of({blocks, block_bytes(call.bits)}, "the weight");
}

// The groups of a layer, as segments.
Segments groups_of(std::int64_t inputs, std::int64_t group_size, const Tensor& weight) {
  require(inputs <= kLargest && divided_up(inputs, group_size) <= weight.count(), "the packed weight has fewer groups than x");
  Segments all;
  std::int64_t offset = 0;
  for (std::int64_t first = 0; first < inputs; first += group_size) {
    const std::int64_t size = inputs - first < group_size ? inputs - first : group_size;
    const std::int64_t steps = divided_up(size, kStep), group = static_cast<std::int64_t>(all.group_sizes.size());
    all.add({steps, offset, group, true, true});
    all.group_sizes.push_back(size);
    offset += steps * kStep;
  }
  return all;
}

PackedArguments::PackedArguments(Tensor* first)
    : weight_(checked(std::move(first[0]), "the packed weight", torch_api().dtype_uint8())),
      scale_(checked(std::move(first[1]), "the weight's scale", torch_api().dtype_float32())),
      zero_point_(checked(std::move(first[2]), "the weight's zero point", torch_api().dtype_int32())),
      sums_(checked(std::move(first[3]), "the weight's sums", torch_api().dtype_int32())),
      values_(checked(std::move(first[4]), "the table of values", torch_api().dtype_uint8())),
      bias_(checked(std::move(first[5]), "the bias", torch_api().dtype_float32())) {}

void PackedArguments::describe(Linear& call, std::int64_t panels) const {
  const std::int64_t parameters = product_of({panels, call.groups, kPanel}, "the weight");
  const bool one_zero = zero_point_.count() == 1, has_values = values_.count() != 0, has_bias = bias_.count() != 0;
  require_count(weight_, "the packed weight", product_of({panels, call.panel_bytes}, "the weight"));
  require_count(scale_, "the weight's scale", parameters);
  require_count(zero_point_, "the weight's zero point", one_zero ? 1 : parameters);
  require_count(sums_, "the weight's sums", parameters);
  require_count(values_, "the table of values", has_values ? 16 : 0);
  require(!has_values || call.bits <= 4, "a table of values is for codes of at most 4 bits");
  require_count(bias_, "the bias", has_bias ? panels * kPanel : 0);
  call.panels = weight_.data<std::uint8_t>();
  call.w_scales = scale_.data<float>();
  call.w_zero = one_zero ? *zero_point_.data<std::int32_t>() : 0;
  call.w_zeros = one_zero ? nullptr : zero_point_.data<std::int32_t>();
  call.w_sums = sums_.data<std::int32_t>();
  call.values = has_values ? values_.data<std::uint8_t>() : nullptr;
  call.bias = has_bias ? bias_.data<float>() : nullptr;
}

CodesOfX::CodesOfX(Tensor* first, const StackValue* range)
    : scale_(checked(std::move(first[0]), "the scale of x", torch_api().dtype_float32())),
      zero_point_(checked(std::move(first[1]), "the zero point of x", torch_api().dtype_int32())),
      low_(static_cast<std::int64_t>(range[0])), high_(static_cast<std::int64_t>(range[1])) {}

void CodesOfX::check(std::int64_t rows) const {
  require(low_ < high_ && low_ >= -128 && high_ <= 255 && high_ - low_ <= 255, "codes of x take 8 bits");
  const std::int64_t count = scale_.count() == 1 ? 1 : rows;
  require_count(scale_, "the scale of x", count);
  require_count(zero_point_, "the zero point of x", count);
  for (std::int64_t i = 0; i < count; ++i) {
    const float scale = scale_.data<float>()[i];
    const std::int32_t zero_point = zero_point_.data<std::int32_t>()[i];
    require(std::isfinite(scale) && scale > 0, "the scale of x is no positive number");
    require(zero_point >= low_ && zero_point <= high_, "the zero point of x is no code");
  }
}

Affine CodesOfX::of_row(std::int64_t row) const {
  const std::int64_t i = scale_.count() == 1 ? 0 : row;
  const std::int64_t shift = high_ <= 127 ? 0 : low_ >= 0 ? 128 : high_ - 127;  // shifted codes are signed bytes
  return {scale_.data<float>()[i], zero_point_.data<std::int32_t>()[i], static_cast<std::int32_t>(low_),
          static_cast<std::int32_t>(high_), static_cast<std::int32_t>(shift)};
}

namespace {

// Rows and panels of a piece at most.
constexpr std::int64_t kRowsOfPiece = 128, kPanelsOfPiece = 4;

// Of these rows, from panel `panel` on, in a buffer of one piece.
Linear part_of(const Linear& call, std::int64_t row, std::int64_t end_row, std::int64_t panel, float* values) {
  Linear part = call;
  part.rows = end_row - row;
  part.row_offsets += row, part.x_sums += row * call.groups;
  part.x_scales += row * call.x_step, part.x_zeros += row * call.x_step;
  part.y = values, part.y_stride = kPanelsOfPiece * kPanel, part.y_origin = panel * kPanel;
  return part;
}

}  // namespace

void multiply(const Linear& call, Epilogue* epilogue) {
  const LinearKernels& kernels = *chosen_isa().kernels.linear;
  const std::int64_t inputs = call.panel_bytes / block_bytes(call.bits) * kBlockSteps * kStep;
  const auto work = [&](std::int64_t row, std::int64_t end_row, std::int64_t panel, std::int64_t end_panel) {
    if (epilogue == nullptr) {
      return kernels.linear(call, row, end_row, panel, end_panel);
    }
    float values[kRowsOfPiece * kPanelsOfPiece * kPanel];
    const Linear part = part_of(call, row, end_row, panel, values);
    kernels.linear(part, 0, part.rows, panel, end_panel);
    const std::int64_t first = panel * kPanel, end = end_panel * kPanel < call.outputs ? end_panel * kPanel : call.outputs;
    epilogue->write({values, part.rows, end - first, part.y_stride, row, first});
  };
  in_pieces(call.rows, call.outputs, inputs, {kRowsOfPiece, kPanelsOfPiece}, work);
}

}  // namespace subbyte
