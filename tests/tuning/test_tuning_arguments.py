"""What is asked of a search and cannot be is refused before anything is tried."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import subbyte
from subbyte import CalibrationError, ConfigError, TuningCriterion, TuningError
from subbyte.tuning.accuracy import read_evaluation
from subbyte.tuning.strategies import registry


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()


def tune(folder: Path, evaluate: Any = lambda model: 1.0, **given: Any) -> subbyte.TuneResult:
    asked = {"max_trials": 2, "recover": [], "storage": folder / "s.db"} | given
    return subbyte.tune(small(), torch.randn(8, 8), evaluate, **asked)


def never(model: nn.Module) -> float:
    raise AssertionError("the evaluation runs")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"higher_is_better": "false"}, "higher_is_better is True, False"),
        ({"higher_is_better": {"metric": 0}}, "higher_is_better is True, False"),
        ({"metric_weights": [0.5, 0.5]}, "weights of metrics must be numbers by name"),
        ({"metric_weights": {"metric": float("nan")}}, "weights of metrics must be numbers by name"),
        ({"budgets": 1000}, "budgets are numbers by objective"),
        ({"budgets": {"size": float("inf")}}, "budgets: 'size' must be a positive number"),
        ({"objective": {"size": float("inf")}}, "objective: 'size' must be a positive number"),
        ({"objective": {"size": 1, "modelsize": 2}}, "'modelsize' is another name of 'size'"),
        ({"loss_fn": 3}, "loss_fn must be a function, not 3"),
        ({"loss_fn": lambda model: 0.0}, "loss_fn takes the model and a batch"),
        ({"max_loss": 5.0}, "max_loss=5 would let more than all of the metric be lost.*five percent"),
        ({"confidence": 90}, "confidence must be a number from 0.5 to below 1.*not 90"),
        ({"confirm": 3}, "confirm must be a function, not 3"),
        ({"study": 5}, "study is a name, not 5"),
        ({"strategy": ["tpe"]}, "strategy is the name of one"),
        ({"storage": ""}, "storage must be a file"),
        ({"storage": "/"}, "storage / is a folder"),
        ({"storage": "postgresql://me:secret@localhost/x"}, r"postgresql://me:\*\*\*@localhost/x cannot be opened"),
        ({"recover": "batch_norm"}, "the model has no BatchNorm"),
        ({"recover": "rotate"}, "'rotate' has no meaning for this model"),
        ({"evaluate": 3}, "evaluate must be a function, not 3"),
        ({"study": ""}, "study is a name"),
        ({"seed": "a"}, "seed: a whole number"),
        ({"seed": -1}, "seed: a whole number of 0 or more"),
        ({"strategy_options": {"typo": 1}}, "strategy_options of 'sensitivity'.*'typo'"),
        ({"strategy_options": [1]}, "strategy_options: values by name"),
        ({"strategy": "tpe", "strategy_options": {"typo": 1}}, "Optuna's sampler takes.*'typo'"),
        ({"strategy": "auto", "strategy_options": {"typo": 1}}, "Optuna's sampler takes.*'typo'"),
    ],
)
def test_arguments_that_have_no_meaning(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        tune(tmp_path, **{"evaluate": never} | given)


def test_too_little_data_to_recover_is_told_before_anything_is_tried(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="4 calibration samples are too few"):
        subbyte.tune(small(), torch.randn(4, 8), never, recover="gptq", strategy="random", storage=tmp_path / "s.db")


def test_options_that_the_sampler_takes_and_cannot_use(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Optuna's sampler takes"):
        tune(tmp_path, strategy="tpe", strategy_options={"n_startup_trials": "x"})


def test_a_large_loss_may_be_tolerable_in_the_metrics_own_unit_or_of_what_is_to_be_low(tmp_path: Path) -> None:
    assert tune(tmp_path, max_loss=5.0, criterion="absolute").criterion_met
    with pytest.warns(UserWarning, match="max_loss=2 lets a model lose 200% of the float model's metric"):
        assert tune(tmp_path, max_loss=2.0, higher_is_better=False, study="another").criterion_met


def test_control_characters_of_an_exception_are_taken_out(tmp_path: Path) -> None:
    def red(model: nn.Module) -> float:
        if hasattr(model, "subbyte_state"):
            raise RuntimeError("\x1b[31mred\x1b[0m\nand more")
        return 1.0

    assert tune(tmp_path, red).trials[0].problem == "RuntimeError:  [31mred [0m\nand more"


def test_options_reach_the_sampler(tmp_path: Path) -> None:
    options = {"n_startup_trials": 1, "seed": 5}
    assert len(tune(tmp_path, strategy="tpe", strategy_options=options).trials) == 2


def test_a_whole_number_of_numpy_is_one(tmp_path: Path) -> None:
    assert len(tune(tmp_path, max_trials=numpy.int64(2)).trials) == 2


@pytest.mark.parametrize("metric", [numpy.ones((2, 2)), torch.ones(2, 1), [1.0], "1"])
def test_what_is_no_metric(metric: Any) -> None:
    with pytest.raises(subbyte.EvaluationError, match="must be a number"):
        read_evaluation(metric)


@pytest.mark.parametrize("metric", [numpy.array([0.5]), numpy.float32(0.5), torch.tensor(0.5, dtype=torch.bfloat16)])
def test_what_holds_one_number_is_a_metric(metric: Any) -> None:
    assert read_evaluation(metric).metrics == {"metric": 0.5}


def proposals_of_none(search: Any) -> Any:
    yield None


def one_that_is_not_in_a_list(search: Any) -> Any:
    yield search.candidate({})


def an_op_that_is_not_there(search: Any) -> Any:
    config = search.ladder(search.space.tunable[0].key)[0]
    yield [search.candidate({("0x", "Linear"): config})]


def no_generator(search: Any) -> Any:
    return [search.candidate({})]


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        (proposals_of_none, "a strategy yields lists"),
        (one_that_is_not_in_a_list, "a strategy yields lists"),
        (an_op_that_is_not_there, "no op is named '0x'"),
        (no_generator, "is no generator function"),
    ],
)
def test_a_strategy_that_does_not_keep_to_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: Callable[..., Any], says: str
) -> None:
    monkeypatch.setitem(registry._STRATEGIES, "own", strategy)
    with pytest.raises(TuningError, match=says):
        tune(tmp_path, strategy="own")


def test_every_trial_has_its_size_and_bit_operations(tmp_path: Path) -> None:
    by_bops, by_size = (tune(tmp_path, objective=name, strategy="random") for name in ("bops", "size"))
    assert [trial.size for trial in by_size.trials] == [trial.objectives["size"] for trial in by_size.trials]
    for trial in by_bops.trials:
        assert trial.size is not None
        assert trial.cost == trial.objectives["bops"]
    assert by_bops.pareto("size")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["performance"], {"performance": 1.0}),
        (["modelsize", "performance"], {"modelsize": 1.0, "performance": 1.0}),
        ({"objective": ["size", "bops"], "weight": [0.9, 0.1]}, {"size": 0.9, "bops": 0.1}),
        ({"size": 2.0}, {"size": 2.0}),
        ("size", "size"),
    ],
)
def test_objectives_as_intel_neural_compressor_writes_them(given: Any, read: Any) -> None:
    assert TuningCriterion(objective=given).objective == read


@pytest.mark.parametrize("given", [[], ["size", "size"], {"objective": ["size"], "weight": [1, 2]}, [1]])
def test_lists_of_objectives_that_are_none(given: Any) -> None:
    with pytest.raises(ConfigError, match="TuningCriterion: objective"):
        TuningCriterion(objective=given)


def test_an_evaluation_that_takes_the_model_apart_is_told_so(tmp_path: Path) -> None:
    calls = []

    def evaluate(model: Any) -> float:
        calls.append(model)
        if len(calls) == 3:
            model.pop(2)
        return 1.0

    with pytest.raises(subbyte.ModelError, match="let it work on a copy"):
        tune(tmp_path, evaluate, strategy="random", max_trials=4)
    calls.extend([None] * 3)
    assert len(tune(tmp_path, evaluate, strategy="random", max_trials=4).trials) == 4


def test_a_model_made_in_inference_mode(tmp_path: Path) -> None:
    with torch.inference_mode():
        model = small()
    result = subbyte.tune(
        model, torch.randn(4, 8), lambda each: 1.0, max_trials=2, recover=[], storage=tmp_path / "s.db"
    )
    assert result.criterion_met
    assert torch.isfinite(result.model(torch.randn(4, 8))).all()


def test_a_chip_without_static_quantization_is_told_how_to_be_asked(tmp_path: Path) -> None:
    chip = tmp_path / "chip.yaml"
    chip.write_text(
        "version: {name: chip}\ndefault: int8\ncapabilities:\n    fp32: ['*']\n    int8:\n        weight_only:\n"
        "            Linear:\n                weight:\n"
        "                    {dtype: [int8, int4], scheme: [sym], granularity: [per_channel], algorithm: [minmax]}\n"
    )
    with pytest.raises(ConfigError, match=r"config=\{'approach': 'weight_only'\}"):
        tune(tmp_path, capability=chip)
    assert tune(tmp_path, capability=chip, config={"approach": "weight_only"}).criterion_met


def test_what_tuning_returns_is_no_request_and_says_where_one_is(tmp_path: Path) -> None:
    result = tune(tmp_path, max_trials=1)
    for given, place in ((result, ".best.config"), (result.best, ".config")):
        with pytest.raises(subbyte.ConfigError, match=f"not {type(given).__name__}; give its {place}$"):
            subbyte.prepare_qat(small(), given, torch.randn(8, 8))
