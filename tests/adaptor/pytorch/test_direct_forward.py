"""`model.forward(x)` in place of `model(x)`."""

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, randomized, seeded

X = seeded((4, 3, 8, 8))


@pytest.mark.parametrize("config", ["w4a4", "w4a8:dynamic", "w4"])
@pytest.mark.parametrize("network", [ResidualNet, lambda: nn.Conv2d(3, 4, 3)], ids=["network", "op"])
def test_of_the_model(network: type[nn.Module], config: str) -> None:
    prepared = subbyte.prepare(randomized(network()), config, X)
    with torch.no_grad():
        for model in (prepared, subbyte.convert(prepared)):
            assert torch.equal(model.forward(X), model(X))


class Block(nn.Module):
    """Two layers and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)


class Outer(nn.Module):
    """Runs its block past the module, after it has run it as one where `also` says so."""

    def __init__(self, also: bool) -> None:
        super().__init__()
        self.block, self.also = Block(), also

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(x) if self.also else x
        return self.block.forward(x)


@pytest.mark.parametrize("also", [True, False])
def test_of_a_part_that_is_no_op(also: bool) -> None:
    model, x = randomized(Outer(also)), seeded((4, 6))
    prepared = subbyte.prepare(model, "w8a8", x)
    converted = subbyte.convert(prepared)
    with torch.no_grad():
        want, got = model(x), prepared(x)
        assert torch.equal(converted(x), got)
        assert torch.equal(converted.forward(x), got)
        assert (got - want).norm() < 0.05 * want.norm()


class PastAnOp(Block):
    """Calls the forward of a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return self.a.forward(x) + self.b(x)


def test_of_an_op_in_the_models_own_code_is_refused_by_that_name() -> None:
    message = r"call of op 'a' \(line \d+ of test_direct_forward\.py\) goes past the module.*write module\(x\) there"
    with pytest.raises(subbyte.UnseenOpError, match=message):
        subbyte.quantize(PastAnOp(), "w4a4", seeded((4, 6)))
