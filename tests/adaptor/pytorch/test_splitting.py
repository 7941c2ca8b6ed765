"""Large batches of calibration data, split where that changes nothing."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, randomized, seeded
from subbyte import ConfigError
from subbyte.adaptor.pytorch.splitting import split_batches
from subbyte.quantization import fit


class Recurrent(nn.Module):
    """An LSTM and a linear map; the first axis is time unless `batch_first`."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=batch_first)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


class Flat(nn.Module):
    """Gives the tokens of all samples one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.linear(x).reshape(-1, 2)


class Centred(nn.Module):
    """Subtracts the mean over the batch: what a sample gets depends on the others."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def sizes(model: nn.Module, data: Any, *args: Any) -> list[int]:
    return [batch.samples for batch in split_batches(model.eval(), data, *args)]


def test_split_batches_cuts_large_batches_into_equal_parts() -> None:
    model = nn.Linear(3, 2)
    assert sizes(model, torch.randn(1024, 3)) == [128] * 8
    assert sizes(model, torch.randn(129, 3)) == [64, 65]
    assert sizes(model, torch.randn(128, 3)) == [128]
    assert sizes(model, [torch.randn(5, 3), torch.randn(2, 3)], 2) == [1, 2, 2, 2]
    assert sizes(model, torch.randn(40, 3), 16, 30) == [15, 15]
    x = torch.randn(300, 3)
    assert torch.equal(torch.cat([batch.given for batch in split_batches(model, x)]), x)


def test_split_batches_cuts_the_batches_of_a_stream() -> None:
    def stream() -> Iterator[dict[str, Tensor]]:
        for _ in range(2):
            yield {"x": torch.randn(6, 5, 3), "mask": torch.ones(6)}

    assert sizes(Flat(), stream(), 4) == [3, 3, 3, 3]


def test_split_batches_keeps_a_batch_whole_when_its_first_axis_is_time() -> None:
    assert sizes(Recurrent(batch_first=True), torch.randn(300, 5, 3)) == [100] * 3
    assert sizes(Recurrent(batch_first=False), torch.randn(300, 5, 3)) == [300]


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (Centred(), torch.randn(300, 3)),
        (nn.Conv1d(3, 2, 3), torch.randn(3, 300).T.contiguous().T.expand(3, 300)),  # one sample without an axis for it
        (nn.LSTM(3, 4), torch.randn(300, 3)),  # likewise
        (Flat(), (torch.randn(300, 4, 3), torch.ones(7))),
    ],
)
def test_split_batches_keeps_a_batch_whole_when_its_samples_depend(model: nn.Module, batch: Any) -> None:
    assert len(sizes(model, [batch], 2)) == 1


def test_split_batches_leaves_model_and_random_state_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout()).train()
    before, state = {key: value.clone() for key, value in model.state_dict().items()}, torch.get_rng_state()
    assert len(list(split_batches(model, torch.randn(300, 3, generator=torch.Generator().manual_seed(0))))) == 3
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, True, None, "128"])
def test_calls_refuse_a_batch_size_that_is_no_positive_integer(batch_size: Any) -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    calls = [
        lambda: subbyte.quantize(model, "w4a8", x, batch_size=batch_size),
        lambda: subbyte.prepare(model, "w4a8", x, batch_size=batch_size),
        lambda: subbyte.prepare_qat(model, "w4a8", x, batch_size=batch_size),
        lambda: subbyte.tune(model, x, lambda model: 1.0, recover=[], batch_size=batch_size),
        lambda: fit(model, subbyte.PostTrainingQuantConfig(), x, batch_size=batch_size),
        lambda: subbyte.compare(model, subbyte.quantize(model, "w4a8", x), x, batch_size=batch_size),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="batch_size"):
            call()


@pytest.mark.parametrize("config", ["w4a8", "w4a8:percentile", "w4a8:moving_average_minmax", "w1a1"])
def test_one_tensor_calibrates_as_its_parts_do(config: str) -> None:
    model, x = randomized(ResidualNet()), seeded((200, 3, 6, 6))
    whole = subbyte.quantize(model, config, x, batch_size=50).state_dict()
    parts = subbyte.quantize(model, config, list(x.split(50))).state_dict()
    assert all(torch.equal(value, parts[key]) for key, value in whole.items())


@pytest.mark.parametrize("method", ["bias_correction", {"reconstruct": {"steps": 2}}, "gptq"])
def test_one_tensor_recovers_as_its_parts_do(method: Any) -> None:
    model, x = randomized(ResidualNet()), seeded((200, 3, 6, 6))
    results = [subbyte.quantize(model, "w3a8", data, recover=[method]).state_dict() for data in (x, list(x.split(100)))]
    assert all(torch.equal(value, results[1][key]) for key, value in results[0].items())
