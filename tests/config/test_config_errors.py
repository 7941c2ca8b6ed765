# ruff: noqa: E501 (in tables, a case is a line)
"""A request that cannot be honoured is an error that says why; a given TuneConfig is checked."""

from typing import Any

import pytest

from subbyte.capability import Capability, load_capability
from subbyte.config import QuantizationAwareTrainingConfig, resolve
from subbyte.errors import ConfigError
from subbyte.spec import OpConfig, OpInfo, TuneConfig

CPU = load_capability()
CONV = OpInfo("conv1", "Conv2d", "weighted", frozenset({"first"}), product_positions=frozenset({"first"}))
ADD = OpInfo("layer1.add", "add", "other")
EMBEDDING = OpInfo("embed", "Embedding", "weighted")
FC = OpInfo("fc", "Linear", "weighted", frozenset({"last"}), product_positions=frozenset({"last"}))
LSTM = OpInfo("lstm", "LSTM", "weighted")
OPS = [CONV, ADD, EMBEDDING, FC, LSTM]


def refused(config: Any, first_last: str | None = None, capability: Capability = CPU) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(capability, OPS, config, first_last)
    return str(caught.value)


@pytest.mark.parametrize("first_last", [8, True, ["int8"], {"first": "int8"}, 8.0])
def test_first_last_is_a_name(first_last: Any) -> None:
    assert f"as in 'int8', not {first_last!r}" in refused("w4a4", first_last)


def test_a_class_is_no_request() -> None:
    assert "not the class QuantizationAwareTrainingConfig itself; make one: Quant" in refused(
        QuantizationAwareTrainingConfig
    )


def fc(**tensors: Any) -> dict[str, Any]:
    return {"op_name_dict": {"fc": tensors}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("w4a88", "bits are 1..8"),
        ("W4A8", "did you mean 'w4a8'?"),
        ("inte4", "global 'inte4': 'inte4' names no section of pytorch_cpu, no data type and is no shorthand such as w4a8; did you mean 'int4'?"),
        ("others", "means a section that has no data type of its own ('*'); ask for a data type"),
        ({"op_name_dict": {"fcc": "w4a4"}}, "op_name_dict['fcc']: no op of this model matches; did you mean 'fc'? (there are: conv1, "),
        ({"op_name_dict": {"layer2.*": "w4a4"}}, "no op of this model matches"),
        ({"op_name_dict": {"fc(": "w4a4"}}, "is neither an op of this model nor a regular expression"),
        ({"op_type_dict": {"Conv2D": "w4a4"}}, "op_type_dict['Conv2D']: no op type matches; did you mean 'Conv2d'?"),
        ({"op_type_dict": {"LSTM": "w4a4"}}, "op_type_dict['LSTM'] asks to quantize it, but pytorch_cpu lists no LSTM in static mode"),
        ({"op_type_dict": {"LST.": "w4a4"}}, "lists no LSTM in static mode"),
        ({"op_name_dict": {"layer1.add": "w4a4:dynamic"}}, "lists no add in dynamic mode (it has static)"),
        (fc(weight={"dtype": "int44"}), "op 'fc' (Linear): op_name_dict['fc'] asks for weight.dtype 'int44', which pytorch_cpu does not list for Linear in static mode; did you mean 'int4'? (allowed: "),
        (fc(activation={"dtype": "uint44"}), "activation.dtype 'uint44'"),
        (fc(weight={"granularity": "per_token"}), "weight.granularity 'per_token', which"),
        (fc(activation={"granularity": "per_token"}), "(allowed: per_tensor)"),
        (fc(weight={"scheme": "symm"}), "did you mean 'sym'?"),
        (fc(weight={"algorithm": "minmaxx"}), "did you mean 'minmax'?"),
        (fc(weight={"algorithm": "percentile(x)"}), "algorithm 'percentile(x)' is unknown"),
        (fc(weight={"dtype": "int4", "algorithm": "mean_abs"}), "section 'int4' allows for weight.algorithm: minmax, mse"),
        (fc(weight={"dtype": "nf4", "scheme": "asym"}), "section 'nf4' allows for weight.scheme"),
        (fc(output={"dtype": "uint8"}), "op_name_dict['fc']: output is asked for, and no op that it speaks of quantizes one"),
        (fc(weight={"dtype": "int4", "quant_max": 9}), "op 'fc' (Linear): weight: quant_min..quant_max = -8..9 is not a range inside int4's"),
        (fc(quant_mode="weight_only", activation={"dtype": "uint8"}), "in weight_only mode no section quantizes its activation (quant_mode dynamic, static does)"),
        (fc(weight={"dtype": "bf16"}), "leaves it in bf16, which pytorch_cpu does not list for Linear (float types: fp32); a file that extends it may: capabilities: {bf16: ['Linear']}"),
        ({"op_name_dict": {"fc": "bf16"}}, "op_name_dict['fc'] leaves it in bf16"),
        ({"op_name_dict": {"embed": {"activation": {"dtype": "uint8"}}}}, "op_name_dict['embed']: activation is asked for, and no op"),
        ({"op_type_dict": {"Embedding": {"activation": {"dtype": "uint8"}}}}, "activation is asked for, and no op"),
        ({"op_type_dict": {"add": {"weight": {"dtype": "int4"}}}}, "weight is asked for, and no op"),
        ({"op_name_dict": {".*add": {"weight": {"dtype": "int4"}}}}, "weight is asked for, and no op"),
        ({"op_name_dict": {"layer1.add": "uint4"}}, "weight is asked for, and no op"),
        (fc(weight={"dtype": ["itn4", "int8"]}), "op_name_dict['fc']: weight.dtype: unknown data type 'itn4'; did you mean 'int4'?"),
        (fc(weight={"dtype": ["int8", "itn4"]}), "op_name_dict['fc']: weight.dtype: unknown data type 'itn4'; did you mean 'int4'?"),
        (fc(weight={"scheme": ["sym", "asymm"]}), "op_name_dict['fc']: weight.scheme: scheme 'asymm' is unknown; did you mean 'asym'? (known: "),
        (fc(weight={"scale_format": ["pow3", "fp16"]}), "op_name_dict['fc']: weight.scale_format: scale_format 'pow3' is unknown; did you mean 'pow2'?"),
        (fc(activation={"algorithm": ["kll", "kl"]}), "op_name_dict['fc']: activation.algorithm: algorithm 'kll' is unknown; did you mean 'kl'?"),
        (fc(activation={"algorithm": ["kl", "minmax(3)"]}), "activation.algorithm: algorithm 'minmax(3)': minmax takes no argument"),
        ({"op_type_dict": {"Conv3d": {"weight": {"dtype": "int44"}}}}, "op_type_dict['Conv3d'] asks for weight.dtype 'int44', which pytorch_cpu does not list for Conv3d"),
        ({"op_type_dict": {"Conv3d": {"weight": {"dtype": ["int44", "int4"]}}}}, "op_type_dict['Conv3d']: weight.dtype: unknown data type 'int44'"),
        ({"op_type_dict": {"Conv3d": {"output": {"dtype": "uint8"}}}}, "no section quantizes its output"),
        ({"op_type_dict": {"Conv3d": "w4a4:percentile(x)"}}, "algorithm 'percentile(x)' is unknown"),
        ({"op_type_dict": {"tanh": "w4a4:dynamic"}}, "lists no tanh in dynamic mode (it has static)"),
        ({"excluded_precisions": ["int44"]}, "excluded_precisions: 'int44' is neither a section nor a data type; did you mean 'int4'?"),
        ({"excluded_precisions": ["fp32"]}, "it cannot go"),
        ({"excluded_precisions": ["int4"], "precision": "w4a4"}, "'int4' is asked for and stands in excluded_precisions too"),
        ({"excluded_precisions": ["int4"], "precision": "int4"}, "'int4' is asked for and stands in excluded_precisions too"),
        ({"excluded_precisions": ["int4"], **fc(weight={"dtype": ["int4"]})}, "'int4' is asked for and stands in"),
        ({"excluded_precisions": [*CPU.sections], **fc(weight={"granularity": "per_tensor"})}, "others, ternary) leave nothing that pytorch_cpu allows for weight.granularity per_tensor (op_name_dict['fc']) in static mode"),
        ({"excluded_precisions": ["int4"], **fc(weight={"dtype": "uint4"})}, "op 'fc' (Linear): excluded_precisions (int4) leave nothing that pytorch_cpu allows for weight.dtype uint4"),
        ({"precision": "w4a4", "approach": "weight_only"}, "approach='weight_only' and precision='w4a4' (static) contradict"),
        ({"precision": "w4", "approach": "dynamic"}, "contradict"),
        ({"first_last": "int8", "recipes": {"first_conv_or_matmul_quantization": False}}, "leaves an op float that first_last='int8' quantizes"),
        ({"first_last": "int88"}, "first_last='int88': 'int88' names no section"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_said(config: Any, message: str) -> None:
    assert message in refused(config)


@pytest.mark.parametrize(
    ("config", "first_last"),
    [
        ("w4", "int8"),
        ({"first_last": "int8"}, None),
        ({"recipes": {"last_conv_or_matmul_quantization": False}}, None),
    ],
)
def test_positions_need_a_forward(config: Any, first_last: str | None) -> None:
    ops = [OpInfo("fc", "Linear", "weighted")]
    with pytest.raises(ConfigError, match=r"speaks of the first and last op.*pass calibration data"):
        resolve(CPU, ops, config, first_last)


def chip(*constraints: dict[str, Any], **more: Any) -> Capability:
    return load_capability({"extends": "pytorch_cpu", "constraints": list(constraints), **more})


def test_a_positional_constraint_needs_a_forward() -> None:
    capability = chip({"where": {"position": "first"}, "precision": "int8"})
    with pytest.raises(ConfigError, match="constraint 'int8'"):
        resolve(capability, [OpInfo("fc", "Linear", "weighted")], "w4")


@pytest.mark.parametrize("wish", ["w4a4", "w8", "fp32", {"weight": {"dtype": "int4"}}])
def test_a_name_against_a_constraint_is_refused(wish: Any) -> None:
    capability = chip({"where": {"position": "last"}, "precision": "w8a8"})
    message = refused({"op_name_dict": {"fc": wish}}, capability=capability)
    assert "op 'fc' (Linear): op_name_dict['fc']" in message
    assert "constraint 'w8a8'" in message


@pytest.mark.parametrize(
    ("request_", "first_last", "source"),
    [
        ({"op_type_dict": {"Conv2d": "w2a2"}}, None, "op_type_dict['Conv2d'] asks for weight.dtype int2"),
        ({"op_type_dict": {"Conv.*": "w2a8"}}, None, "op_type_dict['Conv.*'] asks for weight.dtype int2"),
        ({"op_type_dict": {"Conv2d": "fp32"}}, None, "op_type_dict['Conv2d'] asks for weight.dtype fp32"),
        ({"op_type_dict": {"Conv2d": {"weight": {"dtype": "int2"}}}}, None, "op_type_dict['Conv2d'] asks for weight.dtype int2"),
        ({}, "w4a8", "first_last='w4a8' asks for weight.dtype int4"),
        ({"first_last": "w8"}, None, "first_last='w8' asks for activation.dtype fp32"),
        ({"recipes": {"first_conv_or_matmul_quantization": False}}, None, "recipes['first_conv_or_matmul_quantization']=False asks for weight.dtype fp32"),
    ],
)  # fmt: skip
def test_a_type_or_position_against_a_constraint_is_refused(
    request_: dict[str, Any], first_last: str | None, source: str
) -> None:
    capability = chip({"where": {"position": "first"}, "precision": "w8a8"})
    message = refused(request_, first_last, capability)
    assert f"op 'conv1' (Conv2d): {source}, but constraint 'w8a8' (capability dictionary) asks for" in message


def test_a_weight_only_constraint_refuses_an_activation() -> None:
    capability = chip({"where": {"op": "Linear"}, "precision": "w8"})
    message = refused({"op_name_dict": {"fc": "w8a8"}}, capability=capability)
    assert "op_name_dict['fc'] asks for activation.dtype uint8, but constraint 'w8'" in message
    tune = {"op": {FC.key: {"weight": {**WEIGHT, "dtype": "int8"}, "activation": INPUT}}}
    assert "TuneConfig gives activation.dtype uint8, but constraint 'w8'" in refused(tune, capability=capability)
    config = resolve(capability, OPS, "w4a4").op[FC.key]
    assert (str(config.weight.dtype if config.weight else ""), config.activation) == ("int8", None)


def test_ambiguous_names_the_sections() -> None:
    lists = {"scheme": ["sym"], "granularity": ["per_tensor"], "algorithm": ["minmax"]}
    sections = {
        name: {"static": {"Linear": {"weight": {"dtype": [weight], **lists}, "activation": {"dtype": [act], **lists}}}}
        for name, weight, act in (("x", "int4", "uint2"), ("y", "int4", "uint4"), ("z", "int8", "uint8"))
    }
    capability = load_capability({"default": "z", "capabilities": sections})
    message = refused(fc(weight={"dtype": "int4"}), capability=capability)
    assert "is ambiguous: the sections 'x', 'y' of" in message
    together = refused(fc(weight={"dtype": "int8"}, activation={"dtype": "uint4"}), capability=capability)
    assert "allows all of this in static mode" in together
    assert "section 'z' allows for activation.dtype: uint8" in together
    missing = refused({"op_name_dict": {"fc": "x"}, "approach": "dynamic"}, capability=capability)
    assert "lists no Linear in dynamic mode" in missing


def test_a_section_that_lacks_the_op() -> None:
    capability = chip(capabilities={"conv4": {"static": {"Conv2d": {"weight": {
        "dtype": ["int4"], "scheme": ["sym"], "granularity": ["per_tensor"], "algorithm": ["minmax"]}}}}})  # fmt: skip
    message = refused({"op_name_dict": {"fc": "conv4"}}, capability=capability)
    assert "op_name_dict['fc'] means section 'conv4', which has no static Linear" in message


WEIGHT = {"dtype": "int4", "granularity": "per_channel"}
INPUT = {"dtype": "uint8"}


class TestGiven:
    """A TuneConfig, as a strategy proposes it."""

    def test_of_the_seeds(self) -> None:
        given = {
            "op": {
                ("conv1", "Conv2d"): {
                    "weight": {
                        "dtype": "int4",
                        "algorithm": "minmax",
                        "granularity": "per_channel",
                        "scheme": "sym",
                    },
                    "activation": {
                        "dtype": "uint4",
                        "quant_mode": "static",
                        "algorithm": "kl",
                        "granularity": "per_tensor",
                        "scheme": "sym",
                    },
                },
            }
        }
        tune = resolve(CPU, OPS, given)
        assert tune.op[CONV.key] == TuneConfig.from_dict(given).op[CONV.key]
        assert tune.op[FC.key] == OpConfig()
        assert set(tune.op) == {op.key for op in OPS}
        assert tune.sources[CONV.key]["weight.dtype"] == "TuneConfig"

    @pytest.mark.parametrize("request_", ["w4a8", "w4a8:dynamic:g32", "wnf4", "w1a1", "wternary", {}, "w4a4:mse"])
    def test_what_resolve_gives_is_accepted_back(self, request_: Any) -> None:
        tune = resolve(CPU, OPS, request_, "int8")
        again = resolve(CPU, OPS, TuneConfig.from_dict(tune.to_dict()))
        assert again == tune
        assert resolve(CPU, OPS, tune).sources == tune.sources

    def test_a_weight_alone_is_weight_only(self) -> None:
        tune = resolve(CPU, OPS, {"op": {FC.key: {"weight": WEIGHT}}})
        assert tune.op[FC.key].quant_mode == "weight_only"

    @pytest.mark.parametrize(
        ("key", "config", "message"),
        [
            (("fcc", "Linear"), {}, "the model has no op 'fcc' (Linear); did you mean 'fc'?"),
            (("fc", "Conv2d"), {}, "op 'fc' is a Linear, not a Conv2d"),
            (FC.key, {"weight": WEIGHT, "activation": {**INPUT, "granularity": "per_channel"}}, "activation.granularity 'per_channel'"),
            (FC.key, {"weight": {**WEIGHT, "algorithm": "minmin"}}, "did you mean 'minmax'?"),
            (FC.key, {"activation": INPUT}, "quantizes the activation alone"),
            (FC.key, {"weight": WEIGHT, "bias": {"dtype": "int8"}}, "a quantized bias"),
            (FC.key, {"weight": {"dtype": "bf16"}}, "bf16 is not listed by pytorch_cpu for Linear"),
            (ADD.key, {"weight": WEIGHT}, "gives a weight, and the op has none"),
            (ADD.key, {"activation": INPUT, "quant_mode": "dynamic"}, "lists no add in dynamic mode (it has: static)"),
            (EMBEDDING.key, {"weight": WEIGHT, "activation": INPUT}, "no section quantizes its activation"),
            (LSTM.key, {"weight": WEIGHT, "activation": INPUT}, "lists no LSTM in static mode"),
        ],
    )  # fmt: skip
    def test_refused(self, key: tuple[str, str], config: dict[str, Any], message: str) -> None:
        assert message in refused({"op": {key: config}})

    def test_first_last_has_nothing_to_say(self) -> None:
        assert "leave it out" in refused({"op": {}}, "int8")

    def test_constraints_hold(self) -> None:
        capability = chip({"where": {"position": "last"}, "precision": "int8"})
        message = refused({"op": {FC.key: {"weight": WEIGHT, "activation": INPUT}}}, capability=capability)
        assert "TuneConfig gives weight.dtype int4, but constraint 'int8'" in message
