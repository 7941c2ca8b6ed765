"""A safetensors file with a JSON header, written whole or not at all, and refused when altered."""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic_core import from_json
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from subbyte.errors import CheckpointError, quoted, shortened
from subbyte.export.partial_file import reason, replacing
from subbyte.report.json_text import json_text

_HEADER, _DIGEST = "subbyte", "sha256"


def write(path: str | Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Write tensors and header to `path`, atomically: the old file stays until the new one is complete.

    A symbolic link stays one: what it points to is written.

    Raises:
        CheckpointError: the file cannot be written.
    """
    text = json_text(header, sort_keys=True, separators=(",", ":"))
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {_HEADER: text, _DIGEST: _digest(text, stored)}
    with replaced(path) as temporary:
        save_file(stored, temporary, metadata)


@contextmanager
def replaced(path: str | Path) -> Iterator[Path]:
    """Give a partial file to write, which takes the place of `path` if that succeeds; see `replacing`.

    Raises:
        CheckpointError: `path` is a folder, a device, a FIFO or a socket, or cannot be written.
    """
    with replacing(_checked(path)) as partial:
        yield partial


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and header of a file that `write` made.

    Raises:
        CheckpointError: the file is missing, truncated, altered, or not one of ours.
    """
    tensors, metadata = open_tensors(path)
    if _HEADER not in metadata or _DIGEST not in metadata:
        raise CheckpointError(f"{path} is a safetensors file, but not a checkpoint that subbyte.save wrote")
    if _digest(metadata[_HEADER], tensors) != metadata[_DIGEST]:
        raise CheckpointError(f"{path} was altered after it was written (its checksum does not match); save it again")
    return tensors, _parsed(metadata[_HEADER], path)


def _parsed(text: str, path: str | Path) -> dict[str, Any]:
    try:
        header = from_json(text, allow_inf_nan=False)  # bounds how deeply values are nested
    except ValueError as error:
        raise CheckpointError(f"the header of {path} is no JSON that can be read: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"the header of {path} is no JSON object: {quoted(header)}")
    return header


def _checked(path: str | Path) -> Path:
    """Return the path, which names a regular file, through any symbolic links, or nothing yet.

    Raises:
        CheckpointError: it names anything else, or cannot be looked up.
    """
    if not isinstance(path, str | os.PathLike):
        raise CheckpointError(f"the path of a checkpoint is a str or a pathlib.Path, not {quoted(path)}")
    path = Path(path)
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return path  # reading and writing say so
    except (OSError, ValueError) as error:  # too long, a link to itself, a NUL in it, a folder that may not be seen
        raise CheckpointError(
            f"{shortened(repr(str(path)), 1_000)} names no file that can be read or written: {reason(error)}"
        ) from error
    if stat.S_ISDIR(mode):
        raise CheckpointError(f"{path} is a folder; name a file in it")
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(mode), "a special file")
        raise CheckpointError(f"{path} is {kind}; a checkpoint is a regular file; name one")
    return path


def open_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of any safetensors file into memory.

    Raises:
        CheckpointError: the file is missing, truncated, or no safetensors file.
    """
    checked = _checked(path)
    if not checked.is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        # `pread` does not map the file: mapped tensors change with it, and die with it when it is truncated.
        with safe_open(checked, framework="pt", backend="pread") as file:
            return file.get_tensors(), file.metadata() or {}
    except (SafetensorError, OSError, ValueError, OverflowError) as error:
        said = quoted(str(error))
        raise CheckpointError(f"{path} is damaged, or no safetensors file ({said}); get a whole copy") from error


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(_byte_view(tensor))
    return digest.hexdigest()


def _byte_view(tensor: Tensor) -> Any:
    """Return the bytes of a tensor on the CPU, without a copy of a contiguous one."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
