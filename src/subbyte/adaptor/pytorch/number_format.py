"""Keeping numbers in the format that quantization was computed in."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


class KeepsFormat:
    """Mixin of a module whose own tensors follow the model to a device, and keep their type when it is cast.

    `model.half()` would change scales and the weights behind the codes; a prepared and a converted model
    that are both cast must go on agreeing. Inputs and outputs have the type of the cast model.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def kept(tensor: Tensor) -> Tensor:
            applied = fn(tensor)
            return applied if applied.dtype == tensor.dtype else tensor.to(applied.device)

        return super()._apply(kept, recurse)  # type: ignore[misc]  # nn.Module's
