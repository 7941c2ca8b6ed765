"""Bop, latent weights and the flip ratio."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import subbyte
from networks import randomized, seeded
from subbyte.errors import ConfigError, ModelError
from subbyte.training.binary import Bop, FlipRatio, binary_weights

X = seeded((16, 6))


def _net() -> nn.Module:
    return randomized(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)))


def test_bop_step_by_step() -> None:
    weight = nn.Parameter(torch.tensor([0.5, -0.5, 0.25, -0.25, 0.0]))
    own = Bop([weight], rate=0.5, threshold=0.3)
    mean = torch.zeros(5)
    for gradient in ([1.0, 1.0, 0.5, -1.0, 1.0], [-1.0, 1.0, 0.5, 0.0, 0.0]):
        weight.grad = torch.tensor(gradient)
        mean = 0.5 * mean + 0.5 * weight.grad
        before = weight.detach().clone()
        own.step()
        for w, m, now in zip(before.tolist(), mean.tolist(), weight.tolist(), strict=True):
            flips = abs(m) >= 0.3 and (m > 0) == (w >= 0)
            assert (now < 0) == ((w >= 0) == flips)
            assert abs(now) == pytest.approx(abs(w), abs=1e-37)
    assert weight.tolist()[:4] == [-0.5, -0.5, -0.25, 0.25]


def test_bop_trains_signs_alone() -> None:
    training = {"types": {"bint1": {"weight": "straight_through"}}}
    model = subbyte.prepare_qat(_net(), "w1a8", X, first_last="int8", training=training).train()
    (weight,) = binary_weights(model)
    assert weight is model[1].weight
    magnitude, flips = weight.detach().abs(), FlipRatio(model)
    rest = torch.optim.Adam([p for p in model.parameters() if p is not weight], 1e-2)
    own, losses = Bop([weight], rate=0.1, threshold=1e-3), []
    target = seeded((16, 8)) @ seeded((8, 4), 1)
    for _ in range(30):
        own.zero_grad()
        rest.zero_grad()
        loss = F.mse_loss(model(X), target)
        loss.backward()
        own.step()
        rest.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert torch.equal(weight.abs(), magnitude)
    assert flips.look() > 0
    with torch.no_grad():
        assert torch.equal(subbyte.convert(model)(X), model.eval()(X))


def test_the_flip_ratio_counts_since_the_last_look() -> None:
    model = subbyte.prepare_qat(_net(), "w1a8", X)
    flips = FlipRatio(model)
    assert flips.look() == 0
    with torch.no_grad():
        model[0].weight[:2] *= -1  # 12 of 48
        model[2].weight.neg_()  # 32 of 32
    assert flips.look() == pytest.approx((12 + 32) / (48 + 64 + 32))
    assert flips.by_op == {"0": 0.25, "1": 0.0, "2": 1.0}
    assert flips.look() == 0


def test_what_is_refused() -> None:
    with pytest.raises(ModelError, match="no binary weights"):
        FlipRatio(subbyte.prepare_qat(_net(), "w4a4", X))
    with pytest.raises(ModelError, match="not quantized"):
        binary_weights(_net())
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(ConfigError, match="rate is above 0 and at most 1, not 0"):
        Bop([weight], rate=0)
    with pytest.raises(ConfigError, match="rate is above 0 and at most 1, not '1'"):
        Bop([weight], rate="1")
    for threshold in (-1, float("nan"), "0"):
        with pytest.raises(ConfigError, match="threshold is 0 or more"):
            Bop([weight], threshold=threshold)


def test_a_gradient_that_is_not_finite_is_no_part_of_the_mean() -> None:
    weight = nn.Parameter(torch.ones(3))
    own = Bop([weight], rate=0.5, threshold=0.1)
    weight.grad = torch.tensor([torch.nan, torch.inf, 1.0])
    own.step()
    assert own.state[weight]["mean"].tolist() == [0.0, 0.0, 0.5]
    assert weight.tolist() == [1.0, 1.0, -1.0]
    weight.grad = torch.ones(3)
    own.step()
    assert weight.tolist() == [-1.0, -1.0, -1.0]


def test_two_values_that_are_no_sign_are_no_binary_weights() -> None:
    subbyte.register_dtype(subbyte.DataType(name="zero_one", values=[0.0, 1.0]))
    model = subbyte.prepare_qat(_net(), {"precision": "wbint1a8", "op_name_dict": {"1": "wzero_onea8"}}, X)
    assert len(binary_weights(model)) == 2
    assert list(FlipRatio(model).by_op) == ["0", "2"]


def test_they_come_with_the_library() -> None:
    subprocess.run([sys.executable, "-c", "import subbyte; subbyte.training.binary.Bop"], check=True)
