"""Orthogonal matrices: what their names say."""

import pytest
import torch

from subbyte.algorithms.orthogonal import hadamard, keeping_mean, random_orthogonal, spreading


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("size", [1, 2, 4, 12, 20, 28, 36, 64, 96, 112, 384, 768])
def test_hadamard_matrices(size: int) -> None:
    found = hadamard(size)
    assert found is not None
    assert (found.abs() == 1).all()
    assert torch.equal(found @ found.T, size * torch.eye(size, dtype=torch.float64))


def test_sizes_without_one() -> None:
    assert all(hadamard(size) is None for size in (3, 5, 6, 10, 22, 50, 172))


@pytest.mark.parametrize("size", [1, 3, 8, 12, 22])
def test_all_are_orthogonal_and_one_keeps_the_mean(size: int) -> None:
    for make in (spreading, random_orthogonal, keeping_mean):
        found = make(size, generator())
        torch.testing.assert_close(found @ found.T, torch.eye(size, dtype=torch.float64))
        assert torch.equal(found, make(size, generator()))
    kept = keeping_mean(size, generator())
    ones = torch.ones(size, dtype=torch.float64)
    torch.testing.assert_close(kept @ ones, ones)
    torch.testing.assert_close(ones @ kept, ones)


def test_what_lies_in_one_channel_is_spread_evenly() -> None:
    assert torch.allclose(spreading(12, generator())[3].abs(), torch.tensor(12**-0.5, dtype=torch.float64))
