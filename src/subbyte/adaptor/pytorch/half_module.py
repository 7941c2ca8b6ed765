"""Modules that compute in a float type of 16 bits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.functional_mode import FloatModule
from subbyte.adaptor.pytorch.half import in_half
from subbyte.adaptor.pytorch.holders import other_holders
from subbyte.adaptor.pytorch.modules import handler_of
from subbyte.adaptor.pytorch.number_format import KeepsFormat
from subbyte.adaptor.pytorch.phase import Run
from subbyte.adaptor.pytorch.swap import float_class, swap
from subbyte.dtypes import DataType
from subbyte.errors import ModelError


class HalfModule(KeepsFormat, FloatModule):
    """Mixin of a module whose inputs, weight and bias are cast to fp16 or bf16, and its result back.

    A prepared one keeps its parameters in their own type, and gradients flow to these; a converted one stores them in
    16 bits. While calibrating it computes as the float module does.

    Attributes:
        half_type: the type that it computes in.
        float_type: of the result where no input is of a float type; follows when the model is cast.
        is_stored: whether the parameters are in that type.
        float_weights: for each parameter a number that those of other modules have which share it.
    """

    op_name: str
    run: Run
    half_type: DataType
    float_type: torch.dtype
    is_stored: bool
    float_weights: dict[str, int]
    weight: Any

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            forward = float_class(self).forward  # type: ignore[arg-type]
            if not (self.run.quantizes or self.is_stored):
                return forward(self, *args, **kwargs)
            kind = self.half_type.torch_dtype
            return in_half(partial(forward, _cast(self, kind)), args, kwargs, kind, self.float_type)

    def read_weight(self) -> Tensor:
        """What the model's own code gets that reads the weight past this module."""
        if not (self.run.quantizes or self.is_stored):
            return self.weight  # type: ignore[no-any-return]
        values: Tensor = self.weight.to(self.half_type.torch_dtype).to(self.float_type)
        return values

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self.float_type = fn(torch.empty(0, dtype=self.float_type)).dtype
        return super()._apply(fn, recurse)


def _cast(module: Any, kind: torch.dtype) -> nn.Module:
    """The float module with its parameters cast: one of its own, as several threads may run the module."""
    cast: Any = object.__new__(float_class(module))
    vars(cast).update(vars(module))
    parameters = {name: None if x is None else x.to(kind) for name, x in module._parameters.items()}
    vars(cast)["_parameters"] = parameters
    if isinstance(cast, nn.RNNBase):
        vars(cast)["_flat_weights"] = [parameters[name] for name in cast._flat_weights_names]
    return cast  # type: ignore[no-any-return]


def attach_half(module: Any, name: str, half: DataType, run: Run) -> None:
    """Let a module compute in a float type of 16 bits.

    Raises:
        ModelError: its weight is rewritten by its forward, or is made anew for each.
    """
    if getattr(module, "max_norm", None) is not None:
        raise ModelError(
            f"op {name!r}: an {float_class(module).__name__} with max_norm rewrites its table; set it to None"
        )
    handler = handler_of(module)
    own = {id(parameter) for parameter in module._parameters.values()}
    if handler is not None and not all(id(weight) in own for weight in handler.weights(module)):
        raise ModelError(f"op {name!r}: its weight is no Parameter; assign it as a torch.nn.Parameter first")
    module.op_name, module.half_type, module.is_stored, module.run = name, half, False, run
    module.float_weights = {key: id(x) for key, x in module._parameters.items()}
    module.float_type = next((x.dtype for x in module._parameters.values() if x is not None), torch.float32)
    swap(module, HalfModule)


def store_halves(model: nn.Module) -> None:
    """Put the parameters of a model's modules that compute in 16 bits into 16 bits, wherever the model holds them."""
    stored: dict[tuple[int, DataType], nn.Parameter] = {}
    replaced: dict[int, nn.Parameter] = {}
    for module in [module for module in model.modules() if isinstance(module, HalfModule)]:
        for name, parameter in module._parameters.items():
            if parameter is None or parameter.dtype == module.half_type.torch_dtype:
                continue
            key = id(parameter), module.half_type
            if key not in stored:
                values = parameter.detach().to(module.half_type.torch_dtype)
                stored[key] = replaced[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
            module._parameters[name] = stored[key]
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()  # a list of its own parameters
        module.is_stored = True
    for holder in other_holders(model, replaced):
        holder.exchange(replaced)
