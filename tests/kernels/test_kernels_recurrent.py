"""Recurrent layers on packed weights: against PyTorch's in float64, against int64 sums, and what they refuse."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from subbyte.errors import KernelError
from subbyte.kernels import isas, use_isa
from subbyte.kernels.float_linear import FloatLinearWeight
from subbyte.kernels.linear_weight import LinearWeight
from subbyte.kernels.panels import PANEL
from subbyte.kernels.recurrent import (
    CellProducts,
    Layer,
    Product,
    dynamic_product,
    float_product,
    gru,
    gru_cell,
    lstm,
    lstm_cell,
    rnn,
    rnn_cell,
    static_product,
)

AVAILABLE = [isa.name for isa in isas() if isa.available] or [""]
SEQUENCES: dict[str, tuple[type[nn.Module], Callable[..., Any], int]] = {
    "lstm": (nn.LSTM, lstm, 2),
    "gru": (nn.GRU, gru, 1),
    "rnn": (nn.RNN, rnn, 1),
}
GROUP = 5


def randoms(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Packed:
    """The matrices of a recurrent module in codes of some bits, and the module in float64 with their values."""

    def __init__(self, module: nn.Module, bits: int, seed: int = 0) -> None:
        self.random, self.bits, self.products = randoms(seed), bits, dict[str, Product]()
        for name, matrix in list(module.named_parameters()):
            if name.startswith("weight"):
                bias = module._parameters.get(name.replace("weight", "bias"))
                self.products[name], values = self._product(matrix.shape, bias)
                matrix.data = values
        self.module = module.double()

    def _product(self, shape: Any, bias: Tensor | None) -> tuple[Product, Tensor]:
        groups = (shape[0], -(-shape[1] // GROUP))
        codes = torch.randint(0, 1 << self.bits, tuple(shape), generator=self.random, dtype=torch.uint8)
        scale = (torch.rand(groups, generator=self.random) + 0.5) / (1 << self.bits)
        zero = torch.full(groups, (1 << self.bits) / 2).int()
        laid_out = FloatLinearWeight.of(codes, scale, zero, self.bits, GROUP)
        spread = (part.double().repeat_interleave(GROUP, 1)[:, : shape[1]] for part in (scale, zero))
        wide, shift = spread
        padded = torch.empty(0) if bias is None else torch.nn.functional.pad(bias.detach(), (0, -len(bias) % PANEL))
        return float_product(laid_out, padded), (codes.double() - shift) * wide

    def layers(self, count: int, directions: int) -> list[Layer]:
        def cell(suffix: str) -> CellProducts:
            return CellProducts(*(self.products[n] for n in self._names(suffix)))

        return [[cell(f"_l{layer}{end}") for end in ("", "_reverse")[:directions]] for layer in range(count)]

    def _names(self, suffix: str) -> list[str]:
        return [name for part in ("ih", "hh", "hr") if (name := f"weight_{part}{suffix}") in self.products]


def close(got: Any, want: Any) -> None:
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


def as_tuple(state: Any) -> Any:
    return state if isinstance(state, tuple) else (state,)


@settings(deadline=None, max_examples=20)
@given(
    kind=st.sampled_from([*SEQUENCES]),
    steps=st.integers(1, 6),
    batch=st.integers(0, 5),
    inputs=st.integers(1, 20),
    hidden=st.integers(1, 20),
    count=st.integers(1, 3),
    directions=st.integers(1, 2),
    bits=st.integers(1, 8),
    bias=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_sequences_are_those_of_pytorch(
    kind: str, steps: int, batch: int, count: int, directions: int, bits: int, bias: bool, seed: int, **sizes: int
) -> None:
    inputs, hidden = sizes["inputs"], sizes["hidden"]
    made, function, states = SEQUENCES[kind]
    torch.manual_seed(seed)
    packed = Packed(made(inputs, hidden, num_layers=count, bidirectional=directions == 2, bias=bias), bits, seed)
    random = randoms(seed)
    x = torch.randn(steps, batch, inputs, generator=random)
    state = tuple(torch.randn(count * directions, batch, hidden, generator=random) for _ in range(states))
    with torch.no_grad():
        y, end = function(x, state, packed.layers(count, directions))
        assert y.shape == (steps, batch, directions * hidden)
        if batch:
            given_state = tuple(part.double() for part in state)
            want, want_end = packed.module(x.double(), given_state if states > 1 else given_state[0])
            close((y, *end), (want, *as_tuple(want_end)))


@pytest.mark.parametrize("kind", [*SEQUENCES])
def test_packed_sequences_leave_early_and_join_late(kind: str) -> None:
    made, function, states = SEQUENCES[kind]
    packed = Packed(made(6, 9, num_layers=2, bidirectional=True), 4)
    x = torch.randn(7, 5, 6, generator=randoms(1))
    sequences = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([7, 4, 4, 2, 1]))
    state = tuple(torch.randn(4, 5, 9, generator=randoms(2)) for _ in range(states))
    with torch.no_grad():
        sizes = sequences.batch_sizes.tolist()
        y, end = function(sequences.data, state, packed.layers(2, 2), batch_sizes=sizes)
        given_state = tuple(part.double() for part in state)
        want, want_end = packed.module(sequences.double(), given_state if states > 1 else given_state[0])
        close((y, *end), (want.data, *as_tuple(want_end)))


def test_a_projection_and_relu() -> None:
    packed = Packed(nn.LSTM(6, 9, proj_size=4), 4)
    x, h, c = (torch.randn(*shape, generator=randoms(3)) for shape in ((5, 3, 6), (1, 3, 4), (1, 3, 9)))
    with torch.no_grad():
        y, end = lstm(x, (h, c), packed.layers(1, 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, of its own choice of kernel
            want, want_end = packed.module(x.double(), (h.double(), c.double()))
        close((y, *end), (want, *want_end))
        relu = Packed(nn.RNN(6, 9, nonlinearity="relu"), 4)
        y, end = rnn(x, (c,), relu.layers(1, 1), relu=True)
        close((y, *end), relu.module(x.double(), c.double()))


def codes_of(bits: int, outputs: int, inputs: int, seed: int) -> dict[str, Any]:
    random = randoms(seed)
    return {
        "codes": torch.randint(0, 1 << bits, (outputs, inputs), generator=random, dtype=torch.uint8),
        "scale": torch.rand(outputs, 1, generator=random) / (1 << bits),
        "zero": torch.randint(0, 1 << bits, (outputs, 1), generator=random, dtype=torch.int32),
        "bias": torch.randn(outputs, generator=random),
        "bits": bits,
    }


def laid_out(case: dict[str, Any]) -> tuple[LinearWeight, Tensor]:
    weight = LinearWeight.of(case["codes"], case["scale"], case["zero"], case["bits"], case["codes"].shape[1])
    return weight, torch.nn.functional.pad(case["bias"], (0, -len(case["bias"]) % PANEL))


def by_int64(case: dict[str, Any], x: Tensor) -> Tensor:
    """Each row quantized to int8 by its own largest magnitude; sums exact, then one multiply and one add."""
    scale = torch.maximum(x.amax(1).clamp(min=0) / 127, -x.amin(1).clamp(max=0) / 128)
    rows = torch.round(x / scale[:, None]).clamp(-128, 127).long()
    sums = rows @ (case["codes"].long() - case["zero"].long()).T
    return sums.float() * (scale[:, None] * case["scale"][:, 0]) + case["bias"]


def lstm_of_gates(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("bits", [1, 3, 4, 8])
def test_cells_on_codes_are_exact(isa: str, bits: int) -> None:
    x, h, c = (torch.randn(3, size, generator=randoms(size)) for size in (21, 10, 10))
    matrices = {gates: [codes_of(bits, gates * 10, size, gates + size) for size in (21, 10)] for gates in (1, 3, 4)}

    def products(gates: int) -> CellProducts:
        return CellProducts(*(dynamic_product(*laid_out(m), -128, 127, symmetric=True) for m in matrices[gates]))

    if isa:
        use_isa(isa)
    try:
        got = lstm_cell(x, (h, c), products(4)), gru_cell(x, (h,), products(3)), rnn_cell(x, (h,), products(1))
    finally:
        if isa:
            use_isa("")
    of_x, of_h = ({gates: by_int64(m[side], (x, h)[side]) for gates, m in matrices.items()} for side in (0, 1))
    for one, other in zip(got[0], lstm_of_gates(of_x[4] + of_h[4], c), strict=True):
        assert torch.equal(one, other)
    (r_x, z_x, n_x), (r_h, z_h, n_h) = of_x[3].chunk(3, 1), of_h[3].chunk(3, 1)
    n = (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
    assert torch.equal(got[1][0], n + (z_x + z_h).sigmoid() * (h - n))
    assert torch.equal(got[2][0], (of_x[1] + of_h[1]).tanh())


def test_a_static_product_has_one_range() -> None:
    case, x = codes_of(4, 12, 21, 0), torch.randn(3, 21, generator=randoms(5))
    scale, zero = torch.tensor([0.05]), torch.tensor([128], dtype=torch.int32)
    rows = (torch.round(x / scale) + 128).clamp(0, 255).long() - 128
    sums = rows @ (case["codes"].long() - case["zero"].long()).T
    want = sums.float() * (scale * case["scale"][:, 0]) + case["bias"]
    assert torch.equal(static_product(*laid_out(case), scale, zero, 0, 255)(x), want)


def test_what_is_refused() -> None:
    packed = Packed(nn.LSTM(6, 9), 4)
    layers, x, state = packed.layers(1, 1), torch.randn(5, 3, 6), (torch.zeros(1, 3, 9),) * 2
    with pytest.raises(KernelError, match="with a step"):
        lstm(x[:0], state, layers)
    with pytest.raises(KernelError, match="with a step"):
        lstm(x[0], state, layers)
    with pytest.raises(KernelError, match=r"must be \[1, 3, hidden\]"):
        lstm(x, (torch.zeros(2, 3, 9),) * 2, layers)
    with pytest.raises(KernelError, match="do not fit a state"):
        lstm(x, (state[0], torch.zeros(1, 3, 1)), layers)
    for sizes in ([3, 3], [2, 3], [6, -1], []):
        with pytest.raises(KernelError, match=r"batch sizes|with a step"):
            lstm(x[:, 0], state, layers, batch_sizes=sizes)
    with pytest.raises(RuntimeError, match="columns"):
        lstm(torch.randn(5, 3, 7), state, layers)


def test_compile_and_export() -> None:
    layers = Packed(nn.LSTM(6, 9, bidirectional=True), 3).layers(1, 2)

    class Net(nn.Module):
        def forward(self, x: Tensor, h: Tensor) -> Tensor:
            return lstm(x, (h, h), layers)[0]

    x, h = torch.randn(2, 2, 6), torch.zeros(2, 2, 9)
    with torch.no_grad():
        want = Net()(x, h)
        torch.compiler.reset()
        compiled = torch.compile(Net(), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, h), want)
        exported = torch.export.export(Net(), (x, h), strict=False).module()
        torch.testing.assert_close(exported(x, h), want)
