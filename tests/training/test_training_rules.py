"""What is asked of training: which quantizer is trained by which gradient, from which scales."""

from pathlib import Path
from typing import Any

import pytest
import torch
from networks_to_train import SharedNet
from torch import nn

import subbyte
from networks import randomized, seeded
from subbyte.adaptor.pytorch.quantizer import Quantizer
from subbyte.adaptor.pytorch.state import state_of
from subbyte.calibration import calibrate_tensor
from subbyte.spec import OpConfig, TensorSpec, TuneConfig

X = seeded((16, 4, 6, 6))


def _prepared(config: Any = "w4a4", **options: Any) -> nn.Module:
    return subbyte.prepare_qat(randomized(SharedNet()), config, X, **options)


def _of_weights(model: nn.Module) -> dict[str, str]:
    ops = ("conv1", "conv2", "twice", "head")
    return {name: model.get_submodule(name).weight_quantizer.gradient.name for name in ops}


def _of_inputs(model: nn.Module, op: str) -> set[str]:
    state = state_of(model)
    return {state.quantizers[key].gradient.name for key in state.input_keys[op]}


def test_unasked_integers_learn_and_tables_do_not() -> None:
    assert set(_of_weights(_prepared()).values()) == {"lsq"}
    binary = _prepared("wbint1a4", first_last="int8")
    assert _of_weights(binary) == {"conv1": "lsq", "conv2": "clipped", "twice": "clipped", "head": "lsq"}
    assert _of_inputs(binary, "conv2") == {"lsq"}
    assert not any(
        name.endswith("scale") for name, _ in _prepared("w4a8:dynamic").named_parameters() if "input" in name
    )


def test_later_rules_beat_earlier_ones() -> None:
    ops = {"conv.": {"weight": "pact"}, "conv2": {"weight": {"ewgs": {"delta": 0.5}}, "activation": "clipped"}}
    model = _prepared("w4a4", training={"weight": "dorefa", "ops": ops})
    assert _of_weights(model) == {"conv1": "pact", "conv2": "ewgs", "twice": "dorefa", "head": "dorefa"}
    assert model.conv2.weight_quantizer.gradient.delta == 0.5
    assert _of_inputs(model, "conv2") == {"clipped"}
    assert _of_inputs(model, "conv1") == {"lsq"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"training": {"weight": "lsk"}}, "gradient 'lsk' is unknown; did you mean 'lsq'"),
        ({"training": {"wieght": "lsq"}}, "training: unknown key 'wieght'; did you mean 'weight'"),
        ({"training": {"ops": {"conv9": {"weight": "lsq"}}}}, "'conv9' matches no quantized op; did you mean 'conv"),
        ({"training": {"start": "msse"}}, "algorithm 'msse' is unknown; did you mean 'mse'"),
        ({"training": "lsq"}, "TrainingRules or their fields are expected"),
        ({"training": {"weight": "lsq_plus"}}, "the weight of op 'conv1' .*: it learns a zero point, which scheme sym"),
        ({"config": "w4a8:dynamic", "training": {"activation": "lsq"}}, "its range is found anew for each tensor"),
        ({"config": "fp32"}, "quantizes nothing, so there is nothing to train"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(subbyte.SubbyteError, match=message):
        _prepared(**options)


def test_one_value_read_by_one_quantizer_has_one_gradient() -> None:
    net = randomized(nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}))

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = net["a"], net["b"]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.a(x), self.b(x)])

    with pytest.raises(subbyte.ConfigError, match="need one gradient: 'pact' of 'a', 'lsq' of 'b'"):
        subbyte.prepare_qat(Both(), "w4a4", seeded((5, 4)), training={"ops": {"a": {"activation": "pact"}}})


@pytest.mark.parametrize("start", ["mse", "lsq", "minmax", None])
def test_where_scales_begin(start: str | None) -> None:
    model = _prepared(training={"start": start})
    quantizer = model.head.weight_quantizer
    algorithm = start or quantizer.spec.algorithm
    spec = TensorSpec("int4", granularity="per_channel", axis=0, algorithm=algorithm)
    assert torch.equal(quantizer.scale, calibrate_tensor(model.head.weight, spec).scale)
    first = next(each for each in state_of(model).quantizers.values() if each.name.startswith("conv1 "))
    wanted = TensorSpec(first.spec.dtype, algorithm="lsq" if start == "lsq" else "minmax")
    if start in ("lsq", "minmax"):
        assert torch.allclose(first.scale, calibrate_tensor(X, wanted).scale)
    assert first.spec.algorithm == "minmax"  # what was asked stays what is reported


def test_recovery_is_a_start() -> None:
    model = _prepared("w3a3", recover=["gptq"])
    found, wanted = (
        each.head.weight_quantizer.scale
        for each in (model, subbyte.prepare(randomized(SharedNet()), "w3a3:minmax", X, recover=["gptq"]))
    )
    assert torch.equal(found, wanted)
    assert not torch.equal(found, _prepared("w3a3").head.weight_quantizer.scale)
    assert not model.training
    assert subbyte.prepare_qat(randomized(SharedNet()).train(), "w3a3", X, recover=["gptq"]).training


def test_a_tuned_configuration() -> None:
    config = TuneConfig({("head", "Linear"): OpConfig(TensorSpec("int3"), TensorSpec("uint5"))})
    model = _prepared(config)
    assert {module.spec.dtype.name for module in model.modules() if isinstance(module, Quantizer)} == {"int3", "uint5"}


def test_the_configuration_of_neural_compressor() -> None:
    conf = subbyte.QuantizationAwareTrainingConfig(
        op_type_dict={"Conv2d": {"weight": {"dtype": ["int4"]}, "activation": {"dtype": ["uint4"]}}},
        op_name_dict={"conv1": {"weight": {"dtype": ["fp32"]}}},
    )
    found = state_of(_prepared(conf)).config.op
    assert found["conv1", "Conv2d"].is_float
    assert (str(found["conv2", "Conv2d"].weight.dtype), found["conv2", "Conv2d"].quant_mode) == ("int4", "quant_aware")


def test_what_a_capability_lists_for_training(tmp_path: Path) -> None:
    tensor = "{dtype: [int8], scheme: [sym], granularity: [per_tensor], algorithm: [minmax]}"
    other = tensor.replace("int8", "int3")
    path = tmp_path / "chip.yaml"
    path.write_text(
        f"capabilities:\n  low: {{static: {{Linear: {{weight: {tensor}, activation: {tensor}}}}},"
        f" quant_aware: {{Linear: {{weight: {other}, activation: {other}}}}}}}\n"
        "  fp32: [Conv2d, add]\n"
    )
    model = subbyte.prepare_qat(randomized(SharedNet()), {}, X, capability=path)
    assert model.head.weight_spec.dtype.name == "int3"
    assert subbyte.prepare(randomized(SharedNet()), {}, X, capability=path).head.weight_spec.dtype.name == "int8"


def test_what_is_no_rule_is_told_of() -> None:
    with pytest.raises(subbyte.ConfigError, match=r"ops: 'conv\(' is neither a name nor a regular expression"):
        subbyte.TrainingRules(ops={"conv(": {"weight": "lsq"}})
    with pytest.raises(subbyte.ConfigError, match=r"ops.conv1: .* is expected, found 'lsq'"):
        subbyte.TrainingRules(ops={"conv1": "lsq"})


@pytest.mark.parametrize(
    ("config", "rules", "message"),
    [
        ("w4a4", {"types": {"int4": {"activation": "pact"}}}, "types: int4: activation .*: activations are uint4"),
        ("w4a4", {"types": {"uint4": {"weight": "pact"}}}, "types: uint4: weight .*: weights are int4"),
    ],
)
def test_a_type_of_the_other_sign_is_a_slip(config: str, rules: dict[str, Any], message: str) -> None:
    net = nn.Sequential(nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    with pytest.raises(subbyte.ConfigError, match=message):
        subbyte.prepare_qat(net, config, seeded((8, 4)), training=rules)


@pytest.mark.parametrize(
    ("config", "rules", "message"),
    [
        ("w4", {"activation": "pact"}, "activation matches nothing: activations are float"),
        (
            "w4",
            {"ops": {"conv2": {"activation": "pact"}}},
            "ops: 'conv2': activation .*: activations of such ops are float",
        ),
        (
            "w4a4",
            {"types": {"bint1": {"weight": "approx_sign"}}},
            "types: bint1: weight matches nothing: weights are int4;",
        ),
        (
            "wbint1",
            {"types": {"bint1": {"weight": "ewgs", "activation": "ewgs"}}},
            "types: bint1: activation .* are float",
        ),
    ],
)
def test_a_rule_that_waits_for_a_later_configuration_is_told_of(
    config: str, rules: dict[str, Any], message: str
) -> None:
    with pytest.warns(subbyte.UnusedRuleWarning, match=message) as told:
        model = _prepared(config, training=rules)
    assert len(told) == 1
    if config == "w4":
        subbyte.training.requantize(model, "w4a4", X)  # and here it comes
        assert "pact" in _of_inputs(model, "conv2")


def test_rules_that_match_something_are_not_told_of() -> None:
    types = {"int4": {"weight": "pact"}, "uint4": {"activation": "pact"}}
    ops = {".*": {"activation": "ewgs"}, "head": {"weight": "lsq"}}
    _prepared(training={"weight": "lsq", "activation": "lsq", "types": types, "ops": ops})
    _prepared("w4a4", first_last="int8", training={"types": types})


@pytest.mark.parametrize("field", ["device", "backend", "inputs", "model_name", "quant_level", "reduce_range"])
def test_fields_of_neural_compressor_are_read_as_for_post_training(field: str) -> None:
    for config in (subbyte.PostTrainingQuantConfig, subbyte.QuantizationAwareTrainingConfig):
        with pytest.raises(subbyte.ConfigError, match=f"unknown key '{field}'"):
            config(**{field: None})
    assert subbyte.QuantizationAwareTrainingConfig(excluded_precisions=["fp16"]).excluded_precisions == ["fp16"]
