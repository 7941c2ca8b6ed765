"""A relu behind which a quantizer stands: the gradients of relu and quantizer, whoever makes the pass."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from subbyte.numerics import Geometry, Learned, learned_convolution, learned_fake_quantize, rectify
from subbyte.spec import TensorSpec

Relu = Callable[[Tensor], Tensor]
X, GRADIENT = torch.randn(2, 5, 40, 3), torch.randn(2, 5, 40, 3)
ZERO = torch.tensor(0, dtype=torch.int32)


class Passes(TorchDispatchMode):
    """Counts the passes that relu makes on the way back."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten.threshold_backward.default
        return function(*args, **(kwargs or {}))


def quantized(x: Tensor, scale: Tensor, dtype: str = "uint4") -> Tensor:
    return learned_fake_quantize(x, scale, ZERO, TensorSpec(dtype), 0.25)


def one_reader(x: Tensor, scale: Tensor, relu: Relu) -> Tensor:
    return quantized(relu(x), scale)


def half(x: Tensor, scale: Tensor, relu: Relu) -> Tensor:
    return quantized(relu(x.bfloat16()), scale)


def two_quantizers(x: Tensor, scale: Tensor, relu: Relu) -> Tensor:
    y = relu(x)
    return quantized(y, scale) + quantized(y, scale, "uint8")


def a_float_reader_before(x: Tensor, scale: Tensor, relu: Relu) -> Tensor:
    y = relu(x)
    return y * 3 + quantized(y, scale)


def a_float_reader_after(x: Tensor, scale: Tensor, relu: Relu) -> Tensor:
    y = relu(x)
    return quantized(y, scale) + y.sin()


def a_relu_before_a_sum(x: Tensor, scale: Tensor, relu: Relu) -> Tensor:
    # The add hands the gradient that one relu's quantizer masked to the other relu as it is.
    return quantized(relu(relu(x) + (x.flip(0) - 1.0)), scale)


def a_view_between(x: Tensor, scale: Tensor, relu: Relu) -> Tensor:
    return quantized(relu(x).transpose(1, 2), scale).transpose(1, 2)


def clipped_below(x: Tensor, scale: Tensor, relu: Relu) -> Tensor:
    return learned_fake_quantize(relu(x), scale, torch.tensor(-3, dtype=torch.int32), TensorSpec("int3"), 1.0)


def a_convolution(x: Tensor, scale: Tensor, relu: Relu) -> Tensor:
    y = Learned(relu(x), scale, ZERO, TensorSpec("uint4"), 0.25)
    weight = Learned(torch.ones(5, 5, 1, 1), torch.tensor(0.3), ZERO, TensorSpec("int4"))
    return learned_convolution(y, weight, Geometry((1, 1), (0, 0), (1, 1), 1))


CASES = [
    (one_reader, 0),
    (half, 1),
    (two_quantizers, 1),
    (a_float_reader_before, 1),
    (a_float_reader_after, 1),
    (a_relu_before_a_sum, 1),
    (a_view_between, 1),
    (clipped_below, 0),
    (a_convolution, 0),
]


@pytest.mark.parametrize(("network", "passes"), CASES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_gradients_are_those_of_relu_and_quantizer(network: Any, passes: int, channels_last: bool) -> None:
    found, counted = [], Passes()
    for relu in (F.relu, rectify):
        x = X.contiguous(memory_format=torch.channels_last) if channels_last else X.clone()
        x, scale = x.requires_grad_(), torch.tensor(0.11, requires_grad=True)
        y = network(x, scale, relu)
        with counted:
            gradients = torch.autograd.grad(y, (x, scale), GRADIENT.to(y.dtype))
        found.append((y, *gradients))
        counted.count, count = 0, counted.count
    assert all(torch.equal(fused, plain) for plain, fused in zip(*found, strict=True))
    assert found[0][1].count_nonzero() > 0
    assert count == passes


def test_a_hook_that_changes_the_gradient_is_heard() -> None:
    found = []
    for relu in (F.relu, rectify):
        x = X.clone().requires_grad_()
        y = relu(x)
        y.register_hook(lambda gradient: gradient.add_(1.0))
        quantized(y, torch.tensor(0.11)).backward(GRADIENT)
        found.append(x.grad)
    assert torch.equal(*found)


def test_gradients_of_gradients_pass_the_relu() -> None:
    x = torch.randn(20, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rectify, (x,))
    assert torch.autograd.gradgradcheck(rectify, (x,))
