"""hqq: the error of weights in a power below one, for every type, and against a search of all there are."""

import pytest
import torch
from recovering import WEIGHTS, assert_same_converted, assert_same_tensors, every_op, prepared, seen, tensors_of
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded
from subbyte import TensorSpec
from subbyte.algorithms.hqq import shrink
from subbyte.errors import ConfigError


def _error(weight: Tensor, quantized: Tensor) -> Tensor:
    """The sum of |error|^0.7 of each row."""
    return (weight - quantized).abs().pow(0.7).flatten(1).sum(1)


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_error_of_every_op_shrinks(name: str) -> None:
    model, data = every_op()
    untouched = tensors_of(model)
    before, found = (prepared(model, data, WEIGHTS[name], each) for each in ([], "hqq"))
    total = {"old": 0.0, "new": 0.0}
    for one, other in zip(seen(before, data).ops.values(), seen(found, data).ops.values(), strict=True):
        old, new = (float(_error(one.weight, each.quantized()).sum()) for each in (one, other))
        assert new <= old + 1e-4
        assert torch.equal(one.weight, other.weight)
        assert one.params.scale.shape == other.params.scale.shape
        total = {"old": total["old"] + old, "new": total["new"] + new}
    assert total["new"] < 0.995 * total["old"]
    assert_same_converted(found, data)
    assert_same_tensors(tensors_of(model), untouched)


def test_comes_near_to_the_best_of_all_scales_and_zero_points() -> None:
    weight, data = seeded((24, 16), seed=4), [seeded((8, 16))]
    weight[:, 3] *= 6  # outliers
    model = nn.Sequential(nn.Linear(16, 24, bias=False))
    model[0].weight.data = weight
    spec = TensorSpec("uint3", "asym", "per_channel")
    runs = (prepared(model, data, spec, each, activation=None) for each in ([], {"hqq": {"steps": 100}}))
    before, found = (seen(run, data).ops["0"].quantized() for run in runs)
    best = torch.full((24,), torch.inf)
    span = weight.amax(1) - weight.amin(1)
    for ratio in torch.linspace(0.2, 1.2, 101):
        scale = (span * ratio / 7)[:, None]
        for zero_point in range(8):
            codes = ((weight / scale).round() + zero_point).clamp(0, 7)
            best = torch.minimum(best, _error(weight, (codes - zero_point) * scale))
    gained, possible = _error(weight, before) - _error(weight, found), _error(weight, before) - best
    assert float(gained.sum()) > 0.4 * float(possible.sum())
    assert torch.all(gained >= 0)


def test_shrinking_is_the_formula_of_the_paper() -> None:
    x = torch.tensor([-2.0, -0.05, 0.0, 0.4])
    assert torch.allclose(shrink(x, 10.0, 0.7)[[0, 3]], torch.tensor([-2 + 0.1 * 2**-0.3, 0.4 - 0.1 * 0.4**-0.3]))
    assert torch.equal(shrink(x, 10.0, 0.7)[[1, 2]], torch.zeros(2))


def test_needs_no_data_and_serves_tables_and_recurrent_modules() -> None:
    model = randomized(nn.Sequential(nn.Embedding(9, 4), nn.LSTM(4, 3)))
    before, found = (subbyte.prepare(model, "w3:g4", recover=each) for each in ([], "hqq"))
    tokens = torch.randint(0, 9, (8, 2), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert not torch.equal(before(tokens)[0], found(tokens)[0])
        assert torch.equal(subbyte.convert(found)(tokens)[0], found(tokens)[0])


def test_a_norm_of_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'hqq'.*norm"):
        subbyte.prepare(nn.Linear(4, 4), "w4", recover={"hqq": {"norm": 1}})
