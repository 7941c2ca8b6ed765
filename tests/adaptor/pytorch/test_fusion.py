"""A capability's fusions: what runs as part of the op before it."""

import pytest
import torch
from torch import nn

import subbyte
from networks import ResidualNet, randomized, seeded

IN, WEIGHT = (
    {"dtype": ["uint8"], "scheme": ["sym"], "granularity": ["per_tensor"], "algorithm": ["minmax"]},
    {
        "dtype": ["int8"],
        "scheme": ["sym"],
        "granularity": ["per_channel"],
        "algorithm": ["minmax"],
    },
)
OPS = {name: {"weight": WEIGHT, "activation": IN} for name in ("Conv2d", "Linear")}


def _capability(fusions: list[list[str]]) -> subbyte.Capability:
    ops = OPS | {name: {"activation": IN} for name in ("add", "GELU", "gelu", "SiLU")}
    capabilities = {"int8": {"static": ops}, "fp32": ["*"]}
    return subbyte.load_capability({"version": {"name": "chip"}, "capabilities": capabilities, "fusions": fusions})


class Mlp(nn.Module):
    def __init__(self, inner: bool) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 4)
        self.act = None if inner else nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.fc1(x)
        return self.fc2(nn.functional.gelu(h) if self.act is None else self.act(h))


def _types(model: nn.Module) -> list[str]:
    return [row["type"] for row in subbyte.summary(model).rows]


def test_a_batch_norm_outside_every_fusion_runs_by_itself() -> None:
    model, images = randomized(ResidualNet()), seeded((4, 3, 6, 6))
    fused = subbyte.prepare(model, "w8a8", images)
    apart = subbyte.prepare(model, "w8a8", images, capability=_capability([]))
    only_conv = subbyte.prepare(model, "w8a8", images, capability=_capability([["Conv2d", "BatchNorm2d", "ReLU"]]))
    assert type(apart.bn1).__mro__[1] is not type(fused.bn1).__mro__[1]
    expected = fused(images)
    assert torch.equal(only_conv(images), expected)
    assert torch.allclose(apart(images), expected, atol=0.15)
    assert torch.equal(subbyte.convert(apart)(images), apart(images))


@pytest.mark.parametrize("inner", [False, True])
def test_an_activation_inside_a_fusion_has_no_quantizer_of_its_own(inner: bool) -> None:
    x = seeded((5, 6))
    model = Mlp(inner).eval()
    name = "gelu" if inner else "GELU"
    apart = subbyte.quantize(model, "w8a8", x, capability=_capability([]))
    fused = subbyte.quantize(model, "w8a8", x, capability=_capability([["Linear", name]]))
    assert _types(apart) == ["Linear", name, "Linear"]
    assert _types(fused) == ["Linear", "Linear"]
    hidden = fused.fc1(x) if inner else fused.act(fused.fc1(x))
    assert hidden.shape == (5, 8)
    assert torch.isfinite(fused(x)).all()


def test_an_activation_after_something_else_is_not_fused() -> None:
    class Late(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc2(self.act(torch.neg(self.fc1(x))))

    quantized = subbyte.quantize(Late(False), "w8a8", seeded((5, 6)), capability=_capability([["Linear", "GELU"]]))
    assert _types(quantized) == ["Linear", "GELU", "Linear"]
