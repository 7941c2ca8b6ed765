"""The grid that each single weight is rounded to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.prepared import WeightedOp
from subbyte.numerics import expand, fake_quantize, scheme_of
from subbyte.spec import Granularity, QuantParams, TensorSpec


@dataclass(frozen=True)
class ElementGrid:
    """Scale and zero point of every weight of an op, whatever its granularity, in the form of its matrices.

    A weight keeps those of the place where it is stored, in whatever order weights are rounded.

    Args:
        spec: of a column, whose rows each have their own.
        scale: [groups, rows, inputs, scales of a block].
        zero_point: [groups, rows, inputs]; None for a codebook.
    """

    spec: TensorSpec
    scale: Tensor
    zero_point: Tensor | None

    @classmethod
    def of(cls, op: WeightedOp, params: QuantParams) -> "ElementGrid":
        """Return the grid that `params` give each element of an op's weight."""
        shape = op.weight.shape
        several = scheme_of(op.spec).scales_per_block > 1

        def of_each(param: Tensor) -> Tensor:
            return op.matrix(expand(param, shape, op.spec).expand(shape))

        scales = params.scale.unbind(-1) if several else (params.scale,)
        zero_point = None if params.zero_point is None else of_each(params.zero_point)
        column = replace(op.spec, granularity=Granularity("per_channel"), axis=0)
        return cls(column, torch.stack([of_each(scale) for scale in scales], -1), zero_point)

    @classmethod
    def stacked(cls, grids: Sequence["ElementGrid"]) -> "ElementGrid":
        """Return the grid of matrices [groups, grids * rows, inputs] whose rows are those of one grid after another."""
        zero_points = [grid.zero_point for grid in grids if grid.zero_point is not None]
        scale = torch.cat([grid.scale for grid in grids], 1)
        return cls(grids[0].spec, scale, torch.cat(zero_points, 1) if zero_points else None)

    def round(self, column: Tensor, places: Tensor) -> Tensor:
        """The values that a column of each group [groups, rows] is rounded to, by its place [groups]."""
        groups = torch.arange(len(places), device=places.device)
        scale = self.scale[groups, :, places].flatten(0, 1)  # [rows, scales]
        if self.scale.shape[-1] > 1:
            scale = scale[:, None]
        zero_point = None if self.zero_point is None else self.zero_point[groups, :, places].reshape(-1, 1)
        rounded = fake_quantize(column.float().reshape(-1, 1), QuantParams(scale, zero_point), self.spec)
        return rounded.view_as(column).to(column.dtype)
