"""depthwise_conv2d_codes: every instruction set against sums of int64, and what it refuses."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels import depthwise as in_torch
from subbyte.kernels.convolution import Window
from subbyte.kernels.depthwise import DepthwiseWeight, depthwise_conv2d_codes

IN_TORCH = {"depthwise_conv2d_codes": in_torch._depthwise_conv2d_codes}
PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))


def case(
    images: int = 2,
    channels: int = 37,
    size: tuple[int, int] = (9, 8),
    bits: int = 4,
    window: Window | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Arguments of one call, drawn at random."""
    random = torch.Generator().manual_seed(seed)
    window = window or Window((3, 3), padding=(1, 1))
    return {
        "x": torch.randn(images, channels, *size, generator=random) * 3,
        "codes": torch.randint(0, 1 << bits, (channels, 1, *window.kernel), generator=random, dtype=torch.uint8),
        "scale": torch.rand(channels, generator=random) + 0.1,
        "zero_point": torch.randint(0, 1 << bits, (channels,), generator=random, dtype=torch.int32),
        "bits": bits,
        "bias": torch.randn(channels, generator=random),
        "x_scale": torch.rand(1, generator=random) * 0.1 + 0.01,
        "x_zero_point": torch.randint(0, 256, (1,), generator=random, dtype=torch.int32),
        "window": window,
    }


def weight_of(given_case: dict[str, Any], values: Tensor | None = None) -> DepthwiseWeight:
    return DepthwiseWeight.of(*(given_case[name] for name in ("codes", "scale", "zero_point", "bits")), values)


def run(given_case: dict[str, Any], weight: DepthwiseWeight | None = None) -> Tensor:
    x_codes = (given_case["x_scale"], given_case["x_zero_point"], (0, 255))
    weight = weight or weight_of(given_case)
    return depthwise_conv2d_codes(given_case["x"], weight, given_case["bias"], *x_codes, given_case["window"])


def expected(given_case: dict[str, Any]) -> Tensor:
    """The formula: sums of int64 by unfolding, then fp32 in the stated order."""
    window, zero, x = given_case["window"], given_case["x_zero_point"], given_case["x"]
    grid = torch.clamp(torch.round(x / given_case["x_scale"]) + zero, 0, 255) - zero
    columns = F.unfold(grid.double(), window.kernel, window.dilation, window.padding, window.stride).long()
    rows = (given_case["codes"].long() - given_case["zero_point"].long()[:, None, None, None]).flatten(1)
    total = (columns.unflatten(1, rows.shape) * rows[:, :, None]).sum(2).float()
    y = total * (given_case["x_scale"] * given_case["scale"])[:, None] + given_case["bias"][:, None]
    return y.unflatten(2, window.output(tuple(x.shape[2:])))


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    images=st.integers(1, 3),
    channels=st.integers(1, 80),
    size=st.tuples(st.integers(1, 14), st.integers(1, 14)),
    bits=st.integers(1, 8),
    geometry=st.tuples(PAIR, PAIR, st.tuples(st.integers(0, 3), st.integers(0, 3)), PAIR),
    channels_last=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_the_formula_bit_for_bit(
    kernels: str, geometry: tuple[tuple[int, int], ...], channels_last: bool, **rest: Any
) -> None:
    window = Window(*geometry)
    assume(min(window.output(rest["size"])) > 0)
    drawn = case(window=window, **rest)
    want = expected(drawn)
    if channels_last:
        drawn["x"] = drawn["x"].contiguous(memory_format=torch.channels_last)
    assert torch.equal(run(drawn), want)
    assert torch.equal(weight_of(drawn).codes(), drawn["codes"])


@pytest.mark.parametrize("channels_last", [False, True])
def test_codes_are_taken_as_they_are(kernels: str, channels_last: bool) -> None:
    drawn = case()
    zero = drawn["x_zero_point"]
    codes = torch.clamp(torch.round(drawn["x"] / drawn["x_scale"]) + zero, 0, 255).to(torch.uint8)
    want = expected(drawn)
    drawn["x"] = codes.contiguous(memory_format=torch.channels_last) if channels_last else codes
    assert torch.equal(run(drawn), want)


def test_codes_may_stand_for_other_values(kernels: str) -> None:
    drawn = case(bits=2)
    table = torch.tensor([9, 0, 255, 128])
    drawn["zero_point"].fill_(128)
    weight = weight_of(drawn, table)
    drawn["codes"] = table[drawn["codes"].int()]
    assert torch.equal(run(drawn, weight), expected(drawn))


def test_a_nan_makes_nan_what_it_goes_into(kernels: str) -> None:
    drawn = case()
    clean = run(drawn)
    drawn["x"][1, 7, 4, 5] = torch.nan
    y = run(drawn)
    hit = torch.zeros_like(y, dtype=torch.bool)
    hit[1, 7, 3:6, 4:7] = True
    assert torch.equal(y.isnan(), hit)
    assert torch.equal(y[~hit], clean[~hit])


def test_what_does_not_fit_is_refused(kernels: str) -> None:
    drawn = case()
    weight, window, x = weight_of(drawn), drawn["window"], drawn["x"]
    x_codes = (drawn["x_scale"], drawn["x_zero_point"], (0, 255))
    for bad_x in (x.double(), x[0], x[:, :36]):
        with pytest.raises(RuntimeError):
            depthwise_conv2d_codes(bad_x, weight, drawn["bias"], *x_codes, window)
    for bad_window in (Window((9, 3)), Window((0, 3)), Window((3, 3), (0, 1)), Window((3, 3), dilation=(6, 1))):
        with pytest.raises(RuntimeError):
            depthwise_conv2d_codes(x, weight, drawn["bias"], *x_codes, bad_window)
    for change in (
        {"packed": weight.packed[:-1]},
        {"bits": 5},
        {"scale": weight.scale * torch.nan},
        {"zero_point": weight.zero_point + 256},
    ):
        with pytest.raises(RuntimeError):
            depthwise_conv2d_codes(x, replace(weight, **change), drawn["bias"], *x_codes, window)
    with pytest.raises(RuntimeError):
        depthwise_conv2d_codes(x, weight, drawn["bias"][:-1], *x_codes, window)
    with pytest.raises(KernelError):
        DepthwiseWeight.of(drawn["codes"], drawn["scale"][:2], drawn["zero_point"], 4)
    with pytest.raises(KernelError, match="takes more than 3 bits"):
        DepthwiseWeight.of(drawn["codes"], drawn["scale"], drawn["zero_point"], 3)


def test_it_is_a_well_behaved_operator() -> None:
    drawn = case()
    weight = weight_of(drawn)
    parts = (weight.packed, weight.scale, weight.zero_point, weight.values, drawn["bias"])
    rest = (drawn["x_scale"], drawn["x_zero_point"], 0, 255, 4, 37, *drawn["window"].numbers())
    torch.library.opcheck(torch.ops.subbyte.depthwise_conv2d_codes.default, (drawn["x"], *parts, *rest))
