// Linear layers by AVX2: 16 outputs are unpacked, a slice at a time, and tiles of rows go over the slice.
#include <immintrin.h>

#include "../kernels/linear.h"
#include "tile.h"
#include "unpack.h"

namespace subbyte {
namespace {

constexpr int kTileRows = 3;
constexpr int64_t kSliceSteps = 128;  // unpacked at once: 8 KiB, which stay in the first cache
constexpr int64_t kRowsAtOnce = 128;

// The lanes of 8 outputs that are real.
inline __m256i real_outputs(int64_t rest) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(rest > 8 ? 8 : static_cast<int>(rest)), lanes);
}

// Where a slice lies, and the sums of the groups that go on in the next.
struct Slice {
  int64_t panel, group, steps, x_offset;
  bool begins_group, ends_group;
  const uint8_t* values;
  int32_t* totals;  // [rows][16]
  float* sums;      // [rows][16]: of the groups before. Not in y, whose rows may lie so far apart that writing one holds up
                    // reading the next
};

inline __m256i load_ints(const int32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

// Scales the exact sums of a group in one row and adds them to those of the groups before; the last group's go to y.
inline void add_terms(const Linear& call, const Slice& slice, const __m256i (&totals)[2], int64_t m, float* before) {
  const uint32_t x_zero = static_cast<uint32_t>(call.x_zeros[m * call.x_step]);
  const uint32_t size = static_cast<uint32_t>(call.group_sizes[slice.group]);
  // total - w_zero * x_sum - x_zero * w_sum + size * x_zero * w_zero
  const uint32_t by_w_zero = size * x_zero - static_cast<uint32_t>(call.x_sums[m * call.groups + slice.group]);
  const __m256i shift = _mm256_set1_epi32(static_cast<int>(by_w_zero * static_cast<uint32_t>(call.w_zero)));
  const __m256 x_scale = _mm256_set1_ps(call.x_scales[m * call.x_step]);
  const int64_t first = (slice.panel * call.groups + slice.group) * kPanel;
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const int64_t output = slice.panel * kPanel + 8 * half, at = first + 8 * half;
    __m256i total = totals[half];
    if (call.w_zeros == nullptr) {
      total = _mm256_add_epi32(total, shift);
    } else {
      const __m256i factor = _mm256_set1_epi32(static_cast<int>(by_w_zero));
      total = _mm256_add_epi32(total, _mm256_mullo_epi32(load_ints(call.w_zeros + at), factor));
    }
    if (x_zero != 0) {
      const __m256i factor = _mm256_set1_epi32(static_cast<int>(x_zero));
      total = _mm256_sub_epi32(total, _mm256_mullo_epi32(load_ints(call.w_sums + at), factor));
    }
    const __m256 scale = _mm256_mul_ps(x_scale, _mm256_loadu_ps(call.w_scales + at));
    __m256 y = _mm256_mul_ps(_mm256_cvtepi32_ps(total), scale);
    y = slice.group == 0 ? y : _mm256_add_ps(_mm256_load_ps(before + 8 * half), y);
    if (slice.group + 1 < call.groups) {
      _mm256_store_ps(before + 8 * half, y);
    } else if (output < call.outputs) {
      y = call.bias == nullptr ? y : _mm256_add_ps(y, _mm256_loadu_ps(call.bias + output));
      _mm256_maskstore_ps(call.y + m * call.y_stride + output - call.y_origin, real_outputs(call.outputs - output), y);
    }
  }
}

template <int Rows, int Bits>
void rows_of_slice(const Linear& call, const Slice& slice, int64_t m, int64_t first_row) {
  __m256i total[Rows][2];
  __m256i* const kept = reinterpret_cast<__m256i*>(slice.totals + (m - first_row) * kPanel);
  const int8_t* x[Rows];
#pragma GCC unroll 3
  for (int r = 0; r < Rows; ++r) {
    x[r] = call.x + call.row_offsets[m + r] + slice.x_offset;
    total[r][0] = slice.begins_group ? _mm256_setzero_si256() : _mm256_load_si256(kept + 2 * r);
    total[r][1] = slice.begins_group ? _mm256_setzero_si256() : _mm256_load_si256(kept + 2 * r + 1);
  }
  add_tile<Rows, Bits>(total, x, slice.values, slice.steps);
#pragma GCC unroll 3
  for (int r = 0; r < Rows; ++r) {
    if (slice.ends_group) {
      add_terms(call, slice, total[r], m + r, slice.sums + (m - first_row + r) * kPanel);
    } else {
      _mm256_store_si256(kept + 2 * r, total[r][0]);
      _mm256_store_si256(kept + 2 * r + 1, total[r][1]);
    }
  }
}

template <int Bits>
void all_rows_of_slice(const Linear& call, const Slice& slice, int64_t first_row, int64_t end_row) {
  int64_t m = first_row;
  for (; m + kTileRows <= end_row; m += kTileRows) {
    rows_of_slice<kTileRows, Bits>(call, slice, m, first_row);
  }
  switch (end_row - m) {
    case 2: return rows_of_slice<2, Bits>(call, slice, m, first_row);
    case 1: return rows_of_slice<1, Bits>(call, slice, m, first_row);
  }
}

// Whether what codes stand for takes 4 bits at most, as -1, 0 and +1 do: then products are added up as those of codes are.
inline bool is_narrow(const Linear& call) {
  uint8_t bits = 0;
  for (int i = 0; i < 16; ++i) {
    bits |= call.values[i];
  }
  return bits < 16;
}

// Some rows of one panel.
template <int Bits, bool Table>
void rows_of_panel(const Linear& call, int64_t first_row, int64_t end_row, int64_t panel) {
  alignas(32) uint8_t values[kSliceSteps * 64];
  alignas(32) int32_t totals[kRowsAtOnce * kPanel];
  alignas(32) float sums[kRowsAtOnce * kPanel];
  const __m256i table = table_of(call.values);
  const auto all_rows = !Table ? all_rows_of_slice<Bits> : is_narrow(call) ? all_rows_of_slice<4> : all_rows_of_slice<8>;
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
      const Slice slice = {panel, segment.group, steps, x_offset, begins, ends, values, totals, sums};
      all_rows(call, slice, first_row, end_row);
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

int32_t sum(const int8_t* x, int64_t count) {
  const __m256i top = _mm256_set1_epi8(static_cast<char>(128));
  __m256i total = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {  // as unsigned bytes, each 128 too large
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    total = _mm256_add_epi64(total, _mm256_sad_epu8(_mm256_xor_si256(bytes, top), _mm256_setzero_si256()));
  }
  const __m128i two = _mm_add_epi64(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
  const int64_t shifted = _mm_cvtsi128_si64(_mm_add_epi64(two, _mm_unpackhi_epi64(two, two)));
  return static_cast<int32_t>(shifted - 128 * i) + reference_linear.sum(x + i, count - i);
}

void sums(const int8_t* x, int64_t places, int64_t bytes, int32_t* sums) {
  for (int64_t i = 0; i < places; ++i) {
    sums[i] = sum(x + i * bytes, bytes);
  }
}

}  // namespace

const LinearKernels avx2_linear = {linear, sum, sums};

}  // namespace subbyte
