"""After real training steps the converted model gives what the prepared one gives in eval(), bit for bit."""

from pathlib import Path

import pytest
import torch
from networks_to_train import SharedNet, train
from torch import nn

import subbyte
from networks import cifar_images, randomized, real_resnet20, seeded, tune_config
from subbyte.spec import TensorSpec

X = seeded((16, 4, 6, 6))
_GRANULARITIES = ["per_tensor", "per_channel", "per_group(4)"]


def _agree(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        want = model(X)
        assert torch.equal(subbyte.convert(model)(X), want)
        assert torch.equal(model(X), want)
    assert torch.isfinite(want).all()


def _trained(weight: TensorSpec, activation: TensorSpec | None, training: object = None) -> nn.Module:
    model = randomized(SharedNet())
    mode = "static" if activation is not None else "weight_only"
    config = tune_config(model, X, weight, activation, mode)
    prepared = subbyte.prepare_qat(model, config, X, training=training)
    with torch.no_grad():
        before = prepared.eval()(X)
    train(prepared, X)
    with torch.no_grad():
        assert not torch.equal(prepared.eval()(X), before)
    return prepared


@pytest.mark.parametrize("granularity", _GRANULARITIES)
@pytest.mark.parametrize("scheme", ["sym", "asym"])
@pytest.mark.parametrize("bits", range(1, 9))
def test_every_width(bits: int, scheme: str, granularity: str) -> None:
    weight = TensorSpec(f"int{bits}", scheme=scheme, granularity=granularity)
    _agree(_trained(weight, TensorSpec(f"uint{bits}", scheme=scheme)))


@pytest.mark.parametrize("granularity", _GRANULARITIES)
@pytest.mark.filterwarnings("ignore::subbyte.LostSignWarning")
@pytest.mark.parametrize("dtype", ["bint1", "ternary", "nf4"])
def test_tables(dtype: str, granularity: str) -> None:
    _agree(_trained(TensorSpec(dtype, granularity=granularity), TensorSpec("uint4")))
    _agree(_trained(TensorSpec(dtype, granularity=granularity), TensorSpec("bint1")))
    _agree(_trained(TensorSpec(dtype, granularity=granularity), None))


@pytest.mark.parametrize("gradient", ["straight_through", "clipped", "lsq", "lsq_plus", "pact", "dorefa", "ewgs"])
@pytest.mark.parametrize("granularity", _GRANULARITIES)
def test_every_gradient(gradient: str, granularity: str) -> None:
    scheme = "asym" if gradient == "lsq_plus" else "sym"
    weight = TensorSpec("int3", scheme=scheme, granularity=granularity)
    _agree(_trained(weight, TensorSpec("uint3", scheme=scheme), {"weight": gradient, "activation": gradient}))


@pytest.mark.filterwarnings("ignore::subbyte.LostSignWarning")
@pytest.mark.parametrize("config", ["w4a4", "w1a1", "w2a8:dynamic", "w4", "w3a3"])
def test_shorthands_with_first_and_last_in_eight_bits(config: str) -> None:
    first_last = None if config == "w4" else "w8a8:dynamic" if "dynamic" in config else "int8"
    prepared = subbyte.prepare_qat(randomized(SharedNet()), config, X, first_last=first_last)
    train(prepared, X)
    _agree(prepared)


def test_a_trained_model_is_saved_and_loaded(tmp_path: Path) -> None:
    rules = {"activation": "lsq_plus", "ops": {"conv2": {"weight": "dorefa"}}}
    prepared = subbyte.prepare_qat(randomized(SharedNet()), "w3a3", X, training=rules)
    train(prepared, X)
    converted = subbyte.convert(prepared)
    assert not [name for name, _ in converted.named_parameters() if "scale" in name or "zero_point" in name]
    subbyte.save(converted, tmp_path / "model.safetensors")
    restored = subbyte.load(tmp_path / "model.safetensors", SharedNet())
    with torch.no_grad():
        assert torch.equal(restored(X), prepared.eval()(X))


def test_real_weights() -> None:
    images = cifar_images(64)
    prepared = subbyte.prepare_qat(real_resnet20(), "w4a4", images, first_last="int8")
    optimizer = torch.optim.SGD(prepared.parameters(), 0.01, momentum=0.9)
    wanted = real_resnet20()(images).detach().argmax(1)
    losses = []
    prepared.train()
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(prepared(images), wanted)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    with torch.no_grad():
        assert torch.equal(subbyte.convert(prepared)(images), prepared.eval()(images))


def test_eval_quantizes_what_training_does_of_a_weight() -> None:
    prepared = subbyte.prepare_qat(randomized(SharedNet()), "w4a4", X, training={"weight": "dorefa"})
    bounded = prepared.conv2.weight.detach().tanh()
    want = (bounded / bounded.abs().max() * 7).round() / 7
    torch.testing.assert_close(subbyte.weights(prepared)["conv2"].dequantize(), want)
    assert torch.equal(prepared.conv2.operand().grid / 7, want)
