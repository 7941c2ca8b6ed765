"""A checkpoint folder as Hugging Face's libraries have it: config.json beside safetensors files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json
from safetensors.torch import save_file
from torch import Tensor, nn

from subbyte.errors import CheckpointError, quoted
from subbyte.export.partial_file import reason, replacing
from subbyte.export.safe_file import open_tensors
from subbyte.report.json_text import json_text

CONFIG = "config.json"
_TENSORS, _INDEX = "model.safetensors", "model.safetensors.index.json"
# Where older tools wrote what is now in config.json.
GPTQ_FILE, AWQ_FILE = "quantize_config.json", "quant_config.json"
_LARGEST_CONFIG, _LARGEST_INDEX = 4 << 20, 64 << 20  # bytes; an index has a line for each tensor
_READ = (CONFIG, GPTQ_FILE, AWQ_FILE, _INDEX)


@dataclass(frozen=True)
class Folder:
    """What a checkpoint folder holds.

    Args:
        tensors: of all its files.
        files: its JSON files by name: config.json, and what formats put beside it.
        metadata: of the safetensors file; of several, of the first.
    """

    tensors: Mapping[str, Tensor]
    files: Mapping[str, dict[str, Any]]
    metadata: Mapping[str, str]

    def quantization(self, method: str, older_file: str = "") -> dict[str, Any] | None:
        """What it says of its quantization, in config.json or the file of older tools; None of another method."""
        found = self.files.get(CONFIG, {}).get("quantization_config") or {}
        if not found and older_file in self.files:
            found = {"quant_method": method, **self.files[older_file]}
        return found if isinstance(found, dict) and found.get("quant_method") == method else None


def joined(op: str, part: str) -> str:
    """The name of a tensor of an op; a model that is itself the op has no name."""
    return f"{op}.{part}" if op else part


def config_of(model: nn.Module, class_name: str) -> dict[str, Any]:
    """The config.json of a Hugging Face model; of any other model empty."""
    config = getattr(model, "config", None)
    if not callable(getattr(config, "to_json_string", None)):
        return {}
    values: dict[str, Any] = json.loads(config.to_json_string())  # type: ignore[union-attr]  # just checked
    stated = "torch_dtype" if "torch_dtype" in values else "dtype"  # before transformers 5, and since
    dtypes = (str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters())
    return values | {"architectures": [class_name], stated: next(dtypes, values.get(stated))}


def write_folder(path: str | Path, folder: Folder) -> None:
    """Write a checkpoint folder: it appears whole or not at all.

    Raises:
        CheckpointError: the folder exists and is not empty, or cannot be written.
    """
    target = Path(path)
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise CheckpointError(f"{path} exists already, and is no empty folder; name a new or an empty one")
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {reason(error)}") from error
    with replacing(target, folder=True) as partial:
        stored = {name: tensor.detach().cpu().contiguous() for name, tensor in folder.tensors.items()}
        save_file(stored, partial / _TENSORS, {"format": "pt", **folder.metadata})
        for name, values in folder.files.items():
            (partial / name).write_text(json_text(values, indent=2) + "\n")


def read_folder(path: str | Path) -> Folder:
    """Read a checkpoint folder, of one safetensors file or of several with their index.

    Raises:
        CheckpointError: it or a file of it is missing, damaged, or in a form that holds code (pickle).
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"there is no checkpoint folder at {path}")
    files = {name: _json(folder / name) for name in _READ if (folder / name).is_file()}
    places = _places(folder, files)
    tensors: dict[str, Tensor] = {}
    first: dict[str, str] | None = None
    for name in _tensor_files(folder, places):
        found, metadata = open_tensors(folder / name)
        if places:
            _check_shard(folder / name, found, {tensor for tensor, file in places.items() if file == name})
        tensors |= found
        first = metadata if first is None else first
    return Folder(tensors, files, first or {})


def _check_shard(file: Path, found: Mapping[str, Tensor], named: set[str]) -> None:
    """Refuse a shard whose tensors are not those that the index names for it.

    Raises:
        CheckpointError: naming the first.
    """
    for tensor in sorted(found.keys() ^ named):
        if tensor in named:
            raise CheckpointError(
                f"{file} lacks tensor {quoted(tensor)}, which the weight_map of {_INDEX} says it holds"
            )
        raise CheckpointError(
            f"{file} holds tensor {quoted(tensor)}, which the weight_map of {_INDEX} does not name for this file; a "
            "tensor has one place"
        )


def _tensor_files(folder: Path, places: Mapping[str, str]) -> list[str]:
    if places:
        return sorted(set(places.values()))
    if (folder / _TENSORS).is_file():
        return [_TENSORS]
    found = sorted(file.name for file in folder.glob("*.safetensors"))
    if len(found) != 1:
        held = f"it holds {', '.join(found)} without {_INDEX}" if found else "it holds no safetensors file"
        raise CheckpointError(f"{folder} is no checkpoint folder: {held}")
    return found


def _places(folder: Path, files: Mapping[str, Any]) -> dict[str, str]:
    """Return the file of each tensor as the index of a sharded folder says; without an index nothing.

    Raises:
        CheckpointError: the index names something else than files beside it.
    """
    if _INDEX not in files:
        return {}
    file, places = folder / _INDEX, files[_INDEX].get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{file} cannot be read: it has no weight_map")
    for name in places.values():
        if not isinstance(name, str) or Path(name).name != name or name == "..":
            raise CheckpointError(f"{file} cannot be read: {quoted(name)} is no name of a file beside it")
    return places


def _json(file: Path) -> dict[str, Any]:
    limit = _LARGEST_INDEX if file.name == _INDEX else _LARGEST_CONFIG
    try:
        if file.stat().st_size > limit:
            raise CheckpointError(f"{file} is larger than {limit:,} bytes, the limit of such a file")
        values = from_json(file.read_bytes())  # bounds how deeply values are nested, and how long integers are
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    return values if isinstance(values, dict) else {}
