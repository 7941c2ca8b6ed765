// A tensor of PyTorch, owned.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "torch_api.h"

namespace subbyte {

// As PyTorch calls it: `float32`, ...
std::string dtype_name(std::int32_t dtype);

class Tensor {
 public:
  // Takes over what an argument of a boxed kernel holds.
  static Tensor from_stack(StackValue value) { return Tensor(reinterpret_cast<TensorHandle>(value)); }
  static Tensor empty(const std::vector<std::int64_t>& sizes, std::int32_t dtype);
  // Of four axes, the second the innermost: `channels_last`.
  static Tensor empty_channels_last(const std::vector<std::int64_t>& sizes, std::int32_t dtype);
  static Tensor empty_strided(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides,
                              std::int32_t dtype);

  Tensor(Tensor&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Tensor();

  std::vector<std::int64_t> sizes() const;
  std::vector<std::int64_t> strides() const;
  std::int64_t count() const;
  std::int32_t dtype() const;
  bool on_cpu() const;
  // As PyTorch calls it: `cpu`, `cuda`, `meta`, ...
  std::string device() const;

  bool is_contiguous() const;
  // Whether it is `channels_last` and not row-major too.
  bool is_channels_last() const;

  // Takes the values of another of the same sizes.
  void copy_from(const Tensor& other);

  // A copy of another type, in the same places.
  Tensor to(std::int32_t dtype) const;

  // This tensor, or a copy in row-major order.
  Tensor contiguous() &&;

  template <typename T>
  T* data() const {
    return static_cast<T*>(pointer());
  }

  // Gives the tensor up, as the result of a boxed kernel.
  StackValue to_stack() &&;

 private:
  explicit Tensor(TensorHandle handle) : handle_(handle) {}
  void* pointer() const;

  TensorHandle handle_;
};

}  // namespace subbyte
