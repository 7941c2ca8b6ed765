"""Binary inputs that are never negative: their sign is +1 everywhere and tells nothing."""

import warnings
from collections.abc import Mapping

from torch import nn

from subbyte.adaptor.pytorch.quantizer import ActivationQuantizer, Quantizer
from subbyte.errors import LostSignWarning
from subbyte.training.gradients.sign import is_sign


def warn_of_lost_signs(model: nn.Module, inputs: Mapping[str, Quantizer]) -> None:
    """Warn once, naming the ops, where the sign of an input was +1 throughout the calibration data and stays so.

    What a module with parameters of its own makes, as LearnableShift or BatchNorm do, may learn to be negative.

    Args:
        model: prepared and calibrated.
        inputs: the quantizers of its inputs, by op.
    """
    modules = dict(model.named_modules())
    lost = [name for name, quantizer in inputs.items() if _is_lost(quantizer, modules)]
    if lost:
        ops = f"op {lost[0]!r}" if len(lost) == 1 else f"ops {', '.join(map(repr, lost))}"
        warnings.warn(
            f"the binary input of {ops} is never negative in the calibration data, so that its sign is +1 everywhere "
            "and nothing of it is left; take out the ReLU before, or put a LearnableShift between the two",
            LostSignWarning,
            stacklevel=4,
        )


def _is_lost(quantizer: Quantizer, modules: Mapping[str, nn.Module]) -> bool:
    if not is_sign(quantizer.spec.dtype) or not isinstance(quantizer, ActivationQuantizer):
        return False
    minimum = None if quantizer.statistics is None else quantizer.statistics.minimum
    maker = modules.get(_maker(quantizer.value))
    learns = maker is not None and any(True for _ in maker.parameters(recurse=False))
    return not learns and minimum is not None and bool((minimum >= 0).all())


def _maker(value: str) -> str:
    """The module that made a value, or whose code called the function that did."""
    function, is_function, _ = value.partition("@")
    return function.rpartition(".")[0] if is_function else value
