// binary_conv2d: images of floats quantized to two or three levels, times kernels of -1, 0 and +1.
//
// The image becomes words of bits, padded, once; every output then reads its words where they lie. A padded pixel has
// bits of 0, as has the lowest level, and is worth 0: what sums begin with leaves out the weights that meet padding.
#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <utility>

#include "../isa.h"
#include "binary.h"
#include "binary_shape.h"
#include "epilogue.h"
#include "operators.h"
#include "require.h"
#include "transposed.h"

namespace subbyte {
namespace {

// Floats that a thread compares at least, and words that it multiplies.
constexpr std::int64_t kGrain = 1 << 13;
constexpr std::int64_t kWordsOfThread = 1 << 12;

// A tensor of four axes whose channels are the first of each image, or the last.
struct Layout {
  std::int64_t image, channel, row, column;  // strides

  Layout(std::int64_t channels, std::int64_t rows, std::int64_t columns, bool channels_last)
      : image(channels * rows * columns),
        channel(channels_last ? 1 : rows * columns),
        row(channels_last ? columns * channels : columns),
        column(channels_last ? channels : 1) {}
};

// One call: what it computes with, and the image as words.
class BinaryConvolution {
 public:
  BinaryConvolution(const BinaryShape& shape, const BinaryArguments& arguments, bool channels_last)
      : shape_(shape),
        arguments_(arguments),
        planes_(arguments.levels.planes()),
        channels_last_(channels_last),
        from_(shape.channels, shape.window.height.size, shape.window.width.size, channels_last),
        to_(shape.outputs, shape.window.height.outputs(), shape.window.width.outputs(), channels_last),
        row_classes_(shape.window.height),
        column_classes_(shape.window.width),
        panels_(divided_up(shape.group_outputs(), kBinaryPanel)),
        taps_of_word_(shape.taps_of_word()) {}

  void prepare(const float* x) {
    write_image(x);
    write_bases();
  }

  // A NaN has no level; what it makes NaN is known when all is there.
  bool any_nan() const { return any_nan_; }

  void run(const float* x, Results& results) {
    multiply(results.floats(), results.epilogue());
    if (any_nan_) {
      spread_nans(x, results.floats());
    }
  }

 private:
  // Words of one image: for each plane, group and channel word, padded rows of pixels.
  std::int64_t image_stride() const { return planes_ * plane_stride(); }
  std::int64_t plane_stride() const { return shape_.groups * group_stride(); }
  std::int64_t group_stride() const { return shape_.words_of_pixel() * shape_.image_words(); }
  std::int64_t outputs_padded() const { return panels_ * kBinaryPanel; }

  void write_image(const float* x) {
    for (std::int64_t plane = 0; plane < planes_; ++plane) {
      thresholds_.push_back(arguments_.levels.threshold(plane, *arguments_.x_scale.data<float>(),
                                                        *arguments_.x_zero_point.data<std::int32_t>()));
    }
    const std::int64_t count = product_of({shape_.images, planes_, shape_.groups, shape_.words_of_pixel(),
                                           shape_.window.height.padded(), shape_.window.width.padded()},
                                          "binary_conv2d: the padded x");
    words_.reset(new std::uint64_t[static_cast<std::size_t>(count)]);
    const std::int64_t rows = shape_.window.height.padded(), floats = shape_.channels * shape_.window.width.size;
    in_parallel(shape_.images * rows, divided_up(kGrain, floats), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        write_row(x, i / rows, i % rows);
      }
      // In a loop of its own: what was written word by word is then ready to be read by vectors.
      for (std::int64_t i = begin; taps_of_word_ > 1 && i < end; ++i) {
        join_taps(i / rows, i % rows);
      }
    });
  }

  void write_row(const float* x, std::int64_t image, std::int64_t row) {
    const std::int64_t width = shape_.window.width.padded(), from_row = row - shape_.window.height.padding;
    const bool is_padding = from_row < 0 || from_row >= shape_.window.height.size;
    for (std::int64_t part = 0; part < planes_ * shape_.groups; ++part) {
      const std::int64_t plane = part / shape_.groups, group = part % shape_.groups;
      std::uint64_t* words = words_.get() + image * image_stride() + part * group_stride() + row * width;
      for (std::int64_t word = 0; word < shape_.words_of_pixel(); ++word) {
        std::uint64_t* pixels = words + word * shape_.image_words();
        std::fill(pixels, pixels + (is_padding ? width : shape_.window.width.padding), 0);
        std::fill(pixels + width - shape_.window.width.padding, pixels + width, 0);
      }
      if (is_padding) {
        continue;
      }
      const float* floats = x + image * from_.image + from_row * from_.row;
      write_pixels(floats + group * shape_.group_channels() * from_.channel, thresholds_[static_cast<std::size_t>(plane)],
                   words + shape_.window.width.padding);
    }
  }

  void join_taps(std::int64_t image, std::int64_t row) const {
    const std::int64_t width = shape_.window.width.padded();
    std::uint64_t* words = words_.get() + image * image_stride() + row * width;
    for (std::int64_t part = 0; part < planes_ * shape_.groups; ++part, words += group_stride()) {
      chosen_isa().kernels.binary->join(words, width, taps_of_word_, shape_.window.width.dilation,
                                        shape_.group_channels());
    }
  }

  void write_pixels(const float* floats, float threshold, std::uint64_t* words) {
    const Thresholding call = {shape_.window.width.size, shape_.group_channels(), floats, from_.column, from_.channel,
                               &threshold, 0, words, 1, shape_.image_words()};
    chosen_isa().kernels.binary->threshold(call);
    for (std::int64_t i = 0; arguments_.levels.rounds && i < (channels_last_ ? call.rows : call.count); ++i) {
      const bool found = channels_last_ ? has_nan(floats + i * call.x_row, call.count)
                                        : has_nan(floats + i * call.x_step, call.rows);
      if (found) {
        any_nan_ = true;
      }
    }
  }

  // What the sums of each class of positions begin with.
  void write_bases() {
    const std::int64_t outputs = shape_.groups * outputs_padded();
    const auto* sums = arguments_.weight_sums.data<std::int32_t>();
    std::vector<std::int32_t> total(static_cast<std::size_t>(outputs));
    const std::size_t classes = row_classes_.ranges.size() * column_classes_.ranges.size();
    bases_.resize(classes * total.size());
    std::int32_t* base = bases_.data();
    for (const TapClasses::Range& rows : row_classes_.ranges) {
      for (const TapClasses::Range& columns : column_classes_.ranges) {
        std::fill(total.begin(), total.end(), 0);
        for (std::int64_t row = rows.first; row < rows.end; ++row) {
          for (std::int64_t column = columns.first; column < columns.end; ++column) {
            const std::int32_t* tap = sums + (row * shape_.window.width.kernel + column) * outputs;
            for (std::int64_t n = 0; n < outputs; ++n) {
              std::int32_t& sum = total[static_cast<std::size_t>(n)];  // of whatever is given: it may wrap
              sum = static_cast<std::int32_t>(static_cast<std::uint32_t>(sum) + static_cast<std::uint32_t>(tap[n]));
            }
          }
        }
        arguments_.write_base(total.data(), arguments_.weight_ones.data<std::int32_t>(),
                              *arguments_.x_zero_point.data<std::int32_t>(), outputs, base);
        base += outputs;
      }
    }
  }

  void multiply(float* y, Epilogue* epilogue) const {
    const std::vector<std::int64_t> offsets = shape_.offsets();
    const std::vector<float> scales(column_classes_.of_position.size(), *arguments_.x_scale.data<float>());
    BinaryProducts call{};
    call.outputs = shape_.group_outputs(), call.planes = planes_, call.words = shape_.words();
    call.x_row = shape_.window.width.stride, call.x_plane = plane_stride(), call.offsets = offsets.data();
    call.has_masks = arguments_.has_masks, call.step = static_cast<std::int32_t>(arguments_.levels.step());
    call.classes = column_classes_.of_position.data(), call.x_scales = scales.data();
    const std::int64_t rows = shape_.window.height.outputs(), parts = shape_.images * rows * shape_.groups;
    const std::int64_t work = shape_.window.width.outputs() * call.words * call.planes * panels_;
    in_parallel(parts, divided_up(kWordsOfThread, work), [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> scratch;
      for (std::int64_t part = begin; part < end; ++part) {
        multiply_row(call, part / shape_.groups / rows, part / shape_.groups % rows, part % shape_.groups, y, epilogue, scratch);
      }
    });
  }

  // One row of outputs of one group.
  void multiply_row(BinaryProducts call, std::int64_t image, std::int64_t row, std::int64_t group, float* y,
                    Epilogue* epilogue, std::vector<float>& scratch) const {
    const std::int64_t first = group * outputs_padded(), columns = shape_.window.width.outputs();
    const std::int64_t all = shape_.groups * outputs_padded();
    call.x = words_.get() + image * image_stride() + group * group_stride() +
             row * shape_.window.height.stride * shape_.window.width.padded();
    call.panels = reinterpret_cast<const std::uint64_t*>(arguments_.weight.data<std::int64_t>()) +
                  first * call.words * (call.has_masks ? 2 : 1);
    const auto row_class = static_cast<std::int64_t>(row_classes_.of_position[static_cast<std::size_t>(row)]);
    call.bases = bases_.data() + row_class * static_cast<std::int64_t>(column_classes_.ranges.size()) * all + first;
    call.base_row = all;
    call.w_scales = arguments_.weight_scale.data<float>() + first;
    call.bias = arguments_.bias.count() == 0 ? nullptr : arguments_.bias.data<float>() + first;
    const std::int64_t offset = image * to_.image + row * to_.row + group * shape_.group_outputs() * to_.channel;
    const bool is_direct = channels_last_ && epilogue == nullptr;
    if (is_direct) {
      call.y = y + offset, call.y_row = to_.column;
    } else {
      scratch.resize(static_cast<std::size_t>(columns * call.outputs));
      call.y = scratch.data(), call.y_row = call.outputs;
    }
    chosen_isa().kernels.binary->products(call, 0, columns, 0, panels_);
    if (epilogue != nullptr) {
      const std::int64_t place = (image * shape_.window.height.outputs() + row) * columns;
      epilogue->write({scratch.data(), columns, call.outputs, call.outputs, place, group * call.outputs});
    } else if (!is_direct) {
      write_transposed(scratch.data(), columns, call.outputs, call.outputs, y + offset, to_.channel);
    }
  }

  // A NaN that has no level makes every output NaN that reads it, as it would in float.
  void spread_nans(const float* x, float* y) const {
    const std::int64_t rows = shape_.window.height.outputs(), columns = shape_.window.width.outputs();
    for (std::int64_t part = 0; part < shape_.images * rows * columns * shape_.groups; ++part) {
      const std::int64_t group = part % shape_.groups, column = part / shape_.groups % columns;
      const std::int64_t row = part / shape_.groups / columns % rows, image = part / shape_.groups / columns / rows;
      if (!reads_nan(x + image * from_.image + group * shape_.group_channels() * from_.channel, row, column)) {
        continue;
      }
      float* result = y + image * to_.image + row * to_.row + column * to_.column;
      for (std::int64_t n = group * shape_.group_outputs(); n < (group + 1) * shape_.group_outputs(); ++n) {
        result[n * to_.channel] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }

  bool reads_nan(const float* x, std::int64_t row, std::int64_t column) const {
    const Axis &down = shape_.window.height, &across = shape_.window.width;
    for (std::int64_t tap = 0; tap < down.kernel * across.kernel; ++tap) {
      const std::int64_t h = row * down.stride - down.padding + tap / across.kernel * down.dilation;
      const std::int64_t w = column * across.stride - across.padding + tap % across.kernel * across.dilation;
      if (h < 0 || h >= down.size || w < 0 || w >= across.size) {
        continue;
      }
      for (std::int64_t channel = 0; channel < shape_.group_channels(); ++channel) {
        if (has_nan(x + h * from_.row + w * from_.column + channel * from_.channel, 1)) {
          return true;
        }
      }
    }
    return false;
  }

  const BinaryShape& shape_;
  const BinaryArguments& arguments_;
  const std::int64_t planes_;
  const bool channels_last_;
  const Layout from_, to_;
  const TapClasses row_classes_, column_classes_;
  const std::int64_t panels_;  // of a group
  const std::int64_t taps_of_word_;
  std::vector<float> thresholds_;
  std::unique_ptr<std::uint64_t[]> words_;
  std::vector<std::int32_t> bases_;  // [row classes, column classes, groups, padded outputs]
  std::atomic<bool> any_nan_{false};
};

BinaryShape shape_of(const std::vector<std::int64_t>& sizes, const BinaryArguments& arguments,
                     const StackValue* stack) {
  const StackValue* numbers = stack + BinaryArguments::kCount;
  require(sizes.size() == 4, "binary_conv2d: x has images, channels, rows and columns");
  const BinaryShape shape = {sizes[0], sizes[1], arguments.outputs, static_cast<std::int64_t>(numbers[8]),
                             Window(sizes[2], sizes[3], numbers)};
  require(shape.channels > 0 && shape.outputs > 0 && sizes[2] > 0 && sizes[3] > 0,
          "binary_conv2d: a convolution has channels, outputs and an image");
  require(shape.groups > 0 && shape.channels % shape.groups == 0 && shape.outputs % shape.groups == 0,
          "binary_conv2d: groups divide channels and outputs");
  return shape;
}

void convolve_bits(StackValue* stack, EpilogueArguments* fused) {
  const TorchApi& api = torch_api();
  Tensor x = Tensor::from_stack(stack[0]);
  BinaryArguments arguments = BinaryArguments::from_stack(stack);
  require(x.on_cpu() && x.dtype() == api.dtype_float32(), "binary_conv2d: x must be float32 on the CPU");
  const BinaryShape shape = shape_of(x.sizes(), arguments, stack);
  const std::int64_t padded = product_of(
      {shape.groups, divided_up(shape.group_outputs(), kBinaryPanel), kBinaryPanel}, "binary_conv2d: the weight");
  arguments.check("binary_conv2d", padded, shape.words(), shape.window.height.kernel * shape.window.width.kernel, 1);
  const bool channels_last = x.is_channels_last();
  if (!channels_last) {
    x = std::move(x).contiguous();
  }
  const std::vector<std::int64_t> sizes = {shape.images, shape.outputs, shape.window.height.outputs(),
                                           shape.window.width.outputs()};
  BinaryConvolution convolution(shape, arguments, channels_last);
  if (shape.images > 0) {
    convolution.prepare(x.data<float>());
  }
  const bool starts_on_bytes = shape.groups == 1 || shape.group_outputs() % 8 == 0;  // each group, where bits are written
  Results results(fused, sizes, channels_last, convolution.any_nan() || !starts_on_bytes);
  if (shape.images > 0) {
    convolution.run(x.data<float>(), results);
  }
  stack[0] = std::move(results).to_stack();
}

void binary_conv2d(StackValue* stack, std::uint64_t, std::uint64_t) { convolve_bits(stack, nullptr); }

void binary_conv2d_fused(StackValue* stack, std::uint64_t, std::uint64_t) {
  EpilogueArguments epilogue(stack + BinaryArguments::kCount + 9);
  convolve_bits(stack, &epilogue);
}

#define SUBBYTE_ARGUMENTS                                                                                             \
  "Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_sums, Tensor weight_ones, Tensor bias, Tensor x_scale, " \
  "Tensor x_zero_point, int x_low, int x_high, int x_levels, bool x_rounds, int outputs, bool has_masks, "            \
  "int kernel_h, int kernel_w, int stride_h, int stride_w, int padding_h, int padding_w, int dilation_h, "            \
  "int dilation_w, int groups"

}  // namespace

std::vector<Operator> binary_conv2d_operators() {
  return {{"binary_conv2d", "binary_conv2d(" SUBBYTE_ARGUMENTS ") -> Tensor", binary_conv2d},
          {"binary_conv2d_fused", "binary_conv2d_fused(" SUBBYTE_ARGUMENTS ", " SUBBYTE_EPILOGUE ") -> Tensor",
           binary_conv2d_fused}};
}

}  // namespace subbyte
