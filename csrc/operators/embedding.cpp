// embedding_codes: rows of a packed table, looked up and dequantized; no other row is unpacked.
#include <string>
#include <utility>
#include <vector>

#include "../isa.h"
#include "operators.h"
#include "parallel.h"
#include "product.h"
#include "require.h"

namespace subbyte {
namespace {

constexpr std::int64_t kGrain = 1 << 12;  // values that one thread writes at least

struct Table {
  const std::uint8_t* packed;
  const float* scales;             // [rows or 1, groups]
  const std::int32_t* zero_points; // the same, or null: 0
  const float* values;             // what codes stand for, or null: themselves
  std::int64_t rows, columns, groups, group_size;
  int bits;
  bool is_signed, by_row;

  // The codes of one row. Where rows do not begin on a byte, those before it in its first 8 codes are unpacked too.
  const std::uint8_t* unpack(std::int64_t row, std::vector<std::uint8_t>& codes) const {
    const std::int64_t first = row * columns, before = first % 8;
    const auto& packing = *chosen_isa().kernels.packing;
    packing.unpack(packed + first / 8 * bits, before + columns, bits, is_signed, codes.data());
    return codes.data() + before;
  }

  void write(std::int64_t row, std::vector<std::uint8_t>& room, float* to) const {
    const std::uint8_t* const codes = unpack(row, room);
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::int64_t at = (by_row ? row * groups : 0) + group, first = group * group_size;
      const std::int64_t end = first + group_size < columns ? first + group_size : columns;
      const float scale = scales[at], zero = zero_points == nullptr ? 0.0f : static_cast<float>(zero_points[at]);
      if (values != nullptr) {
        for (std::int64_t i = first; i < end; ++i) {
          to[i] = values[codes[i]] * scale;
        }
      } else if (is_signed) {
        for (std::int64_t i = first; i < end; ++i) {
          to[i] = (static_cast<float>(static_cast<std::int8_t>(codes[i])) - zero) * scale;
        }
      } else {
        for (std::int64_t i = first; i < end; ++i) {
          to[i] = (static_cast<float>(codes[i]) - zero) * scale;
        }
      }
    }
  }
};

void embedding_codes(StackValue* stack, std::uint64_t, std::uint64_t) {
  const TorchApi& api = torch_api();
  std::vector<Tensor> tensors = tensors_of(stack, 5);
  const Tensor index = checked(std::move(tensors[0]), "the index", api.dtype_int64());
  const Tensor packed = checked(std::move(tensors[1]), "the packed table", api.dtype_uint8());
  const Tensor scale = checked(std::move(tensors[2]), "the scale", api.dtype_float32());
  const Tensor zero_point = checked(std::move(tensors[3]), "the zero point", api.dtype_int32());
  const Tensor values = checked(std::move(tensors[4]), "the table of values", api.dtype_float32());
  const auto bits = static_cast<std::int64_t>(stack[5]);
  require(bits >= 1 && bits <= 8, "codes take 1..8 bits, not " + std::to_string(bits));
  Table table{};
  table.bits = static_cast<int>(bits), table.is_signed = (stack[6] & 1) != 0;
  table.rows = static_cast<std::int64_t>(stack[7]), table.columns = static_cast<std::int64_t>(stack[8]);
  table.group_size = static_cast<std::int64_t>(stack[9]);
  require(index.sizes().size() == 1, "the index has one axis");
  require(table.rows >= 0 && table.columns > 0 && table.group_size > 0, "a table has columns, and groups hold something");
  require(table.rows < (std::int64_t{1} << 40) / table.columns, "the table is too large");
  table.groups = divided_up(table.columns, table.group_size);
  require_count(packed, "the packed table", divided_up(table.rows * table.columns * bits, 8));
  table.by_row = scale.count() != table.groups || table.rows == 1;
  require_count(scale, "the scale", (table.by_row ? table.rows : 1) * table.groups);
  require_count(zero_point, "the zero point", zero_point.count() == 0 ? 0 : scale.count());
  const bool has_values = values.count() != 0;
  require_count(values, "the table of values", has_values ? std::int64_t{1} << bits : 0);
  require(!has_values || !table.is_signed, "codes that stand for values are counted from 0");
  require(!has_values || zero_point.count() == 0,
          "a table of values has no zero points, got " + std::to_string(zero_point.count()) +
              "; pass an empty zero point, or subtract it from the values");
  table.packed = packed.data<std::uint8_t>(), table.scales = scale.data<float>();
  table.zero_points = zero_point.count() == 0 ? nullptr : zero_point.data<std::int32_t>();
  table.values = has_values ? values.data<float>() : nullptr;
  const std::int64_t count = index.count();
  const auto* rows = index.data<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    require(rows[i] >= 0 && rows[i] < table.rows, "index " + std::to_string(rows[i]) + " is out of range: the table has " +
                                                      std::to_string(table.rows) + " rows");
  }
  Tensor y = Tensor::empty({count, table.columns}, api.dtype_float32());
  auto* const to = y.data<float>();
  in_parallel(count, divided_up(kGrain, table.columns), [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint8_t> room(static_cast<std::size_t>(table.columns + 8));
    for (std::int64_t i = begin; i < end; ++i) {
      table.write(rows[i], room, to + i * table.columns);
    }
  });
  refuse_bad_scales(y, scale);
  stack[0] = std::move(y).to_stack();
}

}  // namespace

std::vector<Operator> embedding_operators() {
  return {operator_of<embedding_codes>(
      "embedding_codes(Tensor index, Tensor packed, Tensor scale, Tensor zero_point, Tensor values, int bits, bool "
      "signed, int rows, int columns, int group_size) -> Tensor")};
}

}  // namespace subbyte
