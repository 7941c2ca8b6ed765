"""Compensated rounding, against a dense computation that inverts a matrix for each column."""

import pytest
import torch
from torch import Tensor

from subbyte.algorithms.compensated_rounding import CompensatedRounding, damped
from subbyte.errors import CalibrationError


def _to_steps(column: Tensor, places: Tensor) -> Tensor:
    """Steps that differ from column to column, as groups have them."""
    step = 0.5 + 0.1 * places[:, None].to(column.dtype)
    return (column / step).round() * step


def _dense(weight: Tensor, hessian: Tensor, order: Tensor) -> Tensor:
    """Of one matrix: the inverse Hessian of the columns that are left, inverted anew each time."""
    weight, rounded = weight.clone(), torch.empty_like(weight)
    for done in range(len(order)):
        left = order[done:]
        inverse = torch.linalg.inv(hessian[left][:, left])
        place = left[0]
        rounded[:, place] = _to_steps(weight[None, :, place], place[None])[0]
        error = (weight[:, place] - rounded[:, place]) / inverse[0, 0]
        weight[:, left] -= torch.outer(error, inverse[0])
    return rounded


def _case(seed: int, inputs: int = 11) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(2, inputs, inputs, generator=generator, dtype=torch.float64)
    x = mixing @ torch.randn(2, inputs, 40, generator=generator, dtype=torch.float64)
    weight = 3 * torch.randn(2, 5, inputs, generator=generator, dtype=torch.float64)
    return weight, x @ x.transpose(1, 2) / 40


@pytest.mark.parametrize("block_size", [1, 4, 100])
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_the_dense_computation_in_any_order(seed: int, block_size: int) -> None:
    weight, hessian = _case(seed)
    hessian = damped(hessian, 0.01)
    order = torch.stack([torch.randperm(11, generator=torch.Generator().manual_seed(seed + group)) for group in (0, 1)])
    rounded = CompensatedRounding.of(hessian, order, block_size)(weight, _to_steps).values
    for group in (0, 1):
        torch.testing.assert_close(rounded[group], _dense(weight[group], hessian[group], order[group]))


@pytest.mark.parametrize("block_size", [1, 4, 100])
def test_errors_are_the_objective_of_each_row(block_size: int) -> None:
    weight, hessian = _case(5)
    hessian = damped(hessian, 0.01)
    order = torch.arange(10, -1, -1).expand(2, -1)
    rounded = CompensatedRounding.of(hessian, order, block_size)(weight, _to_steps)
    difference = rounded.values - weight
    expected = (difference @ hessian @ difference.transpose(1, 2)).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(rounded.errors, expected)


def test_makes_the_output_error_smaller_than_the_nearest_values_do() -> None:
    weight, hessian = _case(2)
    order = torch.arange(11).expand(2, -1)
    rounded = CompensatedRounding.of(damped(hessian, 0.01), order, 4)(weight, _to_steps).values
    nearest = torch.stack([_to_steps(weight[:, :, place], order[:, place]) for place in range(11)], 2)
    error, before = ((each - weight) @ hessian @ (each - weight).transpose(1, 2) for each in (rounded, nearest))
    for group in (0, 1):
        assert error[group].trace() < 0.9 * before[group].trace()


def test_inputs_that_do_not_hang_together_are_rounded_to_the_nearest() -> None:
    weight, _ = _case(3)
    hessian = torch.diag_embed(torch.rand(2, 11, dtype=torch.float64) + 0.1)
    hessian[0, 4, 4] = 0  # an input that was always zero
    order = torch.arange(11).expand(2, -1)
    rounded = CompensatedRounding.of(damped(hessian, 0.01), order, 4)(weight, _to_steps).values
    for place in range(11):
        assert torch.equal(rounded[:, :, place], _to_steps(weight[:, :, place], order[:, place]))


def test_a_hessian_without_inverse_is_refused() -> None:
    flat, order = torch.ones(2, 11, 11, dtype=torch.float64), torch.arange(11).expand(2, -1)
    with pytest.raises(CalibrationError, match="raise damping"):
        CompensatedRounding.of(flat, order, 4)
    CompensatedRounding.of(damped(flat, 1e-4), order, 4)
