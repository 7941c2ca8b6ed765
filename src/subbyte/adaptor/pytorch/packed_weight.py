"""The weight of a converted op: packed codes, which the model's own code may read as if they were a tensor."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from subbyte.adaptor.pytorch.modules import WeightedHandler
from subbyte.adaptor.pytorch.number_format import KeepsFormat
from subbyte.adaptor.pytorch.weight import WeightOperand, float_bias, magnitude, output_scale
from subbyte.errors import ModelError
from subbyte.numerics import QuantizedTensor, scheme_of
from subbyte.spec import QuantParams


class PackedWeight(KeepsFormat, nn.Module):
    """A converted op's weight: packed codes, scale and zero point as buffers, and no float copy.

    To torch functions, and to code that asks for what a tensor has, it is the tensor of its values.

    Args:
        tensor: the codes and what they mean.
        handler: of the op.
        dtype: of the float weight that it stands for.
    """

    packed: Tensor
    scale: Tensor
    zero_point: Tensor | None

    def __init__(self, tensor: QuantizedTensor, handler: WeightedHandler, dtype: torch.dtype) -> None:
        super().__init__()
        self.float_dtype = self.dtype = dtype  # the second follows when the model is cast
        self.spec = tensor.spec
        self.shape = tensor.shape
        self.register_buffer("packed", tensor.packed)
        self.register_buffer("scale", tensor.scale)
        self.register_buffer("zero_point", tensor.zero_point)
        self.magnitude = packed_magnitude(tensor, handler)
        self.has_integer_grid = scheme_of(tensor.spec).has_integer_grid(tensor.spec)

    @property
    def tensor(self) -> QuantizedTensor:
        return QuantizedTensor(self.packed, QuantParams(self.scale, self.zero_point), self.spec, self.shape)

    @property
    def device(self) -> torch.device:
        return self.packed.device

    def values(self) -> Tensor:
        """The dequantized weight."""
        with torch._C.DisableTorchFunction():
            return self.tensor.dequantize().to(self.dtype)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if args and isinstance(args[0], cls):
            _refuse_writing(getattr(function, "__name__", ""))
        return function(*tree_map(_as_values, args), **tree_map(_as_values, kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        # Only what nn.Module does not have: `T`, `ndim`, `matmul`, ...
        if not name.startswith("_") and name not in self.__dict__["_buffers"] and hasattr(Tensor, name):
            _refuse_writing(name)
            return getattr(self.values(), name)
        return super().__getattr__(name)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        # Of a tensor, not of a module, which would change itself.
        return self.values().to(*args, **kwargs)

    def double(self) -> Any:
        return self.values().double()

    def float(self) -> Any:
        return self.values().float()

    def half(self) -> Any:
        return self.values().half()

    def bfloat16(self) -> Any:
        return self.values().bfloat16()

    def type(self, *args: Any, **kwargs: Any) -> Any:
        return self.values().type(*args, **kwargs)

    def cpu(self) -> Any:
        return self.values().cpu()

    def __getitem__(self, index: Any) -> Tensor:
        rows: Tensor = self.values()[index]
        return rows

    def __len__(self) -> int:
        return self.shape[0]

    def operand(self, module: Any, handler: WeightedHandler) -> WeightOperand:
        """Unpacked for one use."""
        tensor = self.tensor
        scale = output_scale(module, handler, tensor.params, self.spec, module.norm_factor)
        bias = float_bias(module)
        bias = None if bias is None else handler.over_output(bias)
        return WeightOperand(tensor.grid(), scale, bias, self.magnitude, self.has_integer_grid)

    def extra_repr(self) -> str:
        return f"{tuple(self.shape)}, {self.spec}"


def _operator(name: str) -> Callable[..., Any]:
    def operator(self: PackedWeight, *others: Any) -> Any:
        return getattr(self.values(), name)(*(map(_as_values, others)))

    return operator


# Python looks operators up on the class. Not `==` and `!=`: a module is compared, and hashed, as the object it is.
for _name in (
    *("__neg__", "__abs__", "__lt__", "__le__", "__gt__", "__ge__", "__iter__"),
    *("__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__pow__", "__matmul__"),
    *("__radd__", "__rsub__", "__rmul__", "__rtruediv__", "__rfloordiv__", "__rmod__", "__rpow__", "__rmatmul__"),
):
    setattr(PackedWeight, _name, _operator(_name))


def _as_values(leaf: Any) -> Any:
    return leaf.values() if isinstance(leaf, PackedWeight) else leaf


def _refuse_writing(name: str) -> None:
    """Raises ModelError: what is written would go into a copy."""
    if name == "data" or (name.endswith("_") and not name.endswith("__")):
        raise ModelError(
            f"a converted weight is packed codes and cannot be written ({name}); "
            "change the prepared model and convert it again"
        )


def packed_magnitude(tensor: QuantizedTensor, handler: WeightedHandler) -> float:
    """`magnitude` of packed codes, without unpacking them whole where rows are output channels."""
    if handler.channel_axis != 0:
        return magnitude(tensor.grid(), tensor.spec, handler)
    return max(magnitude(piece.grid(), tensor.spec, handler) for _, piece in tensor.pieces())
