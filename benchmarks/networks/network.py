"""A trained network with data, and how it is judged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from networks.metrics import Judged, Metric


@dataclass(frozen=True)
class Network:
    """A trained network with data to calibrate and to judge it on.

    Args:
        name: as `--network` takes it.
        model: float, in eval().
        metric: what is reported.
        data: what was used, in words.
        calibration: batches of inputs, without labels: tensors, or dicts of keyword arguments.
        test: batches of (inputs, targets).
    """

    name: str
    model: nn.Module
    metric: Metric
    data: str
    calibration: list[Any]
    test: Sequence[tuple[Any, Tensor]]


@dataclass(frozen=True)
class Source:
    """Where a network comes from.

    Args:
        files: in the folder of data.
        metric: it is judged by.
        build: from its name, the folder, whether few samples serve, and the seed of the calibration samples.
        package: that it is in, as pip names it.
    """

    files: tuple[str, ...]
    metric: Metric
    build: Callable[[str, Path, bool, int], Network]
    package: str | None = None


def call(model: nn.Module, inputs: Any) -> Tensor:
    """The output for one batch of inputs."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


@torch.no_grad()
def judge(model: nn.Module, network: Network) -> Judged:
    """Run the test data."""
    batches = [network.metric.of_batch(call(model, inputs), targets) for inputs, targets in network.test]
    return Judged(network.metric, torch.cat(batches))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a safetensors file, and its metadata."""
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
