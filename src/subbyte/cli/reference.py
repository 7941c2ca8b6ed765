"""`package.module:name` and `path/to/file.py:name`: Python objects that a recipe or an option names."""

import importlib
import importlib.util
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from subbyte.cli.failure import users_code
from subbyte.errors import ConfigError, nearest

_FORMS = "package.module:name or path/to/file.py:name"


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Modules that lie in a folder can be imported meanwhile."""
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(folder.resolve()))


def load_object(reference: str, folder: Path, where: str) -> Any:
    """The object that a reference names.

    Args:
        reference: `package.module:name`, or `path/to/file.py:name`; the name may have dots.
        folder: what a path is relative to.
        where: begins every message.

    Raises:
        ConfigError: it is of another form, the import fails, or there is no such name.
    """
    source, _, name = reference.rpartition(":")
    if not source or not name:
        raise ConfigError(f"{where}: {reference!r} is not of the form {_FORMS}")
    if source.endswith(".py"):
        found: Any = _file_module((folder / source).resolve(), where)
    else:
        with users_code(f"{where}: importing {source!r}"):
            found = importlib.import_module(source)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{where}: {source} has no {name!r}{nearest(part, _public(found))}")
        found = getattr(found, part)
    return found


def load_model(reference: str, folder: Path, where: str) -> nn.Module:
    """The module that a reference names, or that the callable it names returns.

    Raises:
        ConfigError: as `load_object`; the callable fails; there is no torch.nn.Module.
    """
    found = _made(load_object(reference, folder, where), reference, where)
    if not isinstance(found, nn.Module):
        raise ConfigError(
            f"{where}: {reference} gave a {type(found).__name__}; name a torch.nn.Module, "
            "or a function without arguments that returns one"
        )
    return found


def load_data(reference: str, folder: Path, where: str) -> Any:
    """The batches that a reference names, or that the callable it names returns.

    Raises:
        ConfigError: as `load_object`, or the callable fails.
    """
    return _made(load_object(reference, folder, where), reference, where)


def load_function(reference: str, folder: Path, where: str) -> Callable[..., Any]:
    """The function that a reference names.

    Raises:
        ConfigError: as `load_object`, or it cannot be called.
    """
    found = load_object(reference, folder, where)
    if not callable(found):
        raise ConfigError(f"{where}: {reference} is a {type(found).__name__}, not a function of a model")
    return found  # type: ignore[no-any-return]  # it is callable


def _made(found: Any, reference: str, where: str) -> Any:
    """What a factory makes; anything else is the thing itself."""
    if not callable(found) or isinstance(found, nn.Module):
        return found
    with users_code(f"{where}: {reference}"):
        return found()


def _file_module(path: Path, where: str) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{where}: there is no file {path}")
    # One name for each path: a file that is named twice runs once, and its classes can be pickled.
    name = f"{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{where}: {path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with importing_from(path.parent), users_code(f"{where}: importing {path}"):
            spec.loader.exec_module(module)
    except ConfigError:
        del sys.modules[name]
        raise
    return module


def _public(found: Any) -> list[str]:
    return [name for name in dir(found) if not name.startswith("_")]
