"""mean_abs: alpha = mean |w|, for signs."""

import pytest
import torch

from subbyte.calibration import MeanAbs, calibrate_statistics, calibrate_tensor, quantize_tensor
from subbyte.dtypes import DataType
from subbyte.errors import ConfigError
from subbyte.spec import TensorSpec


def test_alpha_of_every_filter() -> None:
    w = torch.randn(8, 3, 3, 3)
    tensor = quantize_tensor(w, TensorSpec("bint1", granularity="per_channel"))
    alpha = w.abs().mean((1, 2, 3), keepdim=True)
    assert torch.allclose(tensor.scale, alpha)
    assert torch.allclose(tensor.dequantize(), torch.where(w >= 0, alpha, -alpha))


def test_it_is_the_scale_of_least_error() -> None:
    w = torch.randn(500)
    alpha = calibrate_tensor(w, TensorSpec("bint1")).scale
    least = (w - alpha * w.sign()).square().sum()
    for other in (0.95 * alpha, 1.05 * alpha):
        assert least < (w - other * w.sign()).square().sum()


def test_a_short_group_is_averaged_over_its_own_elements() -> None:
    w = torch.tensor([[1.0, 3.0, -5.0]])
    assert calibrate_tensor(w, TensorSpec("bint1", granularity="per_group(2)")).scale.tolist() == [[2.0, 5.0]]


def test_the_table_may_be_of_another_size() -> None:
    two = DataType("two", values=(2.0, -2.0))
    assert calibrate_tensor(torch.tensor([1.0, -3.0]), TensorSpec(two, algorithm="mean_abs")).scale == 1.0


def test_a_stream() -> None:
    spec = TensorSpec("bint1")
    statistics = MeanAbs(spec)
    stream = [torch.randn(30), torch.randn(7)]
    for batch in stream:
        statistics.observe(batch)
    assert torch.allclose(calibrate_statistics(statistics, spec).scale, torch.cat(stream).abs().mean())


@pytest.mark.parametrize("name", ["int4", "uint1", "int1", "ternary", "nf4"])
def test_other_types_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"mean_abs is the scale of a sign.*{name} takes minmax"):
        calibrate_tensor(torch.randn(4), TensorSpec(name, algorithm="mean_abs"))


def test_two_values_must_be_opposite() -> None:
    with pytest.raises(ConfigError, match="the scale of a sign"):
        calibrate_tensor(torch.randn(4), TensorSpec(DataType("half", values=(0, 1)), algorithm="mean_abs"))
