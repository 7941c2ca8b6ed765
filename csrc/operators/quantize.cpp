// affine_snap, affine_fake_quantize, affine_quantize and the gradients: floats onto grids, in one pass.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
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

// Values that one thread takes at least; pieces begin on a multiple of kUnit, which is one of 8: on a byte of packed codes.
constexpr std::int64_t kGrain = 1 << 15, kUnit = 64;
// Gradients are summed in so many parts at most, whatever the threads.
constexpr std::int64_t kParts = 16;

const QuantizeKernels& kernels() { return *chosen_isa().kernels.quantize; }

template <typename Work>  // work(begin, end)
void in_pieces(std::int64_t count, const Work& work) {
  in_parallel(divided_up(count, kUnit), kGrain / kUnit, [&](std::int64_t begin, std::int64_t end) {
    work(begin * kUnit, std::min(end * kUnit, count));
  });
}

// x as it lies in memory, in any order of its axes; a copy in row-major order where it has gaps.
struct Values {
  Tensor tensor;
  Sizes sizes, strides;

  explicit Values(Tensor given) : tensor(std::move(given)), sizes(tensor.sizes()), strides(tensor.strides()) {
    require_tensor(tensor, "x", {torch_api().dtype_float32()});
    if (!tensor.is_contiguous() && !is_dense(sizes, strides)) {
      tensor = std::move(tensor).contiguous();
      strides = tensor.strides();
    }
  }

  Values row_major() && {
    tensor = std::move(tensor).contiguous();
    strides = tensor.strides();
    return std::move(*this);
  }

  const float* data() const { return tensor.data<float>(); }
  std::int64_t count() const { return tensor.count(); }
  Tensor empty_like(std::int32_t dtype) const { return Tensor::empty_strided(sizes, strides, dtype); }
};

// The codes that may be written.
struct Codes {
  std::int64_t low, high;

  Codes(StackValue first, StackValue last)
      : low(static_cast<std::int64_t>(first)), high(static_cast<std::int64_t>(last)) {
    require(low < high && low >= -128 && high <= 255 && high - low <= 255,
            "codes take 8 bits, not " + std::to_string(low) + ".." + std::to_string(high));
  }
};

// The grids of a tensor, in the order in which its values meet them.
class Parameters {
 public:
  Parameters(const Values& x, Tensor scale, Tensor zero_point, const Codes& codes, std::int64_t group_size)
      : scale_(checked(std::move(scale), torch_api().dtype_float32(), "scale")),
        zero_point_(checked(std::move(zero_point), torch_api().dtype_int32(), "zero point")),
        blocks_(x.sizes, x.strides, scale_.sizes(), group_size) {
    const bool shares_zero = zero_point_.count() == 1;
    require(shares_zero || zero_point_.sizes() == scale_.sizes(), "there is one zero point, or one for each scale");
    const auto* scales = scale_.data<float>();
    const auto* zeros = zero_point_.data<std::int32_t>();
    const std::size_t count = blocks_.sources().size();
    grids_.resize(3 * count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t source = blocks_.sources()[i];
      const std::int64_t zero = zeros[shares_zero ? 0 : source];
      require(std::isfinite(scales[source]) && scales[source] > 0, "a scale is no positive number");
      grids_[i] = scales[source];
      grids_[count + i] = static_cast<float>(codes.low - zero);
      grids_[2 * count + i] = static_cast<float>(codes.high - zero);
    }
  }

  const Tensor& scale() const { return scale_; }
  const Tensor& zero_point() const { return zero_point_; }
  const std::vector<std::int64_t>& sources() const { return blocks_.sources(); }

  template <typename Run>  // run(first, count, grids, parameter)
  void each_run(std::int64_t begin, std::int64_t end, const Run& run) const {
    const std::size_t count = blocks_.sources().size();
    blocks_.each_run(begin, end, [&](std::int64_t first, std::int64_t size, std::int64_t parameter, std::int64_t stride) {
      const float* scales = grids_.data() + parameter;
      run(first, size, Grids{scales, scales + count, scales + 2 * count, stride}, parameter);
    });
  }

 private:
  static Tensor checked(Tensor tensor, std::int32_t dtype, const std::string& name) {
    require_tensor(tensor, "the " + name, {dtype});
    require(tensor.count() > 0, "there is no " + name);
    return std::move(tensor).contiguous();
  }

  Tensor scale_, zero_point_;
  Blocks blocks_;
  std::vector<float> grids_;  // scales, lows, highs
};

// The arguments that all operators begin with: Tensor x, Tensor scale, Tensor zero_point, int low, int high, int group_size.
struct Arguments {
  Tensor x, scale, zero_point;
  StackValue low, high;
  std::int64_t group_size;

  // All tensors are taken over before the first is refused: what is not taken over is not freed.
  explicit Arguments(const StackValue* stack)
      : x(Tensor::from_stack(stack[0])),
        scale(Tensor::from_stack(stack[1])),
        zero_point(Tensor::from_stack(stack[2])),
        low(stack[3]),
        high(stack[4]),
        group_size(static_cast<std::int64_t>(stack[5])) {}

  Parameters parameters(const Values& values, const Codes& codes) && {
    return Parameters(values, std::move(scale), std::move(zero_point), codes, group_size);
  }
};

using Elementwise = void (*)(const float* x, std::int64_t count, const Grids& grids, float* y);

Tensor elementwise(Arguments given, Elementwise kernel) {
  const Codes codes(given.low, given.high);
  const Values x(std::move(given.x));
  Tensor y = x.empty_like(torch_api().dtype_float32());
  if (x.count() == 0) {
    return y;
  }
  const Parameters parameters = std::move(given).parameters(x, codes);
  const float* from = x.data();
  auto* to = y.data<float>();
  in_pieces(x.count(), [&](std::int64_t begin, std::int64_t end) {
    parameters.each_run(begin, end, [&](std::int64_t first, std::int64_t count, const Grids& grids, std::int64_t) {
      kernel(from + first, count, grids, to + first);
    });
  });
  return y;
}

void affine_snap(StackValue* stack, std::uint64_t, std::uint64_t) {
  stack[0] = elementwise(Arguments(stack), kernels().snap).to_stack();
}

void affine_fake_quantize(StackValue* stack, std::uint64_t, std::uint64_t) {
  stack[0] = elementwise(Arguments(stack), kernels().fake_quantize).to_stack();
}

void check_type(const Codes& codes, std::int64_t bits, bool is_signed) {
  require(bits >= 1 && bits <= 8, "codes take 1..8 bits, not " + std::to_string(bits));
  const std::int64_t least = is_signed ? -(1 << (bits - 1)) : 0;
  require(codes.low >= least && codes.high < least + (1 << bits),
          std::to_string(codes.low) + ".." + std::to_string(codes.high) + " does not fit in " + std::to_string(bits) +
              (is_signed ? " bits with a sign" : " bits without a sign"));
}

// Calls store(begin, codes, count) for pieces of the codes of x, which begin on a multiple of 8.
template <typename Store>
void each_piece_of_codes(const Values& x, const Parameters& parameters, const Codes& codes, const Store& store) {
  constexpr std::int64_t kPiece = 2048;
  std::atomic<bool> any_nan{false};
  const float* from = x.data();
  in_pieces(x.count(), [&](std::int64_t begin, std::int64_t end) {
    std::uint8_t piece[kPiece];
    for (; begin < end; begin += kPiece) {
      const std::int64_t piece_end = std::min(begin + kPiece, end);
      parameters.each_run(begin, piece_end, [&](std::int64_t first, std::int64_t count, const Grids& grids, std::int64_t) {
        if (kernels().codes(from + first, count, grids, static_cast<std::int32_t>(codes.low), piece + (first - begin))) {
          any_nan = true;
        }
      });
      store(begin, piece, piece_end - begin);
    }
  });
  require(!any_nan, "x holds NaN, which has no code");
}

void affine_quantize(StackValue* stack, std::uint64_t, std::uint64_t) {
  Arguments given(stack);
  const bool is_signed = (stack[6] & 1) != 0;
  const Codes codes(given.low, given.high);
  check_type(codes, 8, is_signed);
  const Values x(std::move(given.x));
  Tensor y = x.empty_like(is_signed ? torch_api().dtype_int8() : torch_api().dtype_uint8());
  if (x.count() != 0) {
    const Parameters parameters = std::move(given).parameters(x, codes);
    auto* to = y.data<std::uint8_t>();
    each_piece_of_codes(x, parameters, codes, [&](std::int64_t first, const std::uint8_t* piece, std::int64_t count) {
      std::copy(piece, piece + count, to + first);
    });
  }
  stack[0] = std::move(y).to_stack();
}

void affine_quantize_pack(StackValue* stack, std::uint64_t, std::uint64_t) {
  Arguments given(stack);
  const auto bits = static_cast<std::int64_t>(stack[6]);
  const bool is_signed = (stack[7] & 1) != 0;
  const Codes codes(given.low, given.high);
  check_type(codes, bits, is_signed);
  const Values x = Values(std::move(given.x)).row_major();
  Tensor y = Tensor::empty({divided_up(x.count() * bits, 8)}, torch_api().dtype_uint8());
  if (x.count() != 0) {
    const Parameters parameters = std::move(given).parameters(x, codes);
    auto* to = y.data<std::uint8_t>();
    each_piece_of_codes(x, parameters, codes, [&](std::int64_t first, const std::uint8_t* piece, std::int64_t count) {
      chosen_isa().kernels.packing->pack(piece, count, static_cast<int>(bits), to + first / 8 * bits);
    });
  }
  stack[0] = std::move(y).to_stack();
}

// The sums of a stretch of values, for the grids that lie on it.
struct PartialSums {
  std::int64_t first = 0;
  std::vector<double> of_scale, of_zero;

  PartialSums(const Parameters& parameters, std::int64_t begin, std::int64_t end) {
    std::int64_t last = 0;
    first = static_cast<std::int64_t>(parameters.sources().size());
    parameters.each_run(begin, end, [&](std::int64_t, std::int64_t count, const Grids& grids, std::int64_t parameter) {
      first = std::min(first, parameter);
      last = std::max(last, parameter + (count - 1) * grids.stride);
    });
    of_scale.resize(static_cast<std::size_t>(last - first + 1));
    of_zero.resize(of_scale.size());
  }
};

Tensor summed(const Tensor& like, std::vector<double> sums, float factor) {
  Tensor total = Tensor::empty(like.sizes(), torch_api().dtype_float32());
  auto* to = total.data<float>();
  if (total.count() == 1) {
    sums = {std::accumulate(sums.begin(), sums.end(), 0.0)};
  }
  std::transform(sums.begin(), sums.end(), to, [factor](double sum) { return static_cast<float>(sum) * factor; });
  return total;
}

// y, laid out as x is.
Tensor as_laid_out(Tensor y, const Values& x, const std::string& name) {
  require_tensor(y, name, {torch_api().dtype_float32()});
  require(y.sizes() == x.sizes, name + " has another shape than x");
  if (y.strides() == x.strides) {
    return y;
  }
  Tensor copy = x.empty_like(torch_api().dtype_float32());
  copy.copy_from(y);
  return copy;
}

// Of two tensors, a piece after the other while both are near.
void affine_fake_quantize_sum(StackValue* stack, std::uint64_t, std::uint64_t) {
  constexpr std::int64_t kPiece = 2048;
  Arguments given(stack), other(stack + 6);
  const Codes codes(given.low, given.high), other_codes(other.low, other.high);
  const Values x(std::move(given.x)), y(as_laid_out(std::move(other.x), x, "other"));
  Tensor sum = x.empty_like(torch_api().dtype_float32());
  if (x.count() != 0) {
    const Parameters parameters = std::move(given).parameters(x, codes);
    const Parameters others = std::move(other).parameters(y, other_codes);
    const float *from_x = x.data(), *from_y = y.data();
    auto* to = sum.data<float>();
    in_pieces(x.count(), [&](std::int64_t begin, std::int64_t end) {
      float piece[kPiece];
      for (; begin < end; begin += kPiece) {
        const std::int64_t until = std::min(begin + kPiece, end);
        parameters.each_run(begin, until, [&](std::int64_t first, std::int64_t count, const Grids& grids, std::int64_t) {
          kernels().fake_quantize(from_x + first, count, grids, to + first);
        });
        others.each_run(begin, until, [&](std::int64_t first, std::int64_t count, const Grids& grids, std::int64_t) {
          kernels().fake_quantize(from_y + first, count, grids, piece + (first - begin));
        });
        for (std::int64_t i = begin; i < until; ++i) {
          to[i] += piece[i - begin];
        }
      }
    });
  }
  stack[0] = std::move(sum).to_stack();
}

// The arguments of both ways back: Tensor gradient, those of Arguments, float factor, bool rectified.
struct BackwardArguments {
  Tensor gradient;
  Arguments given;
  float factor, above;

  explicit BackwardArguments(const StackValue* stack)
      : gradient(Tensor::from_stack(stack[0])), given(stack + 1), above((stack[8] & 1) != 0 ? 0.0f : -INFINITY) {
    double exact = 0;
    std::memcpy(&exact, stack + 7, sizeof exact);
    factor = static_cast<float>(exact);
  }
};

// The gradients of the scale and of the zero point; writes x's to `to`, which may be where y lies.
struct OfParameters {
  Tensor scale, zero_point;
};

OfParameters gradients_of(const Values& x, BackwardArguments& back, const Tensor& y, float* to) {
  Arguments& given = back.given;
  const Codes codes(given.low, given.high);
  const std::int64_t count = x.count();
  if (count == 0) {
    const std::vector<double> of_scale(static_cast<std::size_t>(given.scale.count()));
    const std::vector<double> of_zero(static_cast<std::size_t>(given.zero_point.count()));
    return {summed(given.scale, of_scale, back.factor), summed(given.zero_point, of_zero, 1)};
  }
  const Parameters parameters = std::move(given).parameters(x, codes);
  const std::int64_t size = divided_up(divided_up(count, kParts), kGrain) * kGrain, parts = divided_up(count, size);
  std::vector<PartialSums> partial;
  for (std::int64_t part = 0; part < parts; ++part) {
    partial.emplace_back(parameters, part * size, std::min((part + 1) * size, count));
  }
  const float *values = x.data(), *gradients = y.data<float>();
  in_parallel(parts, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = begin; part < end; ++part) {
      PartialSums& sums = partial[static_cast<std::size_t>(part)];
      const std::int64_t until = std::min((part + 1) * size, count);
      parameters.each_run(part * size, until, [&](std::int64_t first, std::int64_t length, const Grids& grids, std::int64_t index) {
        const Gradients run = {values + first, gradients + first, to + first, &sums.of_scale[index - sums.first],
                               &sums.of_zero[index - sums.first], back.above};
        kernels().gradients(run, length, grids);
      });
    }
  });
  std::vector<double> of_scale(static_cast<std::size_t>(parameters.scale().count())), of_zero(of_scale.size());
  for (const PartialSums& sums : partial) {
    for (std::size_t i = 0; i < sums.of_scale.size(); ++i) {
      const auto source = static_cast<std::size_t>(parameters.sources()[static_cast<std::size_t>(sums.first) + i]);
      of_scale[source] += sums.of_scale[i];
      of_zero[source] += sums.of_zero[i];
    }
  }
  return {summed(parameters.scale(), of_scale, back.factor), summed(parameters.zero_point(), of_zero, 1)};
}

void give(OfParameters found, StackValue* stack) {
  stack[0] = std::move(found.scale).to_stack();
  stack[1] = std::move(found.zero_point).to_stack();
}

void affine_fake_quantize_backward(StackValue* stack, std::uint64_t, std::uint64_t) {
  BackwardArguments back(stack);
  const Values x(std::move(back.given.x));
  const Tensor y = as_laid_out(std::move(back.gradient), x, "the gradient");
  Tensor of_x = x.empty_like(torch_api().dtype_float32());
  give(gradients_of(x, back, y, of_x.data<float>()), stack + 1);
  stack[0] = std::move(of_x).to_stack();
}

// x's gradient where the given one lies.
void affine_fake_quantize_backward_in_place(StackValue* stack, std::uint64_t, std::uint64_t) {
  BackwardArguments back(stack);
  const Values x(std::move(back.given.x));
  Tensor gradient = std::move(back.gradient);
  require_tensor(gradient, "the gradient", {torch_api().dtype_float32()});
  require(gradient.sizes() == x.sizes, "the gradient has another shape than x");
  if (gradient.strides() == x.strides) {
    give(gradients_of(x, back, gradient, gradient.data<float>()), stack);
    return;
  }
  Tensor copy = x.empty_like(torch_api().dtype_float32());
  copy.copy_from(gradient);
  give(gradients_of(x, back, copy, copy.data<float>()), stack);
  gradient.copy_from(copy);
}

}  // namespace

std::vector<Operator> quantize_operators() {
  return {
      operator_of<affine_snap>(
          "affine_snap(Tensor x, Tensor scale, Tensor zero_point, int low, int high, int group_size) -> Tensor"),
      operator_of<affine_fake_quantize>(
          "affine_fake_quantize(Tensor x, Tensor scale, Tensor zero_point, int low, int high, int group_size) -> Tensor"),
      operator_of<affine_fake_quantize_sum>(
          "affine_fake_quantize_sum(Tensor x, Tensor scale, Tensor zero_point, int low, int high, int group_size, Tensor "
          "other, Tensor other_scale, Tensor other_zero_point, int other_low, int other_high, int other_group_size) -> "
          "Tensor"),
      operator_of<affine_quantize>(
          "affine_quantize(Tensor x, Tensor scale, Tensor zero_point, int low, int high, int group_size, bool signed) "
          "-> Tensor"),
      operator_of<affine_quantize_pack>(
          "affine_quantize_pack(Tensor x, Tensor scale, Tensor zero_point, int low, int high, int group_size, int "
          "bits, bool signed) -> Tensor"),
      operator_of<affine_fake_quantize_backward>(
          "affine_fake_quantize_backward(Tensor gradient, Tensor x, Tensor scale, Tensor zero_point, int low, int "
          "high, int group_size, float factor=1.0, bool rectified=False) -> (Tensor, Tensor, Tensor)"),
      operator_of<affine_fake_quantize_backward_in_place>(
          "affine_fake_quantize_backward_(Tensor(a!) gradient, Tensor x, Tensor scale, Tensor zero_point, int low, int "
          "high, int group_size, float factor=1.0, bool rectified=False) -> (Tensor, Tensor)"),
  };
}

}  // namespace subbyte
