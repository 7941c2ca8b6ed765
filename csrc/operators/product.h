// What the operators that multiply with a packed weight share: its arguments, and the work cut into pieces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../kernels/linear.h"
#include "../kernels/quantize.h"
#include "../torch/tensor.h"

namespace subbyte {

// The first arguments of an operator, all tensors. To be taken over before any is refused: what is not taken over is not
// freed.
std::vector<Tensor> tensors_of(const StackValue* stack, int count);

// The tensor as it lies. Throws where it is not on the CPU or of another type.
Tensor checked_layout(Tensor&& tensor, const std::string& name, std::int32_t dtype);
// The same in row-major order.
Tensor checked(Tensor&& tensor, const std::string& name, std::int32_t dtype);
void require_count(const Tensor& tensor, const std::string& name, std::int64_t count);

// Segments of a row, the groups that they belong to, and what a panel of the weight takes.
struct Segments {
  std::vector<Segment> segments;
  std::vector<std::int64_t> group_sizes;  // of real inputs
  std::int64_t blocks = 0;

  void add(const Segment& segment);
  void describe(Linear& call) const;
};

// The tensors (weight, weight_scale, weight_zero_point, weight_sums, values, bias) of an operator.
class PackedArguments {
 public:
  explicit PackedArguments(Tensor* first);

  // Checks them against the call's `panels` panels and fills in the pointers.
  void describe(Linear& call, std::int64_t panels) const;

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

// Computes all rows and panels.
void multiply(const Linear& call);

}  // namespace subbyte
