// binary_linear: rows of floats quantized to two or three levels, or of bits, times weights of -1, 0 and +1.
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "../isa.h"
#include "binary.h"
#include "epilogue.h"
#include "operators.h"
#include "parallel.h"
#include "require.h"
#include "tensor_argument.h"

namespace subbyte {
namespace {

// What a thread takes at least: floats to compare, and the tiles that one call of the kernel works on.
constexpr std::int64_t kGrain = 1 << 15;
constexpr std::int64_t kRowBlock = 48, kPanelBlock = 4;
constexpr std::int64_t kWordsOfThread = 1 << 14;

// Rows of bits, each of several planes, and what goes with them.
struct BinaryRows {
  std::unique_ptr<std::uint64_t[]> words;
  std::vector<float> scales;
  std::vector<BinaryRow> starts;
};

// Where each row begins and which scale it has; and for each zero point what sums begin with.
std::vector<std::int32_t> classify(const BinaryArguments& arguments, std::int64_t padded, std::int64_t words,
                                   BinaryRows& rows) {
  const auto* scale = arguments.x_scale.data<float>();
  const auto* zero = arguments.x_zero_point.data<std::int32_t>();
  const bool by_row = arguments.x_scale.count() != 1, by_class = by_row && arguments.levels.rounds;
  for (std::size_t m = 0; m < rows.scales.size(); ++m) {
    rows.scales[m] = scale[by_row ? m : 0];
    rows.starts[m] = {static_cast<std::int64_t>(m) * words, by_class ? (zero[m] - arguments.levels.low) * padded : 0};
  }
  const std::int64_t classes = by_class ? arguments.levels.count : 1;
  std::vector<std::int32_t> bases(static_cast<std::size_t>(classes * padded));
  for (std::int64_t i = 0; i < classes; ++i) {
    const auto zero_point = static_cast<std::int32_t>(by_class ? arguments.levels.low + i : by_row ? 0 : zero[0]);
    arguments.write_base(arguments.weight_sums.data<std::int32_t>(), arguments.weight_ones.data<std::int32_t>(),
                         zero_point, padded, bases.data() + i * padded);
  }
  return bases;
}

// Compares some rows; a NaN that has no level makes its row NaN, as it would in float.
void compare(const BinaryArguments& arguments, const float* x, std::int64_t inputs, std::int64_t first,
             std::int64_t end, BinaryRows& rows) {
  const Levels& levels = arguments.levels;
  const std::int64_t words = divided_up(inputs, 64);
  const bool by_row = arguments.x_scale.count() != 1;
  std::vector<float> thresholds(static_cast<std::size_t>(by_row ? end - first : 1));
  for (std::int64_t plane = 0; plane < levels.planes(); ++plane) {
    for (std::size_t i = 0; i < thresholds.size(); ++i) {
      const std::size_t parameter = by_row ? static_cast<std::size_t>(first) + i : 0;
      thresholds[i] = levels.threshold(plane, arguments.x_scale.data<float>()[parameter],
                                       arguments.x_zero_point.data<std::int32_t>()[parameter]);
    }
    const Thresholding call = {end - first, inputs, x + first * inputs, inputs, 1, thresholds.data(), by_row ? 1 : 0,
                               rows.words.get() + (first * levels.planes() + plane) * words,
                               levels.planes() * words, 1};
    chosen_isa().kernels.binary->threshold(call);
  }
  for (std::int64_t m = first; levels.rounds && m < end; ++m) {
    if (has_nan(x + m * inputs, inputs)) {
      rows.scales[static_cast<std::size_t>(m)] = std::numeric_limits<float>::quiet_NaN();
    }
  }
}

// Rows that are bits already, one for each input.
void copy_bits(const std::uint8_t* x, std::int64_t inputs, std::int64_t first, std::int64_t end, BinaryRows& rows) {
  const std::int64_t words = divided_up(inputs, 64), bytes = divided_up(inputs, 8);
  const std::uint64_t of_last = ~std::uint64_t{0} >> (words * 64 - inputs);
  for (std::int64_t m = first; m < end; ++m) {
    std::uint64_t* const to = rows.words.get() + m * words;
    to[words - 1] = 0;
    std::memcpy(to, x + m * bytes, static_cast<std::size_t>(bytes));
    to[words - 1] &= of_last;
  }
}

// These rows, from panel `panel` on, in a buffer of one tile.
BinaryProducts part_of(const BinaryProducts& call, std::int64_t row, std::int64_t panel, float* values) {
  BinaryProducts part = call;
  const std::int64_t first = panel * kBinaryPanel;
  part.outputs = call.outputs - first < kPanelBlock * kBinaryPanel ? call.outputs - first : kPanelBlock * kBinaryPanel;
  part.rows += row, part.x_scales += row * call.x_scale_row;
  part.panels += first * call.words * (call.has_masks ? 2 : 1), part.bases += first, part.w_scales += first;
  part.bias = call.bias == nullptr ? nullptr : call.bias + first;
  part.y = values, part.y_row = part.outputs;
  return part;
}

// Tiles of rows and panels, those of one block of panels one after another: their weights stay near.
void multiply(const BinaryProducts& call, std::int64_t rows, Epilogue* epilogue) {
  const std::int64_t panels = divided_up(call.outputs, kBinaryPanel);
  const std::int64_t row_blocks = divided_up(rows, kRowBlock), panel_blocks = divided_up(panels, kPanelBlock);
  const std::int64_t work = call.words * call.planes * kPanelBlock * (rows < kRowBlock ? rows : kRowBlock);
  const std::int64_t grain = divided_up(kWordsOfThread, work > 0 ? work : 1);
  in_parallel(row_blocks * panel_blocks, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t row = block % row_blocks * kRowBlock, panel = block / row_blocks * kPanelBlock;
      const std::int64_t end = row + kRowBlock < rows ? row + kRowBlock : rows;
      const std::int64_t end_panel = panel + kPanelBlock < panels ? panel + kPanelBlock : panels;
      if (epilogue == nullptr) {
        chosen_isa().kernels.binary->products(call, row, end, panel, end_panel);
        continue;
      }
      float values[kRowBlock * kPanelBlock * kBinaryPanel];
      const BinaryProducts part = part_of(call, row, panel, values);
      chosen_isa().kernels.binary->products(part, 0, end - row, 0, end_panel - panel);
      epilogue->write({values, end - row, part.outputs, part.outputs, row, panel * kBinaryPanel});
    }
  });
}

// `known_inputs`: of a row, where x may be bits; without, x is floats.
void multiply_bits(StackValue* stack, std::optional<std::int64_t> known_inputs, EpilogueArguments* fused) {
  const TorchApi& api = torch_api();
  Tensor given = Tensor::from_stack(stack[0]);
  BinaryArguments arguments = BinaryArguments::from_stack(stack);
  const std::vector<std::int64_t> sizes = given.sizes();
  require(sizes.size() == 2, "x has rows and columns");
  const bool are_bits = known_inputs && given.dtype() == api.dtype_uint8();
  require_tensor(given, "x", {are_bits ? api.dtype_uint8() : api.dtype_float32()});
  const std::int64_t count = sizes[0], inputs = are_bits ? *known_inputs : sizes[1];
  require(!known_inputs || sizes[1] == (are_bits ? divided_up(inputs, 8) : *known_inputs),
          "x has rows, each of as many columns as the layer has inputs, or of their bits");
  require(!are_bits || arguments.levels.count == 2, "bits stand for two levels");
  require(inputs > 0 && arguments.outputs > 0, "a layer has inputs and outputs");
  const std::int64_t words = divided_up(inputs, 64), panels = divided_up(arguments.outputs, kBinaryPanel);
  const std::int64_t padded = product_of({panels, kBinaryPanel}, "the weight");
  arguments.check(padded, words, 1, count);
  const std::int64_t planes = arguments.levels.planes();
  const Tensor x = std::move(given).contiguous();
  Results results(fused, {count, arguments.outputs}, false);
  BinaryRows rows{std::unique_ptr<std::uint64_t[]>(new std::uint64_t[static_cast<std::size_t>(count * planes * words)]),
                  std::vector<float>(static_cast<std::size_t>(count)),
                  std::vector<BinaryRow>(static_cast<std::size_t>(count))};
  const std::vector<std::int32_t> bases = classify(arguments, padded, planes * words, rows);
  in_parallel(count, divided_up(kGrain, inputs), [&](std::int64_t begin, std::int64_t end) {
    if (are_bits) {
      copy_bits(x.data<std::uint8_t>(), inputs, begin, end, rows);
    } else {
      compare(arguments, x.data<float>(), inputs, begin, end, rows);
    }
  });
  std::vector<std::int64_t> offsets(static_cast<std::size_t>(words));
  std::iota(offsets.begin(), offsets.end(), 0);
  BinaryProducts call{};
  call.outputs = arguments.outputs, call.planes = planes, call.words = words;
  call.x = rows.words.get(), call.rows = rows.starts.data(), call.x_plane = words, call.offsets = offsets.data();
  call.panels = reinterpret_cast<const std::uint64_t*>(arguments.weight.data<std::int64_t>());
  call.has_masks = arguments.has_masks, call.step = static_cast<std::int32_t>(arguments.levels.step());
  call.bases = bases.data();
  call.x_scales = rows.scales.data();
  call.x_scale_row = arguments.x_scale.count() != 1 || arguments.levels.rounds ? 1 : 0;  // a NaN makes its row NaN
  call.w_scales = arguments.weight_scale.data<float>();
  call.bias = arguments.bias.count() == 0 ? nullptr : arguments.bias.data<float>();
  call.y = results.floats(), call.y_row = arguments.outputs;
  multiply(call, count, results.epilogue());
  stack[0] = std::move(results).to_stack();
}

void binary_linear(StackValue* stack, std::uint64_t, std::uint64_t) { multiply_bits(stack, std::nullopt, nullptr); }

void binary_linear_fused(StackValue* stack, std::uint64_t, std::uint64_t) {
  const auto inputs = static_cast<std::int64_t>(stack[BinaryArguments::kCount]);
  EpilogueArguments epilogue(stack + BinaryArguments::kCount + 1);
  multiply_bits(stack, inputs, &epilogue);
}

#define SUBBYTE_ARGUMENTS                                                                                      \
  "Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_sums, Tensor weight_ones, Tensor bias, Tensor " \
  "x_scale, Tensor x_zero_point, int x_low, int x_high, int x_levels, bool x_rounds, int outputs, bool "       \
  "has_masks"

}  // namespace

std::vector<Operator> binary_linear_operators() {
  return {operator_of<binary_linear>("binary_linear(" SUBBYTE_ARGUMENTS ") -> Tensor"),
          operator_of<binary_linear_fused>("binary_linear_fused(" SUBBYTE_ARGUMENTS ", int inputs, " SUBBYTE_EPILOGUE ") -> Tensor")};
}

}  // namespace subbyte
