"""export_checkpoint and import_checkpoint: weight-only models in the formats of other projects."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic_core import from_json
from torch import Tensor, nn

from subbyte.adaptor.pytorch.float_model import check_float
from subbyte.adaptor.pytorch.modules import WeightedHandler, handler_of
from subbyte.dtypes import DataType, all_or_none, register_dtype
from subbyte.errors import CheckpointError, ConfigError, DataTypeError, quoted
from subbyte.export.formats.assembled import assembled
from subbyte.export.formats.contents import contents_of
from subbyte.export.formats.form import SPECS, Reader, StoredOp
from subbyte.export.formats.hugging_face import CONFIG, Folder, joined, read_folder
from subbyte.export.formats.integer_weight import check_shapes, own_spec, quantized_tensor
from subbyte.export.formats.registry import READERS, writer
from subbyte.numerics import QuantizedTensor
from subbyte.spec import TensorSpec


def export_checkpoint(model: nn.Module, path: str | Path, *, format: str) -> None:
    """Write a converted, weight-only model in the format of another project, exact to the code.

    What is written appears whole or not at all. Of a Hugging Face model, config.json is written too; its tokenizer is
    not.

    Args:
        model: converted, its activations not quantized.
        path: a new or an empty folder; of `gguf` a file.
        format: `compressed-tensors`, `gptq` (zero points less 1), `gptq_v2`, or `gguf` (Llama; Q4_0 and Q8_0).

    Raises:
        ModelError: the model is not converted, or modules of it were replaced since.
        CheckpointError: the format cannot hold the model, naming the op and what would fit; or the path cannot be
            written.
    """
    chosen = writer(format)
    chosen.write(contents_of(model), path)


def import_checkpoint(path: str | Path, float_model: nn.Module) -> nn.Module:
    """Read a weight-only checkpoint of compressed-tensors, GPTQ or AWQ as a converted model, exact to the code.

    Args:
        path: the folder: config.json, or the file that older tools wrote beside it, and safetensors files.
        float_model: of the structure that was quantized; its values do not matter, and it is not changed.

    Returns:
        the converted model, in eval(). A weight is of the spec that `export_checkpoint` noted; from others' files intB
        sym where every zero point is mid-range, and else uintB asym.

    Raises:
        CheckpointError: the folder is missing, damaged, of another model, or holds what cannot be read.
        ModelError: float_model is quantized already, or cannot be copied.
    """
    check_float(float_model)
    folder = read_folder(path)
    reader, settings = _reader(folder, path)
    with all_or_none():  # a folder that is refused leaves no data type behind
        weights, others = _decoded(folder, reader, settings, float_model, path)
        return assembled(float_model, weights, others, path)


def _reader(folder: Folder, path: str | Path) -> tuple[Reader, Any]:
    for reader in READERS:
        try:
            settings = reader.settings(folder)
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from None
        if settings is not None:
            return reader, settings
    stated = folder.files.get(CONFIG, {}).get("quantization_config")
    method = stated.get("quant_method") if isinstance(stated, dict) else stated
    found = f"its quant_method is {quoted(method)}" if stated else "it says nothing of quantization"
    raise CheckpointError(f"{path} is no checkpoint of compressed-tensors, GPTQ or AWQ: {found}")


def _decoded(
    folder: Folder, reader: Reader, settings: Any, model: nn.Module, path: str | Path
) -> tuple[dict[str, QuantizedTensor], dict[str, Tensor]]:
    """The quantized weights by op, and the tensors that are left."""
    others = dict(folder.tensors)
    specs = _noted_specs(folder.metadata, path)
    weights = {}
    for name in _quantized_ops(folder.tensors, reader):
        given = {part: others.pop(joined(name, part)) for part in reader.parts if joined(name, part) in others}
        try:
            weights[name] = _weight(model, name, given, reader, settings, specs.get(name))
        except CheckpointError as error:
            raise CheckpointError(f"{path}: op {name!r}: {error}") from None
    if not weights:
        raise CheckpointError(f"{path} holds no quantized weight: no tensor is called {reader.marker}")
    return weights, others


def _quantized_ops(tensors: Mapping[str, Tensor], reader: Reader) -> list[str]:
    return [
        name.removesuffix(reader.marker).removesuffix(".")
        for name in tensors
        if name.rpartition(".")[2] == reader.marker
    ]


def _weight(
    model: nn.Module,
    name: str,
    tensors: Mapping[str, Tensor],
    reader: Reader,
    settings: Any,
    noted: TensorSpec | None,
) -> QuantizedTensor:
    handler, module = _op(model, name, reader)
    axis = handler.channel_axis
    shape = (module.weight.shape[axis], module.weight.shape[1 - axis])
    weight = reader.decode(StoredOp(name, handler.op_type, shape, tensors), settings)
    check_shapes(weight, shape)
    spec = own_spec(weight) if noted is None else replace(noted, axis=None)
    return quantized_tensor(weight, spec.with_axis(axis, 1 - axis), axis)


def _op(model: nn.Module, name: str, reader: Reader) -> tuple[WeightedHandler, Any]:
    try:
        module: Any = model.get_submodule(name)
    except AttributeError:
        raise CheckpointError("this model has no such module; build the model that was quantized") from None
    handler = handler_of(module)
    if not isinstance(handler, WeightedHandler) or handler.op_type not in reader.op_types:
        raise CheckpointError(
            f"in this model it is a {type(module).__name__}, and the format holds {' and '.join(reader.op_types)}"
        )
    return handler, module


def _noted_specs(metadata: Mapping[str, str], path: str | Path) -> dict[str, TensorSpec]:
    if SPECS not in metadata:
        return {}
    try:
        noted = from_json(metadata[SPECS])
        with all_or_none():  # a file that is refused leaves none of its data types behind
            for name, fields in noted["dtypes"].items():
                register_dtype(DataType.from_dict(name, fields))
            return {name: TensorSpec.from_dict(values) for name, values in noted["specs"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, DataTypeError, ConfigError) as error:
        raise CheckpointError(f"{path}: what it notes of its weights cannot be read: {error}") from error
