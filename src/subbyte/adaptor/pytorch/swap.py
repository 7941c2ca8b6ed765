"""Swapping a module's class: the object, its parameters, hooks and state_dict keys stay."""

import copy
import functools
import inspect
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, ClassVar

from torch import nn

from subbyte.errors import CheckpointError


class Swapped:
    """Base of classes made by `swap`; remembers the float class, and lets copies and pickles find it."""

    float_class: type[nn.Module]
    mixin: type["Swapped"]
    is_packed: ClassVar[bool] = False  # whether its weight is packed codes

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # A module that is constructed, as Sequential does for a slice, has nothing attached: it is a float one.
        unswap(self)  # type: ignore[arg-type]
        type(self).__init__(self, *args, **kwargs)

    def __init_subclass__(cls) -> None:
        # Not passed on: a float class may wrap the forward of whatever subclasses it (Hugging Face's
        # checkpointing layers do), and this subclass is not one of its own.
        return

    def own_quantizers(self) -> Iterable[Any]:
        """Return the quantizers of what this module, or a function that its code calls, reads."""
        return ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class was made at run time: rebuild it from the two that can be imported.
        return _rebuild, (self.float_class, self.mixin), self.__getstate__()


class SelfSaving(Swapped):
    """Mixin of a module that can save itself and whose own code is not quantized, as parts of Hugging Face models."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return float_class(self).forward(self, *args, **kwargs)  # type: ignore[arg-type]


def swap_self_saving(model: nn.Module) -> None:
    """Swap the modules of a quantized model that have `save_pretrained` and are not swapped yet."""
    for module in model.modules():
        if hasattr(module, "save_pretrained") and not isinstance(module, Swapped):
            swap(module, SelfSaving)


def swap(module: nn.Module, mixin: type[Swapped]) -> None:
    """Make `module` an instance of a class in which `mixin` comes before the module's own class."""
    module.__class__ = _class(float_class(module), mixin)


def unswap(module: nn.Module) -> None:
    """Give the module its own class back."""
    module.__class__ = float_class(module)


def float_class(module: nn.Module) -> type[nn.Module]:
    """The class a module had, or has, as a float module."""
    return module.float_class if isinstance(module, Swapped) else type(module)


def positional(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of a call in the order of the float class's forward, whatever was given by keyword."""
    if not kwargs:
        return args
    bound = inspect.signature(float_class(module).forward).bind(module, *args, **kwargs)
    bound.apply_defaults()
    return bound.args[1:]


_classes: dict[tuple[type, type], type[nn.Module]] = {}


def _class(base: type[nn.Module], mixin: type[Swapped]) -> type[nn.Module]:
    if (base, mixin) not in _classes:
        _classes[base, mixin] = _make_class(base, mixin)
    return _classes[base, mixin]


def _make_class(base: type[nn.Module], mixin: type[Swapped]) -> type[nn.Module]:
    # The float forward's signature is kept: generate() and data collators inspect it.
    forward: Callable[..., Any] = functools.wraps(base.forward)(_copy(mixin.forward))  # type: ignore[attr-defined]
    body = {
        "forward": forward,
        "float_class": base,
        "mixin": mixin,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
    }
    if hasattr(base, "__deepcopy__"):
        body["__deepcopy__"] = _deepcopy
    if hasattr(base, "save_pretrained"):
        body["save_pretrained"] = functools.wraps(base.save_pretrained)(_copy(_save_pretrained))  # type: ignore[arg-type]
    return type(base.__name__, (mixin, base), body)


def _deepcopy(module: Any, memo: dict[int, Any]) -> Any:
    """A copy of a module whose float class copies in a way of its own, which knows nothing of what is attached."""
    swapped = type(module)
    module.__class__ = swapped.float_class
    try:
        copied = copy.deepcopy(module, memo)
    finally:
        module.__class__ = swapped
    for own, held in ((vars(copied), vars(module)), (copied._modules, module._modules)):
        own.update({name: copy.deepcopy(value, memo) for name, value in held.items() if name not in own})
    swap(copied, swapped.mixin)
    return copied


def _save_pretrained(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Save as the float class does; raise CheckpointError if a converted op is quantized.

    The folder would hold packed codes under names that `from_pretrained` does not know, so that it would give the model
    random weights there. It would hold nothing of quantized activations.
    """
    if any(isinstance(each, Swapped) and _is_quantized(each) for each in module.modules()):
        name = module.float_class.__name__
        raise CheckpointError(
            f"save_pretrained of this {name} would write a folder without its quantization: from_pretrained "
            "would take random weights for packed ones, and float activations; write the whole model with "
            "subbyte.save(model, FILE) and read it with subbyte.load(FILE, float_model), or write a weight-only model "
            "in a format of other projects with subbyte.export_checkpoint(model, FOLDER, format=...)"
        )
    return module.float_class.save_pretrained(module, *args, **kwargs)


def _is_quantized(module: Swapped) -> bool:
    """Return whether a module has a packed weight, or is converted and reads quantized values."""
    return module.is_packed or any(quantizer.run.converted for quantizer in module.own_quantizers())


def _copy(function: FunctionType) -> FunctionType:
    return FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )


def _rebuild(base: type[nn.Module], mixin: type[Swapped]) -> nn.Module:
    cls = _class(base, mixin)
    module: nn.Module = cls.__new__(cls)
    return module
