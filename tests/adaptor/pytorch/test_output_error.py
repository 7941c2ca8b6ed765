"""How far outputs are from float's, by hand."""

import math

import numpy as np
import pytest
import torch

from subbyte.adaptor.pytorch.output_error import output_error
from subbyte.errors import ModelError


def test_squared_and_angle_by_hand() -> None:
    expected = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    got = torch.tensor([[3.0, 0.0], [2.0, 2.0]])  # longer, and turned by 45 degrees
    error = output_error([[got]], [[expected]])
    assert error.squared == pytest.approx((4 + 4) / 5)
    assert error.angle == pytest.approx((0 + 1 - math.cos(math.pi / 4)) / 2)


@pytest.mark.parametrize("shape", [(6, 10), (6, 3, 4), (6, 4, 5, 5)])
def test_angle_is_one_minus_the_mean_cosine(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    expected = torch.randn(shape, generator=generator)
    got = expected + 0.3 * torch.randn(shape, generator=generator)
    cosine = torch.cosine_similarity(got.double().flatten(1), expected.double().flatten(1)).mean()
    assert output_error([[got]], [[expected]]).angle == pytest.approx(1 - float(cosine), rel=1e-5)


def test_batches_and_tensors_count_alike() -> None:
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert output_error([[x, y], [x, x]], [[x, x], [x, x]]).angle == pytest.approx(1 / 4)


def test_deviations_of_parts_that_turn_different_ways_add_up() -> None:
    expected = torch.tensor([[1.0, 0.0, 0.0]])
    one, other = expected + torch.tensor([[0.0, 0.02, 0.0]]), expected + torch.tensor([[0.0, 0.0, 0.03]])
    parts = [output_error([[each]], [[expected]]).deviation for each in (one, other)]
    whole = output_error([[one + other - expected]], [[expected]])
    assert np.square(sum(parts)).sum() / 2 == pytest.approx(whole.angle, rel=2e-3)
    against = output_error([[2 * expected - one]], [[expected]]).deviation
    assert np.square(parts[0] + against).sum() < 1e-3 * np.square(parts[0]).sum()


def test_a_single_number_for_a_sample_has_no_direction() -> None:
    expected, got = torch.tensor([[3.0], [4.0]]), torch.tensor([[3.0], [5.0]])
    error = output_error([[got]], [[expected]])
    assert error.angle == pytest.approx(0.5 * (1 / 12.5) / 2)
    assert error.squared == pytest.approx(1 / 25)
    flat = output_error([[got[:, 0]]], [[expected[:, 0]]])
    assert flat.angle == pytest.approx(error.angle)


def test_of_large_outputs_some_places_tell_about_the_rest() -> None:
    generator = torch.Generator().manual_seed(0)
    expected = torch.randn(4, 50_000, generator=generator)
    got = expected + 0.1 * torch.randn(4, 50_000, generator=generator)
    error = output_error([[got]], [[expected]])
    assert len(error.deviation) == 1024
    cosine = torch.cosine_similarity(got.double(), expected.double()).mean()
    assert error.angle == pytest.approx(1 - float(cosine), rel=0.15)
    assert (error.deviation == output_error([[got]], [[expected]]).deviation).all()


@pytest.mark.parametrize("outputs", [torch.zeros(2, 3), torch.zeros(2, 1), torch.zeros(0, 3), torch.tensor(0.0)])
def test_nothing_differs_from_itself(outputs: torch.Tensor) -> None:
    error = output_error([[outputs]], [[outputs]])
    assert (error.squared, error.angle) == (0.0, 0.0)


def test_what_is_expected_to_be_infinite_is_passed_over() -> None:
    expected, got = torch.tensor([[1.0, 0.0, -math.inf]]), torch.tensor([[1.0, 1.0, -math.inf]])
    error = output_error([[got]], [[expected]])
    assert error.angle == pytest.approx(1 - math.cos(math.pi / 4))
    assert error.squared == pytest.approx(1.0)


def test_outputs_of_other_shapes_are_refused() -> None:
    with pytest.raises(ModelError, match=r"\(31, 5\).*\(32, 5\).*take a strategy"):
        output_error([[torch.zeros(31, 5)]], [[torch.zeros(32, 5)]])
