// Quantizing against the reference.
#include <cmath>

#include "agreement.h"

namespace conformance {
namespace {

using Floats = std::vector<float>;

// Halves of the scale among them: ties.
Floats random_values(Random& random, std::int64_t count) {
  Floats x(static_cast<std::size_t>(count));
  for (float& value : x) {
    value = 0.125f * static_cast<float>(between(random, -4000, 4000));
  }
  if (!x.empty() && random() % 3 == 0) {
    const float special[] = {NAN, INFINITY, -INFINITY, 3e38f, -0.0f};
    x[random() % x.size()] = special[random() % 5];
  }
  return x;
}

// A scale of any size, and values as near to the middle of two whole numbers of it as floats come.
float any_scale(Random& random) {
  return std::ldexp(1.0f + 0x1p-23f * static_cast<float>(random() % (1 << 23)), static_cast<int>(between(random, -126, 118)));
}

Floats near_ties(Random& random, float scale, std::int64_t count) {
  Floats x(static_cast<std::size_t>(count));
  for (float& value : x) {
    value = (static_cast<float>(between(random, -520, 520)) + 0.5f) * scale;
    for (std::int64_t away = between(random, -3, 3); away != 0; away += away < 0 ? 1 : -1) {
      value = std::nextafter(value, away < 0 ? -INFINITY : INFINITY);
    }
  }
  return x;
}

template <typename Number>
bool same(const std::vector<Number>& a, const std::vector<Number>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(a[i] == b[i] || (a[i] != a[i] && b[i] != b[i]))) {
      return false;
    }
  }
  return a.size() == b.size();
}

// Grids of 8 bits at most, of the whole run or of each value.
struct Drawn {
  Floats scales, lows, highs;
  std::int32_t first;
  std::int64_t stride;

  Drawn(Random& random, std::int64_t count) : first(static_cast<std::int32_t>(between(random, -128, 0))), stride(random() % 2) {
    for (std::int64_t i = 0; i < (stride == 0 ? 1 : count); ++i) {
      scales.push_back(0.25f * static_cast<float>(between(random, 1, 9)));
      lows.push_back(static_cast<float>(between(random, -255, 0)));
      highs.push_back(lows.back() + static_cast<float>(between(random, 1, 255)));
    }
  }

  subbyte::Grids grids() const { return {scales.data(), lows.data(), highs.data(), stride}; }
};

struct Found {
  Floats of_x;
  std::vector<double> of_scale, of_zero;
};

Found gradients(const subbyte::QuantizeKernels& kernels, const Drawn& drawn, const Floats& x, const Floats& y, float above) {
  Found found = {Floats(x.size()), std::vector<double>(drawn.scales.size(), 0.5), std::vector<double>(drawn.scales.size())};
  const subbyte::Gradients run = {x.data(), y.data(), found.of_x.data(), found.of_scale.data(), found.of_zero.data(), above};
  kernels.gradients(run, static_cast<std::int64_t>(x.size()), drawn.grids());
  return found;
}

}  // namespace

bool quantizing_agrees(const subbyte::Kernels& kernels, Random& random) {
  const bool is_signed = random() % 2 == 0;
  const int bits = static_cast<int>(between(random, 1, 8));
  const std::int32_t low = is_signed ? -(1 << (bits - 1)) : 0, high = low + (1 << bits) - 1;
  const bool near = random() % 2 == 0;
  const float scale = near ? any_scale(random) : 0.25f * static_cast<float>(between(random, 1, 9));
  const auto zero_point = static_cast<std::int32_t>(between(random, low, high));
  const subbyte::Affine affine = {scale, zero_point, low, high, is_signed ? 0 : 128};
  const std::int64_t length = between(random, 0, 200);
  const Floats x = near ? near_ties(random, scale, length) : random_values(random, length);
  std::vector<std::int8_t> want(x.size()), got(x.size());
  const auto count = static_cast<std::int64_t>(x.size());
  const bool want_nan = subbyte::reference_quantize.quantize(x.data(), count, affine, want.data());
  return kernels.quantize->quantize(x.data(), count, affine, got.data()) == want_nan && got == want;
}

bool grids_agree(const subbyte::Kernels& kernels, Random& random) {
  const subbyte::QuantizeKernels &reference = subbyte::reference_quantize, &tried = *kernels.quantize;
  const std::int64_t count = between(random, 0, 100);
  const Floats x = random_values(random, count), y = random_values(random, count);
  const Drawn drawn(random, count);
  Floats want(x.size()), got(x.size());
  reference.snap(x.data(), count, drawn.grids(), want.data());
  tried.snap(x.data(), count, drawn.grids(), got.data());
  bool agrees = same(want, got);
  reference.fake_quantize(x.data(), count, drawn.grids(), want.data());
  tried.fake_quantize(x.data(), count, drawn.grids(), got.data());
  agrees = agrees && same(want, got);
  Bytes want_codes(x.size()), got_codes(x.size());
  const bool want_nan = reference.codes(x.data(), count, drawn.grids(), drawn.first, want_codes.data());
  const bool got_nan = tried.codes(x.data(), count, drawn.grids(), drawn.first, got_codes.data());
  return agrees && want_nan == got_nan && want_codes == got_codes;
}

bool gradients_agree(const subbyte::Kernels& kernels, Random& random) {
  const std::int64_t count = between(random, 0, 100);
  const Floats x = random_values(random, count), y = random_values(random, count);
  const Drawn drawn(random, count);
  const float above = random() % 2 == 0 ? 0.0f : -INFINITY;
  const Found want = gradients(subbyte::reference_quantize, drawn, x, y, above);
  const Found got = gradients(*kernels.quantize, drawn, x, y, above);
  return same(want.of_x, got.of_x) && same(want.of_scale, got.of_scale) && same(want.of_zero, got.of_zero);
}

bool ranges_agree(const subbyte::Kernels& kernels, Random& random) {
  const Floats x = random_values(random, between(random, 1, 100));
  const auto count = static_cast<std::int64_t>(x.size());
  const subbyte::Range want = subbyte::reference_quantize.range(x.data(), count);
  const subbyte::Range got = kernels.quantize->range(x.data(), count);
  return same(Floats{want.minimum, want.maximum}, Floats{got.minimum, got.maximum});
}

}  // namespace conformance
