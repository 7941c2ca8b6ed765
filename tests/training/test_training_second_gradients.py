"""Gradients of gradients: right where the first ones are formulas of PyTorch's, and refused where they are not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import seeded

X = seeded((32, 4))


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def _penalty(model: Any) -> list[Tensor]:
    """Gradients of the weights of a penalty on the gradient of the input."""
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return list(torch.autograd.grad(gradient.square().sum(), [model[0].weight, model[2].weight], allow_unused=True))


@pytest.mark.parametrize("name", ["straight_through", "clipped", "pact", "ewgs"])
def test_of_eight_bits_they_are_near_those_of_float(name: str) -> None:
    model = subbyte.prepare_qat(_network(), "w8a8", X, training={"weight": name, "activation": name}).train()
    for got, want in zip(_penalty(model), _penalty(_network()), strict=True):
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("training", [None, {"activation": "lsq_plus"}])
def test_through_a_learned_scale_they_are_refused(training: Any) -> None:
    model = subbyte.prepare_qat(_network(), "w8a8", X, training=training).train()
    with pytest.raises(subbyte.KernelError, match="gradients of gradients"):
        _penalty(model)
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    with pytest.raises(subbyte.KernelError, match="gradients of gradients"):
        gradient.square().sum().backward()


def test_of_the_gradient_of_a_scale_alone_too() -> None:
    model = subbyte.prepare_qat(_network(), "w8", X).train()
    scale = model[2].weight_quantizer.scale
    (gradient,) = torch.autograd.grad(model(X).sum(), scale, create_graph=True)
    with pytest.raises(subbyte.KernelError, match="gradients of gradients"):
        torch.autograd.grad(gradient.square().sum(), model[2].weight)


def test_of_the_operator_too() -> None:
    x, scale = X.clone().requires_grad_(), torch.tensor(0.1, requires_grad=True)
    zero_point = torch.zeros((), dtype=torch.int32)
    y = torch.ops.subbyte.learned_fake_quantize(x, scale, zero_point, -8, 7, 0, 1.0)
    (gradient,) = torch.autograd.grad(y.square().sum(), scale, create_graph=True)
    with pytest.raises(subbyte.KernelError, match="gradients of gradients"):
        torch.autograd.grad(gradient, x)


def test_a_graph_of_gradients_that_nobody_reads_changes_none() -> None:
    model = subbyte.prepare_qat(_network(), "w4a4", X).train()
    found = []
    for create_graph in (False, True):
        found.append(torch.autograd.grad(model(X).square().sum(), list(model.parameters()), create_graph=create_graph))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
