#include "epilogue_loops.h"

namespace subbyte {

const EpilogueKernels reference_epilogue = {finish, to_bfloat16};

}  // namespace subbyte
