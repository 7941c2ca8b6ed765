// depthwise_conv2d_codes: a convolution of each channel by itself, on packed codes.
#include <string>
#include <utility>
#include <vector>

#include "../isa.h"
#include "epilogue.h"
#include "operators.h"
#include "parallel.h"
#include "plane.h"
#include "product.h"
#include "require.h"
#include "spread_nans.h"
#include "transposed.h"
#include "window.h"

namespace subbyte {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  // multiplications that one thread takes at least

// The tensors (weight, weight_scale, weight_zero_point, values, bias): codes [taps, channels] as a dense stream.
class DepthwiseWeight {
 public:
  DepthwiseWeight(Tensor* first, std::int64_t bits, std::int64_t channels, std::int64_t taps)
      : packed_(checked(std::move(first[0]), "the packed weight", torch_api().dtype_uint8())),
        scale_(checked(std::move(first[1]), "the weight's scale", torch_api().dtype_float32())),
        zero_point_(checked(std::move(first[2]), "the weight's zero point", torch_api().dtype_int32())),
        values_(checked(std::move(first[3]), "the table of values", torch_api().dtype_uint8())),
        bias_(checked(std::move(first[4]), "the bias", torch_api().dtype_float32())) {
    const bool has_values = values_.count() != 0;
    require_count(packed_, "the packed weight", divided_up(taps * channels * bits, 8));
    require_count(scale_, "the weight's scale", channels);
    require_count(zero_point_, "the weight's zero point", channels);
    require_count(values_, "the table of values", has_values ? 16 : 0);
    require(!has_values || bits <= 4, "a table of values is for codes of at most 4 bits");
    require_count(bias_, "the bias", bias_.count() == 0 ? 0 : channels);
    for (std::int64_t i = 0; i < channels; ++i) {
      const std::int32_t zero = zero_point_.data<std::int32_t>()[i];
      require(zero >= 0 && zero <= 255, "a zero point of the weight is no byte");
    }
    const std::int64_t count = taps * channels;
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(count));
    const PackingKernels& packing = *chosen_isa().kernels.packing;
    packing.unpack(packed_.data<std::uint8_t>(), count, static_cast<int>(bits), false, codes.data());
    numbers_.resize(codes.size());
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint8_t code = codes[static_cast<std::size_t>(i)];
      const int value = has_values ? values_.data<std::uint8_t>()[code] : code;
      const int number = value - zero_point_.data<std::int32_t>()[i % channels];
      numbers_[static_cast<std::size_t>(i)] = static_cast<std::int16_t>(number);
    }
  }

  void describe(Depthwise& call, float x_scale) {
    for (std::int64_t i = 0; i < call.channels; ++i) {
      scales_.push_back(x_scale * scale_.data<float>()[i]);
    }
    call.weights = numbers_.data(), call.scales = scales_.data();
    call.bias = bias_.count() == 0 ? nullptr : bias_.data<float>();
  }

  const Tensor& scale() const { return scale_; }

 private:
  Tensor packed_, scale_, zero_point_, values_, bias_;
  std::vector<std::int16_t> numbers_;
  std::vector<float> scales_;
};

// All windows of one row of outputs; `epilogue` takes them where there is one.
void convolve_row(const Depthwise& call, const Plane& plane, const ConvolutionResult& result, Epilogue* epilogue,
                  std::int64_t image, std::int64_t row) {
  const DepthwiseKernels& kernels = *chosen_isa().kernels.depthwise;
  const Axis &height = result.window.height, &width = result.window.width;
  const std::int64_t columns = width.outputs(), windows = height.outputs() * columns;
  const bool is_direct = result.channels_last && epilogue == nullptr;
  std::vector<float> values(static_cast<std::size_t>(is_direct ? 0 : columns * call.channels));
  float* to = is_direct ? result.y + (image * windows + row * columns) * call.channels : values.data();
  for (std::int64_t column = 0; column < columns; ++column) {
    const std::int64_t offset = plane.offset(image, 0, row * height.stride, column * width.stride);
    kernels.window(call, plane.codes() + offset, to + column * call.channels);
  }
  if (epilogue != nullptr) {
    epilogue->write({values.data(), columns, call.channels, call.channels, image * windows + row * columns, 0});
  } else if (!is_direct) {
    float* const first = result.y + image * call.channels * windows + row * columns;
    write_transposed(values.data(), columns, call.channels, call.channels, first, windows);
  }
}

void convolve_channels(StackValue* stack, EpilogueArguments* fused) {
  std::vector<Tensor> tensors = tensors_of(stack, 8);
  const bool channels_last = tensors[0].is_channels_last();
  const std::int32_t dtype = CodeSource::takes(tensors[0]) ? tensors[0].dtype() : torch_api().dtype_float32();
  const Tensor x = channels_last ? checked_layout(std::move(tensors[0]), "x", dtype)
                                 : checked(std::move(tensors[0]), "x", dtype);
  const CodesOfX codes(&tensors[6], stack + 8);
  const auto bits = static_cast<std::int64_t>(stack[10]), channels = static_cast<std::int64_t>(stack[11]);
  const std::vector<std::int64_t> sizes = x.sizes();
  require(bits >= 1 && bits <= 8, "codes take 1..8 bits, not " + std::to_string(bits));
  require(sizes.size() == 4, "x has images, channels, rows and columns");
  require(channels > 0 && sizes[1] == channels, "x has other channels than the weight");
  codes.check(1);
  const Window window(sizes[2], sizes[3], stack + 12);
  DepthwiseWeight weight(&tensors[1], bits, channels, window.taps());
  const Affine affine = codes.of_row(0);
  const CodeSource source(x);
  const Image image = {source.floats(), sizes[0], channels, channels_last};
  const Plane plane(image, source, window, 1, affine);
  std::vector<std::int64_t> taps;
  for (std::int64_t tap = 0; tap < window.taps(); ++tap) {
    const std::int64_t row = tap / window.width.kernel, column = tap % window.width.kernel;
    taps.push_back(plane.offset(0, 0, row * window.height.dilation, column * window.width.dilation));
  }
  Depthwise call{};
  call.channels = channels, call.taps = window.taps(), call.tap_offsets = taps.data();
  call.x_zero = affine.zero_point - affine.shift;
  weight.describe(call, affine.scale);
  const std::int64_t rows = window.height.outputs(), columns = window.width.outputs();
  const std::vector<std::int64_t> y_sizes = {sizes[0], channels, rows, columns};
  Results results(fused, y_sizes, channels_last, plane.any_nan());
  const ConvolutionResult result = {window, channels, 1, results.floats(), channels_last};
  const std::int64_t work = 1 + columns * channels * call.taps;
  in_parallel(sizes[0] * rows, divided_up(kGrain, work), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      convolve_row(call, plane, result, results.epilogue(), i / rows, i % rows);
    }
  });
  results.refuse_bad_scales(weight.scale());
  if (plane.any_nan()) {
    spread_nans(image, result);
  }
  stack[0] = std::move(results).to_stack();
}

constexpr int kArguments = 20;

void depthwise_conv2d_codes(StackValue* stack, std::uint64_t, std::uint64_t) { convolve_channels(stack, nullptr); }

void depthwise_conv2d_codes_fused(StackValue* stack, std::uint64_t, std::uint64_t) {
  EpilogueArguments epilogue(stack + kArguments);
  convolve_channels(stack, &epilogue);
}

#define SUBBYTE_ARGUMENTS                                                                                       \
  "Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_zero_point, Tensor values, Tensor bias, Tensor " \
  "x_scale, Tensor x_zero_point, int x_low, int x_high, int bits, int channels, int kernel_height, int "        \
  "kernel_width, int stride_height, int stride_width, int padding_height, int padding_width, int "              \
  "dilation_height, int dilation_width"

}  // namespace

std::vector<Operator> depthwise_operators() {
  return {operator_of<depthwise_conv2d_codes>("depthwise_conv2d_codes(" SUBBYTE_ARGUMENTS ") -> Tensor"),
          operator_of<depthwise_conv2d_codes_fused>(
              "depthwise_conv2d_codes_fused(" SUBBYTE_ARGUMENTS ", " SUBBYTE_EPILOGUE ") -> Tensor")};
}

}  // namespace subbyte
