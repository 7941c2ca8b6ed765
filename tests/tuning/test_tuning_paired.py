"""Intervals of a loss against exact intervals and against what they must cover."""

import math

import pytest
import torch
from torch import Tensor

from subbyte.tuning.paired import Interval, PairedLoss, paired_loss, samples_needed, weighted_loss, worst

stats = pytest.importorskip("scipy.stats")


def answers(right: int, samples: int) -> Tensor:
    return (torch.arange(samples) < right).double()


def loss_of(scores: Tensor, reference: Tensor, relative: bool = False, higher: bool = True) -> PairedLoss:
    return paired_loss(scores, reference, relative=relative, higher_is_better=higher)


@pytest.mark.parametrize("lost", [0, 1, 3, 10, 40])
@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.95, 0.99])
def test_interval_is_near_clopper_pearson_where_answers_are_only_lost(lost: int, confidence: float) -> None:
    found = loss_of(answers(500 - lost, 500), torch.ones(500).double()).interval(confidence)
    exact = stats.beta.ppf(confidence, lost + 1, 500 - lost)
    assert found.high == pytest.approx(exact, rel=0.05)
    assert found.loss == pytest.approx(lost / 500)


def test_interval_is_that_of_a_paired_t_test_where_samples_are_many() -> None:
    generator = torch.Generator().manual_seed(0)
    reference = torch.rand(20_000, generator=generator).double()
    scores = reference - 0.01 + 0.2 * torch.randn(20_000, generator=generator).double()
    found = loss_of(scores, reference).interval(0.9)
    test = stats.ttest_rel(reference.numpy(), scores.numpy()).confidence_interval(0.8)
    assert (found.low, found.high) == pytest.approx((test.low, test.high), abs=2.5e-4)


def test_interval_of_a_relative_loss_is_that_of_the_bootstrap() -> None:
    generator = torch.Generator().manual_seed(0)
    reference = (torch.rand(2000, generator=generator) < 0.8).double()
    changed = torch.rand(2000, generator=generator) < 0.1
    scores = torch.where(changed, (torch.rand(2000, generator=generator) < 0.6).double(), reference)
    found = loss_of(scores, reference, relative=True).interval(0.9)
    drawn = torch.randint(2000, (4000, 2000), generator=generator)
    losses = 1 - scores[drawn].mean(1) / reference[drawn].mean(1)
    low, high = losses.quantile(torch.tensor([0.1, 0.9]).double()).tolist()
    assert (found.low, found.high) == pytest.approx((low, high), abs=1.5e-3)
    assert found.loss == pytest.approx(1 - float(scores.mean() / reference.mean()))


def test_the_upper_bound_fails_no_more_often_than_stated() -> None:
    """Of 300 answers 8 % change, and a third of these for the better: the true loss is 0.08 / 3."""
    generator = torch.Generator().manual_seed(0)
    below = 0
    for _ in range(2000):
        draw = torch.rand(300, generator=generator)
        reference = (draw >= 0.08 / 3).double()  # wrong first, right after
        scores = torch.where(draw < 0.08, (draw < 0.08 / 3).double(), torch.ones(300).double())
        below += loss_of(scores, reference).interval(0.9).high < 0.08 / 3
    assert below <= 200 + 3 * (2000 * 0.09) ** 0.5
    assert below >= 60  # nor is it far too wide


def test_losses_of_what_is_to_be_low_and_of_negative_scores() -> None:
    reference, scores = torch.tensor([-2.0, -4.0]).double(), torch.tensor([-2.2, -4.4]).double()
    assert loss_of(scores, reference, relative=True).value == pytest.approx(0.1)
    assert loss_of(-scores, -reference, relative=True, higher=False).value == pytest.approx(0.1)
    assert loss_of(-scores, -reference, higher=False).value == pytest.approx(0.3)
    spread = loss_of(scores, reference, relative=True).residuals
    assert spread.abs().max() == pytest.approx(0.0, abs=1e-12)  # each loses a tenth


def test_a_relative_loss_of_no_score_is_infinite() -> None:
    assert loss_of(torch.ones(3).double(), torch.zeros(3).double(), relative=True).interval(0.9).high == math.inf


def test_a_weighted_loss_is_that_of_the_weighted_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.rand(50, generator=generator).double() for _ in range(2))
    losses = {"a": loss_of(one, torch.ones(50).double()), "b": loss_of(other, torch.ones(50).double())}
    found = weighted_loss(losses, {"a": 3, "b": 1})
    direct = loss_of(0.75 * one + 0.25 * other, torch.ones(50).double())
    assert found.value == pytest.approx(direct.value)
    assert torch.allclose(found.residuals, direct.residuals)


def test_the_worst_of_several_losses_has_the_highest_bound() -> None:
    wide, narrow = Interval(0.0, -1.0, 1.0, 5), Interval(0.5, 0.4, 0.6, 5)
    assert worst([narrow, wide]) == wide


@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.99])
def test_samples_needed_are_just_enough_for_equal_answers(confidence: float) -> None:
    def high(samples: int) -> float:
        return loss_of(torch.ones(samples).double(), torch.ones(samples).double()).interval(confidence).high

    one = loss_of(torch.ones(2).double(), torch.ones(2).double())
    needed = samples_needed(one, 0.01, confidence)
    assert high(needed) <= 0.01 < high(needed - 1)
    assert needed == math.ceil(-100 * math.log(1 - confidence))


def test_an_interval_is_predicted_for_another_number_of_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = (torch.rand(8000, generator=generator) < 0.9).double()
    whole = loss_of(scores, torch.ones(8000).double())
    part = loss_of(scores[:2000], torch.ones(2000).double())
    predicted, found = whole.interval(0.9, samples=2000), part.interval(0.9)
    assert predicted.high - predicted.loss == pytest.approx(found.high - found.loss, rel=0.05)
    assert predicted.samples == 2000
