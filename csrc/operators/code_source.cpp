#include "code_source.h"

#include <algorithm>

#include "../isa.h"
#include "require.h"

namespace subbyte {
namespace {

bool are_codes(const Tensor& x) {
  return x.dtype() == torch_api().dtype_uint8() || x.dtype() == torch_api().dtype_int8();
}

// Whether all codes are in the range, of which their dtype holds those from `least` to `least` + 255. Signed or not, bytes
// count modulo 256, as does how far each is above the lowest code that may be.
bool shift_codes(const std::uint8_t* from, std::int64_t count, const Affine& affine, std::int32_t least, std::int8_t* codes) {
  const std::int32_t lowest = std::max(affine.low, least), span = std::min(affine.high, least + 255) - lowest;
  const auto low = static_cast<std::uint8_t>(lowest), shift = static_cast<std::uint8_t>(affine.shift);
  std::uint8_t highest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto above = static_cast<std::uint8_t>(from[i] - low);
    highest = above > highest ? above : highest;
    codes[i] = static_cast<std::int8_t>(from[i] - shift);
  }
  return count == 0 || highest <= span;
}

}  // namespace

CodeSource::CodeSource(const Tensor& x)
    : numbers_(are_codes(x) ? static_cast<const void*>(x.data<std::uint8_t>()) : x.data<float>()), are_codes_(are_codes(x)),
      are_signed_(x.dtype() == torch_api().dtype_int8()) {}

bool CodeSource::takes(const Tensor& x) { return are_codes(x) || x.dtype() == torch_api().dtype_float32(); }

bool CodeSource::write(std::int64_t first, std::int64_t count, const Affine& affine, std::int8_t* codes) const {
  if (!are_codes_) {
    return chosen_isa().kernels.quantize->quantize(static_cast<const float*>(numbers_) + first, count, affine, codes);
  }
  if (!shift_codes(static_cast<const std::uint8_t*>(numbers_) + first, count, affine, are_signed_ ? -128 : 0, codes)) {
    any_outside_ = true;
  }
  return false;
}

void CodeSource::refuse_what_is_outside() const {
  require(!any_outside_, "x has codes that are not between the lowest and the highest");
}

}  // namespace subbyte
