"""Subbyte's layers, through the model that `use_kernels` gives and through the operators that this model calls."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from layers import Call, Layer
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import subbyte
from subbyte.kernels.memory import empty_in_huge_pages

NO_KERNEL = ("reference", "float")  # how `summary` begins what it says of a layer that runs in PyTorch
# What moves no data: beside these, an operator that is called alone does the work of the whole layer.
VIEWS = frozenset({"alias", "detach", "expand", "permute", "reshape", "select", "slice", "squeeze", "t", "transpose"})
VIEWS |= {"unsqueeze", "view", "_unsafe_view"}


@dataclass(frozen=True)
class OwnLayer:
    """One layer of a model on kernels.

    Args:
        model: the whole of it, as a user calls it.
        operators: the operators of `torch.ops.subbyte` that it calls, with what it called them with.
        alone: nothing but these operators computes, so that they stand for the layer.
    """

    model: Layer
    operators: Layer
    alone: bool


def model_on_kernels(module: nn.Module, configuration: str, x: Tensor) -> nn.Module | None:
    """A model of this layer alone, quantized, on kernels; None where there is no kernel for it yet."""
    model = subbyte.use_kernels(subbyte.quantize(nn.Sequential(module), configuration, x))
    kernel = subbyte.summary(model).rows[0]["kernel"]
    return None if kernel.startswith(NO_KERNEL) else model


def own_layer(model: nn.Module, x: Tensor) -> OwnLayer:
    """The layer that such a model is, given x."""
    calls = _Calls.of(model, x)
    nbytes = calls.nbytes - x.nbytes
    return OwnLayer(
        Layer(lambda: partial(_copied(model), x), nbytes),
        Layer(lambda: _Calls.of(_copied(model), x).replay, nbytes),
        calls.alone,
    )


def _copied(model: nn.Module) -> nn.Module:
    """One more model like that, its codes in huge pages, where `use_kernels` puts them and a copy does not."""
    copied = copy.deepcopy(model)
    for module in copied.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.dtype == torch.uint8:
                codes = empty_in_huge_pages(buffer.numel(), buffer.device).view(buffer.shape)
                setattr(module, name, codes.copy_(buffer))
    return copied


class _Calls(TorchDispatchMode):
    """Records the operators of ours that run under it."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[Call] = []
        self._tensors: dict[int, Tensor] = {}
        self.alone = True

    @classmethod
    def of(cls, model: nn.Module, x: Tensor) -> "_Calls":
        model(x)  # what is made at a first call is made
        with cls() as calls:
            model(x)
        return calls

    @property
    def nbytes(self) -> int:
        """Of all that the operators were given."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def replay(self) -> object:
        """The same operators again."""
        result = None
        for call in self._calls:
            result = call()
        return result

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func.namespace == "subbyte":
            self._calls.append(partial(func, *args, **given))
            self._tensors |= {x.data_ptr(): x for x in (*args, *given.values()) if isinstance(x, Tensor)}
        elif func.overloadpacket.__name__ not in VIEWS:
            self.alone = False
        return func(*args, **given)
