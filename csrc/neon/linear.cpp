// Linear layers by the NEON that every 64-bit ARM has.
#include "tile.h"

#include "linear_rows.h"

namespace subbyte {

const LinearKernels neon_linear = {linear, sum, sums};

}  // namespace subbyte
