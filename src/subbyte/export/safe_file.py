"""A safetensors file with a JSON header, written whole or not at all, and refused when altered."""

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from subbyte.errors import CheckpointError
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
    """A file to write, which takes the place of `path` once it is complete; where that fails nothing changes.

    Raises:
        CheckpointError: the file cannot be written.
    """
    target = _checked(path).resolve()
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".subbyte-", suffix=".partial")
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {reason(error)}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~umask())
        os.replace(temporary, target)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write {path}: {error}") from error
    finally:
        temporary.unlink(missing_ok=True)


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
    header: dict[str, Any] = json.loads(metadata[_HEADER])
    return tensors, header


def _checked(path: str | Path) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise CheckpointError(f"the path of a checkpoint is a str or a pathlib.Path, not {path!r}")
    path = Path(path)
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            raise CheckpointError(f"{path} is a folder; name a file in it")
    except (FileNotFoundError, NotADirectoryError):
        return path  # reading and writing say so
    except (OSError, ValueError) as error:  # too long, a link to itself, a NUL in it, a folder that may not be seen
        raise CheckpointError(f"{str(path)!r} names no file that can be read or written: {reason(error)}") from error
    return path


def reason(error: OSError | ValueError) -> str:
    """What an error of the operating system says, without its number and path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def open_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of any safetensors file.

    Raises:
        CheckpointError: the file is missing, truncated, or no safetensors file.
    """
    if not _checked(path).is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged, or no safetensors file ({error}); get a whole copy") from error


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(memoryview(_bytes(tensor)))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> Any:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy()


def umask() -> int:
    """The rights that new files of this process do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
