// Sums of products by popcount: bits of x times weights of -1, 0 and +1.
#pragma once

#include <stdint.h>

namespace subbyte {

// Rows of floats compared with a threshold.
struct Thresholding {
  int64_t rows, count;      // floats in a row
  const float* x;           // float i of row m: x[m * x_row + i * x_step]
  int64_t x_row, x_step;    // one of them is 1
  const float* thresholds;  // [1], or [rows]
  int64_t threshold_row;    // 0, or 1
  uint64_t* words;          // bit i % 64 of words[m * word_row + i / 64 * word_step]; bits past a row are 0
  int64_t word_row, word_step;
};

// Where a row begins: in the words of x and in the bases.
struct BinaryRow {
  int64_t word, base;
};

// Several rows of bits times several outputs.
//
//   y[m, n] = float(t[m, n]) * (x_scale[m] * w_scale[n])  [+ bias[n]]
//   t[m, n] = base of m and n - step * (sum over planes, words and bits of (x ^ sign[n]) & mask[n])
//             (modulo 2^32)
//
// Each product and each sum of floats is rounded by itself. A row of x has one or more planes of bits, which all meet
// the same weights. Outputs stand in panels of eight, whose words lie side by side; after the words of the eight signs
// lie those of the eight masks, where there are masks.
struct BinaryProducts {
  int64_t outputs, planes, words;  // words: of one plane
  const uint64_t* x;               // word k of plane p of row m: x[rows[m].word + p * x_plane + offsets[k]]
  int64_t x_plane;
  const int64_t* offsets;          // [words]
  const uint64_t* panels;          // [panels, words, 8], or [panels, words, 2, 8]
  bool has_masks;
  int32_t step;
  const int32_t* bases;            // that of row m and output n: bases[rows[m].base + n], for whole panels of outputs
  const BinaryRow* rows;           // [rows]
  const float* x_scales;           // that of row m: x_scales[m * x_scale_row]
  int64_t x_scale_row;             // 0 or 1
  const float* w_scales;           // [8 * panels]
  const float* bias;               // [8 * panels], or null
  float* y;                        // y[m * y_row + n]
  int64_t y_row;
};

struct BinaryKernels {
  // A bit is 0 where its float is below the threshold, else 1: also where it is NaN.
  void (*threshold)(const Thresholding& call);
  // words[i] becomes the bits of words[i + t * distance] for all t below `taps`, those of t from bit t * bits on; what
  // lies past `count` words is 0.
  void (*join)(uint64_t* words, int64_t count, int64_t taps, int64_t distance, int64_t bits);
  // Some rows of some panels.
  void (*products)(const BinaryProducts& call, int64_t first_row, int64_t end_row, int64_t first_panel,
                   int64_t end_panel);
};

extern const BinaryKernels reference_binary, avx2_binary, avx512_binary;

}  // namespace subbyte
