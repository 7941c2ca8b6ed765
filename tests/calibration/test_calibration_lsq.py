"""lsq: 2 mean |x| / sqrt(Q)."""

import pytest
import torch

from subbyte.calibration import MeanAbs, calibrate_statistics, calibrate_tensor
from subbyte.errors import ConfigError
from subbyte.spec import TensorSpec


def test_by_hand() -> None:
    w = torch.tensor([[1.0, -3.0], [2.0, 6.0]])
    spec = TensorSpec("int3", granularity="per_channel", algorithm="lsq")
    assert torch.equal(calibrate_tensor(w, spec).scale, torch.tensor([[2 * 2 / 4**0.5], [2 * 4 / 4**0.5]]))


def test_a_stream() -> None:
    spec = TensorSpec("uint4", algorithm="lsq")
    statistics = MeanAbs(spec)
    for part in (torch.rand(10), torch.rand(30)):
        statistics.observe(part)
    found = calibrate_statistics(statistics, spec)
    assert found.zero_point == 0
    torch.testing.assert_close(found.scale, 2 * torch.as_tensor(statistics.total / 40).float().reshape(()) / 15**0.5)


def test_a_table() -> None:
    with pytest.raises(ConfigError, match="algorithm lsq is for integers"):
        calibrate_tensor(torch.randn(4), TensorSpec("ternary", algorithm="lsq"))
