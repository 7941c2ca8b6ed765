"""What tests of recovery methods share: nets of every kind of weighted op, and ways to look at one op of them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded, tune_config
from subbyte import TensorSpec
from subbyte.adaptor.pytorch.batch import batches
from subbyte.adaptor.pytorch.prepared import PreparedModel

WEIGHTS = {
    "int4 per_channel": TensorSpec("int4", "sym", "per_channel"),
    "int3 per_tensor": TensorSpec("int3", "sym", "per_tensor"),
    "uint3 per_group": TensorSpec("uint3", "asym", "per_group(3)"),
    "nf4 per_group": TensorSpec("nf4", "sym", "per_group(4)"),
    "bint1 per_channel": TensorSpec("bint1", "sym", "per_channel"),
    "ternary per_channel": TensorSpec("ternary", "sym", "per_channel"),
}
ACTIVATION = TensorSpec("uint8", "asym", "per_tensor")


class EveryOp(nn.Module):
    """A convolution, a depthwise, a grouped and a transposed one, two of them with BatchNorm, and a linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.grouped = nn.Conv2d(6, 8, 3, stride=2, groups=2)
        self.grouped_norm = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(8, 6, 3, stride=2)
        self.linear = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        x = torch.relu(self.depthwise(x))
        x = torch.relu(self.grouped_norm(self.grouped(x)))
        return self.linear(torch.relu(self.up(x)).mean((2, 3)))


def every_op() -> tuple[nn.Module, list[Tensor]]:
    """The net, and two batches of eight images, whose neighbouring pixels and channels are alike."""
    images = F.avg_pool3d(seeded((16, 5, 10, 10), seed=3), 3, stride=1) * 5
    return randomized(EveryOp()), list(images.split(8))


def prepared(
    model: nn.Module, data: Any, weight: TensorSpec, recover: Any = None, *, activation: TensorSpec | None = ACTIVATION
) -> nn.Module:
    """Every op with the same specs; weight-only without an activation's."""
    mode = "static" if activation else "weight_only"
    return subbyte.prepare(model, tune_config(model, data[0], weight, activation, mode), data, recover=recover)


def seen(model: nn.Module, data: Any) -> PreparedModel:
    """As methods see it."""
    return PreparedModel(model, list(batches(data)))


@torch.no_grad()
def error(model: nn.Module, other: nn.Module, data: Any) -> float:
    """The mean squared difference of what two models give."""
    return float(sum((model(x) - other(x)).square().mean() for x in data) / len(data))


def assert_same_converted(model: nn.Module, data: Any) -> None:
    """The converted model computes what the prepared one does, bit for bit."""
    converted = subbyte.convert(model)
    with torch.no_grad():
        assert all(torch.equal(converted(x), model(x)) for x in data)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_tensors(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """The same names, and equal tensors."""
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name].nan_to_num(), other[name].nan_to_num()) for name in one)
