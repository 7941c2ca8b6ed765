"""Values that are made again on the way back."""

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

import subbyte
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


class _Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)))
        self.head = nn.Linear(8, 8)
        self.again = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint(self.inner, x, use_reentrant=False) if self.again else self.inner(x))


@pytest.mark.parametrize("again", [True, False])
def test_checkpointing_keeps_no_inputs(again: bool) -> None:
    model = subbyte.prepare_qat(_Chain(), "w4a4", seeded((4, 8))).train()
    model.again = again
    seen = []
    for layer in model.inner:
        layer[0].register_forward_pre_hook(lambda _, given: seen.append(StorageWeakRef(given[0].untyped_storage())))
    y = model(seeded((4, 8)).requires_grad_())
    kept = [not each.expired() for each in seen]
    assert kept == [True, not again, not again]  # the first is the input of what is checkpointed
    y.sum().backward()
    assert len(seen) == (6 if again else 3)
