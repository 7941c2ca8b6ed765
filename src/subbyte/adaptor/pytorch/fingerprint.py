"""What tells one model's structure from another's."""

import hashlib

from torch import nn


def fingerprint(model: nn.Module) -> str:
    """A digest of module types and settings (strides, slopes, ...), and of parameters' names, shapes and dtypes."""
    lines = [f"{name}:{type(module).__qualname__}({module.extra_repr()})" for name, module in model.named_modules()]
    lines += [f"{name}:{tuple(tensor.shape)}:{tensor.dtype}" for name, tensor in model.state_dict().items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
