#include "../reference/depthwise_window.h"

namespace subbyte {

const DepthwiseKernels reference_depthwise = {window};

}  // namespace subbyte
