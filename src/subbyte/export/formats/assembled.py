"""A converted model from packed weights and float tensors, without calibration."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.attach import attach
from subbyte.adaptor.pytorch.borrowed_weights import borrow_weights
from subbyte.adaptor.pytorch.convert import Parts, finish, install
from subbyte.adaptor.pytorch.fingerprint import fingerprint
from subbyte.adaptor.pytorch.packed_weight import PackedWeight
from subbyte.adaptor.pytorch.prepare import find_later, model_bytes, parameter_sizes, static_graph
from subbyte.adaptor.pytorch.quantized_module import PreparedWeighted
from subbyte.adaptor.pytorch.state import QuantizationState, hold
from subbyte.errors import CheckpointError
from subbyte.export.agreement import load_tensors
from subbyte.export.formats.hugging_face import joined
from subbyte.numerics import QuantizedTensor
from subbyte.spec import OpConfig, TuneConfig

# Buffers that older versions of transformers saved, and models compute by themselves.
_RECOMPUTED = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")


def assembled(
    float_model: nn.Module,
    weights: Mapping[str, QuantizedTensor],
    tensors: Mapping[str, Tensor],
    path: str | Path,
) -> nn.Module:
    """A converted, weight-only copy of a model.

    Args:
        float_model: is not changed.
        weights: by op.
        tensors: everything else, by its name in the model's state_dict.
        path: where they come from, for messages.

    Raises:
        CheckpointError: tensors are missing, left over, of another shape, of values that the model's dtype rounds, or
            refused by a module of the model.
        ModelError: the model cannot be copied.
    """
    if any(tensor.is_meta for tensor in chain(float_model.parameters(), float_model.buffers())):
        raise CheckpointError("the float model is on the meta device, which holds no values; build it on the CPU")
    values = _values(float_model, weights, tensors, path)
    borrowed = borrow_weights(float_model)
    model = borrowed.model
    device = next(chain(model.parameters(), model.buffers()), torch.empty(0)).device
    state = _state(float_model, weights, path)
    attach(model, state, list(state.graph.ops), calibrate_weights=False)
    find_later(model, state, {})
    install(model, _parts(model, weights))
    finish(model, state)
    borrowed.give_back()
    hold(model, state)
    metadata: Any = model.state_dict()
    try:
        load_tensors(model, values, metadata._metadata, strict=False)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    state.run.phase = "quantize"
    return model.to(device).eval()


def _state(model: nn.Module, weights: Mapping[str, QuantizedTensor], path: str | Path) -> QuantizationState:
    graph = static_graph(model)
    keys = {name: (name, graph.ops[name].type) for name in weights}
    specs = {keys[name]: replace(weight.spec, axis=None) for name, weight in weights.items()}  # an op fills its axis in
    configs = {key: OpConfig(spec, quant_mode="weight_only") for key, spec in specs.items()}
    sources = {key: {"weight": f"the checkpoint {path}"} for key in configs}
    return QuantizationState(
        TuneConfig(configs, sources),
        graph,
        float_bytes=model_bytes(model),
        float_parameters=parameter_sizes(model),
        fingerprint=fingerprint(model),
    )


def _parts(model: nn.Module, weights: Mapping[str, QuantizedTensor]) -> dict[PreparedWeighted, Parts]:
    made: dict[int, PackedWeight] = {}
    parts: dict[PreparedWeighted, Parts] = {}
    for module in [module for module in model.modules() if isinstance(module, PreparedWeighted)]:
        tensor, tied = weights[module.op_name], made.get(id(module.weight))
        if tied is None or not _is_same(tied.tensor, tensor):
            tied = made[id(module.weight)] = PackedWeight(tensor, module.handler, module.weight.dtype)
        parts[module] = (tied, None, None)
    return parts


def _is_same(one: QuantizedTensor, other: QuantizedTensor) -> bool:
    """Whether two tied ops, which formats store apart, hold the same weight."""
    tensors, others = one.tensors(), other.tensors()
    same = one.spec == other.spec and tensors.keys() == others.keys()
    return same and all(torch.equal(tensors[part], others[part]) for part in tensors)


def _values(
    model: nn.Module, weights: Mapping[str, QuantizedTensor], tensors: Mapping[str, Tensor], path: str | Path
) -> dict[str, Tensor]:
    """The float tensors by every name that the model has for them."""
    quantized = {joined(name, "weight") for name in weights}
    own: dict[str, Any] = {
        name: value for name, value in model.state_dict(keep_vars=True).items() if name not in quantized
    }
    left = {name for name in tensors if name not in own and not _may_be_left(name, tensors[name], weights)}
    if left:
        raise CheckpointError(f"{path} holds {_some(left)}, which this model does not have: it is of another model")
    by_memory = {id(own[name]): tensor for name, tensor in tensors.items() if name in own}
    missing = {name for name, value in own.items() if name not in tensors and id(value) not in by_memory}
    if missing:
        raise CheckpointError(
            f"{path} lacks {_some(missing)}, which this model has: it is of another model, or damaged"
        )
    values = {name: tensors[name] if name in tensors else by_memory[id(value)] for name, value in own.items()}
    for name, value in values.items():
        _check_fits(name, value, own[name], path)
        if not torch.equal(value, by_memory[id(own[name])]):
            raise CheckpointError(
                f"{path} has a {name} of its own, and this model ties it to another tensor; build the model with "
                "tie_word_embeddings=False, as its config.json says"
            )
    return values


def _check_fits(name: str, stored: Tensor, own: Tensor, path: str | Path) -> None:
    if stored.shape != own.shape:
        raise CheckpointError(
            f"{path} is of another model: {name} has shape {tuple(stored.shape)}, and in this model {tuple(own.shape)}"
        )
    if not bool(stored.isfinite().all()) and bool(own.isfinite().all()):
        raise CheckpointError(f"{path} is damaged: {name} holds NaN or infinity")
    if not torch.equal(stored.to(own.dtype).to(stored.dtype), stored):
        raise CheckpointError(
            f"{path}: {name} is {stored.dtype}, and {own.dtype} would round it; build the model in {stored.dtype}"
        )


def _may_be_left(name: str, tensor: Tensor, weights: Mapping[str, QuantizedTensor]) -> bool:
    """Whether a tensor that the model lacks changes nothing: a bias of zeros, as AutoGPTQ writes for every op."""
    op, _, part = name.rpartition(".")
    return name.endswith(_RECOMPUTED) or (part == "bias" and op in weights and not bool(tensor.any()))


def _some(names: set[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(ordered[:3]) + more
