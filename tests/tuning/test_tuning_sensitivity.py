"""What is measured of each op before the first trial."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from fake import FLOAT, FakeModel, pair, search_of
from optuna.storages import InMemoryStorage
from torch import nn

import subbyte
from subbyte import OpConfig, TuneConfig
from subbyte.adaptor import OutputError, Recover
from subbyte.algorithms import as_methods
from subbyte.errors import RecoveryError
from subbyte.tuning.ladder import bits
from subbyte.tuning.search import Search, TimeIsOverError
from subbyte.tuning.sensitivity import Parts, errors_of, parts_of, recovered_parts

WIDE, NARROW = pair(8), pair(3)
KEY = ("a", "Linear")


class Recovering(FakeModel):
    """Two ops that may have the same weights."""

    def __init__(self) -> None:
        alternatives = dict.fromkeys("ab", (WIDE, NARROW, FLOAT))
        super().__init__({"a": 10, "b": 20}, {"a": 1.0, "b": 2.0}, alternatives)
        self.batches = ["a batch"]


@pytest.fixture
def recovering(monkeypatch: pytest.MonkeyPatch) -> tuple[Search, list[tuple[Any, ...]]]:
    calls: list[tuple[Any, ...]] = []

    def recover(model: Any, methods: Any, batches: Sequence[Any], *, seed: int, **options: Any) -> None:
        assert options["quick"]
        calls.append((model, methods, batches, seed))

    monkeypatch.setattr("subbyte.tuning.search.recover", recover)
    return search_of(Recovering(), recipes=as_methods("gptq"), seed=3), calls


def measured(search: Search) -> Parts:
    return parts_of(search, {op.key: search.useful(op.key) for op in search.space.tunable})


def test_what_recovery_leaves_is_measured_on_all_ops_at_once(recovering: Any) -> None:
    search, calls = recovering
    plain = measured(search)
    found = recovered_parts(search, plain)
    narrow = OpConfig(weight=NARROW.weight, quant_mode="weight_only")
    ((config, methods, data, seed),) = calls  # eight bits do too little, inputs are not what the methods change
    assert config.op == dict.fromkeys(plain, narrow)
    assert (methods, data, seed) == (search.recipes, ["a batch"], 3)
    for key in plain:
        assert found[key][narrow].angle == pytest.approx(plain[key][narrow].angle / 4)
        assert found[key][narrow].squared == pytest.approx(plain[key][narrow].squared / 4)
        assert all(found[key][part] is plain[key][part] for part in plain[key] if part != narrow)


def test_weights_that_deviate_little_have_the_share_of_the_first_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    recovered: list[TuneConfig] = []
    monkeypatch.setattr("subbyte.tuning.search.recover", lambda model, *given, **options: recovered.append(model))
    search = search_of(FakeModel({"a": 10}, {"a": 10.0}), recipes=as_methods("gptq"))
    plain = measured(search)
    found = recovered_parts(search, plain)
    widths = [bits(config.op[KEY].weight) for config in recovered]
    angles = {bits(part.weight): error.angle for part, error in plain[KEY].items() if part.weight is not None}
    assert widths == sorted(widths)
    assert [width for width in widths if angles[width] <= 0.02] == widths[-1:]
    for part, error in found[KEY].items():
        helped = part.weight is not None and bits(part.weight) > 2  # as FakeModel is
        assert error.angle == pytest.approx(plain[KEY][part].angle / (4 if helped else 1))


class Broken(FakeModel):
    """With a weight of four bits, outputs are NaN."""

    def error(self, config: TuneConfig, recover: Recover | None = None) -> OutputError:
        found = super().error(config, recover)
        if bits(config.op[KEY].weight) == 4:
            return OutputError(float("nan"), np.full_like(found.deviation, np.nan))
        return found


def test_weights_whose_outputs_are_nan_leave_the_shares_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subbyte.tuning.search.recover", lambda *given, **options: None)
    search = search_of(Broken({"a": 10}, {"a": 10.0}), recipes=as_methods("gptq"))
    plain = measured(search)
    found = recovered_parts(search, plain)
    shares = {
        bits(part.weight): found[KEY][part].angle / plain[KEY][part].angle
        for part in plain[KEY]
        if part.weight is not None
    }
    assert shares[4] == 1.0
    assert shares[3] == pytest.approx(0.25)
    assert shares[5] == pytest.approx(0.25)


@pytest.mark.parametrize("error", [RecoveryError("equalize needs two layers"), ValueError("a user's own method")])
def test_what_cannot_be_recovered_alone_counts_as_it_is(
    recovering: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    search, _ = recovering

    def refuse(*given: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr("subbyte.tuning.search.recover", refuse)
    plain = measured(search)
    assert recovered_parts(search, plain) == plain


def test_the_report_shows_errors_without_recovery(recovering: Any) -> None:
    search, _ = recovering
    recovered_parts(search, measured(search))
    narrow = OpConfig(weight=NARROW.weight, quant_mode="weight_only")
    assert search.part_errors[KEY][narrow] == pytest.approx(4.0**-3)


def test_there_may_be_no_time_to_measure(recovering: Any) -> None:
    search, calls = recovering
    plain = measured(search)
    search.is_late = lambda: True
    assert recovered_parts(search, plain) == plain
    assert not calls
    with pytest.raises(TimeIsOverError):
        measured(search)
    with pytest.raises(TimeIsOverError):
        errors_of(search, {KEY: [NARROW, WIDE]})


def test_methods_that_cannot_work_on_some_op_are_refused_and_may_pass_it_over() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4)).eval()
    data = [torch.randint(0, 9, (16, 3))]

    def search(recover: Any) -> subbyte.TuneResult:
        return subbyte.tune(model, data, lambda each: 1.0, recover=recover, max_trials=1, storage=InMemoryStorage())

    with pytest.raises(RecoveryError, match=r"no meaning for op '0' \(Embedding\)"):
        search("gptq")
    assert not any(trial.failed for trial in search({"gptq": {"unsupported": "skip"}}).trials)
