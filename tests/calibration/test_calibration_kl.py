"""kl: a search, compared with an independent one in numpy, and what it does to typical data."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from subbyte.calibration import Distribution, algorithm_of, calibrate_tensor, quantize_tensor
from subbyte.spec import TensorSpec

BINS, STEPS = 2048, 50


def divergences(values: np.ndarray, counts: np.ndarray, qmin: int, qmax: int) -> list[float]:
    """KL(P || Q) of every candidate of a symmetric type (grid qmin..qmax, zero point 0), bin by bin."""
    low, high = float(values.min()), float(values.max())
    width = (high - low) / BINS
    histogram = np.zeros(BINS)
    for value, count in zip(values, counts, strict=True):
        if value != 0:
            histogram[min(int((value - low) / width), BINS - 1)] += count
    centres = low + (np.arange(BINS) + 0.5) * width
    found = []
    for step in range(STEPS):
        ratio = 1 - step / STEPS
        scale = max(high * ratio / qmax, low * ratio / qmin if qmin else 0.0)
        inside = [k for k in range(BINS) if low * ratio <= centres[k] <= high * ratio]
        if not inside or not histogram[inside].any():
            found.append(np.inf)
            continue
        p = dict.fromkeys(inside, 0.0)
        for k in range(BINS):
            p[min(max(k, inside[0]), inside[-1])] += histogram[k]
        sharing: dict[int, list[int]] = {}
        for k in inside:
            sharing.setdefault(min(max(round(centres[k] / scale), qmin), qmax), []).append(k)
        q = {}
        for bins in sharing.values():
            filled = [k for k in bins if histogram[k] > 0]
            for k in filled:
                q[k] = sum(histogram[b] for b in bins) / len(filled)
        p_total, q_total = sum(p.values()), sum(q.values())
        found.append(
            sum(p[k] / p_total * np.log(p[k] / p_total / max(q.get(k, 0.0) / q_total, 1e-9)) for k in inside if p[k])
        )
    return found


@settings(deadline=None, max_examples=8)
@given(st.sampled_from([-8, 0]), st.integers(2, 8), st.integers(0, 1 << 20))
def test_the_candidate_is_that_of_a_brute_force_search(low: int, bits: int, seed: int) -> None:
    # Multiples of 1/8 between -8 and 8 lie exactly in bins, whatever the precision of their arithmetic.
    random = np.random.default_rng(seed)
    values = np.arange(low * 8, 65) / 8
    counts = np.floor(1000 * np.exp(-random.uniform(0.2, 1.5) * np.abs(values)) * random.uniform(0.5, 1, len(values)))
    counts[[0, -1]] += 1  # the ends are there
    spec = TensorSpec(f"{'int' if low else 'uint'}{bits}", algorithm="kl")
    column = torch.tensor(values, dtype=torch.float32)[None]
    distribution = Distribution(
        column.amin(1), column.amax(1), None, column, torch.tensor(counts, dtype=torch.float32)[None]
    )
    scale = algorithm_of(spec).params(distribution, spec).scale.item()

    widest = max(8 / spec.qmax, low / spec.qmin if low else 0)
    loss = divergences(values, counts, spec.qmin, spec.qmax)
    chosen = round(STEPS * (1 - scale / widest))
    assert loss[chosen] <= min(loss) + 1e-5 * (1 + abs(min(loss)))


@pytest.mark.parametrize("bits", [4, 8])
def test_heavy_tails_are_clipped(bits: int) -> None:
    torch.manual_seed(0)
    x = torch.distributions.StudentT(3.0).sample((200_000,))
    clipped = calibrate_tensor(x, TensorSpec(f"int{bits}", algorithm="kl")).scale
    assert clipped < 0.8 * calibrate_tensor(x, TensorSpec(f"int{bits}")).scale


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_a_uniform_distribution_is_not(bits: int) -> None:
    x = torch.linspace(-1, 1, 20_000)
    kept = calibrate_tensor(x, TensorSpec(f"int{bits}", algorithm="kl")).scale
    assert kept >= 0.9 * calibrate_tensor(x, TensorSpec(f"int{bits}")).scale


@pytest.mark.parametrize("bits", [4, 8])
def test_zeros_of_a_relu_do_not_pull_the_range_to_zero(bits: int) -> None:
    torch.manual_seed(0)
    x = (torch.randn(20_000) - 1).relu()
    spec = TensorSpec(f"uint{bits}", algorithm="kl")
    assert calibrate_tensor(x, spec).scale == calibrate_tensor(x[x > 0], spec).scale
    assert calibrate_tensor(x, spec).scale * spec.qmax > 0.5 * x.max()


@pytest.mark.parametrize("name", ["bint1", "ternary", "nf4"])
def test_tables_are_searched_too(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4000)
    scale = calibrate_tensor(x, TensorSpec(name, algorithm="kl")).scale
    assert 0 < scale <= calibrate_tensor(x, TensorSpec(name, algorithm="minmax")).scale


def error(x: torch.Tensor, spec: TensorSpec) -> float:
    return (quantize_tensor(x, spec).dequantize() - x).square().mean().item()


@pytest.mark.parametrize("function", [F.gelu, F.silu, F.hardswish])
@pytest.mark.parametrize("bits", [2, 4])
def test_the_long_tail_of_an_activation_is_clipped_though_its_short_one_is_full(function: Any, bits: int) -> None:
    torch.manual_seed(0)
    x = function(torch.randn(50_000) * 1.5)
    for scheme in ("sym", "asym"):
        observed, searched = (error(x, TensorSpec(f"uint{bits}", scheme, algorithm=name)) for name in ("minmax", "kl"))
        assert searched <= observed
        assert scheme == "asym" or searched < 0.8 * observed  # by 1 dB
