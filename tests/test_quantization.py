"""The public calls, as a user writes them."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import subbyte
from networks import ResidualNet, ResNetCifar, randomized, seeded
from subbyte import CalibrationError, ConfigError, ModelError, OpConfig, TensorSpec, TuneConfig, quantization
from subbyte.config import PostTrainingQuantConfig


@pytest.fixture
def model() -> nn.Module:
    return randomized(ResidualNet())


@pytest.fixture
def images() -> torch.Tensor:
    return seeded((8, 3, 6, 6))


def _dtypes(model: nn.Module) -> dict[str, tuple[str | None, str]]:
    return {row["name"]: (row["weight_dtype"], row["activation_dtype"]) for row in subbyte.summary(model).rows}


def test_seed_example_as_printed() -> None:
    model = randomized(ResNetCifar(8, 8))
    loader = [(seeded((4, 3, 16, 16), seed), torch.zeros(4)) for seed in range(2)]
    op_type_dict = {'Conv2d': {'weight': {'dtype': ['int4']}, 'activation': {'dtype': ['uint4']}}}  # fmt: skip
    conf = PostTrainingQuantConfig(op_type_dict=op_type_dict)
    q_model = quantization.fit(model, conf, calib_dataloader=loader)
    rows = subbyte.summary(q_model).rows
    assert {row["type"] for row in rows} == {"Conv2d", "add", "Linear"}
    for row in rows:
        assert row["requested"] == row["realized"]
        if row["type"] == "Conv2d":
            assert row["realized"] == "w:int4 sym per_channel minmax a:uint4 sym per_tensor minmax static"
        else:
            assert (row["weight_dtype"] or "int8", row["activation_dtype"]) == ("int8", "uint8")
    for name, weight in subbyte.weights(q_model).items():
        bits = 8 if name == "linear" else 4
        assert weight.codes.int().min() >= -(2 ** (bits - 1))
        assert weight.codes.int().max() < 2 ** (bits - 1)


def test_fit_takes_a_tensor_as_one_batch(model: nn.Module, images: torch.Tensor) -> None:
    config = PostTrainingQuantConfig(precision="w4a4")
    expected = subbyte.quantize(model, config, images)(images)
    assert torch.equal(quantization.fit(model, config, images)(images), expected)
    # The rows of one without a batch axis are no batches either: two of them are no (input, label) pair.
    line, pair = nn.Sequential(nn.Linear(4, 4)), seeded((2, 4))
    assert torch.equal(quantization.fit(line, config, pair)(pair), subbyte.quantize(line, config, pair)(pair))
    for wrong in ({"x": images}, 5):
        with pytest.raises(CalibrationError, match="iterable of batches"):
            quantization.fit(model, config, wrong)


def test_short_way_with_first_last(model: nn.Module, images: torch.Tensor) -> None:
    quantized = subbyte.quantize(model, "w4a8", images, first_last="int8")
    dtypes = _dtypes(quantized)
    assert dtypes["conv1"] == ("int8", "uint8")
    assert dtypes["linear"] == ("int8", "uint8")
    assert dtypes["conv2"] == ("int4", "uint8")
    assert dtypes["add"] == (None, "uint8")


def test_weights_codes_are_those_of_the_float_weight(model: nn.Module, images: torch.Tensor) -> None:
    quantized = subbyte.quantize(model, "w4a8", images)
    spec = TensorSpec("int4", granularity="per_channel")
    weight = model.get_parameter("conv1.weight")
    assert torch.equal(subbyte.weights(quantized)["conv1"].codes, subbyte.quantize_tensor(weight, spec).codes)


@pytest.mark.parametrize("config", ["w4", "wnf4", "w2:g2", "wternary", "w1"])
def test_weight_only_needs_no_data_and_leaves_the_rest_float(
    model: nn.Module, images: torch.Tensor, config: str
) -> None:
    prepared = subbyte.prepare(model, config)
    converted = subbyte.convert(prepared)
    assert torch.equal(prepared(images), converted(images))
    assert {activation for _, activation in _dtypes(converted).values()} == {"fp32"}


def test_forms_of_a_request_agree(model: nn.Module, images: torch.Tensor, tmp_path) -> None:
    recipe = tmp_path / "config.yaml"
    recipe.write_text("precision: w4a8\nfirst_last: int8\n")
    by_dict = {"precision": "w4a8", "first_last": "int8"}
    tuned = subbyte.prepare(model, "w4a8", images, first_last="int8").subbyte_state.config
    expected = subbyte.quantize(model, "w4a8", images, first_last="int8")(images)
    for config in (recipe, str(recipe), by_dict, PostTrainingQuantConfig(**by_dict), tuned, tuned.to_dict()):
        assert torch.equal(subbyte.quantize(model, config, images)(images), expected)


def test_names_beat_types_beat_global(model: nn.Module, images: torch.Tensor) -> None:
    config = {
        "precision": "w8a8",
        "op_type_dict": {"Conv2d": {"weight": {"dtype": ["int4"]}}},
        "op_name_dict": {"conv.*": {"weight": {"dtype": "int3"}}, "conv2": {"weight": {"dtype": "int2"}}},
    }
    dtypes = _dtypes(subbyte.quantize(model, config, images))
    assert [dtypes[name][0] for name in ("conv1", "conv2", "linear")] == ["int3", "int2", "int8"]


def test_float_model_is_left_as_it_was(model: nn.Module, images: torch.Tensor) -> None:
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    subbyte.quantize(model, "w4a4", images)
    with pytest.raises(CalibrationError):
        subbyte.quantize(model, "w4a4", images[:, :2])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training
    assert model.conv2.training
    assert type(model.conv1) is nn.Conv2d
    assert torch.equal(torch.get_rng_state(), state)


def test_a_users_own_type_works_everywhere(model: nn.Module, images: torch.Tensor, tmp_path) -> None:
    capability = tmp_path / "mine.yaml"
    capability.write_text(
        "extends: pytorch_cpu\ndtypes:\n  user_apot3: {values: [-1, -0.5, -0.25, -0.125, 0.125, 0.25, 0.5, 1]}\n"
    )
    quantized = subbyte.quantize(model, "wuser_apot3a8", images, capability=capability)
    weight = subbyte.weights(quantized)["conv1"]
    assert weight.spec.dtype.bits == 3
    ratios = (weight.dequantize() / weight.scale).abs().unique()
    assert set(ratios.tolist()) <= {1.0, 0.5, 0.25, 0.125}
    subbyte.save(quantized, tmp_path / "model.safetensors")
    loaded = subbyte.load(tmp_path / "model.safetensors", model)
    assert torch.equal(loaded(images), quantized(images))


def test_calibration_sampling_size_limits_the_samples(model: nn.Module) -> None:
    seen = []

    def data() -> Iterator[torch.Tensor]:
        for seed in range(10):
            seen.append(seed)
            yield seeded((4, 3, 6, 6), seed)

    subbyte.quantize(model, {"precision": "w8a8", "calibration_sampling_size": 10}, data())
    assert len(seen) == 3


def test_calibration_sampling_size_cuts_the_last_batch(model: nn.Module) -> None:
    stream = [seeded((4, 3, 6, 6), seed) * (seed + 1) for seed in range(3)]
    for size in (1, 4, 6):
        limited = subbyte.quantize(model, {"precision": "w8a8", "calibration_sampling_size": size}, stream)
        expected = subbyte.quantize(model, "w8a8", torch.cat(stream)[:size])
        assert torch.equal(limited(stream[0]), expected(stream[0]))


def test_recipes_leave_first_and_last_float(model: nn.Module, images: torch.Tensor) -> None:
    config = PostTrainingQuantConfig(
        recipes={"first_conv_or_matmul_quantization": False, "last_conv_or_matmul_quantization": False}
    )
    dtypes = _dtypes(quantization.fit(model, config, [images]))
    assert [dtypes[name][0] for name in ("conv1", "conv2", "linear")] == ["fp32", "int8", "fp32"]


BAD = [
    ("w4a4x", ConfigError, "w4a4x"),
    ({"op_type_dict": {"Conv2D": "w4a4"}}, ConfigError, "Conv2d"),
    ({"op_type_dict": {"Conv2d": {"weigth": {"dtype": "int4"}}}}, ConfigError, "weight"),
    ({"op_type_dict": {"Conv2d": {"weight": {"dtype": "int44"}}}}, ConfigError, "int4"),
    ({"op_name_dict": {"conv9": "w4a4"}}, ConfigError, "conv"),
    ({"op_typ_dict": {}}, ConfigError, "op_type_dict"),
    ({"approach": "sttic"}, ConfigError, "static"),
    (7, ConfigError, "int"),
    ("missing.yaml", ConfigError, "missing.yaml"),
]


@pytest.mark.parametrize(("config", "kind", "hint"), BAD, ids=lambda value: str(value)[:40])
def test_a_bad_request_says_what_and_where(
    model: nn.Module, images: torch.Tensor, config: object, kind: type[Exception], hint: str
) -> None:
    with pytest.raises(kind, match=hint):
        subbyte.quantize(model, config, images)


def test_bad_data_is_refused(model: nn.Module, images: torch.Tensor) -> None:
    with pytest.raises(CalibrationError, match="empty"):
        subbyte.quantize(model, "w4a4", [])
    with pytest.raises(CalibrationError, match="empty"):
        subbyte.quantize(model, "w4a4", images[:0])
    with pytest.raises(CalibrationError, match="does not run on calibration batch 0"):
        subbyte.quantize(model, "w4a4", images[:, :1])
    with pytest.raises(CalibrationError, match="iterable of batches"):
        subbyte.quantize(model, "w4a4", 5)
    with pytest.raises(CalibrationError, match="a batch is a tensor"):
        subbyte.quantize(model, "w4a4", ["image"])
    with pytest.raises(CalibrationError, match="need calibration data"):
        subbyte.quantize(model, "w4a4")
    with pytest.raises(ConfigError, match="data"):
        subbyte.quantize(model, "w4", first_last="int8")


@pytest.mark.parametrize("config", ["w4a4", "w4a4:dynamic", "w4", "w4:g2"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_name_the_op(
    model: nn.Module, images: torch.Tensor, value: float, config: str
) -> None:
    bad = images.clone()
    bad[0, 0, 0, 0] = value
    for data in (bad, [images, bad]):
        with pytest.raises(CalibrationError, match=r"input of op 'conv1.*NaN or infinity"):
            subbyte.quantize(model, config, data)
    with torch.no_grad():
        model.conv2.weight[0, 0, 0, 0] = value
    with pytest.raises(CalibrationError, match="conv2"):
        subbyte.quantize(model, "w4")


class _Moody(nn.Module):
    """Raises what it is told to, from the second batch on."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) == 2:
            raise self.error
        return self.linear(x)


@pytest.mark.parametrize("config", ["w4a4", "w4a4:dynamic", "w4"])
@pytest.mark.parametrize(
    "error", [AssertionError("odd"), KeyError("odd"), ZeroDivisionError("odd"), NotImplementedError("odd")]
)
def test_whatever_forward_raises_names_the_batch(error: Exception, config: str) -> None:
    model = _Moody(error)
    for data, index in (([torch.randn(4, 3), torch.randn(2, 3)], 1), (torch.randn(2, 3), 0)):
        with pytest.raises(CalibrationError, match=rf"batch {index} .*\(2, 3\).*{type(error).__name__}.*odd") as raised:
            subbyte.quantize(model, config, data)
        assert type(raised.value.__cause__) is type(error)


def test_an_interrupt_passes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        subbyte.quantize(_Moody(KeyboardInterrupt()), "w4a4", [torch.randn(4, 3), torch.randn(2, 3)])


def test_a_group_longer_than_the_weight_is_a_channel(model: nn.Module, images: torch.Tensor) -> None:
    expected = subbyte.quantize(model, "w4a8:g6", images)
    huge = subbyte.quantize(model, "w4a8:g1000000000000", images)
    assert torch.equal(huge(images), expected(images))
    assert huge.subbyte_state.config != expected.subbyte_state.config
    table, index = nn.Sequential(nn.Embedding(5, 6)), torch.tensor([1, 4])
    rows = [subbyte.quantize(table, f"w4:g{size}")(index) for size in (6, 1000000000000)]
    assert torch.equal(*rows)


def test_bad_models_are_refused(model: nn.Module, images: torch.Tensor) -> None:
    with pytest.raises(ModelError, match="quantized already"):
        subbyte.quantize(subbyte.quantize(model, "w4a4", images), "w4a4", images)
    with pytest.raises(ModelError, match="converted already"):
        subbyte.convert(subbyte.quantize(model, "w4a4", images))
    with pytest.raises(ModelError, match="not quantized"):
        subbyte.summary(model)
    with pytest.raises(ModelError, match="no op"):
        subbyte.quantize(nn.ReLU(), "w4a4", images)
    with pytest.raises(ModelError, match="Module"):
        subbyte.quantize("model", "w4a4", images)


def test_fit_with_an_evaluation_tunes(model: nn.Module, images: torch.Tensor, tmp_path: Path) -> None:
    expected = model(images)

    def closeness(candidate: nn.Module) -> float:
        return 1.0 - float((candidate(images) - expected).norm() / expected.norm())

    def tuned(**criterion: Any) -> subbyte.TuneResult:
        conf = PostTrainingQuantConfig(
            accuracy_criterion={"tolerable_loss": 0.2, "criterion": "absolute"}, tuning_criterion=criterion
        )
        found = quantization.fit(model, conf, [(images, 0)], closeness, storage=tmp_path / "study.db")
        result = subbyte.tuning_result(found)
        assert result.criterion_met
        assert closeness(found) == result.best.metric
        return result

    assert len(tuned(objective="size").trials) == 1  # it ends with the first that is good enough
    longer = tuned(objective="size", timeout=60)
    assert longer.best.size < longer.trials[0].size
    with pytest.raises(subbyte.ModelError, match="no search of this process gave this model"):
        subbyte.tuning_result(model)


def test_a_search_evaluates_in_eval_and_lets_go_of_its_model(images: torch.Tensor, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(images.shape[1], 4, 3), nn.BatchNorm2d(4), nn.Flatten()).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes: list[bool] = []

    def evaluate(candidate: nn.Module) -> float:
        modes.append(candidate.training)
        return 1.0 + 0.0 * float(candidate(images).sum())

    result = subbyte.tune(model, images, evaluate, max_trials=2, recover=[], storage=tmp_path / "study.db")
    assert modes == [False] * 3
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert subbyte.tuning_result(result.model).best is result.best
    kept = weakref.ref(result.model)
    del result
    gc.collect()
    assert kept() is None


def test_fit_goes_on_where_a_study_ended(model: nn.Module, images: torch.Tensor, tmp_path: Path) -> None:
    calls: list[float] = []

    def closeness(candidate: nn.Module) -> float:
        calls.append(1 - float((candidate(images) - model(images)).norm() / model(images).norm()))
        return calls[-1]

    def tuned(max_trials: int, **given: Any) -> subbyte.TuneResult:
        conf = PostTrainingQuantConfig(
            accuracy_criterion={"tolerable_loss": 0.2},
            tuning_criterion={"strategy": "random", "objective": "size", "timeout": 600, "max_trials": max_trials},
        )
        storage = tmp_path / "study.db"
        found = quantization.fit(model, conf, images, closeness, storage=storage, study="mine", **given)
        return subbyte.tuning_result(found)

    first = tuned(2, seed=1)
    again = tuned(4, seed=1, distributed="shared")
    assert [trial.config for trial in again.trials[:2]] == [trial.config for trial in first.trials]
    assert len(calls) == 2 + 4  # the float model in each run, and no trial twice
    known = [trial.config for trial in again.trials]
    assert sum(trial.config not in known for trial in tuned(6, seed=2).trials) == 2


def test_fit_of_six_trials_takes_the_smallest_that_was_not_only_lucky(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    # The float model, eight bits, seven, six, the last op at seven, the first op at seven, one op narrower.
    scripted = iter([1.0, 0.995, 0.992, 0.98, 0.985, 0.991, 0.5, 1.0])
    conf = PostTrainingQuantConfig(tuning_criterion={"objective": "size", "timeout": 600, "max_trials": 6})
    found = quantization.fit(
        network, conf, torch.randn(8, 16), lambda candidate: next(scripted), storage=tmp_path / "study.db"
    )
    result = subbyte.tuning_result(found)
    weights = [[config.weight.dtype.bits for config in trial.config.op.values()] for trial in result.trials]
    assert weights[:5] == [[8, 8], [7, 7], [6, 6], [6, 7], [7, 6]]
    assert len(weights) == 6
    lucky = result.trials[4]  # trials that deviate about as much lost 0.02 and 0.015
    assert lucky.loss < 0.01 < lucky.estimate  # type: ignore[operator]
    assert result.best.number == 1
    assert result.criterion_met


def test_fit_without_an_evaluation_refuses_what_a_search_takes(model: nn.Module, images: torch.Tensor) -> None:
    with pytest.raises(ConfigError, match="study: nothing is tuned without an evaluation; give eval_func"):
        quantization.fit(model, PostTrainingQuantConfig(), images, study="mine")


def test_a_tune_config_for_an_op_that_is_not_there(model: nn.Module, images: torch.Tensor) -> None:
    spec = TensorSpec("int8", granularity="per_channel")
    config = TuneConfig({("conv3", "Conv2d"): OpConfig(spec, TensorSpec("uint8"))})
    with pytest.raises(ConfigError, match="conv"):
        subbyte.quantize(model, config, images)


def test_int8_is_within_noise_of_float_and_bits_are_true(model: nn.Module, images: torch.Tensor) -> None:
    errors = []
    expected = model(images)
    for bits in (8, 6, 4, 2):
        actual = subbyte.quantize(model, f"w{bits}a{bits}", images)(images)
        errors.append(((actual - expected).norm() / expected.norm()).item())
    assert errors[0] < 0.05
    assert errors == sorted(errors)
