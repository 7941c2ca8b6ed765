#include "epilogue.h"

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "../isa.h"
#include "parallel.h"
#include "product.h"
#include "require.h"
#include "tensor_argument.h"
#include "transposed.h"

namespace subbyte {
namespace {

using Sizes = std::vector<std::int64_t>;

constexpr std::int64_t kGrain = 1 << 15;              // values that one thread takes at least
constexpr std::int64_t kRows = 96, kOutputs = 64;     // of what is transposed at once

float float_of(StackValue value) {
  double number = 0;
  std::memcpy(&number, &value, sizeof number);
  return static_cast<float>(number);
}

// The same values in the layout of the result.
Tensor laid_out(Tensor given, const Sizes& sizes, bool channels_last) {
  if (!channels_last) {
    return std::move(given).contiguous();
  }
  Tensor like = Tensor::empty_channels_last(sizes, torch_api().dtype_float32());
  if (given.strides() == like.strides()) {
    return given;
  }
  like.copy_from(given);
  return like;
}

bool is_there(const Tensor& residual) { return residual.sizes() != Sizes{0}; }

}  // namespace

EpilogueArguments::EpilogueArguments(const StackValue* stack)
    : residual(Tensor::from_stack(stack[0])), scale(Tensor::from_stack(stack[4])),
      zero_point(Tensor::from_stack(stack[5])), low(float_of(stack[1])), high(float_of(stack[2])),
      output(static_cast<std::int64_t>(stack[3])), lowest_code(static_cast<std::int64_t>(stack[6])),
      highest_code(static_cast<std::int64_t>(stack[7])) {}

Epilogue::Epilogue(EpilogueArguments&& given, const Sizes& sizes, bool channels_last)
    : output_(static_cast<Output>(given.output)),
      outputs_(sizes[1]),
      places_(sizes.size() == 2 ? 1 : sizes[2] * sizes[3]),
      rows_(sizes[0] * places_),
      outputs_innermost_(sizes.size() == 2 || channels_last),
      low_(given.low),
      high_(given.high),
      residual_(std::move(given.residual)),
      y_(Tensor::empty({0}, torch_api().dtype_uint8())) {
  check(given);
  residual_ = checked_layout(std::move(residual_), "the residual", torch_api().dtype_float32());
  if (is_there(residual_)) {
    require(residual_.sizes() == sizes, "the residual has another shape than the result; it is not broadcast");
    residual_ = laid_out(std::move(residual_), sizes, channels_last);
    residual_values_ = residual_.data<float>();
  }
  if (has_codes()) {
    codes_ = {*given.scale.data<float>(), *given.zero_point.data<std::int32_t>(),
              static_cast<std::int32_t>(given.lowest_code), static_cast<std::int32_t>(given.highest_code),
              output_ == Output::uint8 ? 128 : 0};
  }
  y_ = empty_result(sizes, channels_last);
  to_ = y_.data<void>();
}

void Epilogue::check(const EpilogueArguments& given) const {
  require(given.output >= 0 && given.output <= static_cast<std::int64_t>(Output::signs), "there is no such output");
  require(low_ <= high_, "the lower bound of a clamp is above the upper, or one of them is NaN");
  const std::int64_t count = has_codes() ? 1 : 0;
  require_tensor(given.scale, "the scale of y", {torch_api().dtype_float32()});
  require_tensor(given.zero_point, "the zero point of y", {torch_api().dtype_int32()});
  for (const Tensor* parameter : {&given.scale, &given.zero_point}) {
    require(parameter->is_contiguous(), "the scale and the zero point of y must be contiguous");
    require_count(*parameter, "the scale or the zero point of y", count);
  }
  if (!has_codes()) {
    return;
  }
  const std::int64_t low = given.lowest_code, high = given.highest_code, least = output_ == Output::int8 ? -128 : 0;
  const std::int64_t zero_point = *given.zero_point.data<std::int32_t>();
  const float scale = *given.scale.data<float>();
  require(low < high && low >= least && high <= least + 255, "the codes of y do not fit their dtype");
  require(std::isfinite(scale) && scale > 0, "the scale of y is no positive number");
  require(zero_point >= low && zero_point <= high, "the zero point of y is no code");
}

Tensor Epilogue::empty_result(const Sizes& sizes, bool channels_last) const {
  const TorchApi& api = torch_api();
  if (packs_signs()) {
    Sizes packed = {sizes[0], divided_up(outputs_, 8)};
    packed.insert(packed.begin() + 1, sizes.begin() + 2, sizes.end());
    return Tensor::empty(packed, api.dtype_uint8());
  }
  const std::int32_t dtypes[] = {api.dtype_float32(), api.dtype_bfloat16(), api.dtype_uint8(), api.dtype_int8()};
  const std::int32_t dtype = dtypes[static_cast<std::int64_t>(output_)];
  return channels_last ? Tensor::empty_channels_last(sizes, dtype) : Tensor::empty(sizes, dtype);
}

void Epilogue::write(const Piece& piece) {
  if (outputs_innermost_) {
    return write_rows(piece);
  }
  for (std::int64_t row = 0; row < piece.rows; row += kRows) {
    const std::int64_t rows = piece.rows - row < kRows ? piece.rows - row : kRows;
    for (std::int64_t output = 0; output < piece.outputs; output += kOutputs) {
      const std::int64_t outputs = piece.outputs - output < kOutputs ? piece.outputs - output : kOutputs;
      write_columns({piece.values + row * piece.stride + output, rows, outputs, piece.stride, piece.first_row + row,
                     piece.first_output + output});
    }
  }
}

void Epilogue::write_rows(const Piece& piece) {
  // Whole rows that lie as those of the result do are one row.
  const bool is_one = piece.stride == outputs_ && piece.outputs == outputs_ && (!packs_signs() || outputs_ % 8 == 0);
  const std::int64_t rows = is_one ? 1 : piece.rows, count = is_one ? piece.rows * outputs_ : piece.outputs;
  bool any_nan = false;
  for (std::int64_t i = 0; i < rows; ++i) {
    float* const values = piece.values + i * piece.stride;
    const std::int64_t row = piece.first_row + i, place = row * outputs_ + piece.first_output;
    any_nan = finish(values, count, place) || any_nan;
    if (packs_signs()) {
      pack(values, count, row, piece.first_output);
    } else {
      store(values, count, place);
    }
  }
  if (any_nan) {
    any_nan_ = true;
  }
}

// The values of an output lie side by side; bits do not.
void Epilogue::write_columns(const Piece& piece) {
  float columns[kRows * kOutputs];
  write_transposed(piece.values, piece.rows, piece.outputs, piece.stride, columns, piece.rows);
  const std::int64_t image = piece.first_row / places_, first = piece.first_row % places_;
  bool any_nan = false;
  for (std::int64_t j = 0; j < piece.outputs; ++j) {
    float* const values = columns + j * piece.rows;
    const std::int64_t place = (image * outputs_ + piece.first_output + j) * places_ + first;
    any_nan = finish(values, piece.rows, place) || any_nan;
    if (!packs_signs()) {
      store(values, piece.rows, place);
    }
  }
  if (packs_signs()) {
    write_transposed(columns, piece.outputs, piece.rows, piece.rows, piece.values, piece.stride);
    for (std::int64_t i = 0; i < piece.rows; ++i) {
      pack(piece.values + i * piece.stride, piece.outputs, piece.first_row + i, piece.first_output);
    }
  }
  if (any_nan) {
    any_nan_ = true;
  }
}

void Epilogue::write_all(float* values) {
  const std::int64_t places = outputs_innermost_ ? rows_ : places_, pieces = divided_up(places, kRows);
  const std::int64_t images = places == 0 ? 0 : rows_ / places;
  in_parallel(images * pieces, divided_up(kGrain, kRows * outputs_), [&](std::int64_t begin, std::int64_t end) {
    float turned[kRows * kOutputs];
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t image = i / pieces, first = i % pieces * kRows;
      const std::int64_t rows = places - first < kRows ? places - first : kRows, row = image * places + first;
      if (outputs_innermost_) {
        write_rows({values + row * outputs_, rows, outputs_, outputs_, row, 0});
        continue;
      }
      for (std::int64_t output = 0; output < outputs_; output += kOutputs) {
        const std::int64_t outputs = outputs_ - output < kOutputs ? outputs_ - output : kOutputs;
        const float* const from = values + (image * outputs_ + output) * places + first;
        write_transposed(from, outputs, rows, places, turned, kOutputs);
        write_columns({turned, rows, outputs, kOutputs, row, output});
      }
    }
  });
}

bool Epilogue::finish(float* values, std::int64_t count, std::int64_t place) const {
  const float* const residual = residual_values_ == nullptr ? nullptr : residual_values_ + place;
  return chosen_isa().kernels.epilogue->finish(values, count, residual, low_, high_);
}

void Epilogue::store(const float* values, std::int64_t count, std::int64_t place) const {
  const Kernels& kernels = chosen_isa().kernels;
  if (output_ == Output::float32) {
    std::memcpy(static_cast<float*>(to_) + place, values, static_cast<std::size_t>(count) * sizeof(float));
  } else if (output_ == Output::bfloat16) {
    kernels.epilogue->to_bfloat16(values, count, static_cast<std::uint16_t*>(to_) + place);
  } else {
    auto* const codes = static_cast<std::uint8_t*>(to_) + place;
    kernels.quantize->quantize(values, count, codes_, reinterpret_cast<std::int8_t*>(codes));
    const std::int64_t shifted = codes_.shift == 0 ? 0 : count;
    for (std::int64_t i = 0; i < shifted; ++i) {
      codes[i] ^= 128;  // 128 less, modulo 256, is 128 more
    }
  }
}

void Epilogue::pack(const float* values, std::int64_t count, std::int64_t row, std::int64_t output) const {
  std::uint8_t* const bytes = static_cast<std::uint8_t*>(to_) + row * divided_up(outputs_, 8) + output / 8;
  chosen_isa().kernels.packing->sign_pack(values, count, bytes);
}

Tensor Epilogue::result() && {
  require(!has_codes() || !any_nan_, "the result holds NaN, which has no code");
  return std::move(y_);
}

Tensor finished(EpilogueArguments&& given, const Tensor& y, bool channels_last) {
  Epilogue epilogue(std::move(given), y.sizes(), channels_last);
  const Tensor floats = y.to(torch_api().dtype_float32());
  epilogue.write_all(floats.data<float>());
  return std::move(epilogue).result();
}

Results::Results(EpilogueArguments* given, const Sizes& sizes, bool channels_last, bool whole) {
  if (given != nullptr) {
    epilogue_.emplace(std::move(*given), sizes, channels_last);
  }
  if (given == nullptr || whole) {
    const std::int32_t float32 = torch_api().dtype_float32();
    floats_ = channels_last ? Tensor::empty_channels_last(sizes, float32) : Tensor::empty(sizes, float32);
  }
}

void Results::refuse_bad_scales(const Tensor& scales) const {
  if (epilogue_) {
    return subbyte::refuse_bad_scales(scales);  // a clamp may have hidden what they made
  }
  subbyte::refuse_bad_scales(*floats_, scales);
}

StackValue Results::to_stack() && {
  if (!epilogue_) {
    return std::move(*floats_).to_stack();
  }
  if (floats_) {
    epilogue_->write_all(floats_->data<float>());
  }
  return std::move(*epilogue_).result().to_stack();
}

}  // namespace subbyte
