"""Constructors answer wrong arguments with an error of ours."""

import copy
import pickle
from typing import Any

import pytest

from subbyte import ConfigError, DataType, DataTypeError, OpConfig, SubbyteError, TensorSpec, TuneConfig
from subbyte.errors import nearest


@pytest.mark.parametrize(
    ("cls", "given", "error", "message"),
    [
        (TensorSpec, {"dtype": "int4", "schem": "sym"}, ConfigError, "'schem'; did you mean 'scheme'"),
        (TensorSpec, {"scheme": "sym"}, ConfigError, "'dtype'"),
        (OpConfig, {"wieght": None}, ConfigError, "'wieght'; did you mean 'weight'"),
        (TuneConfig, {"op": {}, "source": {}}, ConfigError, "'source'; did you mean 'sources'"),
        (DataType, {"name": "x", "bit": 3}, DataTypeError, "'bit'; did you mean 'bits'"),
    ],
)
def test_misspelt_arguments(cls: type, given: dict[str, Any], error: type[SubbyteError], message: str) -> None:
    with pytest.raises(error, match=rf"{cls.__name__}: .*{message}.* \(allowed: .*\)"):
        cls(**given)


def test_superfluous_arguments() -> None:
    with pytest.raises(ConfigError, match="OpConfig: too many positional arguments"):
        OpConfig(None, None, None, None, "static", None, None)


def test_copies_and_pickles_are_as_before() -> None:
    spec = TensorSpec("int4", granularity="per_group(8)")
    for other in (copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        assert other == spec


TYPES = ["Conv2d", "ELU", "Linear", "conv2d", "elu", "gelu", "softmax"]


@pytest.mark.parametrize("word", ["LSTM", "ReLU", "relu", "BatchNorm2d", ""])
def test_another_name_is_no_misspelling(word: str) -> None:
    assert nearest(word, TYPES) == ""


@pytest.mark.parametrize(
    ("word", "meant"),
    [("Conv2D", "Conv2d"), ("Lineer", "Linear"), ("inear", "Linear"), ("geul", "gelu"), ("eul", "elu"), ("EUL", "ELU")],
)
def test_a_misspelling_has_a_hint(word: str, meant: str) -> None:
    assert nearest(word, TYPES) == f"; did you mean {meant!r}?"


def test_a_message_is_bounded_and_has_no_control_characters() -> None:
    error = SubbyteError("\x1b[31m" + "x" * 10_000_000 + "; do this\n")
    assert str(error).startswith("\\x1b[31mxxx")
    assert str(error).endswith("xxx; do this\n")
    assert len(str(error)) <= 10_000
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
