"""A static range of activations that is learned, with inputs that are dropped to float at random."""

import torch
from torch import Tensor

from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer
from subbyte.algorithms.drops import Drops
from subbyte.numerics import fake_quantize, is_built_in_affine, learned_fake_quantize, scheme_of
from subbyte.spec import QuantParams

_SMALLEST = 1e-3  # of the scale it began with


class LearnedRange:
    """What a quantizer computes while its block is reconstructed.

    The scale is learned as in LSQ (Esser et al., 2020), in proportion to what it began with; each value stays float
    with a probability, so that the block meets values beside the grid too (QDrop, Wei et al., 2022, section 4). A
    quantizer whose scheme has no gradient of its scale keeps it.

    Args:
        quantizer: calibrated.
        drops: which values are quantized in a step.
        learns: whether its scale may change.
    """

    def __init__(self, quantizer: ActivationQuantizer, drops: Drops, *, learns: bool) -> None:
        self.quantizer = quantizer
        self.drops = drops
        has_gradient = is_built_in_affine(scheme_of(quantizer.spec)) and quantizer.spec.scale_format == "fp32"
        self.learns = learns and has_gradient
        self.start = quantizer.params.scale.detach().clone()
        self.factor = torch.ones_like(self.start).requires_grad_(self.learns)

    def __call__(self, x: Tensor) -> Tensor:
        spec = self.quantizer.spec
        if self.learns:
            zero_point = self.quantizer.zero_point.float()
            value = learned_fake_quantize(x, self.scale(), zero_point, spec)
        else:
            value = fake_quantize(x, self.quantizer.params, spec)
        return self.drops.mix(value, x)

    def scale(self) -> Tensor:
        """The scale as it is now."""
        return self.start * self.factor.clamp(min=_SMALLEST)

    def params(self) -> QuantParams:
        """Scale and zero point as learned."""
        return QuantParams(self.scale().detach(), self.quantizer.params.zero_point)
