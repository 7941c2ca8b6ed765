// Sums of products by popcount in plain C++.
#include "../kernels/binary.h"

namespace subbyte {
namespace {

void threshold(const Thresholding& call) {
  for (int64_t m = 0; m < call.rows; ++m) {
    const float least = call.thresholds[m * call.threshold_row];
    for (int64_t first = 0; first < call.count; first += 64) {
      const int64_t end = first + 64 < call.count ? first + 64 : call.count;
      uint64_t word = 0;
      for (int64_t i = first; i < end; ++i) {
        const bool below = call.x[m * call.x_row + i * call.x_step] < least;
        word |= static_cast<uint64_t>(!below) << (i - first);
      }
      call.words[m * call.word_row + first / 64 * call.word_step] = word;
    }
  }
}

void join(uint64_t* words, int64_t count, int64_t taps, int64_t distance, int64_t bits) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t tap = 1; tap < taps && i + tap * distance < count; ++tap) {
      words[i] |= words[i + tap * distance] << (tap * bits);
    }
  }
}

uint32_t popcount(uint64_t word) {
  uint32_t count = 0;
  for (; word != 0; word &= word - 1) {
    ++count;
  }
  return count;
}

// The bits in which a row and an output differ.
uint32_t differences(const BinaryProducts& call, int64_t m, int64_t n) {
  const int64_t stride = call.has_masks ? 16 : 8;
  uint32_t count = 0;
  for (int64_t plane = 0; plane < call.planes; ++plane) {
    const uint64_t* w = call.panels + n / 8 * call.words * stride + n % 8;
    for (int64_t k = 0; k < call.words; ++k, w += stride) {
      const uint64_t difference = call.x[call.rows[m].word + plane * call.x_plane + call.offsets[k]] ^ w[0];
      count += popcount(call.has_masks ? difference & w[8] : difference);
    }
  }
  return count;
}

void products(const BinaryProducts& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  for (int64_t m = first_row; m < end_row; ++m) {
    for (int64_t n = 8 * first_panel; n < 8 * end_panel && n < call.outputs; ++n) {
      const uint32_t base = static_cast<uint32_t>(call.bases[call.rows[m].base + n]);
      const uint32_t exact = base - static_cast<uint32_t>(call.step) * differences(call, m, n);
      const float scale = call.x_scales[m * call.x_scale_row] * call.w_scales[n];
      const float y = static_cast<float>(static_cast<int32_t>(exact)) * scale;
      call.y[m * call.y_row + n] = call.bias == nullptr ? y : y + call.bias[n];
    }
  }
}

}  // namespace

const BinaryKernels reference_binary = {threshold, join, products};

}  // namespace subbyte
