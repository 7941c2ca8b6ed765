"""Where studies are: a file or a database."""

import os
import time
import warnings
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, get_storage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from sqlalchemy import URL, make_url

from subbyte.errors import TuningError

DEFAULT_FILE = "subbyte-tuning.db"
_WAIT = 60.0  # seconds that a process waits for another one's writing
_TRIES = 3  # to open a database
_PAUSE = 0.5  # seconds between them
_JOURNAL = ".journal"
_LINE = b'{"op_code":'  # as all lines of a journal begin


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
    if not isinstance(storage, str | Path) or storage == "":
        raise TuningError(f"storage is a file, the URL of a database or an Optuna storage, not {storage!r}")
    file = file_of(storage)
    if file is not None and file.is_dir():
        raise TuningError(f"the study's storage {storage} is a folder; name a file in it, as {DEFAULT_FILE}")
    if file is not None and not file.parent.is_dir():
        raise TuningError(
            f"the study's storage {storage} cannot be opened: there is no folder {file.parent}; create it first"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return get_storage(_opened(storage))
    except TuningError:
        raise
    except Exception as error:  # of whichever database
        raise TuningError(f"the study's storage {displayed(storage)} cannot be opened: {cause_of(error)}") from error


def displayed(storage: Any) -> str:
    """As it is named to the user: without the password that the URL of a database may hold."""
    try:
        return make_url(str(storage)).render_as_string(hide_password=True) if "://" in str(storage) else str(storage)
    except sqlalchemy.exc.ArgumentError:
        return "(a URL that cannot be read)"


def file_of(storage: Any) -> Path | None:
    """The file that a storage is kept in; None where it is a database's server, or an Optuna storage.

    Raises:
        TuningError: it is SQLite without a file.
    """
    if not isinstance(storage, str | Path):
        return None
    if "://" not in str(storage):
        return Path(storage)
    if not str(storage).startswith("sqlite"):
        return None
    name = make_url(str(storage)).database
    if name in (None, "", ":memory:"):
        raise TuningError(
            f"the study's storage {storage} is no file, and would be lost with this process; name a file, or give "
            "optuna.storages.InMemoryStorage() to keep nothing"
        )
    return Path(str(name).removeprefix("file:"))


def cause_of(error: BaseException) -> str:
    """What went wrong at the bottom: databases wrap it, and add advice on other matters."""
    while (deeper := getattr(error, "orig", None) or error.__cause__) is not None:
        error = deeper
    return f"{type(error).__name__}: {error}"


def _opened(storage: str | Path) -> BaseStorage:
    if "://" in str(storage):
        return _sqlite(str(storage)) if str(storage).startswith("sqlite") else _database(str(storage))
    if Path(storage).suffix == _JOURNAL:
        return JournalStorage(JournalFileBackend(str(storage), _MendingLock(str(storage))))
    url = URL.create("sqlite", database=str(Path(storage).absolute()))  # quotes what has a meaning in URLs
    return _sqlite(url.render_as_string(hide_password=False))


class _MendingLock(JournalFileSymlinkLock):
    """Who takes the lock of a journal to write finds whole lines.

    A process that was killed while it wrote leaves half a line. Readers pass over the last line while it is not ended;
    but what is written behind it would make a line of it that nobody can read.
    """

    def acquire(self) -> bool:
        taken = super().acquire()
        try:
            _cut_half_line(Path(self._lock_target_file))
        except BaseException:
            self.release()
            raise
        return taken


def _cut_half_line(journal: Path) -> None:
    with journal.open("rb+") as file:
        if not (length := file.seek(0, os.SEEK_END)):
            return
        file.seek(length - 1)
        if file.read() == b"\n":
            return
        file.seek(0)
        half = file.read().rpartition(b"\n")[2]
        if half[: len(_LINE)] != _LINE[: len(half)]:
            raise TuningError(f"{journal} is no journal of Optuna; give another storage")
        file.truncate(length - len(half))


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
