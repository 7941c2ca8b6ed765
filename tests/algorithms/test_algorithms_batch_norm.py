"""batch_norm: statistics against those that PyTorch's own BatchNorm takes in training."""

import pytest
import torch
import torch.nn.functional as F
from recovering import WEIGHTS, assert_same_converted, assert_same_tensors, every_op, prepared, seen, tensors_of
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded
from subbyte import TensorSpec
from subbyte.errors import ConfigError
from subbyte.numerics import fake_quantize

DATA = {"batch_norm": {"target": "data"}}


def _trained(channels: int, x: Tensor) -> nn.BatchNorm2d:
    """PyTorch's BatchNorm after one training step on x."""
    norm = nn.BatchNorm2d(channels, momentum=None)
    norm(x)
    return norm


@pytest.mark.parametrize("name", [name for name in WEIGHTS if "per_tensor" not in name])
def test_statistics_are_those_of_what_the_quantized_op_gives(name: str) -> None:
    model, data = every_op()
    untouched = tensors_of(model)
    plain, renewed = (prepared(model, data, WEIGHTS[name], each) for each in ([], DATA))
    (quantizer,) = plain.conv.input_quantizers
    x = fake_quantize(torch.cat(data), quantizer.params, quantizer.spec)
    expected = _trained(6, F.conv2d(x, seen(plain, data).ops["conv"].quantized(), padding=1))
    scaled = model.norm.weight != 0  # behind a factor of zero statistics mean nothing, and stay
    for statistic in ("running_mean", "running_var"):
        found, old = (getattr(each.norm, statistic) for each in (renewed, model))
        torch.testing.assert_close(found, torch.where(scaled, getattr(expected, statistic), old), rtol=1e-4, atol=1e-4)
    for op, other in zip(seen(renewed, data).ops.values(), seen(plain, data).ops.values(), strict=True):
        assert torch.equal(op.quantized(), other.quantized())
    assert_same_converted(renewed, data)
    assert_same_tensors(tensors_of(model), untouched)


def test_each_sees_what_those_before_it_give_now() -> None:
    model, data = every_op()
    renewed = prepared(model, data, WEIGHTS["ternary per_channel"], DATA)
    found: list[Tensor] = []
    hook = renewed.grouped_norm.register_forward_hook(lambda _, __, y: found.append(y))
    with torch.no_grad():
        for x in data:
            renewed(x)
    hook.remove()
    y = torch.cat(found).transpose(0, 1).flatten(1)
    torch.testing.assert_close(y.mean(1), model.grouped_norm.bias.detach(), rtol=1e-4, atol=1e-4)
    variance = renewed.grouped_norm.running_var
    wanted = model.grouped_norm.weight.detach().square() * variance / (variance + model.grouped_norm.eps)
    torch.testing.assert_close(y.var(1), wanted, rtol=1e-3, atol=1e-4)


def test_batch_norms_that_no_op_applies_take_their_turn() -> None:
    layers = (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5))
    model = randomized(nn.Sequential(*layers))
    model[2].weight.data.fill_(1.5)
    model[4].weight.data.fill_(0.5)
    data = list(seeded((16, 3, 8, 8), seed=1).split(8))
    renewed = prepared(model, data, TensorSpec("int2", "sym", "per_channel"), DATA)
    with torch.no_grad():
        expected = _trained(4, renewed[1](renewed[0](torch.cat(data))))
        y = renewed(torch.cat(data)).transpose(0, 1).flatten(1)
    torch.testing.assert_close(renewed[2].running_mean, expected.running_mean)
    torch.testing.assert_close(renewed[2].running_var, expected.running_var)
    torch.testing.assert_close(y.mean(1), model[4].bias.detach(), rtol=1e-4, atol=1e-4)  # after the one before it
    torch.testing.assert_close(y.var(1), torch.full((5,), 0.25), rtol=1e-3, atol=1e-4)
    assert_same_converted(renewed, data)


def _outputs(model: nn.Module, names: tuple[str, ...], data: list[Tensor]) -> dict[str, Tensor]:
    """What some modules give: [channels, values]."""
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda _, __, y, name=name: found[name].append(y))
        for name in names
    ]
    with torch.no_grad():
        for x in data:
            model(x)
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(parts).transpose(0, 1).flatten(1) for name, parts in found.items()}


@pytest.mark.parametrize("before", [[], ["hqq"]], ids=str)
def test_outputs_get_the_moments_that_they_have_in_float(before: list[str]) -> None:
    model, data = every_op()
    renewed = prepared(model, data, WEIGHTS["ternary per_channel"], [*before, "batch_norm"])
    names = ("norm", "grouped_norm")
    expected, found = _outputs(model, names, data), _outputs(renewed, names, data)
    for name in names:
        torch.testing.assert_close(found[name].mean(1), expected[name].mean(1), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(found[name].var(1), expected[name].var(1), rtol=1e-3, atol=1e-3)
    assert_same_converted(renewed, data)


def test_a_batch_norm_that_stands_alone_gets_the_moments_too() -> None:
    model = randomized(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4)))
    data = list((seeded((16, 3, 8, 8), seed=1) + 0.5).split(8))
    renewed = prepared(model, data, TensorSpec("int2", "sym", "per_channel"), "batch_norm")
    expected, found = (_outputs(each, ("2",), data)["2"] for each in (model, renewed))
    torch.testing.assert_close(found.mean(1), expected.mean(1), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.var(1), expected.var(1), rtol=1e-3, atol=1e-3)


def test_a_factor_inside_the_codes_is_refused() -> None:
    model, data = every_op()
    with pytest.raises(ConfigError, match="per_tensor weight was rounded with BatchNorm's factor in it"):
        prepared(model, data, WEIGHTS["int3 per_tensor"], "batch_norm")


def test_a_model_without_batch_norm_is_refused() -> None:
    with pytest.raises(ConfigError, match="no BatchNorm"):
        subbyte.prepare(randomized(nn.Sequential(nn.Linear(4, 4))), "w4", [seeded((8, 4))], recover="batch_norm")
