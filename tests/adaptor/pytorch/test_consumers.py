"""What reads the output of each op, as one forward shows it, and which ops are quantized by default for it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from networks import ResNetCifar, randomized, seeded


class Residual(nn.Module):
    """conv, conv, a residual add; then a function, and a convolution."""

    def __init__(self, after: Callable[[Tensor], Tensor], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.after, self.norm = after, norm

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.after(self.second(x) + x)
        return self.last(y if self.norm is None else self.norm(y))


X = seeded((2, 4, 8, 8))


def row_of(prepared: Any, name: str) -> dict[str, Any]:
    return next(row for row in subbyte.summary(prepared).rows if row["name"] == name)


def type_of_add(model: nn.Module, config: Any = "w8a8") -> str:
    return str(row_of(subbyte.prepare(randomized(model), config, X), "add")["activation_dtype"])


@pytest.mark.parametrize(
    "passing",
    [
        lambda x: x, F.relu, F.relu6, lambda x: F.max_pool2d(x, 2), lambda x: F.avg_pool2d(x, 2),
        lambda x: F.dropout(x, 0.5, False), lambda x: x.flatten(2).unflatten(2, (8, 8)).contiguous(),
        lambda x: x.mean((2, 3), keepdim=True), lambda x: F.adaptive_avg_pool2d(x, 2), lambda x: x[:, :, 1:].clone(),
        lambda x: x.permute(0, 1, 3, 2), lambda x: x.mT, lambda x: F.pad(x, (1, 1)), lambda x: x.relu_(),
        lambda x: torch.cat(x.chunk(2, 1), 1), F.silu,
        lambda x: x.float(), lambda x: x.type_as(x), lambda x: x.type(torch.float32), lambda x: x.cpu(),
    ],
)  # fmt: skip
def test_an_add_is_quantized_when_a_quantized_op_reads_it_through(passing: Any) -> None:
    assert type_of_add(Residual(passing)) == "uint8"


@pytest.mark.parametrize("reading", [torch.exp, torch.sigmoid_, F.softplus, lambda x: x * 2.0, lambda x: x - x.mean()])
def test_an_add_is_float_when_a_float_function_reads_it(reading: Any) -> None:
    expected = "uint8" if reading is torch.sigmoid_ else "fp32"  # a sigmoid is an op
    assert type_of_add(Residual(reading)) == expected


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm(8)])
def test_an_add_is_float_when_a_norm_reads_it(norm: nn.Module) -> None:
    prepared = subbyte.prepare(randomized(Residual(F.relu, norm)), "w8a8", X)
    row = row_of(prepared, "add")
    assert (row["activation_dtype"], row["requested"]) == ("fp32", "fp32")
    assert "'norm'" in row["float_because"]
    assert type_of_add(Residual(F.relu, norm), {"op_type_dict": {"add": "w4a4"}}) == "uint4"


def test_an_add_that_the_caller_reads_is_float() -> None:
    class Ending(Residual):
        def forward(self, x: Tensor) -> Any:
            x = self.first(x)
            y = self.second(x) + x
            return self.last(y), y.flatten()

    assert type_of_add(Ending(F.relu)) == "fp32"


def test_every_add_of_a_resnet_stays_quantized() -> None:
    prepared = subbyte.prepare(randomized(ResNetCifar(20, 4)), "w4a4", seeded((2, 3, 16, 16)))
    types = [row["activation_dtype"] for row in subbyte.summary(prepared).rows if row["type"] == "add"]
    assert types == ["uint8"] * 9


def test_a_float_classifier_makes_the_chain_of_adds_before_it_float() -> None:
    prepared = subbyte.prepare(randomized(ResNetCifar(8, 4)), "w4a4", seeded((2, 3, 16, 16)), first_last="fp32")
    types = [row["activation_dtype"] for row in subbyte.summary(prepared).rows if row["type"] == "add"]
    assert types == ["fp32"] * 3


def test_training_follows_the_same_rule() -> None:
    prepared = subbyte.prepare_qat(randomized(Residual(F.relu, nn.GroupNorm(2, 4))), "w4a4", X)
    assert row_of(prepared, "add")["activation_dtype"] == "fp32"
    assert row_of(subbyte.prepare_qat(randomized(Residual(F.relu)), "w4a4", X), "add")["activation_dtype"] == "uint8"


def test_an_add_becomes_float_when_a_later_path_reads_it_in_float() -> None:
    class Branching(Residual):
        def forward(self, x: Tensor) -> Tensor:
            large = float(x.abs().max()) > 100
            x = self.first(x)
            y = self.second(x) + x
            return self.last(torch.exp(-(y.abs() + y))) if large else self.last(y)

    model = randomized(Branching(F.relu))
    prepared = subbyte.prepare(model, "w8a8", [X, 1000 * X])
    assert row_of(prepared, "add")["activation_dtype"] == "fp32"
    converted = subbyte.convert(prepared)
    assert torch.equal(converted(X), prepared(X))


def test_what_a_fused_activation_gives_is_what_its_add_gives(tmp_path: Any) -> None:
    path = tmp_path / "chip.yaml"
    path.write_text("extends: pytorch_cpu\nversion: {name: chip}\nfusions: [[add, silu]]\n")
    prepared = subbyte.prepare(randomized(Residual(F.silu)), "w8a8", X, capability=path)
    assert row_of(prepared, "add")["activation_dtype"] == "uint8"
    norm = Residual(F.silu, nn.GroupNorm(2, 4))
    prepared = subbyte.prepare(randomized(norm), "w8a8", X, capability=path)
    assert row_of(prepared, "add")["activation_dtype"] == "fp32"


class Scan(nn.Module):
    """A recurrence as state space models compute it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value, self.last = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        decay, value = torch.sigmoid(self.gate(x)), self.value(x)
        state, outputs = value[:, 0], []
        for step in range(x.shape[1]):
            state = decay[:, step] * state + value[:, step]
            outputs.append(state)
        return self.last(torch.stack(outputs, 1))


def test_the_state_of_a_recurrence_stays_float() -> None:
    prepared = subbyte.prepare(randomized(Scan()), "w8a8", seeded((2, 5, 6)))
    types = {row["name"]: row["activation_dtype"] for row in subbyte.summary(prepared).rows}
    assert (types["mul"], types["add"], types["cat"]) == ("fp32", "fp32", "uint8")
