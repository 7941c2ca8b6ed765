"""Where studies are: a file or a database."""

import time
import warnings
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, get_storage
from optuna.storages.journal import JournalFileBackend
from sqlalchemy import URL

from subbyte.errors import TuningError

DEFAULT_FILE = "subbyte-tuning.db"
_WAIT = 60.0  # seconds that a process waits for another one's writing
_TRIES = 3  # to open a database
_PAUSE = 0.5  # seconds between them
_JOURNAL = ".journal"


def open_storage(storage: Any) -> BaseStorage:
    """An Optuna storage.

    Args:
        storage: one, the URL of a database, or a file: Optuna's journal where its name ends in `.journal`, which also
            file systems of a network can share, else SQLite.

    Raises:
        TuningError: it is none of these, or cannot be opened.
    """
    if isinstance(storage, BaseStorage):
        return storage
    if not isinstance(storage, str | Path):
        raise TuningError(f"storage is a file, the URL of a database or an Optuna storage, not {storage!r}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return get_storage(_opened(storage))
    except Exception as error:  # of whichever database
        raise TuningError(f"the study's storage {storage} cannot be opened: {type(error).__name__}: {error}") from error


def _opened(storage: str | Path) -> BaseStorage:
    if "://" in str(storage):
        return _sqlite(str(storage)) if str(storage).startswith("sqlite") else _database(str(storage))
    if Path(storage).suffix == _JOURNAL:
        return JournalStorage(JournalFileBackend(str(storage)))
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
