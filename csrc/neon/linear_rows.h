// Linear layers by NEON: 16 outputs are unpacked, a slice at a time, and tiles of rows go over the slice. A file that
// includes this includes a tile first: `kTileRows` and `add_tile`.
#pragma once

#include <arm_neon.h>

#include "../kernels/linear.h"
#include "unpack.h"

namespace subbyte {
namespace {

constexpr int64_t kSliceSteps = 128;  // unpacked at once: 8 KiB, which stay in the first cache
constexpr int64_t kRowsAtOnce = 96;

int32_t sum(const int8_t* x, int64_t count) {
  int32x4_t total = vdupq_n_s32(0);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    total = vpadalq_s16(total, vpaddlq_s8(vld1q_s8(x + i)));
  }
  return vaddvq_s32(total) + reference_linear.sum(x + i, count - i);
}

void sums(const int8_t* x, int64_t places, int64_t bytes, int32_t* sums) {
  for (int64_t i = 0; i < places; ++i) {
    sums[i] = sum(x + i * bytes, bytes);
  }
}

// Where a slice lies, and the sums of the groups that go on in the next.
struct Slice {
  int64_t panel, group, steps, x_offset;
  bool begins_group, ends_group;
  const int8_t* values;
  int32_t* totals;  // [rows][16]
};

// The exact sums of 4 outputs in one group, scaled: the term that it adds to y. `first`: where their parameters lie.
inline float32x4_t term_of(const Linear& call, int32x4_t total, int64_t m, int64_t group, int64_t first) {
  const int32_t x_zero = call.x_zeros[m * call.x_step];
  // total - w_zero * x_sum - x_zero * w_sum + size * x_zero * w_zero
  const uint32_t by_w_zero = static_cast<uint32_t>(call.group_sizes[group]) * static_cast<uint32_t>(x_zero) -
                             static_cast<uint32_t>(call.x_sums[m * call.groups + group]);
  const int32x4_t w_zero = call.w_zeros == nullptr ? vdupq_n_s32(call.w_zero) : vld1q_s32(call.w_zeros + first);
  total = vmlaq_n_s32(total, w_zero, static_cast<int32_t>(by_w_zero));
  total = vmlsq_n_s32(total, vld1q_s32(call.w_sums + first), x_zero);
  const float32x4_t scale = vmulq_n_f32(vld1q_f32(call.w_scales + first), call.x_scales[m * call.x_step]);
  return vmulq_f32(vcvtq_f32_s32(total), scale);
}

// Adds the terms of a group to y, as many as there are outputs.
void finish_group(const Linear& call, const Slice& slice, const int32x4_t* total, int64_t m) {
  const int64_t output = slice.panel * kPanel, rest = call.outputs - output;
  const int64_t parameters = (slice.panel * call.groups + slice.group) * kPanel;
  float* const to = call.y + m * call.y_stride + output - call.y_origin;
  for (int quarter = 0; 4 * quarter < rest && quarter < kQuarters; ++quarter) {
    const int64_t count = rest - 4 * quarter < 4 ? rest - 4 * quarter : 4;
    float four[4] = {};
    float* const place = count == 4 ? to + 4 * quarter : four;
    for (int64_t n = 0; count < 4 && n < count; ++n) {
      four[n] = to[4 * quarter + n];
    }
    float32x4_t y = term_of(call, total[quarter], m, slice.group, parameters + 4 * quarter);
    if (slice.group > 0) {
      y = vaddq_f32(vld1q_f32(place), y);
    }
    if (slice.group + 1 == call.groups && call.bias != nullptr) {
      y = vaddq_f32(y, vld1q_f32(call.bias + output + 4 * quarter));
    }
    vst1q_f32(place, y);
    for (int64_t n = 0; count < 4 && n < count; ++n) {
      to[4 * quarter + n] = four[n];
    }
  }
}

// `Bits` of values that are counted from 0; values less 128 have 8.
template <int Rows, int Bits>
void rows_of_slice(const Linear& call, const Slice& slice, int64_t m, int64_t first_row) {
  int32x4_t total[Rows][kQuarters];
  const int8_t* x[Rows];
  int32_t* const kept = slice.totals + (m - first_row) * kPanel;
  for (int r = 0; r < Rows; ++r) {
    x[r] = call.x + call.row_offsets[m + r] + slice.x_offset;
    const int32_t shifted = Bits == 8 ? 128 * sum(x[r], kStep * slice.steps) : 0;
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      const int32x4_t before = slice.begins_group ? vdupq_n_s32(0) : vld1q_s32(kept + r * kPanel + 4 * quarter);
      total[r][quarter] = vaddq_s32(before, vdupq_n_s32(shifted));
    }
  }
  add_tile<Rows, Bits>(total, x, slice.values, slice.steps);
  for (int r = 0; r < Rows; ++r) {
    if (slice.ends_group) {
      finish_group(call, slice, total[r], m + r);
      continue;
    }
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      vst1q_s32(kept + r * kPanel + 4 * quarter, total[r][quarter]);
    }
  }
}

template <int Bits>
void all_rows_of_slice(const Linear& call, const Slice& slice, int64_t first_row, int64_t end_row) {
  int64_t m = first_row;
  for (; m + kTileRows <= end_row; m += kTileRows) {
    rows_of_slice<kTileRows, Bits>(call, slice, m, first_row);
  }
  for (; m < end_row; ++m) {
    rows_of_slice<1, Bits>(call, slice, m, first_row);
  }
}

// Some rows of one panel.
template <int Bits, bool Table>
void rows_of_panel(const Linear& call, int64_t first_row, int64_t end_row, int64_t panel) {
  int8_t values[kSliceSteps * 64];
  int32_t totals[kRowsAtOnce * kPanel];
  const uint8x16_t table = Table ? vld1q_u8(call.values) : vdupq_n_u8(0);
  const uint8_t* packed = call.panels + panel * call.panel_bytes;
  for (int64_t i = 0; i < call.segment_count; ++i) {
    const Segment& segment = call.segments[i];
    for (int64_t first = 0; first < segment.steps; first += kSliceSteps) {
      const int64_t steps = segment.steps - first < kSliceSteps ? segment.steps - first : kSliceSteps;
      for (int64_t step = 0; step < steps; step += kBlockSteps, packed += block_bytes(Bits)) {
        unpack_block<Bits, Table, 0>(packed, steps - step, table, values + 64 * step);
      }
      const bool begins = segment.begins_group && first == 0, ends = segment.ends_group && first + steps == segment.steps;
      const int64_t x_offset = segment.x_offset + kStep * first;
      const Slice slice = {panel, segment.group, steps, x_offset, begins, ends, values, totals};
      all_rows_of_slice<is_shifted<Bits, Table>() ? 8 : Bits>(call, slice, first_row, end_row);
    }
  }
}

template <int Bits, bool Table>
void run(const Linear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  for (int64_t panel = first_panel; panel < end_panel; ++panel) {
    for (int64_t m = first_row; m < end_row; m += kRowsAtOnce) {
      rows_of_panel<Bits, Table>(call, m, m + kRowsAtOnce < end_row ? m + kRowsAtOnce : end_row, panel);
    }
  }
}

template <int Bits>
void run_width(const Linear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  if constexpr (Bits <= 4) {
    if (call.values != nullptr) {
      return run<Bits, true>(call, first_row, end_row, first_panel, end_panel);
    }
  }
  run<Bits, false>(call, first_row, end_row, first_panel, end_panel);
}

void linear(const Linear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  static constexpr decltype(&linear) widths[] = {run_width<1>, run_width<2>, run_width<3>, run_width<4>,
                                                 run_width<5>, run_width<6>, run_width<7>, run_width<8>};
  widths[call.bits - 1](call, first_row, end_row, first_panel, end_panel);
}

}  // namespace
}  // namespace subbyte
