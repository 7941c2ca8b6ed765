#include "../reference/epilogue_loops.h"

namespace subbyte {

const EpilogueKernels avx512_epilogue = {finish, to_bfloat16};

}  // namespace subbyte
