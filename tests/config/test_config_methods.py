"""The calibration method that a shorthand takes by its width, and the requests that it leaves alone."""

from typing import Any

import pytest

from subbyte.capability import Capability, load_capability
from subbyte.config import PostTrainingQuantConfig, resolve
from subbyte.dtypes import DataType, register_dtype
from subbyte.spec import OpInfo

CPU = load_capability()
FC = OpInfo("fc", "Linear", "weighted", frozenset({"last"}))
MATMUL = OpInfo("matmul", "matmul", "matmul")


def methods(request: Any, capability: Capability = CPU, op: OpInfo = FC) -> tuple[str | None, ...]:
    """The methods of the weight and of the activation."""
    config = resolve(capability, [FC, MATMUL], request).op[op.key]
    return tuple(spec.algorithm if spec else None for spec in (config.weight, config.activation))


def linear(weight: list[str], activation: list[str]) -> dict[str, Any]:
    """A section of four bits that lists these calibration methods."""
    common = {"scheme": ["sym"], "granularity": ["per_tensor"]}
    tensors = {
        "weight": common | {"dtype": ["int4", "int2"], "algorithm": weight},
        "activation": common | {"dtype": ["uint4"], "algorithm": activation},
    }
    return {"static": {"Linear": tensors}}


def limited(weight: list[str], activation: list[str]) -> Capability:
    """A chip of one such section."""
    return load_capability({"default": "int4", "capabilities": {"int4": linear(weight, activation), "fp32": ["*"]}})


@pytest.mark.parametrize("bits", range(2, 9))
def test_shorthand_method_follows_from_the_width(bits: int) -> None:
    activation = "minmax" if bits == 8 else "mse"
    assert methods(f"w8a{bits}") == ("minmax", activation)
    assert methods(f"w8a{bits}", op=MATMUL) == (None, activation)
    assert methods(f"w{bits}a8") == ("mse" if bits == 2 else "minmax", "minmax")
    assert methods(f"w{bits}") == ("mse" if bits == 2 else "minmax", None)


@pytest.mark.parametrize(
    "request_",
    [
        {"op_name_dict": {"fc": "w2a4"}},
        {"op_type_dict": {"Lin.*": "w2a4"}},
        {"first_last": "w2a4"},
        {"precision": "w2a4", "op_name_dict": {"fc": {"weight": {"scheme": "asym"}}}},
    ],
)
def test_every_shorthand_takes_the_method_of_its_width(request_: dict[str, Any]) -> None:
    assert methods(request_) == ("mse", "mse")


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("w2a4:minmax", ("minmax", "minmax")),
        ("w2a4:percentile", ("percentile", "percentile")),
        ({"precision": "w2a4", "op_type_dict": {"Linear": {"weight": {"algorithm": ["kl"]}}}}, ("kl", "mse")),
        ({"precision": "w2a4", "op_name_dict": {"fc": {"activation": {"algorithm": "minmax"}}}}, ("mse", "minmax")),
        ({"op_name_dict": {"fc": {"weight": {"dtype": "int2"}, "activation": {"dtype": "uint4"}}}}, ("minmax",) * 2),
        ("int2", ("minmax", "minmax")),  # a section of the capability
        ({}, ("minmax", "minmax")),
        ("default", ("minmax", "minmax")),
        ("w2a4:dynamic", ("mse", "minmax")),
        ({"precision": "w2a4", "approach": "dynamic"}, ("mse", "minmax")),
        ({"precision": "w2a4", "approach": "quant_aware"}, None),
        ("wbint1aternary", ("mean_abs", "twn")),
        ("wnf4afp4_e2m1", ("minmax", "minmax")),
    ],
)
def test_other_requests_keep_their_method(request_: Any, expected: tuple[str, str] | None) -> None:
    if expected is None:  # training: as the fields of the same types
        fields = {"weight": {"dtype": "int2"}, "activation": {"dtype": "uint4"}}
        expected = methods(PostTrainingQuantConfig(approach="quant_aware", op_name_dict={"fc": fields}))  # type: ignore[assignment]
    assert methods(request_) == expected


def test_capability_without_the_method_keeps_its_first_choice() -> None:
    assert methods("w2a4", limited(["minmax", "mse"], ["minmax", "kl"])) == ("mse", "minmax")
    assert methods("w2a4", limited(["percentile", "mse"], ["kl", "mse", "minmax"])) == ("percentile", "kl")
    assert methods("w4a4:minmax", limited(["minmax"], ["kl", "minmax"])) == ("minmax", "minmax")


def test_sections_that_differ_in_the_method_alone_are_not_ambiguous() -> None:
    sections = {"one": linear(["minmax"], ["minmax", "mse"]), "two": linear(["minmax"], ["minmax"])}
    wide = {"static": {"Conv2d": linear(["minmax"], ["minmax"])["static"]["Linear"]}}
    chip = load_capability({"default": "wide", "capabilities": sections | {"wide": wide, "fp32": ["*"]}})
    assert methods("w4a4", chip) == ("minmax", "mse")


def test_own_method_of_a_data_type_is_kept() -> None:
    register_dtype(DataType("methodsint4", bits=4, signed=False, algorithm="percentile"))
    assert methods("w8amethodsint4") == ("minmax", "percentile")


def test_constraint_shorthand_takes_the_method_of_its_width() -> None:
    constraints = [{"where": {"op": ["Linear"]}, "precision": "w4a4"}]
    chip = load_capability({"extends": "pytorch_cpu", "constraints": constraints})
    assert methods("w4a8", chip) == ("minmax", "mse")
    constraints[0]["precision"] = "w4a4:minmax"
    chip = load_capability({"extends": "pytorch_cpu", "constraints": constraints})
    assert methods("w4a4", chip) == ("minmax", "minmax")


def test_source_names_the_width() -> None:
    sources = resolve(CPU, [FC], "w4a4").sources[FC.key]
    assert sources["activation.algorithm"] == "width of uint4 (instead of minmax)"
    assert sources["weight.algorithm"].startswith("capability pytorch_cpu.yaml:")
    assert resolve(CPU, [FC], "w4a4:mse").sources[FC.key]["activation.algorithm"] == "global 'w4a4:mse'"
