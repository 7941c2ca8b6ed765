"""What a weight-only quantized model is made of, as formats write it."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import Tensor, nn

from subbyte.adaptor.pytorch.fingerprint import has_tensor
from subbyte.adaptor.pytorch.modules import WeightedHandler, handler_of
from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted
from subbyte.adaptor.pytorch.state import STATE, QuantizationState, state_of
from subbyte.adaptor.pytorch.structure import check_structure
from subbyte.adaptor.pytorch.swap import float_class
from subbyte.errors import CheckpointError, ModelError
from subbyte.export.aliases import without_aliases
from subbyte.export.formats.hugging_face import config_of, joined
from subbyte.export.formats.integer_weight import IntegerWeight, integer_weight
from subbyte.spec import OpConfig, TensorSpec


@dataclass(frozen=True)
class Contents:
    """A converted model, taken apart.

    Args:
        weights: by op, what is quantized; ops that share a weight have one object.
        specs: by op, how.
        op_types: of each module with a weight that could be quantized, as in `Linear`.
        tensors: what stayed float, by its name in the float model's state_dict; shared memory once.
        config: of a Hugging Face model its config.json; of others empty.
        ties_ends: whether the input embedding and the output layer share a weight that stayed float.
    """

    weights: Mapping[str, IntegerWeight]
    specs: Mapping[str, TensorSpec]
    op_types: Mapping[str, str]
    tensors: Mapping[str, Tensor]
    config: dict[str, Any]
    ties_ends: bool = False


def contents_of(model: nn.Module) -> Contents:
    """Take a converted model apart.

    Raises:
        ModelError: the model is not converted, or modules of it were replaced since.
        CheckpointError: it is not weight-only, or a weight has no integer codes; naming the op.
    """
    state = state_of(model)
    if not state.converted:
        raise ModelError("only a converted model is exported; call subbyte.convert(model) first")
    check_structure(model, state)
    _check_weight_only(state)
    modules = {name: module for name, module in model.named_modules() if isinstance(module, ConvertedWeighted)}
    return Contents(
        weights=_weights(modules),
        specs={name: module.weight_spec for name, module in modules.items()},
        op_types=_op_types(model),
        tensors=_float_tensors(model, modules, state),
        config=config_of(model, float_class(model).__name__),
        ties_ends=_ties_ends(model),
    )


def _check_weight_only(state: QuantizationState) -> None:
    later: Mapping[str, OpConfig] = state.found_later or {}
    named = ((name, config) for (name, _), config in state.config.op.items())
    for name, config in chain(named, later.items()):
        if config.activation is not None and not config.activation.is_float and config.quant_mode != "weight_only":
            raise CheckpointError(
                f"op {name!r} quantizes its inputs ({config}), and formats of others are written weight-only; quantize "
                "weights alone, as in 'w4:g32', or keep this model with subbyte.save"
            )


def _weights(modules: Mapping[str, ConvertedWeighted]) -> dict[str, IntegerWeight]:
    """By op; tied ops have one."""
    made: dict[int, IntegerWeight] = {}
    for name, module in modules.items():
        if id(module.weight) not in made:
            made[id(module.weight)] = _integer_weight(module, name)
    return {name: made[id(module.weight)] for name, module in modules.items()}


def _integer_weight(module: ConvertedWeighted, name: str) -> IntegerWeight:
    if module.awaits_norm or module.norm_factor is not None:
        raise CheckpointError(
            f"op {name!r} has a BatchNorm folded into it, which no format of others holds; quantize without "
            "calibration data, which leaves BatchNorm as it is"
        )
    try:
        return integer_weight(module.weight.tensor, module.handler.channel_axis)
    except CheckpointError as error:
        raise CheckpointError(f"op {name!r}: {error}") from None


def _ties_ends(model: nn.Module) -> bool:
    """Of a Hugging Face model, which names them; of any other False."""
    ends = [getattr(model, name, None) for name in ("get_input_embeddings", "get_output_embeddings")]
    weights = [getattr(end(), "weight", None) for end in ends if callable(end)]
    return len(weights) == 2 and weights[0] is weights[1] and isinstance(weights[0], nn.Parameter)


def _op_types(model: nn.Module) -> dict[str, str]:
    handlers = {name: handler_of(module) for name, module in model.named_modules()}
    return {name: handler.op_type for name, handler in handlers.items() if isinstance(handler, WeightedHandler)}


def _float_tensors(
    model: nn.Module, quantized: Mapping[str, ConvertedWeighted], state: QuantizationState
) -> dict[str, Tensor]:
    own = {joined(name, part) for name in quantized for part in ("weight.packed", "weight.scale", "weight.zero_point")}
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if name in own or STATE in name.split("."):
            continue
        if not isinstance(value, Tensor):
            raise ModelError(f"{name!r} of the model is a {type(value).__name__}; a checkpoint holds tensors only")
        if not has_tensor(state.fingerprint, name):
            raise CheckpointError(
                f"{name!r} is not in the float model, so readers would pass over it; leave out the method that added "
                "it (bias_correction, rotate), or start from a model that has it"
            )
        tensors[name] = value
    return without_aliases(tensors)[0]
