# ruff: noqa: E501 (in tables, a case is a line)
"""The request's own form: keywords, their spelling, and the forms in which it may come."""

from pathlib import Path
from typing import Any

import pytest

from subbyte.capability import load_capability
from subbyte.config import PostTrainingQuantConfig, as_request, resolve
from subbyte.dtypes import DataType, register_dtype
from subbyte.errors import ConfigError
from subbyte.spec import OpConfig, OpInfo, TensorSpec, TuneConfig


def test_defaults() -> None:
    config = PostTrainingQuantConfig()
    assert (config.approach, config.precision, config.first_last) == ("static", None, None)
    assert config.calibration_sampling_size is None


def test_forms_of_one_request(tmp_path: Path) -> None:
    fields = {
        "precision": "w4a8",
        "approach": "dynamic",
        "op_type_dict": {"Conv2d": {"weight": {"dtype": ["int4"]}}},
    }
    config = PostTrainingQuantConfig(**fields)
    path = tmp_path / "request.yaml"
    path.write_text("precision: w4a8\napproach: dynamic\nop_type_dict: {Conv2d: {weight: {dtype: [int4]}}}\n")
    assert as_request(fields) == as_request(path) == as_request(str(path)) == as_request(config) == config
    assert as_request("w4a8") == PostTrainingQuantConfig(precision="w4a8")
    assert as_request({}) == PostTrainingQuantConfig()


def test_a_tune_config_is_one_too() -> None:
    tune = TuneConfig({("fc", "Linear"): OpConfig(weight=TensorSpec("int4"))})  # type: ignore[arg-type]
    assert as_request(tune) is tune
    assert as_request(tune.to_dict()) == tune


def test_objects_serve_as_values() -> None:
    spec = TensorSpec("int4", granularity="per_channel")  # type: ignore[arg-type]
    PostTrainingQuantConfig(op_name_dict={"a": OpConfig(weight=spec), "b": {"weight": spec}})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"aproach": "static"}, "unknown key 'aproach'; did you mean 'approach'? (allowed: approach, precision, "),
        ({"approach": "dinamic"}, "approach: unknown 'dinamic'; did you mean 'dynamic'? (allowed: static, "),
        ({"precision": 4}, "precision: input should be a valid string, found 4"),
        ({"op_type_dict": 4}, "op_type_dict: "),
        ({"op_type_dict": {4: "w4"}}, "op_type_dict: "),
        ({"op_type_dict": {"Conv2d": 4}}, "op_type_dict['Conv2d']: expected a mapping"),
        ({"op_type_dict": {"Conv2d": ""}}, "op_type_dict['Conv2d']: the precision is empty"),
        ({"op_type_dict": {"Conv2d": {"wieght": {}}}}, "op_type_dict['Conv2d']: unknown key 'wieght'; did you mean 'weight'?"),
        ({"op_name_dict": {"fc": {"weight": {"dtpe": "int4"}}}}, "op_name_dict['fc']: weight: unknown key 'dtpe'; did you mean 'dtype'?"),
        ({"op_name_dict": {"fc": {"weight": {"dtype": []}}}}, "op_name_dict['fc']: weight.dtype: the list is empty"),
        ({"op_name_dict": {"fc": {"weight": {"dtype": 4}}}}, "expected a name or a list of names, found 4"),
        ({"op_name_dict": {"fc": {"weight": {"axis": "0"}}}}, "expected a whole number, found '0'"),
        ({"op_name_dict": {"fc": {"weight": {"granularity": "per_chanel"}}}}, "did you mean 'per_channel'?"),
        ({"op_name_dict": {"fc": {"weight": {"granularity": "per_group"}}}}, "needs a group size"),
        ({"op_name_dict": {"fc": {"weight": "int4"}}}, "weight: expected a mapping"),
        ({"op_name_dict": {"fc": {"quant_mode": "statick"}}}, "quant_mode 'statick' is unknown; did you mean 'static'?"),
        ({"op_name_dict": {"fc": {"quant_mode": "static", "activation": {"quant_mode": "dynamic"}}}}, "two quant_modes"),
        ({"excluded_precisions": "int4"}, "excluded_precisions: input should be a valid list"),
        ({"calibration_sampling_size": 0}, "calibration_sampling_size: input should be greater than 0"),
        ({"calibration_sampling_size": [10, -1]}, "calibration_sampling_size: "),
        ({"calibration_sampling_size": []}, "calibration_sampling_size: input should be a valid integer, found []; calibration_sampling_size: list should have at least 1 item"),
        ({"calibration_sampling_size": True}, "calibration_sampling_size: input should be a valid integer, found True"),
        ({"calibration_sampling_size": "10"}, "calibration_sampling_size: input should be a valid integer, found '10'"),
        ({"calibration_sampling_size": [True]}, "calibration_sampling_size: "),
        ({"calibration_sampling_size": 1.5}, "calibration_sampling_size: input should be a valid integer, found 1.5"),
        ({"recipes": {"first_conv_or_matmul_quantisation": True}}, "did you mean 'first_conv_or_matmul_quantization'?"),
        ({"recipes": {"first_conv_or_matmul_quantization": "no"}}, "recipes: input should be a valid boolean"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PostTrainingQuantConfig(**fields)
    assert message in str(caught.value)


@pytest.mark.parametrize("given", ["w4", {"precision": "w4"}, None])
def test_only_keywords_serve(given: Any) -> None:
    with pytest.raises(ConfigError, match="keywords are expected, as in precision='w4a8'"):
        PostTrainingQuantConfig(given)
    with pytest.raises(ConfigError, match="expected a mapping, found"):
        PostTrainingQuantConfig.from_dict([given])  # type: ignore[arg-type]


def test_sampling_sizes() -> None:
    for size in (3, [3, 4], None):
        assert PostTrainingQuantConfig(calibration_sampling_size=size).calibration_sampling_size == size


@pytest.mark.parametrize("given", [3, None, ["w4"], {3: "w4"}, {"op": 3}, {"op": {"fc": {}}}])
def test_what_is_no_request_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError):
        as_request(given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "precision: w4\nopname_dict: {}\n",
            "wrong.yaml:2: configuration: unknown key 'opname_dict'; did you mean",
        ),
        ("precision: 4\n", "wrong.yaml: configuration: precision: "),
        ("precision: w4\nprecision: w8\n", "wrong.yaml:2: the key 'precision' is given twice"),
        ("precision: [w4\n", "not readable as YAML"),
        ("", "wrong.yaml:1: expected a mapping"),
    ],
)
def test_errors_of_a_file_name_it(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        as_request(path)
    assert message in str(caught.value)
    with pytest.raises(ConfigError, match=r"missing\.yaml: cannot be read"):
        as_request("missing.yaml")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (DataType("int4", values=(-1.0, -0.5, 0.5)), "'int4': the name is taken by"),
        (DataType("configt1", values=(-1.0, 0.5)), "'configt1' is not registered; give it to register_dtype"),
    ],
)
def test_a_data_type_that_its_name_does_not_stand_for_is_refused(other: DataType, message: str) -> None:
    wishes: list[Any] = [{"weight": {"dtype": other}}, {"weight": {"dtype": ["int8", other]}}]
    if other.name != "int4":  # of the other no spec can be made
        wishes += [{"weight": TensorSpec(other)}, OpConfig(weight=TensorSpec(other))]
    for wish in wishes:
        with pytest.raises(ConfigError, match=message):
            PostTrainingQuantConfig(op_name_dict={"fc": wish})


def test_a_spec_of_a_name_that_was_registered_as_another_since_is_refused() -> None:
    given = TuneConfig({("fc", "Linear"): OpConfig(weight=TensorSpec(DataType("configt2", values=(-1.0, 0.5))))})
    with pytest.raises(ConfigError, match="'configt2' is not registered"):
        resolve(load_capability(), [OpInfo("fc", "Linear", "weighted")], given)
    register_dtype(DataType("configt2", values=(-1.0, 0.25)))
    with pytest.raises(ConfigError, match="'configt2': the name is taken by"):
        resolve(load_capability(), [OpInfo("fc", "Linear", "weighted")], given)
