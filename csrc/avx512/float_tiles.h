// Linear layers on floats by AVX-512, whatever the arithmetic. A row of x is words of four bytes: a float, or two numbers
// of two bytes; `Arithmetic` makes codes into words, and multiplies and adds them. Few rows: words are made in registers,
// four panels at a time. Many: a slice of 64 outputs becomes words once, and tiles of rows go over it.
//
//   typename Number                             of x and y
//   constexpr int kWords                        of a step
//   Table                                       what codes stand for, and table_of(values) to make it
//   word_of<Bits, Zeros, Word>(codes, table, zero)
//   add(total, w, x)                            total += w * x
//   store(y, mask, values)
#pragma once

#include <immintrin.h>

#include "../kernels/float_linear.h"
#include "unpack.h"

namespace subbyte {
namespace {

constexpr int kTileRows = 6;
constexpr int kTilePanels = kFloatPanels;
constexpr int64_t kFewRows = 2;
constexpr int64_t kSliceWords = 128;  // of 64 outputs, 32 KiB

template <typename Arithmetic>
using ProductOf = FloatProduct<typename Arithmetic::Number>;

inline __m512 broadcast_word(const void* from) {
  typedef float Unaligned __attribute__((aligned(1), may_alias));
  return _mm512_set1_ps(*static_cast<const Unaligned*>(from));
}

template <typename Product>
inline __mmask16 real_outputs(const Product& call, int64_t panel) {
  const int64_t rest = call.outputs - panel * kPanel;
  return static_cast<__mmask16>(rest < kPanel ? (1u << rest) - 1 : 0xffff);
}

template <typename Product>
inline __m512 of_group(const Product& call, const float* parameters, int64_t panel, int64_t group) {
  return _mm512_loadu_ps(parameters + (panel * call.groups + group) * kPanel);
}

// The sums of all groups, and the bias, into y.
template <typename Arithmetic>
inline void write(const ProductOf<Arithmetic>& call, __m512 y, int64_t m, int64_t panel) {
  y = call.bias == nullptr ? y : _mm512_add_ps(y, _mm512_loadu_ps(call.bias + panel * kPanel));
  Arithmetic::store(call.y + m * call.y_stride + panel * kPanel - call.y_origin, real_outputs(call, panel), y);
}

// Words Word, Word + 1, ... of one step of one panel.
template <typename Arithmetic, int Bits, bool Zeros, int Word = 0>
inline void add_step(__m512& total, __m512i codes, const typename Arithmetic::Table& table, __m512 zero,
                     const typename Arithmetic::Number* x) {
  if constexpr (Word < Arithmetic::kWords) {
    const __m512 w = Arithmetic::template word_of<Bits, Zeros, Word>(codes, table, zero);
    Arithmetic::add(total, w, broadcast_word(x + Word * kStep / Arithmetic::kWords));
    add_step<Arithmetic, Bits, Zeros, Word + 1>(total, codes, table, zero, x);
  }
}

// The first `steps` steps of a block of several panels; panels in turn, so that no sum waits for itself.
template <typename Arithmetic, int Bits, bool Zeros, int Panels, int Step = 0>
inline void add_block(__m512 (&total)[Panels], const uint8_t* const* blocks, int64_t steps,
                      const typename Arithmetic::Table& table, const __m512* zeros, const typename Arithmetic::Number* x) {
  if constexpr (Step < kBlockSteps) {
    if (Step < steps) {
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        add_step<Arithmetic, Bits, Zeros>(total[p], codes_of<Bits, Step>(blocks[p]), table, zeros[p], x + kStep * Step);
      }
      add_block<Arithmetic, Bits, Zeros, Panels, Step + 1>(total, blocks, steps, table, zeros, x);
    }
  }
}

template <typename Arithmetic, int Bits, bool Zeros, int Panels>
void row_of_panels(const ProductOf<Arithmetic>& call, int64_t m, int64_t panel) {
  const auto table = Arithmetic::table_of(call.values);
  const uint8_t* blocks[Panels];
  __m512 y[Panels], total[Panels], zeros[Panels];
#pragma GCC unroll 4
  for (int p = 0; p < Panels; ++p) {
    blocks[p] = call.panels + (panel + p) * call.panel_bytes;
    y[p] = total[p] = zeros[p] = _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < call.segment_count; ++i) {
    const Segment& segment = call.segments[i];
    const auto* x = call.x + call.row_offsets[m] + segment.x_offset;
    if (segment.begins_group) {
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        total[p] = _mm512_setzero_ps();
        zeros[p] = Zeros ? of_group(call, call.w_zeros, panel + p, segment.group) : total[p];
      }
    }
    for (int64_t left = segment.steps; left > 0; left -= kBlockSteps, x += kStep * kBlockSteps) {
      add_block<Arithmetic, Bits, Zeros, Panels>(total, blocks, left, table, zeros, x);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        blocks[p] += block_bytes(Bits);
      }
    }
    if (segment.ends_group) {
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        y[p] = _mm512_fmadd_ps(total[p], of_group(call, call.w_scales, panel + p, segment.group), y[p]);
      }
    }
  }
  for (int p = 0; p < Panels; ++p) {
    write<Arithmetic>(call, y[p], m, panel + p);
  }
}

template <typename Arithmetic, int Bits, bool Zeros>
struct ExpandWork {
  typename Arithmetic::Table table;
  __m512 zero;
  float* to;

  template <int Word>
  inline void words_from(__m512i codes, float* at) {
    if constexpr (Word < Arithmetic::kWords) {
      _mm512_store_ps(at, Arithmetic::template word_of<Bits, Zeros, Word>(codes, table, zero));
      words_from<Word + 1>(codes, at + kTilePanels * kPanel);
    }
  }

  template <int Step>
  inline void step(__m512i codes) {
    words_from<0>(codes, to + Step * Arithmetic::kWords * kTilePanels * kPanel);
  }
};

// `steps` steps of one panel as words: 16 of each, every fourth panel.
template <typename Arithmetic, int Bits, bool Zeros>
void expand(const uint8_t* packed, int64_t steps, const typename Arithmetic::Table& table, __m512 zero, float* to) {
  ExpandWork<Arithmetic, Bits, Zeros> work = {table, zero, to};
  for (; steps > 0; steps -= kBlockSteps, packed += block_bytes(Bits)) {
    each_step<Bits, 0>(packed, steps, work);
    work.to += kBlockSteps * Arithmetic::kWords * kTilePanels * kPanel;
  }
}

// Where a slice lies, and the sums of the groups that go on in the next.
struct Slice {
  int64_t panel, panels, group, steps, x_offset;
  bool begins_group, ends_group;
  const float* words;
  float* totals;  // [rows][64]
  float* sums;    // [rows][64]: of the groups before. Not in y, whose rows may lie so far apart that they share cache sets
};

template <typename Arithmetic, int Rows, int Panels>
inline void finish(const ProductOf<Arithmetic>& call, const Slice& slice, __m512 (&total)[Rows][Panels], int64_t m,
                   float* sums) {
  const bool is_first = slice.group == 0, is_last = slice.group + 1 == call.groups;
#pragma GCC unroll 4
  for (int p = 0; p < Panels; ++p) {
    if (p >= slice.panels) {
      continue;
    }
    const __m512 scale = of_group(call, call.w_scales, slice.panel + p, slice.group);
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      float* const kept = sums + (r * kTilePanels + p) * kPanel;
      const __m512 y = _mm512_fmadd_ps(total[r][p], scale, is_first ? _mm512_setzero_ps() : _mm512_load_ps(kept));
      if (is_last) {
        write<Arithmetic>(call, y, m + r, slice.panel + p);
      } else {
        _mm512_store_ps(kept, y);
      }
    }
  }
}

template <typename Arithmetic, int Rows, int Panels>
void rows_of_slice(const ProductOf<Arithmetic>& call, const Slice& slice, int64_t m, int64_t first_row) {
  __m512 total[Rows][Panels];
  float* const kept = slice.totals + (m - first_row) * kTilePanels * kPanel;
  const typename Arithmetic::Number* x[Rows];
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
    x[r] = call.x + call.row_offsets[m + r] + slice.x_offset;
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      total[r][p] = slice.begins_group ? _mm512_setzero_ps() : _mm512_load_ps(kept + (r * kTilePanels + p) * kPanel);
    }
  }
  const float* w = slice.words;
  for (int64_t word = 0; word < Arithmetic::kWords * slice.steps; ++word, w += kTilePanels * kPanel) {
    __m512 words[Panels];
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      words[p] = _mm512_load_ps(w + p * kPanel);
    }
#pragma GCC unroll 6
    for (int r = 0; r < Rows; ++r) {
      const __m512 factor = broadcast_word(x[r] + word * kStep / Arithmetic::kWords);
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        Arithmetic::add(total[r][p], words[p], factor);
      }
    }
  }
  if (slice.ends_group) {
    finish<Arithmetic, Rows, Panels>(call, slice, total, m, slice.sums + (m - first_row) * kTilePanels * kPanel);
    return;
  }
#pragma GCC unroll 6
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      _mm512_store_ps(kept + (r * kTilePanels + p) * kPanel, total[r][p]);
    }
  }
}

template <typename Arithmetic, int Panels>
void all_rows_of_slice(const ProductOf<Arithmetic>& call, const Slice& slice, int64_t first_row, int64_t end_row) {
  int64_t m = first_row;
  for (; m + kTileRows <= end_row; m += kTileRows) {
    rows_of_slice<Arithmetic, kTileRows, Panels>(call, slice, m, first_row);
  }
  switch (end_row - m) {
    case 5: return rows_of_slice<Arithmetic, 5, Panels>(call, slice, m, first_row);
    case 4: return rows_of_slice<Arithmetic, 4, Panels>(call, slice, m, first_row);
    case 3: return rows_of_slice<Arithmetic, 3, Panels>(call, slice, m, first_row);
    case 2: return rows_of_slice<Arithmetic, 2, Panels>(call, slice, m, first_row);
    case 1: return rows_of_slice<Arithmetic, 1, Panels>(call, slice, m, first_row);
  }
}

// Some rows of up to four panels.
template <typename Arithmetic, int Bits, bool Zeros>
void rows_of_panels(const ProductOf<Arithmetic>& call, int64_t first_row, int64_t end_row, int64_t panel, int64_t panels) {
  constexpr int64_t rows = kFloatRows<typename Arithmetic::Number>, slice_steps = kSliceWords / Arithmetic::kWords;
  alignas(64) float words[kSliceWords * kTilePanels * kPanel];  // of three panels, a fourth is read and not used
  alignas(64) float totals[rows * kTilePanels * kPanel];
  alignas(64) float sums[rows * kTilePanels * kPanel];
  const auto table = Arithmetic::table_of(call.values);
  const auto all_rows = panels == 1   ? all_rows_of_slice<Arithmetic, 1>
                        : panels == 2 ? all_rows_of_slice<Arithmetic, 2>
                                      : all_rows_of_slice<Arithmetic, 4>;
  int64_t packed_offset = 0;
  for (int64_t i = 0; i < call.segment_count; ++i) {
    const Segment& segment = call.segments[i];
    for (int64_t first = 0; first < segment.steps; first += slice_steps) {
      const int64_t steps = segment.steps - first < slice_steps ? segment.steps - first : slice_steps;
      for (int64_t p = 0; p < panels; ++p) {
        const uint8_t* packed = call.panels + (panel + p) * call.panel_bytes + packed_offset;
        const __m512 zero = Zeros ? of_group(call, call.w_zeros, panel + p, segment.group) : _mm512_setzero_ps();
        expand<Arithmetic, Bits, Zeros>(packed, steps, table, zero, words + p * kPanel);
      }
      packed_offset += blocks_of(steps) * block_bytes(Bits);
      const bool begins = segment.begins_group && first == 0, ends = segment.ends_group && first + steps == segment.steps;
      const int64_t x_offset = segment.x_offset + kStep * first;
      const Slice slice = {panel, panels, segment.group, steps, x_offset, begins, ends, words, totals, sums};
      all_rows(call, slice, first_row, end_row);
    }
  }
}

template <typename Arithmetic, int Bits, bool Zeros>
void run(const ProductOf<Arithmetic>& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  constexpr int64_t rows_at_once = kFloatRows<typename Arithmetic::Number>;
  for (int64_t panel = first_panel; panel < end_panel; panel += kTilePanels) {
    const int64_t panels = end_panel - panel < kTilePanels ? end_panel - panel : kTilePanels;
    if (end_row - first_row > kFewRows) {
      for (int64_t m = first_row; m < end_row; m += rows_at_once) {
        const int64_t end = m + rows_at_once < end_row ? m + rows_at_once : end_row;
        rows_of_panels<Arithmetic, Bits, Zeros>(call, m, end, panel, panels);
      }
      continue;
    }
    for (int64_t m = first_row; m < end_row; ++m) {
      if (panels == kTilePanels) {
        row_of_panels<Arithmetic, Bits, Zeros, kTilePanels>(call, m, panel);
        continue;
      }
      for (int64_t p = 0; p < panels; ++p) {
        row_of_panels<Arithmetic, Bits, Zeros, 1>(call, m, panel + p);
      }
    }
  }
}

template <typename Arithmetic, int Bits>
void run_width(const ProductOf<Arithmetic>& call, int64_t first_row, int64_t end_row, int64_t first_panel,
               int64_t end_panel) {
  const auto function = call.w_zeros == nullptr ? run<Arithmetic, Bits, false> : run<Arithmetic, Bits, true>;
  function(call, first_row, end_row, first_panel, end_panel);
}

template <typename Arithmetic>
void linear(const ProductOf<Arithmetic>& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  static constexpr decltype(&linear<Arithmetic>) widths[] = {
      run_width<Arithmetic, 1>, run_width<Arithmetic, 2>, run_width<Arithmetic, 3>, run_width<Arithmetic, 4>,
      run_width<Arithmetic, 5>, run_width<Arithmetic, 6>, run_width<Arithmetic, 7>, run_width<Arithmetic, 8>};
  widths[call.bits - 1](call, first_row, end_row, first_panel, end_panel);
}

}  // namespace
}  // namespace subbyte
