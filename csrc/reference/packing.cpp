// Packing in plain C++.
#include "../kernels/packing.h"

namespace subbyte {
namespace {

void pack(const uint8_t* codes, int64_t count, int bits, uint8_t* packed) {
  const uint32_t mask = (1u << bits) - 1;
  uint32_t pending = 0;
  int pending_bits = 0;
  for (int64_t i = 0; i < count; ++i) {
    pending |= (codes[i] & mask) << pending_bits;
    pending_bits += bits;
    if (pending_bits >= 8) {
      *packed++ = static_cast<uint8_t>(pending);
      pending >>= 8;
      pending_bits -= 8;
    }
  }
  if (pending_bits > 0) {
    *packed = static_cast<uint8_t>(pending);
  }
}

void unpack(const uint8_t* packed, int64_t count, int bits, bool is_signed, uint8_t* codes) {
  const uint32_t mask = (1u << bits) - 1;
  const uint32_t sign = is_signed ? 1u << (bits - 1) : 0;
  uint32_t pending = 0;
  int pending_bits = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (pending_bits < bits) {
      pending |= static_cast<uint32_t>(*packed++) << pending_bits;
      pending_bits += 8;
    }
    codes[i] = static_cast<uint8_t>(((pending & mask) ^ sign) - sign);
    pending >>= bits;
    pending_bits -= bits;
  }
}

void sign_pack(const float* x, int64_t count, uint8_t* packed) {
  for (int64_t first = 0; first < count; first += 8) {
    const int64_t end = first + 8 < count ? first + 8 : count;
    uint8_t byte = 0;
    for (int64_t i = first; i < end; ++i) {
      byte = static_cast<uint8_t>(byte | (x[i] >= 0.0f) << (i - first));
    }
    *packed++ = byte;
  }
}

}  // namespace

const PackingKernels reference_packing = {pack, unpack, sign_pack};

}  // namespace subbyte
