"""A partial file or folder beside the one that is written, which takes its place once it is complete."""

import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from subbyte.errors import CheckpointError

# The writer's host and process, so that a later save can tell whether the writer is still at work.
_NAME = re.compile(r"\.subbyte-(?P<host>[\w-]+)-(?P<process>\d+)-[0-9a-f]+\.partial")


@contextmanager
def replacing(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """Give a partial file (or folder) to write, and put it in the place of `path`, on disk, if that succeeds.

    It lies in a private folder beside `path`, so that temporary files of a library that writes it are removed with it.
    A symbolic link stays: what it points to is replaced. The mode of an existing file is kept; a new one gets what
    the umask of the process allows. Private folders that killed processes of this host left here are removed.

    Raises:
        CheckpointError: the partial file cannot be created, written or put in its place.
    """
    try:
        target = Path(os.path.realpath(path))
        _remove_stale(target.parent)
        private = target.parent / f".subbyte-{_host()}-{os.getpid()}-{secrets.token_hex(4)}.partial"
        private.mkdir(0o700)
        partial = private / target.name
        _create(partial, folder)
        mode = stat.S_IMODE((target if target.exists() else partial).stat().st_mode)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {reason(error)}") from error
    try:
        yield partial
        for file in partial.iterdir() if folder else (partial,):
            with open(file, "rb") as written:
                os.fsync(written.fileno())
            file.chmod(mode & 0o666 if folder else mode)  # safetensors makes files that nobody else can read
        os.replace(partial, target)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot write {path}: {error}") from error
    finally:
        shutil.rmtree(private, ignore_errors=True)


def reason(error: OSError | ValueError) -> str:
    """Return what an error of the operating system says, without its number and path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _create(path: Path, folder: bool) -> None:
    """Create an empty file or folder. The kernel applies the umask: reading it would set it for all threads."""
    if folder:
        path.mkdir(0o777)
    else:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))


def _remove_stale(folder: Path) -> None:
    """Remove the private folders of processes of this host that have ended, as far as this user may."""
    with suppress(OSError):  # another user's leftovers are no reason not to save
        for path in folder.iterdir():
            name = _NAME.fullmatch(path.name)
            if name and name["host"] == _host() and not _is_alive(int(name["process"])):
                shutil.rmtree(path, ignore_errors=True)


def _is_alive(process: int) -> bool:
    if os.name != "posix":  # elsewhere signal 0 is no question
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return True


def _host() -> str:
    return re.sub(r"[^\w-]", "_", socket.gethostname())[:64]
