"""Ops for which a capability lists neither a precision nor fp32: an error, or a warning if the file says so."""

import warnings
from typing import Any

import pytest

from subbyte.capability import Capability, load_capability
from subbyte.config import resolve
from subbyte.errors import CapabilityError, ConfigError, UnsupportedOpWarning
from subbyte.spec import OpConfig, OpInfo, TuneConfig

CONV = OpInfo("conv", "Conv2d", "weighted")
ADD = OpInfo("block.add", "add", "other", consumers=frozenset({CONV.name}))
NORM = OpInfo("norm", "LayerNorm", "other", quantizable=False)
BATCH_NORM = OpInfo("bn", "BatchNorm2d", "other", quantizable=False)
LATER = OpInfo("einsum (found later)", "einsum", "other", imagined=True)
SPEC = {"scheme": ["asym", "sym"], "granularity": ["per_tensor"], "algorithm": ["minmax"]}
MAC = {"weight": {"dtype": ["int4"], **SPEC}, "activation": {"dtype": ["uint4"], **SPEC}}
WEIGHT = {"weight": {"dtype": ["int4"], **SPEC}}


def chip(sections: dict[str, Any] | None = None, **top: Any) -> Capability:
    """A capability of its own, without fp32."""
    sections = {"int4": {"static": {"Conv2d": MAC}}} if sections is None else sections
    return load_capability({"version": {"name": "npu"}, "capabilities": sections, **top})


@pytest.mark.parametrize("request_", ["w4a4", "default", "int4", {}, TuneConfig({}), {"approach": "auto"}])
def test_an_op_without_precision_and_fp32_is_refused(request_: Any) -> None:
    with pytest.raises(ConfigError, match=r"npu .*neither.*add \('block\.add'\)"):
        resolve(chip(), [CONV, ADD], request_)


@pytest.mark.parametrize("strict", [False, True])
def test_unsupported_float_leaves_the_op_in_fp32_with_a_warning(strict: bool) -> None:
    with pytest.warns(UnsupportedOpWarning, match=r"add \('block\.add'\)"):
        tune = resolve(chip(unsupported="float", strict=strict), [CONV, ADD], "w4a4")
    assert tune.op[ADD.key] == OpConfig()
    assert "unsupported: float" in tune.sources[ADD.key]["activation.dtype"]
    assert tune.op[CONV.key].weight is not None


@pytest.mark.parametrize(("op", "word"), [(NORM, "LayerNorm"), (BATCH_NORM, "not folded")])
def test_a_module_that_always_stays_float_needs_fp32(op: OpInfo, word: str) -> None:
    with pytest.raises(ConfigError, match=rf"{op.name}.*{word}|{word} \('{op.name}'"):
        resolve(chip(), [CONV, op], "w4a4")
    sections = {"int4": {"static": {"Conv2d": MAC}}, "fp32": [op.type]}
    assert set(resolve(chip(sections), [CONV, op], "w4a4").op) == {CONV.key}


def test_an_op_listed_in_another_mode_is_named_with_it() -> None:
    sections = {"int4": {"static": {"Conv2d": MAC}, "weight_only": {"Linear": WEIGHT}}}
    linear = OpInfo("fc", "Linear", "weighted")
    with pytest.raises(ConfigError, match=r"Linear \('fc'.*weight_only mode"):
        resolve(chip(sections), [CONV, linear], "w4a4")
    assert resolve(chip(sections), [CONV, linear], "default").op[linear.key].quant_mode == "weight_only"


def test_fp32_that_is_requested_for_a_listed_op_is_refused() -> None:
    for unsupported in ("error", "float"):
        with pytest.raises(ConfigError, match=r"op 'conv'.*fp32"):
            resolve(chip(unsupported=unsupported), [CONV], {"op_name_dict": {"conv": "fp32"}})


def test_the_suggested_fp32_entry_covers_all_ops() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(chip(), [CONV, ADD, NORM], "w4a4")
    assert "{fp32: [LayerNorm, add]}" in str(caught.value)
    sections = {"int4": {"static": {"Conv2d": MAC}}, "fp32": ["LayerNorm", "add"]}
    assert resolve(chip(sections), [CONV, ADD, NORM], "w4a4").op[ADD.key].is_float


def test_functional_ops_that_no_forward_has_shown_need_data() -> None:
    sections = {"int4": {"weight_only": {"Conv2d": WEIGHT}}}
    with pytest.raises(ConfigError, match="pass calibration data"):
        resolve(chip(sections), [CONV, LATER], "w4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve(chip(sections, unsupported="float"), [CONV, LATER], "w4")
        resolve(chip({**sections, "fp32": ["*"]}), [CONV, LATER], "w4")


def test_a_file_that_extends_the_built_in_has_its_fp32() -> None:
    over = load_capability({"extends": "pytorch_cpu"})
    assert resolve(over, [CONV, ADD, NORM, LATER], "w4").op[ADD.key] == OpConfig()
    without = load_capability({"extends": "pytorch_cpu", "capabilities": {"fp32": None}})
    with pytest.raises(ConfigError, match="LayerNorm"):
        resolve(without, [CONV, NORM], "w4a4")


def test_unsupported_takes_two_values() -> None:
    with pytest.raises(CapabilityError, match=r"'flaot'; did you mean 'float'\?"):
        chip(unsupported="flaot")


class TestDefault:
    SECTIONS = {
        "int8": {"static": {"Linear": MAC}, "weight_only": {"Embedding": WEIGHT}},
        "int4": {"static": {"Conv2d": MAC, "Linear": MAC}, "dynamic": {"Embedding": WEIGHT, "LSTM": MAC}},
    }
    OPS = [CONV, OpInfo("fc", "Linear", "weighted"), OpInfo("table", "Embedding", "weighted"),
           OpInfo("rnn", "LSTM", "weighted")]  # fmt: skip

    @pytest.mark.parametrize("fp32", [{}, {"fp32": ["*"]}])
    def test_default_is_the_first_precision_of_each_op(self, fp32: dict[str, Any]) -> None:
        tune = resolve(chip(self.SECTIONS | fp32, default="int8"), self.OPS, "default")
        modes = {name: config.quant_mode for (name, _), config in tune.op.items()}
        assert modes == {"conv": "static", "fc": "static", "table": "dynamic", "rnn": "dynamic"}
        assert not any(config.is_float for config in tune.op.values())
        assert tune.sources["fc", "Linear"]["weight.dtype"] == "global 'default'"
        assert "section 'int4'" in tune.sources["conv", "Conv2d"]["weight.scheme"]
        assert "section 'int8'" in tune.sources["fc", "Linear"]["weight.scheme"]

    @pytest.mark.parametrize("default", ["int8", "int4"])
    def test_the_default_section_comes_before_the_first_of_the_file(self, default: str) -> None:
        linear = self.OPS[1]
        tune = resolve(chip(self.SECTIONS, default=default), [linear], "default")
        assert f"section {default!r}" in tune.sources[linear.key]["weight.scheme"]

    def test_default_speaks_of_ops_without_weight_too(self) -> None:
        sections = {"int8": {"static": {"Conv2d": MAC}}, "int4": {"static": {"add": {"activation": MAC["activation"]}}}}
        capability = chip(sections | {"fp32": ["*"]}, default="int8")
        assert not resolve(capability, [CONV, ADD], "default").op[ADD.key].is_float
        assert resolve(capability, [CONV, ADD], {}).op[ADD.key].is_float

    def test_nothing_requested_takes_fp32_before_another_section(self) -> None:
        ops = self.OPS[:2]
        free = resolve(chip(self.SECTIONS | {"fp32": ["*"]}, default="int8"), ops, {})
        assert free.op[CONV.key].is_float
        bound = resolve(chip(self.SECTIONS, default="int8"), ops, {})
        assert not bound.op[CONV.key].is_float

    def test_default_may_be_said_of_a_type(self) -> None:
        both = load_capability()
        config = {"precision": "w2a2", "op_type_dict": {"Conv2d": "default"}}
        tune = resolve(both, self.OPS[:2], config)
        conv, linear = (tune.op[op.key].weight for op in self.OPS[:2])
        assert conv is not None
        assert linear is not None
        assert (conv.dtype.name, linear.dtype.name) == ("int8", "int2")

    def test_default_is_the_float_type_that_the_file_names(self) -> None:
        sections = self.SECTIONS | {"fp32": ["*"]}
        assert all(
            config.is_float for config in resolve(chip(sections, default="fp32"), self.OPS, "default").op.values()
        )
        listed = resolve(chip(self.SECTIONS | {"fp32": ["add"]}, default="fp32"), self.OPS, "default").op
        assert not listed["fc", "Linear"].is_float  # no fp32 for it

    def test_default_of_the_built_in_is_what_nothing_requested_gives(self) -> None:
        ops = [CONV, ADD, OpInfo("act", "GELU", "other"), OpInfo("qk", "matmul", "matmul")]
        assert resolve(load_capability(), ops, "default").op == resolve(load_capability(), ops, {}).op

    def test_a_section_cannot_be_named_default(self) -> None:
        with pytest.raises(CapabilityError, match="'default'"):
            chip({"default": {"static": {"Conv2d": MAC}}})


@pytest.mark.parametrize("config", ["w4a4", "w4a4:mse", {"first_last": "w4a4"}])
def test_a_shorthand_leaves_the_scheme_to_the_capability(config: Any) -> None:
    spec = {**SPEC, "scheme": ["asym"], "algorithm": ["minmax", "mse"]}
    mac = {name: {**lists, **spec} for name, lists in MAC.items()}
    first = OpInfo("conv", "Conv2d", "weighted", frozenset({"first"}))
    tune = resolve(chip({"int4": {"static": {"Conv2d": mac}}}), [first], config)
    activation = tune.op[first.key].activation
    assert activation is not None
    assert activation.scheme == "asym"
    built_in = resolve(load_capability(), [first], config).op[first.key].activation
    assert built_in is not None
    assert built_in.scheme == "sym"


INT8_ENDS = load_capability(
    {"extends": "pytorch_cpu", "constraints": [{"where": {"position": ["first", "last"]}, "precision": "int8"}]}
)


class TestFirstLast:
    LSTM = OpInfo("rnn", "LSTM", "weighted", frozenset({"first"}))
    HEAD = OpInfo("head", "Linear", "weighted", frozenset({"last"}))

    @pytest.mark.parametrize(("precision", "mode"), [("int8", "dynamic"), ("w8a8", "dynamic"), ("w8", "weight_only")])
    def test_first_last_takes_a_mode_that_the_op_has(self, precision: str, mode: str) -> None:
        tune = resolve(load_capability(), [self.LSTM, self.HEAD], "w4a4", precision)
        config = tune.op[self.LSTM.key]
        assert config.weight is not None
        assert (config.weight.dtype.name, config.quant_mode) == ("int8", mode)
        if mode == "dynamic":
            assert "LSTM in dynamic mode" in tune.sources[self.LSTM.key]["quant_mode"]
            assert tune.op[self.HEAD.key].quant_mode == "static"

    def test_constraint_by_position_takes_a_mode_that_the_op_has(self) -> None:
        config = resolve(INT8_ENDS, [self.LSTM, self.HEAD], "w4a4").op[self.LSTM.key]
        assert config.weight is not None
        assert (config.weight.dtype.name, config.quant_mode) == ("int8", "dynamic")

    def test_a_mode_that_the_name_states_is_not_replaced(self) -> None:
        config = {"op_name_dict": {"rnn": {"quant_mode": "static"}}}
        with pytest.raises(ConfigError, match=r"op_name_dict\['rnn'\].*static mode.*op_name_dict=\{'rnn': 'fp32'\}"):
            resolve(load_capability(), [self.LSTM, self.HEAD], config, "int8")

    @pytest.mark.parametrize(
        "op",
        [
            OpInfo("bag", "EmbeddingBag", "other", frozenset({"first"})),
            OpInfo("conv.conv2d", "conv2d", "other", frozenset({"first"})),
            OpInfo("matmul", "matmul", "matmul", frozenset({"first"}), quantizable=False),
        ],
    )
    def test_an_op_that_cannot_be_quantized_is_named(self, op: OpInfo) -> None:
        ops = [op, self.HEAD]
        with pytest.raises(ConfigError, match=rf"{op.name!r} \({op.type}\).*first_last='int8'.*'fp32'"):
            resolve(load_capability(), ops, "w4a4", "int8")
        with pytest.raises(ConfigError, match=rf"{op.name!r} \({op.type}\).*first_last='uint8'"):
            resolve(load_capability(), ops, "w4a4", "uint8")  # a data type that is no section
        with pytest.raises(ConfigError, match=rf"{op.name!r} \({op.type}\).*first_last='bf16'"):
            resolve(load_capability(), ops, "w4a4", "bf16")
        with pytest.raises(ConfigError, match=rf"{op.name!r} \({op.type}\).*constraint 'int8'"):
            resolve(INT8_ENDS, ops, "w4a4")
        resolve(INT8_ENDS, ops, {"precision": "w4a4", "op_name_dict": {op.name: "fp32"}})
        for config, first_last in (("w4a4", None), ("w4a4", "fp32"), ({"op_name_dict": {op.name: "fp32"}}, "int8")):
            tune = resolve(load_capability(), ops, config, first_last)
            assert tune.op.get(op.key, OpConfig()) == OpConfig()
