"""adaround: the error that it minimizes against a forward of the op, and what it chooses between."""

from itertools import product

import pytest
import torch
from recovering import WEIGHTS, assert_same_converted, assert_same_tensors, error, every_op, prepared, seen, tensors_of
from torch import nn

import subbyte
from networks import randomized, seeded
from subbyte import TensorSpec
from subbyte.algorithms.adaround import OutputError
from subbyte.algorithms.input_moments import input_moments
from subbyte.algorithms.soft_rounding import SoftRounding
from subbyte.errors import ConfigError
from subbyte.numerics import neighbours

FAST = {"steps": 60, "learning_rate": 0.1}


@pytest.mark.parametrize("name", WEIGHTS)
def test_every_op_and_type_gives_an_output_nearer_to_float(name: str) -> None:
    model, data = every_op()
    untouched = tensors_of(model)
    nearest, learned = (prepared(model, data, WEIGHTS[name], each) for each in ([], {"adaround": FAST}))
    assert error(learned, model, data) < 0.9 * error(nearest, model, data)
    for op, other in zip(seen(learned, data).ops.values(), seen(nearest, data).ops.values(), strict=True):
        below, above = neighbours(other.weight, other.params, other.spec)
        assert torch.all(torch.isclose(op.weight, below, atol=1e-5) | torch.isclose(op.weight, above, atol=1e-5))
        assert torch.equal(op.params.scale, other.params.scale)
    assert_same_converted(learned, data)
    assert_same_tensors(tensors_of(model), untouched)


@pytest.mark.parametrize("name", ["conv", "depthwise", "grouped", "up", "linear"])
def test_the_error_is_that_of_a_forward(name: str) -> None:
    model, data = every_op()
    run = prepared(model, data, WEIGHTS["int4 per_channel"])
    view = seen(run, data)
    op, count = view.ops[name], 0
    other = op.weight + 0.1 * seeded(tuple(op.weight.shape), seed=8)
    found: dict[str, torch.Tensor | float] = {"other": 0.0, "own": 0.0}
    for calls, float_calls in zip(view.quantized_calls(name), view.float_calls(name), strict=True):
        for call, float_call in zip(calls, float_calls, strict=True):
            count += op.columns(call.input).shape[2]
            for key, weight in (("other", other), ("own", op.weight)):
                difference = op.apply(call.quantized_input, weight) - op.apply(float_call.input, op.weight)
                found[key] = found[key] + op.by_channel(difference).double().square().sum(1)
    error_of = OutputError(op, input_moments(view, name), SoftRounding(op))
    share = error_of.share.expand(-1, op.matrix(op.weight).shape[1], 1).flatten().double()
    expected = ((found["other"] - found["own"]) * share).sum() / count
    torch.testing.assert_close(error_of(other).double(), expected, rtol=1e-3, atol=1e-3)


def test_comes_near_to_the_best_of_all_choices() -> None:
    model = randomized(nn.Sequential(nn.Linear(8, 12)))
    data = [seeded((64, 8), seed=1) @ (seeded((8, 8), seed=2) + torch.eye(8))]
    spec = TensorSpec("int2", "sym", "per_channel")
    options = {"adaround": {"steps": 300, "learning_rate": 0.03}}
    learned = prepared(model, data, spec, options, activation=None)[0].weight.detach()
    op = seen(prepared(model, data, spec, activation=None), data).ops["0"]
    below, above = neighbours(op.weight, op.params, op.spec)

    def row_error(weight: torch.Tensor) -> torch.Tensor:
        return ((weight - op.weight) @ data[0].t()).square().sum(1)

    choices = torch.tensor(list(product([0.0, 1.0], repeat=8)))
    best = torch.stack([row_error(torch.lerp(below, above, choice.expand(12, -1))) for choice in choices]).amin(0)
    excess, before = row_error(learned) - best, row_error(op.quantized()) - best
    assert excess.sum() < 0.4 * before.sum()
    assert (excess < 1e-5 * best).sum() >= 5


def test_the_same_each_time() -> None:
    model, data = every_op()
    runs = [prepared(model, data, WEIGHTS["int4 per_channel"], {"adaround": FAST}) for _ in range(2)]
    assert_same_tensors(tensors_of(runs[0]), tensors_of(runs[1]))


def test_other_methods_of_rounding_are_refused_beside_it() -> None:
    for other in ("gptq", "reconstruct"):
        with pytest.raises(ConfigError, match="do the same in two ways"):
            subbyte.prepare(nn.Linear(4, 4), "w4", [seeded((8, 4))], recover=["adaround", other])
