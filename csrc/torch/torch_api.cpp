#include "torch_api.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace subbyte {
namespace {

template <typename Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr) {
    throw std::runtime_error(std::string("this PyTorch has no ") + name + "; subbyte's kernels need 2.10 or newer");
  }
}

TorchApi load() {
  void* library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_NOW);
  if (library == nullptr) {
    throw std::runtime_error("libtorch_cpu.so is not loaded; import torch first");
  }
  TorchApi api{};
  find(library, "aoti_torch_library_init_fragment", api.library_init_fragment);
  find(library, "aoti_torch_library_init_impl", api.library_init_impl);
  find(library, "aoti_torch_library_def", api.library_def);
  find(library, "aoti_torch_library_impl", api.library_impl);
  find(library, "aoti_torch_delete_tensor_object", api.delete_tensor);
  find(library, "aoti_torch_get_data_ptr", api.data_pointer);
  find(library, "aoti_torch_get_dim", api.dim);
  find(library, "aoti_torch_get_sizes", api.sizes);
  find(library, "aoti_torch_get_numel", api.count);
  find(library, "aoti_torch_get_strides", api.strides);
  find(library, "aoti_torch_get_dtype", api.dtype);
  find(library, "aoti_torch_get_device_type", api.device_type);
  find(library, "aoti_torch_is_contiguous", api.is_contiguous);
  find(library, "aoti_torch_empty_strided", api.empty_strided);
  find(library, "aoti_torch_copy_", api.copy);
  find(library, "torch_parallel_for", api.parallel_for);
  find(library, "aoti_torch_dtype_uint8", api.dtype_uint8);
  find(library, "aoti_torch_dtype_int8", api.dtype_int8);
  find(library, "aoti_torch_dtype_int32", api.dtype_int32);
  find(library, "aoti_torch_dtype_int64", api.dtype_int64);
  find(library, "aoti_torch_dtype_float32", api.dtype_float32);
  find(library, "aoti_torch_dtype_bfloat16", api.dtype_bfloat16);
  find(library, "aoti_torch_device_type_cpu", api.device_type_cpu);
  return api;
}

}  // namespace

const TorchApi& torch_api() {
  static const TorchApi api = load();
  return api;
}

void check(Status status, const char* call) {
  if (status != 0) {
    throw std::runtime_error(std::string("PyTorch's ") + call + " failed");
  }
}

}  // namespace subbyte
