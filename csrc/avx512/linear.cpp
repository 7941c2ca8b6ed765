// Linear layers by AVX-512 with VNNI. Few rows: codes are unpacked in registers, as the weight is read once anyway. Many:
// 64 outputs are unpacked, a slice at a time, and tiles of rows go over the slice.
#include <immintrin.h>

#include "../kernels/linear.h"
#include "tile.h"
#include "unpack.h"

namespace subbyte {
namespace {

constexpr int64_t kFewRows = 4;  // up to these are taken row by row
constexpr int64_t kRowsAtOnce = 96;

__mmask16 real_outputs(const Linear& call, int64_t panel) {
  const int64_t rest = call.outputs - panel * kPanel;
  return static_cast<__mmask16>(rest < kPanel ? (1u << rest) - 1 : 0xffff);
}

// The exact sums of one group, scaled: the term that it adds to y.
inline __m512 term_of(const Linear& call, __m512i total, int64_t m, int64_t group, int64_t panel) {
  const int64_t first = (panel * call.groups + group) * kPanel;
  const uint32_t x_zero = static_cast<uint32_t>(call.x_zeros[m * call.x_step]);
  const uint32_t size = static_cast<uint32_t>(call.group_sizes[group]);
  // total - w_zero * x_sum - x_zero * w_sum + size * x_zero * w_zero
  const uint32_t by_w_zero = size * x_zero - static_cast<uint32_t>(call.x_sums[m * call.groups + group]);
  if (call.w_zeros == nullptr) {
    const uint32_t shift = by_w_zero * static_cast<uint32_t>(call.w_zero);
    total = _mm512_add_epi32(total, _mm512_set1_epi32(static_cast<int>(shift)));
  } else {
    const __m512i w_zero = _mm512_loadu_si512(call.w_zeros + first);
    total = _mm512_add_epi32(total, _mm512_mullo_epi32(w_zero, _mm512_set1_epi32(static_cast<int>(by_w_zero))));
  }
  if (x_zero != 0) {
    const __m512i w_sum = _mm512_loadu_si512(call.w_sums + first);
    total = _mm512_sub_epi32(total, _mm512_mullo_epi32(w_sum, _mm512_set1_epi32(static_cast<int>(x_zero))));
  }
  const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(call.x_scales[m * call.x_step]), _mm512_loadu_ps(call.w_scales + first));
  return _mm512_mul_ps(_mm512_cvtepi32_ps(total), scale);
}

inline float* place_of(const Linear& call, int64_t m, int64_t panel) {
  return call.y + m * call.y_stride + panel * kPanel - call.y_origin;
}

inline __m512 with_bias(const Linear& call, __m512 y, int64_t panel) {
  return call.bias == nullptr ? y : _mm512_add_ps(y, _mm512_loadu_ps(call.bias + panel * kPanel));
}

// One row of one panel: four sums in turn, so that none waits for itself.
template <bool Table>
struct RowWork {
  __m512i total[4];
  __m512i table;
  const int8_t* x;

  template <int Step>
  inline void step(__m512i codes) {
    add_products(total[Step % 4], values_of<Table>(codes, table), x + kStep * Step);
  }
};

template <int Bits, bool Table>
void row_of_panel(const Linear& call, int64_t m, int64_t panel) {
  const uint8_t* packed = call.panels + panel * call.panel_bytes;
  RowWork<Table> work;
  work.table = table_of(call.values);
  __m512 y = _mm512_setzero_ps();
  for (int64_t i = 0; i < call.segment_count; ++i) {
    const Segment& segment = call.segments[i];
    if (segment.begins_group) {
      work.total[0] = work.total[1] = work.total[2] = work.total[3] = _mm512_setzero_si512();
    }
    work.x = call.x + call.row_offsets[m] + segment.x_offset;
    int64_t left = segment.steps;
    for (; left >= kBlockSteps; left -= kBlockSteps, packed += block_bytes(Bits), work.x += kStep * kBlockSteps) {
      each_step<Bits, 0>(packed, kBlockSteps, work);
    }
    if (left > 0) {
      each_step<Bits, 0>(packed, left, work);
      packed += block_bytes(Bits);
    }
    if (segment.ends_group) {
      const __m512i total = _mm512_add_epi32(_mm512_add_epi32(work.total[0], work.total[1]),
                                             _mm512_add_epi32(work.total[2], work.total[3]));
      const __m512 term = term_of(call, total, m, segment.group, panel);
      y = segment.group == 0 ? term : _mm512_add_ps(y, term);
    }
  }
  _mm512_mask_storeu_ps(place_of(call, m, panel), real_outputs(call, panel), with_bias(call, y, panel));
}

template <bool Table>
struct UnpackWork {
  __m512i table;
  uint8_t* to;

  template <int Step>
  inline void step(__m512i codes) {
    _mm512_store_si512(to + 64 * kTilePanels * Step, values_of<Table>(codes, table));
  }
};

// `steps` steps of one panel, into every fourth 64 bytes.
template <int Bits, bool Table>
void unpack_slice(const uint8_t* packed, int64_t steps, __m512i table, uint8_t* to) {
  UnpackWork<Table> work = {table, to};
  for (; steps > 0; steps -= kBlockSteps, packed += block_bytes(Bits), work.to += 64 * kTilePanels * kBlockSteps) {
    each_step<Bits, 0>(packed, steps < kBlockSteps ? steps : kBlockSteps, work);
  }
}

// Where a slice lies, and the sums of the groups that go on in the next.
struct Slice {
  int64_t panel, panels, group, steps, x_offset;
  bool begins_group, ends_group;
  const uint8_t* values;
  int32_t* totals;  // [rows][64]
  float* sums;      // [rows][64]: of the groups before. Not in y, whose rows may lie so far apart that writing one holds up
                    // reading the next
};

// A tile's sums, scaled and added to those of the groups before, where weights have one zero point, the rows none, and all
// outputs are real: most calls, whose groups are short enough for this to count.
template <int Rows, int Panels>
inline void finish_plain(const Linear& call, const Slice& slice, __m512i (&total)[Rows][Panels], int64_t m, float* sums) {
  __m512 scales[Panels];
#pragma GCC unroll 4
  for (int p = 0; p < Panels; ++p) {
    scales[p] = _mm512_loadu_ps(call.w_scales + ((slice.panel + p) * call.groups + slice.group) * kPanel);
  }
  const bool is_first = slice.group == 0, is_last = slice.group + 1 == call.groups;
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
    const uint32_t x_sum = static_cast<uint32_t>(call.x_sums[(m + r) * call.groups + slice.group]);
    const __m512i shift = _mm512_set1_epi32(static_cast<int>(0 - x_sum * static_cast<uint32_t>(call.w_zero)));
    const __m512 x_scale = _mm512_set1_ps(call.x_scales[(m + r) * call.x_step]);
    float* const to = is_last ? place_of(call, m + r, slice.panel) : sums + 64 * r;
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      const __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(total[r][p], shift));
      __m512 y = _mm512_mul_ps(sum, _mm512_mul_ps(x_scale, scales[p]));
      y = is_first ? y : _mm512_add_ps(_mm512_load_ps(sums + 64 * r + kPanel * p), y);
      _mm512_storeu_ps(to + kPanel * p, is_last ? with_bias(call, y, slice.panel + p) : y);
    }
  }
}

template <int Rows, int Panels>
inline bool is_plain(const Linear& call, const Slice& slice, int64_t m) {
  int32_t any_zero = 0;
  for (int r = 0; r < Rows; ++r) {
    any_zero |= call.x_zeros[(m + r) * call.x_step];
  }
  const bool all_real = slice.panels == Panels && (slice.panel + Panels) * kPanel <= call.outputs;
  return any_zero == 0 && call.w_zeros == nullptr && all_real;
}

template <int Rows, int Panels>
inline void finish(const Linear& call, const Slice& slice, __m512i (&total)[Rows][Panels], int64_t m, float* sums) {
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      if (p < slice.panels) {
        const int64_t panel = slice.panel + p;
        float* const before = sums + 64 * r + kPanel * p;
        __m512 y = term_of(call, total[r][p], m + r, slice.group, panel);
        y = slice.group == 0 ? y : _mm512_add_ps(_mm512_load_ps(before), y);
        if (slice.group + 1 < call.groups) {
          _mm512_store_ps(before, y);
        } else {
          _mm512_mask_storeu_ps(place_of(call, m + r, panel), real_outputs(call, panel), with_bias(call, y, panel));
        }
      }
    }
  }
}

template <int Rows, int Panels>
void rows_of_slice(const Linear& call, const Slice& slice, int64_t m, int64_t first_row) {
  __m512i total[Rows][Panels];
  int32_t* const kept = slice.totals + (m - first_row) * 64;
  const int8_t* x[Rows];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
    x[r] = call.x + call.row_offsets[m + r] + slice.x_offset;
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      total[r][p] = slice.begins_group ? _mm512_setzero_si512() : _mm512_load_si512(kept + 64 * r + kPanel * p);
    }
  }
  add_tile<Rows, Panels>(total, x, slice.values, slice.steps);
  if (!slice.ends_group) {
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        _mm512_store_si512(kept + 64 * r + kPanel * p, total[r][p]);
      }
    }
  } else if (is_plain<Rows, Panels>(call, slice, m)) {
    finish_plain<Rows, Panels>(call, slice, total, m, slice.sums + (m - first_row) * 64);
  } else {
    finish<Rows, Panels>(call, slice, total, m, slice.sums + (m - first_row) * 64);
  }
}

template <int Panels>
void all_rows_of_slice(const Linear& call, const Slice& slice, int64_t first_row, int64_t end_row) {
  int64_t m = first_row;
  for (; m + kTileRows <= end_row; m += kTileRows) {
    rows_of_slice<kTileRows, Panels>(call, slice, m, first_row);
  }
  switch (end_row - m) {
    case 5: return rows_of_slice<5, Panels>(call, slice, m, first_row);
    case 4: return rows_of_slice<4, Panels>(call, slice, m, first_row);
    case 3: return rows_of_slice<3, Panels>(call, slice, m, first_row);
    case 2: return rows_of_slice<2, Panels>(call, slice, m, first_row);
    case 1: return rows_of_slice<1, Panels>(call, slice, m, first_row);
  }
}

// Some rows of up to four panels.
template <int Bits, bool Table>
void rows_of_panels(const Linear& call, int64_t first_row, int64_t end_row, int64_t panel, int64_t panels) {
  alignas(64) uint8_t values[kSliceSteps * kTilePanels * 64];  // of three panels, a fourth is read and not used
  alignas(64) int32_t totals[kRowsAtOnce * 64];
  alignas(64) float sums[kRowsAtOnce * 64];
  const __m512i table = table_of(call.values);
  const auto all_rows = panels == 1 ? all_rows_of_slice<1> : panels == 2 ? all_rows_of_slice<2> : all_rows_of_slice<4>;
  int64_t packed_offset = 0;
  for (int64_t i = 0; i < call.segment_count; ++i) {
    const Segment& segment = call.segments[i];
    for (int64_t first = 0; first < segment.steps; first += kSliceSteps) {
      const int64_t steps = segment.steps - first < kSliceSteps ? segment.steps - first : kSliceSteps;
      for (int64_t p = 0; p < panels; ++p) {
        const uint8_t* packed = call.panels + (panel + p) * call.panel_bytes + packed_offset;
        unpack_slice<Bits, Table>(packed, steps, table, values + 64 * p);
      }
      packed_offset += blocks_of(steps) * block_bytes(Bits);
      const bool begins = segment.begins_group && first == 0, ends = segment.ends_group && first + steps == segment.steps;
      const int64_t x_offset = segment.x_offset + kStep * first;
      const Slice slice = {panel, panels, segment.group, steps, x_offset, begins, ends, values, totals, sums};
      all_rows(call, slice, first_row, end_row);
    }
  }
}

template <int Bits, bool Table>
void run(const Linear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  if (end_row - first_row <= kFewRows) {
    for (int64_t panel = first_panel; panel < end_panel; ++panel) {
      for (int64_t m = first_row; m < end_row; ++m) {
        row_of_panel<Bits, Table>(call, m, panel);
      }
    }
    return;
  }
  for (int64_t panel = first_panel; panel < end_panel; panel += kTilePanels) {
    const int64_t panels = end_panel - panel < kTilePanels ? end_panel - panel : kTilePanels;
    for (int64_t m = first_row; m < end_row; m += kRowsAtOnce) {
      rows_of_panels<Bits, Table>(call, m, m + kRowsAtOnce < end_row ? m + kRowsAtOnce : end_row, panel, panels);
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
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i total = _mm512_setzero_si512();
  for (int64_t i = 0; i < count; i += 64) {
    const __mmask64 given = count - i < 64 ? (1ull << (count - i)) - 1 : ~0ull;
    add_products(total, ones, _mm512_maskz_loadu_epi8(given, x + i));
  }
  return _mm512_reduce_add_epi32(total);
}

}  // namespace

const LinearKernels avx512_linear = {linear, sum};

}  // namespace subbyte
