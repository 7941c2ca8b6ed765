"""An accumulator that a capability names: an op that could overflow it is reported, or refused by a strict one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import subbyte
from networks import seeded
from subbyte import ConfigError
from subbyte.adaptor.pytorch.overflow import largest_sum

CHIP = """
version: {name: my-chip}
default: int8
strict: %s
capabilities:
  fp32: ['*']
  int8:
    static:
      Linear:
        weight: {dtype: [int8, int4], scheme: [sym], granularity: ['%s'], algorithm: [minmax]}
        activation: {dtype: [uint8, uint2], scheme: [sym], granularity: [per_tensor], algorithm: [minmax]}
        accumulator: int16
"""


def chip(folder: Path, *, strict: bool = False, granularity: str = "per_channel") -> Path:
    path = folder / "chip.yaml"
    path.write_text(CHIP % (str(strict).lower(), granularity))
    return path


def ones(features: int) -> nn.Module:
    """Every weight is the largest code: a sum of as many as it has features."""
    model = nn.Sequential(nn.Linear(features, 2, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    return model


@pytest.mark.parametrize("kind", ["prepared", "converted", "loaded"])
def test_the_bound_is_the_largest_sum_that_an_input_can_make(kind: str, tmp_path: Path) -> None:
    model = subbyte.prepare(ones(3), "w8a8", seeded((5, 3)).abs(), capability=chip(tmp_path))
    if kind != "prepared":
        model = subbyte.convert(model)
    if kind == "loaded":
        subbyte.save(model, tmp_path / "model.safetensors")
        model = subbyte.load(tmp_path / "model.safetensors", ones(3))
    assert largest_sum(model[0]) == 3 * 127 * 255
    (row,) = subbyte.summary(model).rows
    assert "sums up to 97,155 may overflow int16" in row["kernel"]
    assert "accumulator:int16" in row["realized"]
    assert row["realized"] == row["requested"]
    assert "may overflow int16" in subbyte.explain(model, "0")


def test_what_cannot_overflow_is_not_reported(tmp_path: Path) -> None:
    model = subbyte.quantize(ones(1), "w8a8", seeded((5, 1)).abs(), capability=chip(tmp_path, strict=True))
    assert largest_sum(model[0]) == 127 * 255 < 2**15
    assert "overflow" not in subbyte.summary(model).rows[0]["kernel"]


def test_the_groups_of_a_weight_are_summed_apart(tmp_path: Path) -> None:
    path = chip(tmp_path, strict=True, granularity="per_group(1)")
    model = subbyte.quantize(ones(3), "w8a8", seeded((5, 3)).abs(), capability=path)
    assert largest_sum(model[0]) == 127 * 255


@pytest.mark.parametrize("form", ["shorthand", "tune config"])
def test_a_strict_capability_refuses(form: str, tmp_path: Path) -> None:
    data = seeded((5, 3)).abs()
    config: Any = "w8a8"
    if form == "tune config":
        fields = {"scheme": "sym", "granularity": "per_channel", "algorithm": "minmax"}
        given = {"weight": {"dtype": "int8"} | fields, "activation": {"dtype": "uint8", "scheme": "sym"}}
        config = subbyte.TuneConfig({("0", "Linear"): subbyte.OpConfig.from_dict(given)})
    with pytest.raises(ConfigError, match=r"op '0': sums up to 97,155 may overflow int16.*fewer bits"):
        subbyte.quantize(ones(3), config, data, capability=chip(tmp_path, strict=True))
    narrow = subbyte.quantize(ones(3), "w4a2", data, capability=chip(tmp_path, strict=True))
    assert largest_sum(narrow[0]) == 3 * 7 * 3


def test_weights_alone_sum_no_codes(tmp_path: Path) -> None:
    assert largest_sum(subbyte.quantize(ones(3), "w8")[0]) is None
    assert largest_sum(subbyte.quantize(ones(3), "wnf4a8", seeded((5, 3)))[0]) is None
