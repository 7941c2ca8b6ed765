// Linear layers by NEON with `sdot`, which sums four products of bytes at once.
#include "tile_dotprod.h"

#include "linear_rows.h"

namespace subbyte {

const LinearKernels neon_dotprod_linear = {linear, sum, sums};

}  // namespace subbyte
