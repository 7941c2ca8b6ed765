"""bias_correction: the means of the outputs of ops, against hooks on the float and the quantized model."""

import pytest
import torch
from recovering import WEIGHTS, assert_same_converted, assert_same_tensors, every_op, prepared, seen, tensors_of
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded
from subbyte import TensorSpec
from subbyte.errors import ConfigError

OPS = ("norm", "depthwise", "grouped_norm", "up", "linear")  # where the result of each op is whole


def _means(model: nn.Module, data: list[Tensor]) -> dict[str, Tensor]:
    """Of each channel of what the ops of the net give, BatchNorm included."""
    found: dict[str, list[Tensor]] = {name: [] for name in OPS}
    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda _, __, y, name=name: found[name].append(y.transpose(0, 1).flatten(1))
        )
        for name in OPS
    ]
    with torch.no_grad():
        for x in data:
            model(x)
    for hook in hooks:
        hook.remove()
    return {name: torch.cat(parts, 1).mean(1) for name, parts in found.items()}


@pytest.mark.parametrize("name", WEIGHTS)
def test_every_channel_has_the_mean_it_has_in_float(name: str) -> None:
    model, data = every_op()
    untouched, expected = tensors_of(model), _means(model, data)
    before = prepared(model, data, WEIGHTS[name])
    corrected = prepared(model, data, WEIGHTS[name], "bias_correction")
    for op, mean in _means(corrected, data).items():
        torch.testing.assert_close(mean, expected[op], rtol=1e-4, atol=1e-4)
        assert not torch.allclose(_means(before, data)[op], expected[op], rtol=1e-4, atol=1e-4)
    for op, other in zip(seen(corrected, data).ops.values(), seen(before, data).ops.values(), strict=True):
        assert torch.equal(op.quantized(), other.quantized())
    assert_same_converted(corrected, data)
    assert_same_tensors(tensors_of(model), untouched)


def test_an_op_without_a_bias_is_given_one() -> None:
    model = randomized(nn.Sequential(nn.Linear(5, 4, bias=False)))
    data = [seeded((64, 5), seed=1) + 1]
    corrected = prepared(model, data, TensorSpec("int3", "sym", "per_channel"), "bias_correction", activation=None)
    with torch.no_grad():
        torch.testing.assert_close(corrected(data[0]).mean(0), model(data[0]).mean(0))
    assert_same_converted(corrected, data)


class Twice(nn.Module):
    """One linear map in two places, on inputs of unlike ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.relu(self.linear(x)) * 3)


def test_an_op_called_twice_is_corrected_for_both_calls_together() -> None:
    model, data = randomized(Twice()), [seeded((64, 6), seed=1)]
    corrected = prepared(model, data, TensorSpec("int3", "sym", "per_channel"), "bias_correction", activation=None)
    shift = corrected.linear.bias - model.linear.bias
    means = {}
    before = prepared(model, data, TensorSpec("int3", "sym", "per_channel"), activation=None)
    for each in (model, before):
        found: list[Tensor] = []
        hook = each.linear.register_forward_hook(lambda _, __, y, found=found: found.append(y))
        with torch.no_grad():
            each(data[0])
        hook.remove()
        means[each] = torch.cat(found).mean(0)
    torch.testing.assert_close(shift, means[model] - means[before])


def test_a_table_and_a_recurrent_module_are_refused() -> None:
    tokens = [torch.randint(0, 9, (16, 3), generator=torch.Generator().manual_seed(0))]
    table = randomized(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)))
    with pytest.raises(ConfigError, match="a table that is looked up has no bias"):
        subbyte.prepare(table, "w4", tokens, recover="bias_correction")
    with pytest.raises(ConfigError, match="recurrent"):
        subbyte.prepare(randomized(nn.LSTM(4, 3)), "w4", [seeded((8, 2, 4))], recover="bias_correction")
