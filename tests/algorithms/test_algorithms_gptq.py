"""gptq on whole models: every kind of op and data type, and what it refuses."""

from typing import Any

import pytest
import torch
from recovering import WEIGHTS, assert_same_converted, assert_same_tensors, error, every_op, prepared, seen, tensors_of
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded
from subbyte import TensorSpec
from subbyte.errors import ConfigError
from subbyte.numerics import fake_quantize

OPTIONS = [{"act_order": False}, {"inputs": "float"}, {"inputs": "quantized"}]
CASES = [(name, {}) for name in WEIGHTS] + [("int4 per_channel", options) for options in OPTIONS]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_every_op_and_type_gives_an_output_nearer_to_float(name: str, options: dict[str, Any]) -> None:
    model, data = every_op()
    untouched = tensors_of(model)
    nearest = prepared(model, data, WEIGHTS[name])
    recovered = prepared(model, data, WEIGHTS[name], {"gptq": options})
    assert error(recovered, model, data) < 0.9 * error(nearest, model, data)
    assert_same_converted(recovered, data)
    assert_same_tensors(tensors_of(model), untouched)
    for op, before in zip(seen(recovered, data).ops.values(), seen(nearest, data).ops.values(), strict=True):
        torch.testing.assert_close(op.weight, op.quantized(), rtol=1e-5, atol=1e-6)
        assert (op.params.scale <= before.params.scale).all()


def _columns(model: nn.Module, name: str, data: list[Tensor]) -> Tensor:
    """What a Linear multiplies, found by a hook and the quantizer itself: [inputs, columns]."""
    found: list[Tensor] = []
    module = model.get_submodule(name)
    quantizer = next(iter(module.input_quantizers), None)
    hook = module.register_forward_pre_hook(lambda _, args: found.append(args[0]))
    with torch.no_grad():
        for x in data:
            model(x)
    hook.remove()
    x = torch.cat(found)
    return (x if quantizer is None else fake_quantize(x, quantizer.params, quantizer.spec)).double().t()


def test_codes_are_those_of_the_paper_on_the_inputs_of_the_quantized_model() -> None:
    model = randomized(nn.Sequential(nn.Linear(9, 12), nn.ReLU(), nn.Linear(12, 7)))
    data = list(seeded((40, 9), seed=1).split(20))
    spec = TensorSpec("uint3", "asym", "per_group(5)")
    recovered = prepared(model, data, spec, {"gptq": {"damping": 0.05, "inputs": "quantized"}})
    scale = seen(recovered, data).ops["2"].params.scale.repeat_interleave(5, 1)[:, :12]
    zero_point = seen(recovered, data).ops["2"].params.zero_point.repeat_interleave(5, 1)[:, :12]
    x = _columns(recovered, "2", data)
    hessian = x @ x.t()
    hessian += 0.05 * hessian.diagonal().mean() * torch.eye(12)
    expected = model[2].weight.detach().double().clone()
    left = hessian.diagonal().argsort(descending=True, stable=True)
    while len(left):
        place, inverse = left[0], torch.linalg.inv(hessian[left][:, left])
        codes = ((expected[:, place] / scale[:, place]).round() + zero_point[:, place]).clamp(0, 7)
        difference = expected[:, place] - (codes - zero_point[:, place]) * scale[:, place]
        expected[:, left] -= torch.outer(difference / inverse[0, 0], inverse[0])
        left = left[1:]
    torch.testing.assert_close(recovered[2].weight.detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_gptq_compensates_for_the_errors_of_earlier_ops_by_default() -> None:
    model = randomized(nn.Sequential(nn.Linear(9, 12), nn.ReLU(), nn.Linear(12, 7)))
    data = list(seeded((400, 9), seed=1).split(100))
    spec = TensorSpec("int3", "sym", "per_channel")
    plain, corrected = (prepared(model, data, spec, {"gptq": options}) for options in ({"inputs": "quantized"}, {}))
    assert error(corrected, model, data) < 0.9 * error(plain, model, data)


def _objective(codes: Tensor, layer: nn.Linear, x: Tensor) -> float:
    """Return `||(V - W) X||^2`."""
    return float(((codes - layer.weight.detach()).double() @ x.double().t()).square().sum())


def test_gptq_leaves_less_error_than_brevitas_at_two_bits() -> None:
    gptq = pytest.importorskip("brevitas.graph.gptq")
    brevitas = pytest.importorskip("brevitas.nn")
    from brevitas.inject.enum import ScalingImplType
    from brevitas.quant import Int8WeightPerChannelFloat

    layer, x = randomized(nn.Linear(24, 16)), seeded((300, 24), seed=1) @ seeded((24, 24), seed=2)
    options = {"scaling_impl_type": ScalingImplType.PARAMETER_FROM_STATS, "narrow_range": False}
    quantizer = type("Fixed", (Int8WeightPerChannelFloat,), options)
    made = brevitas.QuantLinear(24, 16, bias=True, weight_quant=quantizer, weight_bit_width=2)
    made.load_state_dict(layer.state_dict(), strict=False)
    peer = nn.Sequential(made).eval()
    with torch.no_grad():
        peer(x)
        with gptq.gptq_mode(peer, act_order=True) as mode:
            mode.model(x)
            mode.update()
        theirs = _objective(made.quant_weight().value, layer, x)
    recovered = prepared(nn.Sequential(layer), [x], TensorSpec("int2", "sym", "per_channel"), "gptq", activation=None)
    assert _objective(seen(recovered, [x]).ops["0"].quantized(), layer, x) < theirs


def test_calibration_by_mse_gives_the_codes_of_minmax() -> None:
    """The ratios only narrow scales, so they begin at the whole range."""
    model, x = randomized(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))), seeded((64, 16))
    by_mse, by_minmax = (subbyte.prepare(model, f"w2:{each}", [x], recover=["gptq"]) for each in ("mse", "minmax"))
    for found, expected in zip(seen(by_mse, [x]).ops.values(), seen(by_minmax, [x]).ops.values(), strict=True):
        assert torch.equal(found.quantized(), expected.quantized())
    moved = subbyte.prepare(model, "w2:mse", [x], recover=["hqq", "gptq"])  # scales that a method chose are kept
    assert any(
        not torch.equal(found.params.scale, expected.params.scale)
        for found, expected in zip(seen(moved, [x]).ops.values(), seen(by_minmax, [x]).ops.values(), strict=True)
    )


def test_the_same_each_time() -> None:
    model, data = every_op()
    runs = [prepared(model, data, WEIGHTS["int4 per_channel"], "gptq") for _ in range(2)]
    assert_same_tensors(tensors_of(runs[0]), tensors_of(runs[1]))


def test_weight_only() -> None:
    model, data = every_op()
    nearest = prepared(model, data, WEIGHTS["nf4 per_group"], activation=None)
    recovered = prepared(model, data, WEIGHTS["nf4 per_group"], "gptq", activation=None)
    assert error(recovered, model, data) < 0.9 * error(nearest, model, data)
    assert_same_converted(recovered, data)


def test_an_input_that_is_always_zero_keeps_the_nearest_codes() -> None:
    model = randomized(nn.Sequential(nn.Linear(6, 4)))
    data = [seeded((32, 6), seed=2) * torch.tensor([1.0, 1, 0, 1, 1, 1])]
    recovered = prepared(model, data, TensorSpec("int3", "sym", "per_channel"), "gptq", activation=None)
    params = seen(recovered, data).ops["0"].params
    column = fake_quantize(model[0].weight.detach(), params, recovered[0].weight_spec)
    assert torch.equal(recovered[0].weight[:, 2], column[:, 2])


class Tied(nn.Module):
    """A language model in small: a table, and a head of the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.middle, self.head = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.relu(self.middle(self.embed(tokens))))


def test_ops_without_choice_are_refused_or_skipped() -> None:
    model, data = randomized(Tied()), [torch.randint(0, 11, (16, 5), generator=torch.Generator().manual_seed(0))]
    with pytest.raises(ConfigError, match=r"'gptq' has no meaning for op 'embed' .*looked up"):
        subbyte.prepare(model, "w4", data, recover="gptq")
    skipping = {"gptq": {"unsupported": "skip"}}
    nearest, recovered = (subbyte.prepare(model, "w4", data, recover=each) for each in ([], skipping))
    assert torch.equal(recovered.embed.weight, nearest.embed.weight)
    assert not torch.equal(recovered.middle.weight, nearest.middle.weight)
    assert_same_converted(recovered, data)


def test_matrices_of_a_recurrent_module_are_refused() -> None:
    model = randomized(nn.LSTM(4, 3))
    with pytest.raises(ConfigError, match="recurrent"):
        subbyte.prepare(model, "w4", [seeded((8, 2, 4))], recover="gptq")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"damping": 0}, "damping"), ({"block_size": 0}, "block_size"), ({"inputs": "both"}, "inputs"), ({"x": 1}, "'x'")],
)  # fmt: skip
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"'gptq'.*{message}"):
        subbyte.prepare(nn.Linear(4, 4), "w4", [seeded((8, 4))], recover={"gptq": options})
