"""Saying in a line what went wrong in code that is not ours."""

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import subbyte
from subbyte.errors import ConfigError, SubbyteError

_INSTALLED = tuple(
    Path(folder).resolve()
    for folder in (*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), *subbyte.__path__)
)


class UserCodeError(ConfigError):
    """The user's own code failed; the message begins with where it was named."""


@contextmanager
def users_code(where: str) -> Iterator[None]:
    """Turn whatever the user's own code raises into an error that says where it stands.

    Args:
        where: begins the message, as in `recipe.yaml:3: model: zoo:net`.

    Raises:
        UserCodeError: the code failed; the cause is kept for `--debug`.
    """
    try:
        yield
    except SubbyteError as error:
        raise UserCodeError(f"{where}: {error}") from error
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"{where} failed with {described(error)}; --debug shows the traceback") from error


def described(error: BaseException) -> str:
    """`KeyError: 'x' (in net.py, line 12)`: the kind, the first line of the message, the place in the user's code."""
    lines = str(error).strip().splitlines()
    return type(error).__name__ + (f": {lines[0]}" if lines else "") + _place(error)


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return ""  # its message says the place
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if not frame.filename.startswith("<") and not any(path.is_relative_to(folder) for folder in _INSTALLED):
            return f" (in {frame.filename}, line {frame.lineno})"
    return ""
