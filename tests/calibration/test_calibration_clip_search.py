"""The search over clip ratios: its candidates, and the choice of each block."""

import pytest
import torch
from torch import Tensor

from networks import seeded
from subbyte.calibration import Distribution, calibrate_tensor
from subbyte.calibration.clip_search import STEPS, cut, search
from subbyte.spec import QuantParams, TensorSpec

SPEC = TensorSpec("uint4", "asym")


def test_candidates_are_the_range_scaled_down_step_by_step() -> None:
    seen: list[list[float]] = []

    def loss(params: QuantParams, minimum: Tensor, maximum: Tensor) -> Tensor:
        seen.extend(torch.cat([minimum, maximum], 1).tolist())
        return torch.zeros(len(minimum))

    chosen = search(Distribution(torch.tensor([-1.0]), torch.tensor([3.0])), SPEC, loss)
    assert torch.allclose(torch.tensor(seen), torch.tensor([[-1.0, 3.0]]) * (1 - torch.arange(50)[:, None] / 50))
    assert len(seen) == STEPS
    # Of equal ones the widest.
    assert chosen.scale == torch.tensor(4 / 15)


def test_every_block_gets_its_own_best() -> None:
    wanted = torch.tensor([3.0, 1.5, 0.06])

    def loss(params: QuantParams, minimum: Tensor, maximum: Tensor) -> Tensor:
        return (maximum.view(-1, 3) - wanted).abs().flatten()

    chosen = search(Distribution(torch.full((3,), -1.5), torch.full((3,), 3.0)), SPEC, loss)
    assert torch.allclose(chosen.scale, wanted * 1.5 / 15)
    assert chosen.scale.shape == chosen.zero_point.shape == (3,)
    assert chosen.zero_point.tolist() == [5, 5, 5]


@pytest.mark.parametrize("algorithm", ["mse", "kl"])
@pytest.mark.parametrize(("dtype", "scheme"), [("uint4", "asym"), ("nf4", "sym")])
def test_blocks_get_the_same_alone_and_in_a_tensor_of_many(algorithm: str, dtype: str, scheme: str) -> None:
    x = seeded((200, 40)).relu()  # too many to compare all candidates of all blocks at once
    spec = TensorSpec(dtype, scheme, "per_channel", algorithm=algorithm)
    together = calibrate_tensor(x, spec)
    alone = [calibrate_tensor(row[None], spec) for row in x]
    assert torch.equal(together.scale, torch.cat([each.scale for each in alone]))
    if together.zero_point is not None:
        assert torch.equal(together.zero_point, torch.cat([each.zero_point for each in alone]))


def test_a_cut_leaves_the_shorter_end_until_it_is_reached() -> None:
    distribution = Distribution(torch.tensor([-1.0, -4.0, -2.0, 0.0]), torch.tensor([4.0, 1.0, 2.0, 3.0]))
    for ratio, low, high in (
        (1.0, [-1.0, -4.0, -2.0, 0.0], [4.0, 1.0, 2.0, 3.0]),
        (0.5, [-1.0, -2.0, -1.0, 0.0], [2.0, 1.0, 1.0, 1.5]),
        (0.125, [-0.5, -0.5, -0.25, 0.0], [0.5, 0.5, 0.25, 0.375]),
    ):
        minimum, maximum = cut(distribution, ratio)
        assert minimum.tolist() == low
        assert maximum.tolist() == high
