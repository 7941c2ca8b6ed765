"""TensorSpec: defaults, round trips, refusals."""

import dataclasses

import pytest

from subbyte.dtypes import dtype
from subbyte.errors import ConfigError, DataTypeError
from subbyte.spec import Granularity, TensorSpec


def test_only_a_dtype_is_needed() -> None:
    spec = TensorSpec("int4")
    assert spec.dtype is dtype("int4")
    assert (spec.scheme, spec.granularity, spec.algorithm) == ("sym", Granularity(), "minmax")
    assert (spec.scale_format, spec.axis, spec.qmin, spec.qmax) == ("fp32", None, -8, 7)


def test_a_type_brings_its_algorithm() -> None:
    assert TensorSpec("bint1").algorithm == "mean_abs"
    assert TensorSpec("ternary").algorithm == "twn"
    assert TensorSpec("bint1", algorithm="minmax").algorithm == "minmax"


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "int4"},
        {"dtype": "uint3", "scheme": "asym", "granularity": "per_group(32)", "axis": 1},
        {"dtype": "int8", "granularity": "per_channel", "axis": -1, "quant_min": -100, "quant_max": 99},
        {"dtype": "int8", "quant_min": 0},
        {"dtype": "nf4", "granularity": "per_group(64)", "algorithm": "mse", "scale_format": "bf16"},
        {"dtype": "uint8", "algorithm": "percentile(99.9)", "scale_format": "pow2"},
        {"dtype": "fp32"},
    ],
)
def test_round_trip_through_plain_values(fields: dict) -> None:
    spec = TensorSpec.from_dict(fields)
    plain = spec.to_dict()
    assert TensorSpec.from_dict(plain) == spec
    assert all(isinstance(value, str | int) for value in plain.values())
    assert hash(TensorSpec.from_dict(plain)) == hash(spec)


def test_it_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TensorSpec("int4").scheme = "asym"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "needs a dtype"),
        ({"dtype": "int4", "shceme": "sym"}, r"unknown key 'shceme'; did you mean 'scheme'\? \(allowed: dtype"),
        ({"dtype": "int4", "scale_format": "pow3"}, "did you mean 'pow2'"),
        ({"dtype": "int4", "granularity": "per_chanel"}, "did you mean 'per_channel'"),
        ({"dtype": "int4", "scheme": 3}, "scheme must be a name"),
        ({"dtype": "int4", "algorithm": 3}, "algorithm must be a name"),
        ({"dtype": "int4", "axis": "0"}, "axis must be a whole number"),
        ({"dtype": "nf4", "scheme": "asym"}, "no zero point: use scheme sym"),
        ({"dtype": "nf4", "quant_min": 0}, "narrow an integer type"),
        ({"dtype": "fp32", "quant_max": 3}, "narrow an integer type"),
        ({"dtype": "int4", "quant_min": -9}, r"-9\.\.7 is not a range inside int4's -8\.\.7"),
        ({"dtype": "int4", "quant_max": 8}, r"-8\.\.8 is not a range"),
        ({"dtype": "int4", "quant_min": 3, "quant_max": 3}, r"3\.\.3 is not a range"),
        ({"dtype": "int4", "quant_min": "1"}, "quant_min must be a whole number"),
        ({"dtype": "int4", "quant_max": 1.5}, "quant_max must be a whole number"),
    ],
)
def test_refusals(fields: dict, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        TensorSpec.from_dict(fields)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(DataTypeError, match="did you mean 'int4'"):
        TensorSpec("in4")


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a mapping"):
        TensorSpec.from_dict("int4")


def test_an_axis_is_filled_in_only_where_one_is_missing() -> None:
    assert TensorSpec("int4", granularity="per_channel").with_axis(1, 2).axis == 1
    assert TensorSpec("int4", granularity="per_group(4)").with_axis(1, 2).axis == 2
    assert TensorSpec("int4", granularity="per_channel", axis=0).with_axis(1, 2).axis == 0
    assert TensorSpec("int4").with_axis(1, 2).axis is None


def test_text() -> None:
    assert str(TensorSpec("int4", granularity="per_group(32)")) == "int4 sym per_group(32) minmax"
    assert str(TensorSpec("bf16")) == "bf16"


def test_an_algorithm_is_a_name() -> None:
    with pytest.raises(ConfigError, match=r"algorithm must be a name, not \[\]"):
        TensorSpec("int4", algorithm=[])
