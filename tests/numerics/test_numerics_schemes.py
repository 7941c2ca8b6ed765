"""Schemes: parameters from a range, and the rounding, against plain formulas."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from subbyte.dtypes import DataType, dtype, registered_dtypes
from subbyte.errors import ConfigError
from subbyte.numerics import Scheme, register_scheme, registered_schemes, scale_limits, scheme_of, schemes, stored_scale
from subbyte.spec import QuantParams, TensorSpec

PROPERTY = settings(deadline=None, max_examples=100)
ends = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
integer_types = st.sampled_from([f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 9)])


def from_range(low: float, high: float, spec: TensorSpec) -> tuple[float, int]:
    params = scheme_of(spec).from_range(torch.tensor([low]), torch.tensor([high]), spec)
    return params.scale.double().item(), int(params.zero_point)


@PROPERTY
@given(ends, ends, integer_types)
def test_sym_is_the_smallest_scale_that_clips_nothing(a: float, b: float, name: str) -> None:
    low, high = min(a, b), max(a, b)
    spec = TensorSpec(name)
    scale, zero_point = from_range(low, high, spec)
    bottom, top = spec.qmin - zero_point, spec.qmax - zero_point
    assert spec.qmin <= zero_point <= spec.qmax
    # What an end asks for; a side that the grid lacks asks for nothing.
    asked = [end / code for end, code in ((high, top), (low, bottom)) if code != 0 and end * code > 0]
    if asked:
        assert scale == pytest.approx(max(asked), rel=1e-6)
    elif low == high == 0:
        assert scale == 1.0
    assert scale > 0


@pytest.mark.parametrize("bits", range(1, 9))
def test_sym_zero_points(bits: int) -> None:
    signed, unsigned = TensorSpec(f"int{bits}"), TensorSpec(f"uint{bits}")
    assert from_range(-1.0, 2.0, signed)[1] == 0
    assert from_range(0.0, 2.0, unsigned) == (pytest.approx(2.0 / unsigned.qmax), 0)
    assert from_range(-1.0, 2.0, unsigned)[1] == 2 ** (bits - 1)


def test_sym_uses_the_whole_negative_side() -> None:
    assert from_range(-8.0, 3.5, TensorSpec("int4")) == (1.0, 0)
    assert from_range(-4.0, 7.0, TensorSpec("int4")) == (1.0, 0)


def test_a_restricted_range_of_codes() -> None:
    assert from_range(-6.0, 3.0, TensorSpec("int4", quant_min=-3, quant_max=3)) == (2.0, 0)
    assert from_range(0.0, 5.0, TensorSpec("uint4", quant_min=2, quant_max=7)) == (1.0, 2)
    assert from_range(0.0, 7.0, TensorSpec("int4", quant_min=-8, quant_max=-1)) == (1.0, -8)
    scale, zero_point = from_range(-1.0, 1.0, TensorSpec("int4", quant_min=-8, quant_max=-1))
    assert -8 <= zero_point <= -1
    assert scale == pytest.approx(1 / 3)


@PROPERTY
@given(ends, ends, integer_types)
def test_asym_follows_its_formula(a: float, b: float, name: str) -> None:
    spec = TensorSpec(name, scheme="asym")
    low, high = min(a, b, 0.0), max(a, b, 0.0)
    scale, zero_point = from_range(min(a, b), max(a, b), spec)
    assert spec.qmin <= zero_point <= spec.qmax
    if low == high:
        assert (scale, zero_point) == (1.0, spec.qmin)
        return
    assert scale == pytest.approx((high - low) / (spec.qmax - spec.qmin), rel=1e-6)
    assert abs(zero_point - min(max(spec.qmin - low / scale, spec.qmin), spec.qmax)) <= 0.5 + 1e-4


@PROPERTY
@given(ends, ends, st.sampled_from(["bint1", "ternary", "nf4", "fp4_e2m1"]))
def test_a_codebook_reaches_the_largest_magnitude(a: float, b: float, name: str) -> None:
    spec = TensorSpec(name)
    params = scheme_of(spec).from_range(torch.tensor(min(a, b)), torch.tensor(max(a, b)), spec)
    largest = max(abs(a), abs(b))
    expected = largest / spec.dtype.max_magnitude if largest else 1.0
    assert params.scale.item() == pytest.approx(expected, rel=1e-6)
    assert params.zero_point is None


@pytest.mark.parametrize("scale_format", ["fp32", "fp16", "bf16", "pow2"])
def test_scale_formats(scale_format: str) -> None:
    spec = TensorSpec("int4", scale_format=scale_format)
    exact = torch.cat([torch.rand(500) * 10 + 1e-3, 2.0 ** torch.arange(-14, 15)])
    stored = stored_scale(exact, spec)
    digits = {"fp32": 24, "fp16": 11, "bf16": 8}
    if scale_format in digits:
        assert stored.dtype == {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[scale_format]
        assert ((stored.float() / exact - 1).abs() <= 2.0 ** -digits[scale_format]).all()
        return
    # The smallest power of two that clips nothing.
    assert (torch.frexp(stored).mantissa == 0.5).all()
    assert ((stored >= exact) & (stored < 2 * exact)).all()
    assert torch.equal(stored[-29:], exact[-29:])


def test_small_scales_in_fp16_are_subnormal() -> None:
    exact = 2.0 ** torch.arange(-24, -14)
    spec = TensorSpec("int4", scale_format="fp16")
    assert torch.equal(stored_scale(exact, spec).float(), exact)
    assert stored_scale(exact[0] / 4, spec) == exact[0]
    assert scale_limits(spec) == (2.0**-24, 65504.0)


@pytest.mark.parametrize("scale_format", ["fp32", "fp16", "bf16", "pow2"])
@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-30, 1e30, 3e38, math.inf])
def test_a_stored_scale_is_always_usable(scale: float, scale_format: str) -> None:
    stored = stored_scale(torch.tensor(scale), TensorSpec("int4", scale_format=scale_format))
    assert torch.isfinite(stored)
    assert stored > 0
    assert scale != 0.0 or stored == 1.0


@pytest.mark.parametrize("name", [name for name, kind in registered_dtypes().items() if kind.kind == "codebook"])
def test_a_codebook_gives_the_nearest_value(name: str) -> None:
    spec, values = TensorSpec(name), np.array(dtype(name).values)
    params = QuantParams(torch.tensor(0.75))
    x = torch.linspace(-8, 8, 3001)
    codes = scheme_of(spec).quantize(x, params, spec).long().numpy()
    distance = np.abs((x.numpy().astype(np.float64) / 0.75)[:, None] - values)
    chosen = distance[np.arange(len(x)), codes]
    assert (chosen <= distance.min(1) + 1e-6).all()
    assert torch.equal(
        scheme_of(spec).snap(x, params, spec), torch.tensor(values, dtype=torch.float32)[torch.from_numpy(codes)]
    )


@pytest.mark.parametrize(
    ("name", "x", "code"),
    [
        ("bint1", [0.0, -0.0, 1e-45, -1e-45], [1, 1, 1, 0]),
        ("ternary", [0.5, -0.5, 0.49999, -0.50001], [2, 1, 1, 0]),
        ("fp4_e2m1", [0.25, -0.25, -0.0, 5.0, -5.0, 2.5], [1, 0, 0, 7, 14, 5]),
    ],
)
def test_ties_of_a_codebook_go_to_the_upper_value(name: str, x: list[float], code: list[int]) -> None:
    spec = TensorSpec(name)
    codes = scheme_of(spec).quantize(torch.tensor(x), QuantParams(torch.tensor(1.0)), spec)
    assert codes.tolist() == code


def test_only_the_first_of_two_zeros_is_written() -> None:
    spec = TensorSpec(DataType("zeros", values=(1.0, -0.0, 0.0, -1.0)))
    codes = scheme_of(spec).quantize(torch.linspace(-2, 2, 101), QuantParams(torch.tensor(1.0)), spec)
    assert set(codes.tolist()) == {0.0, 1.0, 3.0}


@PROPERTY
@given(integer_types, st.lists(ends, min_size=1, max_size=20), st.data())
def test_an_affine_code_is_round_half_even_then_clamp(name: str, x: list[float], data: st.DataObject) -> None:
    spec = TensorSpec(name, scheme="asym")
    zero_point = data.draw(st.integers(spec.qmin, spec.qmax))
    scale = data.draw(st.sampled_from([0.125, 0.1, 3.0, 1e4]))
    params = QuantParams(torch.tensor(scale), torch.tensor(zero_point, dtype=torch.int32))
    x += [(k + 0.5) * 0.125 for k in range(-5, 5)]  # ties
    codes = scheme_of(spec).quantize(torch.tensor(x), params, spec)
    ratio = np.array(x, dtype=np.float32) / np.float32(scale)
    assert codes.tolist() == [min(max(round(float(r)) + zero_point, spec.qmin), spec.qmax) for r in ratio]


def test_bounds_of_grid_values() -> None:
    assert scheme_of(TensorSpec("int4")).max_grid(TensorSpec("int4")) == 8
    assert scheme_of(TensorSpec("uint4")).max_grid(TensorSpec("uint4")) == 15
    assert scheme_of(TensorSpec("int4", "asym")).max_grid(TensorSpec("int4", "asym")) == 15
    assert scheme_of(TensorSpec("ternary")).max_grid(TensorSpec("ternary")) == 1
    assert scheme_of(TensorSpec("bint1")).has_integer_grid(TensorSpec("bint1"))
    assert not scheme_of(TensorSpec("nf4")).has_integer_grid(TensorSpec("nf4"))


@pytest.mark.parametrize("scheme", ["sym", "asym"])
@pytest.mark.parametrize("bits", range(1, 9))
def test_grid_values_keep_their_bound(bits: int, scheme: str) -> None:
    for name in (f"int{bits}", f"uint{bits}"):
        spec = TensorSpec(name, scheme=scheme)
        for low, high in ((-3.0, 1.0), (0.0, 5.0), (-5.0, 0.0)):
            params = scheme_of(spec).from_range(torch.tensor(low), torch.tensor(high), spec)
            grid = scheme_of(spec).snap(torch.tensor([-1e9, 1e9]), params, spec)
            assert grid.abs().max() <= scheme_of(spec).max_grid(spec)


def test_unknown_and_float_are_refused() -> None:
    with pytest.raises(ConfigError, match="scheme 'syn' is unknown; did you mean 'sym'"):
        scheme_of(TensorSpec("int4", scheme="syn"))
    with pytest.raises(ConfigError, match="fp32 is a float type"):
        scheme_of(TensorSpec("fp32"))


def test_an_affine_scheme_needs_a_zero_point() -> None:
    spec = TensorSpec("int4")
    with pytest.raises(ConfigError, match="needs a zero point"):
        scheme_of(spec).snap(torch.zeros(2), QuantParams(torch.tensor(1.0)), spec)


def test_a_class_that_is_defined_again_replaces_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemes, "_SCHEMES", dict(schemes._SCHEMES))

    def cell(scheme: str) -> Scheme:
        class Mine(type(scheme_of(TensorSpec("int4", scheme)))):
            pass

        return register_scheme("mine", Mine())

    first, second = cell("sym"), cell("asym")
    assert scheme_of(TensorSpec("int4", "mine")) is second is not first
    with pytest.raises(ConfigError, match="'mine' is taken"):
        register_scheme("mine", scheme_of(TensorSpec("int4", "asym")))


def test_registering_refuses_a_taken_name_and_what_is_no_scheme() -> None:
    class Other(type(scheme_of(TensorSpec("int4")))):
        pass

    with pytest.raises(ConfigError, match="'sym' is taken"):
        register_scheme("sym", Other())
    with pytest.raises(ConfigError, match="must be an instance of a Scheme subclass"):
        register_scheme("mine", Scheme)
    assert registered_schemes()[:2] == ("sym", "asym")
