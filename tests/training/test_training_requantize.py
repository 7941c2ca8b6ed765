"""A model in training goes on at another configuration: same weights, same parameters, scales found anew."""

import copy
from dataclasses import replace

import pytest
import torch
from networks_to_train import SharedNet, train
from torch import nn

import subbyte
from networks import randomized, seeded
from subbyte.adaptor.pytorch import prepare_again
from subbyte.calibration import calibrate_tensor
from subbyte.training import requantize

X = seeded((16, 4, 6, 6))


def _prepared(config: str, **options: object) -> nn.Module:
    model = subbyte.prepare_qat(randomized(SharedNet()), config, X, first_last="int8", **options)
    train(model, X)
    return model


def _floats(model: nn.Module) -> dict[str, torch.Tensor]:
    own = SharedNet().state_dict()
    return {name: value.clone() for name, value in model.state_dict().items() if name in own}


@pytest.mark.filterwarnings("ignore::subbyte.errors.LostSignWarning")  # behind a ReLU, for lack of a better network
@pytest.mark.parametrize("chain", [("w8a8", "w4a4", "w3a3", "w2a2"), ("w4", "w4a4"), ("w4a4", "w1a1"), ("w2a2", "w4")])
def test_each_starts_from_the_last(chain: tuple[str, ...]) -> None:
    model = _prepared(chain[0])
    for config in chain[1:]:
        before, objects = _floats(model), {name: p for name, p in model.named_parameters() if "quantizer" not in name}
        mode = model.training
        requantize(model, config, X)
        assert all(torch.equal(value, before[name]) for name, value in _floats(model).items())
        assert all(dict(model.named_parameters())[name] is p for name, p in objects.items())
        assert all(module.training is mode for module in model.modules())
        fresh = subbyte.prepare_qat(randomized(SharedNet()), config, X, first_last="int8")
        assert model.state_dict().keys() == fresh.state_dict().keys()
        assert [row["requested"] for row in subbyte.summary(model).rows] == [
            row["requested"] for row in subbyte.summary(fresh).rows
        ]
        train(model, X)
        with torch.no_grad():
            assert torch.equal(subbyte.convert(model)(X), model.eval()(X))


@pytest.mark.parametrize("config", ["w8a8", "w2a8", "w2"])
def test_activations_are_observed_as_the_weights_so_far_give_them(config: str) -> None:
    model = _prepared(config)
    network, computed = SharedNet(), SharedNet()
    network.load_state_dict(_floats(model))
    computed.load_state_dict(_floats(model) | _computed(model))
    requantize(model, "w3a3", X)
    state = model.state_dict()
    of_weights = subbyte.prepare_qat(network.eval(), "w3a3", X, first_last="int8").state_dict()
    of_inputs = subbyte.prepare_qat(computed.eval(), "w3a3", X, first_last="int8").state_dict()
    inputs = [name for name in state if "subbyte_state" in name and ("uint3" in name or config == "w2")]
    assert inputs
    for name in inputs:
        assert torch.equal(state[name], of_inputs[name]), name
    for name in set(_floats(model)) | {name for name in state if name.startswith("conv2.weight_q")}:
        assert torch.equal(state[name], of_weights[name]), name


def _computed(model: nn.Module) -> dict[str, torch.Tensor]:
    """The weights as the layers of a model in training compute with them."""
    values = {}
    for name in ("conv1", "conv2", "twice", "head"):
        weight, quantizer = model.state_dict()[f"{name}.weight"], model.get_submodule(f"{name}.weight_quantizer")
        scale = quantizer.scale.detach().reshape(-1, *[1] * (weight.ndim - 1))
        values[f"{name}.weight"] = (weight / scale).round().clamp(quantizer.spec.qmin, quantizer.spec.qmax) * scale
    return values


@pytest.mark.parametrize("fails", ["data", "rules"])
def test_what_fails_late_leaves_the_model_as_it_was(fails: str) -> None:
    rules = {"types": {"int3": {"weight": "twn"}}}
    with pytest.warns(
        subbyte.UnusedRuleWarning, match="types: int3: weight matches nothing: weights are int4 and int8"
    ):
        model = subbyte.prepare_qat(randomized(SharedNet()), "w4a4", X, first_last="int8", training=rules)
    train(model, X)
    before, outputs = copy.deepcopy(model.state_dict()), copy.deepcopy(model).eval()(X)
    if fails == "data":
        with pytest.raises(subbyte.CalibrationError, match="NaN"):
            requantize(model, "w2a2", [X, X.log()])
    else:
        with pytest.raises(subbyte.ConfigError, match="twn"):
            requantize(model, "w3a3", X)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model.eval()(X), outputs)


class Interrupted:
    """A hook that is Ctrl-C in one of the forwards: three on the copy that is tried first, then three more."""

    def __init__(self, forward: int) -> None:
        self.left = forward

    def __deepcopy__(self, memo: object) -> "Interrupted":
        return self

    def __call__(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("forward", [1, 2, 3])
def test_an_interrupt_on_the_copy_leaves_the_model_as_it_was(forward: int) -> None:
    model = _prepared("w4a4")
    outputs = copy.deepcopy(model).eval()(X)
    model.head.register_forward_pre_hook(Interrupted(forward))
    with pytest.raises(KeyboardInterrupt):
        requantize(model, "w3a3", X)
    model.head._forward_pre_hooks.clear()
    assert torch.equal(model.eval()(X), outputs)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("forward", [4, 5, 6])
def test_a_model_that_was_interrupted_half_way_does_not_run(forward: int, training: bool) -> None:
    model = _prepared("w4a4")
    hook = model.head.register_forward_pre_hook(Interrupted(forward))
    with pytest.raises(KeyboardInterrupt):
        requantize(model, "w3a3", X)
    hook.remove()
    with pytest.raises(subbyte.ModelError, match="interrupted while it changed this model"):
        model.train(training)(X)
    with pytest.raises(subbyte.ModelError, match="interrupted while it changed this model"):
        subbyte.convert(model)
    with pytest.raises(subbyte.ModelError, match="interrupted while it changed this model"):
        requantize(model, "w3a3", X)


def test_a_model_that_was_interrupted_while_its_ops_were_float_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    model = subbyte.prepare_qat(network, "w4", X)
    attach, calls = prepare_again.attach, []

    def interrupted(*args: object) -> None:
        calls.append(args)
        if len(calls) == 2:  # the first is of the copy
            raise KeyboardInterrupt
        attach(*args)

    monkeypatch.setattr(prepare_again, "attach", interrupted)
    with pytest.raises(KeyboardInterrupt):
        requantize(model, "w2", X)
    with pytest.raises(subbyte.ModelError, match="interrupted while it changed this model"):
        model(X)


def test_scales_are_found_anew_with_the_least_squared_error() -> None:
    model = _prepared("w8a8")
    requantize(model, "w2a2", X)
    quantizer = model.conv2.weight_quantizer
    spec = replace(quantizer.spec, algorithm="mse")
    assert torch.equal(quantizer.scale, calibrate_tensor(model.conv2.weight.detach(), spec).scale)
    assert torch.equal(quantizer.smallest_scale, quantizer.scale.detach() * 1e-3)


def test_what_is_quantized_as_before_keeps_what_it_learned() -> None:
    model = _prepared("w2")
    before = copy.deepcopy(model.state_dict())
    requantize(model, "w2a2", X)
    for name in before:
        assert torch.equal(model.state_dict()[name], before[name]), name


def test_the_optimizer_goes_on_with_the_scales_it_has() -> None:
    model = _prepared("w4a4")
    scales = {name: p for name, p in model.named_parameters() if name.endswith("scale")}
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    assert requantize(model, "w3a3", X) == []
    now = {id(p) for name, p in model.named_parameters() if name.endswith("scale")}
    assert now == {id(p) for p in scales.values()}
    scale = model.conv2.weight_quantizer.scale
    before = scale.detach().clone()
    model(X).square().mean().backward()
    optimizer.step()
    assert not torch.equal(scale, before)


def test_scales_of_activations_that_were_float_are_told() -> None:
    model = _prepared("w4")
    known = set(model.parameters())
    new = requantize(model, "w4a4", X)
    assert set(new) == set(model.parameters()) - known
    assert len(new) == len({each.scale for each in model.subbyte_state.quantizers.values()})


def test_rules_and_first_last_stay() -> None:
    rules = {"weight": "ewgs", "ops": {"head": {"weight": "straight_through"}}}
    model = subbyte.prepare_qat(randomized(SharedNet()), "w4a4", X, first_last="int8", training=rules)
    requantize(model, "w2a2", X)
    assert model.conv2.weight_quantizer.gradient.name == "ewgs"
    assert model.head.weight_quantizer.gradient.name == "straight_through"
    assert model.head.weight_spec.dtype.name == "int8"  # first_last stays, too


def test_a_configuration_that_tuning_found() -> None:
    model = _prepared("w4a4")
    other = subbyte.prepare_qat(randomized(SharedNet()), "w2a2", X)
    requantize(model, other.subbyte_state.config, X)
    assert model.conv1.weight_spec.dtype.name == "int2"


def test_a_run_goes_on_from_its_checkpoint_after_a_stage() -> None:
    model = _prepared("w4a4")
    requantize(model, "w2a2", X)
    train(model, X, steps=1)
    saved = copy.deepcopy(model.state_dict())
    want = train(model, X)
    again = subbyte.prepare_qat(randomized(SharedNet(), 7), "w4a4", X, first_last="int8")
    requantize(again, "w2a2", X)
    again.load_state_dict(saved)
    assert torch.equal(train(again, X), want)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())


def test_what_it_cannot_do_leaves_the_model_as_it_was() -> None:
    model = _prepared("w4a4")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(subbyte.ConfigError, match="w44"):
        requantize(model, "w44", X)
    with pytest.raises(subbyte.CalibrationError, match="tensor or an iterable"):
        requantize(model, "w2a2", None)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_models_that_cannot_go_on() -> None:
    model = _prepared("w4a4")
    with pytest.raises(subbyte.ModelError, match="no float weights"):
        requantize(subbyte.convert(model), "w2a2", X)
    with pytest.raises(subbyte.ModelError, match="not prepared for training"):
        requantize(subbyte.prepare(randomized(SharedNet()), "w4a4", X), "w2a2", X)
    with pytest.raises(subbyte.ModelError, match="prepared without data"):
        requantize(subbyte.prepare_qat(randomized(SharedNet()), "w4"), "w2a2", X)
