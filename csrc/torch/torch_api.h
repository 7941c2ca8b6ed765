// The part of PyTorch's stable C interface that we use, found in the libtorch_cpu that the process has loaded.
//
// Declared here, not included: the library builds without PyTorch, and one build serves every version that has these.
#pragma once

#include <cstdint>

namespace subbyte {

struct TensorObject;
struct LibraryObject;
using TensorHandle = TensorObject*;
using LibraryHandle = LibraryObject*;
using StackValue = std::uint64_t;  // an argument or result: an integer, or a tensor's handle
using BoxedKernel = void (*)(StackValue* stack, std::uint64_t argument_count, std::uint64_t result_count);
using RangeFunction = void (*)(std::int64_t begin, std::int64_t end, void* context);
using Status = std::int32_t;  // 0: success

struct TorchApi {
  Status (*library_init_fragment)(const char* name_space, const char* file, std::uint32_t line, LibraryHandle*);
  Status (*library_init_impl)(const char* name_space, const char* key, const char* file, std::uint32_t line,
                              LibraryHandle*);
  Status (*library_def)(LibraryHandle, const char* schema);
  Status (*library_impl)(LibraryHandle, const char* name, BoxedKernel);
  Status (*delete_tensor)(TensorHandle);
  Status (*data_pointer)(TensorHandle, void**);
  Status (*dim)(TensorHandle, std::int64_t*);
  Status (*sizes)(TensorHandle, std::int64_t**);
  Status (*count)(TensorHandle, std::int64_t*);
  Status (*strides)(TensorHandle, std::int64_t**);
  Status (*dtype)(TensorHandle, std::int32_t*);
  Status (*device_type)(TensorHandle, std::int32_t*);
  Status (*is_contiguous)(TensorHandle, bool*);
  Status (*empty_strided)(std::int64_t ndim, const std::int64_t* sizes, const std::int64_t* strides, std::int32_t dtype,
                          std::int32_t device_type, std::int32_t device_index, TensorHandle*);
  Status (*copy)(TensorHandle self, TensorHandle source, std::int32_t non_blocking);
  Status (*parallel_for)(std::int64_t begin, std::int64_t end, std::int64_t grain, RangeFunction, void* context);
  std::int32_t (*dtype_uint8)();
  std::int32_t (*dtype_int8)();
  std::int32_t (*dtype_int32)();
  std::int32_t (*dtype_int64)();
  std::int32_t (*dtype_float32)();
  std::int32_t (*dtype_bfloat16)();
  std::int32_t (*device_type_cpu)();
};

// Throws std::runtime_error where libtorch_cpu is not loaded or lacks a function.
const TorchApi& torch_api();

// Throws std::runtime_error where a call failed.
void check(Status status, const char* call);

}  // namespace subbyte
