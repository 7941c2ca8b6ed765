"""Which names stand for a type of op, and which tensors of each type the library can quantize in each mode."""

from collections.abc import Mapping

from torch import nn

from subbyte.capability.source import Place
from subbyte.errors import CapabilityError, listing, nearest, quoted
from subbyte.spec import QuantMode

Forms = Mapping[QuantMode, frozenset[str]]
"""By mode, the tensors of an op type that are quantized; `quant_aware` is as `static`."""

_REGISTERED: dict[str, Forms] = {}


def register_op_type(name: str, forms: Forms) -> None:
    """Let capability files name an op type.

    Args:
        name: as in `Conv2d`.
        forms: what is implemented; empty where the type always stays in float.
    """
    _REGISTERED[name] = forms


def implemented_forms(op_type: str) -> Forms:
    """What is implemented of an op type; empty where nothing is."""
    return _REGISTERED.get(op_type, {})


def check_op_type(name: str, place: Place, inside: str) -> None:
    """Refuse a name that no op can have.

    Raises:
        CapabilityError: with the line and the nearest spelling.
    """
    modules = {known for known, value in vars(nn).items() if isinstance(value, type)}
    if name not in modules and name not in _REGISTERED and not callable(getattr(nn.functional, name, None)):
        quantizable = [known for known, forms in _REGISTERED.items() if forms]
        raise CapabilityError(
            f"{place}: unknown op type {quoted(name)} in {inside}{nearest(name, modules | _REGISTERED.keys())} (known: "
            f"{listing(quantizable)}, and all of torch.nn); a module type of your own is known once it is registered "
            "with register_module"
        )
