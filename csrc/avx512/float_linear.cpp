// Linear layers on floats by AVX-512: a code of at most 4 bits chooses one of 16 floats by a permutation. Few rows: weights
// become floats in registers, four panels at a time. Many: a slice of 64 outputs becomes floats once, and tiles of rows
// go over it.
#include <immintrin.h>

#include "../kernels/float_linear.h"
#include "unpack.h"

namespace subbyte {
namespace {

constexpr int kTileRows = 6;
constexpr int kTilePanels = 4;
constexpr int64_t kFewRows = 2;
constexpr int64_t kRowsAtOnce = 96;
constexpr int64_t kSliceSteps = 32;  // as floats 32 KiB

// What stands in byte `Place` of each lane, as floats.
template <int Bits, int Place>
inline __m512 floats_of(__m512i codes, __m512 values) {
  const __m512i at_place = Place == 0 ? codes : _mm512_srli_epi32(codes, 8 * Place);
  if (Bits <= 4) {
    return _mm512_permutexvar_ps(at_place, values);
  }
  return _mm512_cvtepi32_ps(_mm512_and_si512(at_place, _mm512_set1_epi32(0xff)));
}

inline __mmask16 real_outputs(const FloatLinear& call, int64_t panel) {
  const int64_t rest = call.outputs - panel * kPanel;
  return static_cast<__mmask16>(rest < kPanel ? (1u << rest) - 1 : 0xffff);
}

// Adds one group's sums to what is there, and after the last the bias.
inline void add_group(const FloatLinear& call, __m512 total, int64_t m, int64_t group, int64_t panel) {
  const __mmask16 real = real_outputs(call, panel);
  float* const to = call.y + m * call.outputs + panel * kPanel;
  const __m512 before = group == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(real, to);
  __m512 y = _mm512_fmadd_ps(total, _mm512_loadu_ps(call.w_scales + (panel * call.groups + group) * kPanel), before);
  if (group + 1 == call.groups && call.bias != nullptr) {
    y = _mm512_add_ps(y, _mm512_loadu_ps(call.bias + panel * kPanel));
  }
  _mm512_mask_storeu_ps(to, real, y);
}

inline __m512 zeros_of(const FloatLinear& call, int64_t panel, int64_t group) {
  return _mm512_loadu_ps(call.w_zeros + (panel * call.groups + group) * kPanel);
}

// One step of a row, of one panel.
template <int Bits, bool Zeros>
inline void add_step(__m512& total, __m512i codes, __m512 values, __m512 zero, const float* x) {
  const auto add = [&](__m512 w, float factor) {
    total = _mm512_fmadd_ps(_mm512_set1_ps(factor), Zeros ? _mm512_sub_ps(w, zero) : w, total);
  };
  add(floats_of<Bits, 0>(codes, values), x[0]);
  add(floats_of<Bits, 1>(codes, values), x[1]);
  add(floats_of<Bits, 2>(codes, values), x[2]);
  add(floats_of<Bits, 3>(codes, values), x[3]);
}

// The first `steps` steps of a block of several panels; panels in turn, so that no sum waits for itself.
template <int Bits, bool Zeros, int Panels, int Step>
inline void add_block(__m512 (&total)[Panels], const uint8_t* const* blocks, int64_t steps, __m512 values,
                      const __m512* zeros, const float* x) {
  if constexpr (Step < kBlockSteps) {
    if (Step < steps) {
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        add_step<Bits, Zeros>(total[p], codes_of<Bits, Step>(blocks[p]), values, zeros[p], x + kStep * Step);
      }
      add_block<Bits, Zeros, Panels, Step + 1>(total, blocks, steps, values, zeros, x);
    }
  }
}

template <int Bits, bool Zeros, int Panels>
void row_of_panels(const FloatLinear& call, int64_t m, int64_t panel) {
  const __m512 values = Bits <= 4 ? _mm512_loadu_ps(call.values) : _mm512_setzero_ps();
  const uint8_t* blocks[Panels];
  for (int p = 0; p < Panels; ++p) {
    blocks[p] = call.panels + (panel + p) * call.panel_bytes;
  }
  for (int64_t group = 0; group < call.groups; ++group) {
    const Segment& segment = call.segments[group];
    const float* x = call.x + m * call.x_stride + segment.x_offset;
    __m512 total[Panels], zeros[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      total[p] = _mm512_setzero_ps();
      zeros[p] = Zeros ? zeros_of(call, panel + p, group) : total[p];
    }
    for (int64_t left = segment.steps; left > 0; left -= kBlockSteps, x += kStep * kBlockSteps) {
      add_block<Bits, Zeros, Panels, 0>(total, blocks, left, values, zeros, x);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        blocks[p] += block_bytes(Bits);
      }
    }
    for (int p = 0; p < Panels; ++p) {
      add_group(call, total[p], m, group, panel + p);
    }
  }
}

template <int Bits, bool Zeros>
struct ExpandWork {
  __m512 values, zero;
  float* to;

  template <int Place>
  inline void place(__m512i codes, float* at) {
    const __m512 w = floats_of<Bits, Place>(codes, values);
    _mm512_store_ps(at + Place * kTilePanels * kPanel, Zeros ? _mm512_sub_ps(w, zero) : w);
  }

  template <int Step>
  inline void step(__m512i codes) {
    float* const at = to + Step * kStep * kTilePanels * kPanel;
    place<0>(codes, at);
    place<1>(codes, at);
    place<2>(codes, at);
    place<3>(codes, at);
  }
};

// `steps` steps of one panel as floats: of each input 16, every fourth panel.
template <int Bits, bool Zeros>
void expand(const uint8_t* packed, int64_t steps, __m512 values, __m512 zero, float* to) {
  ExpandWork<Bits, Zeros> work = {values, zero, to};
  for (; steps > 0; steps -= kBlockSteps, packed += block_bytes(Bits)) {
    each_step<Bits, 0>(packed, steps, work);
    work.to += kBlockSteps * kStep * kTilePanels * kPanel;
  }
}

struct Slice {
  int64_t panel, panels, group, steps, x_offset;
  bool begins_group, ends_group;
  const float* values;
  float* totals;  // [rows][64]
};

template <int Rows>
void rows_of_slice(const FloatLinear& call, const Slice& slice, int64_t m, int64_t first_row) {
  __m512 total[Rows][kTilePanels];
  float* const kept = slice.totals + (m - first_row) * kTilePanels * kPanel;
  const float* x[Rows];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
    x[r] = call.x + (m + r) * call.x_stride + slice.x_offset;
#pragma GCC unroll 4
    for (int p = 0; p < kTilePanels; ++p) {
      total[r][p] = slice.begins_group ? _mm512_setzero_ps() : _mm512_load_ps(kept + (r * kTilePanels + p) * kPanel);
    }
  }
  const float* w = slice.values;
  for (int64_t k = 0; k < kStep * slice.steps; ++k, w += kTilePanels * kPanel) {
    __m512 values[kTilePanels];
#pragma GCC unroll 4
    for (int p = 0; p < kTilePanels; ++p) {
      values[p] = _mm512_load_ps(w + p * kPanel);
    }
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      const __m512 factor = _mm512_set1_ps(x[r][k]);
#pragma GCC unroll 4
      for (int p = 0; p < kTilePanels; ++p) {
        total[r][p] = _mm512_fmadd_ps(factor, values[p], total[r][p]);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kTilePanels; ++p) {
      _mm512_store_ps(kept + (r * kTilePanels + p) * kPanel, total[r][p]);
    }
  }
  for (int r = 0; slice.ends_group && r < Rows; ++r) {
    for (int64_t p = 0; p < slice.panels; ++p) {
      add_group(call, _mm512_load_ps(kept + (r * kTilePanels + p) * kPanel), m + r, slice.group, slice.panel + p);
    }
  }
}

void all_rows_of_slice(const FloatLinear& call, const Slice& slice, int64_t first_row, int64_t end_row) {
  int64_t m = first_row;
  for (; m + kTileRows <= end_row; m += kTileRows) {
    rows_of_slice<kTileRows>(call, slice, m, first_row);
  }
  switch (end_row - m) {
    case 5: return rows_of_slice<5>(call, slice, m, first_row);
    case 4: return rows_of_slice<4>(call, slice, m, first_row);
    case 3: return rows_of_slice<3>(call, slice, m, first_row);
    case 2: return rows_of_slice<2>(call, slice, m, first_row);
    case 1: return rows_of_slice<1>(call, slice, m, first_row);
  }
}

// Some rows of up to four panels.
template <int Bits, bool Zeros>
void rows_of_panels(const FloatLinear& call, int64_t first_row, int64_t end_row, int64_t panel, int64_t panels) {
  alignas(64) float floats[kSliceSteps * kStep * kTilePanels * kPanel];  // of three panels, a fourth is read and not used
  alignas(64) float totals[kRowsAtOnce * kTilePanels * kPanel];
  const __m512 values = Bits <= 4 ? _mm512_loadu_ps(call.values) : _mm512_setzero_ps();
  int64_t packed_offset = 0;
  for (int64_t group = 0; group < call.groups; ++group) {
    const Segment& segment = call.segments[group];
    for (int64_t first = 0; first < segment.steps; first += kSliceSteps) {
      const int64_t steps = segment.steps - first < kSliceSteps ? segment.steps - first : kSliceSteps;
      for (int64_t p = 0; p < panels; ++p) {
        const uint8_t* packed = call.panels + (panel + p) * call.panel_bytes + packed_offset;
        const __m512 zero = Zeros ? zeros_of(call, panel + p, group) : values;
        expand<Bits, Zeros>(packed, steps, values, zero, floats + p * kPanel);
      }
      packed_offset += blocks_of(steps) * block_bytes(Bits);
      const bool ends = first + steps == segment.steps;
      const Slice slice = {panel, panels, group, steps, segment.x_offset + kStep * first, first == 0, ends, floats, totals};
      all_rows_of_slice(call, slice, first_row, end_row);
    }
  }
}

template <int Bits, bool Zeros>
void run(const FloatLinear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  for (int64_t panel = first_panel; panel < end_panel; panel += kTilePanels) {
    const int64_t panels = end_panel - panel < kTilePanels ? end_panel - panel : kTilePanels;
    if (end_row - first_row > kFewRows) {
      for (int64_t m = first_row; m < end_row; m += kRowsAtOnce) {
        const int64_t end = m + kRowsAtOnce < end_row ? m + kRowsAtOnce : end_row;
        rows_of_panels<Bits, Zeros>(call, m, end, panel, panels);
      }
      continue;
    }
    for (int64_t m = first_row; m < end_row; ++m) {
      if (panels == kTilePanels) {
        row_of_panels<Bits, Zeros, kTilePanels>(call, m, panel);
        continue;
      }
      for (int64_t p = 0; p < panels; ++p) {
        row_of_panels<Bits, Zeros, 1>(call, m, panel + p);
      }
    }
  }
}

template <int Bits>
void run_width(const FloatLinear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  const auto function = call.w_zeros == nullptr ? run<Bits, false> : run<Bits, true>;
  function(call, first_row, end_row, first_panel, end_panel);
}

void linear(const FloatLinear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  static constexpr decltype(&linear) widths[] = {run_width<1>, run_width<2>, run_width<3>, run_width<4>,
                                                 run_width<5>, run_width<6>, run_width<7>, run_width<8>};
  widths[call.bits - 1](call, first_row, end_row, first_panel, end_panel);
}

}  // namespace

const FloatLinearKernels avx512_float_linear = {linear};

}  // namespace subbyte
