"""Learned scales and zero points: values are fake_quantize's, gradients the published ones."""

import pytest
import torch

from subbyte.errors import ConfigError
from subbyte.kernels.operator import is_native
from subbyte.numerics import Learned, fake_quantize, learned_fake_quantize, learned_sum
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


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_sum_in_one_pass_is_the_sum_of_two(memory_format: torch.memory_format) -> None:
    found = []
    for in_one in (False, True):
        random = torch.Generator().manual_seed(3)
        x, y = (torch.randn(2, 7, 9, 5, generator=random).contiguous(memory_format=memory_format) for _ in range(2))
        leaves = [x, torch.tensor(0.2), y, torch.rand(1, 7, 1, 1, generator=random) / 200 + 0.001, torch.tensor(3.3)]
        x, scale, y, y_scale, y_zero = (leaf.requires_grad_() for leaf in leaves)
        first = Learned(x, scale, torch.tensor(0, dtype=torch.int32), TensorSpec("int4"), 0.3)
        second = Learned(y.relu(), y_scale, y_zero, TensorSpec("uint8", scheme="asym", granularity="per_channel"), 0.7)
        total = learned_sum(first, second) if in_one else first.value() + second.value()
        found.append([total, *torch.autograd.grad(total, leaves, torch.randn(total.shape, generator=random))])
    assert found[0][0].stride() == found[1][0].stride()
    assert all(torch.equal(two, one) for two, one in zip(*found, strict=True))
    assert all(gradient.count_nonzero() for gradient in found[1][1:])


def test_a_sum_in_one_pass_needs_one_layout() -> None:
    scale, zero, spec = torch.tensor(0.2), torch.tensor(0, dtype=torch.int32), TensorSpec("int4")

    def learned(x: torch.Tensor) -> Learned:
        return Learned(x, scale, zero, spec)

    x = torch.randn(4, 4)
    assert learned(x).joins(learned(x + 1)) == is_native()
    assert not any(learned(x).joins(learned(other)) for other in (x.T, x[:1], x.bfloat16(), x.double()))


def test_a_table_has_no_scale_that_is_learned_so() -> None:
    with pytest.raises(ConfigError, match="needs an integer type"):
        learned_fake_quantize(torch.randn(3), torch.tensor(1.0), torch.tensor(0.0), TensorSpec("bint1"))
