"""Scale and zero point that training learns: parameters in the place of the buffers, under the same names."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from subbyte.spec import QuantParams

# Of the scale that learning begins with: what is below counts as this.
SMALLEST = 1e-3


class LearnsParams(nn.Module):
    """Mixin of a quantizer with tensors `scale` and `zero_point`, either of which may be learned.

    A learned one is an `nn.Parameter` where the buffer was, so that any optimizer sees it and a state_dict has it under
    the same key. Nothing is kept in step by copying: whoever computes reads `current_scale` and `current_zero_point`.
    """

    scale: Tensor
    zero_point: Tensor
    quant_min: Tensor
    quant_max: Tensor

    def learn(self, *names: str) -> None:
        """Make parameters of `scale`, `zero_point` or both, where they are not yet."""
        for name in names:
            if name in self._parameters:
                continue
            start = getattr(self, name).detach().float().clone()
            if name == "scale":
                self.register_buffer("smallest_scale", start * SMALLEST)
            delattr(self, name)
            setattr(self, name, nn.Parameter(start))

    @property
    def learned(self) -> list[str]:
        """Which of the two are learned."""
        return [name for name in ("scale", "zero_point") if name in self._parameters]

    def settle(self) -> None:
        """Learn no more: buffers again, with the values that are computed with."""
        values = {"scale": self.current_scale(), "zero_point": self.current_zero_point()}
        for name in self.learned:
            value = values[name].detach().clone()
            delattr(self, name)
            self.register_buffer(name, value)
        for name in ("smallest_scale", "progress"):
            if name in self._buffers:
                delattr(self, name)

    def follow_progress(self) -> None:
        """Know how far training has come, as a buffer that a checkpoint keeps."""
        self.register_buffer("progress", torch.zeros((), dtype=torch.float32))

    def current_scale(self) -> Tensor:
        """The scale to compute with: a learned one is at least `SMALLEST` of what it began with."""
        # Straight from the dicts: nn.Module's lookups cost as much as the arithmetic of a small tensor.
        buffers: Any = self._buffers
        learned = self._parameters.get("scale")
        return buffers["scale"] if learned is None else torch.maximum(learned.detach(), buffers["smallest_scale"])

    def current_zero_point(self) -> Tensor:
        """The zero point to compute with (int32): a learned one is rounded to the nearest code of the range."""
        buffers: Any = self._buffers
        learned = self._parameters.get("zero_point")
        if learned is None:
            return buffers["zero_point"]  # type: ignore[no-any-return]
        nearest = torch.maximum(torch.minimum(learned.detach().round(), buffers["quant_max"]), buffers["quant_min"])
        return nearest.to(torch.int32)

    def training_params(self) -> QuantParams:
        """The same as a gradient takes them: scale and zero point with theirs, a learned zero point not yet rounded.

        The gradient reaches a scale that is too small, so that it can come back.
        """
        scale, zero_point = self._parameters.get("scale"), self._parameters.get("zero_point")
        return QuantParams(
            self.current_scale() if scale is None else _at_least(scale, cast(Tensor, self._buffers["smallest_scale"])),
            self.current_zero_point() if zero_point is None else zero_point,
        )


def _at_least(x: Tensor, smallest: Tensor) -> Tensor:
    """`maximum(x, smallest)`, through which the gradient passes unchanged."""
    # On a CPU it costs less to see that nothing is to be done. Elsewhere looking would wait for the device.
    if x.is_cpu and not torch.compiler.is_compiling() and bool((x >= smallest).all()):
        return x
    result: Tensor = _AtLeast.apply(x, smallest)  # type: ignore[no-untyped-call]
    return result


class _AtLeast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, smallest: Tensor) -> Tensor:
        return torch.maximum(x, smallest)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
