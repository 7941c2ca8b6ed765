// Packing against the reference.
#include <cmath>

#include "agreement.h"

namespace conformance {

bool packing_agrees(const subbyte::Kernels& kernels, Random& random) {
  const std::int64_t count = between(random, 0, 300);
  const int bits = static_cast<int>(between(random, 1, 8));
  const Bytes codes = random_bytes(random, count);
  const std::size_t packed_size = static_cast<std::size_t>((count * bits + 7) / 8);
  Bytes want(packed_size), got(packed_size);
  subbyte::reference_packing.pack(codes.data(), count, bits, want.data());
  kernels.packing->pack(codes.data(), count, bits, got.data());
  if (got != want) {
    return false;
  }
  for (const bool is_signed : {false, true}) {
    Bytes back(codes.size()), again(codes.size());
    subbyte::reference_packing.unpack(want.data(), count, bits, is_signed, back.data());
    kernels.packing->unpack(want.data(), count, bits, is_signed, again.data());
    if (back != again) {
      return false;
    }
  }
  return true;
}

bool signs_agree(const subbyte::Kernels& kernels, Random& random) {
  const float special[] = {0.0f, -0.0f, 1e-45f, -1e-45f, NAN, INFINITY, -INFINITY};
  std::vector<float> x(static_cast<std::size_t>(between(random, 0, 100)));
  for (float& value : x) {
    value = random() % 2 == 0 ? special[random() % 7] : static_cast<float>(between(random, -9, 9));
  }
  Bytes want((x.size() + 7) / 8), got(want.size());
  subbyte::reference_packing.sign_pack(x.data(), static_cast<std::int64_t>(x.size()), want.data());
  kernels.packing->sign_pack(x.data(), static_cast<std::int64_t>(x.size()), got.data());
  return got == want;
}

}  // namespace conformance
