"""convert: packed weights in place of float ones."""

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.attach import note_weight_sqnr
from subbyte.adaptor.pytorch.batch_norm import AbsorbedBatchNorm, FoldedBatchNorm
from subbyte.adaptor.pytorch.copying import copied
from subbyte.adaptor.pytorch.functional_mode import ScopedModule
from subbyte.adaptor.pytorch.half_module import store_halves
from subbyte.adaptor.pytorch.holders import other_holders
from subbyte.adaptor.pytorch.on_threads import on_threads
from subbyte.adaptor.pytorch.packed_weight import PackedWeight
from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted, PreparedWeighted
from subbyte.adaptor.pytorch.quantizer import Quantizer
from subbyte.adaptor.pytorch.state import QuantizationState, is_quantized, state_of
from subbyte.adaptor.pytorch.structure import structure
from subbyte.adaptor.pytorch.swap import swap
from subbyte.adaptor.pytorch.weight import folded, folds_first
from subbyte.errors import ModelError

Shared = tuple[Any, ...]
Parts = tuple[PackedWeight, Tensor | None, Tensor | None]


def convert(prepared: nn.Module) -> nn.Module:
    """A converted copy of a prepared model, in eval(): the same output, bit for bit, from packed weights.

    Raises:
        ModelError: the model is not prepared, is unfinished, or cannot be copied.
        TrainingError: a weight, or a scale that was learned, is not finite.
    """
    state = state_of(prepared)
    if state.converted:
        raise ModelError("the model is converted already")
    state.run.check_finished()
    return convert_in_place(copied(prepared))


def convert_in_place(prepared: nn.Module) -> nn.Module:
    """`convert` without the copy: the prepared model becomes the converted one."""
    state = state_of(prepared)
    for quantizer in (module for module in prepared.modules() if isinstance(module, Quantizer)):
        quantizer.check_learned()
    prepared.eval()
    weighted = [module for module in prepared.modules() if isinstance(module, PreparedWeighted)]
    # All are packed before the first float weight goes: tied ones are read more than once.
    parts = _packed_parts(weighted)
    on_threads(partial(note_weight_sqnr, state), weighted, attrgetter("weight"))
    install(prepared, parts)
    finish(prepared, state)
    return prepared


def install(model: nn.Module, parts: Mapping[PreparedWeighted, Parts]) -> None:
    """Make prepared modules converted ones, and put packed weights wherever else the model held the float ones.

    Args:
        model: holds the modules.
        parts: for each its packed weight; BatchNorm's factor for each output channel, None where there is none or it is
            in the weight; and the bias with BatchNorm's shift, None keeps the module's own.
    """
    packed = {id(module.weight): weight for module, (weight, _, _) in parts.items()}
    holders = other_holders(model, packed)
    for module, (weight, factor, bias) in parts.items():
        _install(module, weight, factor, bias)
    for holder in holders:
        holder.exchange(packed)


def _install(module: Any, weight: PackedWeight, factor: Tensor | None, bias: Tensor | None) -> None:
    if bias is not None:
        module.bias = nn.Parameter(bias, requires_grad=False)
    module.register_buffer("norm_factor", factor)
    has_norm = bool(module.norm)
    del module.weight_quantizer, module.norm, module.weight_spec
    del module.weight
    module.weight = weight
    swap(module, ConvertedWeighted)
    module.awaits_norm = has_norm


def finish(model: nn.Module, state: QuantizationState) -> None:
    """What is left to do once every weighted module is converted."""
    store_halves(model)
    for module in list(model.modules()):
        if isinstance(module, FoldedBatchNorm):
            swap(module, AbsorbedBatchNorm)
            AbsorbedBatchNorm.absorb(module)
    for quantizer in state.static_quantizers():
        quantizer.statistics = None
    for each in state.quantizers.values():
        cast(Quantizer, each).settle()
    if state.found_later == {}:
        find_nothing_later(model, state)
    state.run.converted = True
    model.eval()  # new modules too
    state.structure = structure(model)


def find_nothing_later(model: nn.Module, state: QuantizationState) -> None:
    """Spare the first forward of a model without data its recording: no function is quantized."""
    state.found_later = None
    state.run.awaits_first = False
    if isinstance(model, ScopedModule):
        model.functional_scope.before_first = None


def _packed_parts(modules: Sequence[PreparedWeighted]) -> dict[PreparedWeighted, Parts]:
    """Return the packed weight of each module; modules that share a weight and its precision share the packed one."""
    keys = [_key(module) for module in modules]
    owners = dict(zip(reversed(keys), reversed(modules), strict=True))  # of several the first
    packed = on_threads(_packed_weight, list(owners.values()), attrgetter("weight"))
    by_key = dict(zip(owners, packed, strict=True))
    return {module: _parts(module, by_key[key]) for module, key in zip(modules, keys, strict=True)}


def _packed_weight(module: Any) -> PackedWeight:
    tensor = module.weight_quantizer.packed(module, module.handler, module.folded_norm)
    return PackedWeight(tensor, module.handler, module.weight.dtype)


def _parts(module: Any, weight: PackedWeight) -> Parts:
    norm = module.folded_norm
    if norm is None:
        return weight, None, None
    factor, bias = folded(module, norm)
    return weight, None if folds_first(module.weight_spec) else factor, bias


def _key(module: Any) -> Shared:
    """What ops must have in common to share packed codes."""
    # A weight that a BatchNorm was folded into is no longer the one that another op may share.
    owner = module if module.norm and folds_first(module.weight_spec) else module.weight
    params = module.weight_quantizer.params
    stored = [x for x in (params.scale, params.zero_point) if x is not None]
    # A method that recovers accuracy may give each op scales of its own.
    digests = [sha256(x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()).hexdigest() for x in stored]
    return (id(owner), module.weight_spec, module.weight_quantizer.gradient, *digests)


def packed_weights(model: nn.Module) -> dict[str, Any]:
    """`{op name: QuantizedTensor}` of a prepared or converted model."""
    if not is_quantized(model):
        raise ModelError("this model is not quantized; call subbyte.quantize or subbyte.prepare first")
    found: dict[str, Any] = {}
    for module in model.modules():
        if isinstance(module, ConvertedWeighted):
            found[module.op_name] = module.weight.tensor
        elif isinstance(module, PreparedWeighted):
            found[module.op_name] = module.weight_quantizer.packed(module, module.handler, module.folded_norm)
    return found
