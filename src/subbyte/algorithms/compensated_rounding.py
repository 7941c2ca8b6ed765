"""Compensated rounding: round a matrix column by column and correct each column's error in the columns that follow."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from subbyte.errors import CalibrationError

RoundColumn = Callable[[Tensor, Tensor], Tensor]


def damped(hessian: Tensor, damping: float) -> Tensor:
    """Return `hessian + damping * mean(diagonal) * I`, with 1 added where the diagonal is zero.

    Args:
        hessian: [groups, inputs, inputs], symmetric.
        damping: positive.
    """
    diagonal = hessian.diagonal(dim1=1, dim2=2)
    added = damping * diagonal.mean(1, keepdim=True) + (diagonal == 0)
    return hessian + torch.diag_embed(added)


@dataclass(frozen=True)
class Rounded:
    """Result of compensated rounding.

    Args:
        values: The rounded matrices V, [groups, rows, inputs].
        errors: `(v - w) H (v - w)^T` of each row, [groups, rows], float64.
    """

    values: Tensor
    errors: Tensor


@dataclass(frozen=True)
class CompensatedRounding:
    """Rounding that keeps `tr((V - W) H (V - W)^T)` small: GPTQ (Frantar et al., 2023, section 3, algorithm 1).

    With H^-1 = U^T U (U upper triangular) and the columns in the order of rounding, let column i have the values w_i
    and the rounded values v_i. Each later column k then becomes `w_k - (w_i - v_i) U_ik / U_ii`, which minimizes the
    remaining error over real numbers. The sum of `((w_i - v_i) / U_ii)^2` over all columns equals the objective.

    Args:
        factor: U, [groups, inputs, inputs], float64.
        order: The column indices of each group in the order of rounding, [groups, inputs].
        block_size: Number of columns that are rounded before the columns behind them are updated.
    """

    factor: Tensor
    order: Tensor
    block_size: int

    @classmethod
    def of(cls, hessian: Tensor, order: Tensor, block_size: int) -> "CompensatedRounding":
        """Factorize a Hessian.

        Args:
            hessian: H, the mean of x x^T over the inputs x of each group's matrix: [groups, inputs, inputs], float64,
                positive definite.
            order, block_size: As for the class.

        Raises:
            CalibrationError: The Hessian is not positive definite.
        """
        return cls(_inverse_factor(_reordered(hessian, order)), order, block_size)

    def __call__(self, weight: Tensor, round_column: RoundColumn) -> Rounded:
        """Round matrices.

        Args:
            weight: W, [groups, rows, inputs].
            round_column: Maps a column of each group [groups, rows] and the column indices [groups] to rounded values.
        """
        by_column = self.order[:, None].expand_as(weight)
        factor = self.factor.to(weight.dtype)
        rest, rounded = weight.gather(2, by_column), torch.empty_like(weight)
        total = torch.zeros(weight.shape[:2], dtype=torch.float64, device=weight.device)
        for start in range(0, weight.shape[2], self.block_size):
            block = slice(start, min(start + self.block_size, weight.shape[2]))
            errors = torch.zeros_like(rest[..., block])
            for place in range(block.start, block.stop):
                column = rest[..., place]
                rounded[..., place] = round_column(column, self.order[:, place])
                error = (column - rounded[..., place]) / factor[:, place, place, None]
                rest[..., place + 1 : block.stop] -= error[..., None] * factor[:, None, place, place + 1 : block.stop]
                errors[..., place - start] = error
            rest[..., block.stop :] -= errors @ factor[:, block, block.stop :]
            total += errors.double().square().sum(2)
        return Rounded(torch.empty_like(weight).scatter_(2, by_column, rounded), total)


def _reordered(hessian: Tensor, order: Tensor) -> Tensor:
    """Return each group's matrix with its rows and columns in the group's order."""
    rows = hessian.gather(1, order[:, :, None].expand_as(hessian))
    return rows.gather(2, order[:, None].expand_as(hessian))


def _inverse_factor(matrix: Tensor) -> Tensor:
    """Return the upper triangular U with `matrix^-1 = U^T U`: the inverse of R in `matrix = R R^T`."""
    lower, failed = torch.linalg.cholesky_ex(matrix.flip(1, 2))
    if bool(failed.any()):
        raise CalibrationError("the inputs depend on one another too closely; raise damping, or give more data")
    identity = torch.eye(matrix.shape[1], dtype=matrix.dtype, device=matrix.device)
    inverse: Tensor = torch.linalg.solve_triangular(lower.flip(1, 2), identity.expand_as(matrix), upper=True)
    return inverse
