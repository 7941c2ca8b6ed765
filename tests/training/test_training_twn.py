"""The threshold of ternary weight networks, in training, in eval() and once packed."""

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded

X = seeded((8, 6))
RULES = {"types": {"ternary": {"weight": "twn"}}}


def _published(weight: Tensor) -> Tensor:
    rows = []
    for row in weight.detach().double():
        threshold = 0.7 * row.abs().mean()
        large = row.abs() > threshold
        rows.append(torch.where(large, row.sign() * row[large].abs().mean(), 0.0))
    return torch.stack(rows).float()


def test_values_are_the_papers_and_the_gradient_passes() -> None:
    net = randomized(nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 4)))
    with torch.no_grad():
        net[0].weight[0] = torch.tensor([10.0, 3.0, 0.0, 0.0, 0.0, 0.0])  # 3 is below alpha / 2, and stays
        net[0].weight[1] = torch.tensor([1.0, 1.0, 1.0, 0.6, -1.0, 1.0])  # 0.6 is above alpha / 2, and goes
    model = subbyte.prepare_qat(net, "wternary", X, training=RULES).train()
    values = subbyte.weights(model)["0"].dequantize()
    torch.testing.assert_close(values[0, :3], torch.tensor([6.5, 6.5, 0.0]))
    torch.testing.assert_close(values[1, 2:5], torch.tensor([1.0, 0.0, -1.0]))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        want = _published(model[0].weight)
        fake = model[0].weight_quantizer.fake(model[0].weight_quantizer.reparametrized(model[0].weight))
        torch.testing.assert_close(fake.detach(), want)
        torch.testing.assert_close(subbyte.weights(model)["0"].dequantize(), want)
        optimizer.zero_grad()
        fake.backward(seeded(tuple(fake.shape)))
        assert torch.equal(model[0].weight.grad, seeded(tuple(fake.shape)))
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        assert torch.equal(subbyte.convert(model)(X), model.eval()(X))


def test_what_it_has_no_meaning_for() -> None:
    net = nn.Sequential(nn.Linear(6, 6))
    with pytest.raises(subbyte.ConfigError, match="three values"):
        subbyte.prepare_qat(net, "w2", X, training={"weight": "twn"})
    with pytest.raises(subbyte.ConfigError, match="by the algorithm twn"):
        subbyte.prepare_qat(net, "wternary:minmax", X, training={"weight": "twn"})
