"""Values that are made again on the way back."""

import torch

from networks import seeded
from subbyte.adaptor.pytorch.made_again import made_again

X, W = seeded((3, 4)), seeded((4, 2))


def test_the_gradient_is_that_of_the_value() -> None:
    made = []

    def make() -> torch.Tensor:
        made.append(1)
        return X * 2

    weight, x = W.clone().requires_grad_(), X.clone().requires_grad_()
    value = x * 2
    with made_again(value, make):
        y = value @ weight
    assert not made
    y.sum().backward()
    assert made == [1]
    assert torch.equal(weight.grad, (X * 2).t() @ torch.ones(3, 2))
    assert torch.equal(x.grad, 2 * torch.ones(3, 2) @ W.t())


def test_nothing_is_made_where_no_gradient_is_asked_for() -> None:
    with torch.no_grad(), made_again(X, lambda: X / 0):
        assert torch.equal(X @ W, X @ W)
