// What the operators that multiply with a packed weight share: its arguments, and the work cut into pieces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../kernels/linear.h"
#include "../kernels/quantize.h"
#include "../torch/tensor.h"
#include "epilogue.h"
#include "parallel.h"

namespace subbyte {

// The first arguments of an operator, all tensors. To be taken over before any is refused: what is not taken over is not
// freed.
std::vector<Tensor> tensors_of(const StackValue* stack, int count);

// The tensor as it lies. Throws where it is not on the CPU or of another type.
Tensor checked_layout(Tensor&& tensor, const std::string& name, std::int32_t dtype);
// The same in row-major order.
Tensor checked(Tensor&& tensor, const std::string& name, std::int32_t dtype);
void require_count(const Tensor& tensor, const std::string& name, std::int64_t count);

// Refuses scales that are not finite. What they make is not finite either: where the result is shorter than the scales are,
// only such a one is worth the look at all of them.
void refuse_bad_scales(const Tensor& scales);
void refuse_bad_scales(const Tensor& y, const Tensor& scales);

// Segments of a row, the groups that they belong to, and what a panel of the weight takes.
struct Segments {
  std::vector<Segment> segments;
  std::vector<std::int64_t> group_sizes;  // of real inputs
  std::int64_t blocks = 0;

  void add(const Segment& segment);
  void describe(Linear& call) const;
};

// The groups of a linear layer. Throws where the packed weight cannot hold a byte of each.
Segments groups_of(std::int64_t inputs, std::int64_t group_size, const Tensor& weight);

// The tensors (weight, weight_scale, weight_zero_point, weight_sums, values, bias) of an operator.
class PackedArguments {
 public:
  explicit PackedArguments(Tensor* first);

  // Checks them against the call's `panels` panels and fills in the pointers.
  void describe(Linear& call, std::int64_t panels) const;
  const Tensor& scale() const { return scale_; }

  const Tensor& weight() const { return weight_; }

 private:
  Tensor weight_, scale_, zero_point_, sums_, values_, bias_;
};

// The tensors (x_scale, x_zero_point) and the numbers (x_low, x_high): how x becomes codes.
class CodesOfX {
 public:
  CodesOfX(Tensor* first, const StackValue* range);

  // Checks that there is one scale, or one for each of `rows`.
  void check(std::int64_t rows) const;
  Affine of_row(std::int64_t row) const;

 private:
  Tensor scale_, zero_point_;
  std::int64_t low_, high_;
};

// How much of a product is worth taking at once.
struct PieceSize {
  std::int64_t rows, panels;
};

// Runs `work(row, end_row, panel, end_panel)` over pieces of a product with `inputs` inputs.
template <typename Work>
void in_pieces(std::int64_t rows, std::int64_t outputs, std::int64_t inputs, PieceSize size, const Work& work) {
  constexpr std::int64_t grain = 1 << 19;  // multiplications that one thread takes at least
  const std::int64_t panels = divided_up(outputs, kPanel), at_once = size.panels;
  const std::int64_t row_pieces = divided_up(rows, size.rows), panel_pieces = divided_up(panels, at_once);
  const std::int64_t height = row_pieces == 0 ? 0 : divided_up(rows, row_pieces);
  const std::int64_t multiplications = 1 + height * inputs * kPanel * at_once;
  in_parallel(row_pieces * panel_pieces, divided_up(grain, multiplications), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t piece = begin; piece < end; ++piece) {
      const std::int64_t row = piece % row_pieces * height, panel = piece / row_pieces * at_once;
      work(row, row + height < rows ? row + height : rows, panel, panel + at_once < panels ? panel + at_once : panels);
    }
  });
}

// Computes all rows and panels: into call.y, or where there is an epilogue, for that.
void multiply(const Linear& call, Epilogue* epilogue);

}  // namespace subbyte
