"""Running a model and leaving it as it was."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.holders import MODULE_OWN
from subbyte.adaptor.pytorch.quantizer import Quantizer

_HOOKS = tuple(name for name in MODULE_OWN if "_hooks" in name)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Run in eval() without gradients; buffers, plain attributes, modes and random state are put back.

    Of an attribute that holds a list, a dict or a set the contents are put back, not what those hold in turn.
    """
    modes = {module: module.training for module in model.modules()}
    held = [ModuleState.of(module) for module in modes if not isinstance(module, Quantizer)]
    values = {tensor: tensor.detach().clone() for each in held for tensor in each.tensors() if _can_be_written(tensor)}
    try:
        model.eval()
        with torch.random.fork_rng(), torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
        for each in held:
            each.put_back()
        with torch.no_grad():
            for tensor, value in values.items():
                if tensor.shape == value.shape:
                    tensor.copy_(value)


@dataclass(frozen=True)
class ModuleState:
    """Buffers, plain attributes and hooks that one module had at some time.

    Args:
        module: of which this is the state.
        buffers: the module's, by name.
        attributes: what its other attributes refer to, by name.
        containers: copies of those attributes that are lists, dicts or sets, by name.
        hooks: copies of the module's dicts of hooks, by name.
    """

    module: nn.Module
    buffers: dict[str, Tensor | None]
    attributes: dict[str, Any]
    containers: dict[str, Any]
    hooks: dict[str, dict[int, Any]]

    @classmethod
    def of(cls, module: nn.Module) -> "ModuleState":
        attributes = {name: value for name, value in vars(module).items() if name not in MODULE_OWN}
        containers = {name: copy.copy(value) for name, value in attributes.items() if type(value) in (list, dict, set)}
        hooks = {name: dict(vars(module)[name]) for name in _HOOKS if vars(module)[name]}
        return cls(module, dict(module._buffers), attributes, containers, hooks)

    def tensors(self) -> Iterator[Tensor]:
        """The buffers, and the tensors that are plain attributes."""
        for value in (*self.buffers.values(), *self.attributes.values()):
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                yield value

    def put_back(self) -> None:
        """The objects that the module had, where a forward put others in their place, and what containers held."""
        own = vars(self.module)
        self.module._buffers.update({name: x for name, x in self.buffers.items() if name in self.module._buffers})
        for name in own.keys() - MODULE_OWN - self.attributes.keys():
            del own[name]
        for name, contents in self.containers.items():
            container = self.attributes[name]
            container.clear()
            container.extend(contents) if isinstance(container, list) else container.update(contents)
        own.update(self.attributes)

    def put_back_hooks(self) -> None:
        """Remove hooks that were added since, and add those that were removed."""
        for name in _HOOKS:
            hooks = vars(self.module)[name]
            hooks.clear()
            hooks.update(self.hooks.get(name, {}))


def _can_be_written(tensor: Tensor) -> bool:
    # Where values share memory, as after expand(), PyTorch refuses to.
    return tensor.layout != torch.strided or 0 not in tensor.stride()
