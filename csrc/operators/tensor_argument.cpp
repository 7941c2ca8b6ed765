#include "tensor_argument.h"

#include <algorithm>

#include "require.h"

namespace subbyte {

void require_tensor(const Tensor& tensor, const std::string& what, std::initializer_list<std::int32_t> dtypes) {
  require(tensor.on_cpu(), what + " must be on the CPU, not on " + tensor.device());
  const std::int32_t given = tensor.dtype();
  if (std::find(dtypes.begin(), dtypes.end(), given) != dtypes.end()) {
    return;
  }
  std::string taken;
  for (const std::int32_t dtype : dtypes) {
    taken += (taken.empty() ? "" : " or ") + dtype_name(dtype);
  }
  require(false, what + " must be " + taken + ", not " + dtype_name(given));
}

}  // namespace subbyte
