#include "../reference/depthwise_window.h"

namespace subbyte {

const DepthwiseKernels avx2_depthwise = {window};

}  // namespace subbyte
