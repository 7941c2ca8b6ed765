"""linear_float: every instruction set alike and within its bound of float64, and what it refuses."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from float_linear_oracle import exact, layer, weight_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels import float_linear as in_torch
from subbyte.kernels import isas, use_isa
from subbyte.kernels.epilogue import Epilogue
from subbyte.kernels.float_linear import FloatLinearWeight, linear_float
from subbyte.kernels.panels import PANEL

IN_TORCH = {"linear_float": in_torch._linear_float}


def run(case: dict[str, Any]) -> Tensor:
    bias = torch.nn.functional.pad(case["bias"], (0, -len(case["bias"]) % PANEL))
    return linear_float(case["x"], weight_of(case), bias)


def check(case: dict[str, Any]) -> None:
    want, bound = exact(case)
    assert bool(((run(case).double() - want).abs() <= bound).all())


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(0, 20),
    outputs=st.integers(1, 80),
    inputs=st.integers(1, 150),
    bits=st.integers(1, 8),
    group_size=st.integers(1, 160),
    kind=st.sampled_from(["", "zeros", "table", "bf16 table"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1 << 20),
)
def test_within_the_bound_of_exact_arithmetic(
    kernels: str, kind: str, dtype: torch.dtype, seed: int, **sizes: int
) -> None:
    case = layer(**sizes, kind="" if "table" in kind and sizes["bits"] > 4 else kind, seed=seed)
    case["x"] = case["x"].to(dtype)
    check(case)


def in_fp32(case: dict[str, Any]) -> Tensor:
    """The result in bf16 as the kernels of fp32 give it."""
    return run(case | {"x": case["x"].float()}).bfloat16()


def test_bf16_without_its_instructions_is_fp32_rounded(kernels: str) -> None:
    case = layer(7, 70, 100, 4, 32, kind="zeros")
    case["x"] = (case["x"].sign() * 2.0**-130).bfloat16()  # which the instructions take for 0
    case["bias"].zero_()
    if kernels == "avx512" and "bf16_linear" in isas()[-1].families:
        assert not bool(run(case).any())
        use_isa("avx512-avx512_bf16")
    assert bool(run(case).all())
    assert run(case).dtype == torch.bfloat16
    assert torch.equal(run(case), in_fp32(case))


def test_bf16_is_rounded_before_an_epilogue() -> None:
    case = layer(7, 70, 100, 4, 32)
    case["x"] = case["x"].bfloat16()
    weight, nothing, residual = weight_of(case), torch.empty(0), torch.randn(7, 70)
    y = linear_float(case["x"], weight, nothing)
    got = linear_float(case["x"], weight, nothing, Epilogue(residual, low=0.0))
    assert torch.equal(got, (y.float() + residual).clamp(0))


@pytest.mark.parametrize(
    ("values", "zero_point"),
    [
        ([0.1, 1.0, 2.0, 3.0], 0),  # an entry that is not exact in bf16
        ([2.0**-127, 1.0, 2.0, 3.0], 0),  # or too small for it
        (None, 0.5),  # a zero point that is not whole
        (None, -254),  # or too far
    ],
)
def test_what_is_not_exact_in_bf16_is_multiplied_in_fp32(
    kernels: str, values: list[float] | None, zero_point: float
) -> None:
    case = layer(7, 70, 100, 2, 32, kind="zeros")
    case["x"] = case["x"].bfloat16()
    case["values"] = None if values is None else torch.tensor(values)
    case["zero_point"] = torch.zeros(case["scale"].shape)
    case["zero_point"][3, 1] = zero_point
    assert torch.equal(run(case), in_fp32(case))


def test_bf16_of_every_size(kernels: str) -> None:
    case = layer(9, 40, 64, 4, 32)
    sizes = torch.tensor([2.0**-133, 2.0**-127, 1e-30, 1.0, 2.0**100])
    case["x"] = (case["x"].sign() * sizes[torch.arange(9) % 5, None]).bfloat16()
    case["bias"].zero_()
    for scale in (2.0**-20, 1.0, 2.0**10):
        check(case | {"scale": case["scale"] * scale})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_and_layouts_leave_no_trace(kernels: str, dtype: torch.dtype) -> None:
    case = layer(40, 300, 200, 3, 64)
    case["x"] = case["x"].to(dtype)
    want, threads = run(case), torch.get_num_threads()
    if kernels == "torch":
        return check(case)
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(run(case), want)
    finally:
        torch.set_num_threads(threads)
    case["x"] = case["x"].T.contiguous().T
    assert torch.equal(run(case), want)
    return None


def test_rows_do_not_know_of_each_other(kernels: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        case = layer(210, 70, 100, 4, 32)
        case["x"] = case["x"].to(dtype)
        y = run(case)
        for count in (5, 1):
            case["x"] = case["x"][:count]
            assert torch.equal(run(case), y[:count]) or kernels == "torch"
        case["x"] = torch.tensor([torch.nan, torch.inf], dtype=dtype)[:, None].expand(2, 100).contiguous()
        assert bool(run(case)[0].isnan().all())


def test_the_codes_come_back() -> None:
    case = layer(bits=5, group_size=7)
    assert torch.equal(weight_of(case).codes(), case["codes"])


def test_what_does_not_fit_is_refused(kernels: str) -> None:
    case = layer(kind="zeros")
    weight, x, none = weight_of(case), case["x"], torch.empty(0)
    for bad_x in (x.double(), x.half(), x[0], x[:, :0], x[:, :32], torch.randn(3, 34)):
        with pytest.raises(RuntimeError):
            linear_float(bad_x, weight, none)
    changes: list[dict[str, Any]] = [
        {"outputs": 0},
        {"outputs": 40},
        {"inputs": 0},
        {"bits": 0},
        {"bits": 5},
        {"bits": 9},
        {"group_size": 0},
        {"group_size": 2},
        {"packed": weight.packed[:-1]},
        {"scale": weight.scale[:1]},
        {"scale": weight.scale.double()},
        {"zero_point": weight.zero_point.reshape(-1)[:5]},
        {"values": weight.values[:15]},
        {"scale": weight.scale * torch.nan},
    ]
    for change in changes:
        for dtype in (torch.float32, torch.bfloat16):
            with pytest.raises(RuntimeError):
                linear_float(x.to(dtype), replace(weight, **change), none)
    with pytest.raises(RuntimeError):
        linear_float(x, weight, torch.zeros(7))


def test_a_weight_that_does_not_fit_itself_is_refused() -> None:
    case = layer()
    with pytest.raises(KernelError, match="takes scales of shape"):
        FloatLinearWeight.of(case["codes"], case["scale"][:, :2], case["zero_point"], 4, 8)
    with pytest.raises(KernelError, match="takes more than 3 bits"):
        FloatLinearWeight.of(case["codes"], case["scale"], case["zero_point"], 3, 8)
    with pytest.raises(KernelError, match="at most 4 bits"):
        FloatLinearWeight.of(case["codes"], case["scale"], case["zero_point"], 5, 8, torch.randn(32))


def test_it_is_a_well_behaved_operator() -> None:
    case = layer()
    weight = weight_of(case)
    parts = (weight.packed, weight.scale, weight.zero_point, weight.values, torch.empty(0))
    for x in (case["x"], case["x"].bfloat16()):
        torch.library.opcheck(torch.ops.subbyte.linear_float.default, (x, *parts, 4, 20, 33, 8))
