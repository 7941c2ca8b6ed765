"""The grid of each weight: column by column the same values as rounding the whole weight at once."""

from collections.abc import Iterator

import pytest
import torch
from recovering import WEIGHTS, assert_same_converted, error, every_op, prepared, seen
from torch import Tensor

from subbyte import TensorSpec
from subbyte.algorithms.element_grid import ElementGrid
from subbyte.numerics import Scheme, expand, register_scheme, schemes, stored_scale
from subbyte.spec import QuantParams


class TwoTerms(Scheme):
    """`a1 B1 + a2 B2` of two signs, with two scales a block; grid values are values already."""

    scales_per_block = 2

    def from_range(self, minimum: Tensor, maximum: Tensor, spec: TensorSpec) -> QuantParams:
        largest = torch.maximum(minimum.abs(), maximum.abs())[..., None]
        return QuantParams(stored_scale(torch.cat([largest * 0.5, largest * 0.3], -1), spec))

    def quantize(self, x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        first, _ = self._terms(params, x.shape, spec)
        high = x >= 0
        return high + 2.0 * (torch.where(high, x - first, x + first) >= 0)

    def grid(self, codes: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        first, second = self._terms(params, codes.shape, spec)
        codes = codes.long()
        return first * (2 * (codes & 1) - 1) + second * (2 * (codes >> 1) - 1)

    def grid_scale(self, params: QuantParams) -> Tensor:
        return torch.ones_like(params.scale[..., 0], dtype=torch.float32)

    def _terms(self, params: QuantParams, shape: torch.Size, spec: TensorSpec) -> Iterator[Tensor]:
        return (expand(params.scale[..., index].float(), shape, spec) for index in (0, 1))


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemes, "_SCHEMES", dict(schemes._SCHEMES))
    register_scheme("two_terms", TwoTerms())


SPECS = WEIGHTS | {kind: TensorSpec("uint2", "two_terms", kind) for kind in ("per_channel", "per_group(3)")}


@pytest.mark.parametrize("name", SPECS)
def test_columns_are_those_of_the_whole_weight(name: str) -> None:
    model, data = every_op()
    for op in seen(prepared(model, data, SPECS[name]), data).ops.values():
        grid, weight, expected = ElementGrid.of(op, op.params), op.matrix(op.weight), op.matrix(op.quantized())
        for place in range(weight.shape[2]):
            places = torch.full((len(weight),), place)
            assert torch.equal(grid.round(weight[..., place], places), expected[..., place]), op.name


def test_a_scheme_with_two_scales_can_be_rounded_with_compensation() -> None:
    model, data = every_op()
    spec = TensorSpec("uint2", "two_terms", "per_channel")
    nearest, recovered = (prepared(model, data, spec, each, activation=None) for each in ([], "gptq"))
    assert error(recovered, model, data) < error(nearest, model, data)
    assert_same_converted(recovered, data)
