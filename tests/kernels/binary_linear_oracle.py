"""Linear layers on two or three levels and signs, drawn at random, and what they give in whole numbers."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from subbyte.kernels.binary_weight import Levels

SIGNS, TERNARY = Levels(-1, 1, 2, False), Levels(-1, 1, 3, False)
EVERY_KIND = [SIGNS, TERNARY, Levels(0, 1, 2, True), Levels(-1, 0, 2, True), Levels(-1, 1, 3, True)]


def layer(
    rows: int, outputs: int, inputs: int, levels: Levels, *, zeros: bool = False, seed: int = 0
) -> dict[str, Any]:
    """Arguments of one call, drawn at random; `zeros`: whether weights may be 0."""
    random = torch.Generator().manual_seed(seed)
    values = torch.randint(-1, 2, (outputs, inputs), generator=random, dtype=torch.int8)
    zero_point = torch.randint(levels.low, levels.high + 1, (1,), generator=random, dtype=torch.int32)
    return {
        "x": torch.randn(rows, inputs, generator=random),
        "values": values if zeros else torch.where(values == 0, 1, values),
        "scale": torch.rand(outputs, generator=random) + 0.1,
        "bias": torch.randn(outputs, generator=random),
        "levels": levels,
        "x_scale": torch.rand(1, generator=random) + 0.1,
        "x_zero_point": zero_point if levels.rounds else torch.zeros(1, dtype=torch.int32),
    }


def levels_of(x: Tensor, levels: Levels, scale: Tensor, zero_point: Tensor) -> np.ndarray:
    """By the definitions: clamped rounding, or the nearest of a table, ties to the upper."""
    quotient = x.numpy() / scale.numpy()
    if levels.rounds:
        return np.clip(np.rint(quotient) + zero_point.numpy(), levels.low, levels.high) - zero_point.numpy()
    table = np.linspace(levels.low, levels.high, levels.count)
    return table[np.searchsorted((table[1:] + table[:-1]) / 2, quotient, "right")]


def expected(case: dict[str, Any]) -> Tensor:
    parameters = (case["x_scale"].reshape(-1, 1), case["x_zero_point"].reshape(-1, 1))
    x = levels_of(case["x"], case["levels"], *parameters).astype(np.int64)
    total = x @ case["values"].numpy().astype(np.int64).T
    return torch.from_numpy(total.astype(np.float32)) * (parameters[0] * case["scale"]) + case["bias"]
