// affine_params: the range of a tensor, or of each of its rows, as scale and zero point.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "../isa.h"
#include "../torch/tensor.h"
#include "blocks.h"
#include "operators.h"
#include "parallel.h"
#include "require.h"
#include "tensor_argument.h"

namespace subbyte {
namespace {

using Sizes = std::vector<std::int64_t>;
using Limits = std::numeric_limits<float>;

constexpr std::int64_t kPiece = 1 << 15;  // values that one thread takes at once

struct Point {
  float scale;
  std::int32_t zero;
};

float usable(float scale) { return scale > 0 ? std::min(std::max(scale, Limits::min()), Limits::max()) : 1.0f; }

float over(float end, float code) { return code != 0 ? end / code : 0.0f; }

// As Symmetric.from_range in numerics/schemes.py.
Point symmetric(const Range& range, std::int32_t low, std::int32_t high) {
  const bool both_signs = low < 0 && high >= 0;
  const std::int32_t middle = (low + high + 1) >> 1;
  const std::int32_t zero = both_signs ? 0 : range.minimum < 0 ? middle : low;
  const auto lowest = static_cast<float>(low - zero), highest = static_cast<float>(high - zero);
  float scale = std::max(over(range.maximum, highest), over(range.minimum, lowest));
  if (!(scale > 0)) {
    const float largest = std::max(std::fabs(range.minimum), std::fabs(range.maximum));
    scale = largest / std::max(std::fabs(lowest), std::fabs(highest));
  }
  return {usable(scale), zero};
}

// As Asymmetric.from_range there.
Point asymmetric(const Range& range, std::int32_t low, std::int32_t high) {
  const float minimum = range.minimum > 0 ? 0.0f : range.minimum, maximum = range.maximum < 0 ? 0.0f : range.maximum;
  const auto steps = static_cast<float>(high - low);
  const float scale = usable(maximum / steps - minimum / steps);
  const float zero = std::nearbyint(static_cast<float>(low) - minimum / scale);
  const float inside = std::min(std::max(static_cast<float>(low), zero), static_cast<float>(high));  // of a NaN: low
  return {scale, static_cast<std::int32_t>(inside)};
}

// The ranges of `rows` stretches of `size` values. Each is cut into pieces, which threads share.
std::vector<Range> ranges_of(const float* x, std::int64_t rows, std::int64_t size) {
  const std::int64_t cuts = std::max<std::int64_t>(divided_up(size, kPiece), 1);
  std::vector<Range> pieces(static_cast<std::size_t>(rows * cuts), Range{0.0f, 0.0f});
  if (size == 0) {
    return pieces;
  }
  const QuantizeKernels& kernels = *chosen_isa().kernels.quantize;
  in_parallel(rows * cuts, divided_up(kPiece, std::min(size, kPiece)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % cuts * kPiece;
      pieces[static_cast<std::size_t>(i)] = kernels.range(x + i / cuts * size + first, std::min(kPiece, size - first));
    }
  });
  std::vector<Range> whole;
  for (std::size_t row = 0; row < pieces.size(); row += static_cast<std::size_t>(cuts)) {
    Range range = pieces[row];
    for (std::size_t i = row + 1; i < row + static_cast<std::size_t>(cuts); ++i) {
      const Range& other = pieces[i];
      const bool is_nan = range.minimum != range.minimum || other.minimum != other.minimum;
      range.minimum = is_nan ? Limits::quiet_NaN() : std::min(range.minimum, other.minimum);
      range.maximum = is_nan ? Limits::quiet_NaN() : std::max(range.maximum, other.maximum);
    }
    whole.push_back(range);
  }
  return whole;
}

void affine_params(StackValue* stack, std::uint64_t, std::uint64_t) {
  Tensor x = Tensor::from_stack(stack[0]);
  const auto low = static_cast<std::int64_t>(stack[1]), high = static_cast<std::int64_t>(stack[2]);
  const bool is_symmetric = (stack[3] & 1) != 0, by_row = (stack[4] & 1) != 0;
  require_tensor(x, "x", {torch_api().dtype_float32()});
  require(low < high && low >= -128 && high <= 255 && high - low <= 255, "codes take 8 bits");
  Sizes sizes = x.sizes();
  require(!by_row || !sizes.empty(), "a number has no rows");
  if (by_row || !is_dense(sizes, x.strides())) {
    x = std::move(x).contiguous();
  }
  std::int64_t rows = 1;
  const std::int64_t size = by_row ? sizes.back() : x.count();
  if (by_row) {
    sizes.back() = 1;
    for (const std::int64_t each : sizes) {
      rows *= each;
    }
  }
  const Sizes result_sizes = by_row ? sizes : Sizes{};
  Tensor scale = Tensor::empty(result_sizes, torch_api().dtype_float32());
  Tensor zero_point = Tensor::empty(result_sizes, torch_api().dtype_int32());
  auto* scales = scale.data<float>();
  auto* zeros = zero_point.data<std::int32_t>();
  for (const Range& range : ranges_of(x.data<float>(), rows, size)) {
    const auto least = static_cast<std::int32_t>(low), most = static_cast<std::int32_t>(high);
    const Point point = is_symmetric ? symmetric(range, least, most) : asymmetric(range, least, most);
    *scales++ = point.scale;
    *zeros++ = point.zero;
  }
  stack[0] = std::move(scale).to_stack();
  stack[1] = std::move(zero_point).to_stack();
}

}  // namespace

std::vector<Operator> range_operators() {
  return {operator_of<affine_params>(
      "affine_params(Tensor x, int low, int high, bool symmetric, bool by_row) -> (Tensor, Tensor)")};
}

}  // namespace subbyte
