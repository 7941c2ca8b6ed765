"""A sign of what is never negative is told of."""

import warnings

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded
from subbyte.training.binary import LearnableShift

X = seeded((8, 4, 6, 6))


def _net(*between: nn.Module) -> nn.Module:
    return randomized(nn.Sequential(nn.Conv2d(4, 4, 3), *between, nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3)))


class _Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.max_pool2d(F.relu(self.second(F.relu(self.first(x)))), 2))


def test_a_sign_of_what_relu_gives_warns_once_and_names_the_op() -> None:
    with pytest.warns(subbyte.LostSignWarning, match=r"input of op '2' is never negative.*LearnableShift") as found:
        subbyte.prepare_qat(_net(nn.ReLU()), "w1a1", X, first_last="int8")
    assert len(found) == 1
    assert found[0].filename == __file__
    with pytest.warns(subbyte.LostSignWarning, match="input of ops 'second', 'last' is never"):
        subbyte.prepare_qat(randomized(_Functional()), "w1a1", X)


@pytest.mark.parametrize("between", [(), (nn.ReLU(), LearnableShift(4)), (nn.ReLU(), nn.BatchNorm2d(4))])
def test_a_sign_that_is_not_lost_or_may_be_learned_does_not(between: tuple[nn.Module, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        subbyte.prepare_qat(_net(*between), "w1a1", X, first_last="int8")
        subbyte.prepare_qat(_net(nn.ReLU()), "wbint1a4", X, first_last="int8")
