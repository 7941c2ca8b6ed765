"""rescale_: every instruction set against NumPy's fp32, which rounds every product and every sum."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from subbyte.kernels import rescale as in_torch

OPS = torch.ops.subbyte
IN_TORCH = {"rescale_": in_torch._rescale}


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.lists(st.integers(1, 20), min_size=2, max_size=4),
    layout=st.sampled_from(["row-major", "transposed", "with gaps"]),
    scales=st.booleans(),
    biases=st.sampled_from(["none", "one", "several"]),
    seed=st.integers(0, 1 << 30),
)
def test_the_formula_bit_for_bit(
    kernels: str, shape: list[int], layout: str, scales: bool, biases: str, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    channels = (shape[1], *[1] * (len(shape) - 2))
    sums = torch.randint(-9999, 9999, shape, generator=random).float()
    if layout == "transposed":
        sums = sums.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "with gaps":
        sums = sums.repeat_interleave(2, -1)[..., ::2]
    x_scale = torch.rand((), generator=random)
    scale = torch.rand(channels if scales else (), generator=random)
    bias = torch.randn({"none": (0,), "one": (), "several": channels}[biases], generator=random)
    wanted = sums.numpy() * (x_scale.numpy() * scale.numpy()).astype(np.float32)
    wanted = wanted + bias.numpy() if bias.numel() else wanted
    OPS.rescale_(sums, x_scale, scale, bias)
    assert torch.equal(sums, torch.from_numpy(wanted))


def test_minus_zero_stays_where_there_is_no_bias(kernels: str) -> None:
    sums = torch.full((2, 20), -0.0)
    OPS.rescale_(sums, torch.tensor(0.5), torch.ones(20), torch.empty(0))
    assert bool(sums.signbit().all())


def test_many_rows_of_few_channels(kernels: str) -> None:
    sums = torch.randn(2, 3, 501, 67).contiguous(memory_format=torch.channels_last)
    scale, bias = torch.rand(3, 1, 1), torch.randn(3, 1, 1)
    wanted = sums * (torch.tensor(0.3) * scale) + bias
    OPS.rescale_(sums, torch.tensor(0.3), scale, bias)
    assert torch.equal(sums, wanted)


def test_what_does_not_fit_is_refused(kernels: str) -> None:
    sums, one, four = torch.randn(3, 4), torch.ones(()), torch.ones(4)
    for bad in (
        (sums.double(), one, four, four),
        (sums, one.double(), four, four),
        (sums, four, four, four),
        (sums, one, four.double(), four),
        (sums, one, torch.ones(0), four),
        (sums, one, torch.ones(3), four),
        (sums, one, four, torch.ones(3)),
        (sums, one, torch.ones(5), torch.ones(0)),
        (sums, one, torch.ones(1, 1, 4), torch.ones(0)),
    ):
        with pytest.raises(RuntimeError):
            OPS.rescale_(*bad)


def test_it_is_a_well_behaved_operator() -> None:
    torch.library.opcheck(OPS.rescale_.default, (torch.randn(3, 4), torch.ones(()), torch.ones(4), torch.randn(4)))
