// Linear layers on floats by AVX2: a slice of 16 outputs becomes floats, and tiles of rows go over it. A code of at most
// 4 bits chooses among 16 floats by two permutations and a blend.
#include <immintrin.h>

#include "../kernels/float_linear.h"
#include "unpack.h"

namespace subbyte {
namespace {

constexpr int kTileRows = 4;
constexpr int64_t kRowsAtOnce = kFloatRows<float>;
constexpr int64_t kSliceSteps = 64;  // as floats 16 KiB

struct Table {
  __m256 low, high;  // of 16 floats
};

template <int Bits>
inline __m256 floats_of(__m256i codes, const Table& table) {
  if (Bits <= 4) {
    const __m256 low = _mm256_permutevar8x32_ps(table.low, codes), high = _mm256_permutevar8x32_ps(table.high, codes);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));  // by bit 3
  }
  return _mm256_cvtepi32_ps(_mm256_and_si256(codes, _mm256_set1_epi32(0xff)));
}

// `steps` steps of one panel, unpacked, as floats [inputs][16].
template <int Bits>
void expand(const uint8_t* codes, int64_t steps, const Table& table, const float* zeros, float* to) {
  const __m256 zero[] = {zeros == nullptr ? _mm256_setzero_ps() : _mm256_loadu_ps(zeros),
                         zeros == nullptr ? _mm256_setzero_ps() : _mm256_loadu_ps(zeros + 8)};
  for (int64_t step = 0; step < steps; ++step, codes += 64) {
    for (int half = 0; half < 2; ++half) {
      __m256i four = load_bytes(codes + 32 * half);
      for (int place = 0; place < kStep; ++place, four = _mm256_srli_epi32(four, 8)) {
        const __m256 w = _mm256_sub_ps(floats_of<Bits>(four, table), zero[half]);
        _mm256_store_ps(to + (step * kStep + place) * kPanel + 8 * half, w);
      }
    }
  }
}

struct Slice {
  int64_t panel, group, steps, x_offset;
  bool begins_group, ends_group;
  const float* values;
  float* totals;  // [rows][16]
};

void add_group(const FloatLinear& call, const Slice& slice, const float* totals, int64_t m) {
  const float* const scales = call.w_scales + (slice.panel * call.groups + slice.group) * kPanel;
  for (int64_t n = slice.panel * kPanel; n < (slice.panel + 1) * kPanel && n < call.outputs; ++n) {
    float* const to = call.y + m * call.y_stride + n - call.y_origin;
    *to = __builtin_fmaf(totals[n % kPanel], scales[n % kPanel], slice.group == 0 ? 0.0f : *to);
    if (slice.group + 1 == call.groups && call.bias != nullptr) {
      *to += call.bias[n];
    }
  }
}

template <int Rows>
void rows_of_slice(const FloatLinear& call, const Slice& slice, int64_t m, int64_t first_row) {
  __m256 total[Rows][2];
  float* const kept = slice.totals + (m - first_row) * kPanel;
  const float* x[Rows];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    x[r] = call.x + call.row_offsets[m + r] + slice.x_offset;
    total[r][0] = slice.begins_group ? _mm256_setzero_ps() : _mm256_load_ps(kept + r * kPanel);
    total[r][1] = slice.begins_group ? _mm256_setzero_ps() : _mm256_load_ps(kept + r * kPanel + 8);
  }
  const float* w = slice.values;
  for (int64_t k = 0; k < kStep * slice.steps; ++k, w += kPanel) {
    const __m256 low = _mm256_load_ps(w), high = _mm256_load_ps(w + 8);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const __m256 factor = _mm256_broadcast_ss(x[r] + k);
      total[r][0] = _mm256_fmadd_ps(factor, low, total[r][0]);
      total[r][1] = _mm256_fmadd_ps(factor, high, total[r][1]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    _mm256_store_ps(kept + r * kPanel, total[r][0]);
    _mm256_store_ps(kept + r * kPanel + 8, total[r][1]);
  }
  for (int r = 0; slice.ends_group && r < Rows; ++r) {
    add_group(call, slice, kept + r * kPanel, m + r);
  }
}

void all_rows_of_slice(const FloatLinear& call, const Slice& slice, int64_t first_row, int64_t end_row) {
  int64_t m = first_row;
  for (; m + kTileRows <= end_row; m += kTileRows) {
    rows_of_slice<kTileRows>(call, slice, m, first_row);
  }
  switch (end_row - m) {
    case 3: return rows_of_slice<3>(call, slice, m, first_row);
    case 2: return rows_of_slice<2>(call, slice, m, first_row);
    case 1: return rows_of_slice<1>(call, slice, m, first_row);
  }
}

// Some rows of one panel.
template <int Bits>
void rows_of_panel(const FloatLinear& call, int64_t first_row, int64_t end_row, int64_t panel) {
  alignas(32) uint8_t codes[kSliceSteps * 64];
  alignas(32) float floats[kSliceSteps * kStep * kPanel];
  alignas(32) float totals[kRowsAtOnce * kPanel];
  Table table = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  if (Bits <= 4) {
    table = {_mm256_loadu_ps(call.values), _mm256_loadu_ps(call.values + 8)};
  }
  const uint8_t* packed = call.panels + panel * call.panel_bytes;
  for (int64_t i = 0; i < call.segment_count; ++i) {
    const Segment& segment = call.segments[i];
    const int64_t parameters = (panel * call.groups + segment.group) * kPanel;
    const float* zeros = call.w_zeros == nullptr ? nullptr : call.w_zeros + parameters;
    for (int64_t first = 0; first < segment.steps; first += kSliceSteps) {
      const int64_t steps = segment.steps - first < kSliceSteps ? segment.steps - first : kSliceSteps;
      for (int64_t step = 0; step < steps; step += kBlockSteps, packed += block_bytes(Bits)) {
        unpack_block<Bits, false, 0>(packed, steps - step, _mm256_setzero_si256(), codes + 64 * step);
      }
      expand<Bits>(codes, steps, table, zeros, floats);
      const bool begins = segment.begins_group && first == 0, ends = segment.ends_group && first + steps == segment.steps;
      const int64_t x_offset = segment.x_offset + kStep * first;
      const Slice slice = {panel, segment.group, steps, x_offset, begins, ends, floats, totals};
      all_rows_of_slice(call, slice, first_row, end_row);
    }
  }
}

template <int Bits>
void run(const FloatLinear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  for (int64_t panel = first_panel; panel < end_panel; ++panel) {
    for (int64_t m = first_row; m < end_row; m += kRowsAtOnce) {
      rows_of_panel<Bits>(call, m, m + kRowsAtOnce < end_row ? m + kRowsAtOnce : end_row, panel);
    }
  }
}

void linear(const FloatLinear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  static constexpr decltype(&linear) widths[] = {run<1>, run<2>, run<3>, run<4>, run<5>, run<6>, run<7>, run<8>};
  widths[call.bits - 1](call, first_row, end_row, first_panel, end_panel);
}

}  // namespace

const FloatLinearKernels avx2_float_linear = {linear};

}  // namespace subbyte
