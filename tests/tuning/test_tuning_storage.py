"""Files that are torn, full, missing or not ours."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch
from urllib.parse import quote, unquote

import optuna
import pytest
from small_search import SmallModel, search_small
from torch import nn

from subbyte import TuneConfig, TuningError
from subbyte.tuning import Proposals, Search, best_configuration
from subbyte.tuning.candidate import Candidate
from subbyte.tuning.storage import displayed
from subbyte.tuning.strategies import registry
from subbyte.tuning.study import Record, Study
from subbyte.tuning.trial import Trial

IDENTITY = {"model": "a"}


def accuracy(config: TuneConfig | None) -> float:
    return 1.0 if config is None else 1 - SmallModel().error(config).squared


def record(key: str) -> Record:
    return Record(key, {"metric": 1.0}, 1.0, 1.0, "", (0.0, 1.0))


def add_many(study: Study) -> None:
    for index in range(100):
        study.add(record(f"{index}"))


@contextmanager
def no_space_beyond(size: int) -> Iterator[None]:
    """For any file that is written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_open_storage_refuses_a_journal(tmp_path: Path) -> None:
    file = tmp_path / "s.journal"
    file.write_text("kept")
    with pytest.raises(TuningError, match=r"s\.journal is an Optuna journal.*SQLite.*URL of a database"):
        Study(file, IDENTITY, "small")
    with pytest.raises(TuningError, match=r"s\.journal is an Optuna journal"):
        best_configuration(file)
    assert file.read_text() == "kept"


def test_a_full_disk_is_named_and_the_search_goes_on_later(tmp_path: Path) -> None:
    file = tmp_path / "s.db"
    study = Study(file, IDENTITY, "small")
    refused = pytest.raises(TuningError, match=r"study 'small' in .*s\.db cannot be written: .*space")
    room = max(each.stat().st_size for each in tmp_path.iterdir()) + 100_000
    with refused, no_space_beyond(room):
        add_many(study)
    kept = [each.key for each in Study(file, IDENTITY, "small").records()]
    Study(file, IDENTITY, "small").add(record("b"))
    assert kept
    assert [each.key for each in Study(file, IDENTITY, "small").records()] == [*kept, "b"]


def test_a_full_database_is_named(tmp_path: Path) -> None:
    study: Any = Study(tmp_path / "s.db", IDENTITY, "small")
    with study.storage._backend.engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=1")  # no more than there are
    refused = r"study 'small' in .*s\.db cannot be written: OperationalError: database or disk is full; see that there"
    with pytest.raises(TuningError, match=refused):
        add_many(study)


def test_to_look_for_a_study_makes_no_file(tmp_path: Path) -> None:
    for name in ("typo.db", "typo"):
        with pytest.raises(TuningError, match=rf"there is no file .*{name}"):
            best_configuration(tmp_path / name)
    with pytest.raises(TuningError, match="there is no file"):
        best_configuration(f"sqlite:///{tmp_path / 'typo.db'}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["{}/s.db", "sqlite:///{}/s.db"])
def test_a_missing_folder_is_named(tmp_path: Path, form: str) -> None:
    with pytest.raises(TuningError, match=r"there is no folder .*none; create it first$"):
        Study(form.format(tmp_path / "none"), IDENTITY)


SECRET = "top@se/cret"
URLS = [
    "postgresql://user:{}@host/db",
    "postgresql://user:{}@host:port/db",
    "mysql+nothing://user:{}@host/db",
    "nowhere://user:{}@host/db",
    "://user:{}@host",
    "postgresql://host/db?user=u&password={}",
    "sqlite://user:{}@",
]


def printed(error: BaseException | None) -> str:
    """The messages that the traceback of an error prints."""
    texts = []
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(texts)


@pytest.mark.parametrize("url", [*URLS, "postgresql:/user:{}@host/db", "postgresql://user:{}/db"])
def test_open_storage_error_hides_the_password(url: str) -> None:
    with pytest.raises(TuningError, match="storage") as raised:
        Study(url.format("topsecret"), IDENTITY)
    assert "secret" not in printed(raised.value)


@pytest.mark.parametrize("written", [SECRET, quote(SECRET, safe="")])
@pytest.mark.parametrize("url", URLS)
def test_displayed_hides_passwords_with_delimiters(url: str, written: str) -> None:
    assert "secret" not in displayed(url.format(written)).replace("se/cret", "secret")


@pytest.mark.parametrize("written", [SECRET, quote(SECRET, safe="")])
def test_database_errors_hide_the_password(monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    url = f"postgresql://user:{written}@host/db"

    def refuse(*arguments: Any) -> None:
        try:
            raise ConnectionError(f"cannot reach {url} with {unquote(written)}; check the host")
        except ConnectionError as error:
            raise RuntimeError(f"wrapped {url}") from error

    monkeypatch.setattr("subbyte.tuning.storage.RDBStorage", refuse)
    with pytest.raises(
        TuningError, match=r"user:\*\*\*@host/db cannot be opened: ConnectionError.*check the host"
    ) as raised:
        Study(url, IDENTITY)
    assert SECRET not in printed(raised.value)
    assert quote(SECRET, safe="") not in printed(raised.value)


def test_a_study_that_cannot_be_written_hides_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study: Any = Study(tmp_path / "s.db", IDENTITY, "small")
    monkeypatch.setattr(study, "_file", f"postgresql://user:{SECRET}@host/db")
    monkeypatch.setattr(study.storage, "create_new_trial", Mock(side_effect=OSError(f"refused for {SECRET}")))
    with pytest.raises(
        TuningError, match=r"user:\*\*\*@host/db cannot be written: OSError: refused for \*\*\*"
    ) as raised:
        study.add(record("a"))
    assert SECRET not in printed(raised.value)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_sqlite_in_memory_is_refused(url: str) -> None:
    with pytest.raises(TuningError, match=r"is no file.*InMemoryStorage"):
        Study(url, IDENTITY)


def test_a_study_in_memory() -> None:
    storage = optuna.storages.InMemoryStorage()
    result = search_small(accuracy, storage, study="small")
    assert best_configuration(storage, "small") == result.best.config


def test_max_trials_counts_all_that_the_study_keeps(tmp_path: Path) -> None:
    counts = []
    for strategy, most in (("pairs", 4), ("exhaustive", 4), ("exhaustive", 6), ("pairs", 5)):
        result = search_small(accuracy, tmp_path / "s.db", study="small", strategy=strategy, max_trials=most)
        counts.append(len(result.trials))
    assert counts == [4, 4, 6, 6]


def recovered(search: Search) -> Proposals:
    """One candidate, recovered."""
    yield [Candidate(search.space.widest(), "full")]


def test_recovery_methods_of_the_best_are_named(tmp_path: Path) -> None:
    storage: Any = tmp_path / "s.db"
    with (
        patch.dict(registry._STRATEGIES, {"recovered": recovered}),
        patch.object(Search, "realized", lambda search, candidate: candidate.config),
        patch.object(Search, "converted", lambda search, candidate: nn.Identity()),
        patch("subbyte.tuning.tune.checked_recipes", return_value=""),
    ):
        methods: Any = ["bias_correction"]
        result = search_small(accuracy, storage, study="small", strategy="recovered", recipes=methods, seed=7)
    assert result.best.recovered
    with pytest.warns(UserWarning, match=r"recovered by 'bias_correction'; seed 7; give quantize the same recover="):
        assert best_configuration(storage, "small") == result.best.config


def test_no_recovery_methods_are_named_where_none_ran(tmp_path: Path) -> None:
    study = Study(tmp_path / "s.db", IDENTITY, "small")
    study.keep_best(Trial(0, TuneConfig({}), {"metric": 1.0}, 0.0, {}, 1.0, True), "bias_correction; seed 0")
    best_configuration(tmp_path / "s.db")  # a warning would be an error
