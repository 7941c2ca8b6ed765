"""The summary's parameters: each is in one row, and the header says which share is quantized."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, randomized, seeded


class Experts(nn.Module):
    """Multiplies by parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(12, 8)), nn.Parameter(torch.randn(8, 12))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(F.linear(F.relu(F.linear(x, self.up)), self.down)))


class Tied(nn.Module):
    """An embedding whose weight the last layer shares."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(10, 6), nn.Linear(6, 10)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "experts": (Experts, seeded((3, 8))),
    "tied": (Tied, torch.arange(6).reshape(2, 3)),
    "batch norm": (ResidualNet, seeded((2, 3, 8, 8))),
    "recurrent": (lambda: nn.Sequential(nn.LSTM(6, 4)), seeded((2, 3, 6))),
}


def counted(model: nn.Module) -> int:
    return sum(row["params"] for row in subbyte.summary(model).rows)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("config", "with_data"), [("w4", False), ("w4", True), ("w4a8:dynamic", True)])
def test_rows_hold_every_parameter_once(name: str, config: str, with_data: bool, tmp_path: Path) -> None:
    build, x = NETWORKS[name]
    model = randomized(build())
    total = sum(parameter.numel() for parameter in model.parameters())
    prepared = subbyte.prepare(model, config, x if with_data else None)
    converted = subbyte.convert(prepared)
    assert counted(prepared) == counted(converted) == total
    subbyte.save(converted, tmp_path / "model.safetensors")
    assert counted(subbyte.load(tmp_path / "model.safetensors", model)) == total


def test_learned_scales_are_no_parameters_of_the_model() -> None:
    model = randomized(ResidualNet())
    prepared = subbyte.prepare_qat(model, "w4a4", seeded((2, 3, 8, 8)))
    assert counted(prepared) == sum(parameter.numel() for parameter in model.parameters())


def test_parameters_read_by_code_have_a_row_when_there_is_no_data() -> None:
    summary = subbyte.summary(subbyte.quantize(randomized(Experts()), "w4"))
    rows = {row["name"]: row for row in summary.rows}
    assert (rows["(model)"]["type"], rows["(model)"]["params"]) == ("Experts", 2 * 12 * 8)
    assert rows["(model)"]["weight_dtype"] == "fp32"
    assert (rows["norm"]["type"], rows["norm"]["params"]) == ("LayerNorm", 16)
    assert "Experts" in rows["(model)"]["float_because"]


def test_functions_have_the_parameters_that_they_read_when_there_is_data() -> None:
    summary = subbyte.summary(subbyte.quantize(randomized(Experts()), "w4", seeded((3, 8))))
    params = {row["name"]: row["params"] for row in summary.rows}
    assert params == {"linear": 96, "linear_1": 96, "head": 36, "norm": 16}


def test_the_header_says_which_shares_are_quantized() -> None:
    blind = subbyte.summary(subbyte.quantize(randomized(Experts()), "w4"))
    assert blind.totals["quantized_params_share"] == 32 / 244
    assert "13.1%" in blind.header()
    assert "multiply" not in blind.header()
    seen = subbyte.summary(subbyte.quantize(randomized(Experts()), "w4", seeded((3, 8))))
    assert seen.totals["quantized_macs_share"] == pytest.approx(32 / (96 + 96 + 32))
    assert "14.3%" in seen.header()
    assert seen.header() in str(seen)


def test_a_float_op_says_why_and_is_not_as_requested() -> None:
    text = str(subbyte.summary(subbyte.quantize(randomized(Experts()), "w4", seeded((3, 8)))))
    assert text.count("as requested") == 1  # the head
    assert all(row["float_because"] for row in subbyte.summary(
        subbyte.quantize(randomized(ResidualNet()), "fp32", seeded((2, 3, 8, 8)))
    ).rows)  # fmt: skip


@pytest.mark.parametrize("kind", ["Mixtral", "Falcon"])
@pytest.mark.parametrize("with_data", [False, True])
def test_parameters_of_transformers_add_up(kind: str, with_data: bool) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    if kind == "Mixtral":
        sizes |= {"intermediate_size": 24, "num_key_value_heads": 1, "num_local_experts": 4}
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**sizes)).eval()
    data = [{"input_ids": torch.arange(12).reshape(2, 6)}] if with_data else None
    quantized = subbyte.quantize(model, "w4", data)
    assert counted(quantized) == sum(parameter.numel() for parameter in model.parameters())
    rows = subbyte.summary(quantized).rows
    assert all(row["float_because"] for row in rows if not row["is_quantized"])
    assert subbyte.summary(quantized).totals["quantized_params_share"] < 0.5
