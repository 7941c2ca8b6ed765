"""The scales that learning begins with, where BatchNorms have seen nothing yet."""

import copy

import pytest
import torch
from networks_to_train import SharedNet
from torch import nn

import subbyte
from networks import randomized, seeded
from subbyte.adaptor.pytorch.state import state_of

X = 5 * seeded((16, 4, 6, 6))


def _tops(model: nn.Module) -> dict[str, float]:
    """The largest value of each quantizer of activations."""
    quantizers = state_of(model).quantizers.items()
    return {name: float(each.scale.detach()) * each.spec.qmax for name, each in quantizers}


@pytest.mark.parametrize("training", [None, {"start": None}, {"activation": "clipped"}])
def test_ranges_are_those_of_training_where_batch_norm_is_untrained(training: dict[str, object] | None) -> None:
    network = randomized(SharedNet())
    for norm in (network.bn1, network.bn2):
        norm.reset_running_stats()
    statistics = copy.deepcopy(network.state_dict())
    model = subbyte.prepare_qat(network, "w8a8", X, training=training)
    assert all(torch.equal(value, statistics[name]) for name, value in network.state_dict().items())
    seen = network.train()
    seen.requires_grad_(False)
    inputs = torch.relu(seen.bn1(seen.conv1(X)))  # as training will give it
    [top] = [top for name, top in _tops(model).items() if name.startswith("/relu@SharedNet/forward:5/")]
    assert 0.7 * float(inputs.max()) < top < 1.1 * float(inputs.max())
    assert model.bn1.num_batches_tracked == 0
    assert torch.equal(model.bn1.running_var, torch.ones(8))


@pytest.mark.parametrize("count", [0, 1])  # weights of another framework have statistics, and a count of 0
def test_trained_batch_norms_are_observed_in_eval(count: int) -> None:
    network = randomized(SharedNet())
    for norm in (network.bn1, network.bn2):
        norm.num_batches_tracked.fill_(count)
    model = subbyte.prepare_qat(network, "w8a8", X)
    network.requires_grad_(False)
    inputs = torch.relu(network.eval().bn1(network.conv1(X)))
    [top] = [top for name, top in _tops(model).items() if name.startswith("/relu@SharedNet/forward:5/")]
    assert 0.7 * float(inputs.max()) < top < 1.1 * float(inputs.max())


def test_a_network_trains_from_scratch_at_four_bits() -> None:
    torch.manual_seed(0)
    network, target = SharedNet(), torch.arange(16) % 5
    model = subbyte.prepare_qat(network, "w4a4", X, first_last="int8").train()
    optimizer = torch.optim.AdamW(model.parameters(), 0.003)
    for _ in range(100):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X), target)
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.5
