"""Work on several weights, one thread each."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import subbyte
from subbyte.adaptor.pytorch.on_threads import on_threads

WEIGHTS = [torch.full((size,), float(size)) for size in (2, 5, 3)]


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def itself(weight: torch.Tensor) -> torch.Tensor:
    return weight


def test_on_threads_returns_results_in_order_of_items() -> None:
    assert on_threads(lambda weight: float(weight.sum()), WEIGHTS, itself) == [4.0, 25.0, 9.0]


def test_on_threads_uses_one_thread_for_each_item_and_restores_the_number() -> None:
    assert on_threads(lambda _: torch.get_num_threads(), WEIGHTS, itself) == [1, 1, 1]
    assert torch.get_num_threads() == 2


def test_on_threads_leaves_new_threads_the_number_of_threads() -> None:
    on_threads(itself, WEIGHTS, itself)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 2


@pytest.mark.parametrize("gradients", [True, False])
def test_on_threads_keeps_modes_of_the_caller(gradients: bool) -> None:
    with torch.set_grad_enabled(gradients):
        assert on_threads(lambda _: torch.is_grad_enabled(), WEIGHTS, itself) == [gradients] * 3
    with torch.inference_mode():
        assert on_threads(lambda _: torch.is_inference_mode_enabled(), WEIGHTS, itself) == [True] * 3


def test_on_threads_raises_the_error_of_the_first_item() -> None:
    def fail(weight: torch.Tensor) -> None:
        raise ValueError(f"{weight.numel()} values")

    with pytest.raises(ValueError, match="2 values"):
        on_threads(fail, WEIGHTS, itself)
    assert torch.get_num_threads() == 2


def test_quantize_gives_the_same_codes_for_any_number_of_threads() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 48), nn.Linear(48, 8))
    model[3].weight = nn.Parameter(torch.randn(8, 48))
    packed = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        packed[threads] = subbyte.weights(subbyte.quantize(model, "w3:mse"))
    for name in packed[1]:
        assert torch.equal(packed[1][name].packed, packed[2][name].packed)
        assert torch.equal(packed[1][name].scale, packed[2][name].scale)


def test_quantize_packs_a_shared_weight_once() -> None:
    first, second = nn.Linear(16, 16), nn.Linear(16, 16)
    second.weight = first.weight
    q_model = subbyte.quantize(nn.Sequential(first, nn.ReLU(), second), "w4")
    assert q_model[0].weight is q_model[2].weight
