"""Which add, mul and cat are quantized by default: those whose output quantized ops alone read."""

from pathlib import Path

import pytest

from subbyte.capability import load_capability
from subbyte.config import resolve
from subbyte.spec import OpConfig, OpInfo

CONV = OpInfo("conv", "Conv2d", "weighted")
FLOAT_NORM = "layer_norm in 'norm'"


def add(name: str, *consumers: str, op_type: str = "add") -> OpInfo:
    return OpInfo(name, op_type, "other", consumers=frozenset(consumers))


def quantized(config: object, *ops: OpInfo) -> set[str]:
    tune = resolve(load_capability(), [CONV, *ops], config)
    return {name for (name, _), found in tune.op.items() if found.quantizes_inputs} - {"conv"}


@pytest.mark.parametrize("op_type", ["add", "mul", "cat"])
@pytest.mark.parametrize(
    ("consumers", "expected"),
    [(("conv",), {"a"}), (("conv", FLOAT_NORM), set()), ((FLOAT_NORM,), set()), ((), {"a"})],
)
def test_ops_that_combine_follow_their_consumers(op_type: str, consumers: tuple[str, ...], expected: set[str]) -> None:
    assert quantized("w4a4", add("a", *consumers, op_type=op_type)) == expected


def test_a_chain_of_adds_follows_its_end() -> None:
    assert quantized("w8a8", add("a", "b", "conv"), add("b", "c"), add("c", "conv")) == {"a", "b", "c"}
    assert quantized("w8a8", add("a", "b", "conv"), add("b", "c"), add("c", FLOAT_NORM)) == set()


def test_an_add_is_float_when_it_reads_its_own_results() -> None:
    assert quantized("w8a8", add("a", "b", "conv"), add("b", "a")) == set()


def test_an_add_is_float_when_its_consumer_is_asked_to_be() -> None:
    assert quantized({"op_type_dict": {"Conv2d": "fp32"}}, add("a", "conv")) == set()


def test_the_source_names_the_float_consumer_at_the_root() -> None:
    tune = resolve(load_capability(), [CONV, add("a", "b"), add("b", "a", FLOAT_NORM)], "w8a8")
    assert tune.op["b", "add"] == OpConfig()
    assert FLOAT_NORM in tune.sources["b", "add"]["activation.dtype"]
    assert tune.sources["a", "add"]["activation.dtype"].startswith("b ")


def test_nothing_is_assumed_when_no_forward_was_recorded() -> None:
    tune = resolve(load_capability(), [CONV, OpInfo("a", "add", "other")], "w8a8")
    assert tune.op["a", "add"] == OpConfig()
    assert "no forward" in tune.sources["a", "add"]["activation.dtype"]


@pytest.mark.parametrize(
    "request_",
    [
        {"op_type_dict": {"add": "w4a4"}},
        {"op_type_dict": {"add": {"activation": {"dtype": ["uint4"]}}}},
        {"op_type_dict": {"add": {"quant_mode": "static"}}},
        {"op_name_dict": {"a": "w8a8"}},
    ],
)
def test_an_explicit_request_is_honoured(request_: object) -> None:
    assert quantized(request_, add("a", FLOAT_NORM)) == {"a"}


def test_an_add_stays_quantized_when_the_capability_has_no_float_add(tmp_path: Path) -> None:
    path = tmp_path / "chip.yaml"
    path.write_text("extends: pytorch_cpu\nversion: {name: chip}\ncapabilities:\n    fp32: [Conv2d]\n")
    tune = resolve(load_capability(path), [CONV, add("a", FLOAT_NORM)], "w8a8")
    assert tune.op["a", "add"].quantizes_inputs
