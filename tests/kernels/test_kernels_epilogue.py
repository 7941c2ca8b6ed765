"""Epilogues: every operator and every instruction set against the formula, and what they refuse."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from epilogue_cases import IN_TORCH as PLAIN_IN_TORCH
from epilogue_cases import OPERATORS, SIGNS, drawn, expected, outputs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from subbyte.errors import KernelError
from subbyte.kernels.binary_linear import _binary_linear_of, binary_linear
from subbyte.kernels.binary_weight import BinaryWeight, Levels
from subbyte.kernels.epilogue import Codes, Epilogue, Floats, Signs, _followed
from subbyte.kernels.float_linear import FloatLinearWeight, linear_float
from subbyte.kernels.linear import linear_codes
from subbyte.kernels.linear_weight import LinearWeight
from subbyte.kernels.quantize import affine_quantize

IN_TORCH = {
    **PLAIN_IN_TORCH,
    **{f"{name}_fused": _followed(function) for name, function in PLAIN_IN_TORCH.items()},
    "binary_linear_fused": _followed(_binary_linear_of),
}
# What compiles and opcheck take long for: floats, codes and bits once.
SOME_OUTPUTS = [outputs()[i] for i in (1, 3, -1)]
NOTHING = torch.empty(0)
sign_pack = torch.ops.subbyte.sign_pack


def same(got: Tensor, want: Tensor) -> bool:
    """Of one dtype, equal bit for bit; NaN is NaN."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return False
    if not got.is_floating_point():
        return torch.equal(got, want)
    bits = torch.int32 if got.dtype == torch.float32 else torch.int16
    equal = got.contiguous().view(bits) == want.contiguous().view(bits)
    return bool((equal | (got.isnan() & want.isnan())).all())


def residual_for(y: Tensor, layout: str) -> Tensor | None:
    if layout == "none":
        return None
    residual = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)) * 5
    if layout == "transposed":
        return residual.transpose(0, 1).contiguous().transpose(0, 1)
    return residual.repeat_interleave(2, -1)[..., ::2] if layout == "with gaps" else residual


def strides(x: Tensor) -> list[int]:
    """The strides of axes with more than one element; those of the others say nothing."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    operator=st.sampled_from(OPERATORS),
    output=st.sampled_from(outputs()),
    layout=st.sampled_from(["none", "row-major", "transposed", "with gaps"]),
    bounds=st.sampled_from([(-math.inf, math.inf), (0.0, math.inf), (-1.5, 6.1), (2.0, 2.0)]),
    channels_last=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_the_formula_bit_for_bit(
    kernels: str,
    operator: str,
    output: Any,
    layout: str,
    bounds: tuple[float, float],
    channels_last: bool,
    seed: int,
) -> None:
    x, call = drawn(operator, seed, channels_last=channels_last)
    y = call(x, None)
    epilogue = Epilogue(residual_for(y, layout), *bounds, output)
    got = call(x, epilogue)
    assert same(got, expected(y, epilogue))
    assert isinstance(output, Signs) or strides(got) == strides(y)


@pytest.mark.parametrize("operator", OPERATORS)
def test_no_epilogue_at_all_changes_nothing(kernels: str, operator: str) -> None:
    x, call = drawn(operator)
    assert same(call(x, Epilogue()), call(x, None))


@pytest.mark.parametrize("operator", OPERATORS)
def test_codes_and_signs_are_those_of_the_operators_for_them(kernels: str, operator: str) -> None:
    x, call = drawn(operator, 3)
    y = call(x, None)
    for output in outputs():
        if isinstance(output, Codes):
            want = affine_quantize(
                y, output.scale, output.zero_point, output.low, output.high, 0, signed=output.dtype == torch.int8
            )
            assert same(call(x, Epilogue(output=output)), want)
    rows = y.movedim(1, -1)
    packed = torch.stack([sign_pack(row) for row in rows.reshape(-1, rows.shape[-1])])
    assert torch.equal(call(x, Epilogue(output=Signs())), packed.view(*rows.shape[:-1], -1))


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_empty_batch_gives_an_empty_result(kernels: str, operator: str) -> None:
    x, call = drawn(operator, batch=0)
    y = call(x, None)
    for output in outputs():
        for residual in (None, torch.empty(y.shape)):
            got = call(x, Epilogue(residual, output=output))
            want = expected(y, Epilogue(output=output))
            assert got.shape == want.shape
            assert got.dtype == want.dtype


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_nan_stays_nan_has_a_bit_of_0_and_no_code(kernels: str, operator: str, channels_last: bool) -> None:
    x, call = drawn(operator, 5, channels_last=channels_last, batch=3)
    if not operator.startswith("binary"):  # whose levels take a NaN for the upper
        x[1, 0] = torch.nan
    y = call(x, None)
    residual = torch.zeros(y.shape)
    residual[-1, -1] = torch.nan
    for output in (Floats(), Floats(torch.bfloat16), Signs()):
        epilogue = Epilogue(residual, 0.0, 1.0, output)
        assert same(call(x, epilogue), expected(y, epilogue))
        if isinstance(output, Floats):
            assert torch.equal(call(x, epilogue).isnan(), y.isnan() | residual.isnan())
    for output in outputs():
        if isinstance(output, Codes):
            with pytest.raises(RuntimeError, match="NaN, which has no code"):
                call(x, Epilogue(residual, output=output))


@pytest.mark.parametrize("channels_last", [False, True])
def test_nan_that_goes_into_images_is_there_before_the_residual(kernels: str, channels_last: bool) -> None:
    for operator in ("conv2d_codes", "depthwise_conv2d_codes"):
        x, call = drawn(operator, 9, channels_last=channels_last, batch=2)
        x[0, 0, 1, 1] = torch.nan
        y = call(x, None)
        assert bool(y.isnan().any())
        for output in (Floats(), Floats(torch.bfloat16), Signs()):
            epilogue = Epilogue(torch.randn(y.shape), -0.5, 0.5, output)
            assert same(call(x, epilogue), expected(y, epilogue))


def test_every_kind_of_float_is_rounded_as_pytorch_does(kernels: str) -> None:
    patterns = torch.arange(-(1 << 31), 1 << 31, 65_521).to(torch.int32).view(torch.float32)
    ties = torch.arange(0x8000, 1 << 32, 1 << 22).sub(1 << 31).to(torch.int32).view(torch.float32)
    residual = torch.cat([patterns, ties, torch.tensor([0.0, -0.0, torch.nan, torch.inf, -torch.inf])])[:, None]
    weight = LinearWeight.of(torch.zeros(1, 1, dtype=torch.uint8), torch.ones(1, 1), torch.zeros(1, 1).int(), 1, 1)
    codes = (torch.ones(1), torch.zeros(1, dtype=torch.int32), 0, 255)
    x = torch.zeros(residual.shape)
    y = linear_codes(x, weight, torch.full((16,), -0.0), *codes)
    for output in (Floats(), Floats(torch.bfloat16), Signs()):
        for low, high in ((-math.inf, math.inf), (0.0, 1e30)):
            epilogue = Epilogue(residual, low, high, output)
            assert same(linear_codes(x, weight, torch.full((16,), -0.0), *codes, epilogue), expected(y, epilogue))


@pytest.mark.parametrize("operator", OPERATORS)
def test_threads_leave_no_trace(kernels: str, operator: str) -> None:
    x, call = drawn(operator, 12, batch=7)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append([call(x, Epilogue(low=0.0, output=output)) for output in outputs()])
    finally:
        torch.set_num_threads(threads)
    assert all(same(a, b) for others in results[1:] for a, b in zip(results[0], others, strict=True))


@pytest.mark.parametrize("operator", OPERATORS)
def test_what_does_not_fit_is_refused(kernels: str, operator: str) -> None:
    x, call = drawn(operator, 4)
    y = call(x, None)
    codes = Codes(torch.tensor([0.5]), torch.tensor([3], dtype=torch.int32), 0, 15)
    narrow = torch.zeros((1, *y.shape[1:]) if len(y) > 1 else (*y.shape, 1))
    for residual in (narrow, torch.zeros(()), torch.zeros(1), torch.zeros(0, *y.shape[1:]), y[None]):
        with pytest.raises(RuntimeError, match="not broadcast"):
            call(x, Epilogue(residual))
    for bounds in ((1.0, 0.5), (math.nan, 1.0), (0.0, math.nan)):
        with pytest.raises(RuntimeError, match="lower bound"):
            call(x, Epilogue(None, *bounds))
    changes: list[dict[str, Any]] = [
        {"scale": torch.tensor([math.nan])},
        {"scale": torch.tensor([0.0])},
        {"scale": torch.tensor([-1.0])},
        {"scale": torch.tensor([math.inf])},
        {"scale": torch.ones(2)},
        {"scale": torch.ones(1, dtype=torch.float64)},
        {"scale": NOTHING},
        {"zero_point": torch.tensor([3])},
        {"zero_point": torch.tensor([16], dtype=torch.int32)},
        {"zero_point": torch.zeros(2, dtype=torch.int32)},
        {"low": 15},
        {"high": 256},
        {"low": -1},
        {"dtype": torch.int8, "high": 128},
        {"dtype": torch.int32},
        {"dtype": torch.float32},
    ]
    for change in changes:
        with pytest.raises(RuntimeError):
            call(x, Epilogue(output=replace(codes, **change)))
    with pytest.raises(RuntimeError):
        call(x, Epilogue(y.double()))
    with pytest.raises(KernelError):
        call(x, Epilogue(output=Floats(torch.float16)))


def test_an_unknown_output_is_refused() -> None:
    x, weight = torch.zeros(2, 4), _weight(3, 4)
    parts = (weight.packed, weight.scale, weight.zero_point, weight.sums, weight.values, NOTHING)
    rest = (torch.ones(1), torch.zeros(1, dtype=torch.int32), 0, 255, 4, 3, 4, 4)
    for output in (-1, 5):
        clamp = (NOTHING, 0.0, 1.0, output, NOTHING, NOTHING.int(), 0, 0)
        with pytest.raises(RuntimeError, match="no such output"):
            torch.ops.subbyte.linear_codes_fused(x, *parts, *rest, *clamp)


def _weight(outputs: int, inputs: int, seed: int = 0, group_size: int | None = None) -> LinearWeight:
    random = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (outputs, inputs), generator=random, dtype=torch.uint8)
    groups = -(-inputs // (group_size or inputs))
    scale = torch.rand(outputs, groups, generator=random) * 0.1 + 0.01
    return LinearWeight.of(codes, scale, torch.full((outputs, groups), 7, dtype=torch.int32), 4, group_size or inputs)


CODES_OF_X = [
    (torch.uint8, 0, 255),
    (torch.uint8, 2, 9),
    (torch.uint8, 0, 200),
    (torch.int8, -128, 127),
    (torch.int8, -4, 3),
]


@pytest.mark.parametrize(("dtype", "low", "high"), CODES_OF_X)
@pytest.mark.parametrize("group_size", [None, 9])
def test_a_linear_layer_takes_codes(kernels: str, dtype: torch.dtype, low: int, high: int, group_size: int) -> None:
    random = torch.Generator().manual_seed(1)
    weight = _weight(37, 70, group_size=group_size)
    codes = torch.randint(low, high + 1, (70, 13), generator=random).to(dtype).T
    for scale, zero_point in (
        (torch.tensor([0.25]), torch.tensor([low + 1])),
        (torch.full((13,), 0.5), torch.full((13,), high)),
    ):
        how = (scale, zero_point.int(), low, high)
        floats = (codes.float() - zero_point[:, None]) * scale[:, None]
        assert torch.equal(linear_codes(codes, weight, NOTHING, *how), linear_codes(floats, weight, NOTHING, *how))


def test_codes_out_of_the_range_are_refused(kernels: str) -> None:
    weight = _weight(3, 4)
    one = (torch.ones(1), torch.full((1,), 5, dtype=torch.int32))
    for dtype, code in ((torch.uint8, 4), (torch.uint8, 200), (torch.int8, -5), (torch.int8, 127)):
        x = torch.full((2, 4), 7, dtype=dtype)
        x[1, 3] = code
        with pytest.raises(RuntimeError, match="between the lowest and the highest"):
            linear_codes(x, weight, NOTHING, *one, 5, 120)
    with pytest.raises(RuntimeError):
        linear_codes(torch.zeros(2, 4, dtype=torch.int32), weight, NOTHING, *one, 5, 120)


@pytest.mark.parametrize(
    ("dtype", "code", "low", "high"),
    [(torch.uint8, 200, -128, 127), (torch.int8, -56, 0, 255), (torch.uint8, 9, -9, -1)],
)
def test_codes_are_those_of_their_dtype(kernels: str, dtype: torch.dtype, code: int, low: int, high: int) -> None:
    x = torch.full((2, 8), code, dtype=dtype)
    weight = LinearWeight.of(
        torch.ones(4, 8, dtype=torch.uint8), torch.ones(4, 1), torch.zeros(4, 1, dtype=torch.int32), 4, 8
    )
    zero_point = torch.tensor([max(low, min(high, 0))], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="between the lowest and the highest"):
        linear_codes(x, weight, NOTHING, torch.ones(1), zero_point, low, high)


def test_an_infinite_scale_is_refused_though_a_clamp_hides_it(kernels: str) -> None:
    scale = torch.tensor([[1.0], [torch.inf], [1.0], [1.0]])
    weight = LinearWeight.of(torch.ones(4, 8, dtype=torch.uint8), scale, torch.zeros(4, 1, dtype=torch.int32), 4, 8)
    codes = (torch.ones(1), torch.zeros(1, dtype=torch.int32), 0, 255)
    for epilogue in (None, Epilogue(low=0.0, high=6.0), Epilogue(output=Signs())):
        with pytest.raises(RuntimeError, match="a scale of the weight is not finite"):
            linear_codes(torch.ones(2, 8), weight, NOTHING, *codes, epilogue)
    floats = FloatLinearWeight.of(torch.ones(4, 8, dtype=torch.uint8), scale, torch.zeros(4, 1), 4, 8)
    for x in (torch.ones(1, 8), torch.ones(1, 8).bfloat16()):  # a result shorter than its scales
        with pytest.raises(RuntimeError, match="a scale of the weight is not finite"):
            linear_float(x, floats, NOTHING)
    with pytest.raises(RuntimeError, match="a scale of the weight is not finite"):
        linear_float(torch.ones(2, 8), floats, NOTHING, Epilogue(low=0.0, high=6.0))


def test_codes_with_both_signs_may_reach_past_a_signed_byte(kernels: str) -> None:
    weight = _weight(3, 4)
    x, how = torch.tensor([[-9.0, 0.0, 100.0, 200.0]]), (torch.ones(1), torch.zeros(1, dtype=torch.int32), -10, 200)
    exact = x.double() @ (weight.codes().double() - 7).T
    want = exact.float() * weight.scale.reshape(-1)[:3]
    assert torch.equal(linear_codes(x, weight, NOTHING, *how), want)


def test_two_layers_without_floats_between(kernels: str) -> None:
    first, second = _weight(50, 70), _weight(20, 50, seed=1)
    x = torch.randn(9, 70, generator=torch.Generator().manual_seed(2))
    of_x = (torch.tensor([0.02]), torch.tensor([120], dtype=torch.int32), 0, 255)
    scale, zero_point, low, high = between = (torch.tensor([0.3]), torch.tensor([2], dtype=torch.int32), 0, 15)
    codes = linear_codes(x, first, NOTHING, *of_x, Epilogue(low=0.0, output=Codes(*between)))
    floats = linear_codes(x, first, NOTHING, *of_x).relu()
    assert torch.equal(codes, affine_quantize(floats, scale, zero_point, low, high, 0, signed=False))
    got = linear_codes(codes, second, NOTHING, *between)
    assert torch.equal(got, linear_codes(floats, second, NOTHING, *between))


def _binary_weight(outputs: int, inputs: int, *, zeros: bool = False) -> BinaryWeight:
    random = torch.Generator().manual_seed(outputs)
    values = torch.randint(-1, 2, (outputs, inputs), generator=random, dtype=torch.int8)
    return BinaryWeight.of(values if zeros else values | 1, torch.rand(outputs, generator=random) + 0.1)


@pytest.mark.parametrize("inputs", [1, 8, 63, 64, 70, 200])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("levels", [SIGNS, Levels(0, 1, 2, True)])
def test_a_binary_layer_takes_bits(kernels: str, inputs: int, zeros: bool, levels: Levels) -> None:
    random = torch.Generator().manual_seed(inputs)
    bits = torch.randint(0, 2, (9, inputs), generator=random)
    x = torch.stack([sign_pack(row) for row in bits * 2.0 - 1])
    if inputs % 8:
        x[:, -1] |= 0x80  # no one's bit
    weight = _binary_weight(20, inputs, zeros=zeros)
    for scale in (torch.tensor([0.3]), torch.arange(1, 10) * 0.1):
        zero_point = torch.full(scale.shape, int(levels.rounds), dtype=torch.int32)
        how = (levels, scale, zero_point)
        step = torch.where(bits != 0, levels.high, levels.low) - zero_point[0]
        floats = step * scale[:, None]
        want = binary_linear(floats, weight, NOTHING, *how)
        assert torch.equal(binary_linear(x, weight, NOTHING, *how), want)
        assert torch.equal(
            binary_linear(x, weight, NOTHING, *how, Epilogue(output=Signs())), expected(want, Epilogue(output=Signs()))
        )


def test_bits_that_do_not_fit_are_refused(kernels: str) -> None:
    weight, one = _binary_weight(20, 70), (torch.ones(1), torch.zeros(1, dtype=torch.int32))
    for x in (
        torch.zeros(2, 8, dtype=torch.uint8),
        torch.zeros(2, 10, dtype=torch.uint8),
        torch.zeros(9, dtype=torch.uint8),
    ):
        with pytest.raises(RuntimeError):
            binary_linear(x, weight, NOTHING, SIGNS, *one)
    with pytest.raises(RuntimeError, match="two levels"):
        binary_linear(torch.zeros(2, 9, dtype=torch.uint8), weight, NOTHING, Levels(-1, 1, 3, False), *one)
    with pytest.raises(RuntimeError):
        binary_linear(torch.zeros(2, 69), weight, NOTHING, SIGNS, *one, Epilogue())


def test_two_binary_layers_without_floats_between(kernels: str) -> None:
    first, second = _binary_weight(50, 70), _binary_weight(20, 50)
    x, one = torch.randn(9, 70, generator=torch.Generator().manual_seed(2)), (torch.ones(1), torch.zeros(1).int())
    bits = binary_linear(x, first, NOTHING, SIGNS, *one, Epilogue(output=Signs()))
    floats = binary_linear(x, first, NOTHING, SIGNS, *one)
    assert torch.equal(
        binary_linear(bits, second, NOTHING, SIGNS, *one), binary_linear(floats, second, NOTHING, SIGNS, *one)
    )


class Layer(torch.nn.Module):
    """One operator, what it gives clamped and written as codes or bits."""

    def __init__(self, operator: str, output: Any, *, channels_last: bool) -> None:
        super().__init__()
        self.x, self.call = drawn(operator, 2, channels_last=channels_last)
        self.output = output

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.call(x, Epilogue(residual, -1.0, 6.0, self.output))


@pytest.mark.parametrize("operator", OPERATORS)
def test_it_compiles_and_exports(operator: str) -> None:
    for output in SOME_OUTPUTS:
        layer = Layer(operator, output, channels_last=isinstance(output, Codes))
        residual = torch.randn(layer.call(layer.x, None).shape)
        want = layer(layer.x, residual)
        torch._dynamo.reset()
        assert same(torch.compile(layer, fullgraph=True, backend="aot_eager")(layer.x, residual), want)
    program = torch.export.export(layer, (layer.x, residual))
    assert same(program.module()(layer.x, residual), want)


def test_codes_and_bits_as_input_compile_too() -> None:
    codes, weight = torch.randint(0, 16, (9, 50), dtype=torch.uint8), _weight(20, 50)
    bits, signs = torch.randint(0, 16, (9, 7), dtype=torch.uint8), _binary_weight(20, 50)
    one = (torch.ones(1), torch.zeros(1, dtype=torch.int32))

    def both(codes: Tensor, bits: Tensor) -> tuple[Tensor, Tensor]:
        y = linear_codes(codes, weight, NOTHING, *one, 0, 15)
        return y, binary_linear(bits, signs, NOTHING, SIGNS, *one)

    torch._dynamo.reset()
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    assert all(same(got, want) for got, want in zip(compiled(codes, bits), both(codes, bits), strict=True))
    parts = (weight.packed, weight.scale, weight.zero_point, weight.sums, weight.values, NOTHING)
    torch.library.opcheck(torch.ops.subbyte.linear_codes.default, (codes, *parts, *one, 0, 15, 4, 20, 50, 50))


@pytest.mark.parametrize("operator", OPERATORS)
def test_they_are_well_behaved_operators(operator: str) -> None:
    x, call = drawn(operator, 6, channels_last=True)
    residual, calls = torch.randn(call(x, None).shape), []
    fused = getattr(torch.ops.subbyte, f"{operator}_fused").default
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.ops.subbyte, f"{operator}_fused", lambda *arguments: calls.append(arguments))
        for output in SOME_OUTPUTS:
            call(x, Epilogue(residual, output=output))
    for arguments in calls:
        torch.library.opcheck(fused, arguments)
