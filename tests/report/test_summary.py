"""summary and explain: what was asked, what is there, what it costs."""

import copy
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, randomized, seeded
from subbyte import ConfigError, ModelError
from subbyte.spec import OpConfig, TuneConfig


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
    assert rows["conv2"]["params"] == 6 * 6 * 9 + 6 + 2 * 6  # with its BatchNorm


def test_totals_are_the_models_own(quantized: nn.Module) -> None:
    totals = subbyte.summary(quantized).totals
    tensors = [*quantized.parameters(), *quantized.buffers()]
    assert totals["bytes"] == sum(tensor.nbytes for tensor in tensors)
    assert totals["float_bytes"] == sum(t.nbytes for t in [*ResidualNet(6).parameters(), *ResidualNet(6).buffers()])
    assert totals["compression"] == totals["float_bytes"] / totals["bytes"]
    assert sum(totals["macs_share"].values()) == pytest.approx(1.0)
    assert totals["low_bit_macs_share"] == totals["macs_share"]["w4a4"]
    weights = {"w8": 3 * 6 * 9 + 6 * 5, "w4": 6 * 6 * 9}
    assert totals["params"] == sum(parameter.numel() for parameter in ResidualNet(6).parameters())
    assert totals["params_by_bits"] == weights | {"w32": totals["params"] - sum(weights.values())}


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


class SameLinear(nn.Linear):
    """A forward of its own, that is its base's."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input)


def test_what_was_not_asked_to_be_float_is_not_shown_as_requested() -> None:
    model = randomized(nn.Sequential(nn.Linear(6, 4), SameLinear(4, 4), nn.Linear(4, 2)))
    config = {"op_name_dict": {"2": {"weight": {"dtype": ["fp32"]}}}}
    summary = subbyte.summary(subbyte.quantize(model, config, seeded((3, 6))))
    reasons = {row["name"]: row["float_because"] for row in summary.rows}
    assert reasons == {
        "0": "",
        "1.linear": "capability pytorch_cpu lists no linear in static mode",
        "1": "SameLinear is no op type of a capability, and its own code reads these parameters",  # its bias
        "2": "op_name_dict['2']",
    }
    text = str(summary)
    assert "float: capability pytorch_cpu lists no linear" in text
    assert "float: op_name_dict['2']" in text
    assert text.count("as requested") == 1


@pytest.mark.parametrize("named", [True, False])
def test_float_op_of_a_tune_config_names_the_tune_config(named: bool) -> None:
    model, x = randomized(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))), seeded((3, 6))
    found = dict(subbyte.quantize(model, "w4a8", x).subbyte_state.config.op)
    del found["0", "Linear"]
    config = TuneConfig(found | ({("0", "Linear"): OpConfig()} if named else {}))
    row = subbyte.summary(subbyte.quantize(model, config, x)).rows[0]
    assert row["float_because"] == ("TuneConfig" if named else "not named in the TuneConfig: float")


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


def rows_of(model: nn.Module, *data: torch.Tensor, config: str = "w4a8") -> dict[str, Any]:
    return {row["name"]: row for row in subbyte.summary(subbyte.quantize(model, config, [data])).rows}


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 6)
        self.recurrent = kind(6, 5, batch_first=True, **options)
        self.head = nn.Linear(10 if options.get("bidirectional") else 5, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        y, _ = self.recurrent(self.table(tokens))
        return self.head(y + torch.tanh(y))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_static_recurrent_modules_stay_float_and_are_counted(kind: type[nn.Module], bidirectional: bool) -> None:
    model = randomized(Recurrent(kind, num_layers=2, bidirectional=bidirectional))
    tokens = torch.arange(28).reshape(4, 7) % 16
    quantized = subbyte.quantize(model, "w4a8", tokens)
    summary = subbyte.summary(quantized)
    rows = {row["name"]: row for row in summary.rows}
    matrices = sum(p.numel() for p in model.recurrent.parameters() if p.ndim == 2)
    assert rows["recurrent"]["type"] == kind.__name__
    assert (rows["recurrent"]["weight_dtype"], rows["recurrent"]["kernel"]) == ("fp32", "float")
    assert rows["recurrent"]["macs"] == 7 * matrices
    assert rows["head"]["macs"] == 7 * 3 * model.head.in_features
    share = rows["head"]["macs"] / (rows["head"]["macs"] + 7 * matrices)
    assert summary.totals["low_bit_macs_share"] == pytest.approx(share)
    # What comes from it is a signal: functions of it are quantized.
    assert rows["add"]["activation_dtype"] == rows["tanh"]["activation_dtype"] == "uint8"
    assert "recurrent" in subbyte.explain(quantized, "recurrent")


def test_a_recurrent_module_cannot_be_asked_for_with_static_ranges() -> None:
    model, tokens = Recurrent(nn.LSTM), torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(ConfigError, match="LSTM"):
        subbyte.quantize(model, {"op_type_dict": {"LSTM": {"weight": {"dtype": ["int8"]}}}}, tokens)
    with pytest.raises(ModelError, match="no op that can be quantized"):
        subbyte.quantize(nn.Bilinear(3, 4, 5), "w4")


def test_a_packed_sequence_counts_its_steps() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(3, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]))
            y, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0])
            return self.head(torch.sigmoid(y))

    rows = rows_of(Net(), seeded((5, 2, 3)))
    assert rows["lstm"]["macs"] == 8 * (16 * 3 + 16 * 4) // 5  # a sample is a row of the first axis
    assert rows["sigmoid"]["activation_dtype"] == "uint8"


class Products(nn.Module):
    """Products by parameters that no module holds."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.square, self.filters = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(4, 6, 3))
        self.cube = nn.Parameter(torch.randn(5, 6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x @ self.square.T)
        y = nn.functional.linear(y, self.square)
        y = torch.baddbmm(torch.zeros(2, 7, 6), y, self.square.expand(2, 6, 6))
        z = nn.functional.conv1d(y.transpose(1, 2), weight=self.filters, padding=1)
        return torch.einsum("...td,de->...te", z, torch.ones(7, 3)) + nn.functional.bilinear(y, y, self.cube).sum()


def test_products_by_parameters_have_rows_and_multiply_accumulates() -> None:
    rows = rows_of(randomized(Products()), seeded((2, 7, 6)))
    macs = {name: row["macs"] for name, row in rows.items() if row["macs"]}
    assert macs == {
        "matmul": 7 * 36, "fc": 7 * 36, "linear": 7 * 36, "baddbmm": 7 * 36,
        "conv1d": 4 * 7 * 6 * 3, "einsum": 4 * 7 * 3, "bilinear": 7 * 5 * 36,
    }  # fmt: skip
    assert rows["fc"]["positions"] == []  # the product before it is the first, the ones after it the last
    assert rows["conv1d"]["params"] == 4 * 6 * 3
    assert all(rows[name]["kernel"] == "float" for name in macs if name != "fc")


def test_a_layer_that_runs_twice_multiplies_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                x = self.fc(x)
            return x @ x.T

    assert {name: row["macs"] for name, row in rows_of(Twice(), seeded((3, 6))).items()} == {"fc": 72, "matmul": 18}


def test_a_weight_shared_at_two_precisions_counts_at_both() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.two(self.one(x)))

    prepared = subbyte.prepare(Tied(), "w4a4", seeded((4, 8)), first_last="int8")
    packed = subbyte.convert(prepared)
    for model in (prepared, copy.deepcopy(packed), packed):
        totals = subbyte.summary(model).totals
        assert totals["params_by_bits"] == {"w8": 64 + 24, "w4": 64, "w32": 8 + 8 + 3}
        weights = (64 + 8 * 4) + (32 + 8 * 4) + (24 + 3 * 4) + 3 * 4  # codes and scales of three, their zero points
        assert totals["bytes"] - sum(x.nbytes for x in _activation_tensors(model)) == weights + (8 + 8 + 3) * 4


def _activation_tensors(model: nn.Module) -> list[Tensor]:
    return list(model.subbyte_state.buffers()) if model.subbyte_state.converted else []


def test_a_shared_weight_counts_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm, self.head = nn.Embedding(16, 6), nn.LayerNorm(6), nn.Linear(6, 16, bias=False)
            self.head.weight = self.table.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(self.table(tokens)))

    prepared = subbyte.prepare(Tied(), "w4", torch.arange(4)[None])
    for model in (prepared, subbyte.convert(prepared)):
        totals = subbyte.summary(model).totals
        assert totals["params"] == 16 * 6 + 12
        assert totals["params_by_bits"] == {"w4": 96, "w32": 12}
        assert totals["bytes"] == 48 + 16 * 4 + 4 + 12 * 4  # codes, scales, a zero point; the norm


def test_without_a_forward_no_multiply_accumulates_are_claimed() -> None:
    summary = subbyte.summary(subbyte.quantize(nn.Sequential(nn.Linear(4, 4)), "w4"))
    assert summary.rows[0]["macs"] is None
    assert "not recorded" in str(summary)


def test_a_sample_is_one_of_what_layers_read() -> None:
    class MaskFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x) + mask.sum()

    assert rows_of(MaskFirst(), torch.ones(5, 5), seeded((3, 8)))["fc"]["macs"] == 64


def test_activation_sqnr_is_of_the_largest_batch_whatever_the_order() -> None:
    model = nn.Sequential(nn.Linear(8, 8)).eval()
    large, small = seeded((64, 8)), seeded((1, 8)) * 0.01
    figures = [
        subbyte.summary(subbyte.quantize(model, "w4a4", data)).rows[0]["activation_sqnr"]
        for data in ([large, small], [small, large])
    ]
    assert figures[0] == figures[1] > 10


def test_activation_sqnr_is_known_of_a_path_that_one_batch_took() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small, self.large = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.large(x) if float(x.mean()) > 5 else self.small(x)

    x = seeded((6, 4))
    rows = subbyte.summary(subbyte.quantize(Branching(), "w4a4", [x, x[:2] + 9, x])).rows
    assert all(row["activation_sqnr"] is not None for row in rows)


def test_weight_sqnr_follows_the_weight() -> None:
    prepared = subbyte.prepare(nn.Sequential(nn.Linear(8, 8)), "w4a8", seeded((16, 8)))
    before = subbyte.summary(prepared).rows[0]["weight_sqnr"]
    with torch.no_grad():
        prepared[0].weight[0] *= 50  # far beyond its scale
    weight = prepared[0].weight.detach()
    approximation = subbyte.weights(prepared)["0"].dequantize()
    want = 10 * math.log10(float(weight.square().sum() / (weight - approximation).square().sum()))
    assert want < before - 10
    for model in (prepared, subbyte.convert(prepared)):
        assert subbyte.summary(model).rows[0]["weight_sqnr"] == pytest.approx(want, abs=1e-3)


def test_macs_are_of_one_sample_beside_an_input_that_the_batch_shares() -> None:
    class Timed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.conv = nn.Linear(1, 4), nn.Conv2d(3, 4, 3)

        def forward(self, t: Tensor, x: Tensor) -> Tensor:
            return self.conv(x) + self.embed(t.view(-1, 1))[:, :, None, None]

    x = seeded((8, 3, 6, 6))
    for t in (torch.tensor([3.0]), torch.tensor(3.0)):
        rows = subbyte.summary(subbyte.quantize(Timed(), "w8a8", [(t, x)])).rows
        assert next(row["macs"] for row in rows if row["name"] == "conv") == 4 * 27 * 16


def test_a_wrapper_is_told_to_give_its_module() -> None:
    prepared = subbyte.prepare(nn.Sequential(nn.Linear(8, 8)), "w4a8", seeded((16, 8)))
    with pytest.raises(ModelError, match=r"DataParallel is a wrapper.*\.module"):
        subbyte.summary(nn.DataParallel(prepared))


def test_names_are_text_to_the_table() -> None:
    model = nn.Sequential()
    model.add_module("[/bold]", nn.Linear(4, 4))
    assert "[/bold]" in str(subbyte.summary(subbyte.quantize(model, "w4")))


def test_a_model_in_training_has_no_sqnr_of_calibrated_inputs() -> None:
    prepared = subbyte.prepare_qat(randomized(ResidualNet(6)), "w4a4", seeded((4, 3, 8, 8)))
    for model in (prepared, subbyte.convert(prepared)):
        rows = subbyte.summary(model).rows
        assert all(row["activation_sqnr"] is None for row in rows)
        assert any(row["weight_sqnr"] is not None for row in rows)
