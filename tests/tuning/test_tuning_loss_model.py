"""Expected losses against conditioning by hand."""

import numpy as np
import pytest

from subbyte.tuning.loss_model import LossModel

A, B, C = np.array([0.1, 0.0]), np.array([0.1, 0.02]), np.array([0.0, 0.1])


def chances(model: LossModel, *deviations: np.ndarray) -> list[float]:
    return [float(each) for each in model.chance(np.stack(deviations))]


def test_before_any_trial_a_loss_is_expected_to_be_the_angle() -> None:
    mean, deviation = LossModel(0.01).predict(np.stack([A, 2 * A, 0 * A]))
    assert mean == pytest.approx([0.005, 0.02, 0.0])
    angles = np.array([0.005, 0.02, 0.0])
    assert deviation**2 == pytest.approx(0.25 * angles**2 + (0.004 + 0.13 * angles) ** 2)


def test_one_trial_by_the_formula_of_two_normals() -> None:
    a, b = float(A @ A) / 2, float(B @ B) / 2
    spread = {"a": 0.004 + 0.13 * a, "b": 0.004 + 0.13 * b}
    cosine = float(A @ B) / np.linalg.norm(A) / np.linalg.norm(B)
    covariance = 0.25 * a * b + 0.9 * cosine**2 * spread["a"] * spread["b"]
    own, other = 0.25 * a * a + spread["a"] ** 2, 0.25 * b * b + spread["b"] ** 2
    mean, deviation = LossModel(0.01).having(A, 0.03).predict(B[None])
    assert mean[0] == pytest.approx(b + covariance / own * (0.03 - a))
    assert deviation[0] ** 2 == pytest.approx(other - covariance**2 / own)


def test_a_trial_of_the_other_kind_tells_half_as_much_of_the_factor() -> None:
    a, c = float(A @ A) / 2, float(C @ C) / 2
    own = 0.25 * a * a + (0.004 + 0.13 * a) ** 2
    model = LossModel(0.01).having(A, 0.03, own=False)
    assert model.predict(C[None])[0][0] == pytest.approx(c + 0.5 * 0.25 * a * c / own * (0.03 - a))
    assert LossModel(0.01).having(A, 0.03).predict(C[None])[0][0] == pytest.approx(c + 0.25 * a * c / own * (0.03 - a))


def test_what_errs_alike_loses_alike() -> None:
    model = LossModel(0.01).having(A, 0.05)
    near, far = chances(model, B, C)
    before = chances(LossModel(0.01), B, C)
    assert near < far < before[1]
    assert near < 0.3 * before[0]
    better = LossModel(0.01).having(A, -0.01)
    assert chances(better, B)[0] > before[0]


def test_trials_teach_how_much_an_angle_costs() -> None:
    model = LossModel(0.01)
    directions = np.eye(6)
    for index in range(5):  # in directions of their own, so that only the factor is common to them
        model = model.having(0.2 * directions[index], 5 * 0.02)
    mean, _ = model.predict(0.2 * directions[5][None])
    assert mean[0] == pytest.approx(0.1, rel=0.2)


def test_many_equal_trials_are_no_trouble() -> None:
    model = LossModel(0.01)
    for _ in range(30):
        model = model.having(A, 0.02)
    mean, deviation = model.predict(np.stack([A, C, 0 * A]))
    assert mean[0] == pytest.approx(0.02, abs=1e-3)
    assert np.isfinite(mean).all()
    assert (deviation > 0).all()
