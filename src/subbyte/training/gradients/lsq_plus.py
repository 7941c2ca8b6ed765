"""lsq_plus: scale and zero point that are learned."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from subbyte.numerics import Learned, is_built_in_affine, scheme_of
from subbyte.spec import QuantParams, TensorSpec
from subbyte.training.gradients.lsq import Lsq
from subbyte.training.registry import register_gradient


@register_gradient("lsq_plus")
class LsqPlus(Lsq):
    """Scale and offset are learned (Bhalgat et al., 2020, equations 1 to 5).

    The paper's offset beta is `-scale * zero_point`. The zero point is learned in its place, so that zero is on the
    grid and sums stay exact: as a float that is rounded to the nearest code wherever it is computed with. Its gradient
    is that of beta over `-scale`, so that a step of it moves the range as a step of beta would:

        dbeta = g * sum of dy where x was clipped,  dscale, dx and g as in LSQ
    """

    learns: ClassVar[tuple[str, ...]] = ("scale", "zero_point")

    def obstacle(self, spec: TensorSpec) -> str:
        if spec.dtype.kind != "integer" or not is_built_in_affine(scheme_of(spec)):
            return "it learns a zero point, which only integers of scheme sym or asym have"
        if spec.scheme == "sym" and spec.qmin < 0 <= spec.qmax:
            return "it learns a zero point, which scheme sym keeps at 0; use scheme asym"
        return super().obstacle(spec)

    def learned(self, x: Tensor, params: QuantParams, spec: TensorSpec, values: float) -> Learned | None:
        assert params.zero_point is not None
        # The gradient of the zero point is -scale * dbeta.
        factor = self.scale_factor(spec, values) / params.scale.detach().square()
        zero_point = _TimesGradient.apply(params.zero_point, factor)  # type: ignore[no-untyped-call]
        return super().learned(x, QuantParams(params.scale, zero_point), spec, values)


class _TimesGradient(torch.autograd.Function):
    """x itself; its gradient multiplied by `factor`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        return gradients[0] * factor, None
