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
from subbyte.kernels.epilogue import Codes, Epilogue, Signs
from subbyte.kernels.memory import empty_in_huge_pages
from subbyte.kernels.packing import pack_codes

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
        on_codes: of a convolution, as it runs within a network: it takes codes or bits, and a relu (of bits: the sign)
            and the next layer's codes follow in the same operator.
    """

    model: Layer
    operators: Layer
    alone: bool
    on_codes: Layer | None = None


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
        _on_codes(calls, nbytes),
    )


def _on_codes(calls: "_Calls", nbytes: int) -> Layer | None:
    by_name = {call.func.overloadpacket.__name__: call.args for call in calls.calls}
    if "conv2d_codes" in by_name:
        return Layer(lambda: _codes_to_codes(by_name["conv2d_codes"]), nbytes)
    if "binary_conv2d" in by_name:
        return Layer(lambda: _bits_to_bits(by_name["binary_conv2d"]), nbytes)
    return None


def _codes_to_codes(given: tuple[Any, ...]) -> Call:
    x, scale, zero_point, low, high = given[0], *given[7:11]
    dtype = torch.int8 if low < 0 else torch.uint8
    codes = torch.clamp(torch.round(x / scale) + zero_point, low, high).to(dtype)
    epilogue = Epilogue(low=0.0, output=Codes(scale, zero_point, low, high, dtype))
    return partial(torch.ops.subbyte.conv2d_codes_fused, codes, *given[1:], *epilogue.arguments(x.device))


def _bits_to_bits(given: tuple[Any, ...]) -> Call:
    x = given[0]
    bits = pack_codes((x.permute(0, 2, 3, 1) >= 0).to(torch.uint8).contiguous(), 1).view(*x[:, 0].shape, -1)
    epilogue = Epilogue(output=Signs()).arguments(x.device)
    return partial(torch.ops.subbyte.binary_conv2d_packed_fused, bits, *given[1:], x.shape[1], *epilogue)


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
        self.calls: list[partial[Any]] = []
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
        for call in self.calls:
            result = call()
        return result

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func.namespace == "subbyte":
            self.calls.append(partial(func, *args, **given))
            self._tensors |= {x.data_ptr(): x for x in (*args, *given.values()) if isinstance(x, Tensor)}
        elif func.overloadpacket.__name__ not in VIEWS:
            self.alone = False
        return func(*args, **given)
