"""linear_codes: every instruction set against integers of Python's own size, and what it refuses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels import linear as in_torch
from subbyte.kernels.linear import linear_codes
from subbyte.kernels.linear_weight import LinearWeight
from subbyte.kernels.panels import PANEL

IN_TORCH = {"linear_codes": in_torch._linear_codes}


def layer(
    rows: int, outputs: int, inputs: int, bits: int, group_size: int, *, signed: bool = False, seed: int = 0
) -> dict[str, Any]:
    """Arguments of one call, with everything drawn at random."""
    random = torch.Generator().manual_seed(seed)
    groups = -(-inputs // group_size)
    low, high = (-128, 127) if signed else (0, 255)
    return {
        "x": torch.randn(rows, inputs, generator=random) * 3,
        "codes": torch.randint(0, 1 << bits, (outputs, inputs), generator=random, dtype=torch.uint8),
        "scale": torch.rand(outputs, groups, generator=random) + 0.1,
        "zero_point": torch.randint(0, 1 << bits, (outputs, groups), generator=random, dtype=torch.int32),
        "bits": bits,
        "group_size": group_size,
        "bias": torch.randn(outputs, generator=random),
        "x_scale": torch.rand(1, generator=random) * 0.1 + 0.01,
        "x_zero_point": torch.randint(low, high + 1, (1,), generator=random, dtype=torch.int32),
        "low": low,
        "high": high,
    }


def run(case: dict[str, Any]) -> Tensor:
    weight = LinearWeight.of(*(case[name] for name in ("codes", "scale", "zero_point", "bits", "group_size")))
    bias = torch.nn.functional.pad(case["bias"], (0, -len(case["bias"]) % PANEL))
    return linear_codes(case["x"], weight, bias, case["x_scale"], case["x_zero_point"], case["low"], case["high"])


def expected(case: dict[str, Any]) -> Tensor:
    """The formula: int64 sums, then fp32 in the stated order."""
    zero = case["x_zero_point"].reshape(-1, 1)
    x = torch.clamp(torch.round(case["x"] / case["x_scale"].reshape(-1, 1)) + zero, case["low"], case["high"])
    grid = x.numpy().astype(np.int64) - zero.numpy()
    codes = case["codes"].numpy().astype(np.int64)
    y = None
    for group in range(case["scale"].shape[1]):
        part = slice(group * case["group_size"], (group + 1) * case["group_size"])
        total = grid[:, part] @ (codes[:, part] - case["zero_point"][:, group : group + 1].numpy()).T
        scale = case["x_scale"].reshape(-1, 1) * case["scale"][:, group]
        term = torch.from_numpy(total.astype(np.float32)) * scale
        y = term if y is None else y + term
    assert y is not None
    return y + case["bias"]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(0, 30),
    outputs=st.integers(1, 50),
    inputs=st.integers(1, 150),
    bits=st.integers(1, 8),
    group_size=st.integers(1, 160),
    signed=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_the_formula_bit_for_bit(kernels: str, seed: int, signed: bool, **sizes: int) -> None:
    case = layer(**sizes, signed=signed, seed=seed)
    assert torch.equal(run(case), expected(case))


@pytest.mark.parametrize("bits", [1, 4, 7, 8])
@pytest.mark.parametrize("x_code", [0, 255])
@pytest.mark.parametrize("inputs", [9, 4096, 30_000])
def test_the_largest_sums_do_not_saturate(kernels: str, bits: int, x_code: int, inputs: int) -> None:
    case = layer(2, 17, inputs, bits, inputs)
    for zero_point in (0, (1 << bits) - 1):
        case["codes"].fill_((1 << bits) - 1 - zero_point)
        case["zero_point"].fill_(zero_point)
        case["x_zero_point"].fill_(255 - x_code)
        case["x"].fill_(1e6 if x_code else -1e6)
        assert torch.equal(run(case), expected(case))


@pytest.mark.parametrize("values", [[0, 2], [255, 0, 7], list(range(240, 256))])
def test_codes_may_stand_for_other_values(kernels: str, values: list[int]) -> None:
    bits = (len(values) - 1).bit_length()
    for rows, group_size in ((1, 70), (9, 16), (9, 70)):
        case = layer(rows, 35, 70, bits, group_size)
        case["codes"] %= len(values)
        case["zero_point"].fill_(128)
        names = ("codes", "scale", "zero_point", "bits", "group_size")
        weight = LinearWeight.of(*(case[name] for name in names), torch.tensor(values))
        bias = torch.nn.functional.pad(case["bias"], (0, -35 % PANEL))
        y = linear_codes(case["x"], weight, bias, case["x_scale"], case["x_zero_point"], case["low"], case["high"])
        case["codes"] = torch.tensor(values)[case["codes"].int()]
        assert torch.equal(y, expected(case))


def test_ties_go_to_the_even_code(kernels: str) -> None:
    case = layer(1, 1, 8, 8, 8)
    case["x"] = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, 3.5, 1e9, -1e9]])
    case["x_scale"].fill_(1.0)
    assert torch.equal(run(case), expected(case))


def test_each_row_may_have_a_scale_of_its_own(kernels: str) -> None:
    case = layer(13, 20, 33, 4, 8)
    case["x_scale"] = torch.rand(13) + 0.01
    case["x_zero_point"] = torch.arange(13, dtype=torch.int32) * 9
    assert torch.equal(run(case), expected(case))


def test_a_nan_makes_its_row_nan_and_no_other(kernels: str) -> None:
    case = layer(4, 20, 33, 4, 33)
    clean = run(case)
    case["x"][2, 32] = torch.nan
    case["x"][1, 0] = torch.inf
    y = run(case)
    assert y[2].isnan().all()
    assert y[1].isfinite().all()
    assert torch.equal(y[[0, 3]], clean[[0, 3]])


def test_threads_and_layouts_leave_no_trace(kernels: str) -> None:
    case = layer(40, 300, 200, 3, 64)
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
    case = layer(3, 20, 33, 4, 33)
    weight = LinearWeight.of(*(case[name] for name in ("codes", "scale", "zero_point", "bits", "group_size")))
    given_x = (case["x_scale"], case["x_zero_point"], 0, 255)
    case["bias"].zero_()
    assert torch.equal(linear_codes(case["x"], weight, torch.empty(0), *given_x), expected(case))


def test_the_codes_come_back() -> None:
    for group_size in (1, 3, 8, 50):
        case = layer(1, 19, 37, 5, group_size)
        weight = LinearWeight.of(*(case[name] for name in ("codes", "scale", "zero_point", "bits", "group_size")))
        assert torch.equal(weight.codes(), case["codes"])
        blocks = sum(-(-min(group_size, 37 - first) // 32) for first in range(0, 37, group_size))
        assert weight.packed.numel() == 2 * blocks * 16 * 32 * 5 // 8  # two panels, each block 32 inputs of 16 outputs


def test_what_does_not_fit_is_refused(kernels: str) -> None:
    case = layer(3, 20, 33, 4, 8)
    weight = LinearWeight.of(*(case[name] for name in ("codes", "scale", "zero_point", "bits", "group_size")))
    x, rest = case["x"], (torch.empty(0), case["x_scale"], case["x_zero_point"], 0, 255)
    for bad_x in (x.double(), x[0], x[:, :0], x[:, :32], torch.randn(3, 34), torch.randn(3, 80)):
        with pytest.raises(RuntimeError):
            linear_codes(bad_x, weight, *rest)
    for changes in (
        {"outputs": 0},
        {"outputs": 40},
        {"inputs": 0},
        {"bits": 9},
        {"bits": 5},
        {"group_size": 0},
        {"group_size": 2},
    ):
        with pytest.raises(RuntimeError):
            linear_codes(x, replace(weight, **changes), *rest)
    table, zeros = torch.zeros(16, dtype=torch.uint8), weight.zero_point
    parts: list[dict[str, Any]] = [
        {"packed": weight.packed[:-1]},
        {"packed": weight.packed.view(torch.int8)},
        {"zero_point": zeros.reshape(-1)[:7]},
        {"values": table[:15]},
        {"packed": weight.packed.to("meta")},
        {"scale": weight.scale * torch.nan},
        {"scale": weight.scale * torch.inf},
        {"values": table.float()},
    ]
    for change in parts:
        with pytest.raises(RuntimeError):
            linear_codes(x, replace(weight, **change), *rest)
    for scale in (torch.tensor([torch.nan]), torch.tensor([0.0]), torch.ones(2)):
        with pytest.raises(RuntimeError):
            linear_codes(x, weight, torch.empty(0), scale, case["x_zero_point"].expand(scale.shape), 0, 255)
    with pytest.raises(RuntimeError):
        linear_codes(x, weight, torch.empty(0), case["x_scale"], torch.tensor([256], dtype=torch.int32), 0, 255)
    with pytest.raises(RuntimeError):
        linear_codes(x, weight, torch.empty(0), case["x_scale"], case["x_zero_point"], 0, 256)


def test_a_weight_that_does_not_fit_itself_is_refused() -> None:
    case = layer(1, 20, 33, 4, 8)
    with pytest.raises(KernelError, match="takes scales of shape"):
        LinearWeight.of(case["codes"], case["scale"][:, :2], case["zero_point"], 4, 8)
    with pytest.raises(KernelError, match="at most 4 bits"):
        LinearWeight.of(case["codes"], case["scale"], case["zero_point"], 5, 8, torch.arange(32))
    with pytest.raises(KernelError, match="takes more than 3 bits"):
        LinearWeight.of(case["codes"], case["scale"], case["zero_point"], 3, 8)


def test_it_is_a_well_behaved_operator() -> None:
    case = layer(3, 20, 33, 4, 8)
    weight = LinearWeight.of(*(case[name] for name in ("codes", "scale", "zero_point", "bits", "group_size")))
    parts = (weight.packed, weight.scale, weight.zero_point, weight.sums, weight.values)
    rest = (torch.empty(0), case["x_scale"], case["x_zero_point"], 0, 255, 4, 20, 33, 8)
    torch.library.opcheck(torch.ops.subbyte.linear_codes.default, (case["x"], *parts, *rest))
