"""Whether the modules of a quantized model are still those that were quantized."""

from torch import nn

from subbyte.adaptor.pytorch.compiled import check_whole
from subbyte.adaptor.pytorch.quantized_module import QuantizedModule
from subbyte.adaptor.pytorch.state import STATE, Described, QuantizationState
from subbyte.adaptor.pytorch.swap import Swapped
from subbyte.errors import ModelError


def structure(model: nn.Module) -> dict[str, Described]:
    """What each module was swapped to (empty: it was not) and is, by name; without the quantizers of inputs."""
    modules = ((name, module) for name, module in model.named_modules() if STATE not in name.split("."))
    return {name: _described(module) for name, module in modules}


def check_structure(model: nn.Module, state: QuantizationState) -> None:
    """Refuse a model in which modules were replaced, added or removed since it was converted.

    Raises:
        ModelError: naming the first such module, or one that was compiled (torch.compile).
    """
    check_whole(model)
    found = structure(model)
    for name in {**state.structure, **found}:
        same = _is_same(state.structure.get(name), found.get(name))
        if not same or not _belongs(model.get_submodule(name), name, state):
            raise ModelError(
                f"module {name!r} was replaced, added or removed after the model was quantized, so that it is not what "
                "its configuration says; change the float model, and quantize that"
            )


def _described(module: nn.Module) -> Described:
    mixin = type(module).mixin.__name__ if isinstance(module, Swapped) else ""
    return mixin, f"{type(module).__qualname__}({module.extra_repr()})"


def _is_same(before: Described | None, now: Described | None) -> bool:
    if before is None or now is None:
        return False
    # The first forward of a model without data swaps modules that were not.
    return before[1] == now[1] and before[0] in ("", now[0])


def _belongs(module: nn.Module, name: str, state: QuantizationState) -> bool:
    """Whether a quantized op is this model's own, at its place, and not one of another quantized model."""
    if not isinstance(module, QuantizedModule):
        return True
    return module.op_name == name and module.input_quantizers.run is state.run
