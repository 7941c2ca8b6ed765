"""What a report says of alternatives that were left out, or that no trial had."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import subbyte
from pages import rendered
from subbyte import OpConfig
from subbyte.report.tuning import as_html, as_json
from subbyte.report.tuning.ops import tuned_ops
from subbyte.report.tuning.table import conclusion
from subbyte.report.tuning.untried import left_out_groups, note_of, precision
from subbyte.tuning import LeftOut, TuneResult, width
from subbyte.tuning.paired import Interval


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    """Two layers of which one stays float, for want of trials."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    config = {"op_type_dict": {"Linear": {"weight": {"dtype": ["int4", "int8"]}, "activation": {"dtype": ["uint8"]}}}}

    def evaluate(tried: nn.Module) -> float:
        state: Any = getattr(tried, "subbyte_state", None)
        return 1.0 if state is None or state.config.op["2", "Linear"].is_float else 0.5

    storage = tmp_path_factory.mktemp("study") / "study.db"
    return subbyte.tune(
        model,
        torch.randn(16, 8),
        evaluate,
        config=config,
        strategy="conservative",
        max_trials=3,
        recover=[],
        storage=storage,
    )


def test_an_op_that_stays_float_says_what_was_not_tried(result: TuneResult) -> None:
    assert result.stopped_because == "max_trials"
    first, second = tuned_ops(result)
    (key,) = [key for key in result.wanted.alternatives if key[0] == second.name]
    tried = {trial.config.op[key] for trial in result.trials}
    left = [each for each in result.wanted.alternatives[key] if each not in tried and each not in result.left_out[key]]
    assert result.best.config.op[key].is_float
    assert set(result.untried[key]) == set(left)
    assert left
    assert second.note.startswith("not tried, as max_trials was reached: ")
    assert precision(max(left, key=width)) in second.note
    assert first.note == ""
    page, _ = rendered(as_html(result))
    assert second.note in page.words
    assert any("alternatives of" in line and "fp32 without a trial of all the others: 2" in line
               for line in conclusion(result))  # fmt: skip


def test_an_op_whose_quantized_alternatives_were_left_out_says_so(result: TuneResult) -> None:
    key = ("2", "Linear")
    every = result.wanted.alternatives[key]
    int8 = [each for each in every if each.weight is not None and each.weight.dtype.bits == 8]
    left_out = {key: dict.fromkeys(int8, LeftOut(OpConfig(), 0.0, 0.0))}
    only = replace(result, trials=[replace(result.best, number=0)], left_out=left_out)
    assert note_of(only, key).startswith(f"left out because they save nothing: {precision(int8[0])}; not tried")


def test_what_was_left_out_is_listed_with_its_reason(result: TuneResult) -> None:
    every = result.wanted.alternatives["0", "Linear"]
    wide, narrow = (next(each for each in every if each.weight and each.weight.dtype.bits == bits) for bits in (8, 4))
    exact, measured = LeftOut(wide, 0.0, 0.0), LeftOut(OpConfig(), 6e-7, 1e-7)
    left_out = {("0", "Linear"): {narrow: exact, wide: measured}, ("2", "Linear"): {narrow: exact}}
    latency = replace(result.wanted.goal, weights={"latency": 1.0})
    found = replace(result, left_out=left_out, wanted=replace(result.wanted, goal=latency))
    groups = {(group.alternatives, group.ops): group.reason for group in left_out_groups(found)}
    assert groups == {
        ((precision(narrow),), ("0", "2")): f"narrower than {precision(wide)}, and saves nothing",
        ((f"{precision(wide)} (6e-07 seconds more, standard error 1e-07 seconds)",), ("0",)): (
            "narrower than fp32, and costs more"
        ),
    }
    assert f'"beside": "{wide}"' in as_json(replace(result, left_out=left_out))


def test_the_conclusion_says_what_stands_behind_the_loss(result: TuneResult) -> None:
    shown = replace(result.best, interval=Interval(0.003, -0.004, 0.0091, 1875), confirmed=True, met=True)
    assert (
        "criterion met: loss 0.3 % [-0.4 %, 0.91 %] of at most 1 % (with 90% confidence at most 0.91 %: 1,875 samples "
        "that took no part in the search)"
    ) in conclusion(replace(result, best=shown, criterion_met=True))[0]
    estimated = replace(result.best, loss=0.001, estimate=0.008, met=True)
    said = conclusion(replace(result, best=estimated, criterion_met=True))[0]
    assert said.startswith("criterion met: loss about 0.8 % of at most 1 % (an estimate; measured: 0.1 %.")


@pytest.mark.parametrize(
    ("reason", "said"), [("strategy", "nothing more to propose"), ("timeout", "the time was over"),
                         ("good_enough", "a trial was good enough")]
)  # fmt: skip
def test_the_conclusion_says_why_the_search_stopped(result: TuneResult, reason: Any, said: str, tmp_path: Path) -> None:
    assert any(said in line for line in conclusion(replace(result, stopped_because=reason)))
