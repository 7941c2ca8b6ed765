"""Files that are torn, full, missing or not ours."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import optuna
import pytest
from small_search import SmallModel, search_small
from torch import nn

from subbyte import TuneConfig, TuningError
from subbyte.tuning import Proposals, Search, best_configuration
from subbyte.tuning.candidate import Candidate
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


@pytest.mark.parametrize("cut", [1, 20])
def test_a_journal_that_ends_in_half_a_line_is_mended(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "s.journal"
    study = Study(file, IDENTITY, "small")
    study.add(record("a"))
    study.add(record("b"))
    file.write_bytes(file.read_bytes()[:-cut])
    taken_up = Study(file, IDENTITY, "small")
    assert [each.key for each in taken_up.records()] == ["a"]
    taken_up.add(record("c"))
    taken_up.add(record("d"))
    assert [each.key for each in taken_up.records()] == ["a", "c", "d"]
    assert [each.key for each in Study(file, IDENTITY, "small").records()] == ["a", "c", "d"]


def test_half_a_line_of_another_process_is_cut_before_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "s.journal"
    study = Study(file, IDENTITY, "small")
    with file.open("a") as other:
        other.write('{"op_code":4,"wor')
    study.add(record("a"))
    assert [each.key for each in study.records()] == ["a"]


def test_what_is_no_journal_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "notes.journal"
    file.write_text("a single line")
    with pytest.raises(TuningError, match=r"notes\.journal is no journal"):
        Study(file, IDENTITY, "small")
    assert file.read_text() == "a single line"


def test_damage_to_a_journal_in_use_is_named(tmp_path: Path) -> None:
    file = tmp_path / "s.journal"
    study = Study(file, IDENTITY, "small")
    with file.open("a") as other:
        other.write("{neither\n{nor\n")
    for use in (study.records, lambda: study.baseline, lambda: study.add(record("a"))):
        with pytest.raises(TuningError, match=r"s\.journal cannot be"):
            use()


def test_a_full_disk_is_named_and_the_search_goes_on_later(tmp_path: Path) -> None:
    file = tmp_path / "s.journal"
    study = Study(file, IDENTITY, "small")
    refused = pytest.raises(TuningError, match=r"study 'small' in .*s\.journal cannot be written: .*space")
    with refused, no_space_beyond(1000):
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
    for name in ("typo.db", "typo.journal"):
        with pytest.raises(TuningError, match=rf"there is no file .*{name}"):
            best_configuration(tmp_path / name)
    with pytest.raises(TuningError, match="there is no file"):
        best_configuration(f"sqlite:///{tmp_path / 'typo.db'}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["{}/s.db", "{}/s.journal", "sqlite:///{}/s.db"])
def test_a_missing_folder_is_named(tmp_path: Path, form: str) -> None:
    with pytest.raises(TuningError, match=r"there is no folder .*none; create it first$"):
        Study(form.format(tmp_path / "none"), IDENTITY)


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
        result = search_small(accuracy, tmp_path / "s.journal", study="small", strategy=strategy, max_trials=most)
        counts.append(len(result.trials))
    assert counts == [4, 4, 6, 6]


def recovered(search: Search) -> Proposals:
    """One candidate, recovered."""
    yield [Candidate(search.space.widest(), recovered=True)]


def test_recovery_methods_of_the_best_are_named(tmp_path: Path) -> None:
    storage: Any = tmp_path / "s.journal"
    with (
        patch.dict(registry._STRATEGIES, {"recovered": recovered}),
        patch.object(Search, "realized", lambda search, candidate: candidate.config),
        patch.object(Search, "converted", lambda search, candidate: nn.Identity()),
        patch("subbyte.tuning.tune.check_recipes"),
    ):
        methods: Any = ["bias_correction"]
        result = search_small(accuracy, storage, study="small", strategy="recovered", recipes=methods, seed=7)
    assert result.best.recovered
    with pytest.warns(UserWarning, match=r"recovered by 'bias_correction'; seed 7; give quantize the same recover="):
        assert best_configuration(storage, "small") == result.best.config


def test_no_recovery_methods_are_named_where_none_ran(tmp_path: Path) -> None:
    study = Study(tmp_path / "s.journal", IDENTITY, "small")
    study.keep_best(Trial(0, TuneConfig({}), {"metric": 1.0}, 0.0, {}, 1.0, True), "bias_correction; seed 0")
    best_configuration(tmp_path / "s.journal")  # a warning would be an error
