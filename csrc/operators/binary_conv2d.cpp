// binary_conv2d: images quantized to two or three levels, times kernels of -1, 0 and +1; binary_conv2d_packed: images
// whose bits are packed already.
//
// Rows of an image become words of bits, padded; every output then reads its words where they lie. A padded pixel has
// bits of 0, as has the lowest level, and is worth 0: what sums begin with leaves out the weights that meet padding.
#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "../isa.h"
#include "binary.h"
#include "binary_image.h"
#include "binary_shape.h"
#include "epilogue.h"
#include "operators.h"
#include "require.h"
#include "tensor_argument.h"
#include "spread_nans.h"
#include "transposed.h"

namespace subbyte {
namespace {

// Words that a thread multiplies at least, and the outputs of a channel that it computes at once: they stay near.
constexpr std::int64_t kWordsOfThread = 1 << 12;
constexpr std::int64_t kBlock = 96;

// Floats that a thread looks at for a NaN at least.
constexpr std::int64_t kFloatsOfThread = 1 << 15;

// A line of the cache: what is read by vectors begins with one.
constexpr std::size_t kLine = 16;
struct alignas(64) Line {
  std::int32_t values[kLine];
};

class BinaryConvolution {
 public:
  BinaryConvolution(const BinaryShape& shape, const BinaryArguments& arguments, const BinaryImage& source,
                    Results& results, bool channels_last)
      : shape_(shape),
        arguments_(arguments),
        source_(source),
        results_(results),
        channels_last_(channels_last),
        planes_(arguments.levels.planes()),
        panels_(divided_up(shape.group_outputs(), kBinaryPanel)),
        row_classes_(shape.window.height),
        column_classes_(shape.window.width),
        offsets_(shape.offsets()) {
    product_of({shape.images, words_of_image()}, "the padded x");  // refused before threads begin
    for (std::int64_t column = 0; column < shape.window.width.outputs(); ++column) {
      const std::int32_t base = column_classes_.of_position[static_cast<std::size_t>(column)];
      column_starts_.push_back({column * shape.window.width.stride, base * outputs_of_bases()});
    }
  }

  void run() {
    write_bases();
    const std::int64_t rows = shape_.window.height.outputs();
    const std::int64_t work = shape_.window.width.outputs() * shape_.words() * planes_ * panels_ * shape_.groups;
    in_parallel(shape_.images * rows, divided_up(kWordsOfThread, work), [&](std::int64_t begin, std::int64_t end) {
      const std::unique_ptr<std::uint64_t[]> words(new std::uint64_t[static_cast<std::size_t>(words_of_image())]);
      std::vector<float> scratch;
      for (std::int64_t next; begin < end; begin = next) {
        const std::int64_t image = begin / rows;
        next = std::min(end, (image + 1) * rows);
        write_words(image, begin - image * rows, next - image * rows, words.get());
        multiply(image, begin - image * rows, next - image * rows, words.get(), scratch);
      }
    });
  }

 private:
  // Words of one image: for each plane, group and channel word, padded rows of pixels.
  std::int64_t words_of_image() const {
    return product_of({shape_.groups * planes_ * shape_.words_of_pixel(), shape_.window.height.padded(),
                       shape_.window.width.padded()},
                      "the padded x");
  }
  std::int64_t plane_stride() const { return shape_.groups * group_stride(); }
  std::int64_t group_stride() const { return shape_.words_of_pixel() * shape_.image_words(); }
  std::int64_t outputs_padded() const { return panels_ * kBinaryPanel; }
  std::int64_t outputs_of_bases() const { return shape_.groups * outputs_padded(); }

  // What sums of each class of places begin with.
  void write_bases() {
    const std::int64_t outputs = outputs_of_bases();
    const auto* sums = arguments_.weight_sums.data<std::int32_t>();
    std::vector<std::uint32_t> total(static_cast<std::size_t>(outputs));  // of whatever is given: they may wrap
    const std::size_t count = row_classes_.ranges.size() * column_classes_.ranges.size() * total.size();
    bases_.resize((count + kLine - 1) / kLine);
    std::int32_t* base = bases_.data()->values;
    for (const TapClasses::Range& rows : row_classes_.ranges) {
      for (const TapClasses::Range& columns : column_classes_.ranges) {
        std::fill(total.begin(), total.end(), 0u);
        for (std::int64_t row = rows.first; row < rows.end; ++row) {
          for (std::int64_t column = columns.first; column < columns.end; ++column) {
            const std::int32_t* tap = sums + (row * shape_.window.width.kernel + column) * outputs;
            for (std::size_t n = 0; n < total.size(); ++n) {
              total[n] += static_cast<std::uint32_t>(tap[n]);
            }
          }
        }
        arguments_.write_base(reinterpret_cast<const std::int32_t*>(total.data()),
                              arguments_.weight_ones.data<std::int32_t>(),
                              *arguments_.x_zero_point.data<std::int32_t>(), outputs, base);
        base += outputs;
      }
    }
  }

  // The words that some rows of outputs read.
  void write_words(std::int64_t image, std::int64_t first, std::int64_t end, std::uint64_t* words) const {
    const Axis& height = shape_.window.height;
    const std::int64_t begin = first * height.stride;
    const std::int64_t last = (end - 1) * height.stride + (height.kernel - 1) * height.dilation;
    for (std::int64_t row = begin; row <= last; ++row) {
      write_row(image, row, words + row * shape_.window.width.padded());
    }
    // In a loop of its own: what was written word by word is then ready to be read by vectors.
    for (std::int64_t row = begin; shape_.taps_of_word() > 1 && row <= last; ++row) {
      for (std::int64_t part = 0; part < planes_ * shape_.groups; ++part) {
        chosen_isa().kernels.binary->join(words + part * group_stride() + row * shape_.window.width.padded(),
                                          shape_.window.width.padded(), shape_.taps_of_word(),
                                          shape_.window.width.dilation, shape_.group_channels());
      }
    }
  }

  void write_row(std::int64_t image, std::int64_t row, std::uint64_t* words) const {
    const Axis &height = shape_.window.height, &width = shape_.window.width;
    const std::int64_t from = row - height.padding;
    const bool is_padding = from < 0 || from >= height.size;
    for (std::int64_t part = 0; part < planes_ * shape_.groups; ++part, words += group_stride()) {
      for (std::int64_t word = 0; word < shape_.words_of_pixel(); ++word) {
        std::uint64_t* pixels = words + word * shape_.image_words();
        std::fill_n(pixels, is_padding ? width.padded() : width.padding, 0);
        std::fill_n(pixels + width.padding + width.size, is_padding ? 0 : width.padding, 0);
      }
      if (!is_padding) {
        source_.write(image, part / shape_.groups, part % shape_.groups, from, words + width.padding);
      }
    }
  }

  void multiply(std::int64_t image, std::int64_t first, std::int64_t end, const std::uint64_t* words,
                std::vector<float>& scratch) const {
    const std::int64_t columns = shape_.window.width.outputs();
    BinaryRow starts[kBlock];
    for (std::int64_t place = first * columns; place < end * columns; place += kBlock) {
      const std::int64_t count = std::min(kBlock, end * columns - place);
      write_starts(place, count, starts);
      for (std::int64_t group = 0; group < shape_.groups; ++group) {
        multiply_block(words, starts, image, place, count, group, scratch);
      }
    }
  }

  // Where the words and bases of consecutive places begin.
  void write_starts(std::int64_t place, std::int64_t count, BinaryRow* starts) const {
    const Axis &height = shape_.window.height, &width = shape_.window.width;
    const std::int64_t row_bases = static_cast<std::int64_t>(column_classes_.ranges.size()) * outputs_of_bases();
    std::int64_t row = place / width.outputs(), column = place % width.outputs();
    for (std::int64_t i = 0, run = 0; i < count; i += run, ++row, column = 0) {
      run = std::min(width.outputs() - column, count - i);
      const BinaryRow first = {row * height.stride * width.padded(),
                               row_classes_.of_position[static_cast<std::size_t>(row)] * row_bases};
      const BinaryRow* columns = column_starts_.data() + column;
      for (std::int64_t j = 0; j < run; ++j) {
        starts[i + j] = {first.word + columns[j].word, first.base + columns[j].base};
      }
    }
  }

  void multiply_block(const std::uint64_t* words, const BinaryRow* starts, std::int64_t image, std::int64_t place,
                      std::int64_t count, std::int64_t group, std::vector<float>& scratch) const {
    const std::int64_t first = group * outputs_padded(), places = shape_.places();
    BinaryProducts call{};
    call.outputs = shape_.group_outputs(), call.planes = planes_;
    call.words = static_cast<std::int64_t>(offsets_.size());
    call.x = words + group * group_stride(), call.rows = starts;
    call.x_plane = plane_stride(), call.offsets = offsets_.data();
    call.panels = reinterpret_cast<const std::uint64_t*>(arguments_.weight.data<std::int64_t>()) +
                  first * call.words * (arguments_.has_masks ? 2 : 1);
    call.has_masks = arguments_.has_masks, call.step = static_cast<std::int32_t>(arguments_.levels.step());
    call.bases = bases_.data()->values + first;
    call.x_scales = arguments_.x_scale.data<float>(), call.x_scale_row = 0;
    call.w_scales = arguments_.weight_scale.data<float>() + first;
    call.bias = arguments_.bias.count() == 0 ? nullptr : arguments_.bias.data<float>() + first;
    Epilogue* const epilogue = results_.epilogue();
    if (channels_last_ && epilogue == nullptr) {
      call.y = results_.floats() + (image * places + place) * shape_.outputs + group * call.outputs;
      call.y_row = shape_.outputs;
    } else {
      scratch.resize(static_cast<std::size_t>(kBlock * call.outputs));
      call.y = scratch.data(), call.y_row = call.outputs;
    }
    chosen_isa().kernels.binary->products(call, 0, count, 0, panels_);
    if (epilogue != nullptr) {
      epilogue->write({scratch.data(), count, call.outputs, call.outputs, image * places + place, group * call.outputs});
    } else if (!channels_last_) {
      write_transposed(scratch.data(), count, call.outputs, call.outputs,
                       results_.floats() + (image * shape_.outputs + group * call.outputs) * places + place, places);
    }
  }

  const BinaryShape& shape_;
  const BinaryArguments& arguments_;
  const BinaryImage& source_;
  Results& results_;
  const bool channels_last_;
  const std::int64_t planes_;
  const std::int64_t panels_;  // of a group
  const TapClasses row_classes_, column_classes_;
  const std::vector<std::int64_t> offsets_;
  std::vector<BinaryRow> column_starts_;    // of each column of outputs, from those of its row
  std::vector<Line> bases_;               // [row classes, column classes, groups, padded outputs]
};

void check_arguments(const BinaryShape& shape, BinaryArguments& arguments) {
  require(shape.channels > 0 && shape.outputs > 0 && shape.window.height.size > 0 && shape.window.width.size > 0,
          "a convolution has channels, outputs and an image");
  require(shape.groups > 0 && shape.channels % shape.groups == 0 && shape.outputs % shape.groups == 0,
          "groups divide channels and outputs");
  const std::int64_t padded = product_of(
      {shape.groups, divided_up(shape.group_outputs(), kBinaryPanel), kBinaryPanel}, "the weight");
  arguments.check(padded, shape.words(), shape.window.taps(), 1);
}

bool has_nan_in_parallel(const float* x, std::int64_t count) {
  std::atomic<bool> found{false};
  in_parallel(count, kFloatsOfThread, [&](std::int64_t begin, std::int64_t end) {
    if (has_nan(x + begin, end - begin)) {
      found = true;
    }
  });
  return found;
}

// The whole result has to wait for an epilogue that writes bits where groups do not begin on whole bytes.
Results results_of(const BinaryShape& shape, EpilogueArguments* fused, bool channels_last, bool any_nan) {
  const bool starts_on_bytes = shape.groups == 1 || shape.group_outputs() % 8 == 0;
  const std::vector<std::int64_t> sizes = {shape.images, shape.outputs, shape.window.height.outputs(),
                                           shape.window.width.outputs()};
  return Results(fused, sizes, channels_last, any_nan || !starts_on_bytes);
}

void convolve_floats(StackValue* stack, EpilogueArguments* fused) {
  Tensor x = Tensor::from_stack(stack[0]);
  BinaryArguments arguments = BinaryArguments::from_stack(stack);
  const StackValue* numbers = stack + BinaryArguments::kCount;
  require_tensor(x, "x", {torch_api().dtype_float32()});
  const std::vector<std::int64_t> sizes = x.sizes();
  require(sizes.size() == 4, "x has images, channels, rows and columns");
  const BinaryShape shape = {sizes[0], sizes[1], arguments.outputs, static_cast<std::int64_t>(numbers[8]),
                             Window(sizes[2], sizes[3], numbers)};
  check_arguments(shape, arguments);
  const bool channels_last = x.is_channels_last();
  if (!channels_last) {
    x = std::move(x).contiguous();
  }
  // A NaN that has no level makes every output NaN that reads it, as it would in float.
  const bool any_nan = arguments.levels.rounds && has_nan_in_parallel(x.data<float>(), x.count());
  Results results = results_of(shape, fused, channels_last, any_nan);
  if (shape.images > 0) {
    const Image image = {x.data<float>(), shape.images, shape.channels, channels_last};
    BinaryConvolution(shape, arguments, ComparedImage(shape, arguments, image), results, channels_last).run();
    if (any_nan) {
      spread_nans(image, {shape.window, shape.groups, shape.group_outputs(), results.floats(), channels_last});
    }
  }
  stack[0] = std::move(results).to_stack();
}

void convolve_bits(StackValue* stack, EpilogueArguments* fused) {
  Tensor x = Tensor::from_stack(stack[0]);
  BinaryArguments arguments = BinaryArguments::from_stack(stack);
  const StackValue* numbers = stack + BinaryArguments::kCount;
  require_tensor(x, "x", {torch_api().dtype_uint8()});
  const std::vector<std::int64_t> sizes = x.sizes();
  require(sizes.size() == 4, "x has images, rows, columns and bytes");
  const BinaryShape shape = {sizes[0], static_cast<std::int64_t>(numbers[9]), arguments.outputs,
                             static_cast<std::int64_t>(numbers[8]), Window(sizes[1], sizes[2], numbers)};
  check_arguments(shape, arguments);
  require(arguments.levels.count == 2, "a bit has two levels");
  require(sizes[3] == PackedImage::bytes_of_pixel(shape.channels),
          "a pixel has the bytes that hold the bits of its channels");
  x = std::move(x).contiguous();
  Results results = results_of(shape, fused, true, false);
  if (shape.images > 0) {
    BinaryConvolution(shape, arguments, PackedImage(shape, x.data<std::uint8_t>()), results, true).run();
  }
  stack[0] = std::move(results).to_stack();
}

void binary_conv2d(StackValue* stack, std::uint64_t, std::uint64_t) { convolve_floats(stack, nullptr); }

void binary_conv2d_fused(StackValue* stack, std::uint64_t, std::uint64_t) {
  EpilogueArguments epilogue(stack + BinaryArguments::kCount + 9);
  convolve_floats(stack, &epilogue);
}

void binary_conv2d_packed(StackValue* stack, std::uint64_t, std::uint64_t) { convolve_bits(stack, nullptr); }

void binary_conv2d_packed_fused(StackValue* stack, std::uint64_t, std::uint64_t) {
  EpilogueArguments epilogue(stack + BinaryArguments::kCount + 10);
  convolve_bits(stack, &epilogue);
}

#define SUBBYTE_ARGUMENTS                                                                                             \
  "Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_sums, Tensor weight_ones, Tensor bias, Tensor x_scale, " \
  "Tensor x_zero_point, int x_low, int x_high, int x_levels, bool x_rounds, int outputs, bool has_masks, "            \
  "int kernel_h, int kernel_w, int stride_h, int stride_w, int padding_h, int padding_w, int dilation_h, "            \
  "int dilation_w, int groups"

}  // namespace

std::vector<Operator> binary_conv2d_operators() {
  return {operator_of<binary_conv2d>("binary_conv2d(" SUBBYTE_ARGUMENTS ") -> Tensor"),
          operator_of<binary_conv2d_fused>("binary_conv2d_fused(" SUBBYTE_ARGUMENTS ", " SUBBYTE_EPILOGUE ") -> Tensor"),
          operator_of<binary_conv2d_packed>("binary_conv2d_packed(" SUBBYTE_ARGUMENTS ", int channels) -> Tensor"),
          operator_of<binary_conv2d_packed_fused>("binary_conv2d_packed_fused(" SUBBYTE_ARGUMENTS ", int channels, " SUBBYTE_EPILOGUE ") -> Tensor")};
}

}  // namespace subbyte
