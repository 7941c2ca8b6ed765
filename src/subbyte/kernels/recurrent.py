"""LSTM, GRU and RNN, whose products run on packed weights.

What is computed is PyTorch's, gates in its order (`torch.nn.LSTM`, `GRU`, `RNN`); the products are given as functions,
as `float_product`, `dynamic_product` and `static_product` make them. The product of the inputs is one for all steps.

Shapes: x is [steps, batch, inputs], or [rows, inputs] of sequences packed by step, with `batch_sizes`, as
`torch.nn.utils.rnn.PackedSequence` holds them. A state is a tuple of h, and of an LSTM c: of a cell [batch, hidden], of
a sequence [layers * directions, batch, hidden]. The result of a sequence is of x's form.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.float_linear import FloatLinearWeight, linear_float
from subbyte.kernels.linear import linear_codes
from subbyte.kernels.linear_weight import LinearWeight
from subbyte.kernels.ranges import affine_params

Product = Callable[[Tensor], Tensor]
State = tuple[Tensor, ...]


@dataclass(frozen=True)
class CellProducts:
    """The products of one cell, each from rows [rows, inputs] to [rows, outputs], with the bias.

    Args:
        input: of x: all gates of the cell, one after the other.
        hidden: of h, likewise.
        projection: of an LSTM's h, to what becomes h (`proj_size`); or None.
    """

    input: Product
    hidden: Product
    projection: Product | None = None


Layer = Sequence[CellProducts]  # one, or that of the forward and that of the backward direction
Step = Callable[[Tensor, State, CellProducts], State]


def float_product(weight: FloatLinearWeight, bias: Tensor) -> Product:
    """The product of floats with a packed weight; arguments as for `linear_float`."""
    return lambda x: linear_float(x, weight, bias)


def dynamic_product(weight: LinearWeight, bias: Tensor, low: int, high: int, *, symmetric: bool) -> Product:
    """The product of rows with a packed weight, each row quantized by its own range.

    Args:
        weight, bias: as for `linear_codes`.
        low, high: the codes of x.
        symmetric: as for `affine_params`.
    """

    def product(x: Tensor) -> Tensor:
        scale, zero_point = affine_params(x, low, high, symmetric=symmetric, by_row=True)
        return linear_codes(x, weight, bias, scale.reshape(-1), zero_point.reshape(-1), low, high)

    return product


def static_product(
    weight: LinearWeight, bias: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int
) -> Product:
    """The product of rows with a packed weight, all quantized alike; arguments as for `linear_codes`."""
    return lambda x: linear_codes(x, weight, bias, scale, zero_point, low, high)


def lstm_cell(x: Tensor, state: State, products: CellProducts) -> State:
    """One step: `c' = sigmoid(f) c + sigmoid(i) tanh(g)`, `h' = sigmoid(o) tanh(c')`; x is [batch, inputs]."""
    return _lstm_step(products.input(x), state, products)


def gru_cell(x: Tensor, state: State, products: CellProducts) -> State:
    """One step: `n = tanh(n_x + sigmoid(r) n_h)`, `h' = n + sigmoid(z) (h - n)`; x is [batch, inputs]."""
    return _gru_step(products.input(x), state, products)


def rnn_cell(x: Tensor, state: State, products: CellProducts, *, relu: bool = False) -> State:
    """One step: `h' = tanh(g_x + g_h)`, or relu in place of tanh; x is [batch, inputs]."""
    return (_rnn_relu_step if relu else _rnn_step)(products.input(x), state, products)


def lstm(
    x: Tensor,
    state: State,
    layers: Sequence[Layer],
    *,
    batch_sizes: Sequence[int] | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, State]:
    """Layers of `lstm_cell` over all steps.

    Args:
        x, state: see above; h and c.
        layers: the products of each.
        batch_sizes: of packed sequences, how many are at each step, in descending order; else None.
        dropout: the probability by which values between layers are dropped.

    Returns:
        h of the last layer at each step, and the state after the last.

    Raises:
        KernelError: no steps; batch sizes or a state that do not fit.
        RuntimeError: a product refuses its input.
    """
    return _over_layers(_lstm_step, x, state, layers, batch_sizes, dropout)


def gru(
    x: Tensor,
    state: State,
    layers: Sequence[Layer],
    *,
    batch_sizes: Sequence[int] | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, State]:
    """Layers of `gru_cell` over all steps; as `lstm`, with a state of h alone."""
    return _over_layers(_gru_step, x, state, layers, batch_sizes, dropout)


def rnn(
    x: Tensor,
    state: State,
    layers: Sequence[Layer],
    *,
    batch_sizes: Sequence[int] | None = None,
    dropout: float = 0.0,
    relu: bool = False,
) -> tuple[Tensor, State]:
    """Layers of `rnn_cell` over all steps; as `lstm`, with a state of h alone."""
    return _over_layers(_rnn_relu_step if relu else _rnn_step, x, state, layers, batch_sizes, dropout)


def _lstm_step(gates: Tensor, state: State, products: CellProducts) -> State:
    h, c = state
    if gates.shape != (len(c), 4 * c.shape[1]):
        raise KernelError(f"lstm: {gates.shape[1]} gates do not fit a state of {list(c.shape)}")
    i, f, g, o = (gates + products.hidden(h)).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (h if products.projection is None else products.projection(h)), c


def _gru_step(gates: Tensor, state: State, products: CellProducts) -> State:
    (h,) = state
    (r_x, z_x, n_x), (r_h, z_h, n_h) = gates.chunk(3, 1), products.hidden(h).chunk(3, 1)
    n = torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)
    return (n + torch.sigmoid(z_x + z_h) * (h - n),)


def _rnn_step(gates: Tensor, state: State, products: CellProducts) -> State:
    return (torch.tanh(gates + products.hidden(state[0])),)


def _rnn_relu_step(gates: Tensor, state: State, products: CellProducts) -> State:
    return (torch.relu(gates + products.hidden(state[0])),)


def _over_layers(
    step: Step, x: Tensor, state: State, layers: Sequence[Layer], batch_sizes: Sequence[int] | None, dropout: float
) -> tuple[Tensor, State]:
    sizes = [x.shape[1]] * x.shape[0] if batch_sizes is None and x.ndim == 3 else list(batch_sizes or ())
    rows = x.flatten(0, 1) if batch_sizes is None and x.ndim == 3 else x
    _check(rows, sizes, state, sum(map(len, layers)))
    starts = list(zip(*(part.unbind() for part in state), strict=True))
    ends: list[State] = []
    for layer in layers:
        if ends and dropout:
            rows = torch.nn.functional.dropout(rows, dropout)
        outputs = []
        for products, is_backward in zip(layer, (False, True), strict=False):
            output, end = _over_steps(step, rows, sizes, starts[len(ends)], products, is_backward=is_backward)
            outputs.append(output)
            ends.append(end)
        rows = torch.cat(outputs, 1)
    final = tuple(torch.stack(part) for part in zip(*ends, strict=True))
    return rows if batch_sizes is not None else rows.unflatten(0, x.shape[:2]), final


def _check(rows: Tensor, sizes: Sequence[int], state: State, cells: int) -> None:
    if rows.ndim != 2 or not sizes:
        raise KernelError("x must be [steps, batch, inputs] with a step, or packed rows with batch sizes")
    if sum(sizes) != len(rows) or min(sizes) < 0 or any(size < later for size, later in pairwise(sizes)):
        raise KernelError(f"{len(rows)} packed rows do not fit their batch sizes, which descend")
    for part in state:
        if part.ndim != 3 or part.shape[:2] != (cells, sizes[0]):
            raise KernelError(f"a state must be [{cells}, {sizes[0]}, hidden], not {list(part.shape)}")


def _over_steps(
    step: Step, rows: Tensor, sizes: Sequence[int], start: State, products: CellProducts, *, is_backward: bool
) -> tuple[Tensor, State]:
    """One direction of one layer. Of packed sequences the short ones leave early, or backwards join late."""
    steps = list(products.input(rows).split(list(sizes)))
    order = range(len(steps))
    finished: list[State] = []
    state = tuple(part[: sizes[-1 if is_backward else 0]] for part in start)
    outputs = list(steps)
    for index in reversed(order) if is_backward else order:
        before, now = len(state[0]), sizes[index]
        if now < before:
            finished.append(tuple(part[now:] for part in state))
            state = tuple(part[:now] for part in state)
        elif now > before:
            joining = (part[before:now] for part in start)
            state = tuple(torch.cat(pair) for pair in zip(state, joining, strict=True))
        state = step(steps[index], state, products)
        outputs[index] = state[0]
    if finished:
        state = tuple(torch.cat(parts) for parts in zip(state, *reversed(finished), strict=True))
    return torch.cat(outputs), state
