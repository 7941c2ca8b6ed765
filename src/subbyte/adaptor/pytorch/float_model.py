"""What a float model must be to be quantized."""

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from subbyte.adaptor.pytorch.compiled import check_whole
from subbyte.adaptor.pytorch.modules import WeightedHandler, handler_of
from subbyte.adaptor.pytorch.state import is_quantized
from subbyte.errors import ModelError

# Hooks that compute a tensor before each forward, and what keeps the tensor and takes the hook away.
_PERMANENT: dict[type, str] = {
    WeightNorm: "remove_weight_norm",
    SpectralNorm: "remove_spectral_norm",
    BasePruningMethod: "prune.remove",
}


def check_float(model: Any) -> None:
    """Refuse what cannot be prepared.

    Raises:
        ModelError: it is no module, quantized already, or hides its forward or weights.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}")
    if is_quantized(model):
        raise ModelError("the model is quantized already; start from the float model")
    check_whole(model)
    for name, module in model.named_modules():
        for problem in _problems(module):
            raise ModelError(f"{f'module {name!r}' if name else 'the model'} {problem}")


def _problems(module: nn.Module) -> Iterator[str]:
    if "forward" in vars(module):
        yield "has its forward replaced on the object; restore it first"
    if parametrize.is_parametrized(module):
        yield "has parametrized weights; call torch.nn.utils.parametrize.remove_parametrizations on it first"
    for hook in module._forward_pre_hooks.values():
        for kind, call in _PERMANENT.items():
            if isinstance(hook, kind):
                yield (
                    f"computes a parameter anew in each forward ({type(hook).__name__}); make it permanent with "
                    f"torch.nn.utils.{call} first"
                )
    if isinstance(handler_of(module), WeightedHandler) and module._parameters.get("weight") is None:
        yield "has a weight that is no Parameter; assign it as a torch.nn.Parameter first"
