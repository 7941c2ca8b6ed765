"""summary and explain: what was asked, what is there, what it costs."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import subbyte
from networks import ResidualNet, randomized, seeded
from subbyte import ConfigError


@pytest.fixture
def quantized() -> nn.Module:
    return subbyte.quantize(randomized(ResidualNet(6)), "w4a4", seeded((4, 3, 8, 8)), first_last="int8")


def test_rows_tell_each_op(quantized: nn.Module) -> None:
    rows = {row["name"]: row for row in subbyte.summary(quantized).rows}
    assert list(rows) == ["conv1", "conv2", "add", "linear"]
    assert rows["conv2"]["type"] == "Conv2d"
    assert rows["conv2"]["requested"] == rows["conv2"]["realized"]
    assert (rows["conv2"]["weight_dtype"], rows["conv2"]["activation_dtype"]) == ("int4", "uint4")
    assert rows["conv2"]["macs"] == 6 * 6 * 9 * 64
    assert rows["linear"]["macs"] == 6 * 5
    assert rows["conv1"]["positions"] == ["first"]
    assert rows["linear"]["positions"] == ["last"]
    assert "integers first" in rows["conv1"]["kernel"]


def test_bytes_are_codes_scales_norm_factors_and_bias(quantized: nn.Module) -> None:
    rows = {row["name"]: row for row in subbyte.summary(quantized).rows}
    codes, scales, zero_point, norm, bias = 6 * 6 * 9 // 2, 6 * 4, 4, 6 * 4, 6 * 4
    assert rows["conv2"]["bytes"] == codes + scales + zero_point + norm + bias
    assert rows["conv2"]["params"] == 6 * 6 * 9 + 6


def test_totals_are_the_models_own(quantized: nn.Module) -> None:
    totals = subbyte.summary(quantized).totals
    tensors = [*quantized.parameters(), *quantized.buffers()]
    assert totals["bytes"] == sum(tensor.nbytes for tensor in tensors)
    assert totals["float_bytes"] == sum(t.nbytes for t in [*ResidualNet(6).parameters(), *ResidualNet(6).buffers()])
    assert totals["compression"] == totals["float_bytes"] / totals["bytes"]
    assert sum(totals["macs_share"].values()) == pytest.approx(1.0)
    assert totals["low_bit_macs_share"] == totals["macs_share"]["w4a4"]
    assert totals["params_by_bits"].keys() == {"w8", "w4"}


def test_sqnr_falls_by_six_decibels_a_bit() -> None:
    model, images = randomized(ResidualNet(6)), seeded((4, 3, 8, 8))
    figures = []
    for bits in (8, 6, 4):
        rows = {row["name"]: row for row in subbyte.summary(subbyte.quantize(model, f"w{bits}a{bits}", images)).rows}
        figures.append((rows["conv1"]["weight_sqnr"], rows["conv1"]["activation_sqnr"]))
    for wide, narrow in pairwise(figures):
        assert [a - b for a, b in zip(wide, narrow, strict=True)] == pytest.approx([12, 12], abs=3)


def test_prepared_and_converted_report_the_same() -> None:
    prepared = subbyte.prepare(randomized(ResidualNet(6)), "w4a4", seeded((4, 3, 8, 8)))
    before, after = subbyte.summary(prepared).rows, subbyte.summary(subbyte.convert(prepared)).rows
    for one, other in zip(before, after, strict=True):
        keys = ("name", "requested", "realized", "weight_dtype", "activation_dtype", "macs", "kernel", "weight_sqnr")
        assert [one[key] for key in keys] == [other[key] for key in keys]


def test_realized_is_read_off_the_model(quantized: nn.Module) -> None:
    wrong = subbyte.quantize(randomized(ResidualNet(6)), "w2a4", seeded((4, 3, 8, 8)))
    quantized.conv2.weight = wrong.conv2.weight
    row = next(row for row in subbyte.summary(quantized).rows if row["name"] == "conv2")
    assert "int2" in row["realized"]
    assert "int4" in row["requested"]
    assert "requested w:int4" in str(subbyte.summary(quantized)).replace("\n", " ")


def test_the_table_prints(quantized: nn.Module) -> None:
    text = str(subbyte.summary(quantized))
    assert "conv1" in text
    assert "smaller" in text
    assert "low-bit" in text


def test_explain_names_the_rule_of_each_field(quantized: nn.Module) -> None:
    text = subbyte.explain(quantized, "conv2")
    assert "weight.dtype: global 'w4a4'" in text
    assert "pytorch_cpu.yaml" in text
    assert "scale" in text
    assert "first_last='int8'" in subbyte.explain(quantized, "conv1")


def test_explain_of_no_op_suggests_one(quantized: nn.Module) -> None:
    with pytest.raises(ConfigError, match="conv1"):
        subbyte.explain(quantized, "conv11")


@pytest.mark.parametrize("function", ["einsum", "addmm"])
def test_products_that_are_not_quantized_are_shown_as_float(function: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 4)
            self.weight = nn.Parameter(torch.randn(4, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.fc(x)
            if function == "einsum":
                return torch.einsum("ij,jk->ik", h, self.weight)
            return torch.addmm(torch.zeros(2), h, self.weight)

    model = Net().eval()
    quantized = subbyte.quantize(model, "w8a8", seeded((3, 6)))
    rows = {row["type"]: row for row in subbyte.summary(quantized).rows}
    assert rows[function]["kernel"] == "float"
    assert (quantized(seeded((3, 6))) - model(seeded((3, 6)))).abs().max() < 0.1


def test_float_ops_are_shown_as_float() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.weight = nn.Parameter(torch.randn(2, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(self.conv(x).mean((2, 3)), self.weight)

    rows = {row["name"]: row for row in subbyte.summary(subbyte.quantize(Net(), "w8a8", seeded((2, 3, 8, 8)))).rows}
    assert rows["linear"]["kernel"] == "float"
    assert rows["linear"]["realized"] == "fp32"
