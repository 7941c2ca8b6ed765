"""The torch functions that are ops of their own: which, what of them is quantized, how they compute."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from subbyte.adaptor.pytorch.float_functions import FLOAT_FUNCTIONS
from subbyte.adaptor.pytorch.functional_op import Function, FunctionalOp, writes
from subbyte.adaptor.pytorch.inputs import Slots, quantized, quantized_scores, quantized_sum, snapped
from subbyte.adaptor.pytorch.quantizer import InputQuantizer
from subbyte.capability import register_op_type
from subbyte.numerics import accumulator, rescale, wants_gradient, with_gradient_way, without_autocast


class Elementwise(FunctionalOp):
    """Two tensors met element by element: `add`, `mul`."""

    def __init__(self, op_type: str) -> None:
        self.op_type = op_type  # type: ignore[misc]

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        operands = (
            args[:2] if not kwargs else [*args[:2], *(kwargs[key] for key in ("input", "other") if key in kwargs)]
        )
        tensors = [x for x in operands if isinstance(x, Tensor) and x.is_floating_point() and x.ndim > 0]
        return tensors if len(tensors) == 2 else []

    def run(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], slots: Slots) -> Any:
        first, second = self.inputs(args, kwargs)
        rest = {key: value for key, value in kwargs.items() if key not in ("input", "other", "out")}
        if first.requires_grad and self.op_type == "add" and function not in IN_PLACE and not (rest or args[2:]):
            return quantized_sum(first, second, slots)
        # What is written below must not be what a gradient is computed from.
        kept = function in IN_PLACE and first.requires_grad and torch.is_grad_enabled()
        a, b = quantized(first.clone() if kept else first, slots[0]), quantized(second, slots[1])
        if function not in IN_PLACE:
            # Into the quantized first operand, which nothing else reads: fresh memory is dear.
            owned = a is not first and a.shape == b.shape and a.dtype == b.dtype and not (rest or args[2:])
            if owned and not (a.requires_grad or b.requires_grad):
                return a.add_(b) if self.op_type == "add" else a.mul_(b)
            return function(a, b, *args[2:], **rest)
        if a is not first:
            first.copy_(a)
        return function(first, b, *args[2:], **rest)


class Concatenation(FunctionalOp):
    """`cat`, `stack`, ...: inputs share one quantizer, so codes are joined as they are."""

    op_type = "cat"
    shares_params = True
    needs_all = False

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        tensors = list(args[0] if args else kwargs["tensors"])
        return tensors if all(x.is_floating_point() for x in tensors) else []

    def run(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], slots: Slots) -> Any:
        tensors = [quantized(x, slots[0]) for x in self.inputs(args, kwargs)]
        rest = {key: value for key, value in kwargs.items() if key != "tensors"}
        return function(tensors, *args[1:], **rest)


class MatrixProduct(FunctionalOp):
    """`matmul`, `bmm`, `mv`, ... of two activations: integers first. Integers and complex numbers stay as they are."""

    op_type = "matmul"
    role = "matmul"

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        names = ("input", "other", "mat2", "vec", "tensor")
        tensors = [*args[:2], *(kwargs[key] for key in names if key in kwargs)]
        return tensors if all(x.is_floating_point() for x in tensors) else []

    def run(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], slots: Slots) -> Any:
        a, b = self.inputs(args, kwargs)
        return product(a, b, slots[0], slots[1])

    def is_weighted(self, parameters: list[bool]) -> bool:
        return any(parameters)

    def macs(self, inputs: list[Tensor], output: Tensor, args: tuple[Any, ...]) -> int:
        return int(output.numel() * inputs[0].shape[-1])


class Attention(FunctionalOp):
    """`scaled_dot_product_attention`: two matrix products around a softmax; slots q, k, probabilities, v."""

    op_type = "scaled_dot_product_attention"
    role = "matmul"
    names = ("query", "key", "value")

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        return [*args[:3], *(kwargs[name] for name in self.names[len(args) :] if name in kwargs)]

    def slot_count(self, inputs: list[Tensor]) -> int:
        return 4

    def run(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], slots: Slots) -> Any:
        query, key, value = self.inputs(args, kwargs)
        rest = dict(zip(("attn_mask", "dropout_p", "is_causal"), args[3:], strict=False)) | kwargs
        given = rest.get("scale")
        scale = 1.0 / math.sqrt(query.shape[-1]) if given is None else given
        if rest.get("enable_gqa"):
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        scores = product(query, key.transpose(-2, -1), slots[0], slots[1]) * scale
        scores = self._masked(scores, rest.get("attn_mask"), bool(rest.get("is_causal")))
        # A row that may look at nothing gives zeros, as PyTorch's own attention does.
        probabilities = torch.softmax(scores, -1).masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
        if rest.get("dropout_p"):
            probabilities = F.dropout(probabilities, rest["dropout_p"])
        return product(probabilities, value, slots[2], slots[3])

    def _masked(self, scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        if causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if mask is None:
            return scores
        return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask

    def macs(self, inputs: list[Tensor], output: Tensor, args: tuple[Any, ...]) -> int:
        query, key, _ = inputs
        return int(query.numel() * key.shape[-2] + output.numel() * key.shape[-2])


class Activation(FunctionalOp):
    """A function of one tensor, computed in float on the quantized input."""

    def __init__(self, op_type: str) -> None:
        self.op_type = op_type  # type: ignore[misc]

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        x = args[0] if args else kwargs["input"]
        return [x] if x.is_floating_point() else []

    def run(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], slots: Slots) -> Any:
        (x,) = self.inputs(args, kwargs)
        rest = {key: value for key, value in kwargs.items() if key != "input"}
        in_place = function in IN_PLACE or rest.get("inplace")
        value = self.quantized(x, slots[0])
        if in_place and value is not x:
            value = x.copy_(value)
        return function(value, *args[1:], **rest)

    def quantized(self, x: Tensor, quantizer: InputQuantizer | None) -> Tensor:
        """The value that the function is computed of."""
        return quantized(x, quantizer)


class Softmax(Activation):
    """`softmax`, whose scores may be masked."""

    def quantized(self, x: Tensor, quantizer: InputQuantizer | None) -> Tensor:
        return quantized_scores(x, quantizer)


def product(a: Tensor, b: Tensor, a_quantizer: InputQuantizer | None, b_quantizer: InputQuantizer | None) -> Tensor:
    """`a @ b` of quantized inputs: an exact sum, then one multiply."""
    if a_quantizer is None or b_quantizer is None or not a_quantizer.run.quantizes or a_quantizer.training:
        return quantized(a, a_quantizer) @ quantized(b, b_quantizer)
    if not (wants_gradient(a) or wants_gradient(b)):
        return _exact_product(a, b, a_quantizer, b_quantizer)
    with torch.no_grad():
        value = _exact_product(a, b, a_quantizer, b_quantizer)
    return with_gradient_way(value, quantized(a, a_quantizer) @ quantized(b, b_quantizer))


def _exact_product(a: Tensor, b: Tensor, a_quantizer: InputQuantizer, b_quantizer: InputQuantizer) -> Tensor:
    a_grid, a_scale = snapped(a, a_quantizer)
    b_grid, b_scale = snapped(b, b_quantizer)
    assert a_scale is not None
    assert b_scale is not None
    if b_scale.ndim:  # a scale for each token of b runs along the sum
        return (a_grid * a_scale @ (b_grid * b_scale)).to(a.dtype)
    bound = a.shape[-1] * a_quantizer.max_grid * b_quantizer.max_grid
    kind = accumulator(bound, integer=a_quantizer.has_integer_grid and b_quantizer.has_integer_grid)
    with without_autocast(a.device):
        total = a_grid.to(kind) @ b_grid.to(kind)
    return rescale(total, a_scale, b_scale, None).to(a.dtype)


_T = Tensor
_ACTIVATIONS = ("gelu", "silu", "sigmoid", "tanh", "softmax", "hardswish", "hardsigmoid", "elu", "leaky_relu")
_JOINS = ("cat", "concat", "concatenate", "stack", "hstack", "vstack", "row_stack", "dstack", "column_stack")
_PRODUCTS = ("matmul", "bmm", "mm", "mv", "dot", "vdot")


def _table() -> dict[Function, FunctionalOp]:
    add, mul, matmul = Elementwise("add"), Elementwise("mul"), MatrixProduct()
    attention, cat = Attention(), Concatenation()
    table: dict[Function, FunctionalOp] = {F.scaled_dot_product_attention: attention}
    table |= dict.fromkeys([torch.add, _T.add, _T.__add__, _T.__radd__, _T.__iadd__, _T.add_], add)
    table |= dict.fromkeys([torch.mul, torch.multiply, _T.mul, _T.__mul__, _T.__rmul__, _T.__imul__, _T.mul_], mul)
    table |= dict.fromkeys([getattr(torch, name) for name in _JOINS], cat)
    table |= {torch.linalg.matmul: matmul, _T.__matmul__: matmul}
    table |= {getattr(holder, name): matmul for name in _PRODUCTS for holder in (torch, _T)}
    for name in _ACTIVATIONS:
        activation = Softmax(name) if name == "softmax" else Activation(name)
        for holder in (F, torch, _T):
            for spelling in (name, f"{name}_"):
                if hasattr(holder, spelling):
                    table[getattr(holder, spelling)] = activation
    table |= {torch.special.softmax: table[torch.softmax], torch.special.expit: table[torch.sigmoid]}
    return table | FLOAT_FUNCTIONS


FUNCTIONAL_OPS = _table()
IN_PLACE = frozenset(function for function in FUNCTIONAL_OPS if writes(function))
FUNCTIONAL_TYPES = {op.op_type: op for op in FUNCTIONAL_OPS.values()}
for _op_type, _op in FUNCTIONAL_TYPES.items():
    register_op_type(_op_type, _op.forms)
