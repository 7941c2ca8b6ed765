#include "tensor.h"

#include <array>
#include <utility>

namespace subbyte {

namespace {

std::vector<std::int64_t> channels_last_strides(const std::vector<std::int64_t>& sizes) {
  const std::int64_t channels = sizes[1], row = sizes[3] * channels;
  return {sizes[2] * row, 1, row, channels};
}

// PyTorch's own order of its dtypes and devices.
constexpr std::array<const char*, 16> kDtypes = {
    "uint8",     "int8",      "int16",      "int32", "int64",  "float16", "float32", "float64",
    "complex32", "complex64", "complex128", "bool",  "qint8",  "quint8",  "qint32",  "bfloat16"};
constexpr std::array<const char*, 15> kDevices = {"cpu", "cuda", "mkldnn", "opengl", "opencl", "ideep", "hip", "fpga",
                                                  "maia", "xla", "vulkan", "metal",  "xpu",   "mps", "meta"};

template <std::size_t count>
std::string name_in(const std::array<const char*, count>& names, std::int32_t number, const char* kind) {
  const auto index = static_cast<std::size_t>(number);
  return index < count ? names[index] : kind + (" " + std::to_string(number));
}

}  // namespace

std::string dtype_name(std::int32_t dtype) { return name_in(kDtypes, dtype, "dtype"); }

Tensor Tensor::empty(const std::vector<std::int64_t>& sizes, std::int32_t dtype) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t axis = sizes.size(); axis-- > 1;) {
    strides[axis - 1] = strides[axis] * sizes[axis];
  }
  return empty_strided(sizes, strides, dtype);
}

Tensor Tensor::empty_channels_last(const std::vector<std::int64_t>& sizes, std::int32_t dtype) {
  return empty_strided(sizes, channels_last_strides(sizes), dtype);
}

Tensor Tensor::empty_strided(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides,
                             std::int32_t dtype) {
  const TorchApi& api = torch_api();
  TensorHandle handle = nullptr;
  check(api.empty_strided(static_cast<std::int64_t>(sizes.size()), sizes.data(), strides.data(), dtype,
                          api.device_type_cpu(), 0, &handle),
        "empty_strided");
  return Tensor(handle);
}

Tensor::~Tensor() {
  if (handle_ != nullptr) {
    torch_api().delete_tensor(handle_);
  }
}

std::vector<std::int64_t> Tensor::sizes() const {
  std::int64_t dim = 0;
  std::int64_t* sizes = nullptr;
  check(torch_api().dim(handle_, &dim), "get_dim");
  check(torch_api().sizes(handle_, &sizes), "get_sizes");
  return std::vector<std::int64_t>(sizes, sizes + dim);
}

std::vector<std::int64_t> Tensor::strides() const {
  std::int64_t dim = 0;
  std::int64_t* strides = nullptr;
  check(torch_api().dim(handle_, &dim), "get_dim");
  check(torch_api().strides(handle_, &strides), "get_strides");
  return std::vector<std::int64_t>(strides, strides + dim);
}

bool Tensor::is_contiguous() const {
  bool is_contiguous = false;
  check(torch_api().is_contiguous(handle_, &is_contiguous), "is_contiguous");
  return is_contiguous;
}

bool Tensor::is_channels_last() const {
  const std::vector<std::int64_t> all = sizes();
  if (all.size() != 4 || is_contiguous()) {
    return false;
  }
  const std::vector<std::int64_t> given = strides(), wanted = channels_last_strides(all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] != 1 && given[i] != wanted[i]) {  // along one place nothing is ever stepped over
      return false;
    }
  }
  return true;
}

std::int64_t Tensor::count() const {
  std::int64_t count = 0;
  check(torch_api().count(handle_, &count), "get_numel");
  return count;
}

std::int32_t Tensor::dtype() const {
  std::int32_t dtype = 0;
  check(torch_api().dtype(handle_, &dtype), "get_dtype");
  return dtype;
}

bool Tensor::on_cpu() const {
  std::int32_t type = 0;
  check(torch_api().device_type(handle_, &type), "get_device_type");
  return type == torch_api().device_type_cpu();
}

std::string Tensor::device() const {
  std::int32_t type = 0;
  check(torch_api().device_type(handle_, &type), "get_device_type");
  return name_in(kDevices, type, "device type");
}

void Tensor::copy_from(const Tensor& other) { check(torch_api().copy(handle_, other.handle_, 0), "copy_"); }

Tensor Tensor::to(std::int32_t dtype) const {
  Tensor copy = Tensor::empty_strided(sizes(), strides(), dtype);
  copy.copy_from(*this);
  return copy;
}

Tensor Tensor::contiguous() && {
  if (is_contiguous()) {
    return std::move(*this);
  }
  Tensor copy = Tensor::empty(sizes(), dtype());
  copy.copy_from(*this);
  return copy;
}

StackValue Tensor::to_stack() && {
  const TensorHandle handle = handle_;
  handle_ = nullptr;
  return reinterpret_cast<StackValue>(handle);
}

void* Tensor::pointer() const {
  void* data = nullptr;
  check(torch_api().data_pointer(handle_, &data), "get_data_ptr");
  return data;
}

}  // namespace subbyte
