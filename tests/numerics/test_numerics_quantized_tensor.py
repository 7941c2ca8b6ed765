"""QuantizedTensor: size, pieces, storage, refusals."""

from math import ceil

import pytest
import torch

from subbyte.calibration import calibrate_tensor, quantize_tensor
from subbyte.dtypes import registered_dtypes
from subbyte.errors import CheckpointError, ConfigError
from subbyte.numerics import QuantizedTensor, dequantize, quantize, scale_shape
from subbyte.spec import TensorSpec

NAMES = [name for name, kind in registered_dtypes().items() if not kind.is_float]
SPECS = [
    TensorSpec("int4", granularity="per_channel"),
    TensorSpec("int3", granularity="per_channel", axis=1),
    TensorSpec("uint5", "asym", "per_token"),
    TensorSpec("uint4", "asym", "per_group(3)", 1),
    TensorSpec("int2", granularity="per_group(3)", axis=0),
    TensorSpec("int2", granularity="per_group(1)", axis=0),
    TensorSpec("int7", granularity="per_group(1000)", axis=0),
    TensorSpec("nf4", granularity="per_group(4)", axis=1, scale_format="bf16"),
    TensorSpec("bint1", granularity="per_channel"),
    TensorSpec("ternary"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel", "per_group(4)"])
@pytest.mark.parametrize("scale_format", ["fp32", "fp16"])
def test_size_is_exact(name: str, granularity: str, scale_format: str) -> None:
    spec = TensorSpec(name, granularity=granularity, scale_format=scale_format)
    tensor = quantize_tensor(torch.randn(7, 11), spec)
    scales = torch.Size(scale_shape((7, 11), spec)).numel() * (4 if scale_format == "fp32" else 2)
    points = 0 if tensor.zero_point is None else 4 * tensor.zero_point.numel()
    assert tensor.packed.nbytes == ceil(77 * spec.dtype.bits / 8)
    assert tensor.nbytes == ceil(77 * spec.dtype.bits / 8) + scales + points
    # A signed symmetric type needs but one zero.
    assert tensor.zero_point is None or spec.dtype.qmin >= 0 or tensor.zero_point.ndim == 0


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_codes_and_values(spec: TensorSpec) -> None:
    x = torch.randn(5, 10, 3)
    params = calibrate_tensor(x, spec)
    tensor = quantize_tensor(x, spec)
    codes = quantize(x, params, spec)
    assert torch.equal(tensor.codes, codes)
    assert tensor.codes.dtype == codes.dtype
    assert torch.equal(tensor.dequantize(), dequantize(codes, params, spec))
    assert torch.equal(tensor.scale, params.scale)
    assert (tensor.shape, tensor.ndim, tensor.numel(), tensor.size(1)) == (x.shape, 3, 150, 10)
    assert tensor.dtype == torch.float32


@pytest.mark.parametrize(
    ("spec", "shape"),
    [(spec, shape) for spec in SPECS for shape in [(45, 7), (45, 2, 3), (9, 40), (1, 300)]]
    + [(spec, (300,)) for spec in SPECS if spec.axis != 1],
    ids=str,
)
def test_pieces_make_the_same_tensor(spec: TensorSpec, shape: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(shape)
    whole = quantize_tensor(x, spec)
    monkeypatch.setattr("subbyte.numerics.quantized_tensor._CHUNK", 64)
    monkeypatch.setattr("subbyte.calibration.calibrate._CHUNK", 64)
    pieces = quantize_tensor(x, spec)
    assert torch.equal(pieces.packed, whole.packed)
    for name, stored in whole.tensors().items():
        assert torch.equal(pieces.tensors()[name], stored)


def test_memory_format_does_not_matter() -> None:
    x = torch.randn(4, 6, 3, 3)
    spec = TensorSpec("int5", granularity="per_channel")
    expected = quantize_tensor(x, spec)
    assert torch.equal(quantize_tensor(x.to(memory_format=torch.channels_last), spec).packed, expected.packed)
    assert torch.equal(quantize_tensor(x.mT.contiguous().mT, spec).packed, expected.packed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_input_is_read_as_its_values(dtype: torch.dtype) -> None:
    x = torch.randn(8, 8).to(dtype)
    spec = TensorSpec("int4", granularity="per_channel")
    assert torch.equal(quantize_tensor(x, spec).packed, quantize_tensor(x.float(), spec).packed)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_what_is_stored_gives_it_back(spec: TensorSpec) -> None:
    tensor = quantize_tensor(torch.randn(6, 8), spec)
    back = QuantizedTensor.from_tensors(tensor.tensors(), spec, tensor.shape)
    assert torch.equal(back.dequantize(), tensor.dequantize())
    assert torch.equal(tensor.to("cpu").dequantize(), tensor.dequantize())


def test_empty() -> None:
    tensor = quantize_tensor(torch.zeros(0, 4), TensorSpec("int3", granularity="per_channel"))
    assert tensor.nbytes == 4
    assert tensor.dequantize().shape == (0, 4)


@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel", "per_token", "per_group(4)"])
def test_a_single_number_has_one_scale(granularity: str) -> None:
    tensor = quantize_tensor(torch.tensor(-0.75), TensorSpec("int4", granularity=granularity))
    assert tensor.scale.shape == tensor.shape == ()
    assert torch.equal(tensor.dequantize(), torch.tensor(-0.75))


def test_no_gradient_is_kept() -> None:
    tensor = quantize_tensor(torch.randn(4, 4, requires_grad=True), TensorSpec("int4"))
    assert not tensor.scale.requires_grad


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.pop("packed"), "lacks its 'packed'"),
        (lambda t: t.pop("scale"), "lacks its 'scale'"),
        (
            lambda t: t.update(packed=t["packed"][:-1]),
            r"int4 codes of shape \(6, 8\) take 24 bytes, got .*\(23,\)",
        ),
        (lambda t: t.update(packed=t["packed"].char()), "take 24 bytes"),
        (lambda t: t.update(packed=t["packed"].view(2, 12)), "take 24 bytes"),
        (lambda t: t.update(scale=t["scale"][:-1]), r"scale must be float32 of shape \(6, 1\) .*got .*\(5, 1\)"),
        (lambda t: t.update(scale=t["scale"][0, 0]), r"scale must be float32 of shape \(6, 1\) .*got .*\(\)"),
        (lambda t: t.update(scale=t["scale"].double()), r"scale must be float32 .*got float64"),
        (lambda t: t.update(scale=t["scale"].round().int()), r"scale must be float32 .*got int32"),
        (lambda t: t.update(scale=t["scale"] * float("nan")), "scale holds nan; every scale must be positive"),
        (lambda t: t.update(scale=-t["scale"]), "scale holds -.*; every scale must be positive and finite"),
        (lambda t: t.update(scale=t["scale"] / 0), "scale holds inf"),
        (lambda t: t.pop("zero_point"), "zero_point is missing; scheme sym of int4 has one"),
        (lambda t: t.update(zero_point=torch.tensor(0)), "zero_point must be int32 .*got int64"),
        (
            lambda t: t.update(zero_point=torch.zeros(8, dtype=torch.int32)),
            r"zero_point must be .*\(8",
        ),
        (lambda t: t.update(zero_point=torch.tensor(-1, dtype=torch.int32)), "zero_point must be 0 for int4 .*got -1"),
    ],
)
def test_damaged_parts_are_refused(change, reason: str) -> None:
    spec = TensorSpec("int4", granularity="per_channel")
    tensor = quantize_tensor(torch.randn(6, 8), spec)
    stored = tensor.tensors()
    change(stored)
    with pytest.raises(CheckpointError, match=reason):
        QuantizedTensor.from_tensors(stored, spec, tensor.shape)


@pytest.mark.parametrize(
    ("spec", "change", "reason"),
    [
        (TensorSpec("uint4", "asym"), {"zero_point": 16}, r"zero_point must be in \[0, 15\] for uint4 .*got 16"),
        (TensorSpec("int4", "asym"), {"zero_point": -9}, r"zero_point must be in \[-8, 7\] for int4 .*got -9"),
        (TensorSpec("nf4"), {"zero_point": 0}, "zero_point is given; nf4 is a table of values"),
        (TensorSpec("ternary"), {"packed": 0b11}, r"codes must be in \[0, 2\] for ternary .*got 3"),
        (TensorSpec("int4", quant_min=-7), {"packed": 0x08}, r"codes must be in \[-7, 7\] for int4 .*got -8"),
    ],
)
def test_from_tensors_refuses_values_beyond_the_spec(spec: TensorSpec, change: dict[str, int], reason: str) -> None:
    stored = quantize_tensor(torch.randn(6, 8), spec).tensors()
    kinds = {"zero_point": torch.int32, "packed": torch.uint8}
    for name, value in change.items():
        stored[name] = torch.full_like(stored.get(name, torch.zeros(())), value, dtype=kinds[name])
    with pytest.raises(CheckpointError, match=reason):
        QuantizedTensor.from_tensors(stored, spec, torch.Size((6, 8)))


def test_text() -> None:
    tensor = quantize_tensor(torch.randn(2, 4), TensorSpec("int4"))
    assert repr(tensor) == "QuantizedTensor((2, 4), int4 sym per_tensor minmax, 12 bytes)"


def test_a_dtype_is_no_place_to_move_to() -> None:
    tensor = quantize_tensor(torch.randn(4, 4), TensorSpec("int4"))
    assert torch.equal(tensor.to("cpu").codes, tensor.codes)
    with pytest.raises(ConfigError, match=r"keeps its codes; take \.dequantize"):
        tensor.to(torch.float16)  # type: ignore[arg-type]
