"""The operators on affine grids: every instruction set against the formula and autograd in float64; refusals."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from subbyte.kernels import isas, use_isa
from subbyte.kernels import quantize as in_torch
from subbyte.kernels.packing import unpack_codes

OPS = torch.ops.subbyte
NAMES = (
    "affine_snap",
    "affine_fake_quantize",
    "affine_fake_quantize_sum",
    "affine_quantize",
    "affine_quantize_pack",
    "affine_fake_quantize_backward",
)
AVAILABLE = [isa.name for isa in isas() if isa.available]
IN_TORCH = {name: getattr(in_torch, f"_{name}") for name in NAMES}
RANGES = [(-8, 7), (0, 15), (-128, 127), (0, 255), (-1, 0), (-3, 3)]


def case(seed: int) -> tuple[Tensor, Tensor, Tensor, int, int, int]:
    """Arguments with everything drawn at random: shape, memory format, which values share parameters, codes."""
    random = torch.Generator().manual_seed(seed)

    def below(end: int) -> int:
        return int(torch.randint(end, (), generator=random))

    shape = [1 + below(40 if below(2) else 6) for _ in range(below(5))]
    x = torch.randint(-60, 60, shape, generator=random) / 8  # ties among them
    order = torch.randperm(len(shape), generator=random).tolist()
    x = x.permute(order).contiguous().permute([order.index(axis) for axis in range(len(shape))])
    if below(4) == 0 and shape:
        x = x.repeat_interleave(2, -1)[..., ::2]
    group_size = 1 + below(7)
    sizes = [(1, size, -(-size // group_size))[below(3)] for size in shape]
    sizes = [] if below(4) == 0 else sizes
    low, high = RANGES[below(len(RANGES))]
    zero_point = torch.randint(low, high + 1, sizes if below(2) else [1], generator=random, dtype=torch.int32)
    scale = torch.randint(1, 9, sizes, generator=random) / 4 if below(2) else torch.rand(sizes, generator=random) + 0.05
    return x, scale, zero_point, low, high, group_size


def spread(parameter: Tensor, shape: torch.Size, group_size: int) -> Tensor:
    """For every value its parameter, by indexing."""
    if parameter.numel() == 1:
        return parameter.reshape([1] * len(shape)).expand(shape)
    for axis, (count, size) in enumerate(zip(parameter.shape, shape, strict=True)):
        group = {1: size, size: 1}.get(count, group_size)
        parameter = parameter.index_select(axis, torch.arange(size) // group)
    return parameter


def oracle(x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, group_size: int) -> Tensor:
    """Codes: an fp32 quotient, then whole numbers."""
    quotient = x / spread(scale, x.shape, group_size)
    codes = quotient.double().round() + spread(zero_point, x.shape, group_size)
    return codes.clamp(low, high).long()


anything = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@anything
@given(seed=st.integers(0, 1 << 30))
def test_steps_values_and_codes_are_the_formula_bit_for_bit(kernels: str, seed: int) -> None:
    x, scale, zero_point, low, high, size = given_case = case(seed)
    codes = oracle(*given_case)
    steps = (codes - spread(zero_point, x.shape, size)).float()
    assert torch.equal(OPS.affine_snap(*given_case), steps)
    assert torch.equal(OPS.affine_fake_quantize(*given_case), steps * spread(scale, x.shape, size))
    signed, bits = low < 0, (high - low).bit_length()
    assert torch.equal(OPS.affine_quantize(*given_case, signed).long(), codes)
    assert OPS.affine_quantize(*given_case, signed).dtype == (torch.int8 if signed else torch.uint8)
    packed = OPS.affine_quantize_pack(*given_case, bits, signed)
    assert torch.equal(unpack_codes(packed, bits, x.numel(), signed).long(), codes.flatten())


@anything
@given(seed=st.integers(0, 1 << 30))
def test_a_sum_is_that_of_the_two_bit_for_bit(kernels: str, seed: int) -> None:
    x, *rest = case(seed)
    other = (x.flip(0) if x.ndim else x) + 0.3  # row-major, whatever x is
    other_rest = (torch.tensor([0.17]), torch.tensor([3], dtype=torch.int32), 0, 255, 0)
    wanted = OPS.affine_fake_quantize(x, *rest) + OPS.affine_fake_quantize(other, *other_rest)
    found = OPS.affine_fake_quantize_sum(x, *rest, other, *other_rest)
    assert torch.equal(found, wanted)
    assert found.stride() == OPS.affine_fake_quantize(x, *rest).stride()


def test_a_long_sum_is_the_same_on_any_threads(kernels: str) -> None:
    x, other = torch.randn(3, 70_001), torch.randn(3, 70_001)
    grid = (torch.tensor([[0.1], [0.3], [0.2]]), torch.zeros((), dtype=torch.int32), -8, 7, 0)
    other_grid = (torch.tensor(0.02), torch.zeros((), dtype=torch.int32), 0, 255, 0)
    wanted = OPS.affine_fake_quantize(x, *grid) + OPS.affine_fake_quantize(other, *other_grid)
    threads = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        assert torch.equal(OPS.affine_fake_quantize_sum(x, *grid, other, *other_grid), wanted)
    torch.set_num_threads(threads)


@anything
@given(seed=st.integers(0, 1 << 30))
def test_the_memory_format_stays(kernels: str, seed: int) -> None:
    x, *rest = case(seed)
    y, codes = OPS.affine_snap(x, *rest), OPS.affine_quantize(x, *rest, rest[2] < 0)
    like = torch.empty_like(x) if in_torch.is_dense(x) else torch.empty(x.shape)
    for result in (y, codes):
        strides = zip(result.stride(), like.stride(), x.shape, strict=True)
        assert all(mine == wanted for mine, wanted, length in strides if length > 1)


def gradients_in_float64(gradient: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """By autograd, of the formula that clips and then rounds, which passes gradients, in float64."""
    scale, zero_point, low, high, size = rest
    x, scale = x.double().requires_grad_(), scale.double().requires_grad_()
    zero = zero_point.double().requires_grad_()
    spread_scale, spread_zero = (spread(parameter, x.shape, size) for parameter in (scale, zero))
    quotient = x / spread_scale
    clipped = quotient.clamp(low - spread_zero, high - spread_zero)
    y = (clipped + (clipped.round() - clipped).detach()) * spread_scale
    found = torch.autograd.grad(y, (x, scale, zero), gradient.double())
    return found[0], found[1], found[2]


def on_no_edge(x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, size: int) -> Tensor:
    """x moved off the places where rounding or clipping in fp32 and in float64 could differ."""
    spread_scale = spread(scale, x.shape, size)
    quotient = x / spread_scale
    distance = (2 * quotient - (2 * quotient).round()).abs()
    return torch.where(distance < 2e-3, (quotient + 0.01) * spread_scale, x)


@anything
@given(seed=st.integers(0, 1 << 30))
def test_gradients_are_autograds_in_float64(kernels: str, seed: int) -> None:
    x, *rest = case(seed)
    x = on_no_edge(x, *rest)
    gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    wanted = gradients_in_float64(gradient, x, *rest)
    found = OPS.affine_fake_quantize_backward(gradient, x, *rest)
    for mine, want in zip(found, wanted, strict=True):
        assert mine.shape == want.shape
        torch.testing.assert_close(mine.double(), want, rtol=1e-5, atol=1e-3)  # fp32 quotients


@anything
@given(seed=st.integers(0, 1 << 30))
def test_the_gradient_of_a_relu_is_masked_and_that_of_the_scale_multiplied(kernels: str, seed: int) -> None:
    x, *rest = case(seed)
    y, gradient = x.relu(), torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    of_x, of_scale, of_zero = OPS.affine_fake_quantize_backward(gradient, y, *rest)
    found = OPS.affine_fake_quantize_backward(gradient, y, *rest, 0.3, True)
    wanted = (torch.where(x > 0, of_x, 0.0), of_scale * 0.3, of_zero)
    assert all(torch.equal(mine, want) for mine, want in zip(found, wanted, strict=True))


@anything
@given(seed=st.integers(0, 1 << 30), laid_out=st.sampled_from(["as x", "row by row", "with gaps"]))
def test_the_gradient_of_x_takes_the_place_of_the_given_one(kernels: str, seed: int, laid_out: str) -> None:
    x, *rest = case(seed)
    gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    over = {
        "as x": torch.empty_like(x),
        "row by row": torch.empty(x.shape),
        "with gaps": torch.empty(*x.shape, 2)[..., 0],
    }[laid_out].copy_(gradient)
    place = over.data_ptr()
    found = OPS.affine_fake_quantize_backward_(over, x, *rest, 0.3, True)
    wanted = OPS.affine_fake_quantize_backward(gradient, x, *rest, 0.3, True)
    assert over.data_ptr() == place
    assert all(torch.equal(mine, want) for mine, want in zip((over, *found), wanted, strict=True))


def test_threads_and_instruction_sets_leave_no_trace() -> None:
    gradient, x = torch.randn(8, 37, 211, 3), torch.randn(8, 37, 211, 3)
    cases = [
        (torch.tensor(0.1), torch.tensor(2, dtype=torch.int32), 0),
        (torch.rand(1, 37, 1, 1) + 0.1, torch.zeros((), dtype=torch.int32), 0),
        (torch.rand(1, 1, 1, 3) + 0.1, torch.zeros(1, 1, 1, 3, dtype=torch.int32), 0),
        (torch.rand(8, 37, 7, 3) + 0.1, torch.zeros((), dtype=torch.int32), 32),
    ]
    threads = torch.get_num_threads()
    for scale, zero_point, size in cases:
        arguments = (x, scale, zero_point, -8, 7, size)
        found = []
        for name in AVAILABLE:
            use_isa(name)
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                found.append(
                    [OPS.affine_fake_quantize(*arguments), *OPS.affine_fake_quantize_backward(gradient, *arguments)]
                )
        torch.set_num_threads(threads)
        for other in found[1:]:
            assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    if AVAILABLE:
        use_isa("")


def test_ties_extremes_and_nan(kernels: str) -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([0.5, 1.5, -0.5, -2.5, 3e38, -3e38, inf, -inf, nan, 1e-45, 6.5, 7.5] * 3)
    scale, zero = torch.ones(()), torch.zeros((), dtype=torch.int32)
    wanted = torch.tensor([0.0, 2, 0, -2, 7, -8, 7, -8, nan, 0, 6, 7] * 3)
    assert torch.equal(OPS.affine_snap(x, scale, zero, -8, 7, 0).nan_to_num(99), wanted.nan_to_num(99))
    assert torch.equal(OPS.affine_fake_quantize(x, scale, zero, -8, 7, 0).nan_to_num(99), wanted.nan_to_num(99))
    with pytest.raises(RuntimeError, match="NaN, which has no code"):
        OPS.affine_quantize(x, scale, zero, -8, 7, 0, True)
    with pytest.raises(RuntimeError, match="NaN, which has no code"):
        OPS.affine_quantize_pack(x, scale, zero, -8, 7, 0, 4, True)


def test_nothing_gives_nothing(kernels: str) -> None:
    x, scale, zero = torch.empty(0, 3), torch.ones(1, 3), torch.zeros((), dtype=torch.int32)
    assert OPS.affine_snap(x, scale, zero, -8, 7, 0).shape == (0, 3)
    assert OPS.affine_quantize(x, scale, zero, -8, 7, 0, True).shape == (0, 3)
    assert OPS.affine_quantize_pack(x, scale, zero, -8, 7, 0, 4, True).shape == (0,)
    assert OPS.affine_fake_quantize_sum(x, scale, zero, -8, 7, 0, x, scale, zero, -8, 7, 0).shape == (0, 3)
    of_x, *of_parameters = OPS.affine_fake_quantize_backward(x, x, scale, zero, -8, 7, 0)
    assert of_x.shape == (0, 3)
    for of_scale, of_zero in (of_parameters, OPS.affine_fake_quantize_backward_(x, x, scale, zero, -8, 7, 0)):
        assert torch.equal(of_scale, torch.zeros(1, 3))
        assert torch.equal(of_zero, torch.zeros(()))


def test_what_does_not_fit_is_refused(kernels: str) -> None:
    x, scale, zero = torch.randn(6, 10), torch.ones(6, 1), torch.zeros(6, 1, dtype=torch.int32)
    assert OPS.affine_snap(x, scale, zero, -8, 7, 0).shape == (6, 10)
    for bad in (
        (x.double(), scale, zero, -8, 7, 0),
        (x, scale.double(), zero, -8, 7, 0),
        (x, scale, zero.long(), -8, 7, 0),
        (x, scale[:5], zero[:5], -8, 7, 0),
        (x, scale[:0], zero[:0], -8, 7, 0),
        (x, scale.view(6), zero.view(6), -8, 7, 0),
        (x, torch.ones(6, 3), zero, -8, 7, 0),
        (x, torch.ones(6, 3), zero, -8, 7, 5),
        (x, scale, zero[:3], -8, 7, 0),
        (x, scale * torch.nan, zero, -8, 7, 0),
        (x, -scale, zero, -8, 7, 0),
        (x, scale * torch.inf, zero, -8, 7, 0),
        (x, scale, zero, 7, 7, 0),
        (x, scale, zero, -129, 7, 0),
        (x, scale, zero, 0, 256, 0),
        (x, scale, zero, -100, 200, 0),
    ):
        with pytest.raises(RuntimeError):
            OPS.affine_snap(*bad)
        with pytest.raises(RuntimeError):
            OPS.affine_fake_quantize_backward(x, *bad)
        with pytest.raises(RuntimeError):
            OPS.affine_fake_quantize_backward_(x.clone(), *bad)
        with pytest.raises(RuntimeError):
            OPS.affine_fake_quantize_sum(x, scale, zero, -8, 7, 0, *bad)
    good = (x, scale, zero, -8, 7, 0)
    with pytest.raises(RuntimeError, match="does not fit in 3 bits"):
        OPS.affine_quantize_pack(*good, 3, True)
    with pytest.raises(RuntimeError, match="does not fit in 8 bits"):
        OPS.affine_quantize(*good, False)
    with pytest.raises(RuntimeError, match=r"1\.\.8 bits"):
        OPS.affine_quantize_pack(*good, 9, True)
    for gradient in (x[:, :9], x.double(), x.T):
        with pytest.raises(RuntimeError):
            OPS.affine_fake_quantize_backward(gradient, *good)
        with pytest.raises(RuntimeError):
            OPS.affine_fake_quantize_backward_(gradient, *good)
        with pytest.raises(RuntimeError):
            OPS.affine_fake_quantize_sum(*good, gradient, *good[1:])


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_they_are_well_behaved_operators(memory_format: torch.memory_format) -> None:
    x = torch.randn(2, 5, 3, 4).contiguous(memory_format=memory_format)
    given_case = (x, torch.rand(1, 5, 1, 1) + 0.1, torch.zeros(1, 5, 1, 1, dtype=torch.int32), -8, 7, 0)
    torch.library.opcheck(OPS.affine_snap.default, given_case)
    torch.library.opcheck(OPS.affine_fake_quantize.default, given_case)
    torch.library.opcheck(OPS.affine_fake_quantize_sum.default, (*given_case, *given_case))
    torch.library.opcheck(OPS.affine_quantize.default, (*given_case, True))
    torch.library.opcheck(OPS.affine_quantize_pack.default, (*given_case, 4, True))
    torch.library.opcheck(OPS.affine_fake_quantize_backward.default, (torch.randn_like(x), *given_case))
    torch.library.opcheck(OPS.affine_fake_quantize_backward_.default, (torch.randn_like(x), *given_case))
    learned = [parameter.clone().float().requires_grad_() for parameter in given_case[:3]]
    torch.library.opcheck(OPS.learned_fake_quantize.default, (*learned, -8, 7, 0, 1.0))


def test_learned_parameters_have_gradients_and_compile() -> None:
    x, scale = torch.randn(6, 10, requires_grad=True), torch.full((6, 1), 0.3, requires_grad=True)
    zero_point = torch.tensor(1.4, requires_grad=True)
    gradient = torch.randn(6, 10)

    def step(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        return in_torch.learned_fake_quantize(x, scale, zero_point, -4, 3)

    zero = torch.tensor(1, dtype=torch.int32)
    wanted = OPS.affine_fake_quantize_backward(gradient, x.detach(), scale.detach(), zero, -4, 3, 0)
    for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        y = function(x, scale, zero_point)
        assert torch.equal(y.detach(), OPS.affine_fake_quantize(x.detach(), scale.detach(), zero, -4, 3, 0))
        found = torch.autograd.grad(y, (x, scale, zero_point), gradient)
        assert all(torch.equal(mine, want) for mine, want in zip(found, wanted, strict=True))


def test_they_export() -> None:
    class Snapping(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            zero = torch.zeros((), dtype=torch.int32)
            return in_torch.affine_snap(x, torch.tensor(0.5), zero, -8, 7)

    x = torch.randn(3, 4)
    program = torch.export.export(Snapping(), (x,))
    assert torch.equal(program.module()(x), Snapping()(x))
