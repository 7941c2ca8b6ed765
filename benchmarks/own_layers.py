"""Subbyte's layers, called in three ways.

`model` is a model of this one layer, as a user calls it; `op` are the operators of `torch.ops.subbyte` that the model
calls; `op, codes in and out` is a convolution as it runs within a network: it takes codes or bits, and the same
operator computes a relu (of bits: the sign) and the codes of the next layer.
"""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from cases import Case
from layers import Call, Layer
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import subbyte
from subbyte.kernels import isas, use_isa
from subbyte.kernels.epilogue import Codes, Epilogue, Signs
from subbyte.kernels.memory import empty_in_huge_pages
from subbyte.kernels.packing import pack_codes

NO_KERNEL = ("reference", "float")  # how `summary` begins what it says of a layer that runs in PyTorch
# What moves no data: beside these, an operator that is called alone does the work of the whole layer.
VIEWS = frozenset({"alias", "detach", "expand", "permute", "reshape", "select", "slice", "squeeze", "t", "transpose"})
VIEWS |= {"unsqueeze", "view", "_unsafe_view"}


MODEL, OPERATOR, ON_CODES = "model", "op", "op, codes in and out"  # how a layer of ours is called

# Configurations by the names that goals know them by.
USERS_TYPE = subbyte.DataType("apot4", values=[s * v / 16 for s in (-1, 1) for v in (1, 2, 3, 4, 6, 8, 12, 16)])
CODES = {f"W{bits}A8 g128": f"w{bits}a8:dynamic:g128" for bits in (1, 2, 3, 4, 8)}
BINARY = {"W1A1": "w1a1"}
FLOATS = {"W4 x fp32 g128": "w4:g128", "W4 x bf16 g128": "w4:g128"}
CODEBOOKS = {
    f"{name} x {x} g128": f"w{dtype}{short}:g128"
    for name, dtype in (("nf4", "nf4"), ("fp4", "fp4_e2m1"), ("a user's 4-bit type", USERS_TYPE.name))
    for x, short in (("A8", "a8:dynamic"), ("fp32", ""))
}
CONVOLUTIONS = {"W1A1": "w1a1", "W2A8": "w2a8", "W4A8": "w4a8", "W8A8": "w8a8"}


def configurations(case: Case) -> dict[str, str]:
    """Return the configurations that are measured in a case, by name; codebooks where goals speak of them."""
    if case.kind == "Conv2d":
        return CONVOLUTIONS
    if case.isa:
        return CODES | BINARY
    return CODES | BINARY | FLOATS | (CODEBOOKS if case.name == "M=1" else {})


def own_layers(case: Case) -> dict[str, Layer]:
    """Return the layers of a case that have a kernel, each called as a model, as its operators, and on codes."""
    subbyte.register_dtype(USERS_TYPE)
    if isas():
        use_isa(case.isa)
    x, weight = case.tensors()
    layers: dict[str, Layer] = {}
    for name, configuration in configurations(case).items():
        given = x.bfloat16() if "bf16" in name else x
        model = _model_on_kernels(_module(case, weight.to(given.dtype)), configuration, given)
        if model is not None:
            layers |= {f"{name}: {called}": layer for called, layer in _ways_to_call(model, given).items()}
    return layers


def _module(case: Case, weight: Tensor) -> nn.Module:
    make = nn.Linear if case.kind == "Linear" else partial(nn.Conv2d, kernel_size=3, padding=1)
    module = make(weight.shape[1], weight.shape[0], bias=False)
    module.weight = nn.Parameter(weight.clone(), requires_grad=False)
    return module


def _ways_to_call(model: nn.Module, x: Tensor) -> dict[str, Layer]:
    """Return the layer that a model on kernels is: as a user calls it, by its operators, and within a network."""
    calls = _Calls.of(model, x)
    nbytes = calls.nbytes - x.nbytes
    layers = {
        MODEL: Layer(lambda: partial(_copied(model), x), nbytes),
        OPERATOR: Layer(lambda: _Calls.of(_copied(model), x).replay, nbytes, alone=calls.alone),
    }
    on_codes = _on_codes(calls, nbytes)
    return layers if on_codes is None else layers | {ON_CODES: on_codes}


def _model_on_kernels(module: nn.Module, configuration: str, x: Tensor) -> nn.Module | None:
    """Return a model of this layer alone, quantized, on kernels; None if there is no kernel for it yet."""
    model = subbyte.use_kernels(subbyte.quantize(nn.Sequential(module), configuration, x))
    kernel = subbyte.summary(model).rows[0]["kernel"]
    return None if kernel.startswith(NO_KERNEL) else model


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
