"""binary_linear: every instruction set against whole numbers, and what it refuses."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from binary_linear_oracle import EVERY_KIND, SIGNS, TERNARY, expected, layer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels import binary_linear as in_torch
from subbyte.kernels.binary_linear import binary_linear
from subbyte.kernels.binary_weight import BinaryWeight, Levels

IN_TORCH = {"binary_linear": in_torch._binary_linear}


def run(case: dict[str, Any]) -> Tensor:
    weight = BinaryWeight.of(case["values"], case["scale"])
    bias = weight.in_panels(case["bias"])
    return binary_linear(case["x"], weight, bias, case["levels"], case["x_scale"], case["x_zero_point"])


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(0, 20),
    outputs=st.integers(1, 80),
    inputs=st.integers(1, 300),
    levels=st.sampled_from(EVERY_KIND),
    zeros=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_the_formula_bit_for_bit(kernels: str, seed: int, zeros: bool, **sizes: Any) -> None:
    case = layer(**sizes, zeros=zeros, seed=seed)
    assert torch.equal(run(case), expected(case))


@pytest.mark.parametrize("levels", EVERY_KIND)
def test_the_largest_sums(kernels: str, levels: Levels) -> None:
    case = layer(5, 9, 40_000, levels)
    for sign in (-1, 1):
        case["x"].fill_(1e6)
        case["values"].fill_(sign)
        assert torch.equal(run(case), expected(case))


@pytest.mark.parametrize("levels", EVERY_KIND)
def test_what_lies_on_a_boundary_or_next_to_it(kernels: str, levels: Levels) -> None:
    for scale in (1.0, 0.1, 3e-39, 7e37):
        middles = torch.tensor([0.0, 0.5, -0.5, 1.5, -1.5, 1e-45]) * scale
        nearby = torch.cat([middles, *(torch.nextafter(middles, torch.tensor(end)) for end in (-torch.inf, torch.inf))])
        x = torch.cat([nearby, -nearby, torch.tensor([torch.inf, -torch.inf])])
        case = layer(len(x), 1, 1, levels)
        case.update(x=x[:, None], x_scale=torch.tensor([scale]), scale=torch.ones(1), bias=torch.zeros(1))
        assert torch.equal(run(case), expected(case))


@pytest.mark.parametrize("levels", EVERY_KIND)
def test_each_row_may_have_parameters_of_its_own(kernels: str, levels: Levels) -> None:
    case = layer(13, 20, 90, levels)
    case["x_scale"] = torch.rand(13) + 0.01
    case["x_zero_point"] = torch.arange(13, dtype=torch.int32) % (levels.high - levels.low + 1) + levels.low
    if not levels.rounds:
        case["x_zero_point"].zero_()
    assert torch.equal(run(case), expected(case))


def test_a_nan_makes_its_row_nan_where_levels_are_rounded_to(kernels: str) -> None:
    case = layer(4, 20, 90, Levels(0, 1, 2, True))
    clean = run(case)
    case["x"][2, 89] = torch.nan
    y = run(case)
    assert y[2].isnan().all()
    assert torch.equal(y[[0, 1, 3]], clean[[0, 1, 3]])


@pytest.mark.parametrize("levels", [SIGNS, TERNARY])
def test_a_nan_is_the_upper_value_of_a_table(kernels: str, levels: Levels) -> None:
    case = layer(4, 20, 90, levels)
    case["x"][2, 89] = 100.0
    want = run(case)
    case["x"][2, 89] = torch.nan
    assert torch.equal(run(case), want)


def test_threads_and_layouts_leave_no_trace(kernels: str) -> None:
    case = layer(150, 100, 500, SIGNS)
    want = expected(case)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(run(case), want)
    finally:
        torch.set_num_threads(threads)
    case["x"] = case["x"].T.contiguous().T
    assert torch.equal(run(case), want)


def test_a_layer_without_bias(kernels: str) -> None:
    case = layer(3, 20, 90, SIGNS)
    case["bias"].zero_()
    weight = BinaryWeight.of(case["values"], case["scale"])
    y = binary_linear(case["x"], weight, torch.empty(0), SIGNS, case["x_scale"], case["x_zero_point"])
    assert torch.equal(y, expected(case))


@pytest.mark.parametrize("levels", [SIGNS, TERNARY, Levels(0, 1, 2, True)])
def test_an_empty_batch_has_no_parameters(kernels: str, levels: Levels) -> None:
    case = layer(0, 20, 90, levels)
    case["x_scale"], case["x_zero_point"] = torch.empty(0), torch.empty(0, dtype=torch.int32)
    assert run(case).shape == (0, 20)


def test_the_weights_come_back_from_a_bit_each() -> None:
    for zeros in (False, True):
        case = layer(1, 19, 130, SIGNS, zeros=zeros)
        weight = BinaryWeight.of(case["values"], case["scale"])
        assert torch.equal(weight.values().flatten(1), case["values"])
        assert weight.packed.nbytes == 24 * 3 * 8 * (2 if zeros else 1)  # 3 panels of 8 outputs, 3 words


def test_what_does_not_fit_is_refused(kernels: str) -> None:
    case = layer(3, 20, 90, Levels(0, 1, 2, True))
    weight = BinaryWeight.of(case["values"], case["scale"])
    good: dict[str, Any] = {
        "x": case["x"],
        "weight": weight,
        "bias": weight.in_panels(case["bias"]),
        "levels": case["levels"],
        "x_scale": case["x_scale"],
        "x_zero_point": case["x_zero_point"],
    }
    zeros = torch.zeros(2, dtype=torch.int32)
    bad: list[dict[str, Any]] = [
        *({"x": x} for x in (case["x"].double(), case["x"][0], case["x"][:, :0], torch.randn(3, 129))),
        *({"weight": replace(weight, outputs=outputs)} for outputs in (0, -1, 25)),
        {"weight": replace(weight, packed=weight.packed[:-1])},
        {"weight": replace(weight, packed=weight.packed.int())},
        {"weight": replace(weight, has_masks=True)},
        {"weight": replace(weight, sums=weight.sums[:, :-1])},
        {"weight": replace(weight, ones=weight.ones[:-1])},
        {"weight": replace(weight, scale=weight.scale[:-1])},
        {"bias": case["bias"]},
        *({"levels": Levels(0, 1, count, True)} for count in (0, 1, 3, 4)),
        *({"levels": levels} for levels in (Levels(1, 1, 2, True), Levels(0, 2, 2, True), Levels(-900, 1, 2, False))),
        *({"x_scale": torch.tensor([scale])} for scale in (0.0, -1.0, torch.nan, torch.inf)),
        {"x_scale": torch.ones(2), "x_zero_point": zeros},
        {"x_zero_point": zeros},
        {"x_zero_point": zeros[:1] + 2},
        {"levels": SIGNS, "x_zero_point": zeros[:1] + 1},
    ]
    assert binary_linear(**good).shape == (3, 20)
    for changes in bad:
        with pytest.raises(RuntimeError):
            binary_linear(**{**good, **changes})


def test_a_weight_that_is_none_is_refused() -> None:
    values, scale = torch.ones(8, 5, dtype=torch.int8), torch.ones(8)
    with pytest.raises(KernelError, match="holds -1, 0 and"):
        BinaryWeight.of(values * 2, scale)
    with pytest.raises(KernelError, match="as many scales, all finite"):
        BinaryWeight.of(values, scale[:3])
    with pytest.raises(KernelError, match="as many scales, all finite"):
        BinaryWeight.of(values, scale * torch.nan)
    with pytest.raises(KernelError, match="no binary layout"):
        BinaryWeight.of(values[:, :0], scale)
    with pytest.raises(KernelError, match="no binary layout"):
        BinaryWeight.of(values, scale, groups=3)


def test_it_is_a_well_behaved_operator() -> None:
    case = layer(3, 20, 90, TERNARY, zeros=True)
    weight = BinaryWeight.of(case["values"], case["scale"])
    parts = (weight.packed, weight.scale, weight.sums, weight.ones, weight.in_panels(case["bias"]))
    rest = (case["x_scale"], case["x_zero_point"], -1, 1, 3, False, 20, True)
    torch.library.opcheck(torch.ops.subbyte.binary_linear.default, (case["x"], *parts, *rest))
