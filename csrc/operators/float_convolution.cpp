// conv2d_float: a convolution of floats on packed codes. Its input becomes one padded plane, channels innermost; a window
// is a row of the product wherever its first tap lies, and a row of the kernel a segment of it. Nothing is copied out.
#include <algorithm>
#include <utility>
#include <vector>

#include "epilogue.h"
#include "float_plane.h"
#include "float_product.h"
#include "operators.h"
#include "require.h"
#include "taps.h"
#include "transposed.h"
#include "window.h"

namespace subbyte {
namespace {

constexpr std::int64_t kGrain = 1 << 19;  // multiplications that one thread takes at least

template <typename Number>
struct Convolution {
  const FloatProductKernels<Number>& kernels;
  Window window;
  const FloatPlane<Number>& plane;
  FloatProduct<Number> call;  // of one group; `outputs` are those of a group
  std::int64_t images, groups, group_panels;
  Number* y;
  bool channels_last;

  void compute() const {
    const std::int64_t window_pieces = divided_up(windows(), kFloatRows<Number>);
    const std::int64_t count = window_pieces == 0 ? 0 : divided_up(windows(), window_pieces);
    const std::int64_t panel_pieces = divided_up(group_panels, kFloatPanels);
    const std::int64_t of_image = groups * panel_pieces * window_pieces;
    const std::int64_t work = 1 + count * kFloatPanels * kPanel * window.taps() * plane.filled();
    in_parallel(images * of_image, divided_up(kGrain, work), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t first = i % window_pieces * count, panel = i / window_pieces % panel_pieces * kFloatPanels;
        const std::int64_t group = i / (window_pieces * panel_pieces) % groups;
        piece(i / of_image, group, first, std::min(count, windows() - first), panel);
      }
    });
  }

 private:
  std::int64_t windows() const { return window.height.outputs() * window.width.outputs(); }
  std::int64_t outputs() const { return groups * call.outputs; }

  // Windows [first, first + count) of an image, times some panels of a group.
  void piece(std::int64_t image, std::int64_t group, std::int64_t first, std::int64_t count, std::int64_t panel) const {
    std::int64_t offsets[kFloatRows<Number>];
    const std::int64_t width = window.width.outputs(), end = std::min(panel + kFloatPanels, group_panels);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = (first + i) / width * window.height.stride, column = (first + i) % width * window.width.stride;
      offsets[i] = plane.offset(image, group, row, column);
    }
    FloatProduct<Number> part = of_group(group);
    part.row_offsets = offsets;
    if (channels_last) {
      part.y = y + (image * windows() + first) * outputs() + group * call.outputs, part.y_stride = outputs();
      kernels.linear(part, 0, count, panel, end);
      return;
    }
    Number values[kFloatRows<Number> * kFloatPanels * kPanel];
    const std::int64_t output = panel * kPanel;
    part.y = values, part.y_stride = kFloatPanels * kPanel, part.y_origin = output;
    kernels.linear(part, 0, count, panel, end);
    Number* const to = y + (image * outputs() + group * call.outputs + output) * windows() + first;
    write_transposed(values, count, std::min(call.outputs, end * kPanel) - output, part.y_stride, to, windows());
  }

  FloatProduct<Number> of_group(std::int64_t group) const {
    FloatProduct<Number> part = call;
    const std::int64_t panels = group * group_panels, parameters = panels * kPanel;
    part.panels += panels * call.panel_bytes, part.w_scales += parameters;
    part.w_zeros = call.w_zeros == nullptr ? nullptr : call.w_zeros + parameters;
    part.bias = call.bias == nullptr ? nullptr : call.bias + parameters;
    return part;
  }
};

struct Layer {
  Window window;
  std::int64_t outputs, channels, groups;  // channels: of a group
  bool channels_last;
  const FloatArguments& weight;

  template <typename Number>
  Tensor convolve(const Tensor& x, const FloatProductKernels<Number>& kernels) const {
    const std::int64_t images = x.sizes()[0], group_panels = divided_up(outputs / groups, kPanel);
    const FloatPlane<Number> plane({x.data<Number>(), images, groups * channels, channels_last}, window, groups);
    const Segments segments = segments_of(window, plane, channels);
    FloatProduct<Number> call{};
    call.outputs = outputs / groups, call.x = plane.numbers();
    weight.describe(call, segments, product_of({groups, group_panels}, "the weight"));
    const std::vector<std::int64_t> sizes = {images, outputs, window.height.outputs(), window.width.outputs()};
    Tensor y = channels_last ? Tensor::empty_channels_last(sizes, x.dtype()) : Tensor::empty(sizes, x.dtype());
    Number* const to = y.data<Number>();
    Convolution<Number>{kernels, window, plane, call, images, groups, group_panels, to, channels_last}.compute();
    return y;
  }
};

void convolve_floats(StackValue* stack, EpilogueArguments* fused) {
  std::vector<Tensor> tensors = tensors_of(stack, 6);
  const bool channels_last = tensors[0].is_channels_last();
  Tensor given = checked_float_layout(std::move(tensors[0]));
  const Tensor x = channels_last ? std::move(given) : std::move(given).contiguous();
  const FloatArguments weight(&tensors[1], static_cast<std::int64_t>(stack[6]));
  const auto outputs = static_cast<std::int64_t>(stack[7]), channels = static_cast<std::int64_t>(stack[8]);
  const auto groups = static_cast<std::int64_t>(stack[17]);
  const std::vector<std::int64_t> sizes = x.sizes();
  require(sizes.size() == 4, "x has images, channels, rows and columns");
  require(groups > 0 && channels > 0 && outputs > 0 && outputs % groups == 0,
          "each group of a convolution has inputs, and as many outputs as any other");
  require(sizes[1] % groups == 0 && sizes[1] / groups == channels, "x has other channels than the weight");
  const Window window(sizes[2], sizes[3], stack + 9);
  const Layer layer = {window, outputs, channels, groups, channels_last, weight};
  Tensor y = by_dtype(x, weight, [&](const Tensor& real, const auto& kernels) { return layer.convolve(real, kernels); });
  refuse_bad_scales(y, weight.scale());
  stack[0] = (fused == nullptr ? std::move(y) : finished(std::move(*fused), y, channels_last)).to_stack();
}

constexpr int kArguments = 18;

void conv2d_float(StackValue* stack, std::uint64_t, std::uint64_t) { convolve_floats(stack, nullptr); }

void conv2d_float_fused(StackValue* stack, std::uint64_t, std::uint64_t) {
  EpilogueArguments epilogue(stack + kArguments);
  convolve_floats(stack, &epilogue);
}

#define SUBBYTE_ARGUMENTS                                                                                        \
  "Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_zero_point, Tensor values, Tensor bias, int bits, " \
  "int outputs, int channels, int kernel_height, int kernel_width, int stride_height, int stride_width, "         \
  "int padding_height, int padding_width, int dilation_height, int dilation_width, int groups"

}  // namespace

std::vector<Operator> float_convolution_operators() {
  return {operator_of<conv2d_float>("conv2d_float(" SUBBYTE_ARGUMENTS ") -> Tensor"),
          operator_of<conv2d_float_fused>("conv2d_float_fused(" SUBBYTE_ARGUMENTS ", " SUBBYTE_EPILOGUE ") -> Tensor")};
}

}  // namespace subbyte
