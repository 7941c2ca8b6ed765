"""The storage of studies: a SQLite file or a database."""

import re
import time
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import optuna
import sqlalchemy
from optuna.storages import BaseStorage, RDBStorage, get_storage
from sqlalchemy import URL, make_url

from subbyte.errors import TuningError

DEFAULT_FILE = "subbyte-tuning.db"
_WAIT = 60.0  # seconds that a process waits for another one's writing
_TRIES = 3  # to open a database
_PAUSE = 0.5  # seconds between them
_HIDDEN = "***"
# Group 2 is hidden. A password ends at the last "@", as one that holds "@" or "/" is often written without escapes.
_CREDENTIALS = re.compile(r"^((?>(?:[\w.+-]+://)?)[^:/?]*:)(.*)(?=@)", re.DOTALL)
_MISTYPED = re.compile(r"(:)([^:/@]+)(?=@)")  # in a URL without "://", which is taken for a file
_OPTIONS = re.compile(r"^((?!sqlite)[^?]*://[^?]*\?)(.+)", re.DOTALL)  # some drivers take the password from here
_SHORT = 3  # characters: parts of a password that stand in too many words to be hidden on their own


def open_storage(storage: Any) -> BaseStorage:
    """Open an Optuna storage.

    Args:
        storage: a SQLite file, the URL of a database, or an Optuna storage.

    Raises:
        TuningError: `storage` is none of these, or cannot be opened. The message holds no password.
    """
    if isinstance(storage, BaseStorage):
        return storage
    if not isinstance(storage, str | Path) or storage == "":
        got = "an empty text" if storage == "" else type(storage).__name__
        raise TuningError(f"storage must be a file, the URL of a database or an Optuna storage, got {got}")
    file = file_of(storage)
    if file is not None:
        _check_file(file, storage)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return get_storage(_opened(storage))
    except Exception as error:  # of whichever database
        raise TuningError(
            f"the study's storage {displayed(storage)} cannot be opened: {cause_of(error, storage)}"
        ) from None


def displayed(storage: Any) -> str:
    """Return how messages name a storage: without the password and the options of a database's URL."""
    text = _text(storage)
    if not _can_be_read(storage):
        return f"{text.partition('://')[0]}://{_HIDDEN}"
    for pattern in (_CREDENTIALS, _MISTYPED, _OPTIONS):
        text = pattern.sub(rf"\1{_HIDDEN}", text)
    return text


def cause_of(error: BaseException, storage: Any) -> str:
    """Return the innermost error as text, without the password and the options of the storage's URL.

    Databases wrap the innermost error and add advice on other matters. It must not be chained to the error that is
    raised instead, as a traceback would show it whole.
    """
    while (deeper := getattr(error, "orig", None) or error.__cause__) is not None:
        error = deeper
    if not _can_be_read(storage):
        return f"{type(error).__name__} in its URL; write it as DIALECT://USER:PASSWORD@HOST:PORT/NAME"
    text = f"{type(error).__name__}: {error}"
    for secret in _secrets(storage):
        text = text.replace(secret, _HIDDEN)
    return text


def file_of(storage: Any) -> Path | None:
    """Return the file of a SQLite storage, and None for a database's server or an Optuna storage.

    Raises:
        TuningError: `storage` is SQLite without a file.
    """
    if not isinstance(storage, str | Path):
        return None
    if "://" not in str(storage):
        return Path(storage)
    if not str(storage).startswith("sqlite") or not _can_be_read(storage):
        return None
    name = make_url(str(storage)).database
    if name in (None, "", ":memory:"):
        raise TuningError(
            f"the study's storage {displayed(storage)} is no file, and would be lost with this process; name a file, "
            "or give optuna.storages.InMemoryStorage() to keep nothing"
        )
    return Path(str(name).removeprefix("file:"))


def _check_file(file: Path, storage: str | Path) -> None:
    shown = displayed(storage)
    if file.suffix == ".journal":
        raise TuningError(
            f"the study's storage {shown} is an Optuna journal, which Subbyte does not use; name a SQLite file such as "
            f"{DEFAULT_FILE}, or the URL of a database if several machines share the study"
        )
    if file.is_dir():
        raise TuningError(f"the study's storage {shown} is a folder; name a file in it, as {DEFAULT_FILE}")
    if not file.parent.is_dir():
        raise TuningError(
            f"the study's storage {shown} cannot be opened: there is no folder {displayed(file.parent)}; "
            "create it first"
        )


def _text(storage: Any) -> str:
    return str(getattr(storage, "url", storage))  # of Optuna's storages, those of a database have a URL


def _can_be_read(storage: Any) -> bool:
    try:
        return "://" not in _text(storage) or bool(make_url(_text(storage)))
    except (sqlalchemy.exc.ArgumentError, ValueError):
        return False


def _secrets(storage: Any) -> list[str]:
    """Return the hidden parts of a URL as they are written and as they are decoded, the longest first."""
    credentials, options = (pattern.search(_text(storage)) for pattern in (_CREDENTIALS, _OPTIONS))
    parts = credentials[2].split("@") if credentials else []
    parts += [option.partition("=")[2] for option in options[2].split("&")] if options else []
    found = {part for part in parts if len(part) > _SHORT} | ({credentials[2]} if credentials else set())
    written = {each for secret in found for each in (secret, unquote(secret)) if each}
    return sorted(written, key=len, reverse=True)


def _opened(storage: str | Path) -> BaseStorage:
    if "://" in str(storage):
        return _sqlite(str(storage)) if str(storage).startswith("sqlite") else _database(str(storage))
    url = URL.create("sqlite", database=str(Path(storage).absolute()))  # quotes what has a meaning in URLs
    return _sqlite(url.render_as_string(hide_password=False))


def _sqlite(url: str) -> RDBStorage:
    storage = _database(url, {"connect_args": {"timeout": _WAIT}})
    sqlalchemy.event.listen(storage.engine, "connect", _write_ahead)
    storage.engine.dispose()  # connections are made anew, with this
    return storage


def _database(url: str, engine: dict[str, Any] | None = None) -> RDBStorage:
    for _ in range(_TRIES - 1):
        try:
            return RDBStorage(url, engine)
        except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.OperationalError):
            time.sleep(_PAUSE)  # another process makes the tables at this moment, as a rule
    return RDBStorage(url, engine)


def _write_ahead(connection: Any, record: Any) -> None:
    """Append what is written to a log, without waiting for the disk.

    A trial then outlives every end of the process; a power cut may lose the last ones, and leaves the file whole
    (sqlite.org/wal.html).
    """
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
