"""OpConfig: round trips, the hoisted quant_mode, refusals."""

import pytest

from subbyte.errors import ConfigError
from subbyte.spec import OpConfig, OpInfo, TensorSpec

W4 = {"dtype": "int4", "granularity": "per_channel"}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"weight": W4, "activation": {"dtype": "uint4"}, "quant_mode": "static"},
        {"weight": W4, "quant_mode": "weight_only"},
        {"weight": W4, "activation": {"dtype": "fp32"}, "bias": {"dtype": "fp32"}, "output": {"dtype": "int8"}},
    ],
)
def test_round_trip_through_plain_values(fields: dict) -> None:
    config = OpConfig.from_dict(fields)
    assert OpConfig.from_dict(config.to_dict()) == config


def test_quant_mode_inside_activation_is_hoisted() -> None:
    config = OpConfig.from_dict({"weight": W4, "activation": {"dtype": "uint8", "quant_mode": "dynamic"}})
    assert config.quant_mode == "dynamic"
    assert config.activation == TensorSpec("uint8")


def test_what_is_given_is_left_as_it_is() -> None:
    fields = {"activation": {"dtype": "uint8", "quant_mode": "dynamic"}}
    OpConfig.from_dict(fields)
    assert fields == {"activation": {"dtype": "uint8", "quant_mode": "dynamic"}}


def test_a_tensor_may_be_given_as_a_spec() -> None:
    assert OpConfig.from_dict({"weight": TensorSpec("int4")}) == OpConfig(weight=TensorSpec("int4"))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"wieght": W4}, "unknown key 'wieght'; did you mean 'weight'"),
        ({"weight": W4, "quant_mode": "statik"}, "did you mean 'static'"),
        ({"weight": W4, "quant_mode": ["static"]}, "is unknown"),
        ({"activation": {"dtype": "uint8", "quant_mode": "dynamic"}, "quant_mode": "static"}, "two quant_modes"),
        ({"weight": {"dtype": "int4", "axsi": 1}}, "did you mean 'axis'"),
        ({"weight": "int4"}, "expected a mapping"),
        ([], "expected a mapping"),
    ],
)
def test_refusals(fields: dict, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        OpConfig.from_dict(fields)


@pytest.mark.parametrize("tensor", ["weight", "activation", "bias", "output"])
def test_a_tensor_is_given_as_a_spec_or_not_at_all(tensor: str) -> None:
    with pytest.raises(ConfigError, match=rf"{tensor} must be a TensorSpec, as in TensorSpec\('int4'\), not 'int8'"):
        OpConfig(**{tensor: "int8"})


def test_is_float() -> None:
    assert OpConfig().is_float
    assert OpConfig(weight=TensorSpec("fp32"), bias=TensorSpec("int8")).is_float
    assert not OpConfig(weight=TensorSpec("int4")).is_float


def test_axes_go_to_the_weight() -> None:
    config = OpConfig.from_dict({"weight": W4, "activation": {"dtype": "uint4"}})
    assert config.with_axes(1, 0).weight.axis == 1
    assert config.with_axes(1, 0).activation.axis is None
    assert OpConfig().with_axes(1, 0) == OpConfig()


def test_text() -> None:
    config = OpConfig.from_dict({"weight": {"dtype": "int4"}, "activation": {"dtype": "uint8"}})
    assert str(config) == "w:int4 sym per_tensor minmax a:uint8 sym per_tensor minmax static"
    assert str(OpConfig()) == "fp32"


def test_the_key_of_an_op() -> None:
    assert OpInfo("layer1.0.conv1", "Conv2d", "weighted").key == ("layer1.0.conv1", "Conv2d")


def test_an_accumulator_is_a_name() -> None:
    with pytest.raises(ConfigError, match=r"accumulator \['int32'\] is unknown"):
        OpConfig(accumulator=["int32"])


@pytest.mark.parametrize("field", ["accumulator", "quant_mode", "weight"])
def test_a_long_value_is_shortened_in_the_message(field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        OpConfig(**{field: "x" * 5_000})
    assert len(str(raised.value)) < 500
