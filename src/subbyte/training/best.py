"""The best model of a training so far."""

import copy
import math
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Best:
    """The model of one epoch.

    Args:
        epoch: its number.
        metric: what it reached.
        state: its state_dict, with tensors of its own.
    """

    epoch: int
    metric: float
    state: dict[str, Any]


def better(best: Best | None, model: nn.Module, epoch: int, metric: float, *, higher_is_better: bool) -> Best | None:
    """The better one of the best so far and a model as it is now; of equals the later, and never one of NaN."""
    if math.isnan(metric):
        return best
    if best is not None and (metric < best.metric if higher_is_better else metric > best.metric):
        return best
    return Best(epoch, metric, copy.deepcopy(model.state_dict()))
