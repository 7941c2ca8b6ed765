#include "../reference/depthwise_window.h"

namespace subbyte {

const DepthwiseKernels avx512_depthwise = {window};

}  // namespace subbyte
