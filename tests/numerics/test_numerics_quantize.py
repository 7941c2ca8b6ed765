"""quantize, dequantize, fake_quantize: what holds for every type, granularity, format and shape."""

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from subbyte.calibration import calibrate_tensor
from subbyte.dtypes import registered_dtypes
from subbyte.errors import CalibrationError, ConfigError
from subbyte.numerics import code_dtype, dequantize, fake_quantize, quantize
from subbyte.spec import QuantParams, TensorSpec

NAMES = [name for name, kind in registered_dtypes().items() if not kind.is_float]
GRANULARITIES = [
    ("per_tensor", None), ("per_channel", 0), ("per_channel", 1), ("per_channel", -1), ("per_token", None),
    ("per_group(1)", 1), ("per_group(3)", 1), ("per_group(64)", 1), ("per_group(2)", 0), ("per_group(2)", -1),
]  # fmt: skip


@st.composite
def specs(draw: st.DrawFn) -> TensorSpec:
    name = draw(st.sampled_from(NAMES))
    scheme = draw(st.sampled_from(["sym", "asym"])) if "int" in name and name != "bint1" else "sym"
    granularity, axis = draw(st.sampled_from(GRANULARITIES))
    scale_format = draw(st.sampled_from(["fp32", "fp16", "bf16", "pow2"]))
    return TensorSpec(name, scheme, granularity, axis, scale_format=scale_format)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(1, 7), min_size=2, max_size=4))
    torch.manual_seed(draw(st.integers(0, 1 << 20)))
    x = torch.randn(shape) * 10.0 ** draw(st.integers(-3, 3)) + draw(st.sampled_from([0.0, 0.0, 2.0, -3.0]))
    return draw(st.sampled_from([x, x.relu(), x.mT, x.bfloat16(), x.half(), torch.full_like(x, 0.7)]))


@settings(deadline=None, max_examples=300)
@given(tensors(), specs())
def test_what_holds_for_every_spec(x: torch.Tensor, spec: TensorSpec) -> None:
    try:
        params = calibrate_tensor(x, spec)
    except CalibrationError as error:
        if "use scale_format bf16 or fp32" not in str(error):
            raise
        reject()  # the values are too small or too large for a scale in fp16
    codes = quantize(x, params, spec)
    values = dequantize(codes, params, spec)
    assert (codes.shape, codes.dtype) == (x.shape, code_dtype(spec))
    assert (values.shape, values.dtype) == (x.shape, torch.float32)
    assert spec.qmin <= int(codes.min())
    assert int(codes.max()) <= spec.qmax
    # Idempotent, and the one-step path gives the same.
    assert torch.equal(quantize(values, params, spec), codes)
    assert torch.equal(fake_quantize(x.float(), params, spec), values)
    assert torch.equal(fake_quantize(x, params, spec), values.to(x.dtype))
    # Memory layout changes nothing.
    assert torch.equal(quantize(x.contiguous(), params, spec), codes)


@settings(deadline=None, max_examples=100)
@given(specs(), st.floats(1e-30, 1e30), st.data())
def test_codes_stay_in_range_whatever_comes(spec: TensorSpec, scale: float, data: st.DataObject) -> None:
    zero_point = None
    if spec.dtype.kind == "integer":
        zero_point = torch.tensor(data.draw(st.integers(spec.qmin, spec.qmax)), dtype=torch.int32)
    params = QuantParams(torch.tensor(scale), zero_point)
    x = torch.tensor([[float("inf"), -float("inf"), 3.4e38, -3.4e38], [1e-45, -1e-45, 0.0, -0.0]])
    codes = quantize(x, params, spec).long()
    assert spec.qmin <= codes.min()
    assert codes.max() <= spec.qmax


def test_a_restricted_range_holds_the_codes() -> None:
    spec = TensorSpec("int8", quant_min=-5, quant_max=3)
    params = QuantParams(torch.tensor(0.1), torch.tensor(0, dtype=torch.int32))
    assert quantize(torch.linspace(-9, 9, 500), params, spec).unique().tolist() == list(range(-5, 4))


@pytest.mark.parametrize(("granularity", "axis"), GRANULARITIES)
@pytest.mark.parametrize("name", ["int4", "uint5", "nf4", "bint1"])
def test_each_block_is_quantized_by_its_own_scale(name: str, granularity: str, axis: int | None) -> None:
    x = torch.randn(5, 7, 4)
    spec, alone = TensorSpec(name, "sym", granularity, axis), TensorSpec(name)
    params = calibrate_tensor(x, spec)
    got = dequantize(quantize(x, params, spec), params, spec)
    # Oracle: cut the tensor up by hand and quantize every piece per tensor.
    if granularity == "per_tensor":
        pieces = [(slice(None),) * 3]
    elif granularity == "per_token":
        pieces = [(i, j, slice(None)) for i in range(5) for j in range(7)]
    elif granularity == "per_channel":
        pieces = [tuple(k if d == axis % 3 else slice(None) for d in range(3)) for k in range(x.shape[axis])]
    else:
        size, along = spec.granularity.group_size, axis % 3
        others = [range(n) for d, n in enumerate(x.shape) if d != along]
        starts = range(0, x.shape[along], size)
        pieces = []
        for first in others[0]:
            for second in others[1]:
                for start in starts:
                    index = [first, second]
                    index.insert(along, slice(start, start + size))
                    pieces.append(tuple(index))
    for piece in pieces:
        own = calibrate_tensor(x[piece], alone)
        assert torch.equal(got[piece], dequantize(quantize(x[piece], own, alone), own, alone))


@pytest.mark.parametrize("name", ["int4", "nf4", "bint1"])
def test_channels_last(name: str) -> None:
    x = torch.randn(2, 6, 5, 5)
    spec = TensorSpec(name, granularity="per_channel", axis=1)
    params = calibrate_tensor(x, spec)
    other = x.to(memory_format=torch.channels_last)
    assert torch.equal(quantize(other, params, spec), quantize(x, params, spec))
    assert torch.equal(calibrate_tensor(other, spec).scale, params.scale)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("value", [0.0, -0.0, 0.3, -0.3, 1e-45, -1e-40, 3e38])
def test_one_value(name: str, shape: tuple, value: float) -> None:
    spec = TensorSpec(name)
    x = torch.full(shape, value)
    params = calibrate_tensor(x, spec)
    result = fake_quantize(x, params, spec)
    assert result.shape == shape
    assert torch.isfinite(result).all()
    assert torch.equal(dequantize(quantize(x, params, spec), params, spec), result)
    # What the grid can hold, it holds; int1 has no positive value.
    if abs(value) > 1e-30 and not (name == "int1" and value > 0) and not (name == "uint1" and value < 0):
        assert result.flatten()[0].item() == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_zeros_stay_zero_where_zero_is_a_value(name: str) -> None:
    spec = TensorSpec(name, granularity="per_channel")
    x = torch.zeros(3, 4)
    result = fake_quantize(x, calibrate_tensor(x, spec), spec)
    if name != "bint1":
        assert not result.any()
    else:
        assert (result.abs() == 1).all()


@pytest.mark.parametrize("name", ["uint4", "int3", "int8"])
def test_zero_is_exact_in_asym(name: str) -> None:
    spec = TensorSpec(name, "asym")
    x = torch.tensor([0.7, 3.1, 0.0])
    assert fake_quantize(x, calibrate_tensor(x, spec), spec)[2] == 0
    assert fake_quantize(-x, calibrate_tensor(-x, spec), spec)[2] == 0


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (2, 0, 3)])
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel", "per_token", "per_group(2)"])
@pytest.mark.parametrize("name", ["int4", "uint2", "bint1", "ternary", "nf4"])
def test_empty_tensors(name: str, granularity: str, shape: tuple) -> None:
    spec = TensorSpec(name, granularity=granularity)
    x = torch.zeros(shape)
    params = calibrate_tensor(x, spec)
    assert fake_quantize(x, params, spec).shape == shape
    assert dequantize(quantize(x, params, spec), params, spec).shape == shape


def test_parameters_that_do_not_fit_are_refused() -> None:
    spec = TensorSpec("int4", granularity="per_channel")
    params = QuantParams(torch.ones(4, 1), torch.tensor(0, dtype=torch.int32))
    with pytest.raises(ConfigError, match=r"needs a scale of shape \(3, 1\), not \(4, 1\)"):
        quantize(torch.zeros(3, 2), params, spec)


# --- the straight-through gradient -------------------------------------------------------------------------


@pytest.mark.parametrize("bits", range(2, 9))
def test_gradient_is_that_of_torch(bits: int) -> None:
    torch.manual_seed(0)  # of values at the very end of the range, whose rounding differs, there is none
    spec = TensorSpec(f"uint{bits}", "asym")
    x = (torch.randn(3000) * 3).requires_grad_()
    scale, zero_point = 3.0 / spec.qmax, spec.qmax // 3
    params = QuantParams(torch.tensor(scale), torch.tensor(zero_point, dtype=torch.int32))
    upstream = torch.randn(3000)
    fake_quantize(x, params, spec).backward(upstream)
    ours, x.grad = x.grad, None
    torch.fake_quantize_per_tensor_affine(x, scale, zero_point, spec.qmin, spec.qmax).backward(upstream)
    assert torch.equal(ours, x.grad)
    assert 0 < int((ours == 0).sum()) < 3000


def test_gradient_passes_at_every_tie_inside_the_range() -> None:
    spec = TensorSpec("int8")
    params = QuantParams(torch.tensor(0.0137), torch.tensor(0, dtype=torch.int32))
    x = ((torch.arange(-127, 127) + 0.5) * params.scale).requires_grad_()
    fake_quantize(x, params, spec).sum().backward()
    assert (x.grad == 1).all()


def test_gradient_of_a_codebook_stops_outside() -> None:
    spec = TensorSpec("ternary")
    x = torch.tensor([-9.0, -1.6, -1.2, 0.0, 0.5, 1.4, 1.6, 9.0, float("inf")], requires_grad=True)
    fake_quantize(x, QuantParams(torch.tensor(1.0)), spec).sum().backward()
    assert x.grad.tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 0]


def test_gradient_keeps_the_dtype() -> None:
    x = torch.randn(4, dtype=torch.bfloat16, requires_grad=True)
    fake_quantize(x, QuantParams(torch.tensor(1.0)), TensorSpec("bint1")).sum().backward()
    assert x.grad.dtype == torch.bfloat16
