"""TuneConfig: the shape of the seed documents, round trips, refusals."""

from typing import Any

import pytest

from subbyte.errors import ConfigError
from subbyte.spec import OpConfig, TensorSpec, TuneConfig

CONV = {"weight": {"dtype": "int4"}, "activation": {"dtype": "uint4", "quant_mode": "static"}}


def test_round_trip_through_plain_values() -> None:
    config = TuneConfig.from_dict({"op": {("conv1", "Conv2d"): CONV, ("add", "add"): {}}})
    assert config.op["conv1", "Conv2d"].weight == TensorSpec("int4")
    assert TuneConfig.from_dict(config.to_dict()) == config


def test_keys_may_be_text_and_values_built_already() -> None:
    written = TuneConfig.from_dict({"op": {"('conv1', 'Conv2d')": OpConfig.from_dict(CONV)}})
    assert written == TuneConfig.from_dict({"op": {("conv1", "Conv2d"): CONV}})


def test_sources_are_no_part_of_equality() -> None:
    key = ("conv1", "Conv2d")
    assert TuneConfig({key: OpConfig()}, {key: {"weight": "global"}}) == TuneConfig({key: OpConfig()})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "must map"),
        ({"op": []}, "must map"),
        ({"ops": {}}, "did you mean 'op'"),
        ({"op": {"conv1": CONV}}, r"'conv1' is no \(name, type\) pair"),
        ({"op": {"('conv1',": CONV}}, r"is no \(name, type\) pair"),
        ({"op": {("conv1", 3): CONV}}, r"is no \(name, type\) pair"),
        ({"op": {("conv1", "Conv2d"): {"wight": {}}}}, r"op 'conv1' \(Conv2d\): .*did you mean 'weight'"),
        ({"op": {("conv1", "Conv2d"): "int4"}}, r"op 'conv1' \(Conv2d\): .*expected a mapping"),
    ],
)
def test_refusals(values: dict, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        TuneConfig.from_dict(values)


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (None, "op must map"),
        ([], "op must map"),
        ({("conv1", "Conv2d"): CONV}, r"OpConfig, and \('conv1', 'Conv2d'\) to \{.*TuneConfig.from_dict"),
        ({("conv1", "Conv2d"): None}, "to None is none"),
        ({"conv1": OpConfig()}, "op maps"),
        ({("conv1",): OpConfig()}, r"is no \(name, type\) pair"),
        ({(1, 2): OpConfig()}, r"is no \(name, type\) pair"),
    ],
)
def test_the_constructor_takes_op_configs_alone(op: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        TuneConfig(op)


@pytest.mark.parametrize("sources", [None, 3, {("conv1", "Conv2d"): 3}])
def test_sources_are_mappings(sources: Any) -> None:
    with pytest.raises(ConfigError, match="sources map"):
        TuneConfig({("conv1", "Conv2d"): OpConfig()}, sources)
