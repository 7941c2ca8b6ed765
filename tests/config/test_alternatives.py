"""The tuning space of a model's ops, as capability and request say."""

from typing import Any

import pytest

from subbyte import OpConfig, PostTrainingQuantConfig
from subbyte.capability import Capability, load_capability
from subbyte.config import alternatives
from subbyte.errors import ConfigError
from subbyte.spec import OpInfo

OPS = [
    OpInfo("first", "Conv2d", "weighted", frozenset({"first"})),
    OpInfo("conv", "Conv2d", "weighted"),
    OpInfo("add", "add", "other", consumers=frozenset({"conv"})),
    OpInfo("last", "Linear", "weighted", frozenset({"last"})),
]
CHIP = """
version: {name: chip}
default: int8
capabilities:
    fp32: ['*']
    int8: &wide
        static:
            Conv2d:
                weight: {dtype: [int8], scheme: [sym], granularity: [per_channel], algorithm: [minmax, mse]}
                activation: {dtype: [uint8], scheme: [sym], granularity: [per_tensor], algorithm: [minmax]}
    int4:
        static:
            Conv2d:
                weight: {dtype: [int4], scheme: [sym], granularity: [per_channel], algorithm: [minmax]}
                activation: {dtype: [uint4], scheme: [sym], granularity: [per_tensor], algorithm: [minmax]}
"""


@pytest.fixture(scope="module")
def built_in() -> Capability:
    return load_capability("pytorch_cpu")


@pytest.fixture
def chip(tmp_path: Any) -> Capability:
    path = tmp_path / "chip.yaml"
    path.write_text(CHIP)
    return load_capability(path)


def of(capability: Capability, name: str, first_last: str | None = None, **config: Any) -> list[str]:
    found = alternatives(capability, OPS, PostTrainingQuantConfig(**config), first_last)
    (key,) = [key for key in found if key[0] == name]
    return [str(config) for config in found[key]]


def bits(configs: list[str]) -> set[tuple[str, str]]:
    parts = [dict(part.split(":", 1) for part in text.split() if ":" in part) for text in configs]
    return {(part.get("w", "-"), part.get("a", "-")) for part in parts}


def test_a_chip_has_the_rungs_that_it_lists(chip: Capability) -> None:
    assert bits(of(chip, "conv")) == {("int8", "uint8"), ("int4", "uint4"), ("-", "-")}
    assert of(chip, "conv")[0].startswith("w:int8")  # what it gets without tuning
    assert of(chip, "add") == ["fp32"]


def test_the_built_in_has_all_pairs_of_two_to_eight_bits_and_float(built_in: Capability) -> None:
    pairs = {(f"int{w}", f"uint{a}") for w in range(2, 9) for a in range(2, 9)}
    assert bits(of(built_in, "conv")) == pairs | {("-", "-")}
    assert len(of(built_in, "conv")) == 50
    assert bits(of(built_in, "add")) == {("-", f"uint{a}") for a in range(2, 9)} | {("-", "-")}


def test_what_a_request_names_are_the_alternatives(built_in: Capability) -> None:
    asked = {"Conv2d": {"weight": {"dtype": ["int4", "nf4"]}, "activation": {"dtype": ["uint8"]}}}
    assert bits(of(built_in, "conv", op_type_dict=asked)) == {("int4", "uint8"), ("nf4", "uint8"), ("-", "-")}
    assert len(of(built_in, "last", op_type_dict=asked)) == 50


def test_narrow_types_have_the_method_of_their_width(built_in: Capability, chip: Capability) -> None:
    for text in of(built_in, "conv")[:-1]:
        weight, _, activation = text.removeprefix("w:").partition(" a:")
        assert ("mse" in weight) == ("int2" in weight)
        assert ("mse" in activation) == ("uint8" not in activation)
    (narrow,) = [text for text in of(chip, "conv") if "int4" in text]
    assert "mse" not in narrow  # the chip has none
    asked = {"Conv2d": {"activation": {"algorithm": "minmax"}}}
    assert not any("mse" in text.partition(" a:")[2] for text in of(built_in, "conv", op_type_dict=asked))


def test_the_global_precision_is_the_narrowest(built_in: Capability) -> None:
    found = bits(of(built_in, "conv", precision="w6a7"))
    assert found == {(f"int{w}", f"uint{a}") for w in (6, 7, 8) for a in (7, 8)} | {("-", "-")}


def test_what_decides_leaves_one(built_in: Capability) -> None:
    assert len(of(built_in, "first", first_last="int8")) == 1
    assert len(of(built_in, "last", first_last="int8")) == 1
    assert len(of(built_in, "conv", first_last="int8")) == 50
    assert of(built_in, "conv", op_name_dict={"conv": "fp32"}) == ["fp32"]
    assert bits(of(built_in, "conv", op_name_dict={"conv": "w4a8"})) == {("int4", "uint8")}
    assert of(built_in, "conv", op_type_dict={"Conv2d": "fp32"}) == ["fp32"]


def test_other_fields_are_alternatives_where_several_are_asked(chip: Capability, built_in: Capability) -> None:
    asked = {"Conv2d": {"weight": {"algorithm": ["minmax", "mse"]}}}
    assert len(of(chip, "conv", op_type_dict=asked)) == 2 + 1 + 1  # the chip's four bits have minmax alone
    found = of(
        built_in, "conv", op_type_dict={"Conv2d": {"weight": {"algorithm": ["minmax", "mse"], "dtype": ["int4"]}}}
    )
    assert len(found) == 2 * 7 + 1
    assert sum("w:int4" in text and " mse " in text.partition("a:")[0] for text in found) == 7


def test_modes(built_in: Capability) -> None:
    only = of(built_in, "conv", approach="weight_only")
    assert bits(only) == {(f"int{w}", "-") for w in range(2, 9)} | {("-", "-")}
    assert all(text.endswith("weight_only") for text in only if text != "fp32")
    assert of(built_in, "add", approach="weight_only") == ["fp32"]


def test_excluded_precisions(chip: Capability) -> None:
    assert bits(of(chip, "conv", excluded_precisions=["int4"])) == {("int8", "uint8"), ("-", "-")}


def test_each_comes_once_and_the_first_is_what_there_is_without_tuning(built_in: Capability) -> None:
    for each in alternatives(built_in, OPS, PostTrainingQuantConfig()).values():
        assert len(set(each)) == len(each)
        assert each[-1] == OpConfig()


def test_a_request_that_fits_nothing_is_refused(built_in: Capability) -> None:
    with pytest.raises(ConfigError, match="int44"):
        of(built_in, "conv", op_type_dict={"Conv2d": {"weight": {"dtype": ["int44"]}}})


def test_an_add_that_is_read_in_float_is_tried_quantized_only_when_asked(built_in: Capability) -> None:
    add = OpInfo("add", "add", "other", consumers=frozenset({"layer_norm in 'norm'"}))
    ops = [OPS[1], add]
    assert alternatives(built_in, ops, PostTrainingQuantConfig())[add.key] == (OpConfig(),)
    asked = PostTrainingQuantConfig(op_type_dict={"add": {"activation": {"dtype": ["uint4", "uint8"]}}})
    found = [str(config) for config in alternatives(built_in, ops, asked)[add.key]]
    assert bits(found) == {("-", "uint4"), ("-", "uint8"), ("-", "-")}
