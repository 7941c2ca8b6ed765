"""Learned scales and zero points: values are fake_quantize's, gradients the published ones."""

import pytest
import torch

from subbyte.errors import ConfigError
from subbyte.numerics import fake_quantize, learned_fake_quantize
from subbyte.spec import QuantParams, TensorSpec


@pytest.mark.parametrize(
    ("granularity", "shape"),
    [("per_tensor", ()), ("per_channel", (6, 1)), ("per_token", (6, 1)), ("per_group(4)", (6, 3))],
)
def test_values_are_those_of_fake_quantize(granularity: str, shape: tuple[int, ...]) -> None:
    spec = TensorSpec("int3", scheme="asym", granularity=granularity)
    x, scale = torch.randn(6, 10), torch.rand(shape) + 0.1
    zero_point = torch.randint(-4, 4, shape, dtype=torch.int32)
    wanted = fake_quantize(x, QuantParams(scale, zero_point), spec)
    assert torch.equal(learned_fake_quantize(x, scale, zero_point + 0.3, spec), wanted)
    half = learned_fake_quantize(x.bfloat16(), scale, zero_point.float(), spec)
    assert torch.equal(half, fake_quantize(x.bfloat16(), QuantParams(scale, zero_point), spec))


def test_gradients_by_hand() -> None:
    # v: -9 (clipped to -4), 1.25, 2.75, 9 (clipped to 3)
    x = torch.tensor([-4.5, 0.625, 1.375, 4.5], requires_grad=True)
    scale, zero_point = torch.tensor(0.5, requires_grad=True), torch.tensor(0.0, requires_grad=True)
    learned_fake_quantize(x, scale, zero_point, TensorSpec("int3")).sum().backward()
    assert torch.equal(x.grad, torch.tensor([0.0, 1.0, 1.0, 0.0]))
    assert scale.grad == -4 + (1 - 1.25) + (3 - 2.75) + 3
    assert zero_point.grad == -0.5 - 0.5


def test_a_table_has_no_scale_that_is_learned_so() -> None:
    with pytest.raises(ConfigError, match="needs an integer type"):
        learned_fake_quantize(torch.randn(3), torch.tensor(1.0), torch.tensor(0.0), TensorSpec("bint1"))
