// conv2d_codes: a convolution on packed codes. Its input becomes one padded plane of codes, channels innermost; a window is
// a row of the product wherever its first tap lies, and a row of the kernel a segment of it. Nothing is copied out.
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
#include "taps.h"
#include "transposed.h"
#include "window.h"

namespace subbyte {
namespace {

constexpr std::int64_t kWindows = 128;  // of one piece
constexpr std::int64_t kPanels = 4;
constexpr std::int64_t kGrain = 1 << 19;  // multiplications that one thread takes at least

struct Convolution {
  Window window;
  const Plane& plane;
  Linear call;           // of one group; `outputs` are those of a group
  std::int64_t images, groups, group_panels;
  float* y;
  bool channels_last;
  Epilogue* epilogue;  // that takes the results; null: they go to y

  std::int64_t windows() const { return window.height.outputs() * window.width.outputs(); }
  std::int64_t outputs() const { return groups * call.outputs; }

  // Windows [first, first + count) of an image, times some panels of a group.
  void piece(std::int64_t image, std::int64_t group, std::int64_t first, std::int64_t count, std::int64_t panel) const {
    std::int64_t offsets[kWindows];
    std::int32_t sums[kWindows];
    describe_rows(image, group, first, count, offsets, sums);
    const std::int64_t end = panel + kPanels < group_panels ? panel + kPanels : group_panels;
    Linear part = of_group(group);
    part.rows = count, part.row_offsets = offsets, part.x_sums = sums;
    const LinearKernels& kernels = *chosen_isa().kernels.linear;
    if (channels_last && epilogue == nullptr) {
      part.y = y + (image * windows() + first) * outputs() + group * call.outputs, part.y_stride = outputs();
      kernels.linear(part, 0, count, panel, end);
      return;
    }
    float values[kWindows * kPanels * kPanel];
    const std::int64_t output = panel * kPanel;
    const std::int64_t columns = call.outputs < end * kPanel ? call.outputs - output : end * kPanel - output;
    part.y = values, part.y_stride = columns, part.y_origin = output;
    kernels.linear(part, 0, count, panel, end);
    if (epilogue != nullptr) {
      const std::int64_t row = image * windows() + first;
      return epilogue->write({values, count, columns, part.y_stride, row, group * call.outputs + output});
    }
    write_transposed(values, count, columns, part.y_stride,
                     y + ((image * outputs() + group * call.outputs + output) * windows() + first), windows());
  }

 private:
  Linear of_group(std::int64_t group) const {
    Linear part = call;
    const std::int64_t panels = group * group_panels, parameters = panels * kPanel;
    part.panels += panels * call.panel_bytes, part.w_scales += parameters, part.w_sums += parameters;
    part.w_zeros = call.w_zeros == nullptr ? nullptr : call.w_zeros + parameters;
    part.bias = call.bias == nullptr ? nullptr : call.bias + parameters;
    return part;
  }

  void describe_rows(std::int64_t image, std::int64_t group, std::int64_t first, std::int64_t count,
                     std::int64_t* offsets, std::int32_t* sums) const {
    const std::int64_t width = window.width.outputs();
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t row = (first + done) / width, column = (first + done) % width;
      const std::int64_t here = count - done < width - column ? count - done : width - column;
      const std::int64_t at = plane.offset(image, group, row * window.height.stride, column * window.width.stride);
      for (std::int64_t i = 0; i < here; ++i) {
        offsets[done + i] = at + i * window.width.stride * plane.filled();
      }
      plane.window_sums(image, group, row, column, here, sums + done);
      done += here;
    }
  }
};

void convolve(const Convolution& convolution) {
  const std::int64_t windows = convolution.windows(), window_pieces = divided_up(windows, kWindows);
  const std::int64_t count = window_pieces == 0 ? 0 : divided_up(windows, window_pieces);
  const std::int64_t panel_pieces = divided_up(convolution.group_panels, kPanels);
  const std::int64_t of_image = convolution.groups * panel_pieces * window_pieces;
  const std::int64_t work = 1 + count * kPanels * kPanel * convolution.call.group_sizes[0];
  in_parallel(convolution.images * of_image, divided_up(kGrain, work), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % window_pieces * count, panel = i / window_pieces % panel_pieces * kPanels;
      const std::int64_t group = i / (window_pieces * panel_pieces) % convolution.groups;
      convolution.piece(i / of_image, group, first, first + count < windows ? count : windows - first, panel);
    }
  });
}

void convolve_codes(StackValue* stack, EpilogueArguments* fused) {
  std::vector<Tensor> tensors = tensors_of(stack, 9);
  const bool channels_last = tensors[0].is_channels_last();
  const std::int32_t dtype = CodeSource::takes(tensors[0]) ? tensors[0].dtype() : torch_api().dtype_float32();
  const Tensor x = channels_last ? checked_layout(std::move(tensors[0]), "x", dtype)
                                 : checked(std::move(tensors[0]), "x", dtype);
  const PackedArguments weight(&tensors[1]);
  const CodesOfX codes(&tensors[7], stack + 9);
  const auto bits = static_cast<std::int64_t>(stack[11]), outputs = static_cast<std::int64_t>(stack[12]);
  const auto channels = static_cast<std::int64_t>(stack[13]), groups = static_cast<std::int64_t>(stack[22]);
  const std::vector<std::int64_t> sizes = x.sizes();
  require(bits >= 1 && bits <= 8, "codes take 1..8 bits, not " + std::to_string(bits));
  require(sizes.size() == 4, "x has images, channels, rows and columns");
  require(groups > 0 && channels > 0 && outputs > 0 && outputs % groups == 0,
          "each group of a convolution has inputs, and as many outputs as any other");
  require(sizes[1] % groups == 0 && sizes[1] / groups == channels, "x has other channels than the weight");
  codes.check(1);
  const Window window(sizes[2], sizes[3], stack + 14);
  const Affine affine = codes.of_row(0);
  const CodeSource source(x);
  const Image image = {source.floats(), sizes[0], sizes[1], channels_last};
  const Plane plane(image, source, window, groups, affine);
  const Segments segments = segments_of(window, plane, channels);
  Linear call{};
  call.bits = static_cast<int>(bits), call.outputs = outputs / groups;
  segments.describe(call);
  const std::int64_t group_panels = divided_up(call.outputs, kPanel);
  weight.describe(call, groups * group_panels);
  const std::int32_t x_zero = affine.zero_point - affine.shift;
  call.x = plane.codes(), call.x_scales = &affine.scale, call.x_zeros = &x_zero, call.x_step = 0;
  const std::vector<std::int64_t> y_sizes = {sizes[0], outputs, window.height.outputs(), window.width.outputs()};
  const bool starts_on_bytes = groups == 1 || call.outputs % 8 == 0;  // each group, where bits are written
  Results results(fused, y_sizes, channels_last, plane.any_nan() || !starts_on_bytes);
  const Convolution all = {window, plane, call, sizes[0], groups, group_panels, results.floats(), channels_last,
                           results.epilogue()};
  convolve(all);
  results.refuse_bad_scales(weight.scale());
  if (plane.any_nan()) {
    spread_nans(image, {window, groups, call.outputs, results.floats(), channels_last});
  }
  stack[0] = std::move(results).to_stack();
}

constexpr int kArguments = 23;

void conv2d_codes(StackValue* stack, std::uint64_t, std::uint64_t) { convolve_codes(stack, nullptr); }

void conv2d_codes_fused(StackValue* stack, std::uint64_t, std::uint64_t) {
  EpilogueArguments epilogue(stack + kArguments);
  convolve_codes(stack, &epilogue);
}

#define SUBBYTE_ARGUMENTS                                                                                            \
  "Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_zero_point, Tensor weight_sums, Tensor values, "      \
  "Tensor bias, Tensor x_scale, Tensor x_zero_point, int x_low, int x_high, int bits, int outputs, int channels, "   \
  "int kernel_height, int kernel_width, int stride_height, int stride_width, int padding_height, int padding_width, " \
  "int dilation_height, int dilation_width, int groups"

}  // namespace

std::vector<Operator> convolution_operators() {
  return {operator_of<conv2d_codes>("conv2d_codes(" SUBBYTE_ARGUMENTS ") -> Tensor"),
          operator_of<conv2d_codes_fused>("conv2d_codes_fused(" SUBBYTE_ARGUMENTS ", " SUBBYTE_EPILOGUE ") -> Tensor")};
}

}  // namespace subbyte
