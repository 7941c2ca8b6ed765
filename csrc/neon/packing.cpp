// NEON. Packing has no byte-wise shift by lane that pays; the reference serves until its rows are written.
#include <arm_neon.h>

#include "../kernels/packing.h"

namespace subbyte {
namespace {

void sign_pack(const float* x, int64_t count, uint8_t* packed) {
  const uint32x4_t low = {1, 2, 4, 8}, high = {16, 32, 64, 128};
  const float32x4_t zero = vdupq_n_f32(0.0f);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const uint32x4_t first = vandq_u32(vcgeq_f32(vld1q_f32(x + i), zero), low);
    const uint32x4_t second = vandq_u32(vcgeq_f32(vld1q_f32(x + i + 4), zero), high);
    *packed++ = static_cast<uint8_t>(vaddvq_u32(vorrq_u32(first, second)));
  }
  if (i < count) {
    reference_packing.sign_pack(x + i, count - i, packed);
  }
}

}  // namespace

const PackingKernels neon_packing = {reference_packing.pack, reference_packing.unpack, sign_pack};

}  // namespace subbyte
