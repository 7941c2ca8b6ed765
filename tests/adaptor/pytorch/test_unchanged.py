"""A forward that records or calibrates leaves what the model holds as it was."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subbyte
from subbyte.adaptor.pytorch.unchanged import unchanged


class Remembering(nn.Module):
    """State in plain attributes: a count, a tensor replaced, a tensor written into, a list, one made on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls = 0
        self.state = torch.zeros(8)
        self.total = torch.zeros(8)
        self.history: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).mean(0)
        self.calls += 1
        self.state = self.state + y
        self.total += y
        self.history.append(y)
        self.latest = y
        return self.state + self.total + len(self.history)


def held(model: Any) -> tuple[Any, ...]:
    return model.calls, model.state.tolist(), model.total.tolist(), len(model.history), hasattr(model, "latest")


def test_plain_attributes_are_put_back() -> None:
    model = Remembering()
    history = model.history
    before = held(model)
    with unchanged(model):
        model(torch.randn(4, 8))
        assert held(model) != before
    assert held(model) == before
    assert model.history is history


def test_training_modes_and_buffers_are_put_back() -> None:
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout())
    model[1].eval()
    with unchanged(model):
        assert not model[0].training
        model.train()(torch.randn(4, 8))
    assert [module.training for module in model] == [True, False]
    assert model[0].num_batches_tracked == 0
    assert torch.equal(model[0].running_mean, torch.zeros(8))


def test_a_quantized_model_starts_from_the_state_of_the_float_one(tmp_path: Any) -> None:
    model, x = Remembering(), torch.randn(16, 8)
    converted = subbyte.quantize(model, "w8a8", [x, x + 1])
    assert held(converted) == held(model)
    subbyte.save(converted, tmp_path / "model.safetensors")
    loaded = subbyte.load(tmp_path / "model.safetensors", model)
    with torch.no_grad():
        assert torch.equal(converted(x), loaded(x))


def test_the_first_forward_without_data_counts_once() -> None:
    converted = subbyte.quantize(Remembering(), "w8a8:dynamic")
    with torch.no_grad():
        converted(torch.randn(16, 8))
    assert converted.calls == 1
    assert len(converted.history) == 1


def test_the_first_forward_without_data_raises_what_the_model_raises() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            if x.ndim != 2:
                raise LookupError("two axes")
            return self.linear(x) + self.linear(x)

    converted = subbyte.quantize(Picky(), "w8a8:dynamic")
    for _ in range(2):
        with pytest.raises(LookupError, match="two axes"):
            converted(torch.randn(3))
    with torch.no_grad():
        assert converted(torch.randn(3, 8)).shape == (3, 8)


def test_a_buffer_whose_values_share_memory_is_left_alone() -> None:
    model = nn.Linear(4, 4)
    model.register_buffer("window", torch.ones(1).expand(4))
    with unchanged(model):
        model(torch.randn(2, 4))
    assert torch.equal(model.window, torch.ones(4))
