"""conv2d_float: every instruction set within its bound of float64, alike in fp32, and what it refuses."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels import float_convolution as in_torch
from subbyte.kernels import use_isa
from subbyte.kernels.convolution import Window, bias_by_panel, memory_format
from subbyte.kernels.float_convolution import FloatConvolutionWeight, conv2d_float

IN_TORCH = {"conv2d_float": in_torch._conv2d_float}
PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))
DTYPES = [torch.float32, torch.bfloat16]


def case(
    images: int = 2,
    channels: int = 5,
    outputs: int = 18,
    size: tuple[int, int] = (9, 8),
    bits: int = 4,
    groups: int = 1,
    window: Window | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Arguments of one call, with everything drawn at random; channels and outputs are those of a group."""
    random = torch.Generator().manual_seed(seed)
    window = window or Window((3, 3), padding=(1, 1))
    outputs *= groups
    return {
        "x": (torch.randn(images, channels * groups, *size, generator=random) * 3).to(dtype),
        "codes": torch.randint(0, 1 << bits, (outputs, channels, *window.kernel), generator=random, dtype=torch.uint8),
        "scale": torch.rand(outputs, generator=random) + 0.1,
        "zero_point": torch.randint(0, 1 << bits, (outputs,), generator=random),
        "bits": bits,
        "groups": groups,
        "values": None,
        "bias": torch.randn(outputs, generator=random),
        "window": window,
    }


def weight_of(given: dict[str, Any]) -> FloatConvolutionWeight:
    parts = (given[name] for name in ("codes", "scale", "zero_point", "bits", "groups"))
    return FloatConvolutionWeight.of(*parts, given["window"].dilation[1] > 1, given["values"])


def run(given: dict[str, Any]) -> Tensor:
    return conv2d_float(given["x"], weight_of(given), bias_by_panel(given["bias"], given["groups"]), given["window"])


def convolved(x: Tensor, weight: Tensor, bias: Tensor, given: dict[str, Any]) -> Tensor:
    window = given["window"]
    columns = F.unfold(x, window.kernel, window.dilation, window.padding, window.stride)
    columns = columns.unflatten(1, (given["groups"], -1))
    rows = weight.flatten(1).unflatten(0, (given["groups"], -1))
    y = torch.einsum("gok,ngkp->ngop", rows, columns).flatten(1, 2) + bias[:, None]
    return y.unflatten(2, window.output(tuple(x.shape[2:])))


def exact(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The result in float64 by unfolding, and how far x's dtype may be off."""
    codes, scale = given["codes"].int(), given["scale"].double()[:, None, None, None]
    numbers = codes.double() if given["values"] is None else given["values"].double()[codes]
    weight = (numbers - given["zero_point"].double()[:, None, None, None]) * scale
    x, bias = given["x"].double(), given["bias"].double()
    want = convolved(x, weight, bias, given)
    bound = convolved(x.abs(), weight.abs(), bias.abs(), given) * (weight[0].numel() + 3) * 2.0**-24
    if given["x"].dtype == torch.bfloat16:
        bound = bound + (torch.maximum(weight.abs(), scale).flatten(1).sum(1) * 2.0**-125 + 2.0**-126)[:, None, None]
        bound = bound + (want.abs() + bound) * 2.0**-8  # of y itself
    return want, bound


def check(given: dict[str, Any]) -> Tensor:
    want, bound = exact(given)
    got = run(given)
    assert got.dtype == given["x"].dtype
    assert bool(((got.double() - want).abs() <= bound).all())
    return got


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 70)),
    size=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    bits=st.integers(1, 8),
    groups=st.integers(1, 3),
    geometry=st.tuples(PAIR, PAIR, st.tuples(st.integers(0, 3), st.integers(0, 3)), PAIR),
    channels_last=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1 << 20),
)
def test_within_the_bound_and_alike_in_fp32(
    kernels: str,
    sizes: tuple[int, int, int],
    size: tuple[int, int],
    geometry: tuple[tuple[int, int], ...],
    channels_last: bool,
    **rest: Any,
) -> None:
    window = Window(*geometry)
    assume(min(window.output(size)) > 0)
    drawn = case(*sizes, size, window=window, **rest)
    if channels_last:
        drawn["x"] = drawn["x"].contiguous(memory_format=torch.channels_last)
    got = check(drawn)
    assert got.is_contiguous(memory_format=memory_format(drawn["x"]))
    assert torch.equal(weight_of(drawn).codes(), drawn["codes"])
    if kernels != "torch" and drawn["x"].dtype == torch.float32:
        use_isa("scalar")
        assert torch.equal(run(drawn), got)
        use_isa(kernels)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("values", [[-1.0, -0.25, 0.5, 3.0], [-1.0, 0.1, 0.7, 3.3]])
def test_codes_may_stand_for_any_values(kernels: str, dtype: torch.dtype, values: list[float]) -> None:
    drawn = case(bits=2, dtype=dtype) | {"values": torch.tensor(values), "zero_point": torch.zeros(18)}
    check(drawn)


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_sums(kernels: str, dtype: torch.dtype) -> None:
    check(case(1, 300, 17, (7, 6), 3, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_threads_and_batches_leave_no_trace(kernels: str, dtype: torch.dtype, layout: torch.memory_format) -> None:
    drawn = case(3, 16, 70, (20, 21), dtype=dtype)
    drawn["x"] = drawn["x"].contiguous(memory_format=layout)
    want, threads = check(drawn), torch.get_num_threads()
    if kernels == "torch":
        return
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(run(drawn), want)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(run(drawn | {"x": drawn["x"][1:2]}), want[1:2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_makes_nan_what_it_goes_into(kernels: str, dtype: torch.dtype) -> None:
    drawn = case(groups=2, dtype=dtype)
    clean = run(drawn)
    drawn["x"][1, 7, 4, 5] = torch.nan  # the second group's
    y = run(drawn)
    hit = torch.zeros(y.shape, dtype=torch.bool)
    hit[1, 18:, 3:6, 4:7] = True
    assert torch.equal(y.isnan(), hit)
    assert torch.equal(y[~hit], clean[~hit])


def test_empty_batches_and_other_layouts(kernels: str) -> None:
    assert run(case(0)).shape == (0, 18, 9, 8)
    drawn = case()
    drawn["x"] = drawn["x"].permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    check(drawn)


def test_a_padded_image_beyond_memory_is_refused(kernels: str) -> None:
    drawn = case()
    x, far = torch.zeros(1 << 10, drawn["x"].shape[1], 2, 2), ((1 << 20) - 1,) * 2
    # PyTorch makes no padded copy.
    refused = nullcontext() if kernels == "torch" else pytest.raises(RuntimeError, match="too large")
    with refused:
        run(drawn | {"x": x, "window": Window((3, 3), stride=far, padding=far)})


def test_what_does_not_fit_is_refused(kernels: str) -> None:
    drawn = case()
    weight, bias, x, window = weight_of(drawn), bias_by_panel(drawn["bias"], 1), drawn["x"], drawn["window"]
    for bad_x in (x.double(), x.half(), x[0], x[:, :0], x[:, :4], torch.randn(2, 9, 9, 8)):
        with pytest.raises(RuntimeError):
            conv2d_float(bad_x, weight, bias, window)
    for bad_window in (
        Window((9, 3)),
        Window((0, 3)),
        Window((3, 3), (0, 1)),
        Window((3, 3), padding=(-1, 0)),
        Window((3, 3), dilation=(6, 1)),
        Window((3, 3), dilation=(0, 1)),
        Window((2, 2)),
    ):
        with pytest.raises(RuntimeError):
            conv2d_float(x, weight, bias, bad_window)
    changes: list[dict[str, Any]] = [
        {"bits": 5},
        {"bits": 0},
        {"groups": 2},
        {"groups": 0},
        {"shape": (0, 5, 3, 3)},
        {"scale": weight.scale * torch.nan},
        {"scale": weight.scale.double()},
        {"zero_point": weight.zero_point[:1]},
        {"values": weight.values[:15]},
        {"packed": weight.packed[:-1]},
    ]
    for change in changes:
        for dtype in DTYPES:
            with pytest.raises(RuntimeError):
                conv2d_float(x.to(dtype), replace(weight, **change), bias, window)
    with pytest.raises(RuntimeError):
        conv2d_float(x, weight, bias[:-1], window)


def test_a_weight_that_does_not_fit_itself_is_refused() -> None:
    drawn = case()
    with pytest.raises(KernelError, match="a scale for each output"):
        FloatConvolutionWeight.of(drawn["codes"], drawn["scale"][:2], drawn["zero_point"], 4)
    with pytest.raises(KernelError, match="takes more than 3 bits"):
        FloatConvolutionWeight.of(drawn["codes"], drawn["scale"], drawn["zero_point"], 3)
    with pytest.raises(KernelError, match="at most 4 bits"):
        FloatConvolutionWeight.of(drawn["codes"], drawn["scale"], drawn["zero_point"], 5, values=torch.randn(32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_a_well_behaved_operator(dtype: torch.dtype) -> None:
    drawn = case(dtype=dtype)
    weight = weight_of(drawn)
    x = drawn["x"].contiguous(memory_format=torch.channels_last) if dtype == torch.bfloat16 else drawn["x"]
    parts = (weight.packed, weight.scale, weight.zero_point, weight.values, torch.empty(0))
    arguments = (x, *parts, 4, 18, 5, *drawn["window"].numbers(), 1)
    torch.library.opcheck(torch.ops.subbyte.conv2d_float.default, arguments)
