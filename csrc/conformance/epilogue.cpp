// What is done with finished results, against the reference.
#include <cmath>
#include <cstring>

#include "agreement.h"

namespace conformance {
namespace {

using Floats = std::vector<float>;

// Some are any bits at all: NaN, infinities, subnormal numbers, ties of bf16.
Floats random_floats(Random& random, std::int64_t count) {
  Floats drawn(static_cast<std::size_t>(count));
  for (float& value : drawn) {
    value = 0.125f * static_cast<float>(between(random, -4000, 4000));
    if (random() % 4 == 0) {
      const auto bits = static_cast<std::uint32_t>(random() & (random() % 2 == 0 ? 0xffffffff : 0xffff8000));
      std::memcpy(&value, &bits, sizeof value);
    }
  }
  return drawn;
}

// Which of two NaN a sum hands on is left open.
bool same(const Floats& a, const Floats& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof a[i]) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool epilogues_agree(const subbyte::Kernels& kernels, Random& random) {
  const std::int64_t count = between(random, 0, 100);
  const Floats residual = random_floats(random, count), x = random_floats(random, count);
  const bool has_residual = random() % 2 == 0;
  const float low = random() % 3 == 0 ? -INFINITY : static_cast<float>(between(random, -9, 0));
  const float high = random() % 3 == 0 ? INFINITY : low == -INFINITY ? 1.5f : low + static_cast<float>(between(random, 0, 9));
  Floats want = x, got = x;
  const float* given = has_residual ? residual.data() : nullptr;
  const bool want_nan = subbyte::reference_epilogue.finish(want.data(), count, given, low, high);
  const bool got_nan = kernels.epilogue->finish(got.data(), count, given, low, high);
  std::vector<std::uint16_t> want_half(x.size()), got_half(x.size());
  subbyte::reference_epilogue.to_bfloat16(x.data(), count, want_half.data());
  kernels.epilogue->to_bfloat16(x.data(), count, got_half.data());
  return want_nan == got_nan && same(want, got) && want_half == got_half;
}

}  // namespace conformance
