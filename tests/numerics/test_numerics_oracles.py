"""Other programs as oracles: torch's fake-quantize ops, Brevitas, QONNX.

Two differences are known, and only at ties of x / s, give or take a rounding error:
torch multiplies by 1 / s where we divide by s; Brevitas and QONNX round x / s + z where we round x / s.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from subbyte.dtypes import DataType
from subbyte.numerics import dequantize, fake_quantize, quantize
from subbyte.spec import QuantParams, TensorSpec

PROPERTY = settings(deadline=None, max_examples=100)


@st.composite
def cases(draw: st.DrawFn, zero: bool = False) -> tuple[Tensor, QuantParams, TensorSpec]:
    """Values about a range of codes, ties among them; scale; zero point (0 if `zero`); an integer spec."""
    bits, signed = draw(st.integers(2, 8)), draw(st.booleans())
    narrow = signed and draw(st.booleans())
    spec = TensorSpec(DataType("case", bits=bits, signed=signed, narrow=narrow), "asym")
    zero_point = 0 if zero else draw(st.integers(spec.qmin, spec.qmax))
    scale = np.float32(draw(st.floats(1e-4, 1e3)))
    torch.manual_seed(draw(st.integers(0, 1 << 20)))
    steps = torch.cat([torch.randn(64) * spec.qmax, torch.randint(-300, 300, (64,)) + 0.5])
    drawn = draw(st.lists(st.floats(-1e4, 1e4, width=32), max_size=20))
    x = torch.cat([steps * float(scale), torch.tensor(drawn, dtype=torch.float32)])
    return x, QuantParams(torch.tensor(scale), torch.tensor(zero_point, dtype=torch.int32)), spec


def near_tie(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    ratio = x.double() / scale.double()
    return (ratio - ratio.floor() - 0.5).abs() <= 3e-7 * (1 + ratio.abs() + zero_point.abs())


def equal_but_at_ties(ours: Tensor, theirs: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor) -> None:
    apart = ours != theirs
    assert not (apart & ~near_tie(x, scale, zero_point)).any()
    # And there, by one step.
    assert ((ours.double() - theirs.double()).abs() <= scale.double() * 1.001).all()


@PROPERTY
@given(cases())
def test_torch_per_tensor(case: tuple[Tensor, QuantParams, TensorSpec]) -> None:
    x, params, spec = case
    theirs = torch.fake_quantize_per_tensor_affine(x, params.scale, params.zero_point, spec.qmin, spec.qmax)
    equal_but_at_ties(fake_quantize(x, params, spec), theirs, x, params.scale, torch.tensor(0))


@pytest.mark.parametrize("bits", range(2, 9))
def test_torch_per_tensor_agrees_where_its_product_is_exact(bits: int) -> None:
    """With a power of two as scale x * (1 / s) is x / s: equal, ties and all."""
    spec = TensorSpec(f"int{bits}")
    params = QuantParams(torch.tensor(0.25), torch.tensor(0, dtype=torch.int32))
    x = torch.arange(-1200, 1200) / 8 * 0.25
    theirs = torch.fake_quantize_per_tensor_affine(x, 0.25, 0, spec.qmin, spec.qmax)
    assert torch.equal(fake_quantize(x, params, spec), theirs)


@PROPERTY
@given(st.integers(2, 8), st.booleans(), st.sampled_from([0, 1, 2, 3]), st.integers(0, 1 << 20))
def test_torch_per_channel(bits: int, signed: bool, axis: int, seed: int) -> None:
    torch.manual_seed(seed)
    spec = TensorSpec(f"{'' if signed else 'u'}int{bits}", "asym", "per_channel", axis)
    x = torch.randn(4, 5, 3, 2) * 10
    shape = [size if index == axis else 1 for index, size in enumerate(x.shape)]
    scale = torch.rand(x.shape[axis]) + 1e-3
    zero_point = torch.randint(spec.qmin, spec.qmax + 1, (x.shape[axis],), dtype=torch.int32)
    theirs = torch.fake_quantize_per_channel_affine(x, scale, zero_point, axis, spec.qmin, spec.qmax)
    scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    ours = fake_quantize(x, QuantParams(scale, zero_point), spec)
    equal_but_at_ties(ours, theirs, x, scale, torch.tensor(0))


def brevitas_codes(x: Tensor, params: QuantParams, spec: TensorSpec) -> tuple[Tensor, Tensor]:
    brevitas = pytest.importorskip("brevitas.core.quant.int_base")
    oracle = brevitas.IntQuant(
        narrow_range=spec.dtype.narrow, signed=spec.dtype.signed, input_view_impl=torch.nn.Identity()
    )
    given_to_it = (params.scale, params.zero_point.float(), torch.tensor(float(spec.dtype.bits)), x)
    return oracle.to_int(*given_to_it), oracle(*given_to_it)


@PROPERTY
@given(cases(zero=True))
def test_brevitas_is_equal_bit_for_bit_without_zero_point(case: tuple[Tensor, QuantParams, TensorSpec]) -> None:
    x, params, spec = case
    codes, values = brevitas_codes(x, params, spec)
    assert torch.equal(quantize(x, params, spec).float(), codes)
    assert torch.equal(fake_quantize(x, params, spec), values)


@PROPERTY
@given(cases())
def test_brevitas(case: tuple[Tensor, QuantParams, TensorSpec]) -> None:
    x, params, spec = case
    codes, _ = brevitas_codes(x, params, spec)
    one = torch.tensor(1.0)
    ours = quantize(x, params, spec).float()
    equal_but_at_ties(ours, codes, x / params.scale.double(), one, params.zero_point)


def test_brevitas_differs_at_ties_of_an_odd_zero_point() -> None:
    """The known difference, so that a change of either side is noticed."""
    spec = TensorSpec("uint4", "asym")
    params = QuantParams(torch.tensor(1.0), torch.tensor(3, dtype=torch.int32))
    x = torch.tensor([0.5, 1.5])
    assert quantize(x, params, spec).tolist() == [3, 5]
    assert brevitas_codes(x, params, spec)[0].tolist() == [4, 4]


def qonnx_values(x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
    qonnx = pytest.importorskip("qonnx.custom_op.general.intquant")
    kind = spec.dtype
    scale, zero_point = params.scale.numpy(), params.zero_point.float().numpy()
    values = qonnx.int_quant(x.numpy(), scale, zero_point, np.float32(kind.bits), kind.signed, kind.narrow, "ROUND")
    return torch.from_numpy(np.asarray(values, dtype=np.float32))


@PROPERTY
@given(cases(zero=True))
def test_qonnx_is_equal_bit_for_bit_without_zero_point(case: tuple[Tensor, QuantParams, TensorSpec]) -> None:
    x, params, spec = case
    values = dequantize(quantize(x, params, spec), params, spec)
    assert torch.equal(values, qonnx_values(x, params, spec))


@PROPERTY
@given(cases())
def test_qonnx(case: tuple[Tensor, QuantParams, TensorSpec]) -> None:
    x, params, spec = case
    values = dequantize(quantize(x, params, spec), params, spec)
    equal_but_at_ties(values, qonnx_values(x, params, spec), x, params.scale, params.zero_point)
