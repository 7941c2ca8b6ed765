"""Some of the samples of a block at a time."""

import torch
from torch import Tensor

from networks import seeded
from subbyte.adaptor.pytorch.prepared import Call
from subbyte.algorithms.drops import Drops
from subbyte.algorithms.samples import Samples

ALL = Drops(1.0, torch.Generator().manual_seed(0))


def _calls(x: Tensor, table: Tensor, result: Tensor) -> tuple[list[Call], list[Call]]:
    return [Call((x + 1,), {"table": table}, result + 1)], [Call((x,), {"table": table}, result)]


def test_rows_of_inputs_and_results_belong_together() -> None:
    x, table = seeded((6, 4, 3)), seeded((5, 3), 1)[:4]

    def block(call: Call) -> Tensor:
        return call.args[0] + call.kwargs["table"]

    samples = Samples.of(*_calls(x, table, x + table), block)
    call, target = samples.draw(2, ALL)
    assert call.args[0].shape == target.shape == (2, 4, 3)
    assert torch.allclose(block(call) - 1, target, atol=1e-6)


def test_a_table_as_long_as_the_batch_is_not_taken_apart() -> None:
    x, table = seeded((4, 4, 3)), seeded((4, 3), 1)

    def block(call: Call) -> Tensor:
        return call.args[0] + call.kwargs["table"]

    samples = Samples.of(*_calls(x, table, x + table), block)
    for _ in range(5):
        call, target = samples.draw(4, ALL)
        assert torch.equal(call.kwargs["table"], table)
        assert torch.allclose(block(call) - 1, target, atol=1e-6)


def test_samples_that_hang_on_one_another_stay_together() -> None:
    x, table = seeded((6, 3)), seeded((1, 3), 1)

    def block(call: Call) -> Tensor:
        return call.args[0] - call.args[0].mean(0)

    samples = Samples.of(*_calls(x, table, x - x.mean(0)), block)
    call, target = samples.draw(2, ALL)
    assert torch.equal(call.args[0], x + 1)
    assert torch.equal(target, x - x.mean(0))


def test_dropped_values_are_the_float_ones() -> None:
    x, table = seeded((64, 100)), seeded((1, 100), 1)
    samples = Samples.of(*_calls(x, table, x * 2), lambda call: call.args[0] * 2)
    call, target = samples.draw(64, Drops(0.5, torch.Generator().manual_seed(1)))
    difference = call.args[0] - target / 2
    assert bool((difference.abs().lt(1e-5) | (difference - 1).abs().lt(1e-5)).all())
    assert 0.45 < float(difference.round().mean()) < 0.55
