"""Every precision in one network: trained, with and without autocast, and converted exactly."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded

KINDS = {
    **{f"int{bits}": f"w{bits}a{bits}" for bits in range(8, 1, -1)},
    "int1": "wint1a8",
    "bint1": "w1a1",
    "ternary": "wternarya4",
    "nf4": "wnf4",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp32": "fp32",
}
CODES = {name: name for name in KINDS if name not in ("bf16", "fp16", "fp32")}
X = seeded((16, 3, 6, 6))


class Every(nn.Module):
    """A convolution and BatchNorm of each kind, with a skip past it, and a linear layer. [n, 3, 6, 6] to [n, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.convs = nn.ModuleDict({name: nn.Conv2d(8, 8, 3, padding=1, bias=False) for name in KINDS})
        self.norms = nn.ModuleDict({name: nn.BatchNorm2d(8) for name in KINDS})
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for name, conv in self.convs.items():
            x = F.hardtanh(x + self.norms[name](conv(x)), -4.0, 4.0)
        return self.head(x.mean((2, 3)))


@pytest.fixture
def capability(tmp_path: Path) -> Path:
    path = tmp_path / "hybrid.yaml"
    path.write_text("extends: pytorch_cpu\ncapabilities:\n  bf16: ['*']\n  fp16: ['*']\n")
    return path


@pytest.mark.parametrize("autocast", [False, True])
def test_every_precision_in_one_training_run(autocast: bool, capability: Path) -> None:
    config = {"precision": "w4a4", "op_name_dict": {f"convs.{name}": asked for name, asked in KINDS.items()}}
    rules = {"types": {"ternary": {"weight": "trained_ternary"}, "bint1": {"activation": "approx_sign"}}}
    model = subbyte.prepare_qat(
        randomized(Every()), config, X, first_last="int8", capability=capability, training=rules
    )
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    model.train()
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(model(X).float(), torch.arange(16) % 5)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    weights = {name: parameter for name, parameter in model.named_parameters() if name.endswith("weight")}
    assert all(not torch.equal(parameter, start[name]) for name, parameter in weights.items())
    assert all(parameter.dtype == torch.float32 for parameter in weights.values())

    with torch.no_grad():
        output = model.eval()(X)
        converted = subbyte.convert(model)
        assert torch.equal(converted(X), output)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(converted(X), model(X))
    found = {name.removeprefix("convs."): weight.spec.dtype.name for name, weight in subbyte.weights(model).items()}
    assert found == CODES | {"stem": "int8", "head": "int8"}
    assert converted.convs["bf16"].weight.dtype == torch.bfloat16
    assert converted.convs["fp16"].weight.dtype == torch.float16
    for each in (model, converted):
        rows = {row["name"]: row for row in subbyte.summary(each).rows}
        assert rows["convs.bf16"]["kernel"] == "float: cast to bf16 and back"
        assert rows["convs.fp16"]["kernel"] == "float: cast to fp16 and back"
        assert rows["convs.fp32"]["realized"] == "fp32"
        bits = subbyte.summary(each).totals["params_by_bits"]
        assert {"w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w16", "w32"} == set(bits)
