"""The latent weights of a network of one bit."""

from torch import nn

from subbyte.adaptor.pytorch.quantized_module import PreparedWeighted
from subbyte.adaptor.pytorch.state import state_of
from subbyte.training.gradients.sign import is_sign


def binary_modules(model: nn.Module) -> dict[str, PreparedWeighted]:
    """The modules of a prepared model whose weights have the two values {-v, +v}, by name.

    Raises:
        ModelError: the model is not prepared.
    """
    state_of(model)
    prepared = {name: module for name, module in model.named_modules() if isinstance(module, PreparedWeighted)}
    return {name: module for name, module in prepared.items() if is_sign(module.weight_spec.dtype)}


def binary_weights(model: nn.Module) -> list[nn.Parameter]:
    """The float weights whose signs are used: what `Bop` trains, or any optimizer as latent weights.

    Args:
        model: made by `prepare_qat`.

    Raises:
        ModelError: the model is not prepared.
    """
    weights = (module.weight for module in binary_modules(model).values())
    return [weight for weight in dict.fromkeys(weights) if isinstance(weight, nn.Parameter)]
