"""save and load: a converted model as one safetensors file of its true size."""

from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from subbyte.adaptor.pytorch.attach import attach
from subbyte.adaptor.pytorch.call_site import rewritten
from subbyte.adaptor.pytorch.convert import Parts, finish, install
from subbyte.adaptor.pytorch.copying import copied
from subbyte.adaptor.pytorch.fingerprint import difference, fingerprint
from subbyte.adaptor.pytorch.float_model import check_float
from subbyte.adaptor.pytorch.packed_weight import PackedWeight
from subbyte.adaptor.pytorch.prepare import find_later
from subbyte.adaptor.pytorch.quantized_module import ConvertedWeighted, PreparedWeighted
from subbyte.adaptor.pytorch.state import QuantizationState, hold, state_of
from subbyte.adaptor.pytorch.structure import check_structure
from subbyte.errors import CheckpointError, ModelError
from subbyte.export.aliases import without_aliases
from subbyte.export.header import state_from, state_header
from subbyte.export.safe_file import read, write
from subbyte.numerics import QuantizedTensor
from subbyte.report.json_text import number
from subbyte.report.summary import summary
from subbyte.spec import OpConfig, TensorSpec


def save(model: nn.Module, path: str | Path) -> None:
    """Write a converted model: packed codes, scales, what stayed float, and how it was made.

    The file appears whole or not at all; no pickle is in it.

    Raises:
        ModelError: the model is not converted, modules of it were replaced since, or one has an extra state that
            is no tensor.
        CheckpointError: the file cannot be written.
    """
    state = state_of(model)
    if not state.converted:
        raise ModelError("only a converted model is saved; call subbyte.convert(model) first")
    check_structure(model, state)
    values = model.state_dict()
    _check_tensors(values)
    tensors, aliases = without_aliases(values)
    report = summary(model)
    header = state_header(state) | {
        "weights": _weight_specs(model),
        "aliases": aliases,
        "report": report.to_dict(),
    }
    write(path, tensors, header)


def load(path: str | Path, float_model: nn.Module) -> nn.Module:
    """Read a converted model back.

    Args:
        path: what `save` wrote.
        float_model: of the structure that was quantized; its values do not matter, and it is not changed.

    Raises:
        CheckpointError: the file is missing, damaged, altered, of another version, or of another model.
        ModelError: float_model is quantized already, or cannot be copied.
    """
    check_float(float_model)
    if any(tensor.is_meta for tensor in chain(float_model.parameters(), float_model.buffers())):
        raise CheckpointError("the float model is on the meta device, which holds no values; build it on the CPU")
    tensors, header = read(path)
    state = state_from(header)
    differs = difference(state.fingerprint, fingerprint(float_model))
    if differs:
        raise CheckpointError(
            f"{path} is of another model than this {type(float_model).__name__}: {differs}; "
            "build the model that was quantized"
        )
    _check_code(float_model, state, path)
    model = copied(float_model)
    device = next(chain(model.parameters(), model.buffers()), torch.empty(0)).device
    attach(model, state, list(state.graph.ops), calibrate_weights=False)
    tensors |= {alias: tensors[name] for alias, name in header["aliases"].items()}
    if header["found_later"] is not None:
        by_type = {name: OpConfig.from_dict(values) for name, values in header["found_later"].items()}
        find_later(model, state, by_type)
    _install_weights(model, tensors, header["weights"])
    finish(model, state)
    hold(model, state)
    _load_values(model, tensors, path)
    state.run.phase = "quantize"
    return model.to(device).eval()


def read_report(path: str | Path) -> dict[str, Any]:
    """The rows and totals that a checkpoint was saved with; needs no model.

    Raises:
        CheckpointError: as for `load`.
    """
    _, header = read(path)
    report: dict[str, Any] = header["report"]
    for row in report["rows"]:
        row |= {key: number(row[key]) for key in ("weight_sqnr", "activation_sqnr")}
    return report


def _check_code(model: nn.Module, state: QuantizationState, path: str | Path) -> None:
    changed = rewritten(state.graph.sites(), {type(module) for module in model.modules()})
    if changed:
        raise CheckpointError(
            f"{path} was saved from other code: {changed} has been rewritten since (or compiled by another version of "
            "Python), so its ops are not the recorded ones; load it with the code it was saved with, or quantize again"
        )


def _check_tensors(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if not isinstance(value, Tensor):
            module = name.removesuffix("_extra_state").removesuffix(".")
            raise ModelError(
                f"module {module!r} has an extra state (get_extra_state) that is a {type(value).__name__}; a "
                "checkpoint holds tensors only: give it as a tensor, or take it out"
            )


def _weight_specs(model: nn.Module) -> dict[str, Any]:
    found = {}
    for module in model.modules():
        if isinstance(module, ConvertedWeighted):
            weight = module.weight
            found[module.op_name] = {
                "spec": weight.spec.to_dict(),
                "shape": list(weight.shape),
                "dtype": str(weight.float_dtype).removeprefix("torch."),
            }
    return found


def _install_weights(model: nn.Module, tensors: dict[str, Tensor], weights: dict[str, Any]) -> None:
    made: dict[tuple[int, TensorSpec], PackedWeight] = {}
    installed: dict[PreparedWeighted, Parts] = {}
    for module in [module for module in model.modules() if isinstance(module, PreparedWeighted)]:
        name = module.op_name
        if name not in weights:
            raise CheckpointError(f"the checkpoint lacks the weight of op {name!r}")
        spec = TensorSpec.from_dict(weights[name]["spec"])
        prefix = f"{name}.weight." if name else "weight."
        parts = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
        key = (parts["packed"].data_ptr() if "packed" in parts else id(parts), spec)
        if key not in made:
            tensor = QuantizedTensor.from_tensors(parts, spec, torch.Size(weights[name]["shape"]))
            made[key] = PackedWeight(tensor, module.handler, _float_dtype(weights[name]["dtype"]))
        own = prefix.removesuffix("weight.")
        installed[module] = (made[key], tensors.get(f"{own}norm_factor"), tensors.get(f"{own}bias"))
    install(model, installed)


def _float_dtype(name: str) -> torch.dtype:
    known = {
        str(dtype).removeprefix("torch."): dtype
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    }
    if name not in known:
        raise CheckpointError(f"the checkpoint names a float type {name!r}; known are {', '.join(known)}")
    return known[name]


def _load_values(model: nn.Module, tensors: dict[str, Tensor], path: str | Path) -> None:
    try:
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise CheckpointError(f"{path} does not fit this model: {error}") from error
