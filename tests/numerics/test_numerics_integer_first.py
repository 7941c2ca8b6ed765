"""The arithmetic on sums: where fp32 is exact, and two roundings."""

import torch

from subbyte.numerics import EXACT_IN_FP32, accumulator, rescale


def test_fp32_holds_whole_numbers_below_its_bound() -> None:
    bound = int(EXACT_IN_FP32)
    assert float(torch.tensor(float(bound - 1), dtype=torch.float32)) == bound - 1
    assert float(torch.tensor(float(bound + 1), dtype=torch.float32)) != bound + 1


def test_the_accumulator_is_exact() -> None:
    assert accumulator(EXACT_IN_FP32 - 1, integer=True) == torch.float32
    assert accumulator(EXACT_IN_FP32, integer=True) == torch.float64
    assert accumulator(1e12, integer=False) == torch.float32


def test_rescale_rounds_twice() -> None:
    total, scale, bias = (torch.randn(200_000) for _ in range(3))
    total = (total * 1000).round()
    product = (total.numpy() * scale.numpy()).astype("float32")
    expected, one = torch.from_numpy(product + bias.numpy()), torch.tensor(1.0)
    assert torch.equal(rescale(total.clone(), one, scale, bias), expected)
    assert torch.equal(rescale(total.double(), one, scale, bias), expected)
    assert torch.equal(rescale(total.clone(), one, scale, None), torch.from_numpy(product))


def test_rescale_is_differentiable() -> None:
    total = torch.ones(2, 3, requires_grad=True)
    rescale(total, torch.tensor(0.25), torch.tensor(2.0), torch.zeros(3)).sum().backward()
    assert torch.equal(total.grad, torch.full((2, 3), 0.5))
