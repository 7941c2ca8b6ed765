"""A convolution of quantized values as one node: what its parts give one after another, bit for bit."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.numerics import Geometry, Learned, learned_convolution
from subbyte.spec import TensorSpec

ZERO = torch.tensor(0, dtype=torch.int32)
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CASES = {
    "plain": (2, Geometry((1, 1), (1, 1), (1, 1), 1)),
    "strided": (2, Geometry((2, 1), (0, 2), (1, 1), 1)),
    "dilated, in groups": (2, Geometry((1, 1), (2, 2), (2, 2), 2)),
    "depthwise": (2, Geometry((1, 1), (1, 1), (1, 1), 4)),
    "one dimension": (1, Geometry((2,), (1,), (1,), 1)),
    "three dimensions": (3, Geometry((1, 2, 1), (1, 1, 1), (1, 1, 1), 2)),
}


def leaves(dimensions: int, groups: int) -> list[Tensor]:
    """Input, its scale and zero point; weight and its scales."""
    random = torch.Generator().manual_seed(dimensions + groups)
    x = torch.randn(2, 4, *[7] * dimensions, generator=random)
    weight = torch.randn(8, 4 // groups, *[3] * dimensions, generator=random)
    scales = torch.rand(8, *[1] * (dimensions + 1), generator=random) / 5 + 0.1
    return [x, torch.tensor(0.21), torch.tensor(2.4), weight, scales]


def parts(given: list[Tensor]) -> tuple[Learned, Learned]:
    x, scale, zero, weight, weight_scale = given
    first = Learned(x, scale, zero, TensorSpec("uint4", scheme="asym"), 0.3)
    return first, Learned(weight, weight_scale, ZERO, TensorSpec("int4", granularity="per_channel"), 0.7)


@pytest.mark.parametrize("frozen", [(), (0,), (0, 1, 2), (3,), (3, 4)])
@pytest.mark.parametrize("case", CASES)
def test_it_is_its_parts_one_after_another(case: str, frozen: tuple[int, ...]) -> None:
    dimensions, geometry = CASES[case]
    found = []
    for in_one in (False, True):
        given = [
            leaf.requires_grad_(index not in frozen) for index, leaf in enumerate(leaves(dimensions, geometry.groups))
        ]
        x, weight = parts(given)
        if in_one:
            y = learned_convolution(x, weight, geometry)
        else:
            y = CONVOLUTIONS[dimensions](x.value(), weight.value(), None, *geometry)
        y.retain_grad()
        (y * torch.arange(y.numel()).view(y.shape).sin()).sum().backward()
        found.append([y, y.grad, *(leaf.grad for leaf in given)])
    apart, joined = found
    for index, (want, got) in enumerate(zip(apart, joined, strict=True)):
        assert (want is None and got is None) if index - 2 in frozen else torch.equal(want, got)


def test_channels_last_stays_so() -> None:
    given = leaves(2, 1)
    given[0] = given[0].contiguous(memory_format=torch.channels_last)
    given[3] = given[3].contiguous(memory_format=torch.channels_last)
    x, weight = parts([leaf.requires_grad_() for leaf in given])
    geometry = CASES["plain"][1]
    one = learned_convolution(x, weight, geometry)
    two = F.conv2d(x.value(), weight.value(), None, *geometry)
    assert one.stride() == two.stride()
    assert torch.equal(one, two)
    gradient = torch.randn(one.shape)
    for mine, want in zip(
        torch.autograd.grad(one, given, gradient), torch.autograd.grad(two, given, gradient), strict=True
    ):
        assert torch.equal(mine, want)


def test_only_what_it_was_given_is_kept() -> None:
    given = [leaf.requires_grad_() for leaf in leaves(2, 1)]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.data_ptr()) or x, lambda x: x):
        learned_convolution(*parts(given), CASES["plain"][1])
    assert {given[0].data_ptr(), given[3].data_ptr()} < set(kept)
    assert len(kept) == 6  # and scales and zero points


def test_gradients_of_its_gradients_are_refused() -> None:
    given = [leaf.requires_grad_() for leaf in leaves(2, 1)]
    y = learned_convolution(*parts(given), CASES["plain"][1])
    (of_x,) = torch.autograd.grad(y.square().sum(), given[:1], create_graph=True)
    with pytest.raises(KernelError, match="gradients of gradients"):
        of_x.sum().backward()
