#include "../reference/epilogue_loops.h"

namespace subbyte {

const EpilogueKernels avx2_epilogue = {finish, to_bfloat16};

}  // namespace subbyte
