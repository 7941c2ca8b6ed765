"""The algorithms by name, with their arguments, and registering one's own."""

from functools import partial

import pytest
import torch

import subbyte
from subbyte.calibration import (
    Distribution,
    Histogram,
    MinMax,
    algorithm_of,
    calibrate_statistics,
    calibrate_tensor,
    register_algorithm,
    registered_algorithms,
    registry,
)  # fmt: skip
from subbyte.calibration.percentile import percentile
from subbyte.errors import CalibrationError, ConfigError
from subbyte.numerics import scheme_of
from subbyte.spec import QuantParams, TensorSpec


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ALGORITHMS", dict(registry._ALGORITHMS))


def test_all_are_there() -> None:
    expected = {"minmax", "moving_average_minmax", "percentile", "kl", "mse", "mean_abs", "twn", "lsq"}
    assert set(registered_algorithms()) == expected


def test_an_argument() -> None:
    assert algorithm_of(TensorSpec("int4", algorithm="percentile(99.5)")).argument == 99.5
    assert algorithm_of(TensorSpec("int4", algorithm="percentile")).argument is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("minmx", r"'minmx' is unknown; did you mean 'minmax'\? \(known: kl, lsq, mean_abs"),
        ("percentil(99)", "did you mean 'percentile'"),
        ("percentile(9.9.9)", "the argument is not a number"),
        ("percentile(x)", "is unknown"),
        ("percentile()", "is unknown"),
        ("minmax(3)", "minmax takes no argument; write 'minmax'"),
        ("kl(2)", "kl takes no argument"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        algorithm_of(TensorSpec("int4", algorithm=text))


def test_a_taken_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="'kl' is taken"):
        register_algorithm("kl")(lambda distribution, spec: None)


def test_a_function_that_is_defined_again_replaces_itself() -> None:
    def cell(factor: float) -> None:
        @register_algorithm("mine")
        def mine(distribution: Distribution, spec: TensorSpec) -> QuantParams:
            return scheme_of(spec).from_range(distribution.minimum, factor * distribution.maximum, spec)

    cell(1.0)
    cell(2.0)
    assert calibrate_tensor(torch.tensor([0.0, 255.0]), TensorSpec("uint8", algorithm="mine")).scale == 2.0
    for other in (lambda distribution, spec: None, partial(percentile, percent=99.0)):
        with pytest.raises(ConfigError, match="'mine' is taken"):
            register_algorithm("mine")(other)


def test_one_of_the_users_own() -> None:
    @register_algorithm("deviations", Histogram)
    def deviations(distribution: Distribution, spec: TensorSpec, number: float = 3.0) -> QuantParams:
        values, counts = distribution.weighted()
        reach = number * ((values.square() * counts).sum(1) / counts.sum(1)).sqrt()
        return scheme_of(spec).from_range(-reach, reach, spec)

    assert "deviations" in registered_algorithms()
    x = torch.randn(4, 1000)
    spec = TensorSpec("int8", granularity="per_channel", algorithm="deviations(2)")
    expected = 2 * x.square().mean(1, keepdim=True).sqrt() / 127
    assert torch.allclose(calibrate_tensor(x, spec).scale, expected)

    stream = algorithm_of(TensorSpec("int8", algorithm="deviations")).statistics(TensorSpec("int8"))
    stream.observe(x)
    got = calibrate_statistics(stream, TensorSpec("int8", algorithm="deviations")).scale
    assert torch.allclose(got, 3 * x.square().mean().sqrt() / 127, rtol=1e-2)


def test_an_algorithm_that_needs_values_and_keeps_only_the_range_is_named() -> None:
    @register_algorithm("median")
    def median(distribution: Distribution, spec: TensorSpec) -> QuantParams:
        values, _ = distribution.weighted()
        return scheme_of(spec).from_range(values.median(1).values, values.median(1).values, spec)

    message = "algorithm 'median': it needs the values, and only their range was kept; register it with statistics=Hist"
    observed = MinMax(TensorSpec("uint4"))
    observed.observe(torch.ones(3))
    with pytest.raises(CalibrationError, match=message):
        calibrate_statistics(observed, TensorSpec("uint4", algorithm="median"))
    with pytest.raises(CalibrationError, match=f"input of op '0 .*': {message}"):
        subbyte.quantize(torch.nn.Sequential(torch.nn.Linear(3, 2)), "w4a4:median", torch.rand(4, 3))


def test_statistics_default_to_the_range() -> None:
    register_algorithm("half")(
        lambda distribution, spec: scheme_of(spec).from_range(distribution.minimum / 2, distribution.maximum / 2, spec)
    )
    spec = TensorSpec("uint8", algorithm="half")
    assert algorithm_of(spec).statistics is MinMax
    assert calibrate_tensor(torch.tensor([0.0, 510.0]), spec).scale == 1.0
