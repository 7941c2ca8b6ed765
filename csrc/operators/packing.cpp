// pack_codes, unpack_codes and sign_pack: what they accept, and the work cut into pieces for threads.
#include <string>
#include <utility>

#include "../isa.h"
#include "operators.h"
#include "require.h"
#include "tensor_argument.h"
#include "../torch/tensor.h"

namespace subbyte {
namespace {

// Codes that one thread takes at least; a multiple of 8, so that each piece begins on a byte.
constexpr std::int64_t kGrain = 1 << 15;

void check_bits(std::int64_t bits) {
  require(bits >= 1 && bits <= 8, "codes take 1..8 bits, not " + std::to_string(bits));
}

std::int64_t packed_size(std::int64_t count, std::int64_t bits) { return (count * bits + 7) / 8; }

// Runs `work(first, count)` over pieces of `count` that begin on a multiple of 8.
template <typename Work>
void in_pieces(std::int64_t count, const Work& work) {
  struct Context {
    const Work& work;
    std::int64_t count;
  } context{work, count};
  const auto run = [](std::int64_t begin, std::int64_t end, void* given) {
    const Context& all = *static_cast<Context*>(given);
    const std::int64_t last = 8 * end < all.count ? 8 * end : all.count;
    all.work(8 * begin, last - 8 * begin);
  };
  check(torch_api().parallel_for(0, (count + 7) / 8, kGrain / 8, run, &context), "parallel_for");
}

void pack(StackValue* stack, std::uint64_t, std::uint64_t) {
  Tensor given = Tensor::from_stack(stack[0]);
  const auto bits = static_cast<std::int64_t>(stack[1]);
  check_bits(bits);
  const TorchApi& api = torch_api();
  require_tensor(given, "codes", {api.dtype_uint8(), api.dtype_int8()});
  const Tensor codes = std::move(given).contiguous();
  const std::int64_t count = codes.count();
  Tensor packed = Tensor::empty({packed_size(count, bits)}, api.dtype_uint8());
  const auto* from = codes.data<std::uint8_t>();
  auto* to = packed.data<std::uint8_t>();
  const PackingKernels& kernels = *chosen_isa().kernels.packing;
  in_pieces(count, [&](std::int64_t first, std::int64_t piece) {
    kernels.pack(from + first, piece, static_cast<int>(bits), to + first / 8 * bits);
  });
  stack[0] = std::move(packed).to_stack();
}

void unpack(StackValue* stack, std::uint64_t, std::uint64_t) {
  Tensor given = Tensor::from_stack(stack[0]);
  const auto bits = static_cast<std::int64_t>(stack[1]), count = static_cast<std::int64_t>(stack[2]);
  const bool is_signed = (stack[3] & 1) != 0;
  check_bits(bits);
  const TorchApi& api = torch_api();
  require_tensor(given, "packed codes", {api.dtype_uint8()});
  require(given.sizes().size() == 1, "packed codes are one axis of uint8");
  require(count >= 0, "the count of codes is " + std::to_string(count));
  require(count <= given.count() * 8 / bits, std::to_string(count) + " codes of " + std::to_string(bits) +
                                                 " bits do not fit in " + std::to_string(given.count()) + " bytes");
  const Tensor packed = std::move(given).contiguous();
  Tensor codes = Tensor::empty({count}, is_signed ? api.dtype_int8() : api.dtype_uint8());
  const auto* from = packed.data<std::uint8_t>();
  auto* to = codes.data<std::uint8_t>();
  const PackingKernels& kernels = *chosen_isa().kernels.packing;
  in_pieces(count, [&](std::int64_t first, std::int64_t piece) {
    kernels.unpack(from + first / 8 * bits, piece, static_cast<int>(bits), is_signed, to + first);
  });
  stack[0] = std::move(codes).to_stack();
}

void sign_pack(StackValue* stack, std::uint64_t, std::uint64_t) {
  Tensor given = Tensor::from_stack(stack[0]);
  const TorchApi& api = torch_api();
  require_tensor(given, "x", {api.dtype_float32()});
  const Tensor x = std::move(given).contiguous();
  const std::int64_t count = x.count();
  Tensor packed = Tensor::empty({packed_size(count, 1)}, api.dtype_uint8());
  const auto* from = x.data<float>();
  auto* to = packed.data<std::uint8_t>();
  const PackingKernels& kernels = *chosen_isa().kernels.packing;
  in_pieces(count, [&](std::int64_t first, std::int64_t piece) { kernels.sign_pack(from + first, piece, to + first / 8); });
  stack[0] = std::move(packed).to_stack();
}

}  // namespace

std::vector<Operator> packing_operators() {
  return {
      operator_of<pack>("pack_codes(Tensor codes, int bits) -> Tensor"),
      operator_of<unpack>("unpack_codes(Tensor packed, int bits, int count, bool signed) -> Tensor"),
      operator_of<sign_pack>("sign_pack(Tensor x) -> Tensor"),
  };
}

}  // namespace subbyte
