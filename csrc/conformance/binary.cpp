// Sums of products by popcount against the reference.
#include <cmath>
#include <cstring>

#include "agreement.h"

namespace conformance {
namespace {

using Words = std::vector<std::uint64_t>;

// Bits drawn evenly, or all alike: the largest sums there are.
Words random_words(Random& random, std::int64_t count) {
  const auto kind = random() % 4;
  Words words(static_cast<std::size_t>(count));
  for (std::uint64_t& word : words) {
    word = kind == 0 ? 0 : kind == 1 ? ~0ull : random();
  }
  return words;
}

std::vector<std::int32_t> random_integers(Random& random, std::int64_t count, std::int64_t low, std::int64_t high) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  for (std::int32_t& value : values) {
    value = static_cast<std::int32_t>(between(random, low, high));
  }
  return values;
}

std::vector<float> random_floats(Random& random, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    value = std::uniform_real_distribution<float>(-2.0f, 2.0f)(random);
    value = random() % 8 == 0 ? NAN : random() % 8 == 0 ? 0.0f : value;
  }
  return values;
}

}  // namespace

bool thresholds_agree(const subbyte::Kernels& kernels, Random& random) {
  subbyte::Thresholding call{};
  call.rows = between(random, 1, 40), call.count = between(random, 1, 200);
  const bool columns = random() % 2 == 0;
  call.x_row = columns ? 1 : call.count, call.x_step = columns ? call.rows : 1;
  call.threshold_row = static_cast<std::int64_t>(random() % 2);
  const auto x = random_floats(random, call.rows * call.count);
  auto thresholds = random_floats(random, call.threshold_row == 0 ? 1 : call.rows);
  const std::int64_t words = (call.count + 63) / 64;
  const bool planar = random() % 2 == 0;
  call.word_row = planar ? 1 : words, call.word_step = planar ? call.rows : 1;
  call.x = x.data(), call.thresholds = thresholds.data();
  Words want(static_cast<std::size_t>(call.rows * words)), got(want.size());
  call.words = want.data();
  subbyte::reference_binary.threshold(call);
  call.words = got.data();
  kernels.binary->threshold(call);
  return want == got;
}

bool joining_agrees(const subbyte::Kernels& kernels, Random& random) {
  const std::int64_t taps = between(random, 1, 7), distance = between(random, 1, 4);
  const std::int64_t bits = between(random, 1, 64 / taps);
  Words want = random_words(random, between(random, 1, 60));
  for (std::uint64_t& word : want) {
    word &= bits == 64 ? ~0ull : (1ull << bits) - 1;
  }
  Words got = want;
  const auto count = static_cast<std::int64_t>(want.size());
  subbyte::reference_binary.join(want.data(), count, taps, distance, bits);
  kernels.binary->join(got.data(), count, taps, distance, bits);
  return want == got;
}

bool binary_agrees(const subbyte::Kernels& kernels, Random& random) {
  subbyte::BinaryProducts call{};
  const std::int64_t rows = between(random, 1, 30), classes = between(random, 1, 3);
  call.outputs = between(random, 1, 70), call.planes = between(random, 1, 2);
  call.words = between(random, 1, random() % 10 == 0 ? 200 : 12);
  call.has_masks = random() % 2 == 0;
  call.step = static_cast<std::int32_t>(between(random, 1, 3));
  const std::int64_t panels = (call.outputs + 7) / 8;
  // Rows lie side by side, word by word, or one after another; some are read twice, some never.
  const bool strided = random() % 2 == 0;
  call.x_plane = strided ? rows * call.words : call.words;
  std::vector<subbyte::BinaryRow> starts;
  for (std::int64_t m = 0; m < rows; ++m) {
    starts.push_back({between(random, 0, rows - 1) * (strided ? 1 : call.words * call.planes),
                      between(random, 0, classes - 1) * panels * 8});
  }
  std::vector<std::int64_t> offsets;
  for (std::int64_t k = 0; k < call.words; ++k) {
    offsets.push_back(strided ? k * rows : k);
  }
  const Words x = random_words(random, rows * call.words * call.planes);
  const Words w = random_words(random, panels * call.words * 8 * (call.has_masks ? 2 : 1));
  const auto bases = random_integers(random, classes * panels * 8, -(1 << 20), 1 << 20);
  const auto x_scales = random_floats(random, rows), w_scales = random_floats(random, panels * 8);
  const auto bias = random_floats(random, panels * 8);
  call.x = x.data(), call.rows = starts.data(), call.offsets = offsets.data(), call.panels = w.data(), call.bases = bases.data();
  call.x_scales = x_scales.data(), call.w_scales = w_scales.data();
  call.x_scale_row = static_cast<std::int64_t>(random() % 2);
  call.bias = random() % 2 == 0 ? bias.data() : nullptr;
  call.y_row = call.outputs;
  std::vector<float> want(static_cast<std::size_t>(rows * call.outputs)), got(want.size());
  call.y = want.data();
  subbyte::reference_binary.products(call, 0, rows, 0, panels);
  call.y = got.data();
  const std::int64_t row = between(random, 0, rows), panel = between(random, 0, panels);
  kernels.binary->products(call, 0, row, 0, panels);  // in pieces, as threads take it
  kernels.binary->products(call, row, rows, 0, panel);
  kernels.binary->products(call, row, rows, panel, panels);
  for (std::size_t i = 0; i < want.size(); ++i) {
    const bool both_nan = std::isnan(want[i]) && std::isnan(got[i]);  // of NaNs the bits may differ
    if (!both_nan && std::memcmp(&want[i], &got[i], sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace conformance
