// The numbers of x, which some operators take as floats and as codes, on their way to signed bytes.
#pragma once

#include <atomic>
#include <cstdint>

#include "../kernels/quantize.h"
#include "../torch/tensor.h"

namespace subbyte {

class CodeSource {
 public:
  // What lies at x's address: fp32, uint8 or int8. x outlives the source.
  explicit CodeSource(const Tensor& x);

  static bool takes(const Tensor& x);
  // Null where x is codes.
  const float* floats() const { return are_codes_ ? nullptr : static_cast<const float*>(numbers_); }

  // The numbers [first, first + count) as codes, less the shift; returns whether a NaN was among them. Several threads may
  // write at once.
  bool write(std::int64_t first, std::int64_t count, const Affine& affine, std::int8_t* codes) const;
  // Throws std::runtime_error where something written was no code.
  void refuse_what_is_outside() const;

 private:
  const void* numbers_;
  bool are_codes_, are_signed_;
  mutable std::atomic<bool> any_outside_{false};
};

}  // namespace subbyte
