"""save and load: a converted model as one safetensors file of its true size."""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.attach import attach
from subbyte.adaptor.pytorch.borrowed_weights import BorrowedWeights, borrow_weights
from subbyte.adaptor.pytorch.call_site import rewritten
from subbyte.adaptor.pytorch.convert import Parts, finish, install
from subbyte.adaptor.pytorch.fingerprint import difference, fingerprint
from subbyte.adaptor.pytorch.float_model import check_float
from subbyte.adaptor.pytorch.packed_weight import PackedWeight
from subbyte.adaptor.pytorch.prepare import find_later, parameter_sizes
from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted, PreparedWeighted
from subbyte.adaptor.pytorch.state import QuantizationState, hold, state_of
from subbyte.adaptor.pytorch.structure import check_structure
from subbyte.adaptor.pytorch.weight import folds_first
from subbyte.dtypes import all_or_none
from subbyte.errors import CheckpointError, ModelError, SubbyteError, quoted
from subbyte.export.agreement import (
    check_inputs,
    check_later,
    check_quantizers,
    check_recording,
    check_tensors,
    load_tensors,
    tensor_fields,
)
from subbyte.export.aliases import without_aliases
from subbyte.export.header import found_later, shared, spec_values, state_from, state_header, tensor_spec
from subbyte.export.safe_file import read, write
from subbyte.export.schema import Header, WeightFields, header_of
from subbyte.numerics import QuantizedTensor
from subbyte.report.json_text import number
from subbyte.report.summary import summary


def save(model: nn.Module, path: str | Path) -> None:
    """Write a converted model: packed codes, scales, what stayed float, and how it was made.

    The file appears whole or not at all; no pickle is in it.

    Raises:
        ModelError: the model is not converted, modules of it were replaced since, or one has an extra state that
            is no tensor or a version (`_version`) that is no integer and not None.
        CheckpointError: the file cannot be written, or the factor of a folded BatchNorm is not finite.
    """
    state = state_of(model)
    if not state.converted:
        raise ModelError("only a converted model is saved; call subbyte.convert(model) first")
    check_structure(model, state)
    values = model.state_dict()
    _check_are_tensors(values)
    tensors, aliases = without_aliases(values)
    header = state_header(state) | {
        "weights": shared(_weight_values(model)),
        "tensors": {name: tensor_fields(tensor) for name, tensor in tensors.items()},
        "aliases": aliases,
        "versions": _versions(values),
        "report": summary(model).to_dict(),
    }
    write(path, tensors, header)


def load(path: str | Path, float_model: nn.Module) -> nn.Module:
    """Read a converted model back.

    The file is read into memory and not used afterwards. A file that is refused changes nothing: neither the float
    model, nor which data types are registered.

    Args:
        path: what `save` wrote.
        float_model: of the structure that was quantized; its values do not matter, and it is not changed.

    Raises:
        CheckpointError: the file is missing, damaged, altered, of another version, or of another model, or its parts
            contradict each other.
        ModelError: float_model is quantized already, or cannot be copied.
    """
    check_float(float_model)
    if any(tensor.is_meta for tensor in chain(float_model.parameters(), float_model.buffers())):
        raise CheckpointError("the float model is on the meta device, which holds no values; build it on the CPU")
    tensors, values = read(path)
    with all_or_none():
        try:
            header = header_of(values)
            state = state_from(header, parameter_sizes(float_model))
            _check_is_of(float_model, state)
            check_tensors(tensors, header)
            check_recording(float_model, state)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from error
        borrowed = borrow_weights(float_model)
        try:
            _fill(borrowed, state, header, tensors)
        except SubbyteError as error:
            raise CheckpointError(f"{path}: {error}") from error
    device = next(chain(float_model.parameters(), float_model.buffers()), torch.empty(0)).device
    return borrowed.model.to(device).eval()


def read_report(path: str | Path) -> dict[str, Any]:
    """Return the rows and totals that a checkpoint was saved with; needs no model.

    Raises:
        CheckpointError: as for `load`.
    """
    _, values = read(path)
    report = header_of(values).report.model_dump()
    for row in report["rows"]:
        row |= {key: number(row[key]) for key in ("weight_sqnr", "activation_sqnr")}
    return report


def _fill(borrowed: BorrowedWeights, state: QuantizationState, header: Header, tensors: dict[str, Tensor]) -> None:
    """Make a copy of the float model the converted model of a checkpoint."""
    model = borrowed.model
    attach(model, state, list(state.graph.ops), calibrate_weights=False)
    tensors = tensors | {alias: tensors[name] for alias, name in header.aliases.items()}
    if header.found_later is not None:
        by_type = found_later(header)
        check_later(by_type)
        find_later(model, state, by_type)
    check_inputs(state, header.inputs)
    install(model, _parts_of(model, tensors, dict(header.weights.items())))
    finish(model, state)
    borrowed.give_back()
    hold(model, state)
    _load_values(model, tensors, header.versions)
    check_quantizers(state)
    state.run.phase = "quantize"


def _check_are_tensors(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if not isinstance(value, Tensor):
            module = name.removesuffix("_extra_state").removesuffix(".")
            raise ModelError(
                f"module {module!r} has an extra state (get_extra_state) that is a {type(value).__name__}; a "
                "checkpoint holds tensors only: give it as a tensor, or take it out"
            )


def _weight_values(model: nn.Module) -> list[tuple[str, dict[str, Any]]]:
    weights = {}
    for module in model.modules():
        if isinstance(module, ConvertedWeighted):
            _check_is_finite(module.norm_factor, f"op {quoted(module.op_name)}: ")
            weights[module.op_name] = module.weight
    return [(name, {"spec": spec_values(one.spec), "shape": list(one.shape)}) for name, one in weights.items()]


def _versions(values: Any) -> dict[str, int | None]:
    """Return the versions of the modules of a state_dict, where they are not 1, as a module's are by default.

    Raises:
        ModelError: a version is no integer and not None.
    """
    found = {name: metadata.get("version", 1) for name, metadata in values._metadata.items()}
    for name, version in found.items():
        if isinstance(version, bool) or not isinstance(version, int | None):
            raise ModelError(
                f"module {name!r} has the version (_version) {quoted(version)}, a {type(version).__name__}; a "
                "checkpoint holds an integer or None: give its class one of these"
            )
    return {name: version for name, version in found.items() if version != 1}


def _parts_of(
    model: nn.Module, tensors: Mapping[str, Tensor], weights: Mapping[str, WeightFields]
) -> dict[PreparedWeighted, Parts]:
    modules = [module for module in model.modules() if isinstance(module, PreparedWeighted)]
    expected = {module.op_name for module in modules}
    for name in sorted(expected ^ weights.keys()):
        where = "configuration" if name in expected else "list of weights"
        raise CheckpointError(f"op {quoted(name)} has a quantized weight in the {where} of the checkpoint only")
    made: dict[tuple[Any, ...], PackedWeight] = {}
    return {module: _parts(module, tensors, weights[module.op_name], made) for module in modules}


def _parts(
    module: Any, tensors: Mapping[str, Tensor], stated: WeightFields, made: dict[tuple[Any, ...], PackedWeight]
) -> Parts:
    """Return what `install` takes, checked against the configuration; tied ops share what was stored once."""
    name, spec, weight = module.op_name, module.weight_spec, module.weight
    if tensor_spec(stated.spec) != spec or stated.shape != list(weight.shape):
        raise CheckpointError(
            f"op {quoted(name)} has codes of {tensor_spec(stated.spec)} and shape {quoted(stated.shape)}, and the "
            f"configuration and the model say {spec} and {list(weight.shape)}"
        )
    own = f"{name}." if name else ""
    parts = {part: tensors[f"{own}weight.{part}"] for part in _PACKED if f"{own}weight.{part}" in tensors}
    key = (spec, weight.dtype, *map(id, parts.values()))
    try:
        if key not in made:
            tensor = QuantizedTensor.from_tensors(parts, spec, weight.shape)
            made[key] = PackedWeight(tensor, module.handler, weight.dtype)
        factor, bias = tensors.get(f"{own}norm_factor"), tensors.get(f"{own}bias")
        _check_factor_and_bias(module, factor, bias)
    except CheckpointError as error:
        raise CheckpointError(f"op {quoted(name)}: {error}") from None
    return made[key], factor, bias


_PACKED = ("packed", "scale", "zero_point")


def _check_factor_and_bias(module: Any, factor: Tensor | None, bias: Tensor | None) -> None:
    """Refuse what is not a value for each output channel, or is there without a BatchNorm, or missing with one."""
    has_norm = bool(module.norm)
    if (factor is not None) != (has_norm and not folds_first(module.weight_spec)) or (has_norm and bias is None):
        raise CheckpointError("norm_factor and bias are not those of an op with its BatchNorm folded as configured")
    channels = (module.handler.output_channels(module),)
    allowed = (torch.float32, module.weight.dtype)
    for name, tensor in (("norm_factor", factor), ("bias", bias)):
        if tensor is not None and (tensor.shape != channels or tensor.dtype not in allowed):
            raise CheckpointError(
                f"{name} must be {' or '.join(map(str, dict.fromkeys(allowed)))} of shape {channels}, got "
                f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            )
    _check_is_finite(factor)


def _check_is_finite(factor: Tensor | None, where: str = "") -> None:
    """Refuse a BatchNorm's factor of NaN or infinity; one of zero is that of a channel that is pruned."""
    if factor is not None and not bool(factor.isfinite().all()):
        wrong = factor[~factor.isfinite()][0].item()
        raise CheckpointError(
            f"{where}norm_factor holds {wrong}; the weight of a BatchNorm over the root of its running_var must be "
            "finite: correct the BatchNorm, and quantize again"
        )


def _load_values(model: nn.Module, tensors: Mapping[str, Tensor], versions: Mapping[str, int | None]) -> None:
    own: Any = model.state_dict()
    for name in versions.keys() - own._metadata.keys():
        raise CheckpointError(f"versions names {quoted(name)}, which is no module of this model")
    for name, tensor in tensors.items():
        dtype = own[name].dtype if name in own else tensor.dtype
        if dtype.is_floating_point != tensor.dtype.is_floating_point and not name.endswith("_extra_state"):
            raise CheckpointError(f"tensor {quoted(name)} is {tensor.dtype}, and in this model {dtype}")
    metadata = {name: {"version": versions.get(name, 1)} for name in own._metadata}
    load_tensors(model, tensors, metadata, strict=True)


def _check_is_of(model: nn.Module, state: QuantizationState) -> None:
    """Refuse a model of another structure, other settings or other code than the one that was quantized.

    Raises:
        CheckpointError: with what differs.
    """
    differs = difference(state.fingerprint, fingerprint(model))
    if differs:
        raise CheckpointError(
            f"it is of another model than this {type(model).__name__}: {differs}; build the model that was quantized"
        )
    changed = rewritten(state.graph.sites(), {type(module) for module in model.modules()})
    if changed:
        raise CheckpointError(
            f"it was saved from other code: {changed} has been rewritten since (or compiled by another version of "
            "Python), so its ops are not the recorded ones; load it with the code it was saved with, or quantize again"
        )
