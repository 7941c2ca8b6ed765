"""Schemes in a user's file: log2, and a binary of two terms a1*B1 + a2*B2 with an algorithm of its own."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from subbyte.calibration import (
    Distribution,
    Histogram,
    calibrate_statistics,
    calibrate_tensor,
    quantize_tensor,
    register_algorithm,
    registry,
)  # fmt: skip
from subbyte.errors import CheckpointError, ConfigError
from subbyte.numerics import (
    QuantizedTensor,
    Scheme,
    dequantize,
    expand,
    fake_quantize,
    quantize,
    register_scheme,
    schemes,
    stored_scale,
)  # fmt: skip
from subbyte.spec import QuantParams, TensorSpec


class Log2(Scheme):
    """Code 0 is 0; code +-k is +-2^(k-1): the absolute value is rounded in the log domain."""

    def from_range(self, minimum: Tensor, maximum: Tensor, spec: TensorSpec) -> QuantParams:
        largest = torch.maximum(minimum.abs(), maximum.abs())
        return QuantParams(stored_scale(largest / self.max_grid(spec), spec))

    def quantize(self, x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        ratio = x / self.scale(params, x.shape, spec)
        exponent = torch.log2(ratio.abs()).round().clamp(-1, spec.qmax - 1)
        return torch.sign(ratio) * (exponent + 1)

    def grid(self, codes: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        codes = codes.float()
        return torch.sign(codes) * torch.exp2(codes.abs() - 1)

    def reach(self, spec: TensorSpec) -> float:
        return 2.0 ** (spec.qmax - 2) / 2

    def has_integer_grid(self, spec: TensorSpec) -> bool:
        return True

    def max_grid(self, spec: TensorSpec) -> float:
        return 2.0 ** (spec.qmax - 1)


class TwoTerms(Scheme):
    """a1*B1 + a2*B2 with two scales a block: B1 is bit 0 of a code, B2 bit 1; grid values are values already."""

    scales_per_block = 2

    def from_range(self, minimum: Tensor, maximum: Tensor, spec: TensorSpec) -> QuantParams:
        largest = torch.maximum(minimum.abs(), maximum.abs())[..., None]
        return QuantParams(stored_scale(torch.cat([largest * 2, largest], -1) / 3, spec))

    def quantize(self, x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        first, _ = self._terms(params, x.shape, spec)
        high = x >= 0
        return high + 2.0 * (torch.where(high, x - first, x + first) >= 0)

    def grid(self, codes: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        first, second = self._terms(params, codes.shape, spec)
        codes = codes.long()
        return first * (2 * (codes & 1) - 1) + second * (2 * (codes >> 1) - 1)

    def grid_scale(self, params: QuantParams) -> Tensor:
        return torch.ones_like(params.scale[..., 0], dtype=torch.float32)

    def _terms(self, params: QuantParams, shape: torch.Size, spec: TensorSpec) -> Iterator[Tensor]:
        return (expand(params.scale[..., index].float(), shape, spec) for index in (0, 1))


def two_terms(distribution: Distribution, spec: TensorSpec) -> QuantParams:
    """a1 = mean |x|, a2 = mean | |x| - a1 |: each term binarizes what the one before left."""
    values, counts = distribution.weighted()
    total = counts.sum(1)
    first = (values.abs() * counts).sum(1) / total
    second = ((values.abs() - first[:, None]).abs() * counts).sum(1) / total
    second = torch.minimum(second, 0.9 * first)  # of few values; keeps the four results in order
    return QuantParams(stored_scale(torch.stack([first, second], 1), spec))


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemes, "_SCHEMES", dict(schemes._SCHEMES))
    monkeypatch.setattr(registry, "_ALGORITHMS", dict(registry._ALGORITHMS))
    register_scheme("log2", Log2())
    register_scheme("two_terms", TwoTerms())
    register_algorithm("two_terms", Histogram)(two_terms)


GRANULARITIES = ["per_tensor", "per_channel", "per_token", "per_group(5)"]
BOTH = [("int4", "log2", "minmax"), ("int3", "log2", "mse"), ("uint2", "two_terms", "two_terms")]
BOTH += [("uint2", "two_terms", "mse"), ("uint2", "two_terms", "minmax")]


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize(("name", "scheme", "algorithm"), BOTH)
def test_what_holds_for_every_scheme(
    name: str, scheme: str, algorithm: str, granularity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(24, 3, 7)
    spec = TensorSpec(name, scheme, granularity, algorithm=algorithm)
    tensor = quantize_tensor(x, spec)
    assert tensor.codes.min() >= spec.qmin
    assert tensor.codes.max() <= spec.qmax
    values = tensor.dequantize()
    assert torch.equal(quantize(values, tensor.params, spec), tensor.codes)
    assert torch.equal(fake_quantize(x, tensor.params, spec), values)
    back = QuantizedTensor.from_tensors(tensor.tensors(), spec, tensor.shape)
    assert torch.equal(back.dequantize(), values)
    monkeypatch.setattr("subbyte.numerics.quantized_tensor._CHUNK", 64)
    monkeypatch.setattr("subbyte.calibration.calibrate._CHUNK", 64)
    pieces = quantize_tensor(x, spec)
    assert torch.equal(pieces.packed, tensor.packed)
    assert torch.equal(pieces.scale, tensor.scale)


def test_log2_values_are_powers_of_two_of_the_scale() -> None:
    spec = TensorSpec("int4", "log2")
    x = torch.tensor([0.0, 64.0, 30.0, -9.0, 1.1, 0.8, 0.3, -1e9])
    params = QuantParams(torch.tensor(1.0))
    assert fake_quantize(x, params, spec).tolist() == [0, 64, 32, -8, 1, 1, 0, -64]
    assert calibrate_tensor(x[:-1], spec).scale == 1.0


def test_log2_gradient_passes_inside_its_range() -> None:
    x = torch.tensor([0.3, 3.0, 40.0, 64.0, 500.0], requires_grad=True)
    fake_quantize(x, QuantParams(torch.tensor(1.0)), TensorSpec("int4", "log2")).sum().backward()
    assert x.grad.tolist() == [1, 1, 1, 1, 0]


def test_two_terms_by_hand() -> None:
    w = torch.randn(4, 3, 3, 3)
    tensor = quantize_tensor(w, TensorSpec("uint2", "two_terms", "per_channel", algorithm="two_terms"))
    first = w.abs().mean((1, 2, 3), keepdim=True)
    left = w - first * w.sign()
    second = left.abs().mean((1, 2, 3), keepdim=True)
    assert tensor.scale.shape == (4, 1, 1, 1, 2)
    assert torch.allclose(tensor.scale, torch.stack([first, second], -1))
    assert torch.allclose(tensor.dequantize(), first * w.sign() + second * left.sign())
    assert tensor.packed.nbytes == 27
    one_term = quantize_tensor(w, TensorSpec("bint1", granularity="per_channel")).dequantize()
    assert (tensor.dequantize() - w).norm() < 0.7 * (one_term - w).norm()


def test_two_terms_of_a_stream() -> None:
    spec = TensorSpec("uint2", "two_terms", algorithm="two_terms")
    statistics = Histogram(spec)
    torch.manual_seed(0)
    stream = [torch.randn(1000) for _ in range(3)]
    for batch in stream:
        statistics.observe(batch)
    exact = calibrate_tensor(torch.cat(stream), spec).scale
    assert torch.allclose(calibrate_statistics(statistics, spec).scale, exact, rtol=1e-2)


def test_scales_of_the_wrong_shape_are_refused() -> None:
    spec = TensorSpec("uint2", "two_terms", "per_channel", algorithm="two_terms")
    tensor = quantize_tensor(torch.randn(3, 8), spec)
    with pytest.raises(ConfigError, match=r"needs a scale of shape \(3, 1, 2\), not \(3, 1\)"):
        quantize(torch.randn(3, 8), QuantParams(tensor.scale[..., 0]), spec)
    with pytest.raises(CheckpointError, match=r"scale must be float32 of shape \(3, 1, 2\)"):
        QuantizedTensor.from_tensors(tensor.tensors() | {"scale": tensor.scale[..., 0]}, spec, tensor.shape)
    with pytest.raises(ConfigError, match="is unknown"):
        dequantize(tensor.codes, tensor.params, TensorSpec("uint2", "three_terms"))
