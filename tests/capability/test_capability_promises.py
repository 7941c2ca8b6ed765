"""What a capability lists and nothing implements: found at load, with the line."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from subbyte.adaptor.pytorch.modules import register_module
from subbyte.adaptor.pytorch.modules.activation import ActivationHandler
from subbyte.capability import broken_promises, built_in_capabilities, load_capability
from subbyte.errors import UnimplementedOpWarning

WEIGHT = "weight: {dtype: [int4], scheme: [sym], granularity: [per_channel], algorithm: [minmax]}"
INPUT = "activation: {dtype: [uint4], scheme: [asym], granularity: [per_tensor], algorithm: [minmax]}"
OUTPUT = INPUT.replace("activation", "output")


def chip(folder: Path, mode: str, op_type: str, tensors: str) -> Path:
    path = folder / "chip.yaml"
    path.write_text(
        "version: {name: chip}\ncapabilities:\n  int4:\n    static:\n"
        f"      Linear: {{{WEIGHT}, {INPUT}}}\n    {mode}:\n      {op_type}: {{{tensors}}}\n"
    )
    if mode == "static":
        path.write_text(path.read_text().replace("    static:\n      Linear", "    dynamic:\n      Linear"))
    return path


@pytest.mark.parametrize(
    ("mode", "op_type", "tensors", "named"),
    [
        ("static", "GroupNorm", INPUT, ["GroupNorm"]),
        ("static", "PReLU", INPUT, ["PReLU"]),
        ("static", "MaxPool2d", INPUT, ["MaxPool2d"]),
        ("dynamic", "PixelShuffle", INPUT, ["PixelShuffle"]),
        ("static", "EmbeddingBag", WEIGHT, ["EmbeddingBag"]),
        ("static", "linear", INPUT, ["linear"]),
        ("static", "einsum", INPUT, ["einsum"]),
        ("static", "LSTM", f"{WEIGHT}, {INPUT}", ["LSTM", "dynamic", "weight_only"]),
        ("quant_aware", "GRU", f"{WEIGHT}, {INPUT}", ["GRU", "dynamic", "weight_only"]),
        ("weight_only", "add", INPUT, ["add", "static"]),
        ("weight_only", "Conv2d", f"{WEIGHT}, {INPUT}", ["Conv2d", "activation"]),
        ("static", "Embedding", f"{WEIGHT}, {INPUT}", ["Embedding", "activation"]),
        ("static", "GELU", f"{WEIGHT}, {INPUT}", ["GELU", "weight"]),
        ("static", "Conv2d", f"{WEIGHT}, {INPUT}, {OUTPUT}", ["Conv2d", "output"]),
        ("static", "Conv2d", INPUT, ["Conv2d", "weight"]),
    ],
)
def test_load_warns_of_an_entry_that_nothing_implements(
    tmp_path: Path, mode: str, op_type: str, tensors: str, named: list[str]
) -> None:
    path = chip(tmp_path, mode, op_type, tensors)
    with pytest.warns(UnimplementedOpWarning) as caught:
        capability = load_capability(path)
    (promise,) = broken_promises(capability)
    assert str(caught[0].message) == str(promise)
    assert (promise.op_type, promise.place.file, promise.place.line) == (op_type, str(path), 7)
    assert all(word in promise.problem for word in named)


@pytest.mark.parametrize(
    ("key", "op_type"),
    [
        ("constraints: [{where: {op: [GroupNorm]}, precision: int4}]", "GroupNorm"),
        ("constraints: [{where: {op: [GELU, ReLU]}, precision: int4}]", "ReLU"),
        ("fusions: [[Linear, GELU], [Linear, GroupNorm, ReLU]]", "GroupNorm"),
        ("fusions: [[Linear, PReLU]]", "PReLU"),
        ("fusions: [[MaxPool2d, ReLU]]", "MaxPool2d"),
    ],
)
def test_load_warns_of_a_constraint_or_fusion_that_nothing_implements(tmp_path: Path, key: str, op_type: str) -> None:
    path = chip(tmp_path, "weight_only", "Linear", WEIGHT)
    path.write_text(f"{path.read_text()}  fp32: [GELU, GroupNorm, ReLU]\n{key}\n")
    with pytest.warns(UnimplementedOpWarning, match=rf"chip\.yaml:9: {key.split('s:')[0]}.*{op_type}"):
        capability = load_capability(path)
    assert [promise.op_type for promise in broken_promises(capability)] == [op_type]


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight_only"])
def test_built_in_capabilities_promise_nothing_that_is_missing(mode: str) -> None:
    for name in built_in_capabilities():
        assert broken_promises(load_capability(name)) == []


def test_an_aliased_entry_is_named_by_its_own_line(tmp_path: Path) -> None:
    path = tmp_path / "chip.yaml"
    path.write_text(
        f"capabilities:\n  int4:\n    static:\n      GELU: &one {{{INPUT}}}\n      GroupNorm: *one\n      Tanh: *one\n"
    )
    with pytest.warns(UnimplementedOpWarning, match=r"chip\.yaml:5: int4, static, GroupNorm"):
        load_capability(path)


def test_a_registered_handler_of_the_user_counts_as_implemented(tmp_path: Path) -> None:
    path = chip(tmp_path, "static", "Mish", INPUT)
    with pytest.warns(UnimplementedOpWarning, match="Mish"):
        capability = load_capability(path)
    register_module("nowhere.Mish", ActivationHandler("Mish"))
    assert broken_promises(capability) == []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_capability(path)
    assert not caught


def test_a_null_takes_an_entry_back(tmp_path: Path) -> None:
    path = chip(tmp_path, "static", "GroupNorm", INPUT)
    over: dict[str, Any] = {"extends": str(path), "capabilities": {"int4": {"static": {"GroupNorm": None}}}}
    assert broken_promises(load_capability(over)) == []
