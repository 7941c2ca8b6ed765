"""conv2d_codes: every instruction set against sums of int64, and what it refuses."""

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
from subbyte.kernels import convolution as in_torch
from subbyte.kernels.convolution import ConvolutionWeight, Window, bias_by_panel, conv2d_codes

IN_TORCH = {"conv2d_codes": in_torch._conv2d_codes}
PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))


def case(
    images: int = 2,
    channels: int = 5,
    outputs: int = 18,
    size: tuple[int, int] = (9, 8),
    bits: int = 4,
    groups: int = 1,
    window: Window | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Arguments of one call, with everything drawn at random; channels and outputs are those of a group."""
    random = torch.Generator().manual_seed(seed)
    window = window or Window((3, 3), padding=(1, 1))
    outputs *= groups
    return {
        "x": torch.randn(images, channels * groups, *size, generator=random) * 3,
        "codes": torch.randint(0, 1 << bits, (outputs, channels, *window.kernel), generator=random, dtype=torch.uint8),
        "scale": torch.rand(outputs, generator=random) + 0.1,
        "zero_point": torch.randint(0, 1 << bits, (outputs,), generator=random, dtype=torch.int32),
        "bits": bits,
        "groups": groups,
        "bias": torch.randn(outputs, generator=random),
        "x_scale": torch.rand(1, generator=random) * 0.1 + 0.01,
        "x_zero_point": torch.randint(0, 256, (1,), generator=random, dtype=torch.int32),
        "window": window,
    }


def weight_of(given: dict[str, Any], values: Tensor | None = None) -> ConvolutionWeight:
    parts = (given[name] for name in ("codes", "scale", "zero_point", "bits", "groups"))
    return ConvolutionWeight.of(*parts, given["window"].dilation[1] > 1, values)


def run(given: dict[str, Any], weight: ConvolutionWeight | None = None) -> Tensor:
    bias = bias_by_panel(given["bias"], given["groups"])
    weight = weight or weight_of(given)
    x_codes = (given["x_scale"], given["x_zero_point"], (0, 255))
    return conv2d_codes(given["x"], weight, bias, *x_codes, given["window"])


def expected(given: dict[str, Any]) -> Tensor:
    """The formula: sums of int64 by unfolding, then fp32 in the stated order."""
    window, groups, zero = given["window"], given["groups"], given["x_zero_point"]
    grid = torch.clamp(torch.round(given["x"] / given["x_scale"]) + zero, 0, 255) - zero
    columns = F.unfold(grid.double(), window.kernel, window.dilation, window.padding, window.stride).long()
    columns = columns.unflatten(1, (groups, -1))
    numbers = given["codes"].long() - given["zero_point"].long()[:, None, None, None]
    rows = numbers.flatten(1).unflatten(0, (groups, -1))
    total = torch.einsum("gok,ngkp->ngop", rows, columns).flatten(1, 2).float()
    y = total * (given["x_scale"] * given["scale"])[:, None] + given["bias"][:, None]
    return y.unflatten(2, window.output(tuple(given["x"].shape[2:])))


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 40)),
    size=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    bits=st.integers(1, 8),
    groups=st.integers(1, 3),
    geometry=st.tuples(PAIR, PAIR, st.tuples(st.integers(0, 3), st.integers(0, 3)), PAIR),
    channels_last=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_the_formula_bit_for_bit(
    kernels: str,
    sizes: tuple[int, int, int],
    size: tuple[int, int],
    geometry: tuple[tuple[int, int], ...],
    channels_last: bool,
    **rest: int,
) -> None:
    window = Window(*geometry)
    assume(min(window.output(size)) > 0)
    drawn = case(*sizes, size, window=window, **rest)
    want = expected(drawn)
    if channels_last:
        drawn["x"] = drawn["x"].contiguous(memory_format=torch.channels_last)
    got = run(drawn)
    assert torch.equal(got, want)
    assert got.is_contiguous(memory_format=in_torch.memory_format(drawn["x"]))
    assert torch.equal(weight_of(drawn).codes(), drawn["codes"])


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_the_largest_sums_do_not_saturate(kernels: str, bits: int) -> None:
    drawn = case(1, 600, 17, (4, 4), bits)
    drawn["codes"].fill_((1 << bits) - 1)
    drawn["zero_point"].zero_()
    for x_zero, value in ((0, 1e6), (255, -1e6)):
        drawn["x_zero_point"].fill_(x_zero)
        drawn["x"].fill_(value)
        assert torch.equal(run(drawn), expected(drawn))


def test_codes_may_stand_for_other_values(kernels: str) -> None:
    drawn = case(bits=2)
    table = torch.tensor([9, 0, 255, 128])
    drawn["zero_point"].fill_(128)
    weight = weight_of(drawn, table)
    drawn["codes"] = table[drawn["codes"].int()]
    assert torch.equal(run(drawn, weight), expected(drawn))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("window", [Window((3, 3), padding=(1, 1)), Window((2, 3), (2, 1), (0, 1), (1, 2))])
def test_a_nan_makes_nan_what_it_goes_into(kernels: str, memory_format: torch.memory_format, window: Window) -> None:
    drawn = case(groups=2, window=window)
    clean = run(drawn)
    drawn["x"][1, 7, 4, 5] = torch.nan  # the second group's
    drawn["x"] = drawn["x"].contiguous(memory_format=memory_format)
    mask = torch.zeros_like(drawn["x"])
    mask[1, 7, 4, 5] = 1
    ones = torch.ones(drawn["codes"].shape)
    hit = F.conv2d(mask, ones, None, window.stride, window.padding, window.dilation, 2) > 0
    y = run(drawn)
    assert bool(hit.any())
    assert torch.equal(y.isnan(), hit)
    assert torch.equal(y[~hit], clean[~hit])


def test_threads_leave_no_trace(kernels: str) -> None:
    drawn = case(2, 16, 70, (20, 21))
    want, threads = expected(drawn), torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(run(drawn), want)
    finally:
        torch.set_num_threads(threads)


def test_empty_batches_and_other_layouts(kernels: str) -> None:
    drawn = case(0)
    assert run(drawn).shape == (0, 18, 9, 8)
    drawn = case()
    want = expected(drawn)
    drawn["x"] = drawn["x"].permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    assert torch.equal(run(drawn), want)
    drawn = case(1)
    want = expected(drawn)
    one = drawn["x"].contiguous(memory_format=torch.channels_last)
    drawn["x"] = one.as_strided(one.shape, (1, *one.stride()[1:]))  # of one image, the first stride says nothing
    got = run(drawn)
    assert torch.equal(got, want)
    assert got.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("dtype", "low"), [(torch.uint8, 0), (torch.int8, -128)])
def test_codes_are_taken_as_they_are(kernels: str, channels_last: bool, dtype: torch.dtype, low: int) -> None:
    drawn = case(groups=2)
    zero, bounds = drawn["x_zero_point"] + low, (low, low + 255)
    codes = torch.clamp(torch.round(drawn["x"] / drawn["x_scale"]) + zero, *bounds).to(dtype)
    if channels_last:
        codes = codes.contiguous(memory_format=torch.channels_last)
    weight, bias = weight_of(drawn), bias_by_panel(drawn["bias"], 2)
    got = conv2d_codes(codes, weight, bias, drawn["x_scale"], zero, bounds, drawn["window"])
    assert torch.equal(got, expected(drawn))
    assert got.is_contiguous(memory_format=in_torch.memory_format(codes))
    x_codes = (drawn["x_scale"], torch.tensor([low + 9], dtype=torch.int32), (low + 9, low + 99))
    with pytest.raises(RuntimeError, match="between the lowest and the highest"):
        conv2d_codes(codes, weight, bias, *x_codes, drawn["window"])


def test_a_padded_image_beyond_memory_is_refused(kernels: str) -> None:
    drawn = case()
    x, far = torch.zeros(1 << 10, drawn["x"].shape[1], 2, 2), ((1 << 20) - 1,) * 2
    window = Window((3, 3), stride=far, padding=far)
    bias, x_codes = bias_by_panel(drawn["bias"], 1), (drawn["x_scale"], drawn["x_zero_point"], (0, 255))
    # PyTorch makes no padded copy.
    refused = nullcontext() if kernels == "torch" else pytest.raises(RuntimeError, match="too large")
    with refused:
        conv2d_codes(x, weight_of(drawn), bias, *x_codes, window)


def test_what_does_not_fit_is_refused(kernels: str) -> None:
    drawn = case()
    weight = weight_of(drawn)
    bias, x_codes = bias_by_panel(drawn["bias"], 1), (drawn["x_scale"], drawn["x_zero_point"], (0, 255))
    x, window = drawn["x"], drawn["window"]
    for bad_x in (x.double(), x[0], x[:, :0], x[:, :4], torch.randn(2, 9, 9, 8)):
        with pytest.raises(RuntimeError):
            conv2d_codes(bad_x, weight, bias, *x_codes, window)
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
            conv2d_codes(x, weight, bias, *x_codes, bad_window)
    for changes in (
        {"bits": 5},
        {"bits": 0},
        {"groups": 2},
        {"groups": 0},
        {"scale": weight.scale * torch.nan},
        {"packed": weight.packed[:-1]},
    ):
        with pytest.raises(RuntimeError):
            conv2d_codes(x, replace(weight, **changes), bias, *x_codes, window)
    with pytest.raises(RuntimeError):
        conv2d_codes(x, weight, bias[:-1], *x_codes, window)
    with pytest.raises(RuntimeError):
        conv2d_codes(x, weight, bias, torch.tensor([torch.nan]), drawn["x_zero_point"], (0, 255), window)
    with pytest.raises(RuntimeError):
        conv2d_codes(x, weight, bias, drawn["x_scale"], torch.tensor([256], dtype=torch.int32), (0, 255), window)


def test_a_weight_laid_out_for_another_window_is_refused() -> None:
    drawn = case(1, 64, 8, (5, 9), window=Window((1, 3), dilation=(1, 2)))
    weight, bias = weight_of(drawn), bias_by_panel(drawn["bias"], 1)
    x_codes = (drawn["x_scale"], drawn["x_zero_point"], (0, 255))
    with pytest.raises(KernelError, match="has a kernel of"):
        conv2d_codes(drawn["x"], weight, bias, *x_codes, Window((3, 1), dilation=(1, 2)))
    with pytest.raises(KernelError, match="by tap"):
        conv2d_codes(drawn["x"], weight, bias, *x_codes, Window((1, 3)))


def test_a_weight_that_does_not_fit_itself_is_refused() -> None:
    drawn = case()
    with pytest.raises(KernelError, match="a scale for each output"):
        ConvolutionWeight.of(drawn["codes"], drawn["scale"][:2], drawn["zero_point"], 4)
    with pytest.raises(KernelError, match="takes more than 3 bits"):
        ConvolutionWeight.of(drawn["codes"], drawn["scale"], drawn["zero_point"], 3)


@pytest.mark.parametrize("channels_last", [False, True])
def test_it_is_a_well_behaved_operator(channels_last: bool) -> None:
    drawn = case()
    weight = weight_of(drawn)
    x = drawn["x"].contiguous(memory_format=torch.channels_last) if channels_last else drawn["x"]
    parts = (weight.packed, weight.scale, weight.zero_point, weight.sums, weight.values, torch.empty(0))
    rest = (drawn["x_scale"], drawn["x_zero_point"], 0, 255, 4, 18, 5, *drawn["window"].numbers(), 1)
    torch.library.opcheck(torch.ops.subbyte.conv2d_codes.default, (x, *parts, *rest))
