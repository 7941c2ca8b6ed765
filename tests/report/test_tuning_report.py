"""TuneResult.report: what page, figures and lines say of a search."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import subbyte
from networks import ResidualNet, randomized, seeded
from pages import Page, rendered
from subbyte import ConfigError, TuneConfig
from subbyte.report.tuning import as_html, as_json
from subbyte.report.tuning.ops import tuned_ops
from subbyte.report.tuning.sensitivities import input_sensitivities, weight_perturbations, weight_sensitivities
from subbyte.report.tuning.words import compact, duration
from subbyte.tuning import Measured, Trial, TuneResult, pareto, width

SPITEFUL = "<b>& 'no' </title>"


class Closeness:
    """One minus the distance of a model's outputs from the float model's; its fourth call fails."""

    def __init__(self, model: nn.Module, data: Tensor) -> None:
        self.data, self.calls = data, 0
        with torch.no_grad():
            self.expected = model(data)

    def __call__(self, model: nn.Module) -> dict[str, float]:
        self.calls += 1
        if self.calls == 4:
            raise ValueError(SPITEFUL)
        with torch.no_grad():
            error = (model(self.data) - self.expected).norm() / self.expected.norm()
        return {SPITEFUL: 1 - float(error)}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    model, data = randomized(ResidualNet(6)).eval(), seeded((8, 3, 8, 8))
    storage = tmp_path_factory.mktemp("study") / "study.db"
    return subbyte.quantization.tune(
        model, data, Closeness(model, data), max_loss=0.05, max_trials=9, storage=storage, budgets={"bops": 1e9}
    )


@pytest.fixture(scope="module")
def text(result: TuneResult) -> str:
    return as_html(result)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def rows_of(text: str, table: str) -> list[str]:
    start = text.index(f'<table id="{table}">')
    return text[start : text.index("</table>", start)].split("<tr")[2:]


def test_the_page_needs_nothing_else(page: Page, text: str) -> None:
    page.check_alone(text)
    assert text.startswith("<!DOCTYPE html>")


def test_names_are_text_to_the_page(page: Page, text: str) -> None:
    assert SPITEFUL not in text
    assert SPITEFUL in page.words  # the metric, in the table of outcomes
    assert f"ValueError: {SPITEFUL}" in page.words


def test_every_trial_is_a_mark(result: TuneResult, page: Page) -> None:
    failed = [trial for trial in result.trials if trial.failed]
    assert len(failed) == 1
    usable = len(result.trials) - 1
    assert len(page.of("circle", "mark")) == usable * 4  # two objectives, losses, costs
    assert len(page.of("circle", "best")) == 4
    met = sum(trial.met for trial in result.trials)
    assert len(page.of("circle", "met")) == (met - 1) * 4  # the best is drawn as such
    assert len(page.of("path", "failed")) == 2
    assert len(page.of("polyline", "front")) == 2


def test_the_best_is_drawn_as_such(result: TuneResult, text: str) -> None:
    drawn = re.findall(r'class="mark best".*?<title>trial (\d+):', text)
    assert drawn == [str(result.best.number)] * 4


def test_marks_stand_where_their_figures_say(result: TuneResult, page: Page) -> None:
    usable = [trial for trial in result.trials if not trial.failed]
    circles = page.of("circle", "mark")[: len(usable)]
    xs, sizes = [float(circle["cx"]) for circle in circles], [trial.objectives["size"] for trial in usable]
    slope = (max(xs) - min(xs)) / (max(sizes) - min(sizes))
    assert xs == pytest.approx([min(xs) + slope * (size - min(sizes)) for size in sizes], abs=0.02)
    ys, losses = [float(circle["cy"]) for circle in circles], [trial.loss for trial in usable]
    tolerable = float(page.of("polyline", "most")[0]["points"].split(",")[1].split()[0])
    assert [y >= tolerable for y in ys] == [loss <= 0.05 for loss in losses]
    low, mid = sorted(zip(losses, ys, strict=True))[:2]
    per_loss = (low[1] - tolerable) / (0.05 - low[0])
    assert mid[1] == pytest.approx(low[1] - per_loss * (mid[0] - low[0]), abs=0.05)


def test_the_map_shows_bits_of_weight_and_inputs(result: TuneResult, page: Page, text: str) -> None:
    ops = tuned_ops(result)
    assert [op.name for op in ops] == ["conv1", "conv2", "add", "linear"]
    assert len(page.of("rect", "cell")) == 3 + 4  # the add has no weight
    bars = [float(bar["height"]) for bar in page.of("rect", "bytes")]
    most = max(op.bytes for op in ops)
    assert bars == pytest.approx([60 * op.bytes / most for op in ops])
    for op, row in zip(ops, subbyte.summary(result.model).rows, strict=True):
        assert (op.bytes, op.realized) == (row["bytes"], row["realized"])
    assert len(page.of("text", "bits")) == 7


def test_requested_and_realized_are_compared(result: TuneResult, text: str) -> None:
    ops = tuned_ops(result)
    assert all(op.as_requested for op in ops)
    assert {op.name: op.requested for op in ops} == {
        name: str(config) for (name, _), config in result.best.config.op.items()
    }
    assert not [row for row in rows_of(text, "ops") if 'class="other"' in row]
    # What the model has is read off the model: another model is told apart.
    other = replace(result, model=subbyte.quantize(ResidualNet(6).eval(), "w8a8", seeded((8, 3, 8, 8))))
    differing = [op.name for op in tuned_ops(other) if not op.as_requested]
    assert differing
    assert len([row for row in rows_of(as_html(other), "ops") if 'class="other"' in row]) == len(differing)


def test_wider_rungs_are_counted(result: TuneResult, page: Page) -> None:
    def bits(text: str | None) -> list[int]:
        return [int("".join(filter(str.isdigit, word))) for word in (text or "").split() if ":" in word]

    ops = tuned_ops(result)
    for op in ops:
        asked = [32, 32] if op.requested == "fp32" else bits(op.requested)
        assert op.wider == (sum(asked) > sum(bits(op.narrowest)))
    wider = sum(op.wider for op in ops)
    assert wider > 0
    assert f"{wider} of 4 ops that had a choice were given a wider rung than their narrowest." in page.words


def test_the_narrowest_rung_is_not_wider(result: TuneResult) -> None:
    narrow = {key: min(found, key=width) for key, found in result.wanted.alternatives.items()}
    best = replace(result.best, config=TuneConfig(narrow))
    assert not any(op.wider for op in tuned_ops(replace(result, best=best)))


def test_sensitivities_of_weights_and_inputs_stand_apart(result: TuneResult, page: Page) -> None:
    weights, inputs = weight_sensitivities(result), input_sensitivities(result)
    assert [name for name, _ in weights.rows] == ["conv1", "conv2", "linear"]
    assert [name for name, _ in inputs.rows] == ["conv1", "conv2", "linear"]  # an add saves no bytes by narrow inputs
    assert weights.columns == tuple(f"int{bits}" for bits in range(2, 9))
    for _, errors in weights.rows:
        assert errors[0] > errors[3] > errors[6] > 0  # measured: narrower types err more
    for (name, kind), errors in result.errors.items():  # what the strategy used is their sum, as vectors
        config = result.best.config.op[name, kind]
        shown = [dict(found.rows).get(name) for found in (weights, inputs)]
        chosen = [dict(zip([n for n, _ in found.rows], found.chosen, strict=True)).get(name)
                  for found in (weights, inputs)]  # fmt: skip
        parts = [row[index] for row, index in zip(shown, chosen, strict=True) if row is not None and index is not None]
        lengths = [part**0.5 for part in parts]
        most, least = sum(lengths), max([0.0, *(2 * length - sum(lengths) for length in lengths)])
        assert least * (1 - 1e-6) <= errors[config] ** 0.5 <= most * (1 + 1e-6)
    framed = [index for found in (weights, inputs) for index in found.chosen if index is not None]
    assert len(page.of("td", "chosen")) == len(framed) > 0


def test_a_strategy_that_measures_none_says_so(result: TuneResult) -> None:
    words = Page(as_html(replace(result, errors={}, part_errors={}))).words
    assert words.count("Strategy sensitivity measured none.") == 2


def test_perturbations_of_the_loss_are_called_that(result: TuneResult) -> None:
    key = ("conv1", "Conv2d")
    weights = [part for part in result.part_errors[key] if part.weight is not None]
    perturbations = {key: {part: 1.5 * number for number, part in enumerate(weights, 1)}}
    found = replace(result, errors={}, part_errors={}, perturbations=perturbations)
    assert weight_perturbations(found).rows == (("conv1", (10.5, 9.0, 7.5, 6.0, 4.5, 3.0, 1.5)),)
    page = Page(as_html(found))
    assert "Perturbation of the loss by the weights of one op alone quantized" in page.words
    assert {"1.5", "10.5"} <= set(page.words)  # no shares of an output
    assert len(page.of("td", "chosen")) == 1
    assert [each["name"] for each in json.loads(as_json(found))["perturbations"]] == ["conv1"]
    assert not any("Perturbation" in word for word in Page(as_html(result)).words)


def test_what_came_of_it_is_said_first(result: TuneResult, page: Page) -> None:
    assert result.criterion_met
    said = " ".join(page.words)
    totals = subbyte.summary(result.model).totals
    assert f"model: {totals['bytes']:,} bytes, {totals['float_bytes']:,} in float" in said
    assert "criterion met: loss" in said
    assert f"{len(result.trials)} trials of at most 9, 1 failed" in said
    words = Page(as_html(replace(result, criterion_met=False))).words
    assert any(word.startswith("criterion not met: loss") for word in words)


def test_a_search_in_which_all_failed(tmp_path: Path) -> None:
    model, data = randomized(ResidualNet(6)).eval(), seeded((8, 3, 8, 8))
    calls: list[int] = []

    def evaluate(_: nn.Module) -> float:
        calls.append(0)
        return 1.0 if len(calls) == 1 else float("nan")

    found = subbyte.quantization.tune(model, data, evaluate, max_trials=2, recover=[], storage=tmp_path / "study.db")
    text = as_html(found)
    assert "criterion not met: every trial failed" in text
    assert len(Page(text).of("path", "failed")) == 4
    for ending in ("json", "csv"):
        found.report(tmp_path / f"found.{ending}")
    assert json.loads((tmp_path / "found.json").read_text())["trials"][0]["loss"] is None


def test_json_holds_everything(result: TuneResult, tmp_path: Path) -> None:
    result.report(tmp_path / "found.json")

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is no JSON")

    text = (tmp_path / "found.json").read_text()
    read = json.loads(text, parse_constant=refuse)
    assert "Infinity" not in text
    assert "NaN" not in text
    assert read["criterion_met"] is True
    assert read["baseline"] == {SPITEFUL: 1.0}
    assert [trial["loss"] for trial in read["trials"]] == [
        None if trial.failed else trial.loss for trial in result.trials
    ]
    assert read["trials"][read["best"]]["objectives"]["size"] == result.best.size
    assert read["trials"][read["best"]]["config"]["conv2 (Conv2d)"] == str(result.best.config.op["conv2", "Conv2d"])
    assert read["model"]["bytes"] == result.best.size
    assert read["budgets"] == {"bops": 1e9}
    assert [op["name"] for op in read["ops"]] == ["conv1", "conv2", "add", "linear"]
    assert read["errors"][0]["errors"] == {str(k): e for k, e in result.errors["conv1", "Conv2d"].items()}
    assert {part["name"] for part in read["part_errors"]} == {"conv1", "conv2", "add", "linear"}
    assert set(read["pareto"]) == {"size", "bops"}


def test_csv_has_a_line_for_each_trial(result: TuneResult, tmp_path: Path) -> None:
    result.report(tmp_path / "found.csv")
    with (tmp_path / "found.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(result.trials)
    for line, trial in zip(lines, result.trials, strict=True):
        assert line["number"] == str(trial.number)
        assert line["loss"] == ("" if trial.failed else str(trial.loss))
        assert float(line["size"]) == trial.objectives["size"]
        assert line["met"] == str(trial.met)
        assert line["problem"] == trial.problem
        assert line[SPITEFUL] == ("" if trial.failed else str(trial.metrics[SPITEFUL]))
        assert line["linear (Linear)"] == str(trial.config.op["linear", "Linear"])


def test_other_files_are_refused(result: TuneResult, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"saved as \.html, \.json, \.csv"):
        result.report(tmp_path / "found.pdf")
    with pytest.raises(ConfigError, match="there is no folder"):
        result.report(tmp_path / "none" / "found.json")


def test_the_front_is_what_nothing_beats(result: TuneResult) -> None:
    def trial(number: int, loss: float, size: float, problem: str = "") -> Trial:
        return replace(result.best, number=number, loss=loss, objectives={"size": size}, problem=problem)

    trials = [trial(0, 0.5, 10), trial(1, 0.5, 12), trial(2, 0.1, 20), trial(3, 0.1, 20), trial(4, 0.2, 15),
              trial(5, 0.0, 5, "failed"), trial(6, 0.4, 15)]  # fmt: skip
    assert [each.number for each in pareto(trials, "size")] == [0, 4, 2]
    beaten = [
        one.number
        for one in trials
        if not one.failed and any(
            not other.failed and other.loss <= one.loss and other.objectives["size"] <= one.objectives["size"]
            and (other.loss, other.objectives["size"]) != (one.loss, one.objectives["size"]) for other in trials
        )
    ]  # fmt: skip
    assert beaten == [1, 6]


@pytest.mark.parametrize(("value", "written"), [(0, "0"), (9999, "9999"), (26032, "26.03k"), (1.2e9, "1.2G")])
def test_axes_are_short(value: float, written: str) -> None:
    assert compact(value) == written


@pytest.mark.parametrize(("seconds", "written"), [(0.26, "0.3 s"), (61, "61 s"), (600, "10 min"), (9000, "2.5 h")])
def test_durations(seconds: float, written: str) -> None:
    assert duration(seconds) == written


def test_a_browser_draws_it(result: TuneResult, page: Page, tmp_path: Path) -> None:
    result.report(tmp_path / "found.html")
    drawn = Page(rendered(tmp_path / "found.html"))
    for tag in ("circle", "rect", "polyline", "tr", "svg"):
        assert len(drawn.of(tag)) == len(page.of(tag))


def test_what_was_predicted_is_shown_as_measured(result: TuneResult, tmp_path: Path) -> None:
    measured = {"latency": {"float": Measured(0.25, 0.5), "best": Measured(0.125, 0.0625)}}
    found = replace(result, measured=measured)
    row = next(row for row in rows_of(as_html(found), "outcome") if "latency, measured as a whole" in row)
    assert "0.5 seconds" in row
    assert "0.0625 seconds" in row
    found.report(tmp_path / "found.json")
    read = json.loads((tmp_path / "found.json").read_text())["measured"]
    assert read["latency"]["best"] == {"predicted": 0.125, "measured": 0.0625}
