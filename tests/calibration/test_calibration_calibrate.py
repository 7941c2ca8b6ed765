"""calibrate_tensor, calibrate_statistics, quantize_tensor: shapes, pieces, refusals."""

from dataclasses import replace

import pytest
import torch

from subbyte.calibration import (
    Histogram,
    MinMax,
    algorithm_of,
    calibrate_statistics,
    calibrate_tensor,
    quantize_tensor,
)  # fmt: skip
from subbyte.dtypes import dtype
from subbyte.errors import CalibrationError, ConfigError
from subbyte.numerics import scale_shape
from subbyte.spec import TensorSpec

ALGORITHMS = ["minmax", "moving_average_minmax", "percentile", "kl", "mse"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel", "per_token", "per_group(3)"])
@pytest.mark.parametrize(("name", "scheme"), [("int4", "sym"), ("uint4", "asym"), ("nf4", "sym")])
def test_shapes(name: str, scheme: str, granularity: str, algorithm: str) -> None:
    spec = TensorSpec(name, scheme, granularity, algorithm=algorithm)
    params = calibrate_tensor(torch.randn(4, 7), spec)
    assert tuple(params.scale.shape) == scale_shape((4, 7), spec)
    assert (params.scale > 0).all()
    if scheme == "asym":
        assert params.zero_point.shape == params.scale.shape
        assert params.zero_point.dtype == torch.int32


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("granularity", ["per_channel", "per_group(4)"])
def test_blocks_are_calibrated_apart_from_each_other(granularity: str, algorithm: str) -> None:
    x = torch.randn(3, 8) * torch.tensor([[0.1], [1.0], [30.0]])
    spec = TensorSpec("uint4", "asym", granularity, algorithm=algorithm)
    together = calibrate_tensor(x, spec)
    for row in range(3):
        alone = calibrate_tensor(x[row : row + 1], spec)
        assert torch.equal(alone.scale, together.scale[row : row + 1])
        assert torch.equal(alone.zero_point, together.zero_point[row : row + 1])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("granularity", ["per_channel", "per_group(4)", "per_tensor"])
def test_pieces_give_the_same(granularity: str, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(9, 8)
    spec = TensorSpec("uint4", "asym", granularity, algorithm=algorithm)
    whole = calibrate_tensor(x, spec)
    monkeypatch.setattr("subbyte.calibration.calibrate._CHUNK", 24)
    pieces = calibrate_tensor(x, spec)
    assert torch.equal(pieces.scale, whole.scale)
    assert torch.equal(pieces.zero_point, whole.zero_point)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel", "per_token", "per_group(3)"])
@pytest.mark.parametrize("name", ["int4", "bint1", "ternary", "nf4"])
def test_nan_and_infinity_are_refused(name: str, granularity: str, bad: float) -> None:
    x = torch.randn(4, 7)
    x[2, 5] = bad
    with pytest.raises(CalibrationError, match="NaN or infinity"):
        quantize_tensor(x, TensorSpec(name, granularity=granularity))


def test_other_refusals() -> None:
    with pytest.raises(ConfigError, match="fp32 is a float type"):
        quantize_tensor(torch.randn(3), TensorSpec("fp32"))
    with pytest.raises(ConfigError, match="per_channel along axis 2: the tensor has only 2 axes"):
        quantize_tensor(torch.randn(3, 3), TensorSpec("int4", granularity="per_channel", axis=2))


@pytest.mark.parametrize(
    ("x", "shown"),
    [
        ([1.0, 2.0], "a list"),
        (torch.arange(3), r"torch\.int64"),
        (torch.ones(3, dtype=torch.bool), r"torch\.bool"),
        (torch.eye(3).to_sparse(), r"torch\.sparse_coo"),
        (torch.ones(3, device="meta"), "on meta"),
    ],
)
def test_what_is_no_tensor_of_numbers_to_quantize(x: object, shown: str) -> None:
    with pytest.raises(ConfigError, match=f"only dense floating-point tensors are quantized, not .*{shown}"):
        quantize_tensor(x, TensorSpec("int4"))


@pytest.mark.parametrize("name", ["int8", "int4", "nf4", "bint1"])
@pytest.mark.parametrize("granularity", ["per_tensor", "per_group(32)"])
@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-5])
def test_small_values_keep_their_precision_with_fp16_scales(name: str, granularity: str, size: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 128) * size
    half = TensorSpec(name, granularity=granularity, scale_format="fp16")
    errors = [(quantize_tensor(x, s).dequantize() - x).norm() for s in (half, replace(half, scale_format="fp32"))]
    assert errors[0] <= 1.5 * errors[1]  # a scale may be up to 2^-24 larger


@pytest.mark.parametrize("name", ["int8", "nf4", "bint1"])
@pytest.mark.parametrize("algorithm", ["", "mse"])
@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_scales_that_their_format_cannot_hold_are_refused(name: str, algorithm: str, size: float) -> None:
    x = torch.randn(4, 64)
    x[2] *= size
    x[3] = 0  # a scale of 1, whatever its format
    spec = TensorSpec(name, granularity="per_channel", algorithm=algorithm, scale_format="fp16")
    with pytest.raises(CalibrationError, match=r"need a scale of .*fp16 holds 5\.96e-08 to 6\.55e\+04; use .*bf16"):
        quantize_tensor(x, spec)
    statistics = algorithm_of(spec).statistics(replace(spec, granularity="per_tensor"))
    statistics.observe(x[2])
    with pytest.raises(CalibrationError, match="need a scale of"):
        calibrate_statistics(statistics, replace(spec, granularity="per_tensor"))
    for wider in ("fp32", "bf16", "pow2"):
        result = quantize_tensor(x, replace(spec, scale_format=wider)).dequantize()
        assert 0.1 < (result[2] / x[2]).median() < 10


def test_a_small_group_beside_others_becomes_zeros() -> None:
    x = torch.randn(4, 64)
    x[1, :16], x[2, :16] = x[1, :16] * 1e-9, 0
    spec = TensorSpec("int4", granularity="per_group(16)", axis=1, scale_format="fp16")
    result = quantize_tensor(x, spec).dequantize()
    assert (result - x).norm(dim=1).amax() < 1
    assert not result[1:3, :16].any()
    with pytest.raises(CalibrationError, match="need a scale of"):
        quantize_tensor(torch.cat([x, x[:1] * 1e-9]), spec)


@pytest.mark.parametrize("spec", ["int4", dtype("int4"), {"dtype": "int4"}, None])
def test_what_is_no_spec(spec: object) -> None:
    with pytest.raises(ConfigError, match=r"as in TensorSpec\('int4'\), not"):
        quantize_tensor(torch.randn(3), spec)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel", "per_token", "per_group(2)"])
def test_empty_tensors(granularity: str, algorithm: str, shape: tuple) -> None:
    spec = TensorSpec("int4", granularity=granularity, algorithm=algorithm)
    params = calibrate_tensor(torch.zeros(shape), spec)
    assert tuple(params.scale.shape) == scale_shape(shape, spec)
    assert (params.scale == 1).all()


@pytest.mark.parametrize("value", [0.0, 3.0, -3.0, 1e-40])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("name", "scheme"), [("int4", "sym"), ("uint4", "sym"), ("uint4", "asym"), ("nf4", "sym")])
def test_a_constant_tensor_is_kept(name: str, scheme: str, algorithm: str, value: float) -> None:
    spec = TensorSpec(name, scheme, algorithm=algorithm)
    result = quantize_tensor(torch.full((5,), value), spec).dequantize()
    assert result == pytest.approx(torch.full((5,), value if abs(value) > 1e-38 else 0.0), rel=1e-6)


@pytest.mark.parametrize("algorithm", ["minmax", "percentile", "kl", "mse"])
@pytest.mark.parametrize("bits", range(2, 9))
def test_one_set_of_statistics_serves_every_width(bits: int, algorithm: str) -> None:
    torch.manual_seed(0)
    statistics = Histogram(TensorSpec("uint8", algorithm="kl"))
    for _ in range(4):
        statistics.observe(torch.randn(500).relu())
    params = calibrate_statistics(statistics, TensorSpec(f"uint{bits}", algorithm=algorithm))
    assert params.scale.shape == ()
    largest = float(statistics.maximum)
    assert 0.05 * largest <= float(params.scale) * (2**bits - 1) <= largest * 1.001
    if algorithm == "minmax":
        assert float(params.scale) == pytest.approx(largest / (2**bits - 1))


def test_statistics_of_channels_take_the_shape_of_the_tensor() -> None:
    spec = TensorSpec("int8", granularity="per_channel", axis=1)
    statistics = MinMax(spec)
    for _ in range(3):
        statistics.observe(torch.randn(2, 5, 4))
    params = calibrate_statistics(statistics, spec, (2, 5, 4))
    assert params.scale.shape == (1, 5, 1)


def test_nothing_collected_is_refused() -> None:
    spec = TensorSpec("int8")
    with pytest.raises(CalibrationError, match="no calibration data"):
        calibrate_statistics(algorithm_of(spec).statistics(spec), spec)
