"""twn: the published formula."""

import numpy as np
import pytest
import torch

from subbyte.calibration import Histogram, calibrate_statistics, calibrate_tensor
from subbyte.dtypes import DataType
from subbyte.errors import ConfigError
from subbyte.spec import TensorSpec


def alpha(w: np.ndarray) -> float:
    magnitude = np.abs(w.astype(np.float64))
    return magnitude[magnitude > 0.7 * magnitude.mean()].mean()


def test_alpha_of_every_filter() -> None:
    w = torch.randn(6, 40)
    scale = calibrate_tensor(w, TensorSpec("ternary", granularity="per_channel")).scale
    assert scale[:, 0].tolist() == pytest.approx([alpha(row) for row in w.numpy()], rel=1e-5)


def test_a_short_group_ignores_its_padding() -> None:
    w = torch.randn(1, 5)
    scale = calibrate_tensor(w, TensorSpec("ternary", granularity="per_group(3)")).scale
    assert scale[0].tolist() == pytest.approx([alpha(w[0, :3].numpy()), alpha(w[0, 3:].numpy())], rel=1e-5)


def test_the_table_may_be_of_another_size() -> None:
    w, big = torch.randn(50), DataType("big", values=(0, 4, -4))
    ours = calibrate_tensor(w, TensorSpec(big, algorithm="twn")).scale
    assert ours.item() == pytest.approx(alpha(w.numpy()) / 4, rel=1e-5)


def test_a_stream_is_as_good_to_the_width_of_its_bins() -> None:
    spec = TensorSpec("ternary")
    statistics = Histogram(spec)
    torch.manual_seed(0)
    x = torch.randn(5000)
    statistics.observe(x)
    assert calibrate_statistics(statistics, spec).scale.item() == pytest.approx(alpha(x.numpy()), rel=1e-3)


@pytest.mark.parametrize("name", ["int2", "bint1", "nf4"])
def test_other_types_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"twn is the scale of a ternary type; {name} takes minmax"):
        calibrate_tensor(torch.randn(4), TensorSpec(name, algorithm="twn"))


@pytest.mark.parametrize("values", [(-1, 0, 2), (-1, 0.5, 1)])
def test_three_values_must_be_symmetric_about_zero(values: tuple) -> None:
    with pytest.raises(ConfigError, match="ternary type"):
        calibrate_tensor(torch.randn(4), TensorSpec(DataType("three", values=values), algorithm="twn"))
