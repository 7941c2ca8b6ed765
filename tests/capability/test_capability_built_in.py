"""The built-in capability covers every type, and its derived ranges are the exact ones."""

from pathlib import Path
from typing import Any

import pytest

from subbyte.capability import Capability, derived_ranges, load_capability
from subbyte.config import resolve
from subbyte.dtypes import DataType, dtype, register_dtype, registered_dtypes
from subbyte.errors import ConfigError
from subbyte.spec import Granularity, OpInfo, TensorSpec
from subbyte.spec.patterns import NamePatterns

CPU = load_capability()
WIDTHS = [*(f"int{bits}" for bits in range(1, 9)), "bint1", "ternary", "nf4", "fp4_e2m1"]


@pytest.mark.parametrize("section", WIDTHS)
def test_a_section_for_every_type(section: str) -> None:
    for mode, op_type in [("static", "Conv2d"), ("dynamic", "Linear"), ("weight_only", "Embedding")]:
        entry = CPU.op(section, mode, op_type)  # type: ignore[arg-type]
        assert entry is not None
        assert entry.weight is not None
        assert entry.weight.dtype[0] == section
        assert entry.weight.granularity == ("per_channel", "per_tensor", "per_group")
        assert entry.weight.algorithm[0] in (dtype(section).algorithm, "minmax")


@pytest.mark.parametrize("section", WIDTHS)
def test_activations_of_every_type(section: str) -> None:
    entry = CPU.op(section, "static", "matmul")
    assert entry is not None
    assert entry.activation is not None
    assert entry.weight is None
    quantized = set(WIDTHS) | {f"uint{bits}" for bits in range(1, 9)}
    assert set(entry.activation.dtype) == quantized | {"*"}
    assert len(set(entry.activation.dtype)) == len(entry.activation.dtype)


def test_modes_of_op_types() -> None:
    assert CPU.default == "int8"
    assert CPU.modes("add") == ("static",)
    assert CPU.modes("scaled_dot_product_attention") == ("static", "dynamic")
    assert CPU.modes("ConvTranspose2d") == ("static", "dynamic", "weight_only")
    assert CPU.tensors("Embedding") == {"weight"}
    assert CPU.tensors("gelu") == {"activation"}
    assert CPU.allows_float("Anything", "fp32")
    assert not CPU.allows_float("Linear", "bf16")


def test_every_listed_default_makes_a_spec() -> None:
    for modes in CPU.sections.values():
        for ops in modes.values():
            for entry in ops.values():
                for lists in (entry.weight, entry.activation):
                    if lists is not None and lists.dtype[0] != "*":
                        granularity = Granularity.parse(lists.granularity[0])
                        TensorSpec(dtype(lists.dtype[0]), lists.scheme[0], granularity, algorithm=lists.algorithm[0])


def test_derived_ranges_are_exact() -> None:
    rows = derived_ranges(CPU)
    rows_of = {row["dtype"]: row for row in rows}
    assert (rows_of["int4"]["qmin"], rows_of["int4"]["qmax"]) == (-8, 7)
    assert (rows_of["uint4"]["qmin"], rows_of["uint4"]["qmax"]) == (0, 15)
    assert rows_of["bint1"]["values"] == [-1.0, 1.0]
    first = rows[0]
    assert (first["section"], first["mode"], first["op_type"], first["tensor"]) == (
        "int8",
        "static",
        "Linear",
        "weight",
    )
    assert first["default"]
    assert first["accumulator"] is None


def test_an_own_type_appears_where_star_stands() -> None:
    register_dtype(DataType("builtint3", values=(-1.0, -0.5, 0.0, 0.5, 1.0)))
    rows = [row for row in derived_ranges(CPU) if row["dtype"] == "builtint3"]
    assert {row["section"] for row in rows if row["tensor"] == "weight"} == {"others"}
    assert {row["section"] for row in rows if row["tensor"] == "activation"} == {*WIDTHS, "others"}


def test_star_is_what_no_section_names() -> None:
    register_dtype(DataType("builtint3", values=(-1.0, -0.5, 0.0, 0.5, 1.0)))
    entry = CPU.op("others", "static", "Linear")
    assert entry is not None
    assert entry.weight is not None
    entries = CPU.entries("Linear", "static").values()
    siblings = [lists for one in entries if (lists := one.weight) is not None]
    assert CPU.allows(entry.weight, siblings, "dtype", "builtint3")
    assert not CPU.allows(entry.weight, siblings, "dtype", "int4")  # section int4 names it
    assert not CPU.allows(entry.weight, siblings, "dtype", "unheard_of")
    assert CPU.allows(entry.weight, siblings, "granularity", "per_group(7)")
    assert CPU.allows(entry.weight, siblings, "algorithm", "percentile(99.9)")
    assert registered_dtypes()["fp32"].is_float
    assert not CPU.allows(entry.weight, siblings, "dtype", "fp32")


def test_constraints_combine_with_and() -> None:
    chip = load_capability(
        {
            "extends": "pytorch_cpu",
            "constraints": [{"where": {"op": "Conv2d", "depthwise": True, "name": ["a.*", "b"]}, "precision": "int8"}],
        }
    )
    (constraint,) = chip.constraints
    patterns = NamePatterns()
    assert constraint.applies_to(OpInfo("a1", "Conv2d", "weighted", depthwise=True), patterns)
    assert not constraint.applies_to(OpInfo("a1", "Conv2d", "weighted"), patterns)
    assert not constraint.applies_to(OpInfo("bb", "Conv2d", "weighted", depthwise=True), patterns)
    assert not constraint.applies_to(OpInfo("b", "Linear", "weighted", depthwise=True), patterns)


def without_int4_weights(how: str) -> Capability:
    """pytorch_cpu in which no section has int4 weights for Linear."""
    static = {"Linear": {"weight": {"dtype": ["uint4"]}}}
    sections: dict[str, Any] = {"removed": {"int4": None}, "replaced": {"int4": {"static": static}}}
    return load_capability({"extends": "pytorch_cpu", "capabilities": sections[how]})


@pytest.mark.parametrize("how", ["removed", "replaced"])
@pytest.mark.parametrize("again", [False, True])
def test_what_an_overlay_takes_away_does_not_come_back_by_star(how: str, again: bool, tmp_path: Path) -> None:
    register_dtype(DataType("builtint3", values=(-1.0, -0.5, 0.0, 0.5, 1.0)))
    chip = without_int4_weights(how)
    if again:  # two files below
        body = "{int4: null}" if how == "removed" else "{int4: {static: {Linear: {weight: {dtype: [uint4]}}}}}"
        (tmp_path / "below.yaml").write_text(f"extends: pytorch_cpu\ncapabilities: {body}\n")
        (tmp_path / "chip.yaml").write_text("extends: below.yaml\ndefault: int8\n")
        chip = load_capability(tmp_path / "chip.yaml")
    linear = OpInfo("fc", "Linear", "weighted")
    for mode in ("static", "quant_aware"):
        with pytest.raises(ConfigError, match=r"weight\.dtype 'int4', which pytorch_cpu does not list for Linear"):
            resolve(chip, [linear], {"op_type_dict": {"Linear": {"weight": {"dtype": "int4"}, "quant_mode": mode}}})
    config = resolve(chip, [linear], "wbuiltint3a8").op[linear.key]
    assert config.weight is not None
    assert config.weight.dtype.name == "builtint3"
    rows = [row for row in derived_ranges(chip) if (row["mode"], row["op_type"]) == ("static", "Linear")]
    weights = {row["dtype"] for row in rows if row["section"] == "others" and row["tensor"] == "weight"}
    assert "builtint3" in weights
    assert "int4" not in weights
