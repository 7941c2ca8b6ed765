"""Sections of a capability: each is a pair of types, and none changes what another gives."""

from typing import Any

from requested_ops import (
    CONV1,
    CONV2,
    CPU,
    DEPTHWISE,
    FC,
    MATMUL,
    all_types,
    overlay,
    tuned,
    types,
)

from subbyte.capability import load_capability
from subbyte.config import resolve
from subbyte.spec import OpConfig, OpInfo, TensorSpec


def conv_only(weight: str, activation: str) -> dict[str, Any]:
    lists = {"scheme": ["sym"], "granularity": ["per_tensor"], "algorithm": ["minmax"]}
    tensors = {"weight": {"dtype": [weight], **lists}, "activation": {"dtype": [activation], **lists}}
    return {"static": {"Conv2d": tensors}}


class TestSections:
    """Sections are independent of each other and of their order."""

    def test_adding_int4_for_conv2d_does_not_change_linear(self) -> None:
        chip = overlay({"int4": conv_only("int4", "uint4"), "w2a8": conv_only("int2", "uint8")})
        for config in ({}, {"op_type_dict": {"Linear": "w4a8"}}, {"op_type_dict": {"Linear": "int4"}}):
            assert tuned(config, capability=chip) == tuned(config)

    def test_order_does_not_matter(self) -> None:
        sections = {
            "a": conv_only("int3", "uint3"),
            "b": conv_only("int5", "uint5"),
            "int8": conv_only("int8", "uint8"),
        }
        backwards = dict(reversed(sections.items()))
        for config in ({}, "w3a3", {"op_type_dict": {"Conv2d": "b"}}):
            chips = [load_capability({"default": "int8", "capabilities": given}) for given in (sections, backwards)]
            ops = [CONV1, CONV2]
            assert resolve(chips[0], ops, config) == resolve(chips[1], ops, config)

    def test_a_section_is_a_pair(self) -> None:
        sections = {"w4a8": conv_only("int4", "uint8"), "w4a4": conv_only("int4", "uint4")}
        chip = load_capability({"default": "w4a8", "capabilities": sections})
        for name, pair in (("w4a4", ("int4", "uint4")), ("w4a8", ("int4", "uint8"))):
            assert types(resolve(chip, [CONV2], name).op[CONV2.key]) == pair
        fields = {"weight": {"dtype": "int4"}, "activation": {"dtype": "uint4"}}
        assert types(resolve(chip, [CONV2], {"op_type_dict": {"Conv2d": fields}}).op[CONV2.key]) == (
            "int4",
            "uint4",
        )

    def test_the_same_name_then_the_default_then_the_only_meaning(self) -> None:
        sections = {
            "x": conv_only("int4", "uint8"),
            "y": conv_only("int4", "uint4"),
            "z": conv_only("int2", "uint2"),
        }
        weight = {"op_name_dict": {CONV2.name: {"weight": {"dtype": "int4"}}}}
        default = load_capability({"default": "y", "capabilities": sections})
        assert types(resolve(default, [CONV2], weight).op[CONV2.key]) == ("int4", "uint4")
        named = load_capability({"default": "z", "capabilities": {**sections, "int4": conv_only("int4", "uint6")}})
        assert types(resolve(named, [CONV2], weight).op[CONV2.key]) == ("int4", "uint6")
        same = load_capability({"default": "z", "capabilities": {**sections, "y": sections["x"]}})
        assert types(resolve(same, [CONV2], weight).op[CONV2.key]) == ("int4", "uint8")

    def test_alternatives_are_taken_in_order(self) -> None:
        chip = load_capability(
            {
                "default": "b",
                "capabilities": {"a": conv_only("int4", "uint4"), "b": conv_only("int8", "uint8")},
            }
        )
        for wanted, found in (
            (["int4", "int8"], "int4"),
            (["int8", "int4"], "int8"),
            (["int2", "int4"], "int4"),
        ):
            request = {"op_type_dict": {"Conv2d": {"weight": {"dtype": wanted}}}}
            assert types(resolve(chip, [CONV2], request).op[CONV2.key])[0] == found

    def test_excluded_precisions(self) -> None:
        tune = tuned({"excluded_precisions": ["int8"]})
        assert tune.op[FC.key] == OpConfig()
        assert "excluded_precisions" in tune.sources[FC.key]["weight.dtype"]
        activations = tuned({"excluded_precisions": ["uint4"], "op_name_dict": {"fc": {"weight": {"dtype": "int4"}}}})
        assert types(activations.op[FC.key]) == ("int4", "uint8")
        both = {"excluded_precisions": ["uint8"], "op_name_dict": {"fc": {"weight": {"dtype": "int4"}}}}
        assert types(tuned(both).op[FC.key]) == ("int4", "int8")
        left = tuned({"excluded_precisions": ["int4"], "op_name_dict": {"fc": {"weight": {"dtype": ["int4", "int6"]}}}})
        assert types(left.op[FC.key])[0] == "int6"

    def test_an_unlisted_op_stays_float_unless_named(self) -> None:
        lstm = OpInfo("lstm", "LSTM", "weighted")
        tune = resolve(CPU, [lstm, FC], "w4a4")
        assert tune.op[lstm.key] == OpConfig()
        assert tune.sources[lstm.key]["weight.dtype"] == "capability pytorch_cpu lists no LSTM in static mode"

    def test_constraints(self) -> None:
        chip = overlay({}, constraints=[
            {"where": {"position": ["first", "last"]}, "precision": "int8"},
            {"where": {"op": "Conv2d", "depthwise": True}, "precision": "w6a8"},
        ])  # fmt: skip
        tune = tuned({"precision": "w2a2", "op_type_dict": {"matmul": "w4a4"}}, capability=chip)
        found = all_types(tune)
        assert found[CONV1.name] == found[FC.name] == ("int8", "uint8")
        assert found[DEPTHWISE.name] == ("int6", "uint8")
        assert found[CONV2.name] == ("int2", "uint2")
        assert found[MATMUL.name] == ("-", "uint4")
        assert tune.sources[FC.key]["weight.dtype"].startswith("constraint 'int8'")
        # a name may choose among what the constraint leaves
        choice = {"op_name_dict": {"fc": {"weight": {"dtype": ["int4", "int8"], "granularity": "per_tensor"}}}}
        fc = tuned(choice, capability=chip).op[FC.key].weight
        assert fc is not None
        assert (fc.dtype.name, str(fc.granularity)) == ("int8", "per_tensor")

    def test_a_type_chooses_among_what_a_constraint_leaves(self) -> None:
        chip = overlay({}, constraints=[{"where": {"position": "first"}, "precision": "int8"}])
        wanted = {"weight": {"dtype": ["int4", "int8"], "granularity": "per_tensor", "algorithm": "mse"}}
        tune = tuned({"op_type_dict": {"Conv2d": wanted}}, capability=chip)
        assert types(tune.op[CONV1.key]) == ("int8", "uint8")
        assert types(tune.op[CONV2.key]) == ("int4", "uint8")
        assert tune.op[CONV1.key].weight == TensorSpec("int8", granularity="per_tensor", algorithm="mse")
        source = tune.sources[CONV1.key]["weight.dtype"]
        assert source.startswith("op_type_dict['Conv2d'], narrowed by constraint 'int8'")

    def test_a_request_may_say_what_a_constraint_says(self) -> None:
        chip = overlay({}, constraints=[{"where": {"position": ["first", "last"]}, "precision": "w8a8:g16"}])
        request = {"op_type_dict": {"Conv2d": "w8a8:mse"}, "op_name_dict": {"fc": {"weight": {"algorithm": "mse"}}}}
        tune = tuned(request, "w8a8", capability=chip)
        for op in (CONV1, FC):
            weight = tune.op[op.key].weight
            assert weight is not None
            assert (weight.dtype.name, str(weight.granularity)) == ("int8", "per_group(16)")
        assert tune.op[FC.key].weight == TensorSpec("int8", granularity="per_group(16)", algorithm="mse")

    def test_range_and_axis_are_passed_on(self) -> None:
        fields = {"weight": {"dtype": "int4", "quant_min": -7, "quant_max": 7, "axis": 1}}
        weight = tuned({"op_name_dict": {"fc": fields}}).op[FC.key].weight
        assert weight is not None
        assert (weight.qmin, weight.qmax, weight.axis) == (-7, 7, 1)
