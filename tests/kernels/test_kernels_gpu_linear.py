"""linear_float by Triton, interpreted where there is no GPU: within its bound of float64, and what it refuses."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from float_linear_oracle import exact, layer, weight_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.float_linear import FloatLinearWeight
from subbyte.kernels.gpu.linear import linear_float
from subbyte.kernels.panels import PANEL

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter has no products of bf16.
NARROW = [torch.float16, torch.bfloat16] if DEVICE == "cuda" else [torch.float16]


def multiply(x: Tensor, weight: FloatLinearWeight, bias: Tensor) -> Tensor:
    parts = [getattr(weight, field.name) for field in fields(weight)]
    tensors = [part.to(DEVICE) for part in (*parts[:4], bias)]
    return linear_float(x.to(DEVICE), *tensors, *parts[4:]).cpu()


def run(case: dict[str, Any]) -> Tensor:
    bias = torch.nn.functional.pad(case["bias"], (0, -len(case["bias"]) % PANEL))
    return multiply(case["x"], weight_of(case), bias)


def check(case: dict[str, Any]) -> None:
    want, bound = exact(case)
    y = run(case)
    assert y.dtype == torch.float32
    assert bool(((y.double() - want).abs() <= bound).all())


@settings(deadline=None, max_examples=30)
@given(
    rows=st.sampled_from([0, 1, 2, 5]),
    outputs=st.integers(1, 70),
    inputs=st.integers(1, 150),
    bits=st.integers(1, 8),
    group_size=st.integers(1, 160),
    kind=st.sampled_from(["", "zeros", "table"]),
    seed=st.integers(0, 1 << 20),
)
def test_within_the_bound_of_exact_arithmetic(kind: str, seed: int, **sizes: int) -> None:
    check(layer(**sizes, kind=kind if kind != "table" or sizes["bits"] <= 4 else "", seed=seed))


@pytest.mark.parametrize("rows", [1, 70])
def test_several_tiles_of_rows_outputs_and_inputs(rows: int) -> None:
    check(layer(rows, 150, 300, 3, 40, kind="zeros"))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("rows", [1, 20])
def test_a_weight_is_rounded_to_a_narrower_x(rows: int, dtype: torch.dtype) -> None:
    case = layer(rows, 20, 100, 4, 32, kind="zeros")
    case["x"] = case["x"].to(dtype)
    y = run(case)
    want, _ = exact(case)
    spread = [part.float().repeat_interleave(32, 1)[:, :100] for part in (case["scale"], case["zero_point"])]
    weight = ((case["codes"].float() - spread[1]) * spread[0]).to(dtype).double()
    rounded = case["x"].double() @ weight.T + case["bias"].double()
    eps = torch.finfo(dtype).eps
    assert y.dtype == dtype
    assert bool(((y.double() - rounded).abs() <= eps / 2 * rounded.abs() + 1e-3 * eps * want.abs().max()).all())


def test_memory_layout_leaves_no_trace() -> None:
    for rows in (1, 3):
        case = layer(rows, 20, 64, 4, 32)
        want = run(case)
        case["x"] = torch.stack([case["x"], case["x"]], 2)[..., 1]
        assert not case["x"].is_contiguous()
        assert torch.equal(run(case), want)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter's numpy
def test_nan_and_infinity_are_not_lost() -> None:
    case = layer(2, 20, 40, 4, 32)
    case["x"][0, 39], case["x"][1, 0] = torch.nan, torch.inf
    y = run(case)
    assert bool(y[0].isnan().all())
    assert not bool(y[1].isfinite().any())


def test_what_does_not_fit_is_refused() -> None:
    case = layer(kind="zeros")
    weight, x, none = weight_of(case), case["x"], torch.empty(0)
    for bad_x in (x.double(), x.int(), x[0], x[:, :0], x[:, :32], torch.randn(3, 34)):
        with pytest.raises(KernelError):
            multiply(bad_x, weight, none)
    changes: list[dict[str, Any]] = [
        {"outputs": 0},
        {"outputs": 40},
        {"inputs": 0},
        {"bits": 5},
        {"bits": 9},
        {"group_size": 0},
        {"group_size": 2},
        {"packed": weight.packed[:-1]},
        {"packed": weight.packed.view(torch.int8)},
        {"scale": weight.scale[:1]},
        {"scale": weight.scale.double()},
        {"zero_point": weight.zero_point.reshape(-1)[:5]},
        {"values": weight.values[:15]},
    ]
    for change in changes:
        with pytest.raises(KernelError):
            multiply(x, replace(weight, **change), none)
    with pytest.raises(KernelError):
        multiply(x, weight, torch.zeros(7))


def test_tensors_of_two_devices_are_refused() -> None:
    case = layer()
    weight = weight_of(case)
    floats = (weight.scale, weight.zero_point, weight.values, torch.empty(0))
    with pytest.raises(KernelError, match="one device"):
        linear_float(case["x"].to("meta"), weight.packed, *floats, 4, 20, 33, 8)
