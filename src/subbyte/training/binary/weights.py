"""The latent weights of a network of one bit."""

from torch import nn

from subbyte.adaptor.pytorch.quantized_module import PreparedWeighted
from subbyte.adaptor.pytorch.state import state_of


def binary_modules(model: nn.Module) -> dict[str, PreparedWeighted]:
    """The modules of a prepared model whose weights have two values, by name.

    Raises:
        ModelError: the model is not prepared.
    """
    state_of(model)
    prepared = {name: module for name, module in model.named_modules() if isinstance(module, PreparedWeighted)}
    return {name: module for name, module in prepared.items() if len(module.weight_spec.dtype.values or ()) == 2}


def binary_weights(model: nn.Module) -> list[nn.Parameter]:
    """The float weights whose signs are used: what `Bop` trains, or any optimizer as latent weights.

    Args:
        model: made by `prepare_qat`.

    Raises:
        ModelError: the model is not prepared.
    """
    weights = (module.weight for module in binary_modules(model).values())
    return [weight for weight in dict.fromkeys(weights) if isinstance(weight, nn.Parameter)]
