"""Schemes: how real values and codes stand to each other.

A value is `grid * scale`, where the grid value of a code is `code - zero_point` for an affine scheme
and `table[code]` for a codebook. Arithmetic is done on grid values; scales are applied once, after.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from subbyte.errors import ConfigError, listing, nearest
from subbyte.kernels.operator import runs_native
from subbyte.kernels.quantize import SLACK, is_inside
from subbyte.kernels.quantize import affine_snap as native_snap
from subbyte.numerics.blocks import expand, scale_shape
from subbyte.numerics.definition import is_same_definition
from subbyte.spec import QuantParams, TensorSpec

_TINY = torch.finfo(torch.float32).tiny
_STORED = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "pow2": torch.float32}


class Scheme(ABC):
    """One way to map values to codes; subclass it and `register_scheme` to add another.

    Attributes:
        scales_per_block: how many scales one block has; more than one stand along a last axis of their own,
            and then `grid_scale` and `grid` must say how they are used.
    """

    scales_per_block = 1

    @abstractmethod
    def from_range(self, minimum: Tensor, maximum: Tensor, spec: TensorSpec) -> QuantParams:
        """Parameters that represent `minimum..maximum` (any shape, fp32); of the same shape."""

    @abstractmethod
    def quantize(self, x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        """Codes of `x` (fp32), as whole numbers in a float tensor, inside spec.qmin..spec.qmax."""

    @abstractmethod
    def grid(self, codes: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        """Grid values (fp32) of `codes`."""

    def snap(self, x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        """The grid values of the codes of `x`, in one step."""
        return self.grid(self.quantize(x, params, spec), params, spec)

    def grid_scale(self, params: QuantParams) -> Tensor:
        """What grid values, and sums of their products, are multiplied by: fp32, of the scale's shape."""
        return params.scale.float()

    def scale(self, params: QuantParams, shape: torch.Size, spec: TensorSpec) -> Tensor:
        """`grid_scale`, broadcastable against a tensor of `shape`."""
        return expand(self.grid_scale(params), shape, spec)

    def scale_shape(self, shape: Sequence[int], spec: TensorSpec) -> tuple[int, ...]:
        """The shape of `QuantParams.scale` for a tensor of `shape`."""
        blocks = scale_shape(shape, spec)
        return blocks if self.scales_per_block == 1 else (*blocks, self.scales_per_block)

    def reach(self, spec: TensorSpec) -> float:
        """Half the widest step between grid values: what is further from its grid value was clipped."""
        return float("inf")

    def is_inside(self, x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        """Whether values (fp32) lie in the range of the grid; what does not was clipped, and has no gradient."""
        steps = x / self.scale(params, x.shape, spec)
        return (steps - self.snap(x, params, spec)).abs() <= self.reach(spec) + SLACK

    def has_integer_grid(self, spec: TensorSpec) -> bool:
        """Whether grid values are whole numbers, so that their products sum exactly."""
        return False

    def max_grid(self, spec: TensorSpec) -> float:
        """A bound of |grid value| over all zero points."""
        return float("inf")

    def zero_points(self, spec: TensorSpec) -> tuple[float, float]:
        """Return the smallest and the largest zero point: those whose grid values keep to `max_grid`."""
        return spec.qmax - self.max_grid(spec), spec.qmin + self.max_grid(spec)


class Affine(Scheme):
    """`q = clamp(round_half_even(x / s) + z, qmin, qmax)`; a grid value is `q - z`."""

    def quantize(self, x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        return self.snap(x, params, spec) + expand(_zero_point(params), x.shape, spec)

    def grid(self, codes: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        return codes.to(torch.float32) - expand(_zero_point(params), codes.shape, spec)

    def snap(self, x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        if runs_native(x):
            return native_snap(x, *affine_arguments(params, spec))
        return affine_snap(x, self.scale(params, x.shape, spec), *self.ends(params, x.shape, spec))

    def ends(self, params: QuantParams, shape: Sequence[int], spec: TensorSpec) -> tuple[Tensor, Tensor]:
        """The lowest and the highest grid value of each value of a tensor of `shape`, broadcastable against it."""
        zero_point = expand(_zero_point(params), shape, spec)
        return (spec.qmin - zero_point).float(), (spec.qmax - zero_point).float()

    def reach(self, spec: TensorSpec) -> float:
        return 0.5

    def is_inside(self, x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        """From the lowest to the highest grid value, ends included."""
        return is_inside(x / self.scale(params, x.shape, spec), *self.ends(params, x.shape, spec))

    def has_integer_grid(self, spec: TensorSpec) -> bool:
        return True


class Symmetric(Affine):
    """The smallest scale that clips nothing the grid can hold: max(xmax/qmax, xmin/qmin) over non-zero ends.

    The zero point is 0 for codes of both signs. For others (an unsigned type) it is the lowest code where
    the data has no negative value, else mid-range.
    """

    def from_range(self, minimum: Tensor, maximum: Tensor, spec: TensorSpec) -> QuantParams:
        zero_point = torch.zeros_like(minimum, dtype=torch.int32)
        if not _holds_both_signs(spec):
            middle = (spec.qmin + spec.qmax + 1) // 2
            zero_point = torch.where(minimum < 0, middle, zero_point + spec.qmin).to(torch.int32)
        low, high = spec.qmin - zero_point, spec.qmax - zero_point
        scale = torch.maximum(_over(maximum, high), _over(minimum, low))
        # Data that lies wholly on the side that the grid lacks (int1 has no positive value).
        absolute = torch.maximum(minimum.abs(), maximum.abs()) / torch.maximum(low.abs(), high.abs())
        scale = torch.where(scale > 0, scale, absolute)
        if _holds_both_signs(spec):
            zero_point = torch.zeros((), dtype=torch.int32, device=minimum.device)
        return QuantParams(stored_scale(scale, spec), zero_point)

    def max_grid(self, spec: TensorSpec) -> float:
        return float(max(-spec.qmin, spec.qmax) if _holds_both_signs(spec) else spec.qmax - spec.qmin)

    def zero_points(self, spec: TensorSpec) -> tuple[float, float]:
        return (0, 0) if _holds_both_signs(spec) else super().zero_points(spec)


class Asymmetric(Affine):
    """The range widened to hold 0; `s = (xmax - xmin) / (qmax - qmin)`, `z = clamp(round(qmin - xmin / s))`."""

    def from_range(self, minimum: Tensor, maximum: Tensor, spec: TensorSpec) -> QuantParams:
        minimum, maximum = minimum.clamp(max=0.0), maximum.clamp(min=0.0)
        steps = spec.qmax - spec.qmin
        scale = stored_scale(maximum / steps - minimum / steps, spec)
        zero_point = (spec.qmin - minimum / scale.float()).round().clamp(spec.qmin, spec.qmax)
        return QuantParams(scale, zero_point.to(torch.int32))

    def max_grid(self, spec: TensorSpec) -> float:
        return float(spec.qmax - spec.qmin)


class Codebook(Scheme):
    """The nearest value of a table, ties to the upper one; `s = max|x| / max|value|`."""

    def from_range(self, minimum: Tensor, maximum: Tensor, spec: TensorSpec) -> QuantParams:
        absolute = torch.maximum(minimum.abs(), maximum.abs())
        return QuantParams(stored_scale(absolute / spec.dtype.max_magnitude, spec))

    def quantize(self, x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        _, codes, boundaries = _table(spec.dtype.values or (), x.device)
        return codes[self._rank(x, params, spec, boundaries)].float()

    def grid(self, codes: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        table = torch.tensor(spec.dtype.values, dtype=torch.float32, device=codes.device)
        return table[codes.long()]

    def snap(self, x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        values, _, boundaries = _table(spec.dtype.values or (), x.device)
        if len(values) > _FEW:
            return values[self._rank(x, params, spec, boundaries)]
        steps = x / self.scale(params, x.shape, spec)
        # A NaN is the last value, as in every table.
        below: list[Tensor] = [steps < boundary for boundary in boundaries]
        # Products, not `where`: that guesses each branch, and signs are hard to guess (five times the time).
        snapped = below[0] * values[0]
        for left, right, value in zip(below, below[1:], values[1:], strict=False):
            snapped += (right & ~left) * value
        snapped += ~below[-1] * values[-1]
        return snapped

    def _rank(self, x: Tensor, params: QuantParams, spec: TensorSpec, boundaries: Tensor) -> Tensor:
        return torch.bucketize((x / self.scale(params, x.shape, spec)).contiguous(), boundaries, right=True)

    def reach(self, spec: TensorSpec) -> float:
        ordered, _, _ = _sorted_table(spec.dtype.values or ())
        return max(b - a for a, b in pairwise(ordered)) / 2

    def is_inside(self, x: Tensor, params: QuantParams, spec: TensorSpec) -> Tensor:
        """From the lowest to the highest value, and half the widest step further out.

        The scale of a binary or ternary weight is a mean, so that much of it lies beyond the last value.
        """
        values, reach = spec.dtype.values or (), self.reach(spec)
        return is_inside(x / self.scale(params, x.shape, spec), min(values) - reach, max(values) + reach)

    def has_integer_grid(self, spec: TensorSpec) -> bool:
        return spec.dtype.has_integer_values

    def max_grid(self, spec: TensorSpec) -> float:
        return spec.dtype.max_magnitude


def affine_arguments(params: QuantParams, spec: TensorSpec) -> tuple[Tensor, Tensor, int, int, int]:
    """What the operators of `kernels.quantize` take beside x: scale, zero point, low, high, group size."""
    return params.scale.float(), _zero_point(params), spec.qmin, spec.qmax, spec.granularity.group_size


def is_built_in_affine(scheme: Scheme) -> bool:
    """Whether it is `sym` or `asym` itself: a subclass may compute otherwise."""
    return type(scheme) in (Symmetric, Asymmetric)


def affine_snap(x: Tensor, scale: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """`clamp(round_half_even(x / scale), low, high)`: grid values, with low = qmin - z and high = qmax - z.

    A true division. Bounds as tensors make a change of either a change of data; as numbers they are one pass over
    memory less. Equal to rounding, adding the zero point, clamping to qmin..qmax and subtracting it again.
    """
    y = x / scale
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and y.requires_grad):
        return torch.clamp(torch.round(y), low, high)  # type: ignore[arg-type]
    # In place: fresh memory costs more than the arithmetic.
    y.round_()
    if not isinstance(low, Tensor) or not isinstance(high, Tensor):
        return y.clamp_(low, high)  # type: ignore[arg-type]
    torch.maximum(y, low, out=y)
    return torch.minimum(y, high, out=y)


def stored_scale(scale: Tensor, spec: TensorSpec) -> Tensor:
    """A usable scale in the spec's format: 1 for an all-zero block, for others the nearest, or a subnormal one above.

    Calibration refuses data whose scales lie beyond `scale_limits`; a dynamic range is kept inside them.
    """
    scale = torch.where(scale > 0, scale, 1.0).clamp(min=_TINY)
    if spec.scale_format == "pow2":
        mantissa, exponent = torch.frexp(scale)
        exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
        scale = torch.ldexp(torch.ones_like(scale), exponent)
    smallest, largest = scale_limits(spec)
    narrow = _STORED[spec.scale_format]
    if smallest < torch.finfo(narrow).smallest_normal:
        # Subnormal scales are few: the next smaller one might clip much.
        rounded_up = (scale / smallest).ceil() * smallest
        scale = torch.where(scale < torch.finfo(narrow).smallest_normal, rounded_up, scale)
    return scale.clamp(smallest, largest).to(narrow)


def stored_dtype(spec: TensorSpec) -> torch.dtype:
    """Return the dtype of scales in the spec's format."""
    return _STORED[spec.scale_format]


def scale_limits(spec: TensorSpec) -> tuple[float, float]:
    """The smallest and the largest scale in the spec's format; subnormal ones only where others end early (fp16)."""
    limits = torch.finfo(_STORED[spec.scale_format])
    return max(limits.smallest_normal * limits.eps, _TINY), limits.max


def _sorted_table(values: tuple[float, ...]) -> tuple[list[float], list[int], list[float]]:
    order = sorted(range(len(values)), key=lambda code: (values[code], code))
    # Of the two zeros of a sign-magnitude table only the first code is ever written.
    order = [code for rank, code in enumerate(order) if rank == 0 or values[code] != values[order[rank - 1]]]
    ordered = [values[code] for code in order]
    return ordered, order, [(a + b) / 2 for a, b in pairwise(ordered)]


def _table(values: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Values in rising order, their codes, and the boundaries between them."""
    ordered, codes, boundaries = _sorted_table(values)
    return (
        torch.tensor(ordered, dtype=torch.float32, device=device),
        torch.tensor(codes, device=device),
        torch.tensor(boundaries, dtype=torch.float32, device=device),
    )


def _holds_both_signs(spec: TensorSpec) -> bool:
    return spec.qmin < 0 <= spec.qmax


def _over(end: Tensor, code: Tensor) -> Tensor:
    return torch.where(code != 0, end / torch.where(code != 0, code, 1), 0.0)


def _zero_point(params: QuantParams) -> Tensor:
    if params.zero_point is None:
        raise ConfigError("an affine scheme needs a zero point; give QuantParams(scale, zero_point)")
    return params.zero_point


_FEW = 4  # values of a table: its intervals are then looked at one by one

_SCHEMES: dict[str, Scheme] = {"sym": Symmetric(), "asym": Asymmetric()}
_CODEBOOK = Codebook()


def register_scheme(name: str, scheme: Scheme) -> Scheme:
    """Make a scheme known by name, for `TensorSpec(scheme=name)` and capability files.

    A class that is defined again (a notebook cell, run twice) replaces what it registered before; models that
    are quantized already are to be quantized again.

    Raises:
        ConfigError: the name is taken by another class, or this is no Scheme.
    """
    if not isinstance(scheme, Scheme):
        raise ConfigError(f"scheme {name!r} must be an instance of a Scheme subclass, not {scheme!r}")
    if name in _SCHEMES and not is_same_definition(type(_SCHEMES[name]), type(scheme)):
        raise ConfigError(f"scheme name {name!r} is taken; choose another")
    _SCHEMES[name] = scheme
    return scheme


def registered_schemes() -> tuple[str, ...]:
    """The names of all schemes."""
    return tuple(_SCHEMES)


def scheme_of(spec: TensorSpec) -> Scheme:
    """The scheme that a spec names; `sym` of a codebook type is the table lookup.

    Raises:
        ConfigError: the spec names no registered scheme, or is of a float type.
    """
    if spec.is_float:
        raise ConfigError(f"{spec.dtype} is a float type: there is nothing to quantize")
    if spec.scheme not in _SCHEMES:
        raise ConfigError(
            f"scheme {spec.scheme!r} is unknown{nearest(spec.scheme, _SCHEMES)} (known: {listing(_SCHEMES)})"
        )
    if spec.dtype.kind == "codebook" and spec.scheme == "sym":
        return _CODEBOOK
    return _SCHEMES[spec.scheme]
