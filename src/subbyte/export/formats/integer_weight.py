"""A quantized weight as the formats of others hold it: rows of unsigned codes, a scale and zero point per group."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from subbyte.dtypes import dtype
from subbyte.errors import CheckpointError
from subbyte.numerics import QuantizedTensor, is_built_in_affine, pack, registered_schemes, scheme_of
from subbyte.spec import Granularity, QuantParams, TensorSpec

_SCALE_FORMATS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class IntegerWeight:
    """A weight `(code - zero_point) * scale`.

    Args:
        bits: 1..8, of a code.
        codes: uint8 [out, in], 0..2^bits - 1: a signed type's codes plus 2^(bits - 1).
        scale: fp32, fp16 or bf16 [out, groups].
        zero_point: int32 [out, groups], in the domain of these codes.
        group_size: how many consecutive inputs share a scale; None where all of a row do.
    """

    bits: int
    codes: Tensor
    scale: Tensor
    zero_point: Tensor
    group_size: int | None

    @property
    def middle(self) -> int:
        """The zero point of a signed, symmetric type."""
        return 1 << (self.bits - 1)

    @property
    def is_symmetric(self) -> bool:
        """Whether every zero point is mid-range."""
        return bool((self.zero_point == self.middle).all())

    @property
    def size(self) -> int:
        """How many inputs share a scale."""
        return int(self.codes.shape[1]) if self.group_size is None else self.group_size


def integer_weight(tensor: QuantizedTensor, channel_axis: int) -> IntegerWeight:
    """A quantized matrix, its output channels as rows.

    Raises:
        CheckpointError: it has no integer codes, or is no matrix.
    """
    tensor = tensor.to("cpu")
    spec = tensor.spec
    if not _has_integer_codes(spec):
        raise CheckpointError(
            f"{spec.dtype} with scheme {spec.scheme} has no integer codes; int1..int8 and uint1..uint8 have, with sym "
            "or asym"
        )
    if len(tensor.shape) != 2:
        raise CheckpointError(f"its weight has {len(tensor.shape)} axes; matrices fit, so leave this op fp32")
    offset = _offset(spec)
    codes = _rows(tensor.codes, channel_axis)
    zero_point = torch.zeros((), dtype=torch.int32) if tensor.zero_point is None else tensor.zero_point
    blocks = (codes.shape[0], 1 if tensor.scale.ndim == 0 else _rows(tensor.scale, channel_axis).shape[1])
    return IntegerWeight(
        bits=spec.dtype.bits,
        codes=(codes.to(torch.int16) + offset).to(torch.uint8),
        scale=_rows(tensor.scale, channel_axis).expand(blocks),
        zero_point=(_rows(zero_point, channel_axis) + offset).to(torch.int32).expand(blocks),
        group_size=spec.granularity.group_size or None,
    )


def quantized_tensor(weight: IntegerWeight, spec: TensorSpec, channel_axis: int) -> QuantizedTensor:
    """The same weight as a QuantizedTensor of `spec`, of the shape that the op has it in.

    Raises:
        CheckpointError: codes, scales or zero points are not such as the spec has.
    """
    if not _has_integer_codes(spec):
        raise CheckpointError(f"it is said to be {spec}, which has no integer codes; the file was altered")
    offset = _offset(spec)
    weight = _with_positive_scales(weight)
    codes = weight.codes.to(torch.int16) - offset
    zero_point = weight.zero_point - offset
    _check_fits(weight, spec, codes, zero_point)
    scale = weight.scale.to(_stored_dtype(spec))
    if spec.granularity.kind == "per_tensor":
        scale, zero_point = scale[0, 0], zero_point[0, 0]
    if _has_no_zero_point(spec):
        zero_point = torch.zeros((), dtype=torch.int32)
    codes = _rows(codes, channel_axis).contiguous()
    params = QuantParams(_rows(scale, channel_axis).contiguous(), _rows(zero_point, channel_axis).contiguous())
    return QuantizedTensor(pack(codes, weight.bits), params, spec, codes.shape)


def check_shapes(weight: IntegerWeight, shape: tuple[int, int]) -> None:
    """Refuse a weight that was read for another shape, or whose parts do not fit each other.

    Raises:
        CheckpointError: what does not fit.
    """
    if tuple(weight.codes.shape) != shape:
        raise CheckpointError(f"its weight has shape {tuple(weight.codes.shape)}, and in this model {shape}")
    groups = (shape[0], 1 if weight.group_size is None else -(-shape[1] // weight.group_size))
    for part, tensor in (("scales", weight.scale), ("zero points", weight.zero_point)):
        if tuple(tensor.shape) != groups:
            raise CheckpointError(
                f"its {part} are of {tuple(tensor.shape)} channels and groups, where groups of {weight.size} inputs "
                f"have {groups}"
            )
    if bool(((weight.zero_point < 0) | (weight.zero_point >> weight.bits > 0)).any()):
        largest = (1 << weight.bits) - 1
        raise CheckpointError(f"its zero points are not all codes of {weight.bits} bits, which are in [0, {largest}]")
    if weight.scale.dtype not in _SCALE_FORMATS or not bool((weight.scale.isfinite() & (weight.scale >= 0)).all()):
        raise CheckpointError(
            f"its scales, in {weight.scale.dtype}, are not all finite numbers of fp32, fp16 or bf16 from zero on"
        )


def own_spec(weight: IntegerWeight) -> TensorSpec:
    """What a weight is that nothing more is known of: intB sym where every zero point is mid-range, else uintB asym."""
    kind = ("int", "sym") if weight.is_symmetric else ("uint", "asym")
    return TensorSpec(
        dtype(f"{kind[0]}{weight.bits}"),
        scheme=kind[1],
        granularity=_granularity(weight),
        scale_format=_SCALE_FORMATS[weight.scale.dtype],  # type: ignore[arg-type]
    )


def _with_positive_scales(weight: IntegerWeight) -> IntegerWeight:
    """Return the same values with 1 for each scale of 0: the codes of such a group become its zero point."""
    if bool((weight.scale > 0).all()):
        return weight
    shape = weight.codes.shape
    scale, zero_point = (x.repeat_interleave(weight.size, 1)[:, : shape[1]] for x in (weight.scale, weight.zero_point))
    codes = torch.where(scale == 0, zero_point.to(torch.uint8), weight.codes)
    return replace(weight, codes=codes, scale=torch.where(weight.scale == 0, 1.0, weight.scale).to(weight.scale.dtype))


def _granularity(weight: IntegerWeight) -> Granularity:
    return Granularity("per_channel") if weight.group_size is None else Granularity("per_group", weight.group_size)


def _check_fits(weight: IntegerWeight, spec: TensorSpec, codes: Tensor, zero_point: Tensor) -> None:
    stated = replace(spec, axis=None)
    problems = {
        f"{weight.bits} bits": spec.dtype.bits != weight.bits,
        str(_granularity(weight)): spec.granularity not in (_granularity(weight), *_whole(weight)),
        "codes beyond its range": bool(((codes < spec.qmin) | (codes > spec.qmax)).any()),
        "zero points": _has_no_zero_point(spec) and bool((zero_point != 0).any()),
        f"scales in {weight.scale.dtype}": not torch.equal(
            weight.scale.to(_stored_dtype(spec)).double(), weight.scale.double()
        ),
    }
    found = [problem for problem, holds in problems.items() if holds]
    if found:
        raise CheckpointError(f"it is said to be {stated}, and has {', '.join(found)}; the file was altered")


def _whole(weight: IntegerWeight) -> tuple[Granularity, ...]:
    """`per_tensor`, where one scale and zero point serve all: such a weight is written once for each channel."""
    one = weight.group_size is None and all(
        bool((param == param[:1]).all()) for param in (weight.scale, weight.zero_point)
    )
    return (Granularity("per_tensor"),) if one else ()


def _has_no_zero_point(spec: TensorSpec) -> bool:
    return spec.scheme == "sym" and spec.qmin < 0 <= spec.qmax


def _stored_dtype(spec: TensorSpec) -> torch.dtype:
    return next((dtype for dtype, name in _SCALE_FORMATS.items() if name == spec.scale_format), torch.float32)


def _has_integer_codes(spec: TensorSpec) -> bool:
    return spec.dtype.kind == "integer" and spec.scheme in registered_schemes() and is_built_in_affine(scheme_of(spec))


def _offset(spec: TensorSpec) -> int:
    """What is added to a code to make it unsigned."""
    return 1 << (spec.dtype.bits - 1) if spec.dtype.signed else 0


def _rows(x: Tensor, channel_axis: int) -> Tensor:
    """A matrix with output channels as rows, or the way back; one value stays one."""
    return x.t() if x.ndim and channel_axis == 1 else x
