"""LSTM, GRU, RNN and their cells, quantized: weight-only and with dynamic ranges, in every form and on kernels."""

import copy
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import randomized, seeded
from subbyte import ConfigError, ModelError
from subbyte.kernels import isas, use_isa

X = seeded((6, 4, 12))
INTEGER = ["w4a8:dynamic", "w3a4:dynamic", "wuint2a8:dynamic:g5", "w1a8:dynamic"]
FLOAT = ["w4", "w8:g3", "wnf4"]
AVAILABLE = [isa.name for isa in isas() if isa.available]


@pytest.fixture(autouse=True)
def no_warning_of_one_dnn() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="LSTM with projections is not supported with oneDNN")
        yield


class Sequence(nn.Module):
    """A recurrent module and a head."""

    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.r = kind(12, 10, **options)
        width = (options.get("proj_size") or 10) * (2 if options.get("bidirectional") else 1)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.r(x)[0])


class Cells(nn.Module):
    """A loop over a cell."""

    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.r, self.head = kind(12, 10, **options), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for row in x:
            state = self.r(row, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


def networks() -> dict[str, nn.Module]:
    made: dict[str, nn.Module] = {
        "lstm": Sequence(nn.LSTM, num_layers=2, bidirectional=True),
        "projected": Sequence(nn.LSTM, proj_size=4),
        "gru": Sequence(nn.GRU, bidirectional=True, batch_first=True),
        "rnn": Sequence(nn.RNN, nonlinearity="relu", bias=False),
        "lstm_cell": Cells(nn.LSTMCell),
        "gru_cell": Cells(nn.GRUCell, bias=False),
        "rnn_cell": Cells(nn.RNNCell),
    }
    return {name: randomized(model).eval() for name, model in made.items()}


def rows_of(model: nn.Module) -> dict[str, Any]:
    return {row["name"]: row for row in subbyte.summary(model).rows}


@pytest.mark.parametrize("network", networks().items(), ids=lambda pair: pair[0])
@pytest.mark.parametrize("config", [*INTEGER, *FLOAT])
def test_prepared_converted_loaded_and_on_kernels(network: tuple[str, nn.Module], config: str, tmp_path: Path) -> None:
    _, model = network
    with torch.no_grad():
        prepared = subbyte.prepare(model, config)
        want = prepared(X)
        converted = subbyte.convert(prepared)
        for other in (converted, subbyte.quantize(model, config), subbyte.quantize(model, config, X)):
            assert torch.equal(other(X), want)
        assert not [name for name in dict(converted.r.named_parameters()) if name.startswith("weight")]
        assert torch.equal(copy.deepcopy(converted)(X), want)
        assert torch.equal(pickle.loads(pickle.dumps(converted))(X), want)
        subbyte.save(converted, tmp_path / "model.safetensors")
        assert torch.equal(subbyte.load(tmp_path / "model.safetensors", model)(X), want)
        for isa in AVAILABLE:
            use_isa(isa)
            try:
                kernels = subbyte.use_kernels(copy.deepcopy(converted))
                got = kernels(X)
                assert rows_of(kernels)["r"]["kernel"].startswith(isa)
            finally:
                use_isa("")
            if config in INTEGER:
                assert torch.equal(got, want)
            else:
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
            assert "on packed codes" in rows_of(kernels)["r"]["kernel"]


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn", "projected", "lstm_cell", "gru_cell", "rnn_cell"])
def test_weight_only_is_the_float_module_of_the_quantized_weights(name: str) -> None:
    model = networks()[name]
    converted = subbyte.quantize(model, {"op_name_dict": {"r": "w3:g5", "head": "fp32"}})
    floats, weights = copy.deepcopy(model), subbyte.weights(converted)
    for part, tensor in weights.items():
        matrix = getattr(floats.r, f"weight_{part.removeprefix('r.')}")
        assert not torch.equal(matrix, tensor.dequantize())
        matrix.data = tensor.dequantize()
    with torch.no_grad():
        torch.testing.assert_close(converted(X), floats(X))
        nobody = X[:0] if name == "gru" else X[:, :0]
        torch.testing.assert_close(converted(nobody), floats(nobody))


def test_a_dynamic_cell_computes_integers_first() -> None:
    cell = randomized(nn.GRUCell(12, 10))
    converted = subbyte.quantize(cell, "wint4aint8:dynamic")
    x, h = X[0], seeded((4, 10))
    products = []
    for rows, side in ((x, "ih"), (h, "hh")):
        weight = subbyte.weights(converted)[side]
        scale = torch.maximum(rows.amax(1).clamp(min=0) / 127, -rows.amin(1).clamp(max=0) / 128)[:, None]
        sums = torch.round(rows / scale).clamp(-128, 127).long() @ weight.codes.long().T
        products.append(sums.float() * (scale * weight.scale.reshape(-1)) + getattr(cell, f"bias_{side}"))
    (r_x, z_x, n_x), (r_h, z_h, n_h) = (part.chunk(3, 1) for part in products)
    n = (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
    with torch.no_grad():
        assert torch.equal(converted(x, h), n + (z_x + z_h).sigmoid() * (h - n))


class TestWhatItTakesAndGives:
    @pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
    @pytest.mark.parametrize("batch_first", [False, True])
    def test_states_and_packed_sequences(self, kind: type[nn.Module], batch_first: bool) -> None:
        model = randomized(kind(12, 10, num_layers=2, bidirectional=True, batch_first=batch_first))
        converted, floats = self._pair(model)
        lengths = torch.tensor([3, 6, 1, 4])
        packed = nn.utils.rnn.pack_padded_sequence(X, lengths, enforce_sorted=False)
        part = seeded((4, 4, 10))
        state = (part, -part) if kind is nn.LSTM else part
        x = X.transpose(0, 1) if batch_first else X
        with torch.no_grad():
            for given in (None, state):
                torch.testing.assert_close(converted(x, given), floats(x, given))
                (y, end), (want, want_end) = converted(packed, given), floats(packed, given)
                torch.testing.assert_close(y.data, want.data)
                torch.testing.assert_close(end, want_end)
                assert torch.equal(y.unsorted_indices, want.unsorted_indices)
            one = tuple(each[:, 0] for each in state) if kind is nn.LSTM else part[:, 0]
            for given in (None, one):
                torch.testing.assert_close(converted(X[:, 0], given), floats(X[:, 0], given))

    @pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
    def test_cells_of_one_row(self, kind: type[nn.Module]) -> None:
        converted, floats = self._pair(randomized(kind(12, 10)))
        h = seeded((10,))
        with torch.no_grad():
            for state in (None, (h, -h) if kind is nn.LSTMCell else h):
                torch.testing.assert_close(converted(X[0, 0], state), floats(X[0, 0], state))

    @staticmethod
    def _pair(model: nn.Module) -> tuple[nn.Module, nn.Module]:
        converted, floats = subbyte.quantize(model, "w4"), copy.deepcopy(model).eval()
        for name, tensor in subbyte.weights(converted).items():
            getattr(floats, f"weight_{name}").data = tensor.dequantize()
        return converted, floats

    def test_what_does_not_fit_is_refused(self) -> None:
        lstm, cell = subbyte.quantize(nn.LSTM(12, 10), "w4"), subbyte.quantize(nn.LSTMCell(12, 10), "w4")
        for call in (
            lambda: lstm(X[..., :5]),
            lambda: lstm(X[0, 0]),
            lambda: lstm(X[:0]),
            lambda: lstm(X, (torch.zeros(1, 4, 10), torch.zeros(1, 4, 1))),
            lambda: cell(X[0, :, :5]),
            lambda: cell(X),
            lambda: cell(X[0], (torch.zeros(4, 10), torch.zeros(1, 10))),
        ):
            with pytest.raises((RuntimeError, ValueError)):
                call()


def test_a_prepared_model_keeps_its_parameters_and_trains() -> None:
    model = networks()["lstm"]
    prepared = subbyte.prepare(model, "w2a8:dynamic")
    state = copy.deepcopy(prepared.state_dict())
    assert model.state_dict().keys() <= state.keys()
    assert {*dict(prepared.named_parameters())} == {*dict(model.named_parameters())}
    before = prepared(X).detach()
    prepared.train()
    optimizer = torch.optim.SGD(prepared.parameters(), 0.5)
    losses = []
    for _ in range(8):
        loss = (prepared(X) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2
    assert all(parameter.grad is not None for parameter in prepared.parameters())
    prepared.eval()
    with torch.no_grad():
        assert not torch.equal(prepared(X), before)
        assert torch.equal(subbyte.convert(prepared)(X), prepared(X))
        for assign in (False, True):
            prepared.load_state_dict({name: value.clone() for name, value in state.items()}, assign=assign)
            assert torch.equal(prepared(X), before)
        prepared.r.bias_hh_l0.add_(1)
        assert not torch.equal(prepared(X), before)


def test_dropout_between_layers() -> None:
    prepared = subbyte.prepare(randomized(nn.LSTM(12, 10, num_layers=2, dropout=0.9)).eval(), "w4a8:dynamic")
    with torch.no_grad():
        assert torch.equal(prepared(X)[0], prepared(X)[0])
        prepared.train()
        assert not torch.equal(prepared(X)[0], prepared(X)[0])


def test_half_precision_keeps_the_codes() -> None:
    model = networks()["gru"]
    prepared = subbyte.prepare(model, "w4a8:dynamic")
    with torch.no_grad():
        converted = subbyte.convert(prepared).bfloat16()
        y = prepared.bfloat16()(X.bfloat16())
        assert y.dtype == torch.bfloat16
        assert torch.equal(converted(X.bfloat16()), y)
        assert torch.equal(subbyte.use_kernels(converted)(X.bfloat16()), y)


def test_the_summary_counts_every_matrix() -> None:
    model = networks()["lstm"]
    converted = subbyte.quantize(model, "w4a8:dynamic", X)
    row = rows_of(converted)["r"]
    matrices = sum(p.numel() for p in model.r.parameters() if p.ndim == 2)
    biases = sum(p.numel() for p in model.r.parameters() if p.ndim == 1)
    assert (row["weight_dtype"], row["activation_dtype"], row["params"]) == ("int4", "uint8", matrices + biases)
    scales = 8 * (40 * 4 + 4)
    assert row["bytes"] == matrices // 2 + 4 * biases + scales
    assert row["kernel"] == "reference: integers first in fp32"
    assert row["weight_sqnr"] > 10
    assert row["activation_sqnr"] > 30
    assert rows_of(subbyte.prepare(model, "w4a8:dynamic", X))["r"]["bytes"] == row["bytes"]
    assert "r" in subbyte.explain(converted, "r")


class TestRefusals:
    def test_static_ranges(self) -> None:
        assert rows_of(subbyte.quantize(networks()["gru"], "w4a8", X))["r"]["weight_dtype"] == "fp32"
        with pytest.raises(ConfigError, match="lists no GRU in static mode"):
            subbyte.quantize(networks()["gru"], {"op_type_dict": {"GRU": "w4a8"}}, X)
        with pytest.raises(ConfigError, match="dynamic, weight_only"):
            subbyte.quantize(nn.LSTM(12, 10), "w4a8", X)

    def test_a_weight_that_code_reads(self) -> None:
        class Net(Sequence):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) + self.r.weight_hh_l0.norm()

        with pytest.raises(ModelError, match=r"'r'.*reads a weight"):
            subbyte.quantize(Net(nn.LSTM), "w4", X)
        assert rows_of(subbyte.quantize(Net(nn.LSTM), "w4a8", X))["r"]["weight_dtype"] == "fp32"

    def test_a_weight_that_is_no_parameter(self) -> None:
        cell = nn.GRUCell(12, 10)
        weight = cell.weight_hh.detach()
        del cell.weight_hh
        cell.weight_hh = weight
        with pytest.raises(ModelError, match="weight_hh is no Parameter"):
            subbyte.quantize(cell, "w4")


def test_a_model_that_stays_float_in_part_keeps_its_own_weights() -> None:
    model = nn.Sequential(nn.Linear(12, 12), nn.LSTM(12, 10))
    want = model(X)[0]
    converted = subbyte.quantize(model, "w8a8", X)
    with torch.no_grad():
        assert converted[1].weight_ih_l0 is converted[1]._flat_weights[0]
        model[1].weight_ih_l0.zero_()
        torch.testing.assert_close(converted(X)[0], want, atol=0.05, rtol=0)


@pytest.mark.parametrize("config", ["w4a8:dynamic", "w4"])
def test_compile_and_export(config: str) -> None:
    kernels = subbyte.use_kernels(subbyte.quantize(networks()["projected"], config))
    x = X[:1]
    # Else PyTorch compiles around every LSTM, GRU and RNN.
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        want = kernels(x)
        torch.compiler.reset()
        torch.testing.assert_close(torch.compile(kernels, fullgraph=True, backend="eager")(x), want)
        exported = torch.export.export(kernels, (x,), strict=False).module()
        torch.testing.assert_close(exported(x), want)


def test_a_module_that_gets_another_configuration_is_attached_anew() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.early, self.r, self.head = nn.Linear(12, 12), nn.GRU(12, 10), nn.Linear(10, 3)

        def forward(self, x: Tensor, late: bool) -> Tensor:
            return self.head(self.r(x)[0]) if late else self.early(x)

    model = randomized(Net())
    data = [(X, False), (X, True)]
    prepared = subbyte.prepare(model, {"approach": "auto", "precision": "w4a8"}, data, first_last="int8")
    assert rows_of(prepared)["r"]["weight_dtype"] == "int8"
    with torch.no_grad():
        assert torch.equal(subbyte.convert(prepared)(X, True), prepared(X, True))
