"""awq: the float function stays, weights that meet large activations lose less, ranges are searched."""

import copy

import pytest
import torch
from test_algorithms_smoothquant import RootMean, in_float, normed
from torch import nn

import subbyte
from networks import seeded, tiny_transformer, tune_config
from subbyte import TensorSpec
from subbyte.adaptor.pytorch.state import state_of
from subbyte.algorithms.awq import balanced
from subbyte.numerics import fake_quantize

WEIGHTS = [
    TensorSpec("int3", granularity="per_channel"),
    TensorSpec("uint3", "asym", "per_group(8)"),
    TensorSpec("int4", granularity="per_group(6)"),
    TensorSpec("nf4", granularity="per_group(8)"),
    TensorSpec("int4", granularity="per_tensor"),
    TensorSpec("ternary"),
    TensorSpec("bint1"),
]


def plain(norm: type[nn.Module]) -> nn.Module:
    """The network of smoothquant's tests with weights that are not small where activations are large."""
    model = normed(norm)
    with torch.no_grad():
        for op in (model.left, model.right):
            op.weight[:, [3, 11]] *= 50.0
        model.norm.weight.mul_(0.1)
    return model


def error(model: nn.Module, config: object, x: torch.Tensor, recover: object) -> float:
    with torch.no_grad():
        return float((subbyte.quantize(model, config, x, recover=recover)(x) - model(x)).square().mean())


@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
def test_every_kind_of_weight_keeps_the_float_function_and_comes_nearer(weight: TensorSpec) -> None:
    model, x = plain(RootMean), seeded((32, 6, 16))
    before = copy.deepcopy(model.state_dict())
    config = tune_config(model, x, weight, None, "weight_only")
    prepared = subbyte.prepare(model, config, x, recover=["awq"])
    wanted = model(x).detach()
    assert (in_float(prepared, x) - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert torch.equal(subbyte.convert(prepared)(x), prepared(x))
    assert error(model, config, x, ["awq"]) < error(model, config, x, None)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(subbyte.prepare(model, config, x, recover=["awq"])(x), prepared(x))


def test_planted_outliers_gain_much() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 32)).eval(), seeded((64, 64))
    with torch.no_grad():
        model[0].weight[:2] *= 30
    assert error(model, "w3", x, {"awq": {"clip": False}}) < error(model, "w3", x, None) / 3


def test_the_exponent_is_the_best_of_the_grid() -> None:
    """Against a search written out with the weights of the float model alone."""
    model, x = plain(RootMean), seeded((32, 6, 16))
    prepared = subbyte.prepare(model, "w3", x, recover={"awq": {"clip": False, "steps": 4}})
    scale = (model.norm.weight / prepared.norm.weight).detach()
    y = model.norm(x).detach()
    spec, errors, scales = prepared.left.weight_spec, [], []
    for step in range(5):
        mean = y.abs().mean((0, 1)) ** (step / 4)
        scales.append(mean / (mean.min() * mean.max()).sqrt())
        total = 0.0
        for op in (model.left, model.right):
            scaled = op.weight.detach() * scales[-1]
            rounded = fake_quantize(scaled, subbyte.calibration.calibrate_tensor(scaled, spec), spec)
            total += float(((y / scales[-1]) @ rounded.T - y @ op.weight.detach().T).square().sum())
        errors.append(total)
    torch.testing.assert_close(scale, scales[errors.index(min(errors))], rtol=1e-4, atol=1e-5)
    assert errors.index(min(errors)) > 0


def test_clipping_lowers_the_error_of_outputs() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 16)).eval(), seeded((256, 64)).relu() + 0.1
    with torch.no_grad():
        model[0].weight[:, 0] *= 4
    x[:, 0] *= 0.01  # the large weights meet small inputs
    plainly = subbyte.prepare(model, "w3", x)
    prepared = subbyte.prepare(model, "w3", x, recover=["awq"])
    assert torch.equal(prepared[0].weight, model[0].weight)
    assert (prepared[0].weight_quantizer.scale <= plainly[0].weight_quantizer.scale).all()
    assert error(model, "w3", x, ["awq"]) < error(model, "w3", x, None) / 2


def test_channels_that_are_zero_or_not_free_keep_their_scale() -> None:
    given, free = torch.tensor([4.0, 0.0, 9.0, 1.0]), torch.tensor([True, True, False, True])
    assert balanced(given, free, 0.5).tolist() == pytest.approx([2**0.5, 1.0, 1.0, 0.5**0.5])
    assert balanced(torch.zeros(3), torch.ones(3, dtype=torch.bool), 0.5).tolist() == [1.0] * 3


def test_a_transformer_keeps_its_function_and_goes_on_where_it_was_interrupted(tmp_path) -> None:
    model = tiny_transformer("llama")
    ids = torch.randint(0, 64, (8, 12), generator=torch.Generator().manual_seed(0))
    recover = {"awq": {"steps": 3, "samples": 4}}
    prepared = subbyte.prepare(model, "w4:g16", ids, recover=recover, resume=tmp_path)
    again = subbyte.prepare(model, "w4:g16", ids, recover=recover, resume=tmp_path)
    assert torch.equal(prepared(ids).logits, again(ids).logits)
    state_of(prepared).run.phase = "bypass"
    with torch.no_grad():
        torch.testing.assert_close(prepared(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)
