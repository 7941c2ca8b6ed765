"""minmax and moving_average_minmax."""

import pytest
import torch

from subbyte.calibration import MinMax, MovingAverageMinMax, algorithm_of, calibrate_statistics, calibrate_tensor
from subbyte.spec import TensorSpec


@pytest.mark.parametrize("algorithm", ["minmax", "moving_average_minmax"])
def test_the_range_is_what_was_seen(algorithm: str) -> None:
    x = torch.tensor([-1.0, 0.25, 3.0])
    assert calibrate_tensor(x, TensorSpec("int4", algorithm=algorithm)).scale == torch.tensor(3.0) / 7
    asym = calibrate_tensor(x, TensorSpec("uint4", "asym", algorithm=algorithm))
    assert asym.scale.item() == pytest.approx(4 / 15)
    assert asym.zero_point == 4


def test_batches_far_out_weigh_less_in_a_moving_average() -> None:
    stream = [torch.tensor([1.0])] * 10 + [torch.tensor([101.0])]
    scales = {}
    for kind, name in ((MinMax, "minmax"), (MovingAverageMinMax, "moving_average_minmax")):
        spec = TensorSpec("uint8", algorithm=name)
        assert algorithm_of(spec).statistics is kind
        statistics = kind(spec)
        for batch in stream:
            statistics.observe(batch)
        scales[name] = calibrate_statistics(statistics, spec).scale.item() * 255
    assert scales == pytest.approx({"minmax": 101.0, "moving_average_minmax": 2.0})
