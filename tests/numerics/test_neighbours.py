"""The grid values on both sides of a value."""

import pytest
import torch

from networks import seeded
from subbyte import ConfigError, DataType, QuantizedTensor, TensorSpec, quantize_tensor
from subbyte.numerics import neighbours

SPECS = [
    TensorSpec("int4", granularity="per_channel"),
    TensorSpec("uint3", scheme="asym", granularity="per_group(4)"),
    TensorSpec("int2"),
    TensorSpec("uint2", scheme="sym"),
    TensorSpec("nf4", granularity="per_channel"),
    TensorSpec("ternary"),
    TensorSpec("bint1", granularity="per_channel"),
    TensorSpec("fp4_e2m1", granularity="per_group(8)"),
    TensorSpec(DataType("uneven4", values=(3, -1, 0.5, -0.0))),
]


def _grid(tensor: QuantizedTensor) -> torch.Tensor:
    """Every value that each element could have: [codes, *shape]."""
    spec = tensor.spec
    if spec.dtype.values is not None:
        grids = sorted(set(spec.dtype.values))
        return torch.stack([_of_value(tensor, value) for value in grids])
    return torch.stack([_of_code(tensor, code) for code in range(spec.qmin, spec.qmax + 1)])


def _of_value(tensor: QuantizedTensor, value: float) -> torch.Tensor:
    return value * _spread(tensor.scale, tensor)


def _of_code(tensor: QuantizedTensor, code: int) -> torch.Tensor:
    assert tensor.zero_point is not None
    return (code - _spread(tensor.zero_point, tensor)) * _spread(tensor.scale, tensor)


def _spread(param: torch.Tensor, tensor: QuantizedTensor) -> torch.Tensor:
    if tensor.spec.granularity.kind == "per_group" and param.ndim:
        param = param.repeat_interleave(tensor.spec.granularity.group_size, 1)[:, : tensor.shape[1]]
    return param.expand(tensor.shape)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_against_a_list_of_all_values(spec: TensorSpec) -> None:
    x = seeded((6, 10)) * torch.logspace(-1, 1, 6)[:, None]
    tensor = quantize_tensor(x * 0.7, spec)  # so that some values lie beyond the range
    below, above = neighbours(x, tensor.params, spec)
    grid = _grid(tensor)
    expected_above = torch.where(grid > x, grid, torch.inf).amin(0)
    expected_below = torch.where(grid <= x, grid, -torch.inf).amax(0)
    inside = expected_above.isfinite() & expected_below.isfinite()
    assert bool(inside.any())
    assert torch.allclose(below[inside], expected_below[inside])
    assert torch.allclose(above[inside], expected_above[inside])
    ordered = grid.sort(0).values
    beyond = expected_above.isinf()
    assert torch.allclose(torch.stack([below, above])[:, beyond], ordered[-2:, beyond])
    under = expected_below.isinf()
    assert torch.allclose(torch.stack([below, above])[:, under], ordered[:2, under])


def test_a_scheme_without_order_is_refused() -> None:
    from subbyte import Scheme, register_scheme
    from subbyte.spec import QuantParams

    class Unordered(Scheme):
        def from_range(self, minimum: torch.Tensor, maximum: torch.Tensor, spec: TensorSpec) -> QuantParams:
            return QuantParams(maximum, None)

        def quantize(self, x: torch.Tensor, params: QuantParams, spec: TensorSpec) -> torch.Tensor:
            return x

        def grid(self, codes: torch.Tensor, params: QuantParams, spec: TensorSpec) -> torch.Tensor:
            return codes

    register_scheme("unordered", Unordered())
    with pytest.raises(ConfigError, match="'unordered' does not tell which codes are neighbours"):
        neighbours(torch.ones(3), QuantParams(torch.ones(())), TensorSpec("int4", scheme="unordered"))
