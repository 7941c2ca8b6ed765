"""A request and a capability come to what every op gets: precedence and defaults."""

from typing import Any

import pytest
from requested_ops import (
    ADD,
    CONV1,
    CONV2,
    CPU,
    DEPTHWISE,
    EMBEDDING,
    FC,
    MATMUL,
    OPS,
    all_types,
    overlay,
    tuned,
    types,
)

from subbyte.capability import load_capability
from subbyte.config import PostTrainingQuantConfig, resolve
from subbyte.dtypes import DataType, register_dtype
from subbyte.errors import ConfigError
from subbyte.spec import OpConfig, OpInfo

DEFAULT = {op.name: ("int8", "uint8") for op in OPS} | {
    ADD.name: ("-", "uint8"),
    MATMUL.name: ("-", "uint8"),
    EMBEDDING.name: ("int8", "-"),
}


def test_nothing_asked_is_the_default_section() -> None:
    tune = tuned({})
    assert all_types(tune) == DEFAULT
    conv = tune.op[CONV1.key]
    assert conv.weight is not None
    assert conv.activation is not None
    assert (conv.weight.scheme, str(conv.weight.granularity), conv.weight.algorithm) == (
        "sym",
        "per_channel",
        "minmax",
    )
    assert (conv.activation.scheme, str(conv.activation.granularity)) == ("sym", "per_tensor")
    assert conv.quant_mode == "static"
    source = tune.sources[CONV1.key]
    assert source["weight.dtype"].startswith("capability pytorch_cpu.yaml:")
    assert source["weight.dtype"].endswith("(default of section 'int8')")
    assert source["quant_mode"] == "approach='static'"


def test_the_example_of_the_seeds() -> None:
    op_type_dict = {"Conv2d": {"weight": {"dtype": ["int4"]}, "activation": {"dtype": ["uint4"]}}}
    tune = tuned(PostTrainingQuantConfig(op_type_dict=op_type_dict))
    low = {op.name: ("int4", "uint4") for op in (CONV1, CONV2, DEPTHWISE)}
    assert all_types(tune) == DEFAULT | low
    conv = tune.op[CONV1.key].weight
    assert conv is not None
    assert (conv.scheme, str(conv.granularity)) == ("sym", "per_channel")
    assert tune.sources[CONV1.key]["weight.dtype"] == "op_type_dict['Conv2d']"


def test_a_shorthand_speaks_of_weighted_ops_and_matmuls() -> None:
    assert all_types(tuned("w4a4")) == {op.name: ("int4", "uint4") for op in OPS} | {
        ADD.name: ("-", "uint8"),
        MATMUL.name: ("-", "uint4"),
        EMBEDDING.name: ("int4", "-"),
    }
    assert tuned("w4a4").sources[FC.key]["activation.dtype"] == "global 'w4a4'"


def test_weight_only_leaves_the_others_float() -> None:
    tune = tuned("w4:g32")
    assert tune.op[ADD.key] == tune.op[MATMUL.key] == OpConfig()
    fc = tune.op[FC.key]
    assert types(fc) == ("int4", "-")
    assert fc.quant_mode == "weight_only"
    assert fc.weight is not None
    assert str(fc.weight.granularity) == "per_group(32)"


def test_dynamic() -> None:
    tune = tuned("w4a8:dynamic:mse")
    assert tune.op[ADD.key] == OpConfig()
    assert "lists no add in dynamic mode" in tune.sources[ADD.key]["activation.dtype"]
    fc, conv = tune.op[FC.key], tune.op[CONV1.key]
    assert fc.quant_mode == conv.quant_mode == tune.op[MATMUL.key].quant_mode == "dynamic"
    assert fc.activation is not None
    assert fc.weight is not None
    assert conv.activation is not None
    assert str(fc.activation.granularity) == "per_token"
    assert str(conv.activation.granularity) == "per_tensor"
    assert (fc.weight.algorithm, fc.activation.algorithm) == ("mse", "minmax")


@pytest.mark.parametrize("section", [name for name in CPU.sections if name != "others"])
@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
def test_every_section_by_name(section: str, mode: str) -> None:
    tune = tuned({"precision": section, "approach": mode})
    for op in (CONV1, EMBEDDING, FC):
        config = tune.op[op.key]
        assert config.weight is not None
        assert config.weight.dtype.name == section
        assert config.quant_mode == mode


@pytest.mark.parametrize("bits", range(2, 9))
def test_every_pair_of_widths(bits: int) -> None:
    for activation in range(2, 9):
        assert types(tuned(f"w{bits}a{activation}").op[FC.key]) == (f"int{bits}", f"uint{activation}")
    unsigned = {"op_name_dict": {"fc": {"weight": {"dtype": f"uint{bits}"}}}}
    assert types(tuned(unsigned).op[FC.key]) == (f"uint{bits}", "uint8")


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ({"weight": {"dtype": "int4"}}, ("int4", "uint8")),
        ({"weight": {"dtype": "bint1"}}, ("bint1", "uint8")),
        ({"activation": {"dtype": "uint4"}}, ("int8", "uint4")),
        ({"activation": {"dtype": "int4"}}, ("int8", "int4")),
        ({"activation": {"dtype": "bint1"}}, ("int8", "bint1")),
        ({"weight": {"dtype": "int4"}, "activation": {"dtype": "uint4"}}, ("int4", "uint4")),
        ("int4", ("int4", "uint4")),  # a section's name means its pair
    ],
)
def test_a_tensor_that_nothing_is_said_of_keeps_the_default(asked: Any, got: tuple[str, str]) -> None:
    tune = tuned({"op_name_dict": {"fc": asked}})
    assert types(tune.op[FC.key]) == got
    wide = overlay({}, default="int4")
    if asked != "int4" and "weight" not in asked:
        assert types(tuned({"op_name_dict": {"fc": asked}}, capability=wide).op[FC.key])[0] == "int4"


def test_a_section_that_has_no_other_pair_gives_its_own() -> None:
    lists = {"scheme": ["sym"], "granularity": ["per_tensor"], "algorithm": ["minmax"]}
    sections = {
        name: {"static": {"Linear": {"weight": {"dtype": [weight], **lists}, "activation": {"dtype": [act], **lists}}}}
        for name, weight, act in (("int8", "int8", "uint8"), ("int4", "int4", "uint4"))
    }
    chip = load_capability({"default": "int8", "capabilities": sections})
    tune = resolve(chip, [FC], {"op_name_dict": {"fc": {"weight": {"dtype": "int4"}}}})
    assert types(tune.op[FC.key]) == ("int4", "uint4")


@pytest.mark.parametrize(
    ("request_", "mode"), [("w4", "weight_only"), ("w4a8:dynamic", "dynamic"), ({"approach": "dynamic"}, "dynamic")]
)
def test_a_mode_that_nothing_has_is_refused(request_: Any, mode: str) -> None:
    lists = {"scheme": ["sym"], "granularity": ["per_tensor"], "algorithm": ["minmax"]}
    linear = {"weight": {"dtype": ["int8", "int4"], **lists}, "activation": {"dtype": ["uint8"], **lists}}
    chip = load_capability({"default": "int8", "capabilities": {"int8": {"static": {"Linear": linear}}}})
    with pytest.raises(ConfigError, match=rf"'fc'.*{mode} mode.*it has static"):
        resolve(chip, [CONV1, FC], request_)


def test_a_quantized_activation_beside_a_float_weight_is_refused() -> None:
    alone = {"weight": {"dtype": "fp32"}, "activation": {"dtype": "uint4"}}
    with pytest.raises(ConfigError, match=r"op_name_dict\['fc'\].*activation alone"):
        tuned({"op_name_dict": {"fc": alone}})
    tune = tuned({"precision": "w4a4", "op_name_dict": {"fc": {"weight": {"dtype": "fp32"}}}})
    assert tune.op[FC.key].is_float


def test_a_type_in_the_other_spelling_is_refused() -> None:
    gelu = OpInfo("act", "GELU", "other")
    with pytest.raises(ConfigError, match=r"op_type_dict\['gelu'\].*has GELU, and no gelu"):
        resolve(load_capability("pytorch_cpu"), [FC, gelu], {"op_type_dict": {"gelu": "fp32"}})
    both = {"op_type_dict": {"gelu": "fp32", "GELU": "fp32"}}
    assert resolve(load_capability("pytorch_cpu"), [FC, gelu], both).op[gelu.key].is_float


def test_a_type_brings_its_own_algorithm() -> None:
    binary = tuned("w1a8").op[FC.key]
    assert binary.weight is not None
    assert binary.activation is not None
    assert (binary.weight.algorithm, binary.activation.algorithm) == ("mean_abs", "minmax")
    ternary = tuned("wternarya8").op[FC.key].weight
    assert ternary is not None
    assert ternary.algorithm == "twn"
    # bint1 is not the first of int8's activations, whose list begins with minmax
    other = tuned({"op_name_dict": {"fc": {"weight": {"dtype": "int8"}, "activation": {"dtype": "bint1"}}}})
    activation = other.op[FC.key].activation
    assert activation is not None
    assert activation.algorithm == "mean_abs"
    assert other.sources[FC.key]["activation.algorithm"] == "data type bint1"


@pytest.mark.parametrize("suffix", ["", ":dynamic"])
@pytest.mark.parametrize("pair", ["wresolvert3a4", "w4aresolvert3", "wresolvert3"])
def test_a_users_own_type_needs_no_section(pair: str, suffix: str) -> None:
    register_dtype(DataType("resolvert3", values=(-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0)))
    if suffix and "a" not in pair.removeprefix("wresolvert3") and not pair.startswith("w4"):
        return
    assert "resolvert3" in types(tuned(pair + suffix, "int8").op[CONV2.key])


class TestPrecedence:
    def test_global_then_type_then_position_then_name(self) -> None:
        request = {
            "precision": "w2a2",
            "op_type_dict": {"Conv2d": "w3a3"},
            "op_name_dict": {"layer1.*conv1": "w5a5"},
        }
        found = all_types(tuned(request, "int8"))
        assert found[CONV1.name] == found[FC.name] == ("int8", "uint8")
        assert found[CONV2.name] == ("int5", "uint5")
        assert found[DEPTHWISE.name] == ("int3", "uint3")
        assert found[MATMUL.name] == ("-", "uint2")

    def test_a_name_beats_first_last(self) -> None:
        tune = tuned({"first_last": "int8", "precision": "w4a4", "op_name_dict": {"fc": "w6a6"}})
        assert types(tune.op[FC.key]) == ("int6", "uint6")
        assert types(tune.op[CONV1.key]) == ("int8", "uint8")
        assert tune.sources[CONV1.key]["weight.dtype"] == "first_last='int8'"

    @pytest.mark.parametrize("key", ["op_name_dict", "op_type_dict"])
    def test_later_beats_earlier(self, key: str) -> None:
        keys = ["fc", "f."] if key == "op_name_dict" else ["Linear", "Lin.*"]
        assert types(tuned({key: {keys[0]: "w4a4", keys[1]: "w3a3"}}).op[FC.key]) == ("int3", "uint3")
        assert types(tuned({key: {keys[1]: "w3a3", keys[0]: "w4a4"}}).op[FC.key]) == ("int4", "uint4")

    def test_rules_merge_per_field(self) -> None:
        """A rule for one field leaves the others as they were (others replace all, and turn on an output)."""
        request = {
            "precision": "w4a8:mse",
            "op_type_dict": {"Linear": {"weight": {"granularity": "per_group(16)"}}},
            "op_name_dict": {"fc": {"activation": {"scheme": "asym"}}},
        }
        fc = tuned(request).op[FC.key]
        assert fc.weight is not None
        assert fc.activation is not None
        assert fc.output is None
        assert (fc.weight.dtype.name, str(fc.weight.granularity), fc.weight.algorithm) == (
            "int4",
            "per_group(16)",
            "mse",
        )
        assert (fc.activation.dtype.name, fc.activation.scheme, fc.activation.algorithm) == (
            "uint8",
            "asym",
            "mse",
        )

    def test_sources_name_the_rule_of_each_field(self) -> None:
        request = {"precision": "w4a8", "op_name_dict": {"f.": {"activation": {"scheme": "asym"}}}}
        sources = tuned(request).sources[FC.key]
        assert sources["weight.dtype"] == sources["quant_mode"] == "global 'w4a8'"
        assert sources["activation.scheme"] == "op_name_dict['f.']"

    def test_a_precisions_name_states_the_whole_op(self) -> None:
        first = tuned("w1a8:mean_abs", "int8").op[CONV1.key].weight
        assert first is not None
        assert (first.dtype.name, first.algorithm) == ("int8", "minmax")

    def test_first_last_takes_the_mode(self) -> None:
        assert tuned("w4", "int8").op[CONV1.key].quant_mode == "weight_only"
        assert tuned("w4a8:dynamic", "int8").op[CONV1.key].quant_mode == "dynamic"
        assert tuned("w4", "w8a8").op[CONV1.key].quant_mode == "static"

    def test_the_argument_beats_the_field(self) -> None:
        assert types(tuned({"first_last": "int8", "precision": "w4a4"}, "w6a6").op[FC.key]) == (
            "int6",
            "uint6",
        )

    def test_a_name_may_be_any_op(self) -> None:
        found = all_types(tuned({"op_name_dict": {ADD.name: "w4a4", MATMUL.name: "w4a4"}}))
        assert found[ADD.name] == found[MATMUL.name] == ("-", "uint4")

    def test_a_pattern_of_types_speaks_of_multiplying_ops(self) -> None:
        found = all_types(tuned({"op_type_dict": {".*": "w4a4"}}))
        assert (found[ADD.name], found[MATMUL.name]) == (("-", "uint8"), ("-", "uint4"))
        assert all_types(tuned({"op_type_dict": {"add": "w4a4"}}))[ADD.name] == ("-", "uint4")

    @pytest.mark.parametrize("key", ["add|mul", "(add|Conv2d)", "add.*", "ad.", "Linear|add"])
    def test_pattern_sets_types_without_weight_that_it_spells(self, key: str) -> None:
        assert all_types(tuned({"op_type_dict": {key: "w4a4"}}))[ADD.name] == ("-", "uint4")

    def test_a_pattern_of_names_passes_over_what_an_op_has_not(self) -> None:
        found = all_types(tuned({"op_name_dict": {r"layer1\..*": {"weight": {"dtype": "int4"}}}}))
        assert found[CONV2.name] == ("int4", "uint8")
        assert found[ADD.name] == ("-", "uint8")
        assert tuned({"op_name_dict": {r"layer1\..*": "w4"}}).op[ADD.key] == OpConfig()

    def test_a_type_that_the_model_lacks_may_be_named(self) -> None:
        request = {"op_type_dict": {"Conv3d": "w4a4", "ConvTranspose.*": {"weight": {"dtype": "int4"}}, "tanh": "fp32"}}
        assert tuned(request) == tuned({})

    def test_an_exact_name_is_no_pattern(self) -> None:
        ops = [OpInfo("a.b", "Linear", "weighted"), OpInfo("a_b", "Linear", "weighted")]
        tune = resolve(CPU, ops, {"op_name_dict": {"a.b": "w4a4"}})
        assert [types(tune.op[op.key]) for op in ops] == [("int4", "uint4"), ("int8", "uint8")]


class TestFloat:
    def test_by_name_type_and_globally(self) -> None:
        assert tuned({"op_name_dict": {"fc": "fp32"}}).op[FC.key] == OpConfig()
        assert tuned({"op_type_dict": {"add": "fp32"}}).op[ADD.key] == OpConfig()
        assert all(config == OpConfig() for config in tuned("fp32").op.values())

    def test_a_float_weight_leaves_the_op_float(self) -> None:
        request = {"precision": "w4a8", "op_name_dict": {"fc": {"weight": {"dtype": "fp32"}}}}
        assert tuned(request).op[FC.key] == OpConfig()

    def test_a_float_activation_is_weight_only(self) -> None:
        tune = tuned({"precision": "w4a8", "op_name_dict": {"fc": {"activation": {"dtype": "fp32"}}}})
        assert types(tune.op[FC.key]) == ("int4", "-")
        assert tune.op[FC.key].quant_mode == "weight_only"
        assert tune.sources[FC.key]["quant_mode"] == "op_name_dict['fc']"

    def test_float_as_an_alternative(self) -> None:
        request = {"op_name_dict": {"fc": {"weight": {"dtype": ["int4", "fp32"]}}}}
        chip = load_capability({"extends": "pytorch_cpu", "capabilities": {"int4": None}})
        assert tuned(request, capability=chip).op[FC.key] == OpConfig()

    def test_recipes(self) -> None:
        tune = tuned(
            {
                "recipes": {
                    "first_conv_or_matmul_quantization": False,
                    "last_conv_or_matmul_quantization": True,
                }
            }
        )
        assert tune.op[CONV1.key] == OpConfig()
        assert types(tune.op[FC.key]) == ("int8", "uint8")

    def test_bf16_where_the_capability_lists_it(self) -> None:
        chip = load_capability({"extends": "pytorch_cpu", "capabilities": {"bf16": ["Linear"]}})
        fc = tuned({"op_name_dict": {"fc": "bf16"}}, capability=chip).op[FC.key]
        assert types(fc) == ("bf16", "bf16")
        assert fc.is_float

    def test_a_float_default(self) -> None:
        chip = load_capability({"extends": "pytorch_cpu", "default": "fp32"})
        tune = tuned({"op_type_dict": {"Linear": "w4a8"}}, capability=chip)
        assert tune.op[CONV1.key] == OpConfig()
        assert types(tune.op[FC.key]) == ("int4", "uint8")


class TestApproach:
    def test_auto_takes_what_the_capability_has(self) -> None:
        lists = {"dtype": ["int4"], "scheme": ["sym"], "granularity": ["per_tensor"], "algorithm": ["minmax"]}
        both = {"weight": lists, "activation": {**lists, "dtype": ["uint4"]}}
        modes = {
            "static": {"Conv2d": both},
            "dynamic": {"Conv2d": both, "Linear": both},
            "weight_only": {"Linear": {"weight": lists}, "Embedding": {"weight": lists}},
        }
        chip = load_capability({"capabilities": {"int4": modes, "fp32": ["*"]}})
        tune = tuned({"approach": "auto"}, capability=chip)
        found = {name: config.quant_mode for (name, _), config in tune.op.items() if not config.is_float}
        dynamic = {FC.name: "dynamic", EMBEDDING.name: "weight_only"}
        assert found == {op.name: "static" for op in (CONV1, CONV2, DEPTHWISE)} | dynamic

    def test_a_shorthand_without_mode_takes_the_approach(self) -> None:
        assert tuned({"approach": "dynamic", "precision": "w4a8"}).op[FC.key].quant_mode == "dynamic"
        assert tuned({"approach": "auto", "precision": "w4a8:mse"}).op[FC.key].quant_mode == "static"

    def test_weight_only(self) -> None:
        assert all_types(tuned({"approach": "weight_only"}))[CONV1.name] == ("int8", "-")

    def test_a_mode_for_one_op(self) -> None:
        tune = tuned({"op_name_dict": {"fc": {"activation": {"quant_mode": "dynamic"}}}})
        assert tune.op[FC.key].quant_mode == "dynamic"
        assert tune.op[CONV1.key].quant_mode == "static"

    def test_quant_aware_is_static_here(self) -> None:
        assert types(tuned({"op_name_dict": {"fc": {"quant_mode": "quant_aware"}}}).op[FC.key]) == (
            "int8",
            "uint8",
        )
