"""binary_linear by Triton, interpreted where there is no GPU: bit for bit, and what it refuses."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from binary_linear_oracle import EVERY_KIND, SIGNS, TERNARY, expected, layer
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.binary_weight import BinaryWeight, Levels
from subbyte.kernels.gpu.binary import binary_linear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def multiply(
    x: Tensor, weight: BinaryWeight, bias: Tensor, levels: Levels, x_scale: Tensor, x_zero_point: Tensor
) -> Tensor:
    parts = (weight.packed, weight.scale, weight.sums, weight.ones, bias, x_scale, x_zero_point)
    numbers = (levels.low, levels.high, levels.count, levels.rounds, weight.outputs, weight.has_masks)
    return binary_linear(x.to(DEVICE), *(part.to(DEVICE) for part in parts), *numbers).cpu()


def run(case: dict[str, Any]) -> Tensor:
    weight = BinaryWeight.of(case["values"], case["scale"])
    bias = weight.in_panels(case["bias"])
    return multiply(case["x"], weight, bias, case["levels"], case["x_scale"], case["x_zero_point"])


@settings(deadline=None, max_examples=25)
@given(
    rows=st.sampled_from([0, 1, 2, 40]),
    outputs=st.integers(1, 80),
    inputs=st.integers(1, 300),
    levels=st.sampled_from(EVERY_KIND),
    zeros=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_the_formula_bit_for_bit(seed: int, zeros: bool, **sizes: Any) -> None:
    case = layer(**sizes, zeros=zeros, seed=seed)
    assert torch.equal(run(case), expected(case))


def test_several_tiles_of_one_row() -> None:
    case = layer(1, 40, 3000, TERNARY, zeros=True)
    assert torch.equal(run(case), expected(case))


@pytest.mark.parametrize("levels", EVERY_KIND)
def test_what_lies_on_a_boundary_or_next_to_it(levels: Levels) -> None:
    for scale in (1.0, 0.1, 3e-39, 7e37):
        middles = torch.tensor([0.0, 0.5, -0.5, 1.5, -1.5, 1e-45]) * scale
        nearby = torch.cat([middles, *(torch.nextafter(middles, torch.tensor(end)) for end in (-torch.inf, torch.inf))])
        x = torch.cat([nearby, -nearby, torch.tensor([torch.inf, -torch.inf])])
        case = layer(len(x), 1, 1, levels)
        case.update(x=x[:, None], x_scale=torch.tensor([scale]), scale=torch.ones(1), bias=torch.zeros(1))
        assert torch.equal(run(case), expected(case))


@pytest.mark.parametrize("levels", EVERY_KIND)
def test_each_row_may_have_parameters_of_its_own(levels: Levels) -> None:
    case = layer(13, 20, 90, levels)
    case["x_scale"] = torch.rand(13) + 0.01
    case["x_zero_point"] = torch.arange(13, dtype=torch.int32) % (levels.high - levels.low + 1) + levels.low
    if not levels.rounds:
        case["x_zero_point"].zero_()
    assert torch.equal(run(case), expected(case))


def test_a_nan_makes_its_row_nan_where_levels_are_rounded_to() -> None:
    case = layer(4, 20, 90, Levels(0, 1, 2, True))
    clean = run(case)
    case["x"][2, 89] = torch.nan
    y = run(case)
    assert y[2].isnan().all()
    assert torch.equal(y[[0, 1, 3]], clean[[0, 1, 3]])


@pytest.mark.parametrize("levels", [SIGNS, TERNARY])
def test_a_nan_is_the_upper_value_of_a_table(levels: Levels) -> None:
    case = layer(4, 20, 90, levels)
    case["x"][2, 89] = 100.0
    want = run(case)
    case["x"][2, 89] = torch.nan
    assert torch.equal(run(case), want)


def test_memory_layout_leaves_no_trace() -> None:
    case = layer(5, 20, 90, SIGNS)
    want = run(case)
    case["x"] = torch.stack([case["x"], case["x"]], 2)[..., 1]
    assert torch.equal(run(case), want)


def test_what_does_not_fit_is_refused() -> None:
    case = layer(3, 20, 90, SIGNS)
    weight, x, one, zero = (
        BinaryWeight.of(case["values"], case["scale"]),
        case["x"],
        torch.ones(1),
        torch.zeros(1).int(),
    )
    none = torch.empty(0)
    for bad_x in (x.double(), x[0], x[:, :0], x[:, :64], torch.randn(3, 129)):
        with pytest.raises(KernelError):
            multiply(bad_x, weight, none, SIGNS, one, zero)
    for change in ({"outputs": 0}, {"outputs": 25}, {"has_masks": True}, {"packed": weight.packed[:-1]}):
        with pytest.raises(KernelError):
            multiply(x, replace(weight, **change), none, SIGNS, one, zero)
    for scale, zero_point in ((-one, zero), (one * torch.nan, zero), (one.expand(2), zero), (one, zero + 1)):
        with pytest.raises(KernelError):
            multiply(x, weight, none, SIGNS, scale, zero_point)
    with pytest.raises(KernelError):
        multiply(x, weight, torch.zeros(7), SIGNS, one, zero)
    parts = (weight.packed, weight.scale, weight.sums, weight.ones, none, one, zero)
    with pytest.raises(KernelError, match="one device"):
        binary_linear(x.to("meta"), *parts, -1, 1, 2, False, 20, False)
