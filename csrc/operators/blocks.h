// Which values of a tensor share parameters, walked in the order in which they lie in memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace subbyte {

// The axes of a tensor from the one with the longest stride to the one with the shortest.
std::vector<std::size_t> memory_order(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides);

// Whether a tensor's values lie one after another, in whatever order of its axes.
bool is_dense(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides);

class Blocks {
 public:
  // Of a dense tensor that is not empty. Along each axis there is one parameter, or one for each index, or one for every
  // `group_size` of them; a single parameter may have any number of axes. Throws std::runtime_error where it is none of these.
  Blocks(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides,
         const std::vector<std::int64_t>& parameter_sizes, std::int64_t group_size);

  // Of each parameter, in the order of `each_run`, the index in the tensor of parameters; some may be there repeatedly.
  const std::vector<std::int64_t>& sources() const { return sources_; }

  // Calls run(first, count, parameter, stride) for the values [begin, end) in the order of memory, a run after the other:
  // value `first + i` has parameter `parameter + i * stride`; the stride is 0 or 1.
  template <typename Run>
  void each_run(std::int64_t begin, std::int64_t end, const Run& run) const {
    while (begin < end) {
      const std::int64_t row = begin / row_size_, row_begin = row * row_size_;
      const std::int64_t row_end = std::min(end, row_begin + row_size_), first_of_row = parameter_of_row(row);
      if (group_ == 1) {
        run(begin, row_end - begin, first_of_row + begin - row_begin, 1);
        begin = row_end;
      }
      while (begin < row_end) {
        const std::int64_t group = (begin - row_begin) / group_;
        const std::int64_t group_end = std::min(row_end, row_begin + (group + 1) * group_);
        run(begin, group_end - begin, first_of_row + group, 0);
        begin = group_end;
      }
    }
  }

 private:
  struct Axis {
    std::int64_t size, group;  // group: neighbouring indices that share a parameter

    std::int64_t parameters() const { return (size + group - 1) / group; }
  };

  void merge(const std::vector<Axis>& axes);
  void repeat_short_rows();
  std::int64_t parameter_of_row(std::int64_t row) const;

  std::vector<Axis> outer_;  // from the outermost to the innermost but one
  std::int64_t row_size_ = 1, group_ = 1;
  std::vector<std::int64_t> sources_;
};

}  // namespace subbyte
