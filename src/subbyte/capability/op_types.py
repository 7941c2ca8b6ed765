"""Which names stand for a type of op: those that an adaptor can quantize, and those that PyTorch has."""

from torch import nn

from subbyte.capability.source import Place
from subbyte.errors import CapabilityError, listing, nearest, quoted

_REGISTERED: set[str] = set()


def register_op_type(name: str) -> None:
    """Let capability files name an op type; an adaptor calls it for each that it can quantize."""
    _REGISTERED.add(name)


def check_op_type(name: str, place: Place, inside: str) -> None:
    """Refuse a name that no op can have.

    Raises:
        CapabilityError: with the line and the nearest spelling.
    """
    modules = {known for known, value in vars(nn).items() if isinstance(value, type)}
    if name not in modules and name not in _REGISTERED and not callable(getattr(nn.functional, name, None)):
        raise CapabilityError(
            f"{place}: unknown op type {quoted(name)} in {inside}{nearest(name, modules | _REGISTERED)} (known: "
            f"{listing(_REGISTERED)}, and all of torch.nn); a module type of your own is known once it is registered "
            "with register_module"
        )
