"""Linear layers on packed codes and floats, drawn at random, and what they give in float64."""

from typing import Any

import torch
from torch import Tensor

from subbyte.kernels.float_linear import FloatLinearWeight


def layer(
    rows: int = 3,
    outputs: int = 20,
    inputs: int = 33,
    bits: int = 4,
    group_size: int = 8,
    *,
    kind: str = "",
    seed: int = 0,
) -> dict[str, Any]:
    """Arguments of one call drawn at random; kind: `table`, `bf16 table` (exact in it), `zeros` (many)."""
    random = torch.Generator().manual_seed(seed)
    groups = -(-inputs // group_size)
    values = torch.randn(1 << bits, generator=random) if kind.endswith("table") else None
    values = values.bfloat16().float() if values is not None and kind.startswith("bf16") else values
    zero_point = torch.full((outputs, groups), 0 if kind.endswith("table") else 1 << (bits - 1))
    if kind == "zeros":
        zero_point = torch.randint(0, 1 << bits, (outputs, groups), generator=random)
    return {
        "x": torch.randn(rows, inputs, generator=random) * 3,
        "codes": torch.randint(0, 1 << bits, (outputs, inputs), generator=random, dtype=torch.uint8),
        "scale": torch.rand(outputs, groups, generator=random) + 0.1,
        "zero_point": zero_point,
        "bits": bits,
        "group_size": group_size,
        "values": values,
        "bias": torch.randn(outputs, generator=random),
    }


def weight_of(case: dict[str, Any]) -> FloatLinearWeight:
    return FloatLinearWeight.of(
        *(case[name] for name in ("codes", "scale", "zero_point", "bits", "group_size", "values"))
    )


def exact(case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The result in float64, and how far x's dtype may be off."""
    inputs, size = case["x"].shape[1], case["group_size"]
    codes = case["codes"].int()
    numbers = codes.double() if case["values"] is None else case["values"].double()[codes]
    spread = [part.double().repeat_interleave(size, 1)[:, :inputs] for part in (case["scale"], case["zero_point"])]
    weight, x, bias = (numbers - spread[1]) * spread[0], case["x"].double(), case["bias"].double()
    bound = (x.abs() @ weight.abs().T + bias.abs()) * (inputs + case["scale"].shape[1] + 2) * 2.0**-24
    want = x @ weight.T + bias
    if case["x"].dtype == torch.bfloat16:
        bound = bound + torch.maximum(weight.abs(), spread[0]).sum(1) * 2.0**-125 + 2.0**-126
        bound = bound + (want.abs() + bound) * 2.0**-8  # of y itself
    return want, bound
