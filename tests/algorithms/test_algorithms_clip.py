"""clip: ranges of activations against a search by hand, and what it is worth to whole nets."""

import pytest
import torch
import torch.nn.functional as F
from recovering import WEIGHTS, assert_same_converted, assert_same_tensors, error, every_op, prepared, seen, tensors_of
from torch import Tensor, nn

from networks import randomized, seeded
from subbyte import TensorSpec
from subbyte.errors import ConfigError

INT8 = TensorSpec("int8", "sym", "per_channel")


def _with_outliers(shape: tuple[int, ...]) -> Tensor:
    """Most values within 3, some few ten times as far out."""
    x = seeded(shape, seed=5)
    return torch.where(seeded(shape, seed=6) > 2.8, x * 10, x) + 0.5


def _uint4(x: Tensor, low: float, high: float) -> tuple[Tensor, float]:
    """x in uint4 with that range, and the scale."""
    scale = (max(high, 0) - min(low, 0)) / 15
    zero_point = round(min(max(-min(low, 0) / scale, 0), 15))
    return ((x / scale).round() + zero_point).clamp(0, 15).sub(zero_point) * scale, scale


@pytest.mark.parametrize("norm", [2.0, 1.0])
def test_the_range_is_the_one_of_least_error_behind_convolution_and_batch_norm(norm: float) -> None:
    model, _ = every_op()
    data = [_with_outliers((8, 3, 8, 8))]
    found = prepared(model, data, INT8, {"clip": {"steps": 20, "norm": norm}}, activation=TensorSpec("uint4", "asym"))
    x, low, high = data[0], float(data[0].min()), float(data[0].max())
    largest, errors = max(-low, high), {}
    factor = (model.norm.weight / (model.norm.running_var + model.norm.eps).sqrt()).detach()
    for step in range(20):
        end = largest * (1 - step / 20)
        given, scale = _uint4(x, max(low, -end), min(high, end))
        difference = F.conv2d(given - x, model.conv.weight.detach(), padding=1) * factor[:, None, None]
        errors[scale] = float(difference.abs().pow(norm).sum())
    (quantizer,) = found.conv.input_quantizers
    assert float(quantizer.scale) == pytest.approx(min(errors, key=errors.__getitem__), rel=1e-5)
    assert float(quantizer.scale) < max(errors)


@pytest.mark.parametrize("activation", ["uint4 asym", "int3 sym", "ternary sym", "nf4 sym"])
def test_narrow_ranges_bring_the_output_nearer_to_float(activation: str) -> None:
    model = randomized(nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3, groups=2)))
    data = list(_with_outliers((16, 3, 8, 8)).split(8))
    untouched = tensors_of(model)
    spec = TensorSpec(*activation.split(), algorithm="minmax")
    before, found = (prepared(model, data, WEIGHTS["nf4 per_group"], each, activation=spec) for each in ([], "clip"))
    assert error(found, model, data) < 0.9 * error(before, model, data)
    for one, other in zip(seen(before, data).ops.values(), seen(found, data).ops.values(), strict=True):
        assert torch.equal(one.weight, other.weight)
    assert_same_converted(found, data)
    assert_same_tensors(tensors_of(model), untouched)


class Fork(nn.Module):
    """Two linear maps of one input, of which the second passes on little of it."""

    def __init__(self, second: float) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(8, 6), nn.Linear(8, 6)
        self.second = second

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) + self.second * self.other(x)


def test_a_shared_quantizer_is_chosen_for_all_that_read_it() -> None:
    data = [_with_outliers((200, 8))]
    fork = randomized(Fork(1.0))
    spec = TensorSpec("int3", "sym")
    scales = {}
    for name in ("both", "first", "other"):
        model = randomized(Fork(1.0))
        if name == "both":
            model.load_state_dict(fork.state_dict())
        else:
            model.first.weight.data = model.other.weight.data = getattr(fork, name).weight.detach().clone()
        quantizers = prepared(model, data, INT8, {"clip": {"steps": 200}}, activation=spec).first.input_quantizers
        (quantizer,) = quantizers
        scales[name] = float(quantizer.scale)
    assert min(scales["first"], scales["other"]) <= scales["both"] <= max(scales["first"], scales["other"])
    assert scales["first"] != scales["other"]


def test_without_static_ranges_there_is_nothing_to_clip() -> None:
    model, data = every_op()
    with pytest.raises(ConfigError, match=r"'clip'.*no op has a static range"):
        prepared(model, data, INT8, "clip", activation=None)
