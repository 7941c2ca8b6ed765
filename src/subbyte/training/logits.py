"""Which tensor of a module's output is meant."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from subbyte.adaptor.pytorch.tensors import tensors_in
from subbyte.errors import ConfigError, listing


def check_output(output: Any) -> None:
    """Refuse what names no output.

    Raises:
        ConfigError: it is no key, index or None.
    """
    if output is not None and (not isinstance(output, str | int) or isinstance(output, bool)):
        raise ConfigError(f"distillation: output is a key or an index of what a model returns, not {output!r}")


def logits_of(output: Any, named: str | int | None, whose: str) -> Tensor:
    """The logits of what a model returns.

    Args:
        output: a tensor; a mapping, dataclass, named tuple, tuple or list of such.
        named: its key or index; None: the tensor, what is named `logits`, or the one float tensor of two axes or more.
        whose: `student` or `teacher`, for messages.

    Raises:
        ConfigError: it is not there, or no tensor; or there are several, and none is named.
    """
    if named is not None:
        return _as_tensor(_part(output, named, whose), named, whose)
    if isinstance(output, Tensor):
        return output
    if _has(output, "logits"):
        return _as_tensor(_part(output, "logits", whose), "logits", whose)
    found = [each for each in tensors_in(output) if each.is_floating_point() and each.ndim >= 2]
    if len(found) != 1:
        raise ConfigError(
            f"distillation: the {whose} returns {_told(output)}, where {len(found)} tensors may be the logits; say "
            "which by output=, a key or an index"
        )
    return found[0]


def only_tensor(output: Any, module: str) -> Tensor:
    """The one float tensor of what a block gives.

    Raises:
        ConfigError: it gives none, or several.
    """
    found = [each for each in tensors_in(output) if each.is_floating_point()]
    if len(found) != 1:
        raise ConfigError(
            f"distillation: {module!r} gives {_told(output)} with {len(found)} float tensors, of which one can be "
            "compared; choose modules that give one, by pairs="
        )
    return found[0]


def _has(output: Any, key: str) -> bool:
    return key in output if isinstance(output, Mapping) else not isinstance(output, Tensor) and hasattr(output, key)


def _part(output: Any, named: str | int, whose: str) -> Any:
    if isinstance(named, str) and not isinstance(output, Mapping) and _has(output, named):
        return getattr(output, named)
    try:
        if isinstance(output, Mapping | Sequence):
            return output[named]  # type: ignore[index, call-overload, unused-ignore]
    except (KeyError, IndexError, TypeError):
        pass
    raise ConfigError(f"distillation: the {whose} returns {_told(output)}, which has no output {named!r}")


def _as_tensor(part: Any, named: str | int, whose: str) -> Tensor:
    if not isinstance(part, Tensor) or not part.is_floating_point():
        raise ConfigError(f"distillation: output {named!r} of the {whose} is no float tensor: {type(part).__name__}")
    return part


def _told(output: Any) -> str:
    kind = type(output).__name__
    return f"a {kind} of {listing(list(map(str, output)))}" if isinstance(output, Mapping) else f"a {kind}"
