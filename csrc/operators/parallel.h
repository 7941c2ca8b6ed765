// Work cut into pieces for PyTorch's threads.
#pragma once

#include <cstdint>

#include "../torch/torch_api.h"

namespace subbyte {

// Of numbers that are not negative, however large.
inline std::int64_t divided_up(std::int64_t count, std::int64_t by) { return count / by + (count % by != 0); }

// Runs `work(begin, end)` over pieces of [0, count), each of at least `grain`.
template <typename Work>
inline void in_parallel(std::int64_t count, std::int64_t grain, const Work& work) {
  const auto run = [](std::int64_t begin, std::int64_t end, void* given) {
    (*static_cast<const Work*>(given))(begin, end);
  };
  check(torch_api().parallel_for(0, count, grain, run, const_cast<Work*>(&work)), "parallel_for");
}

}  // namespace subbyte
