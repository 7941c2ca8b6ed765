// What is done with finished results, piece by piece while they are near: a residual added, clamped, then written as
// floats, codes or signs.
//
//   t = y + residual;  v = t < low ? low : t > high ? high : t      (the sum rounded by itself; a NaN stays one)
//
// Then v is written as fp32; as the nearest bf16, ties to even; as the code clamp(round_half_even(v / y_scale) +
// y_zero_point, y_low, y_high), in one byte, which a NaN has none of: it is refused; or as one bit, 1 where v >= 0.
// Bits stand as sign_pack writes them, the outputs of a row of a linear layer or of a pixel filled up to whole bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "../kernels/quantize.h"
#include "../torch/tensor.h"

namespace subbyte {

// What the operators whose names end in _fused take after the arguments of their namesakes. A `residual` of the sizes
// [0] is none.
#define SUBBYTE_EPILOGUE                                                                                           \
  "Tensor residual, float low, float high, int output, Tensor y_scale, Tensor y_zero_point, int y_low, int y_high"

struct EpilogueArguments {
  Tensor residual, scale, zero_point;
  float low, high;
  std::int64_t output, lowest_code, highest_code;

  // Takes the tensors over, and refuses nothing yet.
  explicit EpilogueArguments(const StackValue* stack);
};

// Finished results, which lie inside one image.
struct Piece {
  float* values;                         // of row i and output j: values[i * stride + j]; used up
  std::int64_t rows, outputs, stride;
  std::int64_t first_row, first_output;  // in the whole result, of [images * places, outputs]
};

class Epilogue {
 public:
  // Of a result of the sizes [rows, outputs], or [images, outputs, rows, columns]. Throws std::runtime_error where
  // something does not fit.
  Epilogue(EpilogueArguments&& given, const std::vector<std::int64_t>& sizes, bool channels_last);

  // Several threads may write at once; where signs are packed, a piece begins on a whole byte of a row.
  void write(const Piece& piece);
  // Of results (fp32) in the layout of the whole.
  void write_all(float* values);

  // Throws std::runtime_error where a NaN was to become a code.
  Tensor result() &&;

 private:
  enum class Output : std::int64_t { float32, bfloat16, uint8, int8, signs };

  bool packs_signs() const { return output_ == Output::signs; }
  bool has_codes() const { return output_ == Output::uint8 || output_ == Output::int8; }
  void check(const EpilogueArguments& given) const;
  Tensor empty_result(const std::vector<std::int64_t>& sizes, bool channels_last) const;
  void write_rows(const Piece& piece);
  void write_columns(const Piece& piece);
  bool finish(float* values, std::int64_t count, std::int64_t place) const;
  void store(const float* values, std::int64_t count, std::int64_t place) const;
  void pack(const float* values, std::int64_t count, std::int64_t row, std::int64_t output) const;

  Output output_;
  std::int64_t outputs_, places_;  // places: of an image
  std::int64_t rows_;              // of all images
  bool outputs_innermost_;
  float low_, high_;
  Affine codes_{};
  Tensor residual_, y_;
  const float* residual_values_ = nullptr;  // null: there is no residual
  void* to_;
  std::atomic<bool> any_nan_{false};
};

// A whole result in fp32 or bf16 with an epilogue.
Tensor finished(EpilogueArguments&& given, const Tensor& y, bool channels_last);

// The result of an operator with an epilogue or without.
class Results {
 public:
  // `given`: null without one. `whole`: an epilogue has to wait for the whole result.
  Results(EpilogueArguments* given, const std::vector<std::int64_t>& sizes, bool channels_last, bool whole = false);

  // Where the product is to be written, as a whole; null where `epilogue` takes it piece by piece.
  float* floats() const { return floats_ ? floats_->data<float>() : nullptr; }
  Epilogue* epilogue() { return floats_ ? nullptr : &*epilogue_; }

  // Refuses scales that are not finite. They make NaN: only a result that holds one is worth the look at all scales.
  void refuse_bad_scales(const Tensor& scales) const;
  StackValue to_stack() &&;

 private:
  std::optional<Epilogue> epilogue_;
  std::optional<Tensor> floats_;
};

}  // namespace subbyte
