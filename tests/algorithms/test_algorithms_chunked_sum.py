"""Sums that do not depend on how a stream is cut into batches."""

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, cifar_images, randomized, seeded
from subbyte.adaptor.pytorch.batch import batches
from subbyte.adaptor.pytorch.prepared import PreparedModel
from subbyte.algorithms.chunked_sum import ChunkedSum
from subbyte.algorithms.input_moments import second_moment

CUTS = ([60], [32, 28], [25, 25, 10], [7] * 8 + [4])


def square(x: Tensor) -> Tensor:
    return x @ x.mT


@pytest.mark.parametrize("count", [0, 3, 40, 96, 100])
def test_chunked_sum_is_the_same_for_every_cut(count: int) -> None:
    x = seeded((2, 5, count))
    cuts: list[list[int]] = [[count], [count // 2, count - count // 2], [1] * count]
    totals = []
    for cut in cuts:
        found = ChunkedSum(square, chunk=16)
        for part in x.split(cut, -1) if count else ():
            found.add(part)
        assert found.count == count
        totals.append(found.total())
    if not count:
        assert totals == [None] * 3
        return
    assert all(torch.equal(total, totals[0]) for total in totals)
    torch.testing.assert_close(totals[0], x.double() @ x.double().mT, rtol=1e-5, atol=1e-5)


def test_chunked_sum_takes_the_places_of_a_forward_apart() -> None:
    first, second = seeded((3, 50), 1), seeded((3, 50), 2)
    totals = []
    for size in (50, 10):
        found = ChunkedSum(square, chunk=16)
        for parts in zip(first.split(size, 1), second.split(size, 1), strict=True):
            for place, part in enumerate(parts):
                found.add(part, (place,))
        totals.append(found.total())
    assert torch.equal(totals[0], totals[1])


class Twice(nn.Module):
    """Calls a block, which calls its layer twice, two times."""

    def __init__(self) -> None:
        super().__init__()
        self.block = TwiceInside()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.block(x)))


class TwiceInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.last = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(torch.relu(self.linear(torch.relu(self.linear(x)))))


def test_second_moment_is_the_same_for_every_cut_when_an_op_is_called_often() -> None:
    model, x = randomized(Twice()), seeded((60, 6))
    found = []
    for cut in CUTS:
        data = list(x.split(cut))
        view = PreparedModel(subbyte.prepare(model, "w3a8", x), list(batches(data)))
        calls = list(view.op_calls("block.linear"))
        assert len(calls) == 4 * len(cut)
        found.append(second_moment(view.ops["block.linear"], calls))
    assert all(torch.equal(moment, found[0]) for moment in found)


def test_gptq_gives_the_same_codes_for_every_cut() -> None:
    model, x = randomized(ResidualNet()).eval(), cifar_images(60)
    results = [subbyte.quantize(model, "w3a8", list(x.split(cut)), recover=["gptq"]) for cut in ([60], [25, 35])]
    codes = [{name: weight.packed for name, weight in subbyte.weights(result).items()} for result in results]
    for other in codes[1:]:
        assert all(torch.equal(packed, other[name]) for name, packed in codes[0].items())
