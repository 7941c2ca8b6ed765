// Linear layers by AVX-512 with VNNI. Few rows: codes are unpacked in registers, once for two rows or for eight. Many: 64
// outputs are unpacked, a slice at a time, and tiles of rows go over the slice.
#include <immintrin.h>

#include "../kernels/linear.h"
#include "terms.h"
#include "tile.h"
#include "unpack.h"

namespace subbyte {
namespace {

constexpr int64_t kRowsAtOnce = 128;
constexpr int64_t kSomeRows = 24;  // up to these, unpacking in registers costs less than unpacking into memory

// One row of four panels: two sums for each, so that none waits for itself.
template <bool Table>
struct RowWork {
  __m512i total[kTilePanels][2];
  __m512i table;
  int64_t panel_bytes;

  // The first `steps` of a block of each panel, times those of x.
  template <int Bits, int Step>
  inline void add(const uint8_t* packed, const int8_t* x, int64_t steps) {
    if constexpr (Step < kBlockSteps) {
      if (Step < steps) {
        const __m512i four = broadcast_four(x + kStep * Step);
#pragma GCC unroll 4
        for (int p = 0; p < kTilePanels; ++p) {
          add_products(total[p][Step % 2], values_of<Table>(codes_of<Bits, Step>(packed + p * panel_bytes), table), four);
        }
        add<Bits, Step + 1>(packed, x, steps);
      }
    }
  }
};

template <int Bits, bool Table>
void row_of_panels(const Linear& call, int64_t m, int64_t panel) {
  const uint8_t* packed = call.panels + panel * call.panel_bytes;
  RowWork<Table> work;
  work.table = table_of(call.values);
  work.panel_bytes = call.panel_bytes;
  __m512 y[kTilePanels];
  for (int64_t i = 0; i < call.segment_count; ++i) {
    const Segment& segment = call.segments[i];
    if (segment.begins_group) {
#pragma GCC unroll 4
      for (int p = 0; p < kTilePanels; ++p) {
        work.total[p][0] = work.total[p][1] = _mm512_setzero_si512();
      }
    }
    const int8_t* x = call.x + call.row_offsets[m] + segment.x_offset;
    int64_t left = segment.steps;
    for (; left >= kBlockSteps; left -= kBlockSteps, packed += block_bytes(Bits), x += kStep * kBlockSteps) {
      work.template add<Bits, 0>(packed, x, kBlockSteps);
    }
    if (left > 0) {
      work.template add<Bits, 0>(packed, x, left);
      packed += block_bytes(Bits);
    }
    if (segment.ends_group) {
#pragma GCC unroll 4
      for (int p = 0; p < kTilePanels; ++p) {
        const __m512i total = _mm512_add_epi32(work.total[p][0], work.total[p][1]);
        const __m512 term = term_of(call, total, m, segment.group, panel + p);
        y[p] = segment.group == 0 ? term : _mm512_add_ps(y[p], term);
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < kTilePanels; ++p) {
    _mm512_mask_storeu_ps(place_of(call, m, panel + p), real_outputs(call, panel + p), with_bias(call, y[p], panel + p));
  }
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
  const int64_t to_next = blocks_of(steps) * block_bytes(Bits);
  for (; steps > 0; steps -= kBlockSteps, packed += block_bytes(Bits), work.to += 64 * kTilePanels * kBlockSteps) {
    for (int word = 0; word < Bits; ++word) {  // the next slice comes from far away; the tiles between give it time
      _mm_prefetch(reinterpret_cast<const char*>(packed + to_next + 64 * word), _MM_HINT_T0);
    }
    each_step<Bits, 0>(packed, steps < kBlockSteps ? steps : kBlockSteps, work);
  }
}

// Steps that lie side by side in the rows of x.
struct Run {
  int64_t steps, x_offset;
};

// What is unpacked at once: runs of one group, and the sums of what goes on in the next slice.
struct Slice {
  int64_t panel, panels, group, steps, run_count;
  const Run* runs;
  bool begins_group, ends_group;
  const uint8_t* values;
  int32_t* totals;  // [rows][64]
  float* sums;      // [rows][64]: of the groups before
};

template <int Rows, int Panels>
void rows_of_slice(const Linear& call, const Slice& slice, int64_t m, int64_t first_row) {
  __m512i total[Rows][Panels];
  int32_t* const kept = slice.totals + (m - first_row) * 64;
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < Panels; ++p) {
      total[r][p] = slice.begins_group ? _mm512_setzero_si512() : _mm512_load_si512(kept + 64 * r + kPanel * p);
    }
  }
  const Run* run = slice.runs;  // the first by itself: most slices have one
  add_tile<Rows, Panels>(total, call.x + run->x_offset, call.row_offsets + m, slice.values, run->steps);
  const uint8_t* values = slice.values;
  for (int64_t i = 1; i < slice.run_count; ++i) {
    values += 64 * kTilePanels * run->steps;
    ++run;
    add_tile<Rows, Panels>(total, call.x + run->x_offset, call.row_offsets + m, values, run->steps);
  }
  if (!slice.ends_group) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < Panels; ++p) {
        _mm512_store_si512(kept + 64 * r + kPanel * p, total[r][p]);
      }
    }
  } else {
    add_terms(call, {m, Rows, slice.panel, slice.panels, slice.group, slice.sums + (m - first_row) * 64}, total);
  }
}

// The rows that are left: fewer than a tile takes.
template <int Rows, int Panels>
void last_rows_of_slice(const Linear& call, const Slice& slice, int64_t m, int64_t first_row, int64_t rows) {
  if constexpr (Rows > 0) {
    if (rows == Rows) {
      return rows_of_slice<Rows, Panels>(call, slice, m, first_row);
    }
    last_rows_of_slice<Rows - 1, Panels>(call, slice, m, first_row, rows);
  }
}

template <int Panels>
void all_rows_of_slice(const Linear& call, const Slice& slice, int64_t first_row, int64_t end_row) {
  constexpr int height = Panels == 1 ? 8 : kTileRows;  // so many sums that none waits for itself
  int64_t m = first_row;
  for (; m + height <= end_row; m += height) {
    rows_of_slice<height, Panels>(call, slice, m, first_row);
  }
  last_rows_of_slice<height - 1, Panels>(call, slice, m, first_row, end_row - m);
}

// A few rows of two panels, unpacked in registers.
template <bool Table, int Rows>
struct FewRowsWork {
  __m512i total[Rows][2];
  __m512i table;
  const int8_t* x[Rows];

  // The first `steps` of a block of each panel.
  template <int Bits, int Step>
  inline void steps(const uint8_t* first, const uint8_t* second, int64_t steps_left) {
    if constexpr (Step < kBlockSteps) {
      if (Step < steps_left) {
        const __m512i w[2] = {values_of<Table>(codes_of<Bits, Step>(first), table),
                              values_of<Table>(codes_of<Bits, Step>(second), table)};
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
          const __m512i four = broadcast_four(x[r] + kStep * Step);
          add_products(total[r][0], w[0], four);
          add_products(total[r][1], w[1], four);
        }
        steps<Bits, Step + 1>(first, second, steps_left);
      }
    }
  }
};

// Some of Rows rows, of one or two panels.
template <int Bits, bool Table, int Rows>
void few_rows_of_panels(const Linear& call, int64_t first_row, int64_t rows, int64_t panel, int64_t panels) {
  alignas(64) float sums[Rows * 64];
  FewRowsWork<Table, Rows> work;
  work.table = table_of(call.values);
  const uint8_t* first = call.panels + panel * call.panel_bytes;
  const int64_t to_second = panels > 1 ? call.panel_bytes : 0;
  for (int64_t i = 0; i < call.segment_count; ++i) {
    const Segment& segment = call.segments[i];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      work.x[r] = call.x + call.row_offsets[first_row + (r < rows ? r : 0)] + segment.x_offset;
      if (segment.begins_group) {
        work.total[r][0] = work.total[r][1] = _mm512_setzero_si512();
      }
    }
    for (int64_t left = segment.steps; left > 0; left -= kBlockSteps, first += block_bytes(Bits)) {
      work.template steps<Bits, 0>(first, first + to_second, left);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        work.x[r] += kStep * kBlockSteps;
      }
    }
    if (segment.ends_group) {
      add_terms(call, {first_row, rows, panel, panels, segment.group, sums}, work.total);
    }
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
  Run runs[kSliceSteps];
  Slice slice = {panel, panels, 0, 0, 0, runs, true, false, values, totals, sums};
  int64_t packed_offset = 0;
  for (int64_t i = 0; i < call.segment_count; ++i) {
    const Segment& segment = call.segments[i];
    slice.group = segment.group;
    for (int64_t first = 0; first < segment.steps;) {
      const int64_t left = segment.steps - first, room = kSliceSteps - slice.steps;
      const int64_t steps = left <= room ? left : room / kBlockSteps * kBlockSteps;  // a block is unpacked as a whole
      if (steps > 0) {
        for (int64_t p = 0; p < panels; ++p) {
          const uint8_t* packed = call.panels + (panel + p) * call.panel_bytes + packed_offset;
          unpack_slice<Bits, Table>(packed, steps, table, values + 64 * (kTilePanels * slice.steps + p));
        }
        runs[slice.run_count++] = {steps, segment.x_offset + kStep * first};
        slice.steps += steps, first += steps, packed_offset += blocks_of(steps) * block_bytes(Bits);
      }
      slice.ends_group = segment.ends_group && first == segment.steps;
      if (slice.ends_group || steps == 0) {
        all_rows(call, slice, first_row, end_row);
        slice.begins_group = slice.ends_group, slice.steps = slice.run_count = 0;
      }
    }
  }
}

// Up to 24 rows in tiles of as few as it takes, all of one height.
template <int Bits, bool Table>
void some_rows_of_panels(const Linear& call, int64_t first_row, int64_t end_row, int64_t panel, int64_t panels) {
  const int64_t rows = end_row - first_row, tiles = (rows + 7) / 8, height = (rows + tiles - 1) / tiles;
  const auto few_rows = height > 6   ? few_rows_of_panels<Bits, Table, 8>
                        : height > 4 ? few_rows_of_panels<Bits, Table, 6>
                        : height > 2 ? few_rows_of_panels<Bits, Table, 4>
                                     : few_rows_of_panels<Bits, Table, 2>;
  for (int64_t m = first_row; m < end_row; m += height) {
    few_rows(call, m, end_row - m < height ? end_row - m : height, panel, panels);
  }
}

template <int Bits, bool Table>
void run(const Linear& call, int64_t first_row, int64_t end_row, int64_t first_panel, int64_t end_panel) {
  const int64_t rows = end_row - first_row, at_once = rows > 1 && rows <= kSomeRows ? 2 : kTilePanels;
  if (rows == 0) {
    return;
  }
  for (int64_t panel = first_panel; panel < end_panel; panel += at_once) {
    const int64_t panels = end_panel - panel < at_once ? end_panel - panel : at_once;
    if (rows == 1 && panels == kTilePanels) {
      row_of_panels<Bits, Table>(call, first_row, panel);
    } else if (rows == 1) {
      for (int64_t p = 0; p < panels; p += 2) {
        few_rows_of_panels<Bits, Table, 2>(call, first_row, 1, panel + p, panels - p < 2 ? panels - p : 2);
      }
    } else if (rows <= kSomeRows) {
      some_rows_of_panels<Bits, Table>(call, first_row, end_row, panel, panels);
    } else {
      for (int64_t m = first_row; m < end_row; m += kRowsAtOnce) {
        rows_of_panels<Bits, Table>(call, m, m + kRowsAtOnce < end_row ? m + kRowsAtOnce : end_row, panel, panels);
      }
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

// Sums of places that are so narrow that a vector holds several: sums of four bytes, then of neighbouring sums.
template <int Bytes>
void narrow_sums(const int8_t* x, int64_t places, int32_t* sums) {
  constexpr int64_t at_once = 64 / Bytes;
  constexpr __mmask16 firsts = Bytes == 4 ? 0xffff : Bytes == 8 ? 0x5555 : Bytes == 16 ? 0x1111 : 0x0101;
  const __m512i ones = _mm512_set1_epi8(1);
  for (int64_t i = 0; i < places; i += at_once) {
    const int64_t here = places - i < at_once ? places - i : at_once;
    const __mmask64 given = here * Bytes < 64 ? (1ull << (here * Bytes)) - 1 : ~0ull;
    __m512i total = _mm512_setzero_si512();
    add_products(total, ones, _mm512_maskz_loadu_epi8(given, x + i * Bytes));
    if (Bytes >= 8) {
      total = _mm512_add_epi32(total, _mm512_shuffle_epi32(total, _MM_PERM_CDAB));
    }
    if (Bytes >= 16) {
      total = _mm512_add_epi32(total, _mm512_shuffle_epi32(total, _MM_PERM_BADC));
    }
    if (Bytes >= 32) {
      total = _mm512_add_epi32(total, _mm512_shuffle_i32x4(total, total, 0xb1));
    }
    _mm512_mask_storeu_epi32(sums + i, static_cast<__mmask16>((1u << here) - 1), _mm512_maskz_compress_epi32(firsts, total));
  }
}

void sums(const int8_t* x, int64_t places, int64_t bytes, int32_t* sums) {
  switch (bytes) {
    case 4: return narrow_sums<4>(x, places, sums);
    case 8: return narrow_sums<8>(x, places, sums);
    case 16: return narrow_sums<16>(x, places, sums);
    case 32: return narrow_sums<32>(x, places, sums);
  }
  for (int64_t i = 0; i < places; ++i) {
    sums[i] = sum(x + i * bytes, bytes);
  }
}

}  // namespace

const LinearKernels avx512_linear = {linear, sum, sums};

}  // namespace subbyte
