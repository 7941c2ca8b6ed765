"""LSTM, GRU, RNN and their cells: linear maps of inputs and hidden states, and what PyTorch computes of them."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from subbyte.adaptor.pytorch.modules.handler import ModuleHandler
from subbyte.adaptor.pytorch.modules.registry import register_module
from subbyte.errors import ModelError
from subbyte.kernels.recurrent import CellProducts, Product, State, gru, gru_cell, lstm, lstm_cell, rnn, rnn_cell

MATRIX = "weight_"  # what the names of all matrices begin with


class RecurrentHandler(ModuleHandler):
    """A module of several matrices, each of which is a linear map with a quantized weight.

    Args:
        op_type: as in `LSTM`.
        states: how many tensors its state has.
        function: of `kernels.recurrent`.
    """

    role = "weighted"
    holds_weight = True
    is_product = True
    forms = {"dynamic": frozenset({"weight", "activation"}), "weight_only": frozenset({"weight"})}

    def __init__(self, op_type: str, states: int, function: Callable[..., Any]) -> None:
        self.op_type = op_type  # type: ignore[misc]  # one class serves several types
        self.states = states
        self.function = function

    def check(self, module: Any, name: str) -> None:
        for matrix in self.matrix_names(module):
            if module._parameters.get(matrix) is None:
                raise ModelError(f"op {name!r}: {matrix} is no Parameter; assign it as a torch.nn.Parameter first")

    def weights(self, module: Any) -> list[Any]:
        return [x for x in self._matrices(module) if isinstance(x, nn.Parameter) or not isinstance(x, Tensor)]

    def _matrices(self, module: Any) -> list[Any]:
        """Of a float or prepared module, or of a converted one, whose linear maps hold them."""
        maps = {name: module._modules.get(name.removeprefix(MATRIX)) for name in self.matrix_names(module)}
        return [getattr(module, name) if one is None else one.weight for name, one in maps.items()]

    @abstractmethod
    def matrix_names(self, module: Any) -> list[str]:
        """The names of the parameters that are matrices."""

    @abstractmethod
    def run(self, module: Any, products: Mapping[str, Product], x: Any, state: Any = None) -> Any:
        """What the float module computes, by these products; they are named as matrices, less `weight_`."""

    def macs(self, module: Any, inputs: tuple[Any, ...], output: Any) -> int:
        x = inputs[0].data if isinstance(inputs[0], PackedSequence) else inputs[0]
        steps = x.numel() // module.input_size
        return int(steps * sum(matrix.shape[0] * matrix.shape[1] for matrix in self._matrices(module)))

    def as_state(self, given: Any) -> State:
        """A state as the kernels take it."""
        return tuple(given) if self.states > 1 else (given,)

    def as_given(self, state: State) -> Any:
        """A state as the float module gives it."""
        return state if self.states > 1 else state[0]

    def _function_of(self, module: Any) -> Callable[..., Any]:
        is_relu = getattr(module, "nonlinearity", "tanh") == "relu"
        return partial(self.function, relu=True) if is_relu else self.function


class CellHandler(RecurrentHandler):
    """`LSTMCell`, `GRUCell`, `RNNCell`: one step."""

    def matrix_names(self, module: Any) -> list[str]:
        return ["weight_ih", "weight_hh"]

    def run(self, module: Any, products: Mapping[str, Product], x: Any, state: Any = None) -> Any:
        if x.ndim not in (1, 2) or x.shape[-1] != module.input_size:
            raise RuntimeError(f"{self.op_type}: input must have {module.input_size} features, not {list(x.shape)}")
        rows = x if x.ndim == 2 else x[None]
        if state is None:
            start = (x.new_zeros(len(rows), module.hidden_size),) * self.states
        else:
            start = tuple(part if x.ndim == 2 else part[None] for part in self.as_state(state))
        for part in start:
            if part.shape != (len(rows), module.hidden_size):
                raise RuntimeError(f"{self.op_type}: a state of {list(part.shape)} does not fit the input")
        end = self._function_of(module)(rows, start, CellProducts(products["ih"], products["hh"]))
        return self.as_given(end if x.ndim == 2 else tuple(part[0] for part in end))


class SequenceHandler(RecurrentHandler):
    """`LSTM`, `GRU`, `RNN` over all steps, of padded and of packed sequences."""

    def matrix_names(self, module: Any) -> list[str]:
        return [name for name in module._flat_weights_names if name.startswith(MATRIX)]

    def run(self, module: Any, products: Mapping[str, Product], x: Any, state: Any = None) -> Any:
        if isinstance(x, PackedSequence):
            return self._run_packed(module, products, x, state)
        if x.ndim not in (2, 3):
            raise ValueError(f"{self.op_type}: Expected input to be 2D or 3D, got {x.ndim}D instead")
        is_batched, batch_axis = x.ndim == 3, 0 if module.batch_first else 1
        if not is_batched:
            x = x.unsqueeze(batch_axis)
            state = None if state is None else self.as_given(tuple(part.unsqueeze(1) for part in self.as_state(state)))
        start = self._start(module, x, None, state)
        steps = x.transpose(0, 1) if module.batch_first else x
        y, end = self._over_steps(module, products, steps, start, None)
        y = y.transpose(0, 1) if module.batch_first else y
        if not is_batched:
            y, end = y.squeeze(batch_axis), tuple(part.squeeze(1) for part in end)
        return y, self.as_given(end)

    def _run_packed(self, module: Any, products: Mapping[str, Product], x: PackedSequence, state: Any) -> Any:
        if state is not None and x.sorted_indices is not None:
            state = self.as_given(tuple(part[:, x.sorted_indices] for part in self.as_state(state)))
        start = self._start(module, x.data, x.batch_sizes, state)
        y, end = self._over_steps(module, products, x.data, start, x.batch_sizes.tolist())
        if x.unsorted_indices is not None:
            end = tuple(part[:, x.unsorted_indices] for part in end)
        return PackedSequence(y, x.batch_sizes, x.sorted_indices, x.unsorted_indices), self.as_given(end)

    def _over_steps(
        self, module: Any, products: Mapping[str, Product], x: Tensor, start: State, batch_sizes: list[int] | None
    ) -> tuple[Tensor, State]:
        layers = [list(_directions(module, products, layer)) for layer in range(module.num_layers)]
        dropout = module.dropout if module.training else 0.0
        result: tuple[Tensor, State] = self._function_of(module)(
            x, start, layers, batch_sizes=batch_sizes, dropout=dropout
        )
        return result

    def _start(self, module: Any, x: Tensor, batch_sizes: Tensor | None, state: Any) -> State:
        """The state given, if it fits, or zeros."""
        if x.shape[-1] != module.input_size:
            raise RuntimeError(f"{self.op_type}: input must have {module.input_size} features, not {list(x.shape)}")
        shapes = [module.get_expected_hidden_size(x, batch_sizes)]
        if self.states > 1:
            shapes.append(module.get_expected_cell_size(x, batch_sizes))
        if state is None:
            return tuple(x.new_zeros([int(size) for size in shape]) for shape in shapes)
        start = self.as_state(state)
        for part, shape in zip(start, shapes, strict=True):
            module.check_hidden_size(part, shape)
        return start


def _directions(module: Any, products: Mapping[str, Product], layer: int) -> Iterator[CellProducts]:
    for suffix in ("", "_reverse") if module.bidirectional else ("",):
        names = (f"{matrix}_l{layer}{suffix}" for matrix in ("ih", "hh", "hr"))
        yield CellProducts(*(products[name] for name in names if name in products))


register_module(nn.LSTM, SequenceHandler("LSTM", 2, lstm))
register_module(nn.GRU, SequenceHandler("GRU", 1, gru))
register_module(nn.RNN, SequenceHandler("RNN", 1, rnn))
register_module(nn.LSTMCell, CellHandler("LSTMCell", 2, lstm_cell))
register_module(nn.GRUCell, CellHandler("GRUCell", 1, gru_cell))
register_module(nn.RNNCell, CellHandler("RNNCell", 1, rnn_cell))
