"""Turning what modules give and take by orthogonal matrices, in their weights."""

from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.modules import WeightedHandler, handler_of
from subbyte.adaptor.pytorch.prepared.new_values import give_values
from subbyte.adaptor.pytorch.prepared.scaling import scaled_inputs


def turn_output(module: Any, rotation: Tensor, rows: Tensor | None = None) -> None:
    """Make a module give `y Q` in the place of y.

    Args:
        module: an Embedding, or a weighted op without a folded BatchNorm.
        rotation: Q [n, n], float64, orthogonal.
        rows: the output channels that it turns; all where left out.
    """
    handler = _handler(module)
    weight = module.weight.detach().double()
    rotation = rotation.to(weight.device)
    if not handler.takes_activation:
        give_values(module.weight, weight @ rotation)
        return
    matrix = handler.as_matrix(module, weight).clone()
    rows = torch.arange(matrix.shape[1]) if rows is None else rows
    matrix[0, rows] = rotation.T @ matrix[0, rows]
    give_values(module.weight, handler.from_matrix(module, matrix))
    if module.bias is not None:
        bias = module.bias.detach().double().clone()
        bias[rows] = bias[rows] @ rotation
        give_values(module.bias, bias)


def turn_input(module: Any, rotation: Tensor, columns: Tensor | None = None) -> None:
    """Make a weighted op that is given `x Q` compute what it did of x.

    Args:
        module: the op.
        rotation: Q [n, n], float64, orthogonal.
        columns: the input channels that are turned; all where left out.
    """
    handler = _handler(module)
    matrix = handler.as_matrix(module, module.weight.detach().double()).clone()
    columns = torch.arange(matrix.shape[2]) if columns is None else columns
    matrix[0][:, columns] = matrix[0][:, columns] @ rotation.to(matrix.device)
    give_values(module.weight, handler.from_matrix(module, matrix))


def fold_norm(norm: Any, readers: list[Any]) -> None:
    """Move weight and bias of a norm into the ops that read it, which are given a bias where they have none."""
    weight, bias = norm.weight.detach().double(), getattr(norm, "bias", None)
    for module in readers:
        handler = _handler(module)
        if bias is not None and bool(bias.detach().any()):
            shift = handler.as_matrix(module, module.weight.detach().double())[0] @ bias.detach().double()
            _shift_bias(module, shift)
        give_values(module.weight, scaled_inputs(module, module.weight.detach().double(), weight))
    give_values(norm.weight, torch.ones_like(weight))
    if bias is not None:
        give_values(norm.bias, torch.zeros_like(weight))


def untie(model: nn.Module) -> None:
    """Give each op whose weight is another op's too a weight of its own, but the first of them."""
    seen: set[int] = set()
    for module in model.modules():
        weight = module._parameters.get("weight")
        if weight is not None and isinstance(handler_of(module), WeightedHandler):
            if id(weight) in seen:
                module._parameters["weight"] = nn.Parameter(weight.detach().clone(), weight.requires_grad)
            seen.add(id(weight))


def _handler(module: Any) -> WeightedHandler:
    handler = handler_of(module)
    assert isinstance(handler, WeightedHandler)
    return handler


def _shift_bias(module: Any, shift: Tensor) -> None:
    if module.bias is None:
        module.bias = nn.Parameter(shift.to(module.weight.dtype), module.weight.requires_grad)
    else:
        give_values(module.bias, module.bias.detach().double() + shift)
