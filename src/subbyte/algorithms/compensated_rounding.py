"""Rounding a matrix column by column, each column's error made good by those that are still to come."""

from collections.abc import Callable

import torch
from torch import Tensor

from subbyte.errors import CalibrationError

RoundColumn = Callable[[Tensor, Tensor], Tensor]


def damped(hessian: Tensor, damping: float) -> Tensor:
    """`hessian + damping * mean of its diagonal * I`; an input that was always zero counts as independent of others.

    Args:
        hessian: [groups, inputs, inputs], symmetric.
        damping: positive.
    """
    diagonal = hessian.diagonal(dim1=1, dim2=2)
    added = damping * diagonal.mean(1, keepdim=True) + (diagonal == 0)
    return hessian + torch.diag_embed(added)


def round_compensated(
    weight: Tensor, hessian: Tensor, round_column: RoundColumn, order: Tensor, block_size: int
) -> Tensor:
    """Round so that `tr((V - W) H (V - W)^T)` is small: GPTQ (Frantar et al., 2023, section 3, algorithm 1).

    With H^-1 = U^T U (U upper triangular) and the columns in the order they are rounded, column i takes its values
    v_i, and each later column k becomes `w_k - (w_i - v_i) U_ik / U_ii`: the best that real numbers could do for the
    error made. What a block of columns owes to those behind it is paid once the block is done.

    Args:
        weight: [groups, rows, inputs].
        hessian: [groups, inputs, inputs], float64, positive definite: the mean of x x^T over what a group's matrix
            multiplies.
        round_column: (a column of each group [groups, rows], their places [groups]) -> the values it is rounded to.
        order: [groups, inputs]: the places of each group's columns, in the order they are rounded.
        block_size: how many columns a block has.

    Returns:
        values of weight's shape and dtype.

    Raises:
        CalibrationError: the Hessian is not positive definite.
    """
    by_column = order[:, None].expand_as(weight)
    factor = _inverse_factor(_reordered(hessian, order)).to(weight.dtype)
    rest, rounded = weight.gather(2, by_column), torch.empty_like(weight)
    for start in range(0, weight.shape[2], block_size):
        block = slice(start, min(start + block_size, weight.shape[2]))
        errors = torch.zeros_like(rest[..., block])
        for place in range(block.start, block.stop):
            column = rest[..., place]
            rounded[..., place] = round_column(column, order[:, place])
            error = (column - rounded[..., place]) / factor[:, place, place, None]
            rest[..., place + 1 : block.stop] -= error[..., None] * factor[:, None, place, place + 1 : block.stop]
            errors[..., place - start] = error
        rest[..., block.stop :] -= errors @ factor[:, block, block.stop :]
    return torch.empty_like(weight).scatter_(2, by_column, rounded)


def _reordered(hessian: Tensor, order: Tensor) -> Tensor:
    """Rows and columns of each group's matrix in its order."""
    rows = hessian.gather(1, order[:, :, None].expand_as(hessian))
    return rows.gather(2, order[:, None].expand_as(hessian))


def _inverse_factor(matrix: Tensor) -> Tensor:
    """Upper triangular U with `matrix^-1 = U^T U`: the inverse of R in `matrix = R R^T`, R upper triangular."""
    lower, failed = torch.linalg.cholesky_ex(matrix.flip(1, 2))
    if bool(failed.any()):
        raise CalibrationError("the inputs depend on one another too closely; raise damping, or give more data")
    identity = torch.eye(matrix.shape[1], dtype=matrix.dtype, device=matrix.device)
    inverse: Tensor = torch.linalg.solve_triangular(lower.flip(1, 2), identity.expand_as(matrix), upper=True)
    return inverse
