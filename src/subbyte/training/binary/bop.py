"""An optimizer that has no latent weights."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from subbyte.errors import ConfigError


class Bop(torch.optim.Optimizer):
    """Binary optimizer (Helwegen et al., 2019, algorithm 1): it flips signs, and nothing else.

        m = (1 - rate) m + rate * gradient
        w = -w where |m| >= threshold and m has the sign of w

    A gradient that is not finite leaves m as it is. Magnitudes stay, and with them the scales that are their means.
    Give it `binary_weights(model)`, with the gradient `straight_through`, and the other parameters an optimizer of
    their own.

    Args:
        params: binary weights.
        rate: of the mean of gradients; higher is noisier.
        threshold: how strong and lasting gradients must be to flip a sign; 0 is any.

    Raises:
        ConfigError: a rate not in 0..1, or a threshold that is not 0 or more.
    """

    def __init__(self, params: Iterable[Any], rate: float = 1e-4, threshold: float = 1e-8) -> None:
        if not isinstance(rate, int | float) or not 0 < rate <= 1:
            raise ConfigError(f"Bop: rate is above 0 and at most 1, not {rate!r}")
        if not isinstance(threshold, int | float) or not threshold >= 0:
            raise ConfigError(f"Bop: threshold is 0 or more, not {threshold!r}")
        super().__init__(params, {"rate": rate, "threshold": threshold})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Flip what the gradients ask for; returns what the closure gives, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._flip(weight, group["rate"], group["threshold"])
        return loss

    def _flip(self, weight: Tensor, rate: float, threshold: float) -> None:
        assert weight.grad is not None
        state = self.state[weight]
        if not state:
            state["mean"] = torch.zeros_like(weight)
        mean: Tensor = state["mean"]
        # One that is not finite would stay in the mean for ever.
        mean.lerp_(torch.where(torch.isfinite(weight.grad), weight.grad, mean), rate)
        # Zero counts as positive, as everywhere; its negative must be seen as one.
        magnitude = weight.abs().clamp(min=torch.finfo(weight.dtype).tiny)
        is_positive = weight >= 0
        flips = (mean.abs() >= threshold) & torch.where(is_positive, mean > 0, mean < 0)
        weight.copy_(torch.where(flips, torch.where(is_positive, -magnitude, magnitude), weight))
