#include "blocks.h"

#include <cstddef>

#include "parallel.h"
#include "require.h"

namespace subbyte {
namespace {

using Sizes = std::vector<std::int64_t>;

// Rows of values with a parameter each are repeated up to about this length.
constexpr std::int64_t kRow = 256;

std::int64_t product(const Sizes& sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    count *= size;
  }
  return count;
}

std::int64_t group_of(std::int64_t size, std::int64_t parameters, std::int64_t group_size) {
  if (parameters == 1) {
    return size;
  }
  if (parameters == size) {
    return 1;
  }
  require(group_size > 0 && parameters == divided_up(size, group_size),
          "an axis of " + std::to_string(size) + " takes one scale, one for each index or one for each group of " +
              std::to_string(group_size) + ", not " + std::to_string(parameters));
  return group_size;
}

}  // namespace

std::vector<std::size_t> memory_order(const Sizes& sizes, const Sizes& strides) {
  std::vector<std::size_t> order;
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    order.push_back(axis);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return strides[a] > strides[b]; });
  return order;
}

bool is_dense(const Sizes& sizes, const Sizes& strides) {
  const std::vector<std::size_t> order = memory_order(sizes, strides);
  std::int64_t expected = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const std::size_t axis = order[i];
    if (sizes[axis] != 1 && strides[axis] != expected) {
      return false;
    }
    expected *= sizes[axis];
  }
  return true;
}

Blocks::Blocks(const Sizes& sizes, const Sizes& strides, const Sizes& parameter_sizes, std::int64_t group_size) {
  if (product(parameter_sizes) == 1) {
    sources_ = {0};
    row_size_ = group_ = product(sizes);
    return;
  }
  require(parameter_sizes.size() == sizes.size(), "the scale has other axes than the tensor");
  Sizes steps(sizes.size(), 1);  // of an index, in the tensor of parameters
  for (std::size_t axis = sizes.size(); axis-- > 1;) {
    steps[axis - 1] = steps[axis] * parameter_sizes[axis];
  }
  std::vector<Axis> axes;
  sources_ = {0};
  for (const std::size_t axis : memory_order(sizes, strides)) {
    axes.push_back({sizes[axis], group_of(sizes[axis], parameter_sizes[axis], group_size)});
    Sizes longer;
    for (const std::int64_t source : sources_) {
      for (std::int64_t i = 0; i < parameter_sizes[axis]; ++i) {
        longer.push_back(source + i * steps[axis]);
      }
    }
    sources_ = std::move(longer);
  }
  merge(axes);
  repeat_short_rows();
}

// Neighbouring axes of one kind are one axis: those without parameters of their own, those with one for each index.
void Blocks::merge(const std::vector<Axis>& axes) {
  for (const Axis& axis : axes) {
    Axis* last = outer_.empty() ? nullptr : &outer_.back();
    if (axis.size == 1) {
      continue;
    }
    if (last != nullptr && last->group == 1 && axis.group == 1) {
      last->size *= axis.size;
    } else if (last != nullptr && last->group == last->size && axis.group == axis.size) {
      last->size *= axis.size;
      last->group = last->size;
    } else {
      outer_.push_back(axis);
    }
  }
  row_size_ = outer_.back().size;  // there is one: there are several parameters
  group_ = outer_.back().group;
  outer_.pop_back();
}

// As channels that lie side by side: a call for every few values would cost more than the values.
void Blocks::repeat_short_rows() {
  if (group_ != 1 || outer_.size() != 1 || outer_[0].group != outer_[0].size || row_size_ >= kRow) {
    return;
  }
  const std::int64_t times = std::min(kRow / row_size_, outer_[0].size);
  const std::size_t once = sources_.size();
  for (std::size_t i = 0; sources_.size() < once * static_cast<std::size_t>(times); ++i) {
    sources_.push_back(sources_[i]);
  }
  outer_[0].size = outer_[0].group = divided_up(outer_[0].size, times);
  row_size_ *= times;
}

std::int64_t Blocks::parameter_of_row(std::int64_t row) const {
  std::int64_t parameter = 0, step = (row_size_ + group_ - 1) / group_;
  for (std::size_t i = outer_.size(); i-- > 0;) {
    parameter += row % outer_[i].size / outer_[i].group * step;
    step *= outer_[i].parameters();
    row /= outer_[i].size;
  }
  return parameter;
}

}  // namespace subbyte
