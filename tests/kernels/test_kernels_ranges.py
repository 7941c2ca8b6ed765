"""affine_params: every instruction set against the schemes of numerics."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from subbyte.kernels import ranges as in_torch
from subbyte.numerics import scheme_of
from subbyte.spec import TensorSpec

OPS = torch.ops.subbyte
IN_TORCH = {"affine_params": in_torch._affine_params}
TYPES = ["int1", "uint1", "int2", "int4", "uint4", "int8", "uint8"]


def check(x: Tensor, dtype: str, scheme: str) -> None:
    """Both formulas of numerics, of the whole and of each row."""
    spec = TensorSpec(dtype, scheme=scheme)
    for by_row in (False, True):
        rows = x if by_row else x.reshape(-1)
        ends = torch.aminmax(rows, dim=-1, keepdim=by_row)
        wanted = scheme_of(spec).from_range(ends.min, ends.max, spec)
        scale, zero_point = in_torch.affine_params(x, spec.qmin, spec.qmax, symmetric=scheme == "sym", by_row=by_row)
        assert torch.equal(scale, wanted.scale)
        assert wanted.zero_point is not None
        assert torch.equal(zero_point, wanted.zero_point.expand(scale.shape))
        assert zero_point.dtype == torch.int32


@pytest.mark.parametrize("scheme", ["sym", "asym"])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    dtype=st.sampled_from(TYPES),
    shift=st.sampled_from([0.0, -9.0, 9.0]),
    exponent=st.integers(-44, 38),
    seed=st.integers(0, 1 << 30),
)
def test_the_schemes_formula_bit_for_bit(
    kernels: str, scheme: str, shape: list[int], dtype: str, shift: float, exponent: int, seed: int
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    check((x + shift) * 10.0**exponent / 10, dtype, scheme)


@pytest.mark.parametrize("scheme", ["sym", "asym"])
@pytest.mark.parametrize("dtype", TYPES)
def test_extremes(kernels: str, scheme: str, dtype: str) -> None:
    for values in ([0.0, 0.0], [-0.0, 1.0], [3e38, -3e38], [1e-45, 0.0], [5.0, 5.0], [-5.0, -5.0], [float("inf"), 1.0]):
        check(torch.tensor([values * 20]), dtype, scheme)


def test_what_a_nan_is_among_has_a_usable_scale_and_others_are_untouched(kernels: str) -> None:
    x = torch.randn(4, 100)
    clean = in_torch.affine_params(x, 0, 255, symmetric=False, by_row=True)
    x[2, 97] = torch.nan
    scale, zero_point = in_torch.affine_params(x, 0, 255, symmetric=False, by_row=True)
    assert scale[2] == 1.0
    assert 0 <= int(zero_point[2]) <= 255
    assert torch.equal(scale[[0, 1, 3]], clean[0][[0, 1, 3]])
    assert torch.equal(zero_point[[0, 1, 3]], clean[1][[0, 1, 3]])
    assert in_torch.affine_params(x, -8, 7, symmetric=True, by_row=False)[0] == 1.0


def test_long_rows_are_shared_by_threads(kernels: str) -> None:
    x = torch.randn(3, 200_001)
    x[1, 200_000] = 77.0
    check(x, "uint8", "asym")
    check(x.T, "int4", "sym")
    x[0, 100_000] = torch.nan
    assert in_torch.affine_params(x, -8, 7, symmetric=True, by_row=True)[0][0] == 1.0


def test_nothing_has_scale_one(kernels: str) -> None:
    for shape in ((0,), (3, 0), (0, 3)):
        scale, zero_point = in_torch.affine_params(torch.empty(shape), 0, 15, symmetric=False, by_row=True)
        assert scale.shape == zero_point.shape == (*shape[:-1], 1)
        assert torch.equal(scale, torch.ones_like(scale))
    assert in_torch.affine_params(torch.empty(0, 3), 0, 15, symmetric=True, by_row=False)[0] == 1.0


def test_what_does_not_fit_is_refused(kernels: str) -> None:
    x = torch.randn(3, 4)
    for bad in ((x.double(), 0, 15), (x, 3, 3), (x, -129, 0), (x, 0, 256)):
        with pytest.raises(RuntimeError):
            in_torch.affine_params(*bad, symmetric=True, by_row=True)
    with pytest.raises(RuntimeError):
        in_torch.affine_params(torch.tensor(1.0), 0, 15, symmetric=True, by_row=True)


def test_it_is_a_well_behaved_operator() -> None:
    for by_row in (False, True):
        torch.library.opcheck(OPS.affine_params.default, (torch.randn(5, 3), -8, 7, True, by_row))

    def scales(x: Tensor) -> Tensor:
        return in_torch.affine_params(x, 0, 15, symmetric=False, by_row=True)[0]

    x = torch.randn(5, 3)
    assert torch.equal(torch.compile(scales, fullgraph=True, backend="aot_eager")(x), scales(x))
