"""The torch functions that multiply and are not quantized, such as `linear` with a parameter: shown as float."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import isqrt, prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from subbyte.adaptor.pytorch.functional_op import Function, FunctionalOp
from subbyte.adaptor.pytorch.inputs import Slots

Count = Callable[[list[Tensor], Tensor], int]  # of the factors and the result


class FloatFunction(FunctionalOp):
    """A function of several factors that stays float.

    Args:
        op_type: its name.
        factors: the names of its parameters, in order; those that it multiplies end in `*`.
        count: its multiply-accumulates.
        has_weight: whether one factor is a weight, whatever it is made of.
    """

    needs_all = False
    forms = {}

    def __init__(self, op_type: str, factors: str, count: Count, *, has_weight: bool) -> None:
        self.op_type = op_type  # type: ignore[misc]
        self.names = [name.rstrip("*") for name in factors.split()]
        self.factors = [name.rstrip("*") for name in factors.split() if name.endswith("*")]
        self.count = count
        self.has_weight = has_weight

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        given = dict(zip(self.names, args, strict=False)) | kwargs
        return [given[name] for name in self.factors]

    def run(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], slots: Slots) -> Any:
        return function(*args, **kwargs)

    def is_weighted(self, parameters: list[bool]) -> bool:
        return self.has_weight or any(parameters)

    def macs(self, inputs: list[Tensor], output: Tensor, args: tuple[Any, ...]) -> int:
        return self.count(inputs, output)


class Einsum(FunctionalOp):
    """`einsum`, which stays float."""

    op_type = "einsum"
    needs_all = False
    forms = {}

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        flat = [x for each in args for x in (each if isinstance(each, tuple | list) else [each])]
        return [x for x in flat if isinstance(x, Tensor)]

    def run(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], slots: Slots) -> Any:
        return function(*args, **kwargs)

    def is_weighted(self, parameters: list[bool]) -> bool:
        return any(parameters)

    def macs(self, inputs: list[Tensor], output: Tensor, args: tuple[Any, ...]) -> int:
        """One for each combination of all labels; nothing where a single tensor is only rearranged."""
        if len(inputs) < 2:
            return 0
        sizes: dict[Any, int] = {}
        for labels, x in zip(_labels(args), inputs, strict=False):
            for label, size in _sizes(labels, x.shape):
                sizes[label] = max(size, sizes.get(label, 1))
        return prod(sizes.values())


class MatrixChain(FunctionalOp):
    """`linalg.multi_dot`, which stays float."""

    op_type = "multi_dot"
    needs_all = False
    forms = {}

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        given = args or (kwargs["tensors"],)
        return [x for each in given for x in (each if isinstance(each, tuple | list) else [each])]

    def run(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], slots: Slots) -> Any:
        return function(*args, **kwargs)

    def is_weighted(self, parameters: list[bool]) -> bool:
        return any(parameters)

    def macs(self, inputs: list[Tensor], output: Tensor, args: tuple[Any, ...]) -> int:
        """Those of the cheapest order, in which PyTorch multiplies."""
        first, last = inputs[0], inputs[-1]
        sizes = [1 if first.ndim == 1 else len(first), *(len(x) for x in inputs[1:])]
        return _cheapest((*sizes, 1 if last.ndim == 1 else last.shape[-1]))


class Recurrence(FunctionalOp):
    """`torch.lstm`, `gru_cell`, ..., which a subclass of a recurrent module calls by its own code: stays float."""

    needs_all = False
    forms = {}

    def __init__(self, op_type: str) -> None:
        self.op_type = op_type  # type: ignore[misc]

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The input, then all weights and biases."""
        flat = [x for each in args[1:] for x in (each if isinstance(each, tuple | list) else [each])]
        return [args[0], *(x for x in flat if isinstance(x, nn.Parameter))]

    def run(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], slots: Slots) -> Any:
        return function(*args, **kwargs)

    def is_weighted(self, parameters: list[bool]) -> bool:
        return True

    def macs(self, inputs: list[Tensor], output: Tensor, args: tuple[Any, ...]) -> int:
        """Each step multiplies by every matrix."""
        steps = inputs[0].numel() // inputs[0].shape[-1]
        return steps * sum(x.numel() for x in inputs[1:] if x.ndim == 2)


@cache
def _cheapest(sizes: tuple[int, ...]) -> int:
    """Multiply-accumulates of a chain of matrices [sizes[0], sizes[1]], [sizes[1], sizes[2]], ..."""
    splits = range(1, len(sizes) - 1)
    whole = sizes[0] * sizes[-1]
    return min((_cheapest(sizes[: at + 1]) + _cheapest(sizes[at:]) + whole * sizes[at] for at in splits), default=0)


def _labels(args: tuple[Any, ...]) -> list[list[Any]]:
    """The labels of each operand's axes, from `("ij,jk", a, b)` or `(a, [0, 1], b, [1, 2])`."""
    if not isinstance(args[0], str):
        return [list(labels) for labels in args[1::2]]
    terms = args[0].replace(" ", "").replace("...", ".").split("->")[0].split(",")
    return [[Ellipsis if label == "." else label for label in term] for term in terms]


def _sizes(labels: Sequence[Any], shape: Sequence[int]) -> Iterable[tuple[Any, int]]:
    """Each label of one operand with its size; axes under an ellipsis are numbered from the last."""
    if Ellipsis not in labels:
        return list(zip(labels, shape, strict=False))
    before = labels.index(Ellipsis)
    after = len(shape) - (len(labels) - before - 1)
    between = [((Ellipsis, index), size) for index, size in enumerate(reversed(shape[before:after]))]
    return [
        *zip(labels, shape[:before], strict=False),
        *between,
        *zip(labels[before + 1 :], shape[after:], strict=True),
    ]


def _rows(factors: list[Tensor], output: Tensor) -> int:
    """Each output sums over a row of the weight."""
    return output.numel() * factors[1].shape[-1]


def _filters(factors: list[Tensor], output: Tensor) -> int:
    """Each output sums over a filter."""
    return output.numel() * prod(factors[1].shape[1:])


def _transposed_filters(factors: list[Tensor], output: Tensor) -> int:
    """Each input is multiplied by a filter."""
    return factors[0].numel() * prod(factors[1].shape[1:])


def _bilinear(factors: list[Tensor], output: Tensor) -> int:
    return output.numel() * factors[0].shape[-1] * factors[1].shape[-1]


def _columns(factors: list[Tensor], output: Tensor) -> int:
    """Each entry of the first matrix meets a row of the second."""
    return factors[0].numel() * factors[1].shape[-1]


def _inner(factors: list[Tensor], output: Tensor) -> int:
    """Each output sums over the last axis of both."""
    return output.numel() * prod(factors[0].shape[-1:])


def _grouped(factors: list[Tensor], output: Tensor) -> int:
    """Rows in groups, each with a matrix of its own; or columns, or what is summed over, in groups."""
    return min(_columns(factors, output), _inner(factors, output))


def _contracted(factors: list[Tensor], output: Tensor) -> int:
    """[rows, sum] and [sum, columns], whatever axes these are, make [rows, columns]."""
    return isqrt(factors[0].numel() * factors[1].numel() * output.numel())


def _met(factors: list[Tensor], output: Tensor) -> int:
    """Each entry of the first meets one of the second, where both are of one shape."""
    return prod(torch.broadcast_shapes(*(x.shape for x in factors)))


def _first(factors: list[Tensor], output: Tensor) -> int:
    """Each entry of the matrix meets one of the vector."""
    return factors[0].numel()


def _taps(factors: list[Tensor], output: Tensor) -> int:
    """Each output sums over a filter [taps, inputs, outputs]."""
    return output.numel() * prod(factors[1].shape[:-1])


def _none(factors: list[Tensor], output: Tensor) -> int:
    return 0


_PRODUCTS = {
    "addmm": ("input mat1* mat2*", _columns),
    "baddbmm": ("input batch1* batch2*", _columns),
    "addbmm": ("input batch1* batch2*", _columns),
    "addmv": ("input mat* vec*", _first),
    "addr": ("input vec1* vec2*", _none),
    "outer": ("input* vec2*", _none),
    "ger": ("input* vec2*", _none),
    "kron": ("input* other*", _none),
    "inner": ("input* other*", _inner),
    "vecdot": ("x* y*", _met),
    "tensordot": ("a* b*", _contracted),
    "_grouped_mm": ("input* mat2*", _grouped),
}


def _table() -> dict[Function, FunctionalOp]:
    counts = {
        "linear": ("input* weight* bias", _rows),
        "bilinear": ("input1* input2* weight* bias", _bilinear),
        "embedding": ("input* weight*", _none),
        "embedding_bag": ("input* weight*", _none),
    }
    counts |= {f"conv{n}d": ("input* weight* bias", _filters) for n in (1, 2, 3)}
    counts |= {f"conv_transpose{n}d": ("input* weight* bias", _transposed_filters) for n in (1, 2, 3)}
    counts["conv_tbc"] = ("input* weight* bias", _taps)
    chain = MatrixChain()
    table: dict[Function, FunctionalOp] = {
        torch.einsum: Einsum(), torch.linalg.multi_dot: chain, torch.chain_matmul: chain,
    }  # fmt: skip
    for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        table |= {getattr(torch, name): Recurrence(name) for name in (kind, f"{kind}_cell")}
    for name, (factors, count) in counts.items():
        table[getattr(F, name)] = FloatFunction(name, factors, count, has_weight=True)
    for name, (factors, count) in _PRODUCTS.items():
        op = FloatFunction(name.lstrip("_"), factors, count, has_weight=False)
        for holder in (torch, Tensor, torch.linalg):
            for spelling in (name, f"{name}_"):
                if hasattr(holder, spelling):
                    table[getattr(holder, spelling)] = op
    return table


FLOAT_FUNCTIONS = _table()
