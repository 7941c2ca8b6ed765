// to_panels: a weight's codes brought into the order of kernels/linear.h.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "../torch/huge_pages.h"
#include "operators.h"
#include "parallel.h"
#include "product.h"
#include "require.h"

namespace subbyte {
namespace {

// One block of a panel: 32 inputs of 16 outputs, of which `inputs` and `outputs` are there.
void write_block(const std::uint8_t* codes, std::int64_t stride, std::int64_t outputs, std::int64_t inputs, int bits,
                 std::uint8_t* to) {
  for (std::int64_t output = 0; output < outputs; ++output) {
    for (std::int64_t input = 0; input < inputs; ++input) {
      const int code = codes[output * stride + input];
      const std::int64_t step = input / kStep, byte = output * kStep + input % kStep;
      std::uint8_t* words = to;
      for (int width = 8, shift = 0; width > 0; width /= 2) {
        if ((bits & width) == 0) {
          continue;
        }
        const std::int64_t in_word = 8 / width;
        const int part = code >> shift & ((1 << width) - 1);
        std::uint8_t& place = words[64 * (step / in_word) + byte];
        place = static_cast<std::uint8_t>(place | part << (step % in_word * width));
        shift += width;
        words += 64 * width;
      }
    }
  }
}

void to_panels(StackValue* stack, std::uint64_t, std::uint64_t) {
  const TorchApi& api = torch_api();
  std::vector<Tensor> tensors = tensors_of(stack, 2);
  const Tensor codes = checked(std::move(tensors[0]), "the codes", api.dtype_uint8());
  const Tensor segments = checked(std::move(tensors[1]), "the segments", api.dtype_int64());
  const auto bits = static_cast<std::int64_t>(stack[2]);
  const std::vector<std::int64_t> sizes = codes.sizes();
  require(bits >= 1 && bits <= 8, "codes take 1..8 bits, not " + std::to_string(bits));
  require(segments.sizes().size() == 1, "the segments are a list of lengths");
  require(sizes.size() == 2, "codes have rows and columns");
  const std::int64_t outputs = sizes[0], inputs = sizes[1], panels = divided_up(outputs, kPanel);
  std::int64_t blocks = 0, all = 0;
  const auto* lengths = segments.data<std::int64_t>();
  for (std::int64_t i = 0; i < segments.count(); ++i) {
    require(lengths[i] > 0 && lengths[i] <= inputs, "a segment has inputs, and no more than there are");
    blocks += divided_up(lengths[i], kStep * kBlockSteps);
    all += lengths[i];
  }
  require(all == inputs, "segments cover all inputs");
  const std::int64_t block_size = block_bytes(static_cast<int>(bits));
  Tensor packed = Tensor::empty({panels * blocks * block_size}, api.dtype_uint8());
  advise_huge_pages(packed.data<std::uint8_t>(), static_cast<std::size_t>(packed.count()));
  in_parallel(panels, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const std::int64_t here = outputs - panel * kPanel < kPanel ? outputs - panel * kPanel : kPanel;
      const std::uint8_t* from = codes.data<std::uint8_t>() + panel * kPanel * inputs;
      std::uint8_t* to = packed.data<std::uint8_t>() + panel * blocks * block_size;
      std::memset(to, 0, static_cast<std::size_t>(blocks * block_size));
      for (std::int64_t i = 0; i < segments.count(); ++i) {
        for (std::int64_t left = lengths[i]; left > 0; left -= kStep * kBlockSteps, to += block_size) {
          const std::int64_t count = left < kStep * kBlockSteps ? left : kStep * kBlockSteps;
          write_block(from, inputs, here, count, static_cast<int>(bits), to);
          from += count;
        }
      }
    }
  });
  stack[0] = std::move(packed).to_stack();
}

}  // namespace

std::vector<Operator> panel_operators() {
  return {operator_of<to_panels>("to_panels(Tensor codes, Tensor segments, int bits) -> Tensor")};
}

}  // namespace subbyte
