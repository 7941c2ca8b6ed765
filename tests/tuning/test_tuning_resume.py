"""A search that was stopped goes on where it was; what goes wrong in a trial is in its record."""

import multiprocessing
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import optuna
import pytest
from small_search import Logged, SmallModel, be_interrupted, die, lines, run_alone, search_small, shown

import subbyte
from subbyte import TuningError
from subbyte.cli.digits import load_digits, trained_network
from subbyte.tuning import Accuracy, Limits, best_configuration
from subbyte.tuning.study import Study

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["subbyte"])


def stop(count: int) -> None:
    if count == 4:
        raise KeyboardInterrupt


def tried(log: Path) -> list[str]:
    """What was evaluated but the float model, which every search evaluates."""
    return [line for line in lines(log) if line != "float"]


def of_float(metric: float, others: float = 0.0, raised: bool = False) -> Any:
    """Evaluations of the same code: of the float model, of others; the fourth call may be interrupted."""

    def evaluate(config: Any) -> float:
        calls.append(config)
        if raised and len(calls) == 4:
            raise KeyboardInterrupt
        return metric if config is None else others

    calls: list[Any] = []
    return evaluate


def failing(fault: Any) -> Any:
    """An evaluation whose third trial goes wrong; the float model is the first call."""

    def evaluate(config: Any) -> Any:
        calls.append(config)
        if len(calls) == 4:
            return fault()
        return 1.0 if config is None else 0.999

    calls: list[Any] = []
    return evaluate


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3000:] = b"\x07" * (len(content) - 3000)
    path.write_bytes(content)


@pytest.fixture
def whole(tmp_path: Path) -> Any:
    """The search without interruption."""
    return search_small(Logged(tmp_path / "whole.log"), tmp_path / "whole.db")


@pytest.mark.parametrize(("at", "code"), [(die, -signal.SIGKILL), (be_interrupted, 1)])
def test_a_killed_process_loses_only_the_trial_that_ran(tmp_path: Path, whole: Any, at: Any, code: int) -> None:
    storage, log = tmp_path / "s.db", tmp_path / "s.log"
    process = PROCESSES.Process(target=run_alone, args=(storage, log, at))
    process.start()
    process.join(60)
    assert process.exitcode == code
    assert len(lines(log)) == 4  # the float model and three trials
    assert shown(best_configuration(storage, "small")) in lines(log)[1:]
    result = search_small(Logged(log), storage, study="small")
    assert [trial.config for trial in result.trials] == [trial.config for trial in whole.trials]
    assert result.best.config == whole.best.config
    assert len(tried(log)) == len(set(tried(log))) == len(whole.trials)


def test_an_interrupted_search_is_taken_up_without_a_name(tmp_path: Path, whole: Any) -> None:
    storage, log = tmp_path / "s.db", tmp_path / "s.log"
    with pytest.raises(KeyboardInterrupt):
        search_small(Logged(log, at=stop), storage)
    result = search_small(Logged(log), storage)
    assert len(tried(log)) == len(set(tried(log))) == len(whole.trials)
    assert result.best.config == whole.best.config
    again = search_small(Logged(log), storage)
    assert again.study != result.study
    assert len(tried(log)) == 2 * len(whole.trials)
    assert len(lines(log)) == 3 + len(tried(log))


def test_an_exception_of_whoever_watches_loses_no_trial(tmp_path: Path, whole: Any) -> None:
    def watch(trials: Any) -> None:
        if len(trials) == 3:
            raise RuntimeError("watching failed")

    storage, log = tmp_path / "s.db", tmp_path / "s.log"
    with pytest.raises(RuntimeError, match="watching failed"):
        search_small(Logged(log), storage, watch=watch)
    assert len(lines(log)) == 4
    search_small(Logged(log), storage)
    assert len(tried(log)) == len(set(tried(log))) == len(whole.trials)


def test_no_time_gives_the_best_of_what_there_is(tmp_path: Path) -> None:
    storage, log = tmp_path / "s.db", tmp_path / "s.log"
    with pytest.raises(KeyboardInterrupt):
        search_small(Logged(log, at=stop), storage, study="small")
    result = search_small(Logged(log), storage, study="small", timeout=0)
    assert len(lines(log)) == 4
    assert len(result.trials) == 3
    assert result.best.config == best_configuration(storage)


def test_trials_of_another_strategy_count_in_the_same_study(tmp_path: Path, whole: Any) -> None:
    storage, log = tmp_path / "s.db", tmp_path / "s.log"
    search_small(Logged(log), storage, study="small")
    result = search_small(Logged(log), storage, study="small", strategy="exhaustive", max_trials=1)
    assert result.best.config == whole.best.config
    assert [trial.number for trial in result.trials] == list(range(len(result.trials)))


@pytest.mark.parametrize("limits", [{"max_trials": 1}, {"timeout": 0}])
@pytest.mark.parametrize(("max_loss", "met"), [(0.4, True), (1e-12, False)])
def test_the_end_of_trials_or_time_gives_the_best(tmp_path: Path, limits: Any, max_loss: float, met: bool) -> None:
    result = search_small(Logged(tmp_path / "log"), tmp_path / "s.db", accuracy=Accuracy(max_loss), **limits)
    assert len(result.trials) == 1
    assert result.criterion_met is met
    assert result.model is not None


def test_a_strategy_without_proposals_gives_the_widest_model(tmp_path: Path) -> None:
    result = search_small(Logged(tmp_path / "log"), tmp_path / "s.db", strategy="nothing")
    assert result.criterion_met
    assert all(config.is_float for config in result.best.config.op.values())


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (lambda: float("nan"), "nan"),
        (lambda: "good", "must be a number"),
        (lambda: None, "must be a number"),
        (lambda: {"other": 1.0}, "other"),
        (lambda: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_trial_that_fails_is_recorded_and_the_search_goes_on(tmp_path: Path, fault: Any, problem: str) -> None:
    result = search_small(failing(fault), tmp_path / "s.db", study="small")
    (failed,) = [trial for trial in result.trials if trial.failed]
    assert failed.number == 2
    assert problem in failed.problem
    assert len(result.trials) > 3
    assert result.criterion_met
    (kept,) = [trial for trial in optuna.load_study(study_name="small", storage=f"sqlite:///{tmp_path / 's.db'}").trials
               if trial.state is optuna.trial.TrialState.FAIL]  # fmt: skip
    assert problem in kept.user_attrs["record"]["problem"]


def test_all_trials_fail_and_a_model_comes_back(tmp_path: Path) -> None:
    result = search_small(lambda config: 1.0 if config is None else 1 / 0, tmp_path / "s.db")
    assert not result.criterion_met
    assert all(trial.failed for trial in result.trials)
    assert result.model is not None


def test_the_float_model_is_evaluated_three_times_before_it_fails(tmp_path: Path) -> None:
    def evaluate(config: Any) -> float:
        calls.append(config)
        raise LookupError(f"no labels, call {len(calls)}")

    calls: list[Any] = []
    with pytest.raises(LookupError, match="call 3") as raised:
        search_small(evaluate, tmp_path / "s.db")
    assert raised.traceback[-1].name == "evaluate"
    assert calls == [None] * 3


def test_the_float_model_may_fail_twice(tmp_path: Path) -> None:
    faults = iter([OSError("the disk"), OSError("the disk")])

    def evaluate(config: Any) -> float:
        for fault in faults:
            raise fault
        return 1.0

    assert search_small(evaluate, tmp_path / "s.db").baseline == 1.0


@pytest.mark.parametrize(
    ("what", "said"), [("model", "weights"), ("data", "data"), ("alternatives", "may have"), ("evaluation", "code")]
)
def test_a_study_of_another_search_is_refused(tmp_path: Path, what: str, said: str) -> None:
    identity = {"model": "a", "data": "b", "alternatives": "c", "evaluation": "d"}
    Study(tmp_path / "s.db", identity, "small")
    with pytest.raises(TuningError, match=rf"study 'small' is of another search: [^;]*{said}[^;]*differ"):
        Study(tmp_path / "s.db", identity | {what: "other"}, "small")


def test_another_evaluation_of_the_same_code_is_refused(tmp_path: Path) -> None:
    storage = tmp_path / "s.db"
    with pytest.raises(KeyboardInterrupt):
        search_small(of_float(0.1, 0.1, raised=True), storage, study="small")
    with pytest.raises(
        TuningError, match=r"study 'small' is of another search: .*metric 0\.1 there, and metric 0\.9 now"
    ):
        search_small(of_float(0.9), storage, study="small")
    assert search_small(of_float(0.9), storage, study="small", timeout=0).baseline == 0.1  # nothing is evaluated
    assert search_small(of_float(0.1001, 0.1), storage, study="small").baseline == 0.1  # noise


def test_another_evaluation_of_the_same_code_begins_a_new_study(tmp_path: Path) -> None:
    storage = tmp_path / "s.db"
    with pytest.raises(KeyboardInterrupt):
        search_small(of_float(0.1, 0.1, raised=True), storage)
    with pytest.raises(KeyboardInterrupt):
        search_small(of_float(0.9, raised=True), storage)
    first = search_small(of_float(0.1, 0.1), storage)
    second = search_small(of_float(0.9), storage)
    assert (first.baseline, second.baseline) == (0.1, 0.9)
    assert {trial.metric for trial in first.trials} == {0.1}
    assert {trial.metric for trial in second.trials} == {0.0}
    assert first.study != second.study
    assert len(optuna.get_all_study_names(f"sqlite:///{storage}")) == 2


def test_a_study_of_another_criterion_is_judged_anew(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lenient = search_small(Logged(log), tmp_path / "s.db", study="small", accuracy=Accuracy(0.45))
    strict = search_small(
        Logged(log), tmp_path / "s.db", study="small", accuracy=Accuracy(1e-6, "absolute"), max_trials=1
    )
    assert all(trial.met for trial in lenient.trials)
    assert not strict.criterion_met
    assert {str(trial.config) for trial in strict.trials} == {str(trial.config) for trial in lenient.trials}
    assert len(tried(log)) == len(lenient.trials)


def test_a_study_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    study = optuna.create_study(study_name="small", storage=f"sqlite:///{tmp_path / 's.db'}")
    study.add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(TuningError, match="study 'small' was not made by subbyte"):
        search_small(Logged(tmp_path / "log"), tmp_path / "s.db", study="small")


@pytest.mark.parametrize("storage", [3, None, "nowhere://x", "/proc/none/s.db"])
def test_a_storage_that_cannot_be_opened(storage: Any) -> None:
    with pytest.raises(TuningError, match=r"storage"):
        Study(storage, {"model": "a"})


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.db").write_text("{no study\n{neither\n" * 100)
    with pytest.raises(TuningError, match=r"s\.db cannot be"):
        Study(tmp_path / "s.db", {"model": "a"})


def test_a_file_damaged_in_the_middle_is_named(tmp_path: Path) -> None:
    search_small(Logged(tmp_path / "log"), tmp_path / "s.db", study="small")
    for left in tmp_path.glob("s.db-*"):
        left.unlink()
    damage(tmp_path / "s.db")
    with pytest.raises(TuningError, match=r"s\.db cannot be"):
        search_small(Logged(tmp_path / "log"), tmp_path / "s.db", study="small")


def test_there_is_no_best_yet(tmp_path: Path) -> None:
    Study(tmp_path / "s.db", {"model": "a"}, "small")
    with pytest.raises(TuningError, match=r"no trial of study 'other' that did not fail \(studies: small\)"):
        best_configuration(tmp_path / "s.db", "other")


@pytest.mark.parametrize("limits", [{"max_trials": 0}, {"max_trials": 2.5}, {"timeout": -1}, {"timeout": "1 h"}])
def test_limits_that_are_none(limits: Any) -> None:
    with pytest.raises(TuningError, match=next(iter(limits))):
        Limits(**{"max_trials": 3} | limits)


def test_trials_of_other_recovery_methods_are_not_taken_over(tmp_path: Path) -> None:
    train, test = load_digits(seed=0)
    model = trained_network(train, seed=0)
    for methods in (["bias_correction"], ["equalize"], None):
        result = subbyte.tune(
            model,
            [train.images[:64]],
            test.accuracy,
            recover=methods,
            max_trials=16,
            storage=tmp_path / "s.db",
            study="a",
        )
        assert result.best.metric == test.accuracy(result.model)
        assert methods is not None or not any(trial.recovered for trial in result.trials)


def test_a_search_that_ends_before_its_model_is_made_is_taken_up(tmp_path: Path, whole: Any) -> None:
    storage, log = tmp_path / "s.db", tmp_path / "s.log"
    with patch.object(SmallModel, "quantize", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        search_small(Logged(log), storage)
    assert search_small(Logged(log), storage).best.config == whole.best.config
    assert len(tried(log)) == len(set(tried(log))) == len(whole.trials)


@pytest.mark.parametrize("name", ["what?.db", "20%20.db", "a#b.db", "a b.db"])
def test_a_file_has_the_name_that_it_was_given(tmp_path: Path, name: str) -> None:
    search_small(Logged(tmp_path / "log"), tmp_path / name, study="small")
    assert (tmp_path / name).is_file()
    assert best_configuration(tmp_path / name, "small").op
